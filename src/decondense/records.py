"""Every file that one part of the package writes and another reads: its fields, its version, one reader, one writer.

    measurement   decondense.condensation/2   the meter on one model and one text
    training      decondense.train/2          one training run; its snapshots stand inside, in short
    evaluation    decondense.evaluation/1     benchmarks on one model; the items lie beside it in items.parquet
    outcomes      decondense.outcomes/1       the same in the small, beside a training run of a study (outcomes.json)
    measured      decondense.measured/1       a measurement in short, as a run of a study
    comparison    decondense.comparison/1     measurements side by side
    significance  decondense.significance/1   two sets of evaluations on the same items
    study         decondense.study/2          a claim: verdict, table, and the runs it rests on

`read` takes a file or the folder that holds its result.json and returns the record as its class. A file that does not
fit is a `Damaged` with the path and the field. Files of version 1 are read too. Numbers that are not finite are null.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from .files import finite, pretty_json, read_json, write_text

__all__ = [
    "Comparison",
    "Damaged",
    "Evaluation",
    "Interval",
    "Measured",
    "Measurement",
    "Outcomes",
    "Record",
    "Significance",
    "Snapshot",
    "Study",
    "Training",
    "find",
    "in_short",
    "parse",
    "read",
]

STATISTICS = ("spearman", "kendall", "slope", "last")  # of mean cosine over depth
Number = float | None
Density = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, lt=2**53)]  # what a browser can hold too
Words = Annotated[str, Field(pattern=r"\S")]  # not empty
Section = dict[str, Any]


class Damaged(ValueError):
    """A file is not what its schema says. The sentence names the file, the field and the remedy."""


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class Record(Part):
    """A whole file. `kind` is its name for people, `reads` the schemas that this class reads, the newest first."""

    kind: ClassVar[str]
    reads: ClassVar[tuple[str, ...]]

    schema_: str = Field(alias="schema")

    def to_json(self) -> str:
        """The same numbers give the same bytes; fields that were never set are left out."""
        content = self.model_dump(mode="json", by_alias=True, exclude_unset=True)
        return pretty_json(finite(content))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write `path`, or `path`/result.json if it is a folder; folders are made."""
        target = Path(path)
        if target.is_dir() or not target.suffix:
            target = target / "result.json"
        target.parent.mkdir(parents=True, exist_ok=True)
        write_text(target, self.to_json())
        return target


# ---- measurement -------------------------------------------------------------------------------------------------


class Interval(Part):
    value: Number
    low: Number
    high: Number


class MeasuredModel(Part):
    name: str
    kind: str
    description: str
    revision: str | None
    init: bool
    architecture: str
    stack: str
    layers: int = Field(ge=1)
    width: int
    parameters: int
    dtype: str


class MeasuredText(Part):
    name: str
    source: str
    documents: int | None = None
    characters: int | None = None
    sha256: str


class Histogram(Part):
    """`counts` (states, bins) of cosines from `low` to `high`, an empty bin 0."""

    low: float
    high: float
    bins: int = Field(ge=1)
    counts: list[list[Annotated[int, Field(ge=0)]]]

    @model_validator(mode="after")
    def _rows(self) -> Histogram:
        if any(len(row) != self.bins for row in self.counts):
            raise ValueError(f"every row of counts must have {self.bins} bins")
        return self


