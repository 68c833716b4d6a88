"""The benchmarks: lm-eval's own task definitions, with the data from the hub or from local files.

No prompt is written here. A task is built from lm-eval's YAML; a data folder changes only where its rows come from.
docs/evaluation.md says where few-shot examples come from, ``Benchmark.fewshot_source`` where those of a task came from.
"""

from __future__ import annotations

import functools
import io
import json
import lzma
import os
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..hub import hub_reachable
from ..insides import lm_eval as inside
from ..text_files import ending_of, unpacked
from ..words import Tell, nobody
from .rows import Rows, error_text
from .task_names import PAPER, index_of, leaves_of

FEWSHOT = ("arc_easy", "arc_challenge", "medmcqa", "mmlu")
"""Those of the ten that the paper runs with examples: 1 for GPT2, 5 for Qwen3; the other six have none."""
PRESETS = {"gpt2": 1, "qwen3": 5, "zero": 0}
ENDINGS = (".jsonl", ".json", ".parquet")
SUBSET_COLUMNS = ("subject", "subset", "config")


@dataclass
class Benchmark:
    """One name as the user gave it, and the lm-eval tasks behind it (57 for mmlu, otherwise one)."""

    name: str
    tasks: dict[str, Any]
    shots: int
    fewshot_source: str
    local: bool  # the rows come from a folder


def shots_for(name: str, shots: str | int) -> int | None:
    """Examples before the question. ``None``: whatever lm-eval's definition of the task says."""
    if shots in ("gpt2", "qwen3") and name not in PAPER:
        return None
    if shots in PRESETS:
        return PRESETS[shots] if name in FEWSHOT else 0
    try:
        number = int(shots)
    except ValueError:
        number = -1
    if number < 0:
        raise ValueError(f"shots must be gpt2, qwen3, zero or a number from 0, got {shots!r}.")
    return number


def build(
    names: Sequence[str], folder: Path | None, *, shots: str | int = "gpt2", seed: int = 1234,
    limit: int | None = None, progress: Tell = nobody,
) -> list[Benchmark]:  # fmt: skip
    """Build every benchmark, or say in one sentence which cannot be built and why. ``folder`` has
    ``NAME/SPLIT.jsonl`` (also .json, .parquet, .gz, .xz) in the hub's field names; None: the rows are on the hub.
    ``shots``, ``seed``, ``limit`` and ``progress`` are those of ``evaluate``."""
    shots_by_name = {name: shots_for(name, shots) for name in names}
    with inside.quiet(), inside.templates_compiled_once():
        index = index_of(names)
        benchmarks = []
        for name in names:
            progress(f"reading {name}", 0, 1)
            leaves = leaves_of(name, index)
            tasks = {leaf: _task(name, leaf, index, folder, limit, shots_by_name[name]) for leaf in leaves}
            shot_count = max(_set_shots(task, shots_by_name[name], seed) for task in tasks.values())
            sources = {_fewshot_source(task) for task in tasks.values()} if shot_count else {"none"}
            benchmarks.append(Benchmark(name, tasks, shot_count, ", ".join(sorted(sources)), folder is not None))
    return benchmarks


# -- one task ------------------------------------------------------------------------------------------------


def _task(
    name: str, leaf: str, index: dict[str, Any], folder: Path | None, limit: int | None, shots: int | None
) -> Any:
    from lm_eval.api.task import ConfigurableTask

    entry = index[leaf]
    if entry.kind.name != "TASK":
        raise ValueError(
            f"task {leaf!r} is defined by a Python class, not in YAML, which is not supported: choose another task."
        )
    config = inside.definition(entry)
    if config.get("output_type") == "loglikelihood_rolling":
        raise ValueError(f"task {leaf!r} is a text without questions: score it as a text, with --text NAME or FILE.")
    for key in ("tag", "group", "task_list"):
        config.pop(key, None)
    rows_by_split: dict[str, Rows] = {}
    if folder is not None:
        changes, rows_by_split = _local(name, leaf, config, folder)
        config |= changes
    elif not hub_reachable():
        raise OSError(
            f"the data of task {leaf!r} ({config.get('dataset_path')}) is on the datasets hub, which cannot be "
            "reached from here: give a folder with --bench."
        )
    evaluated = str(config.get("test_split") or config.get("validation_split"))
    try:
        task = ConfigurableTask(config=config)
    except Exception as error:  # a row that does not fit, or one of a dozen errors of the hub client
        if evaluated in rows_by_split:
            rows_by_split[evaluated].check(inside.bare_task(config), limit)
        source = f"the rows in {str(folder)!r}" if folder is not None else "the datasets hub"
        raise ValueError(f"task {leaf!r} could not be built from {source}: {error_text(error)}.") from error
    pool = inside.few_shot_split(task)
    if rows_by_split:  # any row of the pool may become an example
        rows_by_split[evaluated].check(task, None if shots != 0 and pool == evaluated else limit)
    if shots != 0 and pool in rows_by_split and pool != evaluated:
        rows_by_split[pool].check(inside.bare_task(config), None)
    if pool == evaluated:
        inside.leave_item_out(task, evaluated)
    return task


def _set_shots(task: Any, wanted: int | None, seed: int) -> int:
    """Set and return the number of examples, as ``lm_eval.simple_evaluate`` does: a definition that says 0 keeps its 0
    (its prompt has examples of its own), and the sampler starts anew from the seed for every task."""
    defined = task.get_config("num_fewshot")
    shot_count = defined if defined is not None and (wanted is None or defined == 0) else (wanted or 0)
    task.set_config(key="num_fewshot", value=shot_count)
    task.set_fewshot_seed(seed=seed)
    if shot_count:
        pool = inside.few_shot_split(task)
        available = inside.example_count(task) - (pool == _evaluated(task))
        if shot_count > available:
            raise ValueError(
                f"shots must be at most {available} for task {task.config.task!r}, whose split {pool!r} holds no more "
                f"examples, got {shot_count}."
            )
    return shot_count


