"""lm-eval's samples: what ``--log_samples`` writes, JSON lines per task. Checked with lm-eval 0.4.13.

A log repeats every prompt for every choice and may hold a gigabyte of prompts, but a comparison needs a hundred bytes
per item: lines are read one by one, and the rest of each is dropped at once."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic_core import from_json

from ..files import grouped, read_json
from ..records import Damaged
from ..words import nearest
from . import logs
from .items import item_hash, right_share
from .logs import Log, Scores, Wanted, item_id, numbers, pick

SAMPLES = re.compile(r"samples_(?P<task>.+)_(?P<date>\d{4}-\d\d-\d\dT[\d.-]+)\.jsonl")
NOT_METRICS = {"doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "filter", "metrics"}
NOT_METRICS |= {"doc_hash", "prompt_hash", "target_hash"}
PER_UNIT = ("byte_perplexity", "bits_per_byte", "word_perplexity")  # logged as [log-likelihood, number of units]


class Sample(NamedTuple):
    """What is kept of a line. ``likelihoods``: of the choices, where there are any; ``gold``: the number of the right
    choice, empty if unknown; ``own``: lm-eval's own hashes, if logged; ``place``: number of the line in its file."""

    subtask: str
    doc_id: Any
    metrics: dict[str, Any]
    likelihoods: list[float] | None
    gold: list[int]
    own: str | None
    cluster: str | None
    place: int


def read_samples(path: Path, files: Sequence[Path], wanted: Wanted) -> Log:
    """Read ``samples_TASK_DATE.jsonl`` of --log_samples. ``results_DATE.json`` beside them, where there is one, says
    which tasks form a group, and which metrics are better when lower."""
    by_name = logs.one_run(path, files, lambda f: match["task"] if (match := SAMPLES.fullmatch(f.name)) else f.stem)
    group: dict[str, str] = {}
    directions: dict[str, dict[str, bool]] = {}
    model = ""
    for results in sorted(files[0].parent.glob("results_*.json")):
        content = read_json(results)
        model = str(content.get("model_name") or model)
        if path.is_dir():  # a single file that the user named is a task of its own, not part of a group
            group |= {sub: name for name, subs in (content.get("group_subtasks") or {}).items() for sub in subs}
        directions |= content.get("higher_is_better") or {}
    tasks: dict[str, list[Sample]] = {}
    notes = []
    for subtask, file in sorted(by_name.items()):
        by_filter = _by_filter(subtask, file, wanted)
        filters = list(by_filter)
        chosen = next((name for name in filters if name == wanted.filter), filters[0] if filters else "none")
        if wanted.filter is not None and chosen != wanted.filter and len(filters) > 1:
            remedy = nearest(wanted.filter, filters)
            raise ValueError(f"--filter must be one of {subtask!r} of {str(path)!r}, got {wanted.filter!r}: {remedy}")
        if len(filters) > 1:
            notes.append(f"{subtask}: the filter is {chosen}; the log also has {logs.others(filters, chosen)}.")
        top = subtask
        while top in group:
            top = group[top]
        tasks.setdefault(top, []).extend(by_filter.get(chosen, ()))
    scores = {task: _samples(task, rows, directions, wanted, path, by_name) for task, rows in tasks.items()}
    return Log(str(path), "lm-eval", scores, logs.hashed(*files), model or files[0].parent.name, notes=notes)


def _by_filter(subtask: str, file: Path, wanted: Wanted) -> dict[str, list[Sample]]:
    """filter → the samples read by it, in the order of the file."""
    with file.open("rb") as lines:
        rows = _lines(file, lines)
        return grouped((str(row.get("filter", "none")), _sample(subtask, at, row, wanted, file)) for at, row in rows)


@contextlib.contextmanager
def _as_logged(place: int, file: Path) -> Iterator[None]:
    """Raise what a line without its fields, or with others in their place, makes go wrong in the block as Damaged."""
    try:
        yield
    except (KeyError, AttributeError, TypeError, IndexError, ValueError) as error:
        raise Damaged(
            f"line {place} of {str(file)!r} must be a sample of lm-eval, got one of another form "
            f"({type(error).__name__}: {error}): log it again."
        ) from error


def _sample(subtask: str, place: int, row: dict[str, Any], wanted: Wanted, file: Path) -> Sample:
    with _as_logged(place, file):
        arguments, target, answer = row["arguments"], row["target"], row["filtered_resps"]
        scored = isinstance(answer[0], list) and len(answer[0]) == 2
        likelihoods = [float(value) for value, _ in answer] if scored else None
        own = None
        if "doc_hash" in row and "prompt_hash" in row and "target_hash" in row:
            own = row["doc_hash"][:16] + row["prompt_hash"][:16] + row["target_hash"][:16]
        metrics = {key: row[key] for key in row.get("metrics") or [key for key in row if key not in NOT_METRICS]}
        for kind in PER_UNIT:
            if isinstance(metrics.get(kind), list):  # a task's own perplexity of an item is a plain number
                nats, units = metrics[kind]
                metrics[kind] = [float(nats) / max(1, units)]
        gold = [] if likelihoods is None else _gold(metrics.get("acc"), target, arguments, likelihoods)
    cluster = None
    if wanted.cluster is not None:
        fields = {"subtask": subtask} | (row["doc"] if isinstance(row["doc"], dict) else {})
        if wanted.cluster not in fields:
            raise logs.unknown_field(wanted.cluster, fields, file)
        cluster = str(fields[wanted.cluster])
    return Sample(subtask, row["doc_id"], metrics, likelihoods, gold, own, cluster, place)


