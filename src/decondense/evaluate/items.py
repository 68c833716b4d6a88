"""Every item's outcome: the table ``items.parquet``, and what is computed from it. No torch here."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from ..files import atomic
from ..records import Damaged, Evaluation, read

__all__ = [
    "COLUMNS", "TEXT", "EvaluatedRun", "Item", "calibration", "item_hash", "load_run", "log_share",
    "read_items", "summarise", "write_items",
]  # fmt: skip

TEXT = "text:"
"""Prefix of the task name of rows that are windows of a text and not items of a benchmark."""


class Item(TypedDict):
    """A row of the table."""

    task: str  # as the user named it
    subtask: str  # lm-eval's name; differs for groups such as mmlu
    doc_id: int
    item: str  # a hash of prompt, choices and target: two runs pair only what was asked in the same words
    prediction: str | None
    target: str | None
    gold: list[int] | None  # indices of the right choices
    correct: float  # 0 or 1, or between for graded tasks
    acc_norm: float | None
    loglikelihoods: list[float] | None  # of the choices
    greedy: list[bool] | None
    units: list[int] | None  # bytes of the choices; tokens of a window of text
    cut: int  # tokens lost on the left because the prompt was longer than the context


COLUMNS = {"task": "string", "subtask": "string", "doc_id": "int32", "item": "string", "prediction": "string"}
COLUMNS |= {"target": "string", "gold": "list int32", "correct": "double", "acc_norm": "double"}
COLUMNS |= {"loglikelihoods": "list double", "greedy": "list bool", "units": "list int32", "cut": "int32"}
"""Names and arrow types, in the order of the file."""


def item_hash(arguments: Any, target: Any) -> str:
    """16 hexadecimal digits of what was asked: every context and continuation, and what counts as right."""
    body = json.dumps([arguments, str(target)], sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(body.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def write_items(path: Path, items: Sequence[Item]) -> None:
    """Whole or not at all. The same items give the same bytes."""
    import pyarrow as pa
    import pyarrow.parquet

    def arrow(kind: str) -> Any:
        inner = pa.type_for_alias(kind.removeprefix("list "))
        return pa.list_(inner) if kind.startswith("list ") else inner

    schema = pa.schema([(name, arrow(kind)) for name, kind in COLUMNS.items()])
    table = pa.Table.from_pylist(list(items), schema=schema)
    with atomic(path) as temporary:
        pyarrow.parquet.write_table(table, temporary, compression="zstd", row_group_size=1 << 16)


def read_items(path: Path) -> list[Item]:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(path)
    except FileNotFoundError:
        raise FileNotFoundError(f"no items at {str(path)!r}: give a folder that `decondense evaluate` wrote.") from None
    except (pyarrow.ArrowException, OSError) as error:
        raise Damaged(f"{str(path)!r} could not be read as items: {str(error).splitlines()[0]}.") from error
    missing = [name for name in COLUMNS if name not in table.column_names]
    if missing:
        raise Damaged(f"{str(path)!r} must have the columns of an evaluation, but lacks {', '.join(missing)}.")
    return table.to_pylist()


# -- a run ---------------------------------------------------------------------------------------------------


@dataclass
class EvaluatedRun:
    """A finished evaluation: its record (``result.json``) and its items, by task in the order of the file."""

    path: str
    record: Evaluation
    items: dict[str, list[Item]] = field(repr=False)
    label: str = ""  # what tells it from the runs it is compared with


def load_run(path: str | Path) -> EvaluatedRun:
    """Read a folder that ``decondense evaluate`` wrote."""
    folder = Path(path)
    if not folder.is_dir():
        raise FileNotFoundError(f"no run at {str(path)!r}: give a folder that `decondense evaluate` wrote.")
    if not (folder / "result.json").exists():
        unfinished = (folder / "partial").exists()
        remedy = "it is unfinished: repeat its command" if unfinished else "give another folder"
        raise FileNotFoundError(f"the run {str(path)!r} must hold result.json and items.parquet: {remedy}.")
    record = read(folder)
    if not isinstance(record, Evaluation):
        raise ValueError(f"{str(folder / 'result.json')!r} must be an evaluation, got a {record.kind}: give another.")
    items: dict[str, list[Item]] = {}
    for item in read_items(folder / "items.parquet"):
        items.setdefault(item["task"], []).append(item)
    return EvaluatedRun(str(path), record, items)


# -- numbers from items --------------------------------------------------------------------------------------


def log_share(item: Item) -> float:
    """With choices, the log of the softmax share of the right ones; with a single continuation its log-likelihood; for
    a window of text its log-likelihood per token. In nats."""
    values = np.array(item["loglikelihoods"], dtype=np.float64)
    if item["task"].startswith(TEXT):
        return float(values[0]) / (item["units"] or [1])[0]
    if len(values) == 1:
        return float(values[0])
    return float(np.logaddexp.reduce(values[item["gold"]]) - np.logaddexp.reduce(values))


def summarise(items: Sequence[Item]) -> dict[str, Any]:
    """The scores of one task. ``stderr`` is the standard error over items, s/√n; perplexity is lm-eval's for tasks
    whose single continuation is scored (LAMBADA): exp of minus the mean log-likelihood."""
    correct = np.array([item["correct"] for item in items], dtype=np.float64)
    n = len(correct)
    result: dict[str, Any] = {
        "items": n,
        "acc": float(correct.mean()),
        "stderr": float(correct.std(ddof=1) / math.sqrt(n)) if n > 1 else None,
        "graded": bool(np.any((correct != 0) & (correct != 1))),
    }
    norm = [item["acc_norm"] for item in items if item["acc_norm"] is not None]
    if len(norm) == n:
        result["acc_norm"] = float(np.mean(norm))
    if all(len(item["loglikelihoods"] or ()) == 1 for item in items):
        result["perplexity"] = float(np.exp(-np.mean([item["loglikelihoods"] for item in items])))
    error = calibration(items)
    if error is not None:
        result["ece"] = error["ece"]
    cut = [item["cut"] for item in items if item["cut"]]
    if cut:
        result["cut"] = {"items": len(cut), "most_tokens": max(cut)}
    return result


def calibration(items: Sequence[Item], *, bins: int = 15) -> dict[str, Any] | None:
    """Expected calibration error of the choice likelihoods.

    The confidence of an item is the largest softmax probability of its choices' log-likelihoods, its hit whether that
    choice is right; with B_b the items whose confidence falls into the b-th of ``bins`` equal parts of [0, 1],

        ECE = Σ_b |B_b|/n · | mean hit in B_b − mean confidence in B_b |.

    ``None`` for tasks without choices.
    """
    confidence, hit = [], []
    for item in items:
        values = np.array(item["loglikelihoods"] or (), dtype=np.float64)
        if len(values) < 2 or not item["gold"]:
            return None
        shares = np.exp(values - values.max())
        shares /= shares.sum()
        confidence.append(float(shares.max()))
        hit.append(float(int(values.argmax()) in item["gold"]))
    if not confidence:
        return None
    confidences, hits = np.array(confidence), np.array(hit)
    place = np.minimum((confidences * bins).astype(int), bins - 1)
    table = [
        {"items": int(np.sum(place == b)), "confidence": float(np.mean(confidences[place == b])),
         "accuracy": float(np.mean(hits[place == b]))}
        for b in range(bins) if np.any(place == b)
    ]  # fmt: skip
    ece = sum(row["items"] * abs(row["accuracy"] - row["confidence"]) for row in table) / len(confidence)
    return {"ece": float(ece), "bins": table}
