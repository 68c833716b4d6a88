"""Figures of studies: heatmaps over depth like the paper's, and effects with one dot per seed.

Dots are single seeds (or models), bars Student's intervals over them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..stats.intervals import student
from ..words import amount, signed
from .chart import (
    FAINT,
    INK,
    PALETTE,
    Axis,
    Band,
    Box,
    Chart,
    Frame,
    Remark,
    Rule,
    Series,
    dots,
    look,
    loss_number,
    pale,
    series_numbers,
)
from .draw import Strip, draw
from .measured import Short
from .measurements import DEPTH, heat_rows

Points = Sequence[tuple[str, Sequence[float]]]


def heat_grid(
    rows: Sequence[tuple[str, Sequence[tuple[str, Short]]]], path: Path, *, note: str = "",
    below: Sequence[Mapping[str, Any]] = (), floor: float | None = None,
) -> Path:  # fmt: skip
    """Rows of heatmaps on one scale; each row has a label and (title, snapshot) panels.

    below: panels as in `curves`, for what heatmaps are too coarse to show.
    floor: the lowest cosine that is shown, if not the lowest of any state.
    """
    charts = _heats([panels for _, panels in rows], floor)
    for line, (label, _) in zip(charts, rows):
        line[0].y.title = label
    size = (2.2 * max(map(len, charts)) + 1.5, 2.3 * len(rows) + 0.9)
    strips = [Strip(charts, size, f"{DEPTH}\n{note}".strip(), "cosine similarity of two tokens", shared=True)]
    if below:
        strips.append(Strip([[_panel(panel) for panel in below]], (size[0], 2.5)))
    return draw(strips, path)


def heat_row(
    panels: Sequence[tuple[str, Short]], path: Path, *, points: Mapping[str, Points], x: str, numbers: bool = False,
    limits: Mapping[str, tuple[str, Sequence[float]]] = {}, line: float = 0.0,
) -> Path:  # fmt: skip
    """Heatmaps, and below them charts side by side with one dot per seed or model: `points` are label of the y axis →
    (label on the x axis, values).

    numbers: the labels on the x axis are numbers, and the axis is logarithmic.
    limits: label of the y axis → (words, values) of a dashed line below which the dots cannot lie.
    line: a level to draw.
    """
    lines = math.ceil(len(panels) / 6)
    columns = math.ceil(len(panels) / lines)
    charts = _heats([panels[i : i + columns] for i in range(0, len(panels), columns)])
    x_title = "depth (right of a white line: after the final norm)"
    width = max(6.0, 2.2 * columns + 1.2)
    upper = Strip(charts, (width, 2.3 * lines + 0.3), x_title, "cosine", shared=True)
    lower = []
    for y, dots_by_label in points.items():
        extra = {"title": "", "x": x, "line": line, "limit": limits.get(y)}
        lower.append(_panel(_points(dots_by_label, y, numbers) | extra, joined=False))
    return draw([upper, Strip([lower], (width, 2.9))], path)


def _heats(rows: Sequence[Sequence[tuple[str, Short]]], floor: float | None = None) -> list[list[Chart]]:
    titled = [[(f"{title}\nSpearman {signed(s.spearman, 2)}", s) for title, s in row] for row in rows]
    return heat_rows(titled, floor=floor)


def _points(points: Points, y: str, numbers: bool) -> dict[str, Any]:
    places = [float(label) if numbers else float(i) for i, (label, _) in enumerate(points)]
    values = [values for _, values in points]
    panel = {"y": y, "series": {"": (places, values)}, "ticks": places, "labels": [p[0] for p in points]}
    if numbers:
        # labels at powers of ten only, where the labels of all models would overlap
        low, high = (math.floor(math.log10(f(places))) for f in (min, max))
        shown = [float(10**k) for k in range(low, high + 2)] if len(places) > 8 else places
        panel |= {"scale": "log", "ticks": shown, "labels": list(map(amount, shown))}
    if y.startswith("Spearman"):
        cut = any(abs(mean) + half > 1.08 for mean, half in map(student, values))
        panel |= {"limits": (-1.08, 1.08), "y": y + "\n(bars cut at ±1)" * cut}
    return panel


def effects(
    rows: Points, path: Path, *, x: str, margin: float | None = None, losses: Sequence[str] | None = None,
    right: Sequence[str] | None = None, right_title: str = "", level: float = 0.95, note: str = "",
    far: float = math.inf, strong: Sequence[bool] | None = None, groups: Sequence[str] = (),
) -> Path:  # fmt: skip
    """Draw one line per comparison: dots are seeds, the bar is Student's interval; `margin` is shaded around 0, `right`
    is a column of text (speed, say). A comparison with a dot further from 0 than `far`, which would flatten the others,
    is not drawn: its label gives its mean. Squares are hollow and pale where `strong` is false. `groups` names the
    group of every row: each stands above its rows. `losses` names the loss of every row, which has its colour."""
    if groups and len(groups) != len(rows):
        raise ValueError(f"groups must name the group of every row, got {len(groups)} for {len(rows)} rows.")
    starts = [i for i, group in enumerate(groups) if i == 0 or group != groups[i - 1]]
    top = len(rows) + len(starts)
    places = [float(top - i - sum(start <= i for start in starts)) for i in range(len(rows))]
    rows = [
        (f"{label}: {signed(float(np.mean(values)), 2)}, off the scale", ()) if max(map(abs, values), default=0.0) > far
        else (label, values)
        for label, values in rows
    ]  # fmt: skip
    marks: list[Any] = []
    for number, (place, (_, values)) in enumerate(zip(places, rows)):
        if not len(values):
            continue
        own = loss_number(losses[number]) if losses else 0
        colour = INK if own is None else PALETTE[own]  # every colour is that of a loss: what is none has ink
        weak = strong is not None and not strong[number]
        shade = pale(colour) if weak else colour
        marks += dots([place], [values], colour=shade, level=level, across=True, hollow=weak)
    # Three seeds have long intervals: the axis shows all dots, and cuts a bar that would flatten them.
    shown = [v for _, values in rows for v in values if math.isfinite(v)] or [0.0]
    low, high = min(0.0, *shown, -(margin or 0)), max(0.0, *shown, margin or 0)
    bars = [bar for bar in (student(values, level) for _, values in rows if len(values) > 1) if math.isfinite(bar[1])]
    room, edge = 0.6 * (high - low or 1.0), 0.06 * (high - low or 1.0)  # a dot at the edge is not cut
    if len(bars) > 2:  # one bar that is far longer than most does not flatten them either
        room = min(room, max(edge, 3 * float(np.median([half for _, half in bars]))))
    lowest = min([low, *(mean - half for mean, half in bars)])
    highest = max([high, *(mean + half for mean, half in bars)])
    cut = lowest < low - room or highest > high + room
    limits = max(lowest - edge, low - room), min(highest + edge, high + room)
    note += "\nlonger bars are cut at the edge" if cut else ""
    ticks = [(place, label) for place, (label, _) in zip(places, rows)]
    y = Axis(range=(0.4, top + 0.6), ticks=ticks, grid=False)
    chart = Chart(
        "", Axis(x, limits), y, [Frame(marks)], [Rule(0), *(Rule(places[i] + 1.5, "y") for i in starts[1:])],
        remarks=[Remark(groups[i], limits[0], places[i] + 1, INK, (4, 0)) for i in starts],
        right_title=right_title if right else "", right=list(zip(places, right or ())),
    )  # fmt: skip
    if margin is not None:
        chart.boxes = [Box((-margin, margin), colour=PALETTE[2], opacity=0.12)]
    return draw([Strip([[chart]], (8.4, 1.3 + 0.3 * top), note.strip())], path)


def curves(panels: Sequence[Mapping[str, Any]], path: Path, *, note: str = "", columns: int | None = None) -> Path:
    """Draw panels side by side, `columns` in a row. Each has `title`, `x`, `y` (labels), `series`: name → (x values,
    one list of values per x); and optionally `scale` ("log", "symlog"), `line` (a level to draw), `ticks` and their
    `labels`, `limits` of y, `legend` (whether, or where), `band` (draw many values as their mean and range), and
    `names` (all names in the figure, so that each has the same colour in every panel)."""
    columns = columns or len(panels)
    rows = [[_panel(panel) for panel in panels[i : i + columns]] for i in range(0, len(panels), columns)]
    size = (3.9 * columns + 0.4, 3.3 * len(rows) + 0.4)
    return draw([Strip(rows, size, note)], path)


def _panel(panel: Mapping[str, Any], *, joined: bool = True) -> Chart:
    marks: list[Any] = []
    of = series_numbers(panel.get("names") or panel["series"])
    for name, (x, values) in panel["series"].items():
        number = of[name]
        colour = PALETTE[number % len(PALETTE)]
        if panel.get("band"):
            low, mean, high = ([float(end(some)) for some in values] for end in (np.min, np.mean, np.max))
            style = look(number) | ({"symbol": None} if len(x) > 12 else {})
            marks += [Band(x, low, high, "", colour, 0.2), Series(x, mean, name, **style)]
        else:
            # drawn through unless another name has the same colour
            dash = look(number // len(PALETTE))["dash"] if joined else None
            marks += dots(x, values, colour=colour, name=name, dash=dash)
        if panel.get("limit"):
            marks.append(Series(x, panel["limit"][1], panel["limit"][0], FAINT, "dash"))
    places = panel.get("ticks") or ()
    labels = panel.get("labels") or [f"{place:g}".replace("-", "−") for place in places]
    scale = panel.get("scale") or "linear"
    axis = Axis(panel["x"], scale=scale, ticks=list(zip(places, labels)) or None, grid=False)
    rules = [Rule(panel["line"], "y")] if panel.get("line") is not None else []
    y = Axis(panel["y"], range=panel.get("limits"))
    several = len(panel["series"]) > 1 or bool(panel.get("limit"))
    legend = panel.get("legend", several)
    place = legend if isinstance(legend, str) else "best" * legend
    return Chart(panel["title"], axis, y, [Frame(marks)], rules, legend=place)
