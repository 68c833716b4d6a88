"""The figure of proposition E.2: α between its bounds, and the published upper bound that it passes.

α and its bounds are r/√(r² + k) with some k each, and on a plot of α no eye can tell k = m − 1 from k = m − 2. So the
second panel draws k itself, less m: the bounds are horizontal lines there, and an upper bound fails where α's curve
runs below its line.
"""

from __future__ import annotations

import os
from pathlib import Path

from matplotlib.figure import Figure

from ..theory import GPT2_PADDING, Curves, curves
from .figures import PALETTE, _save
from .tables import write_csv

__all__ = ["theory_figure"]

BLUE, RED, GREEN, PINK, _, SKY = PALETTE


def theory_figure(path: str | os.PathLike[str], *, m: int = GPT2_PADDING, points: int = 121) -> Path:
    """Draw α(r, m) and its bounds to `path` (.png, .svg or .pdf), with a CSV of the numbers beside it."""
    data = curves(m, points=points)
    figure = Figure(figsize=(9.6, 4.0), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.loglog(data.r, data.alpha, color=BLUE, lw=2)
    left.axvline(data.crossing, color="#999999", lw=0.8, ls=":")
    left.set_xlabel("length r of the vector before padding")
    left.set_ylabel("α(r): factor on the cosine, one of two")
    left.set_title(
        f"{m} random coordinates shrink the cosine\n(the bounds lie within this line)", fontsize=10, loc="left"
    )
    _padding(right, data)
    target = Path(path)
    write_csv(target.with_suffix(".csv"), _rows(data))
    return _save(figure, target)


def _padding(axis, data: Curves) -> None:
    """k − m against r for α, and the line of every bound."""
    axis.axhspan(data.kappa - data.m, 0, color=SKY, alpha=0.15, lw=0)
    lines = [
        (0.0, GREEN, "lower bound, k = m"),
        (-1.0, RED, "published upper bound, k = m − 1: fails left of the dot"),
        (data.kappa - data.m, PINK, f"sharp upper bound, k = κ = m − {data.m - data.kappa:.4f}"),
        (-2.0, "#666666", "simple upper bound, k = m − 2"),
    ]
    for level, colour, words in lines:
        axis.axhline(level, color=colour, lw=1.2, ls="--")
        below = level == 0.0
        axis.annotate(
            words, (data.r[1], level), (0, -3 if below else 3), textcoords="offset points", fontsize=8, color=colour,
            va="top" if below else "bottom",
        )  # fmt: skip
    axis.semilogx(data.r, data.effective - data.m, color=BLUE, lw=2, label="α = r/√(r² + k)")
    axis.plot(data.crossing, -1.0, "o", color=RED, ms=6, zorder=5)
    axis.annotate(
        f"r = {data.crossing:.2f}", (data.crossing, -1.0), (8, -4), textcoords="offset points", fontsize=9,
        color=RED, va="top",
    )  # fmt: skip
    axis.set_ylim(-2.25, 0.2)
    axis.set_xlabel("length r of the vector before padding")
    axis.set_ylabel(f"k − m, m = {data.m}")
    axis.set_title("the same as padding k: above an upper bound's line\nα is below that bound", fontsize=10, loc="left")
    axis.legend(loc="center right", fontsize=8, framealpha=0.9)


def _rows(data: Curves) -> list[dict[str, float]]:
    columns = ("r", "alpha", "lower", "published", "simple", "sharp", "effective")
    return [{"m": data.m, **{c: float(getattr(data, c)[i]) for c in columns}} for i in range(len(data.r))]