class State(Part):
    """One hidden state: means over the windows. Spectral statistics stand beside these under their own names."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    state: int
    name: str
    mean_cosine: Number
    std: Number
    quantiles: list[float] = Field(min_length=5, max_length=5)
    by_distance: list[Number]

    def row(self) -> dict[str, Any]:
        """A row of a table: quantile_5 … quantile_95 and distance_1, distance_2, distance_4 … stand beside the rest."""
        plain = self.model_dump(exclude={"quantiles", "by_distance"})
        plain |= {f"quantile_{q}": value for q, value in zip((5, 25, 50, 75, 95), self.quantiles)}
        return plain | {f"distance_{2**k}": value for k, value in enumerate(self.by_distance)}


class PerWindow(Part):
    window: list[int]
    mean_cosine: list[list[Number]]


class Measurement(Record):
    kind = "measurement"
    reads = ("decondense.condensation/2", "decondense.condensation/1")

    model: MeasuredModel
    text: MeasuredText
    settings: Section
    versions: dict[str, str]
    complete: bool
    windows_done: int
    final_norm: bool | None
    verdict: str
    notes: list[str]
    trend: dict[str, dict[str, Interval]]
    states: list[State]
    histogram: Histogram
    released_histogram: Histogram | None = None
    per_window: PerWindow
    windows: list[dict[str, int]]

    @model_validator(mode="after")
    def _states(self) -> Measurement:
        least = self.model.layers + 1
        tables: list[Sequence[Any]] = [self.states, self.histogram.counts, *self.per_window.mean_cosine]
        tables += [self.released_histogram.counts] if self.released_histogram is not None else []
        if any(len(table) < least for table in tables) or not self.per_window.mean_cosine:
            raise ValueError(f"{self.model.layers} layers have {least} states: states, counts or per_window have fewer")
        lacking = [key for key in ("windows", "tokens", "last") if not isinstance(self.settings.get(key), int)]
        lacking += [
            f"{name} of {key}"
            for key in ("all", *self.trend)
            for name in STATISTICS
            if name not in self.trend.get(key, ())
        ]
        if lacking:
            raise ValueError(f"settings or trend lack {', '.join(dict.fromkeys(lacking))}")
        return self


class Snapshot(Part):
    """A measurement in short, as a training run or a study keeps it: `mean_cosine` (states,), the trends over depth,
    and, where a heatmap will be drawn, `histogram` (states, bins), a density over [−1, 1]."""

    step: Count | None = None
    tokens: Count | None = None
    file: str | None = None  # of the whole measurement, relative to the record's folder
    mean_cosine: list[Number] = Field(min_length=2)
    spearman: Number
    spearman_blocks: Number
    kendall: Number
    slope: Number
    last: Number
    windows: Count
    final_norm: bool
    histogram: list[list[Density]] | None = None
    window_interval: tuple[Number, Number] | None = None  # of spearman, over windows
    model: str | None = None
    parameters: int | None = None
    text: str | None = None
    text_source: str | None = None
    text_sha256: str | None = None

    @model_validator(mode="after")
    def _states(self) -> Snapshot:
        rows = self.histogram
        if rows is not None and (len(rows) != len(self.mean_cosine) or len(set(map(len, rows))) != 1 or not rows[0]):
            raise ValueError(
                f"histogram must have {len(self.mean_cosine)} rows of one length, as mean_cosine has states"
            )
        return self

    @property
    def blocks(self) -> float:
        """Mean cosine of the block outputs, which are what the losses act on."""
        known = [value for value in self.mean_cosine[1:] if value is not None]
        return sum(known) / len(known) if len(known) == len(self.mean_cosine) - 1 else float("nan")


def in_short(whole: Measurement, *, histogram: bool = False, **more: Any) -> Snapshot:
    """A measurement as training runs and studies keep it; `histogram`: with the density, in 64 bins."""
    layers = whole.model.layers
    trend = whole.trend["all"]
    density = None
    if histogram:
        density = [_coarse_density(row) for row in whole.histogram.counts[: layers + 1]]
    return Snapshot(
        mean_cosine=[state.mean_cosine for state in whole.states[: layers + 1]],
        spearman=trend["spearman"].value,
        spearman_blocks=whole.trend["blocks"]["spearman"].value if "blocks" in whole.trend else None,
        kendall=trend["kendall"].value,
        slope=trend["slope"].value,
        last=trend["last"].value,
        windows=whole.windows_done,
        final_norm=bool(whole.final_norm),
        histogram=density,
        **more,
    )


def _coarse_density(counts: Sequence[float], bins: int = 64) -> list[float]:
    """Counts over [−1, 1] as a density in `bins` bins, two decimals."""
    size, total = len(counts) // bins, max(1.0, sum(counts))
    return [round(sum(counts[i * size : (i + 1) * size]) / total * bins / 2, 2) for i in range(bins)]


class Measured(Record):
    kind = "measured"
    reads = ("decondense.measured/1",)

    measurement: Snapshot
    config: Section  # what was asked for, in the study's own terms
    hardware: str
    versions: dict[str, str]
    seconds: Number = None


# ---- training ----------------------------------------------------------------------------------------------------


class Step(Part):
    """A line of the history. `loss` = `task_loss` + `penalty_weight` · `penalty`; other terms under their own names."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    step: Count
    tokens: Count
    loss: Number = None
    task_loss: Number = None
    penalty: Number = None
    mean_cosine: Number = None
    penalty_weight: Number = None
    penalty_agreement: Number = None
    learning_rate: Number = None
    grad_norm: Number = None


class HeldOut(Part):
    step: Count
    tokens: Count
    loss: Number


class HeldOutDocument(Part):
    text: str
    document: int
    tokens: int
    loss: Number


class TrainedModel(Part):
    name: str
    source: str = "unknown source"
    parameters: int


class TrainedText(Part):
    name: str
    source: str = "unknown source"
    documents: int | None = None
    tokens: int | None = None
    sha256: str | None = None


