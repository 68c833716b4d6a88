"""Items, runs and measurements made by hand, the command as a user calls it, and one likelihood by a plain loop."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from decondense.meter.result import Condensation, build
from decondense.meter.tally import Tally


def script(file):
    """A Python file that is in no package, as a module."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def cli(*arguments):
    """The command in this process."""
    from decondense import cli as command

    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            command.main([str(a) for a in arguments])
        except SystemExit as stop:
            code = stop.code or 0
    return Done(code, out.getvalue(), err.getvalue())


def refused(*arguments):
    """The one sentence on stderr that the command ends with, and exit code 2."""
    code, out, err = cli(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert err.startswith("error: ")
    return err


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
    model = {"weights": changes.get("weights", name), "name": name, "description": name, "parameters": 1}
    record = {
        "schema": "decondense.evaluation/1",
        "model": model | {"dtype": "float32"} | changes.get("model", {}),
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
    item = {"task": task, "subtask": task, "doc_id": number, "item": f"{task}-{number}", "prediction": "0"}
    item |= {"target": "0", "gold": [0], "correct": float(correct), "acc_norm": None, "cut": 0}
    item |= {"loglikelihoods": list(values), "greedy": [False] * len(values), "units": [3] * len(values)}
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


def crossed(base, treated, **options):
    """The comparison of two ways of training on one task."""
    from decondense.stats.crossed import crossed_macro

    return crossed_macro([(base, treated)], **options)


COLUMNS = (
    "mean_cosine", "mean_cosine_all", "cosine_variance", "mean_direction_norm", "token_norm",
    "mean_cosine_without_first", "top3_variance_share", "mean_cosine_without_variance3", "top3_cosine_share",
    "mean_cosine_without_cosine3", *(f"apart_{k}" for k in range(9)),
)  # fmt: skip


def condensation(
    *, layers=30, start=0.1, end=0.6, name="org/small", parameters=135_000_000, text="wikitext-2:test", released=True,
    windows=12, seed=0, final_norm: bool | None = True, init=False, revision=None,
) -> Condensation:  # fmt: skip
    """Cosines gather around a mean that goes from ``start`` to ``end`` with depth."""
    rng = np.random.default_rng(seed)
    tally = Tally.empty(layers + 2, COLUMNS, 1024, released_tokens=24 if released else None)
    means = np.linspace(start, end, layers + 2) + 0.06 * np.sin(np.linspace(0, 6, layers + 2))
    centres = -1 + (2 * np.arange(1024) + 1) / 1024
    for state, mean in enumerate(means):
        density = np.exp(-0.5 * ((centres - mean) / 0.13) ** 2)
        tally.counts[state] = np.round(4e5 * density / density.sum())
        if tally.matrices is not None:
            tally.matrices[state] = np.triu(windows * np.clip(mean + 0.05 * rng.normal(size=(24, 24)), -1, 1), 1)
    for w in range(windows):
        row = rng.uniform(0.1, 0.2, size=(layers + 2, len(COLUMNS)))
        row[:, 0] = means + 0.03 * rng.normal() + 0.004 * rng.normal(size=layers + 2)
        row[:, 1] = row[:, 0] + 0.002
        row[:, 2] = 0.13**2
        row[:, 7] = row[:, 0] * 0.3
        row[:, 9] = row[:, 0] * 0.25
        tally.rows[w] = row
    model = {
        "name": name, "kind": "hub", "description": name, "revision": revision, "init": init, "architecture": "X",
        "stack": "only", "layers": layers, "width": 576, "parameters": parameters, "dtype": "float32",
    }  # fmt: skip
    settings = {"windows": windows, "tokens": 24, "seed": 0, "batch": 4, "spectral": False, "released": released}
    return build(
        tally,
        model=model,
        text={"name": text, "source": "test", "documents": 1, "characters": 9, "sha256": "00"},
        settings=settings | {"last": 3, "bootstrap": 100},
        origins=[{"document": 0, "start": 0, "end": 1}] * windows,
        final_norm=final_norm,
        versions={"decondense": "0.1.0", "torch": "2.13.0"},
    )
