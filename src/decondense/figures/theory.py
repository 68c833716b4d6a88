"""The figure of proposition E.2: α between its bounds, and the published upper bound that α exceeds.

On a plot of α no eye could tell the bounds apart: they differ by about a thousandth for the paper's example. So the
first panel draws by how much α and its upper bounds exceed the lower bound. All of them are r/√(r² + k) with some k,
and the second panel draws k − m: there the bounds are horizontal lines, and an upper bound fails where α's curve runs
below its line.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..files import AnyPath
from ..theory import GPT2_PADDING, crossing, curves, kappa
from .chart import PALETTE, Axis, Box, Chart, Frame, Remark, Rule, Series
from .draw import Strip, draw

BLUE, RED, GREEN, PINK, *_ = PALETTE
GREY = "#666666"


def theory_figure(path: AnyPath, *, points: int = 121) -> Path:
    """Draw α(r, m) and its bounds, for the paper's m, to `path` (.png, .svg or .pdf), with a CSV of the numbers."""
    data = {name: values.tolist() for name, values in curves(points=points).items()}
    rows = [{"m": GPT2_PADDING, **dict(zip(data, row))} for row in zip(*data.values())]
    return draw([Strip([_charts(data, GPT2_PADDING)], (9.6, 4.2))], path, rows=rows)


def _charts(data: Mapping[str, list[float]], m: int) -> list[Chart]:
    """Two charts over r: 100 (x/lower − 1) for α and the upper bounds; k − m for α, with the level of every bound."""
    r, crossing_r = data["r"], crossing(m)
    drawn = (
        ("simple", GREY, "dash", "simple upper bound, m − 2"),
        ("sharp", PINK, "dash", "sharp upper bound, κ"),
        ("alpha", BLUE, "solid", "α"),
        ("published", RED, "dash", "published upper bound, m − 1"),
    )
    excess: list[Any] = [
        Series(r, [100 * (x / low - 1) for x, low in zip(data[key], data["lower"])], name, colour, dash, width=2.8)
        for key, colour, dash, name in drawn
    ]
    gap = m - kappa(m)
    levels = (
        (0.0, GREEN, "lower bound, k = m", "left"),
        (-1.0, RED, "published upper bound, k = m − 1", "right"),
        (-gap, PINK, f"sharp upper bound, k = κ = m − {gap:.4f}", "right"),
        (-2.0, GREY, "simple upper bound, k = m − 2", "right"),
    )
    padding: list[Any] = [
        Series(r, [k - m for k in data["effective"]], "α", BLUE, "solid", width=3),
        Series([crossing_r], [-1.0], colour=RED, symbol="circle", size=9),
    ]
    remarks = [Remark(f"r = {crossing_r:.2f}", crossing_r, -1.0, RED, (-7, 4), "right")]
    for level, colour, words, side in levels:
        end, shift = (r[0], 4) if side == "left" else (r[-1], -4)
        remarks.append(Remark(words, end, level, colour, (shift, 3), side))
    x = Axis(f"length r of the vector before padding by {m} normals", (r[0], r[-1]), scale="log", grid=False)
    shaded = [Box((r[0], crossing_r), colour=RED, opacity=0.08)]
    y = Axis("above the lower bound r/√(r² + m), %", grid=False)
    title = "shaded: α exceeds the published bound"
    left = Chart(title, x, y, [Frame(excess)], boxes=shaded, legend="upper right")
    rules = [Rule(level, "y", colour, "dash", 1.8) for level, colour, _, _ in levels]
    y = Axis(f"k − m, m = {m}", (-2.25, 0.25), grid=False)
    title = "α = r/√(r² + k): padding by m is worth k coordinates"
    return [left, Chart(title, x, y, [Frame(padding)], rules, shaded, remarks)]
