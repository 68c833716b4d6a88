"""The main job on a real model, in a few minutes on two CPU cores: train with the loss and without, and look before and
after.

Both runs take the same steps on the same text, so that what you see is the loss and not the training. The weight is
far above the paper's 0.1, and the learning rate high: a few steps are to show what the loss does, not to make a
better model.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import decondense as dc
from decondense.models import resolve
from decondense.report.page import report
from decondense.train import recipe_from, train, with_settings

OUT = Path("demo-out")
RECIPE = {
    "model": {"name": "smollm2-135m"},
    "data": {
        "text": "wikitext-2:train",
        "held_out": "wikitext-2:test",
        "tokens": 1536,
        "held_out_tokens": 2048,
        "context": 256,
    },
    "train": {
        "batch_tokens": 256,
        "learning_rate": 3e-4,
        "schedule": "constant",
        "warmup": 0.0,
        "log_every": 1,
        "checkpoints": 0,
        "device": "cpu",
    },
    "snapshots": {"count": 1, "windows": 8, "tokens": 256},
}
ARMS = {"cross-entropy": ["loss.name=none"], "dispersion": ["loss.name=dispersion", "loss.weight=3.0"]}


def run(name: str, settings: list[str], console: Console) -> dict[str, Any]:
    """One arm: a run folder under demo-out, its record returned. The weights are not kept."""
    recipe = recipe_from(with_settings({**RECIPE, "name": name}, settings))
    shown = None

    def show(step: int, figures: dict[str, float]) -> None:
        nonlocal shown
        if figures.get("loss") != shown:  # called after every step, and again when its loss is known
            terms = {k: figures[k] for k in ("task_loss", "penalty", "mean_cosine") if k in figures}
            terms = terms or {"task_loss": figures["loss"]}
            words = "   ".join(f"{k.replace('_', ' ')} {v:.4f}" for k, v in terms.items())
            console.print(f"  step {step} of {recipe.steps}: {words}")
            shown = figures["loss"]

    console.print(
        f"\n[bold]{name}[/bold]: measure, {recipe.steps} steps of {recipe.data.context} tokens, measure again"
    )
    record = train(recipe, OUT / name, command="make demo", show=show).record
    shutil.rmtree(OUT / name / "model")
    return record


def main() -> None:
    console, begun = Console(), time.monotonic()
    shutil.rmtree(OUT, ignore_errors=True)
    console.print(
        "loading smollm2-135m (dequantised Q4_1; the first time it is converted, which takes half a minute) …"
    )
    resolve("smollm2-135m")
    records = {name: run(name, settings, console) for name, settings in ARMS.items()}
    ends = {name: dc.load(OUT / name / r["snapshots"][-1]["file"]) for name, r in records.items()}
    before = dc.load(OUT / "dispersion" / records["dispersion"]["snapshots"][0]["file"])
    shown = {"before": before, **ends}
    table = Table(title="mean cosine between the tokens of held-out text: higher is more condensed")
    for column in ("hidden state", *shown):
        table.add_column(column, justify="right")
    for i in range(before.layers + 1):
        name = "embedding" if i == 0 else f"block {i}" + (", normed" if i == before.layers else "")
        table.add_row(name, *(f"{c.mean_cosine[i]:.3f}" for c in shown.values()))
    console.print()
    console.print(table)
    for name, c in shown.items():
        console.print(f"{name}: {c.verdict}")
    report([OUT], OUT / "report.html", title="decondense: before and after")
    console.print(
        f"\n{time.monotonic() - begun:.0f} s. Open {OUT / 'report.html'} in a browser: heatmaps, curves, settings."
    )


if __name__ == "__main__":
    main()
