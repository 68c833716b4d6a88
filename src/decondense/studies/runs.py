"""The runs of a study: read from their folders, told apart from those that do not belong, and put in a table.

DIR/runs/NAME/result.json     a training (`records.Training`, its history thinned) or a measurement (`records.Measured`)
DIR/runs/NAME/outcomes.json   what its final weights did on benchmarks (`records.Outcomes`), where the study asks

A run belongs to a study when its recipe is that of an arm, or its config that of a measurement, whoever made it and
whatever its folder is called: a folder of `decondense train` counts too.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..files import grouped, safe_name
from ..records import Measured, Outcomes, Snapshot, Training, known, read
from ..stats.verdicts import Decision, Mean, decide
from ..words import span
from .arms import as_in, essence, recipe_of
from .outcomes import OF_TASKS
from .settings import Settings


class Planned(NamedTuple):
    """A run to make: arm and seed of a training, or the config of a measurement. `words` describe it."""

    name: str
    words: str
    arm: str | None = None
    seed: int | None = None
    config: dict[str, Any] | None = None


class Run(NamedTuple):
    """A finished run: the name of its folder, its record, and what it did on benchmarks."""

    name: str
    record: Training | Measured
    outcomes: Outcomes | None = None


class Found(NamedTuple):
    """A finished run as its folder has it, and `member`, as the study has it, or None and the reason."""

    name: str
    folder: Path
    run: Run
    member: Run | None
    reason: str


def read_run(path: Path) -> Run | None:
    """The run in a folder; None where there is none that is finished."""
    if not (path / "result.json").is_file():
        return None
    record = read(path)
    if not isinstance(record, (Training, Measured)) or (isinstance(record, Training) and not record.finished):
        return None
    outcomes = read(path / "outcomes.json") if (path / "outcomes.json").is_file() else None
    return Run(path.name, record, outcomes if isinstance(outcomes, Outcomes) else None)


class Members:
    """Which runs belong to a study with these settings."""

    def __init__(self, plan: Sequence[Planned], settings: Settings) -> None:
        arms = settings.get("arms", ()) if "seeds" in settings else ()
        self.recipes = {arm: recipe_of(settings, arm, 0).model_dump(mode="json") for arm in arms}
        self.arms = {arm: essence(recipe) for arm, recipe in self.recipes.items()}
        self.configs = [planned.config for planned in plan if planned.config is not None]
        self.of_tasks = {key: settings.get(key) for key in OF_TASKS} if settings.get("tasks") else None

    def among(self, folders: Iterable[tuple[Path, str]]) -> Iterator[Found]:
        """The finished runs among these (folder, name to show)."""
        for folder, name in folders:
            run = read_run(folder)
            if run is not None:
                yield Found(name, folder, run, *self.take(run))

    def take(self, run: Run) -> tuple[Run | None, str]:
        """The run as the study has it: under its name there, with its arm and recipe, and with outcomes where the study
        asks for them; or None and the reason."""
        if isinstance(run.record, Measured):
            if run.record.config in self.configs:
                return run._replace(name=measured_name(run.record.config)), ""
            description = ", ".join(f"{key} {value}" for key, value in run.record.config.items())
            return None, f"the study does not measure {description}"
        essentials = essence(run.record.recipe)
        equal_arms = [arm for arm, wanted in self.arms.items() if wanted == essentials]
        if not equal_arms:
            return None, self._difference(run.record, essentials)
        outcomes = run.outcomes if self.of_tasks else None
        if outcomes is not None and self.of_tasks != {key: outcomes.settings.get(key) for key in OF_TASKS}:
            return None, "its benchmarks were run with other settings"
        arm, seed = str(run.record.arm) if run.record.arm in equal_arms else equal_arms[0], seed_of(run.record)
        recipe = as_in(self.recipes[arm], run.record.recipe)
        return Run(trained_name(arm, seed), run.record.model_copy(update={"arm": arm, "recipe": recipe}), outcomes), ""

    def _difference(self, record: Training, essentials: Mapping[str, Any]) -> str:
        """In words, the first key in which a run differs from its arm, or from the arm that is nearest to it."""
        if not self.arms:
            return "the study trains nothing"
        differing = {
            arm: sorted(key for key in wanted.keys() | essentials.keys() if wanted.get(key) != essentials.get(key))
            for arm, wanted in self.arms.items()
        }
        arm = str(record.arm) if record.arm in differing else min(differing, key=lambda arm: len(differing[arm]))
        key = differing[arm][0]
        return f"{key} is {essentials.get(key)!r} in the run and {self.arms[arm].get(key)!r} in the arm {arm!r} here"


def trained_name(arm: str, seed: int) -> str:
    return f"{safe_name(arm)}-seed-{seed}"


def measured_name(config: Mapping[str, Any]) -> str:
    return safe_name(f"{config['model']}-{config.get('revision') or config['text']}")


def seed_of(record: Training) -> int:
    return int(record.recipe["train"]["seed"])


# ---- numbers of a training or, where the geometry is enough, of a snapshot ---------------------------------------

Metric = Callable[[Any], float]


def _of_snapshot(run: Training | Snapshot, at: int, name: str) -> float:
    """A number of a snapshot; NaN for a run that keeps none."""
    shot = run if isinstance(run, Snapshot) else run.snapshots[at] if run.snapshots else None
    return math.nan if shot is None else known(getattr(shot, name))


MATTERS_NATS, MATTERS_COSINE, MATTERS_POINTS, MATTERS_SHARE = 0.002, 0.1, 0.3, 0.01
"""The smallest effects that matter: on the held-out loss in nats per token, on the mean cosine as a share of it, on a
benchmark average in points, on the log-likelihood of what is right in nats per item (1 % of its probability)."""
RUINED = 0.1
"""Nats of held-out loss above cross-entropy: an arm this far above is given as a number, so that a figure can show the
others, and decides nothing in `placebo`."""


def held_out(run: Training) -> float:
    """Held-out loss at the end, nats per token."""
    return known(run.held_out[-1].loss)


def by_document(run: Training) -> float:
    """Held-out loss, nats per token: mean over texts of the mean over documents."""
    texts = grouped((document.text, known(document.loss)) for document in run.held_out_documents or ())
    return sum(sum(losses) / len(losses) for losses in texts.values()) / len(texts) if texts else math.nan


def cosine(run: Training | Snapshot, at: int = -1) -> float:
    """Mean cosine of the block outputs, which are what the losses act on, at a snapshot; default the last."""
    return _of_snapshot(run, at, "blocks")


def spearman(run: Training | Snapshot, at: int = -1) -> float:
    """Spearman of mean cosine with depth, over all states, at a snapshot; NaN where it is not defined."""
    return _of_snapshot(run, at, "spearman")


def spearman_blocks(run: Training | Snapshot) -> float:
    """Spearman of mean cosine with depth over the states after the embedding, as the paper writes it, at the end."""
    return _of_snapshot(run, -1, "spearman_blocks")


def last(run: Training | Snapshot) -> float:
    """Mean cosine of the last three states, at the end."""
    return _of_snapshot(run, -1, "last")


def quantisation(scheme: str) -> Metric:
    """What a quantisation scheme costs a run, nats per token; NaN where the run did not measure it."""
    return lambda run: run.quantisation_cost.get(scheme, math.nan)


# ---- what `conclude` is given, and what it gives -----------------------------------------------------------------

Draw = Callable[[Path], object]  # writes a figure


class Runs:
    """The runs of a study. `table` is arm → seed → training, `outcomes` the same for benchmarks, `measured` the
    measurements in the order in which the settings name them."""

    def __init__(self, runs: Iterable[Run], arms: Sequence[str] = (), configs: Sequence[Any] = ()) -> None:
        runs_by_arm: dict[str, dict[int, Run]] = {arm: {} for arm in arms}
        self.measured: list[Measured] = []
        for run in runs:
            if isinstance(run.record, Measured):
                self.measured.append(run.record)
                continue
            arm, seed = str(run.record.arm), seed_of(run.record)
            if (first := runs_by_arm[arm].setdefault(seed, run)) is not run:
                raise ValueError(
                    f"seed {seed} of {arm!r} is in two runs, {first.name} and {run.name}: a copy is not another seed; "
                    "keep one."
                )
        self.measured.sort(key=lambda record: configs.index(record.config))
        self.table: dict[str, dict[int, Training]] = {}
        self.outcomes: dict[str, dict[int, Outcomes]] = {}
        for arm, seeds in runs_by_arm.items():
            for seed, run in sorted(seeds.items()):
                assert isinstance(run.record, Training), run.name
                self.table.setdefault(arm, {})[seed] = run.record
                if run.outcomes is not None:
                    self.outcomes.setdefault(arm, {})[seed] = run.outcomes

    @property
    def arms(self) -> list[str]:
        return list(self.table)

    @property
    def schemes(self) -> list[str]:
        """The quantisation schemes that any run measured."""
        runs = (run for arm in self.arms for run in self.of(arm))
        return list(dict.fromkeys(scheme for run in runs for scheme in run.quantisation_cost))

    @property
    def tasks(self) -> list[str]:
        """The tasks that any run was scored on."""
        return list(dict.fromkeys(task for arm in self.arms for one in self.scores(arm).values() for task in one))

    @property
    def seeds(self) -> list[int]:
        return sorted({seed for seeds in self.table.values() for seed in seeds})

    def without(self, seed: int) -> Runs:
        rest = copy.copy(self)
        for name in ("table", "outcomes"):
            kept = {arm: {s: one for s, one in of.items() if s != seed} for arm, of in getattr(self, name).items()}
            setattr(rest, name, {arm: of for arm, of in kept.items() if of})
        return rest

    def __contains__(self, arm: str) -> bool:
        return arm in self.table

    def of(self, arm: str) -> list[Training]:
        """The trainings of an arm, by seed; none where it was not run."""
        return list(self.table.get(arm, {}).values())

    def last_snapshots(self) -> list[tuple[str, Snapshot]]:
        """Every arm with the last snapshot of its first seed."""
        return [(arm, self.of(arm)[0].snapshots[-1]) for arm in self.arms]

    def values(self, arm: str, metric: Metric) -> list[float]:
        return [metric(run) for run in self.of(arm)]

    def mean(self, arm: str, metric: Metric) -> float:
        return float(np.mean(self.values(arm, metric) or [math.nan]))

    def said(self, arm: str, metric: Metric, digits: int = 3) -> str:
        """`mean` for a sentence: a dash where the arm was not run."""
        return span(self.mean(arm, metric), digits=digits)

    def paired(self, *arms: str) -> list[tuple[Training, ...]]:
        """The trainings of these arms, seed by seed, for the seeds that all of them have."""
        tables = [self.table.get(arm, {}) for arm in arms]
        return [tuple(table[seed] for table in tables) for seed in tables[0] if all(seed in table for table in tables)]

    def differences(self, arm: str, other: str, metric: Metric) -> list[float]:
        """`arm` − `other`, seed by seed, for the seeds that both have."""
        return [metric(one) - metric(base) for one, base in self.paired(arm, other)]

    def contrast(self, arm: str, other: str, metric: Metric, *, claim: str = "less", level: float = 0.95) -> Decision:
        """Is `arm` − `other` over the seeds below 0 (`claim` "less"), or above 0 ("greater")?"""
        return decide(self.differences(arm, other, metric), claim=claim, level=level)

    def costs(self, arm: str, base: str) -> dict[int, float]:
        """seed → time per token relative to `base`, for the seeds of which both have a speed."""
        both = [(seed_of(run), run.tokens_per_second, plain.tokens_per_second) for run, plain in self.paired(arm, base)]
        return {seed: base_speed / speed for seed, speed, base_speed in both if speed and base_speed}

    def scores(self, arm: str) -> dict[int, dict[str, float]]:
        """seed → task → accuracy."""
        return {seed: outcomes.scores for seed, outcomes in self.outcomes.get(arm, {}).items()}

    def rows(self, tasks: Sequence[str] = (), **more: Metric) -> tuple[list[str], list[list[Any]]]:
        """One row per training: what every study that trains reports, the scores on `tasks`, and the metrics `more`."""
        columns = ["arm", "seed", "held_out_loss", "mean_cosine", "spearman", "mean_cosine_start", "spearman_start"]
        columns += ["parameters", "tokens", "tokens_per_second", "skipped_steps", *tasks, *more]
        rows: list[list[Any]] = []
        for arm, seeds in self.table.items():
            for seed, run in seeds.items():
                geometry = [cosine(run), spearman(run), cosine(run, 0), spearman(run, 0)]
                row = [arm, seed, held_out(run), *geometry, run.model.parameters, run.tokens, run.tokens_per_second]
                scores = self.scores(arm).get(seed, {})
                rows.append([*row, run.skipped, *map(scores.get, tasks), *(metric(run) for metric in more.values())])
        return columns, rows


@dataclass
class Conclusion:
    """What a study concludes. Decisions and means in `estimate`, however deep, become sections of plain values."""

    verdict: str
    headline: str  # what decided it and nothing else, for a cell of a table: 160 characters are good, 220 at most
    sentence: str  # all there is to say; neither begins with the verdict
    columns: list[str]
    rows: list[list[Any]]
    estimate: dict[str, Any]
    draw: Draw | None = None  # figure.png
    more: dict[str, Draw] = field(default_factory=dict)  # name of the file → another figure

    def __post_init__(self) -> None:
        self.estimate = _plain(self.estimate)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return asdict(value) if isinstance(value, Decision) else value._asdict() if isinstance(value, Mean) else value