def _samples(
    task: str, rows: Sequence[Sample], directions: dict[str, dict[str, bool]], wanted: Wanted, path: Path,
    files: dict[str, Path],
) -> Scores:  # fmt: skip
    if not rows:
        return Scores([], None)
    first = rows[0]
    # For a perplexity lm-eval logs no score but a log-likelihood, alone or with a number of words or bytes.
    scores = [m for m, v in first.metrics.items() if m != "perplexity" and not isinstance(v, (list, tuple))]
    metric = pick(scores, wanted, task, path)
    values = None if not metric else np.array(numbers((row.metrics.get(metric) for row in rows), task, path))
    hashes: dict[str, Callable[[], list[str]]] = {}  # lm-eval's own first: they are there without reading anew
    if all(row.own is not None for row in rows):
        hashes["lm-eval"] = partial(list, [row.own for row in rows])
    hashes["prompt"] = partial(_prompt_hashes, [(row.subtask, row.place) for row in rows], files)
    return Scores(
        [item_id(task, row.subtask, row.doc_id) for row in rows], values, _likelihood(rows), hashes,
        None if wanted.cluster is None else [str(row.cluster) for row in rows],
        metric, logs.chance_of([len(row.likelihoods or ()) for row in rows]),
        directions.get(first.subtask, {}).get(metric),
    )  # fmt: skip


def _likelihood(rows: Sequence[Sample]) -> np.ndarray | None:
    """Per item, the log of the softmax share of the right choice, the log-likelihood of a single continuation, or that
    of a text per byte (per word where bytes were not counted). ``None`` where a log does not tell what is right."""
    per = next((kind for kind in PER_UNIT if all(isinstance(row.metrics.get(kind), list) for row in rows)), None)
    if per is not None:
        return np.array([row.metrics[per][0] for row in rows])
    if not all(row.gold for row in rows):
        return None
    return right_share([row.likelihoods or [] for row in rows], [row.gold for row in rows])


def _gold(accuracy: Any, target: str, arguments: dict[str, Any], values: list[float]) -> list[int]:
    """The number of the right choice: of two choices, the one that lm-eval's accuracy implies; else the target, where
    it is the number of a choice and does not contradict that accuracy. Empty where it cannot be told."""
    if len(values) == 1:
        return [0]
    best = values.index(max(values))
    if len(values) == 2 and accuracy in (0, 1):
        return [best if accuracy else 1 - best]
    if not target.isdecimal() or int(target) >= len(values):
        return []
    for argument in arguments.values():
        continuation = [*argument.values()][-1]
        if target in continuation and continuation.strip() == target:
            return []  # the choices are numbers themselves
    return [int(target)] if accuracy not in (0, 1) or bool(accuracy) == (int(target) == best) else []


def _prompt_hashes(places: Sequence[tuple[str, int]], files: dict[str, Path]) -> list[str]:
    """Hash the prompts of the lines at (subtask, number) as ``decondense evaluate`` does. The prompts were dropped, and
    are read anew: few comparisons need them."""
    hashes: dict[tuple[str, int], str] = {}
    for name in dict.fromkeys(subtask for subtask, _ in places):
        with files[name].open("rb") as lines:
            for number, row in _lines(files[name], lines):
                with _as_logged(number, files[name]):
                    prompts = [list(one.values()) for one in row["arguments"].values()]
                hashes[name, number] = item_hash(prompts, row["target"])
    return [hashes[place] for place in places]


def _lines(path: Path, lines: Iterable[bytes]) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number from 1, object) of every line that is not empty."""
    number = 0
    try:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                row = _parsed(line)
                if not isinstance(row, dict):
                    raise ValueError
                yield number, row
    except ValueError as error:
        raise Damaged(f"line {number} of {str(path)!r} must be an object of JSON: it is cut off, or no log.") from error


def _parsed(line: bytes) -> Any:
    """Parse a line with pydantic, twice as fast as json, which only reads what pydantic refuses (lone surrogates)."""
    try:
        return from_json(line, cache_strings="keys")
    except ValueError:
        return json.loads(line)


def first_line(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        line = file.readline()
    return next((row for _, row in _lines(path, [line])), {}) if line.strip().endswith(b"}") else {}
