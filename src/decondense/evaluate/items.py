"""Every item's outcome: the table ``items.parquet``, and what is computed from it. No torch here.

One row per item: ``task`` (as the user named it), ``subtask`` (lm-eval's name; differs for groups such as mmlu),
``doc_id``, ``item`` (a hash of the whole prompt, the choices and the target, so that two runs pair only what was
asked in the same words), ``prediction``, ``target``, ``gold`` (indices of the right choices), ``correct`` (0 or 1, or
between for graded tasks), ``acc_norm``, ``loglikelihoods`` of the choices, ``greedy``, ``units`` (bytes of the choices;
tokens of a window of text), ``cut`` (tokens lost on the left because the prompt was longer than the context).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["COLUMNS", "Run", "calibration", "item_hash", "load_run", "read_items", "summarise", "write_items"]

SCHEMA = "decondense.evaluation/1"
TEXT = "text:"
"""Prefix of the task name of rows that are windows of a text and not items of a benchmark."""
COLUMNS = (
    ("task", "string"),
    ("subtask", "string"),
    ("doc_id", "int32"),
    ("item", "string"),
    ("prediction", "string"),
    ("target", "string"),
    ("gold", "list<int32>"),
    ("correct", "float64"),
    ("acc_norm", "float64"),
    ("loglikelihoods", "list<float64>"),
    ("greedy", "list<bool>"),
    ("units", "list<int32>"),
    ("cut", "int32"),
)
Item = dict[str, Any]


def item_hash(arguments: Any, target: Any) -> str:
    """16 hexadecimal digits of what was asked: every context and continuation, and what counts as right."""
    body = json.dumps([arguments, str(target)], sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(body.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _schema() -> Any:
    import pyarrow as pa

    kinds = {"string": pa.string(), "int32": pa.int32(), "float64": pa.float64()}
    kinds |= {"list<int32>": pa.list_(pa.int32()), "list<float64>": pa.list_(pa.float64())}
    kinds["list<bool>"] = pa.list_(pa.bool_())
    return pa.schema([(name, kinds[kind]) for name, kind in COLUMNS])


def write_items(path: Path, items: Sequence[Item]) -> None:
    """Write to a temporary name and rename. The same items give the same bytes."""
    import pyarrow as pa
    import pyarrow.parquet

    table = pa.Table.from_pylist(list(items), schema=_schema())
    handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    os.close(handle)
    try:
        pyarrow.parquet.write_table(table, name, compression="zstd", row_group_size=1 << 16)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def read_items(path: Path) -> list[Item]:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(path)
    except FileNotFoundError:
        raise FileNotFoundError(f"no items at {str(path)!r}: give a folder that `decondense evaluate` wrote.") from None
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{str(path)!r} could not be read as items: {str(error).splitlines()[0]}.") from error
    missing = [name for name, _ in COLUMNS if name not in table.column_names]
    if missing:
        raise ValueError(f"{str(path)!r} must have the columns of an evaluation, but lacks {', '.join(missing)}.")
    return table.to_pylist()


# -- a run ---------------------------------------------------------------------------------------------------


@dataclass
class Run:
    """A finished evaluation: its record (``result.json``) and its items, by task in the order of the file."""

    path: str
    record: dict[str, Any]
    items: dict[str, list[Item]] = field(repr=False)

    @property
    def label(self) -> str:
        return Path(self.path).name or self.path


def load_run(path: str | Path) -> Run:
    """Read a folder that ``decondense evaluate`` wrote."""
    folder = Path(path)
    if not folder.is_dir():
        raise FileNotFoundError(f"no run at {str(path)!r}: give a folder that `decondense evaluate` wrote.")
    record_file = folder / "result.json"
    if not record_file.exists():
        unfinished = (folder / "partial").exists()
        remedy = "it is unfinished: repeat its command" if unfinished else "give another folder"
        raise FileNotFoundError(f"the run {str(path)!r} must hold result.json and items.parquet: {remedy}.")
    try:
        record = json.loads(record_file.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{str(record_file)!r} could not be read as JSON: {error}.") from error
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        raise ValueError(
            f"{str(record_file)!r} must be an evaluation with the schema {SCHEMA!r}: it is something else."
        )
    items: dict[str, list[Item]] = {}
    for item in read_items(folder / "items.parquet"):
        items.setdefault(item["task"], []).append(item)
    return Run(str(path), record, items)


# -- numbers from items --------------------------------------------------------------------------------------


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
    norm = [item["acc_norm"] for item in items]
    if all(value is not None for value in norm):
        result["acc_norm"] = float(np.mean(norm))
    if all(len(item["loglikelihoods"] or ()) == 1 for item in items):
        result["perplexity"] = float(np.exp(-np.mean([item["loglikelihoods"][0] for item in items])))
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
    place = np.minimum((np.array(confidence) * bins).astype(int), bins - 1)
    table = []
    for b in range(bins):
        inside = place == b
        if inside.any():
            table.append(
                {
                    "items": int(inside.sum()),
                    "confidence": float(np.mean(np.array(confidence)[inside])),
                    "accuracy": float(np.mean(np.array(hit)[inside])),
                }
            )
    ece = sum(row["items"] * abs(row["accuracy"] - row["confidence"]) for row in table) / len(confidence)
    return {"ece": float(ece), "bins": table}
