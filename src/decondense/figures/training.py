"""Figures of training runs: task loss, penalty and held-out loss against tokens. Reads records, knows no torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .palette import PALETTE

__all__ = ["training_figure"]


def training_figure(runs: Sequence[tuple[str, dict[str, Any]]], path: Path) -> Path:
    """`runs`: (name, record of a training run). One panel each for the task loss, the held-out loss and, where any run
    has one, the penalty. The losses are shown up to where the runs began: one that fell apart leaves the picture, and
    the legend has its last value."""
    from matplotlib.figure import Figure

    with_penalty = any("penalty" in entry for _, record in runs for entry in record["history"])
    panels = ["task loss", "held-out loss"] + ["penalty"] * with_penalty
    figure = Figure(figsize=(3.6 * len(panels), 3.2), layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(panels)), panels):
        for number, (name, record) in enumerate(runs):
            x, y = _series(record, panel)
            if x:
                style = {"marker": "o", "markersize": 3.5} if panel == "held-out loss" else {"alpha": 0.85}
                axes.plot(
                    x, y, label=f"{name}: {y[-1]:.4f}", color=PALETTE[number % len(PALETTE)], linewidth=1.4, **style
                )
        if panel != "penalty":
            starts = [y[0] for _, record in runs for y in [_series(record, panel)[1]] if y]
            low = min(v for _, record in runs for v in _series(record, panel)[1])
            if starts and max(starts) > low:
                axes.set_ylim(low - 0.05 * (max(starts) - low), max(starts) + 0.1 * (max(starts) - low))
        axes.set_title(panel, fontsize=10)
        axes.set_xlabel("tokens")
        axes.xaxis.set_major_formatter(_tokens)
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
        if panel == "held-out loss" and len(runs) > 1:
            axes.legend(fontsize=7, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=160)
    return path


def _series(record: dict[str, Any], panel: str) -> tuple[list[float], list[float]]:
    if panel == "held-out loss":
        pairs = [(e["tokens"], e["loss"]) for e in record["held_out"]]
    elif panel == "penalty":
        pairs = [(e["tokens"], e["penalty"]) for e in record["history"] if "penalty" in e]
    else:
        pairs = [(e["tokens"], e.get("task_loss", e["loss"])) for e in record["history"]]
    pairs = [(x, y) for x, y in pairs if y is not None]  # null: it was not finite
    return [p[0] for p in pairs], [p[1] for p in pairs]


def _tokens(value: float, _position: int) -> str:
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"
