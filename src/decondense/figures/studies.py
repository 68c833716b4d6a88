"""Figures of studies: heatmaps over depth like the paper's, and effects with one dot per seed. No torch.

A heatmap is drawn from what a study keeps of a measurement: `histogram` (states, bins), a density over [−1, 1], and
`mean_cosine` (states,). Dots are single seeds (or models), bars Student's 95 % intervals over them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib
import matplotlib.patheffects
import numpy as np
from matplotlib.figure import Figure

from ..stats.intervals import student
from .heat_scale import cut_at, floor_of, top_of
from .measured import Short as Snapshot
from .measurements import INK, MAP, _save, density_image
from .palette import PALETTE

__all__ = ["curves", "effects", "heat_grid", "heat_row"]

GREY = "#666666"
Points = Sequence[tuple[str, Sequence[float]]]


def heat_grid(
    rows: Sequence[tuple[str, Sequence[tuple[str, Snapshot]]]],
    path: Path,
    *,
    note: str = "",
    below: Sequence[Mapping[str, Any]] = (),
) -> Path:
    """Rows of heatmaps on one scale; each row has a label and (title, snapshot) panels.

    below: panels as `curves` has them, for what heatmaps are too coarse to show.
    """
    rows = [(label, [(title, _attributes(s)) for title, s in panels]) for label, panels in rows]
    columns = max(len(panels) for _, panels in rows)
    height, strip = 2.3 * len(rows) + 0.9, 3.0 if below else 0.0
    whole = Figure(figsize=(2.2 * columns + 1.5, height + strip), layout="constrained")
    figure: Any = whole
    if below:
        parts: Any = whole.subfigures(2, 1, height_ratios=[height, strip])
        figure = parts[0]
        for axis, panel in zip(parts[1].subplots(1, len(below), squeeze=False)[0], below):
            _panel(axis, panel)
    axes = figure.subplots(len(rows), columns, sharex=True, sharey=True, squeeze=False)
    drawn = _densities([s for _, panels in rows for _, s in panels])
    floor, top = floor_of(drawn), top_of(drawn)
    image = None
    for row, (label, panels) in zip(axes, rows):
        for axis, (title, snapshot) in zip(row, panels):
            image = _heat(axis, snapshot, floor, top)
            axis.set_title(f"{title}\nSpearman {_number(snapshot.spearman)}", fontsize=8)
        for axis in row[len(panels) :]:
            axis.set_visible(False)
        row[0].set_ylabel(label, fontsize=9)
    _bar(figure, image, list(axes.flat), cut_at(drawn, top))
    figure.supxlabel(
        "depth: layer / number of layers (right of a white line: after the final norm)" + _below(note), fontsize=8
    )
    figure.supylabel("cosine similarity of two tokens", fontsize=8)
    return _save(whole, path)


def heat_row(
    panels: Sequence[tuple[str, Snapshot]],
    path: Path,
    *,
    points: Mapping[str, Points],
    x: str,
    numbers: bool = False,
    note: str = "",
) -> Path:
    """Heatmaps, and below them charts side by side with one dot per seed or model: `points` are label of the y axis →
    (label on the x axis, values).

    numbers: the labels on the x axis are numbers, and the axis is logarithmic.
    """
    panels = [(title, _attributes(s)) for title, s in panels]
    lines = math.ceil(len(panels) / 6)
    columns = math.ceil(len(panels) / lines)
    figure = Figure(figsize=(max(6.0, 2.2 * columns + 1.2), 2.3 * lines + 3.2), layout="constrained")
    parts: Any = figure.subfigures(2, 1, height_ratios=[2.3 * lines, 2.9])
    upper, lower = parts
    axes = upper.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    drawn = _densities([s for _, s in panels])
    floor, top = floor_of(drawn), top_of(drawn)
    image = None
    for axis, (title, snapshot) in zip(axes.flat, panels):
        image = _heat(axis, snapshot, floor, top)
        axis.set_title(f"{title}\nSpearman {_number(snapshot.spearman)}", fontsize=8)
    for axis in list(axes.flat)[len(panels) :]:
        axis.set_visible(False)
    upper.supylabel("cosine", fontsize=8)
    upper.supxlabel("depth (right of a white line: after the final norm)", fontsize=8)
    _bar(upper, image, list(axes.flat), cut_at(drawn, top))
    for axis, (y, those) in zip(lower.subplots(1, len(points), squeeze=False)[0], points.items()):
        _points(axis, those, y, x + _below(note), numbers)
    return _save(figure, path)


def _points(axis: Any, points: Points, y: str, x: str, numbers: bool) -> None:
    places = [float(label) if numbers else float(i) for i, (label, _) in enumerate(points)]
    _dots(axis, places, [values for _, values in points], PALETTE[0])
    axis.axhline(0, color=GREY, lw=0.8)
    if y.startswith("Spearman"):
        axis.set_ylim(-1.08, 1.08)
        if any(len(v) > 1 and abs(m) + h > 1.08 for _, v in points for m, h in [student(v)]):
            y += "\n(bars cut at ±1)"
    if numbers:
        axis.set_xscale("log")
        axis.minorticks_off()
        if len(places) > 8:  # labels at powers of ten, as those of all models would lie over each other
            low, high = (math.floor(math.log10(f(places))) for f in (min, max))
            ticks = [float(10**k) for k in range(low, high + 2)]
        else:
            ticks = places
        axis.set_xticks(ticks, [_count(p) for p in ticks], fontsize=8)
    else:
        axis.set_xticks(places, [label for label, _ in points], fontsize=8)
    axis.margins(x=0.1)
    axis.set_xlabel(x, fontsize=9)
    axis.set_ylabel(y, fontsize=9)
    _tidy(axis)


def effects(
    rows: Sequence[tuple[str, Sequence[float]]],
    path: Path,
    *,
    x: str,
    margin: float | None = None,
    colours: Sequence[int] | None = None,
    right: Sequence[str] | None = None,
    right_title: str = "",
    level: float = 0.95,
    note: str = "",
) -> Path:
    """One line per comparison: dots are seeds, the bar is Student's interval; `margin` is shaded around 0, `right` is
    a column of text (speed, say)."""
    figure = Figure(figsize=(8.4, 1.3 + 0.3 * len(rows)), layout="constrained")
    axis = figure.add_subplot()
    if margin is not None:
        axis.axvspan(-margin, margin, color="#009E73", alpha=0.12, lw=0)
    axis.axvline(0, color=GREY, lw=0.9)
    places = list(range(len(rows), 0, -1))
    for number, (place, (_, values)) in enumerate(zip(places, rows)):
        colour = PALETTE[(colours[number] if colours else 0) % len(PALETTE)]
        known = [v for v in values if math.isfinite(v)]
        if len(known) > 1:
            mean, half = student(known, level)
            axis.plot([mean - half, mean + half], [place, place], color=colour, lw=2, solid_capstyle="butt")
            axis.plot(mean, place, "s", color=colour, ms=5.5)
        axis.plot(known, [place] * len(known), "o", color=colour, ms=3.5, mfc="white", zorder=4)
    # Three seeds have long intervals: the axis shows all dots, and cuts a bar that would flatten them.
    dots = [v for _, values in rows for v in values if math.isfinite(v)] or [0.0]
    low, high = min(0.0, *dots, -(margin or 0)), max(0.0, *dots, margin or 0)
    room = 0.6 * (high - low or 1.0)
    axis.set_xlim(low - room, high + room)
    axis.set_yticks(places, [label for label, _ in rows], fontsize=8)
    axis.set_ylim(0.4, len(rows) + 0.6)
    axis.set_xlabel(x + _below(note), fontsize=9)
    if right:
        twin = axis.twinx()
        twin.set_ylim(axis.get_ylim())
        twin.set_yticks(places, list(right), fontsize=8)
        twin.tick_params(length=0)
        twin.spines[["top", "right", "left"]].set_visible(False)
        twin.set_title(right_title, fontsize=8, loc="right")
    _tidy(axis, grid="x")
    return _save(figure, path)


def curves(panels: Sequence[Mapping[str, Any]], path: Path, *, note: str = "") -> Path:
    """Panels side by side. Each has `title`, `x`, `y` (labels), `series`: name → (x values, one list of values per
    x); and optionally `scale` ("log", "symlog"), `line` (a level to draw), `limits`."""
    figure = Figure(figsize=(3.9 * len(panels) + 0.4, 3.7), layout="constrained")
    for axis, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels):
        _panel(axis, panel)
    if note:
        figure.supxlabel(note, fontsize=8, color="#444444")
    return _save(figure, path)


def _panel(axis: Any, panel: Mapping[str, Any]) -> None:
    for number, (name, (x, values)) in enumerate(panel["series"].items()):
        colour = PALETTE[number % len(PALETTE)]
        _dots(axis, x, values, colour, joined=True, label=name)
    if panel.get("line") is not None:
        axis.axhline(panel["line"], color=GREY, lw=0.8)
    if panel.get("scale") == "symlog":
        axis.set_xscale("symlog", linthresh=0.1)
    elif panel.get("scale") == "log":
        axis.set_xscale("log")
    axis.margins(x=0.08)
    if panel.get("ticks"):
        axis.set_xticks(panel["ticks"], [f"{t:g}".replace("-", "−") for t in panel["ticks"]], fontsize=8)
        axis.minorticks_off()
    if panel.get("limits"):
        axis.set_ylim(*panel["limits"])
    axis.set_title(panel["title"], fontsize=10, loc="left")
    axis.set_xlabel(panel["x"], fontsize=9)
    axis.set_ylabel(panel["y"], fontsize=9)
    if len(panel["series"]) > 1:
        axis.legend(fontsize=7, frameon=False)
    _tidy(axis)


def _attributes(snapshot: Any) -> Snapshot:
    """Also of a dictionary, as long as studies keep them."""
    return SimpleNamespace(**snapshot) if isinstance(snapshot, Mapping) else snapshot


# ---- parts -------------------------------------------------------------------------------------------------------


def _heat(axis: Any, snapshot: Snapshot, floor: float, top: float) -> Any:
    density = np.asarray(snapshot.histogram, dtype=float)
    mean = np.asarray(snapshot.mean_cosine, dtype=float)
    layers = len(mean) - 1
    width = 1 / layers
    image = density_image(axis, density, top=top)
    halo = [matplotlib.patheffects.withStroke(linewidth=2.6, foreground="white")]
    split = layers if snapshot.final_norm else layers + 1
    axis.plot(np.arange(split) / layers, mean[:split], color=INK, lw=1.4, path_effects=halo)
    if split == layers:
        axis.axvline(1 - width / 2, color="white", lw=1)
        axis.plot(1, mean[-1], "o", color=INK, markeredgecolor="white", ms=4.5)
    axis.set_facecolor(matplotlib.colormaps[MAP](0.0))
    axis.set_ylim(floor, 1)
    axis.set_xlim(-width / 2, 1 + width / 2)
    axis.tick_params(labelsize=7)
    return image


def _dots(
    axis: Any,
    x: Sequence[float],
    values: Sequence[Sequence[float]],
    colour: str,
    *,
    joined: bool = False,
    label: str | None = None,
) -> None:
    """Every value a small open dot; the mean and its interval over them."""
    means = []
    for place, some in zip(x, values):
        known = [v for v in some if v is not None and math.isfinite(v)]
        axis.plot([place] * len(known), known, "o", color=colour, ms=3.5, mfc="white", zorder=4)
        means.append(float(np.mean(known)) if known else math.nan)
        if len(known) > 1:
            mean, half = student(known)
            axis.errorbar(place, mean, half, color=colour, capsize=3, lw=1.3, fmt="s", ms=4)
    if joined or label:
        axis.plot(x, means, color=colour, lw=1.2, alpha=0.8, label=label)


def _densities(snapshots: Sequence[Snapshot]) -> list[np.ndarray]:
    return [np.asarray(s.histogram, dtype=float) for s in snapshots]


def _bar(figure: Any, image: Any, axes: list[Any], cut: str) -> None:
    bar = figure.colorbar(image, ax=axes, extend="max" if cut else "neither", pad=0.02, shrink=0.9)
    bar.set_label(f"density of cosines{cut}", fontsize=8)
    bar.ax.tick_params(labelsize=7)


def _tidy(axis: Any, grid: str = "y") -> None:
    axis.grid(axis=grid, color="#dddddd", lw=0.7)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)


def _below(note: str) -> str:
    return f"\n{note}" if note else ""


def _number(value: float | None) -> str:
    return "–" if value is None or not math.isfinite(value) else f"{value:+.2f}".replace("-", "−")


def _count(number: float) -> str:
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:g}"
