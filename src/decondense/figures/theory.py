"""The figure of proposition E.2: α between its bounds, and the published upper bound that it passes.

On a plot of α no eye could tell the bounds apart: they differ by about a thousandth for the paper's example. So the
first panel draws what α and its upper bounds have in excess of the lower bound. All of them are r/√(r² + k) with some
k, and the second panel draws k itself, less m: the bounds are level lines there, and an upper bound fails where α's
curve runs below its line.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from ..files import write_csv
from ..theory import GPT2_PADDING, Curves, curves
from .measurements import _save
from .palette import PALETTE

__all__ = ["theory_figure"]

BLUE, RED, GREEN, PINK, *_ = PALETTE
GREY = "#666666"


def theory_figure(path: str | os.PathLike[str], *, m: int = GPT2_PADDING, points: int = 121) -> Path:
    """Draw α(r, m) and its bounds to `path` (.png, .svg or .pdf), with a CSV of the numbers beside it."""
    data = curves(m, points=points)
    figure = Figure(figsize=(9.6, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    _excess(left, data)
    _padding(right, data)
    for axis in (left, right):
        axis.axvspan(data.r[0], data.crossing, color=RED, alpha=0.08, lw=0)
        axis.set_xlim(data.r[0], data.r[-1])
        axis.set_xlabel(f"length r of the vector before padding by {m} normals")
    target = Path(path)
    write_csv(target.with_suffix(".csv"), _rows(data))
    return _save(figure, target)


def _excess(axis: Any, data: Curves) -> None:
    """100 (x/lower − 1) for α and the upper bounds."""
    drawn = [
        (data.simple, GREY, "--", "simple upper bound, m − 2"),
        (data.sharp, PINK, "--", "sharp upper bound, κ"),
        (data.alpha, BLUE, "-", "α"),
        (data.published, RED, "--", "published upper bound, m − 1"),
    ]
    for values, colour, style, words in drawn:
        axis.semilogx(data.r, 100 * (values / data.lower - 1), color=colour, ls=style, lw=1.8, label=words)
    axis.set_ylabel("above the lower bound r/√(r² + m), %")
    axis.set_title("shaded: α exceeds the published bound", fontsize=10, loc="left")
    axis.legend(loc="upper right", fontsize=8, framealpha=0.9)


def _padding(axis: Any, data: Curves) -> None:
    """k − m against r for α, and the level of every bound."""
    short = data.m - data.kappa
    lines = [
        (0.0, GREEN, "lower bound, k = m", "left"),
        (-1.0, RED, "published upper bound, k = m − 1", "right"),
        (-short, PINK, f"sharp upper bound, k = κ = m − {short:.4f}", "right"),
        (-2.0, GREY, "simple upper bound, k = m − 2", "right"),
    ]
    for level, colour, words, side in lines:
        axis.axhline(level, color=colour, lw=1.2, ls="--")
        where, place = (data.r[0], (4, 3)) if side == "left" else (data.r[-1], (-4, 3))
        style = {"textcoords": "offset points", "fontsize": 8, "color": colour, "ha": side, "va": "bottom"}
        axis.annotate(words, (where, level), place, **style)
    axis.semilogx(data.r, data.effective - data.m, color=BLUE, lw=2)
    axis.plot(data.crossing, -1.0, "o", color=RED, ms=6, zorder=5)
    style = {"textcoords": "offset points", "fontsize": 9, "color": RED, "ha": "right"}
    axis.annotate(f"r = {data.crossing:.2f}", (data.crossing, -1.0), (-7, 4), **style)
    axis.set_ylim(-2.25, 0.25)
    axis.set_ylabel(f"k − m, m = {data.m}")
    axis.set_title("α = r/√(r² + k): padding by m is worth k coordinates", fontsize=10, loc="left")


def _rows(data: Curves) -> list[dict[str, float]]:
    columns = ("r", "alpha", "lower", "published", "simple", "sharp", "effective")
    return [{"m": data.m, **{c: float(getattr(data, c)[i]) for c in columns}} for i in range(len(data.r))]