class Training(Record):
    kind = "training"
    reads = ("decondense.train/2", "decondense.train/1")

    finished: bool
    command: str | None = None
    recipe: Section
    model: TrainedModel
    text: list[TrainedText] = []
    held_out_text: list[TrainedText] = []
    blocks: int | None = None
    steps: int
    tokens: int | None = None
    history: list[Step]
    held_out: list[HeldOut]
    held_out_texts: dict[str, Number] | None = None
    held_out_documents: list[HeldOutDocument] | None = None
    held_out_by: Section | None = None
    snapshots: list[Snapshot]
    skipped_steps: list[int] | int
    seconds: Number = None
    tokens_per_second: Number = None
    processes: int | None = None
    micro_batch: int | None = None
    bf16: bool | None = None
    compiled: bool | None = None
    fused_loss: bool | None = None
    hardware: str
    versions: dict[str, str]
    arm: str | None = None  # of a study
    origin: str | None = None  # where a study took the run over from


# ---- evaluation and significance ---------------------------------------------------------------------------------


class EvaluatedTask(Part):
    model_config = ConfigDict(extra="allow", protected_namespaces=())

    items: int
    acc: float
    stderr: Number
    graded: bool = False
    perplexity: Number = None


class EvaluatedModel(Part):
    """`weights` is a fingerprint: a copy has the same, another training seed has not."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    name: str
    description: str
    weights: str
    parameters: int
    dtype: str
    device: str | None = None


class Checkpoint(Part):
    """Of which training run and step the weights are, and how they were chosen. `place` is a hash of the run's path,
    `folder` the name inside it; evaluations of before have neither."""

    selected_by: str
    step: int | None = None
    steps: int | None = None
    final: bool | None = None
    run: str | None = None
    place: str | None = None
    folder: str | None = None
    training_seed: int | None = None


class Evaluation(Record):
    kind = "evaluation"
    reads = ("decondense.evaluation/1",)

    model: EvaluatedModel
    settings: Section
    data: str
    checkpoint: Checkpoint
    tasks: dict[str, EvaluatedTask]
    macro_average: Number
    texts: dict[str, Section]
    notes: list[str]
    versions: dict[str, str]


class TaskOutcomes(Part):
    """`correct` is a string of 0 and 1, or numbers where the task is graded; `log_share` float16 in base64; `items` a
    hash over the prompts in their order."""

    n: int
    items: str
    correct: str | list[float]
    log_share: str | None = None


class Outcomes(Record):
    kind = "outcomes"
    reads = ("decondense.outcomes/1",)

    scores: dict[str, float]
    outcomes: dict[str, TaskOutcomes]
    weights: str
    dtype: str
    settings: Section = {}


class Difference(Part):
    """treated − base on one task, or on their average. More where it applies: `gained` and `lost` items, the `pairs` of
    seeds, `se`, `seed_se`, `item_se`, `seed_sd`, `df`, `bootstrap`."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    items: int
    base: float
    treated: float
    base_seeds: list[float]
    treated_seeds: list[float]
    difference: float
    low: Number
    high: Number
    p: float
    test: str
    significant: bool
    smallest_effect: Number = None
    p_holm: Number = None
    seed_sd: Number = None


class TaskDifference(Difference):
    task: str


class AverageDifference(Difference):
    tasks: int


class Differences(Part):
    tasks: list[TaskDifference]
    macro: AverageDifference | None


class Significance(Record):
    kind = "significance"
    reads = ("decondense.significance/1",)

    base: list[Section]
    treated: list[Section]
    seeds: tuple[int, int]
    paired: bool
    claim: Literal["checkpoints", "training"]
    alpha: float
    power: float
    settings: Section = {}
    tasks: list[TaskDifference]
    macro: AverageDifference | None
    likelihood: Differences | None
    ranks: Section | None = None
    notes: list[str]
    verdict: str


# ---- comparison and study ----------------------------------------------------------------------------------------


