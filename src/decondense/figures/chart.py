"""A chart as plain data: `draw` makes a file of it with matplotlib, and the page shows the same chart with plotly.

Colours are Okabe and Ito's, distinguishable without red-green vision on white and on dark, and two more; every series
also has a dash and a symbol, so that nothing is said by hue alone. INK and FAINT stand for the colours of text and of
faint lines wherever the chart is drawn. Sizes and widths are in pixels of the page.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np

from ..stats.intervals import student
from ..words import span

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999933", "#888888")
LOSSES = (
    "cross entropy", "dispersion", "uniformity", "decorrelation", "koleo", "orthogonalization", "z loss", "l2 repel",
)  # fmt: skip
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "cross")
INK, FAINT = "ink", "faint"
Values = Sequence[Any] | np.ndarray


def look(number: int) -> dict[str, Any]:
    """Return colour, dash and symbol of the n-th series; no two of the first 48 look alike."""
    turn = number % len(PALETTE) + number // len(PALETTE)
    names = {"dash": DASHES[turn % len(DASHES)], "symbol": SYMBOLS[turn % len(SYMBOLS)]}
    return {"colour": PALETTE[number % len(PALETTE)], **names}


def loss_number(name: str) -> int | None:
    """The number of the colour of the loss that a name holds, its place in LOSSES; None for a name without one."""
    words = name.replace("_", " ").replace("-", " ")
    return next((i for i, loss in enumerate(LOSSES) if loss in words), None)


def series_numbers(names: Iterable[str]) -> dict[str, int]:
    """Number names for `look`, so that a loss of LOSSES has one colour in all figures: that of its place there, with
    other dashes where several names have it in them. The other names take the numbers that are left, in their order."""
    of = {name: loss_number(name) for name in names}
    found: dict[str, int] = {}
    for name in sorted(of, key=lambda name: of[name] is None):
        place = of[name]
        own = count() if place is None else count(place, len(PALETTE))
        found[name] = next(number for number in own if number not in found.values())
    return found


def pale(colour: str) -> str:
    """Return a colour of the palette mixed with white; FAINT for INK."""
    if colour == INK:
        return FAINT
    return "#" + "".join(f"{round(255 - 0.5 * (255 - int(colour[i : i + 2], 16))):02x}" for i in (1, 3, 5))


@dataclass
class Axis:
    """`scale`: linear, log or symlog; `ticks`: (place, label); `amounts`: labels like 10M; `whole`: ticks at whole
    numbers only, for layers or steps."""

    title: str = ""
    range: tuple[float, float] | None = None
    scale: str = "linear"
    ticks: Sequence[tuple[float, str]] | None = None
    grid: bool = True
    amounts: bool = False
    whole: bool = False


@dataclass
class Heat:
    """Density (states, bins) of cosines −1 … 1, a column at each of `x`; the colour scale ends at `top`."""

    x: Sequence[float]
    density: np.ndarray
    top: float


@dataclass
class Series:
    """Points, joined by a line if there is a `dash`, marked if there is a `symbol` (one for all, or one for each), with
    intervals if there are `low` and `high`: along y, or along x if `across`. The legend shows `name`, once for all of a
    `group`; `label` is the run. `hover` is the text of a point: lines with {label}, {x}, {y} and {of}, the point's
    entry in `of` (its step, or words)."""

    x: Values
    y: Values
    name: str = ""
    colour: str = PALETTE[0]
    dash: str | None = None
    symbol: str | Sequence[str] | None = None
    size: float | Sequence[float] = 7
    width: float = 2
    low: Sequence[Any] | None = None
    high: Sequence[Any] | None = None
    across: bool = False
    hollow: bool = False
    halo: bool = False
    group: str = ""
    label: str = ""
    of: Sequence[Any] | None = None
    hover: str = ""


@dataclass
class Band:
    """The area between two curves."""

    x: Values
    low: Values
    high: Values
    name: str
    colour: str
    opacity: float


@dataclass
class Rule:
    """A straight line across the chart where `axis` is `at`."""

    at: float
    axis: str = "x"
    colour: str = FAINT
    dash: str = "solid"
    width: float = 1.2


@dataclass
class Box:
    """A shaded area; without `y` from the bottom to the top."""

    x: tuple[float, float]
    y: tuple[float, float] | None = None
    colour: str = FAINT
    opacity: float = 0.15


@dataclass
class Remark:
    """Words beside a point, `shift` points away from it."""

    words: str
    x: float
    y: float
    colour: str = FAINT
    shift: tuple[float, float] = (4, 3)
    align: str = "left"


@dataclass
class Frame:
    """One state of a chart: what is drawn for a view (pooled, released) at a step."""

    marks: list[Heat | Series | Band]
    view: str = ""
    step: int | None = None
    caption: str = ""


@dataclass
class Chart:
    """A chart, of which a file shows the last frame. `right`: a column of words at the right edge of a file; the page
    has them in `hover`. `rows`: the numbers for the CSV; without them `columns` names the fields of the series that are
    its columns: field (label, of, x, y) → name. A heatmap is its own table."""

    title: str
    x: Axis
    y: Axis
    frames: list[Frame]
    rules: Sequence[Rule] = ()
    boxes: Sequence[Box] = ()
    remarks: Sequence[Remark] = ()
    right: Sequence[tuple[float, str]] = ()
    right_title: str = ""
    legend: str = ""  # where it stands in a file: "beside", or a place as matplotlib calls them; "" for no legend
    height: int = 380
    note: str = ""
    rows: Sequence[Mapping[str, Any]] | None = None
    columns: dict[str, str] = field(default_factory=dict)


def dots(
    x: Sequence[float], values: Sequence[Sequence[Any]], *, colour: str = PALETTE[0], name: str = "",
    dash: str | None = None, level: float = 0.95, across: bool = False, hollow: bool = False,
) -> list[Series]:  # fmt: skip
    """Show the values at every `x` as faint dots and before them their mean with Student's interval as a square, which
    may be `hollow`; a single value as an open dot. A `dash` joins the means, or single values where all are.
    `across`: values along the x axis, places along the y axis."""
    groups = [(at, [v for v in some if v is not None and math.isfinite(v)]) for at, some in zip(x, values)]
    several = [(at, *map(float, student(some, level))) for at, some in groups if len(some) > 1]
    each = [(at, v) for at, some in groups if len(some) > 1 for v in some]
    alone = [(at, some[0]) for at, some in groups if len(some) == 1]
    low, high = ([mean + sign * half for _, mean, half in several] for sign in (-1, 1))
    ends = {at: mean for at, mean, _ in several} or dict(alone)
    line = [Series(list(x), [ends.get(at, math.nan) for at in x], name, colour, dash, width=1.7)] if dash else []
    style: dict[str, Any] = {"symbol": "circle", "size": 6, "hollow": True}
    series = [
        *line,
        Series([at for at, _ in each], [v for _, v in each], colour=pale(colour), **style),
        Series(
            [at for at, *_ in several], [mean for _, mean, _ in several], colour=colour, symbol="square", size=8,
            low=low, high=high, hollow=hollow,
        ),
        Series([at for at, _ in alone], [v for _, v in alone], colour=colour, **style),
    ]  # fmt: skip
    for one in series if across else ():
        one.x, one.y, one.across = one.y, one.x, True
    return series


def with_intervals(
    x: Sequence[Any], rows: Sequence[Mapping[str, Any]], value: str, *, text: Sequence[str], number: int, joined: bool,
    **more: Any,
) -> Series:  # fmt: skip
    """Show values with their intervals: rows hold `value`, `value`_low and `value`_high; `text` names each point."""
    ends = [(row[value], row.get(f"{value}_low"), row.get(f"{value}_high")) for row in rows]
    point_texts = [f"{what}\n{span(*three)}" for what, three in zip(text, ends)]
    style = look(number) if joined else look(number) | {"dash": None}
    values, low, high = ([three[i] for three in ends] for i in range(3))
    return Series(x, values, **style, size=9, low=low, high=high, of=point_texts, hover="{of}", **more)