def _evaluated(task: Any) -> str:
    return task.config.test_split or task.config.validation_split


def _fewshot_source(task: Any) -> str:
    pool = inside.few_shot_split(task)
    if pool is None:
        return "the task's own examples"
    if pool == _evaluated(task):
        return f"the evaluated split ({pool}), the item itself left out"
    return f"split {pool}"


# -- local files ---------------------------------------------------------------------------------------------


def bench_folder(bench: str | Path | None, *, texts: str | Path | None = None) -> Path | None:
    """The folder of benchmark files: the one given, else $DECONDENSE_BENCH, else the folder ``bench`` in the folder
    ``texts``; ``None`` for the hub: where "hub" was given, or none of these."""
    bench = bench or os.environ.get("DECONDENSE_BENCH")
    if not bench and texts and (Path(texts) / "bench").is_dir():
        return Path(texts) / "bench"
    if not bench or str(bench) == "hub":
        return None
    folder = Path(bench).expanduser()
    if not folder.is_dir():
        raise FileNotFoundError(f"the benchmark folder {str(bench)!r} does not exist: give 'hub' or a folder.")
    return folder


def data_files(benchmark: Benchmark) -> list[tuple[str, int, int]]:
    """Path, size and time of change of every local file below the folders that its tasks read from."""
    places = {str(task.config.dataset_path) for task in benchmark.tasks.values()} if benchmark.local else set()
    files = sorted(file for place in places for file in Path(place).rglob("*") if file.is_file())
    return [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]


def _local(name: str, leaf: str, config: dict[str, Any], folder: Path) -> tuple[dict[str, Any], dict[str, Rows]]:
    """What to change in a task's definition so that its rows come from ``folder``; and these rows, by split."""
    places = [folder / leaf, folder / name]
    place = next((p for p in places if p.is_dir()), None)
    if place is None:
        folders = sorted(p.name for p in folder.iterdir() if p.is_dir())
        raise FileNotFoundError(
            f"task {leaf!r} needs the folder {name!r} in {str(folder)!r}, which holds {', '.join(folders) or 'none'}: "
            "put it there, or take the data of the hub with --bench hub."
        )
    keys = ("training_split", "validation_split", "test_split", "fewshot_split")
    splits = {key: config.get(key) for key in keys}
    files = {split: _split_file(place, leaf, split) for split in set(splits.values()) if split}
    evaluated = str(splits["test_split"] or splits["validation_split"])
    if files.get(evaluated) is None:
        raise FileNotFoundError(
            f"task {leaf!r} is scored on the split {evaluated!r}, but {str(place)!r} holds no {evaluated}.jsonl "
            "(or .json, .parquet; also .gz, .xz)."
        )
    present = {key: (split if split and files[split] is not None else None) for key, split in splits.items()}
    # mmlu has one file for its 57 tasks, and a column that tells them apart
    subset = config.get("dataset_name") if name != leaf else None
    by_split = {split: _read(leaf, file, subset) for split, file in files.items() if file is not None}
    data = {split: rows.data for split, rows in by_split.items()}
    return present | {"custom_dataset": lambda **_: data, "dataset_path": str(place), "dataset_kwargs": None}, by_split


def _split_file(place: Path, leaf: str, split: str) -> Path | None:
    """The file of a split, if there is one: ``dev_r2`` of the task ``anli_r2`` may also be called ``dev``."""
    endings = [leaf[at:] for at, letter in enumerate(leaf) if letter == "_"]
    stems = [split, *(split.removesuffix(ending) for ending in endings if split.endswith(ending))]
    files = (place / f"{stem}{kind}{packed}" for stem in stems for kind in ENDINGS for packed in ("", ".gz", ".xz"))
    return next((file for file in files if file.is_file()), None)


@functools.lru_cache(maxsize=2)  # so that mmlu's file is read once for its 57 tasks
def _rows(file: Path, size: int, changed: int) -> list[dict[str, Any]]:
    return read_rows(file)


def _read(leaf: str, file: Path, subset: str | None) -> Rows:
    """The rows of a file, or those of ``subset`` where a column of the file names subsets."""
    rows = _rows(file, file.stat().st_size, file.stat().st_mtime_ns)
    numbers: Sequence[int] = range(1, len(rows) + 1)
    column = next((c for c in SUBSET_COLUMNS if c in rows[0]), None)
    if subset is not None and column is not None:
        numbers = [number for number, row in enumerate(rows, 1) if row.get(column) == subset]
        if not numbers:
            raise ValueError(f"{str(file)!r} must hold rows with {column} {subset!r} for task {leaf!r}: it has none.")
    return Rows(leaf, file, numbers, [rows[number - 1] for number in numbers])


def read_rows(file: Path) -> list[dict[str, Any]]:
    """Rows of .jsonl, .json or .parquet, also .gz or .xz."""
    kind = ending_of(file)
    try:
        content = unpacked(file)
        if kind == ".parquet":
            import pyarrow.parquet

            rows = pyarrow.parquet.read_table(io.BytesIO(content)).to_pylist()
        elif kind == ".json":
            rows = json.loads(content)
        else:
            rows = [json.loads(line) for line in re.split(rb"\r?\n", content) if line.strip()]
    except (EOFError, OSError, lzma.LZMAError, zlib.error, ValueError, RecursionError) as error:
        raise ValueError(
            f"{str(file)!r} could not be read as rows, {error}: the file is damaged, correct it or copy it again."
        ) from error
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"{str(file)!r} must hold one object per item, but holds none, or something else: correct it.")
    return rows