class Compared(Part):
    """A result of a comparison. The same statistics of the blocks alone, with `_blocks` in their names, stand beside
    these."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    model: str
    revision: str | None
    text: str
    parameters: int
    layers: int
    windows: int
    spearman: Number
    spearman_low: Number
    spearman_high: Number
    kendall: Number
    kendall_low: Number
    kendall_high: Number
    slope: Number
    slope_low: Number
    slope_high: Number
    last: Number
    last_low: Number
    last_high: Number


class Comparison(Record):
    kind = "comparison"
    reads = ("decondense.comparison/1",)

    axis: str
    paired: bool
    verdict: str
    notes: list[str] = []
    rows: list[Compared] = Field(min_length=1)

    @model_validator(mode="after")
    def _pairs(self) -> Comparison:
        if self.paired and len(self.rows) % 2:
            raise ValueError(f"pairs need an even number of rows, got {len(self.rows)}")
        return self


class Table(Part):
    columns: list[str]
    rows: list[list[Any]]

    @model_validator(mode="after")
    def _width(self) -> Table:
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError(f"every row must have {len(self.columns)} values, as there are columns")
        return self


class Study(Record):
    """`runs` are the folders below runs/ that the result rests on."""

    kind = "study"
    reads = ("decondense.study/2", "decondense.study/1")

    study: Words
    claim: Words
    question: str
    criterion: str
    scale: str
    verdict: Words
    sentence: Words
    command: str
    hardware: str
    table: Table
    figures: list[str]
    config: Section
    runs: list[str]
    estimate: Section
    versions: dict[str, str]


# ---- reading -----------------------------------------------------------------------------------------------------

KINDS: tuple[type[Record], ...] = (
    Study, Significance, Training, Comparison, Measurement, Evaluation, Outcomes, Measured,
)  # fmt: skip
BY_SCHEMA = {schema: kind for kind in KINDS for schema in kind.reads}


def parse(content: Any, name: str = "result.json", folder: Path | None = None) -> Record:
    """Content of a JSON file as its record. `name` is what the sentence calls the file; `folder` is where other files
    that it refers to lie, which version 1 of a training run needs."""
    schema = content.get("schema") if isinstance(content, dict) else None
    if not isinstance(schema, str):
        raise Damaged(f"{name} names no schema: it is not a result of decondense.")
    if schema not in BY_SCHEMA:
        raise Damaged(f"{name} has the schema {schema[:80]!r}, which this version does not read.")
    if schema in UPGRADES:
        content = UPGRADES[schema](content, folder)
    try:
        return BY_SCHEMA[schema].model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "content"
        raise Damaged(
            f"{name} is damaged: {where}: {first['msg'].lower()}, which the schema {schema!r} does not allow; make the "
            "result again, or leave it out."
        ) from None


def read(path: str | os.PathLike[str]) -> Record:
    """The record in a file, or in the result.json of a folder."""
    target = Path(path)
    if target.is_dir():
        target = target / "result.json"
    try:
        content = read_json(target)
    except FileNotFoundError:
        raise FileNotFoundError(f"no result at {str(path)!r}: give result.json or the folder that holds it.") from None
    except ValueError as error:
        raise Damaged(str(error)) from error
    return parse(content, str(target), target.parent)


def _upgrade_training(content: Section, folder: Path | None) -> Section:
    """Version 1 named the files of its snapshots and had none of their numbers."""
    root = (folder or Path()).resolve()
    snapshots = []
    for entry in content.get("snapshots", ()):
        path = (root / str(entry.get("file"))).resolve()
        if not path.is_relative_to(root):
            raise Damaged(f"the snapshot {entry.get('file')!r} lies outside the run folder: put it back.")
        whole = read(path)
        if not isinstance(whole, Measurement):
            raise Damaged(f"the snapshot {path.name} is a {whole.kind} and no measurement: put the right file there.")
        snapshots.append(in_short(whole, histogram=True, **entry).model_dump())
    text = content.get("text", [])
    return content | {"snapshots": snapshots, "text": [text] if isinstance(text, dict) else text}


def _upgrade_study(content: Section, folder: Path | None) -> Section:
    """Version 1 rested on piece files, which this version does not read: its numbers stand, its charts do not."""
    return {key: value for key, value in content.items() if key != "pieces"} | {"runs": []}


UPGRADES = {"decondense.train/1": _upgrade_training, "decondense.study/1": _upgrade_study}


def find(places: Sequence[str | os.PathLike[str]]) -> Iterator[tuple[Path, str]]:
    """(path, name to show) of every result.json in and below the folders, or of the files themselves, each once, in a
    fixed order. Hidden folders and links to folders are not entered."""
    seen: set[Path] = set()
    for place in map(Path, places):
        if not place.exists():
            raise FileNotFoundError(f"no folder at {str(place)!r}: give folders that hold results (result.json).")
        for path, name in _files(place):
            if path.resolve() not in seen:
                seen.add(path.resolve())
                yield path, name


def _files(place: Path) -> Iterator[tuple[Path, str]]:
    if place.is_file():
        yield place, place.resolve().parent.name if place.name == "result.json" else place.name
        return
    root = place.resolve().name or "results"
    for where, folders, files in os.walk(place):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if "result.json" in files:
            yield Path(where) / "result.json", (Path(root) / Path(where).relative_to(place)).as_posix()
