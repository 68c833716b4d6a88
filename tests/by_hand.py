"""Items and runs made by hand, the command as a user calls it, and the likelihood of one request by a plain loop."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch


def cli(*arguments):
    """The command in this process: (returncode, stdout, stderr)."""
    from decondense import cli as command

    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            command.main([str(a) for a in arguments])
        except SystemExit as stop:
            code = stop.code or 0
    return SimpleNamespace(returncode=code, stdout=out.getvalue(), stderr=err.getvalue())


def write_run(folder: Path, outcomes: dict[str, Any], **changes: Any) -> Path:
    """A folder of `evaluate`. outcomes: task → scores or whole items; changes: weights, checkpoint, settings, model."""
    from decondense.evaluate.items import write_items

    folder.mkdir()
    items = [
        row if isinstance(row, dict) else make_item(task, n, row)
        for task, rows in outcomes.items()
        for n, row in enumerate(rows)
    ]
    write_items(folder / "items.parquet", items)
    name = folder.name
    model = {
        "weights": changes.get("weights", name),
        "name": name,
        "description": name,
        "parameters": 1,
        "dtype": "float32",
    } | changes.get("model", {})
    record = {
        "schema": "decondense.evaluation/1",
        "model": model,
        "settings": {"shots": "gpt2", "limit": None, "seed": 1234} | changes.get("settings", {}),
        "data": "folder",
        "checkpoint": {"selected_by": "final"} | changes.get("checkpoint", {}),
        "tasks": {},
        "macro_average": None,
        "texts": {},
        "notes": [],
        "versions": {},
    }
    (folder / "result.json").write_text(json.dumps(record))
    return folder


def make_item(
    task: str, number: int, correct: float, *, values: tuple[float, ...] = (-1.0, -2.0), **changes: Any
) -> dict:
    item = {
        "task": task,
        "subtask": task,
        "doc_id": number,
        "item": f"{task}-{number}",
        "prediction": "0",
        "target": "0",
        "gold": [0],
        "correct": float(correct),
        "acc_norm": None,
        "loglikelihoods": list(values),
        "greedy": [False] * len(values),
        "units": [3] * len(values),
        "cut": 0,
    }
    return item | changes


def brute_force(model, context: list[int], continuation: list[int], limit: int) -> tuple[float, bool]:
    """One request, no batch, no padding, float64: Σ log p(token | everything before it)."""
    tokens = (context + continuation)[-(limit + 1) :]
    with torch.no_grad():
        scores = torch.log_softmax(model(torch.tensor([tokens[:-1]])).logits[0].double(), -1)
    total, greedy = 0.0, True
    for k, token in enumerate(continuation):
        row = scores[len(tokens) - 1 - len(continuation) + k]
        total += float(row[token])
        greedy &= int(row.argmax()) == token
    return total, greedy


def compared(*arms, **options):
    """The comparison as it is written."""
    from decondense.stats.significance import significance

    return json.loads(significance(*arms, **options).to_json())
