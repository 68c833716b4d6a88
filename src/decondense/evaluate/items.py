"""Every item's outcome: the table ``items.parquet``, and what is computed from it. No torch here."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any, TypedDict, get_args, get_type_hints

import numpy as np

from ..files import atomic, grouped
from ..records import Damaged, Evaluation, read
from ..words import perhaps_beside

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


def _schema(*, strict: bool) -> Any:
    """The columns of the file as an arrow schema; `strict`: columns that every item fills are not nullable."""
    import pyarrow as pa

    arrow = {str: pa.string(), int: pa.int32(), float: pa.float64(), bool: pa.bool_()}
    fields = []
    for name, hint in get_type_hints(Item).items():
        optional = isinstance(hint, UnionType)
        kind = get_args(hint)[0] if optional else hint
        inner = get_args(kind)
        fields.append(pa.field(name, pa.list_(arrow[inner[0]]) if inner else arrow[kind], optional or not strict))
    return pa.schema(fields)


def item_hash(arguments: Any, target: Any) -> str:
    """16 hexadecimal digits of what was asked: every context and continuation, and what counts as right."""
    body = json.dumps([arguments, str(target)], sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(body.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def write_items(path: Path, items: Sequence[Item]) -> None:
    """Write the file whole or not at all. The same items give the same bytes; page checksums reveal damage."""
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.Table.from_pylist(list(items), schema=_schema(strict=False))
    with atomic(path) as temporary:
        parquet.write_table(table, temporary, compression="zstd", row_group_size=1 << 16, write_page_checksum=True)


@contextlib.contextmanager
def read_as(kind: str, path: Path) -> Iterator[None]:
    """Raise an error of reading inside the block as ``Damaged``, in one sentence."""
    import pyarrow

    try:
        yield
    except Damaged:
        raise
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise Damaged(
            f"{str(path)!r} could not be read as {kind}: {reason}; make it again, or copy it again."
        ) from error


def read_items(path: Path) -> list[Item]:
    from pyarrow import parquet

    if not path.exists():
        raise FileNotFoundError(f"no items at {str(path)!r}: give a folder that `decondense evaluate` wrote.")
    with read_as("items", path):
        table = parquet.read_table(path, page_checksum_verification=True)
        missing = [name for name in Item.__annotations__ if name not in table.column_names]
        if missing:
            raise Damaged(f"{str(path)!r} must have the columns of an evaluation, but lacks {', '.join(missing)}.")
        return table.select(list(Item.__annotations__)).cast(_schema(strict=True)).to_pylist()


# -- a run ---------------------------------------------------------------------------------------------------


@dataclass
class EvaluatedRun:
    """A finished evaluation: its record (``result.json``) and its items, by task in the order of the file."""

    path: str
    record: Evaluation
    items: dict[str, list[Item]] = field(repr=False)


def load_run(path: str | Path) -> EvaluatedRun:
    folder = Path(path)
    if not folder.is_dir():
        close = perhaps_beside(folder)
        raise FileNotFoundError(f"no run at {str(path)!r}: give a folder that `decondense evaluate` wrote{close}")
    if not (folder / "result.json").exists():
        unfinished = (folder / "partial").exists()
        remedy = "it is unfinished: repeat its command" if unfinished else "give another folder"
        raise FileNotFoundError(f"the run {str(path)!r} must hold result.json and items.parquet: {remedy}.")
    record = read(folder)
    if not isinstance(record, Evaluation):
        trained = folder / "model"
        remedy = f"evaluate its model first, decondense evaluate {trained}" if trained.is_dir() else "give another"
        raise ValueError(f"{str(folder / 'result.json')!r} must be an evaluation, got a {record.kind}: {remedy}.")
    items = read_items(folder / "items.parquet")
    return EvaluatedRun(str(path), record, grouped((item["task"], item) for item in items))


# -- numbers from items --------------------------------------------------------------------------------------


def log_shares(items: Sequence[Item]) -> np.ndarray:
    """(items,) in nats: the log-likelihood per token of a window of text, else ``right_share``."""
    values = [item["loglikelihoods"] or [] for item in items]
    if items and items[0]["task"].startswith(TEXT):
        return np.array([one[0] / (item["units"] or [1])[0] for one, item in zip(values, items)])
    return right_share(values, [item["gold"] or [] for item in items])


def right_share(values: Sequence[Sequence[float]], golds: Sequence[Sequence[int]]) -> np.ndarray:
    """(items,): the log of the right choices' softmax share, log Σ_right exp l − log Σ exp l, from every item's
    log-likelihoods l of its choices and the numbers of the right ones; with a single continuation, its log-likelihood.
    """
    sizes = np.array([len(one) for one in values], dtype=int)
    flat = np.array([value for one in values for value in one], dtype=np.float64)
    starts = np.cumsum(sizes) - sizes
    right = np.full(len(flat), -np.inf)
    chosen = np.array([start + gold for start, some in zip(starts, golds) for gold in some], dtype=int)
    right[chosen] = flat[chosen]
    shares = np.logaddexp.reduceat(right, starts) - np.logaddexp.reduceat(flat, starts)
    return np.where(sizes == 1, flat[starts], shares)


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
    ece = calibration(items)
    if ece is not None:
        result["ece"] = ece
    cut = [item["cut"] for item in items if item["cut"]]
    if cut:
        result["cut"] = {"items": len(cut), "most_tokens": max(cut)}
    return result


def calibration(items: Sequence[Item], *, bins: int = 15) -> float | None:
    """Expected calibration error of the choice likelihoods.

    The confidence of an item is the largest softmax probability of its choices' log-likelihoods, its hit whether that
    choice is right; with B_b the items whose confidence falls into the b-th of ``bins`` equal parts of [0, 1],

        ECE = Σ_b |B_b|/n · | mean hit in B_b − mean confidence in B_b |.

    ``None`` for tasks without choices.
    """
    if not items or any(len(item["loglikelihoods"] or ()) < 2 or not item["gold"] for item in items):
        return None
    values = [np.array(item["loglikelihoods"], dtype=np.float64) for item in items]
    confidence = np.array([1 / np.exp(v - v.max()).sum() for v in values])
    hit = np.array([float(int(v.argmax()) in (item["gold"] or ())) for v, item in zip(values, items)])
    place = np.minimum((confidence * bins).astype(int), bins - 1)
    return float(np.abs(np.bincount(place, hit - confidence)).sum() / len(items))  # |B_b|/n cancels the means' 1/|B_b|
