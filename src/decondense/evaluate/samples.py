"""lm-eval's samples: what ``--log_samples`` writes, JSON lines per task. Checked with lm-eval 0.4.13."""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..files import read_json
from ..records import Damaged
from .items import item_hash, right_share
from .logs import (
    Log,
    Scores,
    Wanted,
    chance_of,
    field_of,
    hashed,
    item_id,
    lower_is_better,
    number_of,
    one_run,
    others,
    pick,
)

__all__ = ["first_line", "read_samples"]

Rows = list[tuple[str, dict[str, Any]]]
"""(task, sample)"""
SAMPLES = re.compile(r"samples_(?P<task>.+)_(?P<date>\d{4}-\d\d-\d\dT[\d.-]+)\.jsonl")
NOT_METRICS = {"doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "filter", "metrics"}
NOT_METRICS |= {"doc_hash", "prompt_hash", "target_hash"}


def read_samples(path: Path, files: Sequence[Path], wanted: Wanted) -> Log:
    """``samples_TASK_DATE.jsonl`` of --log_samples, with ``results_DATE.json`` beside them where it is: it says which
    tasks are a group, and which metrics are better when lower."""
    names: dict[str, list[Path]] = {}
    for file in files:
        match = SAMPLES.fullmatch(file.name)
        names.setdefault(match["task"] if match else file.stem, []).append(file)
    one_run(path, files, names)
    group: dict[str, str] = {}
    lower: dict[str, dict[str, bool]] = {}
    model = ""
    for results in sorted(files[0].parent.glob("results_*.json")):
        content = read_json(results)
        model = str(content.get("model_name") or model)
        if path.is_dir():  # a file that is named stands for itself
            group |= {sub: name for name, subs in (content.get("group_subtasks") or {}).items() for sub in subs}
        lower |= content.get("higher_is_better") or {}
    tasks: dict[str, Rows] = {}
    notes, raw = [], []
    for subtask, (file,) in sorted(names.items()):
        raw.append(file.read_bytes())
        rows = _lines(file, raw[-1])
        filters = list(dict.fromkeys(row.get("filter", "none") for row in rows))
        chosen = next((name for name in filters if name == wanted.filter), filters[0] if filters else "none")
        if wanted.filter is not None and chosen != wanted.filter and len(filters) > 1:
            raise ValueError(
                f"--filter must be one of {subtask!r} of {str(path)!r}, got {wanted.filter!r}: known are "
                f"{', '.join(filters)}."
            )
        if len(filters) > 1:
            notes.append(f"{subtask}: the filter is {chosen}; the log also has {others(filters, chosen)}.")
        top = subtask
        while top in group:
            top = group[top]
        tasks.setdefault(top, []).extend((subtask, row) for row in rows if row.get("filter", "none") == chosen)
    known = {task: _samples(task, rows, lower, wanted, path) for task, rows in tasks.items()}
    return Log(str(path), "lm-eval", known, hashed(*raw), model or files[0].parent.name, notes=notes)


def _samples(
    task: str,
    rows: list[tuple[str, dict[str, Any]]],
    directions: dict[str, dict[str, bool]],
    wanted: Wanted,
    path: Path,
) -> Scores:
    if not rows:
        return Scores([], None)
    try:
        ids = [item_id(task, subtask, row["doc_id"]) for subtask, row in rows]
        asked = [(row["arguments"], row["target"]) for _, row in rows]
        first = rows[0][1]
        listed = first.get("metrics") or [key for key in first if key not in NOT_METRICS]
        metric = pick([m for m in listed if not _is_likelihood(m, first[m])], wanted, task, path)
        values = None if metric is None else np.array([number_of(row.get(metric)) for _, row in rows])
        answers = [row["filtered_resps"] for _, row in rows]
    except (KeyError, AttributeError, TypeError, IndexError) as error:
        raise Damaged(
            f"{str(path)!r} must hold samples of lm-eval, but {task!r} lacks {error}: log it again."
        ) from error
    clusters = None
    if wanted.cluster is not None:
        fields = [{"subtask": subtask} | (row["doc"] if isinstance(row["doc"], dict) else {}) for subtask, row in rows]
        clusters = field_of(fields, dict, wanted.cluster, path)
    lower = metric is not None and not directions.get(rows[0][0], {}).get(metric, not lower_is_better(metric))
    return Scores(
        ids, -values if lower and values is not None else values, _likelihood(rows, answers), _hashes(asked, rows),
        clusters, metric or "", lower, chance_of([len(a) if isinstance(a[0], list) else 0 for a in answers]),
    )  # fmt: skip


def _is_likelihood(name: str, value: Any) -> bool:
    """What lm-eval keeps for a perplexity is a log-likelihood, or one and a number of words or bytes."""
    return isinstance(value, (list, tuple)) or name == "perplexity"


def _likelihood(rows: Rows, answers: list[Any]) -> np.ndarray | None:
    """Of what is right: the log of the softmax share of the right choice, the log-likelihood of a single continuation,
    or of a text per byte (per word where bytes were not counted). None where a log does not tell what is right."""
    row = rows[0][1]
    per = next((m for m in ("byte_perplexity", "bits_per_byte", "word_perplexity") if m in row), None)
    if per is not None:
        return np.array([float(r[per][0]) / max(1, r[per][1]) for _, r in rows])
    if not all(isinstance(answer[0], (list, tuple)) and len(answer[0]) == 2 for answer in answers):
        return None
    values = [[float(value) for value, _ in answer] for answer in answers]
    golds = [_gold(row, one) for (_, row), one in zip(rows, values)]
    return right_share(values, golds) if all(golds) else None


def _gold(row: dict[str, Any], values: list[float]) -> list[int]:
    """The right choice: the target where that is its number, and agrees with what lm-eval counted as right. Of two
    choices the count alone tells. Nothing where it cannot be told."""
    if len(values) == 1:
        return [0]
    best, right, target = values.index(max(values)), row.get("acc"), row["target"]
    if len(values) == 2 and right in (0, 1):
        return [best if right else 1 - best]
    if not target.isdigit() or int(target) >= len(values):
        return []
    if any(list(one.values())[-1].strip() == target for one in row["arguments"].values()):
        return []  # the choices are numbers themselves
    return [int(target)] if right not in (0, 1) or bool(right) == (int(target) == best) else []


def _hashes(asked: list[tuple[Any, str]], rows: Rows) -> dict[str, Callable[[], list[str]]]:
    """As an evaluation of ours hashes its prompts; of two logs of lm-eval, by what it hashed itself."""

    def ours() -> list[str]:
        return [item_hash([list(one.values()) for one in a.values()], target) for a, target in asked]

    own = ("doc_hash", "prompt_hash", "target_hash")
    if not all(key in row for _, row in rows for key in own):
        return {"prompt": ours}
    return {"lm-eval": lambda: ["".join(row[key][:16] for key in own) for _, row in rows], "prompt": ours}


def _lines(path: Path, raw: bytes) -> list[dict[str, Any]]:
    rows, number = [], 0
    collecting = gc.isenabled()
    gc.disable()  # millions of objects that all stay: looking for garbage among them takes half of the time
    try:
        for line in raw.splitlines():
            number += 1
            if line.strip():
                rows.append(json.loads(line))
                if not isinstance(rows[-1], dict):
                    raise ValueError
    except ValueError as error:
        raise Damaged(
            f"line {number} of {str(path)!r} must be an object of JSON: the file is cut off or no log."
        ) from error
    finally:
        if collecting:
            gc.enable()
    return rows


def first_line(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        line = file.readline()
    return next(iter(_lines(path, line)), {}) if line.strip().endswith(b"}") else {}
