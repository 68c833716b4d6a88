"""Draw charts with matplotlib: into a file, which is written under a temporary name and renamed (the same numbers give
the same bytes), on the caller's axes, or as a figure."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..files import AnyPath, atomic, file_in, write_csv
from ..words import amount, several
from .chart import DASHES, FAINT, INK, SYMBOLS, Axis, Band, Chart, Heat, Series

MAP = "viridis"
COLOURS = {INK: "black", FAINT: "#777777"}
DASH = dict(zip(DASHES, ("-", "--", ":", "-.", (0, (8, 3)), (0, (8, 2, 1, 2)))))
SYMBOL = dict(zip(SYMBOLS, "osD^xP"))
Where = AnyPath | None
VECTORS = ("svg", "pdf")
DPI = 160
POINTS = 0.62  # per pixel of the page
LETTERS, LINE = 16, 0.15  # tick labels: letters per inch, inches per line


@dataclass
class Strip:
    """Rows of charts, `size` inches in all, with common labels on the left and below; `shared`: with common axes."""

    rows: Sequence[Sequence[Chart]]
    size: tuple[float, float]
    x: str = ""
    y: str = ""
    shared: bool = False


def draw(
    strips: Sequence[Strip], path: Where = None, *, name: str = "figure.png", title: str | None = None, ax: Any = None,
    rows: Iterable[Mapping[str, Any]] | None = None,
) -> Any:  # fmt: skip
    """Draw strips below each other; `figures.plot` explains `path`, `ax`, `title` and the return value. `name` is the
    file's name if `path` is a folder (an existing one, or no suffix), and `rows` go into a CSV beside the file."""
    kind = "" if path is None or Path(path).is_dir() else Path(path).suffix.lstrip(".").lower()
    if kind and kind not in ("png", *VECTORS):
        raise ValueError(f"a figure must be .png, .svg or .pdf, got {os.fspath(path or '')!r}.")
    if path is not None and ax is not None:
        raise ValueError("a figure goes into a file or onto axes, got both path and ax: give one of them.")
    charts = [chart for strip in strips for row in strip.rows for chart in row]
    if title is not None and len(charts) == 1:
        charts[0].title = title
    figure = _figure(strips) if ax is None else _onto(ax, charts)
    if title is not None and len(charts) > 1:
        figure.suptitle(title, fontsize=10)
    if path is None:
        return figure if ax is None else ax
    target = file_in(path, name)
    if rows is not None:
        write_csv(target.with_suffix(".csv"), rows)
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind, {"Software": None})
    figure.set_dpi(DPI)
    with atomic(target) as temporary, _mpl().rc_context({"svg.hashsalt": "decondense"}):  # random ids otherwise
        if kind in VECTORS:
            figure.savefig(temporary, format=kind, metadata=metadata)
        else:
            figure.canvas.print_png(temporary, metadata=metadata)  # savefig would draw twice
    return target


def _mpl() -> Any:
    """Import matplotlib only when something is drawn: it takes half a second, which `decondense study list` saves."""
    import matplotlib.backends.backend_agg
    import matplotlib.figure
    import matplotlib.patheffects

    return matplotlib


def _figure(strips: Sequence[Strip]) -> Any:
    heights = [strip.size[1] for strip in strips]
    figure = _mpl().figure.Figure(figsize=(max(strip.size[0] for strip in strips), sum(heights)), layout="constrained")
    _mpl().backends.backend_agg.FigureCanvasAgg(figure)
    parts: Any = [figure] if len(strips) == 1 else figure.subfigures(len(strips), 1, height_ratios=heights)
    for part, strip in zip(parts, strips):
        grid = part.subplots(
            len(strip.rows), max(map(len, strip.rows)), sharex=strip.shared, sharey=strip.shared, squeeze=False
        )
        _strip(part, strip, grid)
    return figure


def _onto(ax: Any, charts: list[Chart]) -> Any:
    axes = np.array(ax, dtype=object).reshape(1, -1)
    if axes.size != len(charts):
        raise ValueError(f"this figure has {several(len(charts), 'panel')}: ax must be as many axes, got {axes.size}.")
    _strip(axes[0, 0].figure, Strip([charts], (0, 0)), axes)
    return axes[0, 0].figure


def _strip(part: Any, strip: Strip, axes: np.ndarray) -> None:
    heats: list[Heat] = []
    image = None
    for line, charts in zip(axes, strip.rows):
        for axis, chart in zip(line, charts):
            for mark in chart.frames[-1].marks:
                if isinstance(mark, Heat):
                    heats.append(mark)
                    image = _heat(axis, mark)
                elif isinstance(mark, Band):
                    axis.fill_between(mark.x, mark.low, mark.high, color=mark.colour, alpha=mark.opacity, lw=0)
                else:
                    _series(axis, mark)
            _chart(axis, chart, 8 if strip.shared or axes.shape[1] > 2 else 9)
        for axis in line[len(charts) :]:
            axis.set_visible(False)
    if strip.x:
        part.supxlabel(strip.x, fontsize=8)
    if strip.y:
        part.supylabel(strip.y, fontsize=8)
    if heats:
        top = heats[0].top
        cut = any(heat.density.max() > top for heat in heats)
        bar = part.colorbar(image, ax=list(axes.flat), extend="max" if cut else "neither", pad=0.02, shrink=0.9)
        bar.set_label("density of cosines" + (f" (cut at {top:g})" if cut else ""), fontsize=8)
        bar.ax.tick_params(labelsize=7)


def _chart(axis: Any, chart: Chart, size: int) -> None:
    for box in chart.boxes:
        if box.y is None:
            axis.axvspan(*box.x, color=_colour(box.colour), alpha=box.opacity, lw=0)
        else:
            corner, extent = (box.x[0], box.y[0]), (box.x[1] - box.x[0], box.y[1] - box.y[0])
            style = {"color": _colour(box.colour), "alpha": box.opacity, "lw": 0, "zorder": 0}
            axis.add_patch(_mpl().patches.Rectangle(corner, *extent, **style))
    for rule in chart.rules:
        line = axis.axvline if rule.axis == "x" else axis.axhline
        line(rule.at, color=_colour(rule.colour), lw=POINTS * rule.width, ls=DASH[rule.dash], zorder=1)
    for remark in chart.remarks:
        axis.annotate(
            remark.words, (remark.x, remark.y), remark.shift, textcoords="offset points", fontsize=8,
            color=_colour(remark.colour), ha=remark.align, va="bottom" if remark.shift[1] > 0 else "top",
        )  # fmt: skip
    for place, words in chart.right:
        axis.text(1.02, place, words, transform=axis.get_yaxis_transform(), va="center", fontsize=8, color="#444444")
    if chart.right_title:
        axis.set_title(chart.right_title, fontsize=8, loc="right")
    axis.set_title(chart.title, fontsize=size + 1, loc="left")
    axis.tick_params(labelsize=size - 1)
    _axis(axis, "x", chart.x, size)
    _axis(axis, "y", chart.y, size)
    axis.set_axisbelow(True)
    heat = any(isinstance(mark, Heat) for mark in chart.frames[-1].marks)
    if not heat:
        axis.spines[["top", "right"]].set_visible(False)
    if chart.legend and axis.get_legend_handles_labels()[0]:
        placement: dict[str, Any] = {"loc": chart.legend}
        if chart.legend == "beside":
            placement = {"loc": "upper left", "bbox_to_anchor": (1.01, 1)}
        elif heat and chart.rules:  # do not hide the one state right of the line
            left, right = axis.get_xlim()[0], chart.rules[0].at
            placement |= {"bbox_to_anchor": (left, 0, right - left, 1), "bbox_transform": axis.get_xaxis_transform()}
        axis.legend(fontsize=size - 1, framealpha=0.9, **placement)


def _axis(axis: Any, side: str, described: Axis, size: int) -> None:
    getattr(axis, f"set_{side}label")(described.title, fontsize=size)
    if described.scale != "linear":
        threshold = {"linthresh": 0.1} if described.scale == "symlog" else {}
        getattr(axis, f"set_{side}scale")(described.scale, **threshold)
    if described.ticks is not None:
        places = [place for place, _ in described.ticks]
        getattr(axis, f"set_{side}ticks")(places, [label for _, label in described.ticks], fontsize=8)
        axis.minorticks_off()
    elif described.amounts:
        axis.xaxis.set_major_formatter(lambda value, _: amount(value))
    elif described.whole:
        places = _mpl().ticker.MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True)
        getattr(axis, f"{side}axis").set_major_locator(places)
    if described.range is not None:
        axis.set(**{f"{side}lim": described.range})
    elif side == "x":
        axis.margins(x=0.08)
    if described.ticks and side == "x":
        _turn(axis, described.ticks)
    if described.grid:
        axis.grid(axis=side, color="#dddddd", lw=0.7)


def _turn(axis: Any, ticks: Sequence[tuple[float, str]]) -> None:
    """Slant the labels below an axis if they do not fit side by side, turn them vertical if they do not fit slanted,
    and leave some out if they do not fit vertically either."""
    inches = axis.get_xaxis_transform().transform([(place, 0) for place, _ in ticks])[:, 0] / axis.figure.dpi
    inches_sorted, places, labels = zip(*sorted((x, *tick) for x, tick in zip(inches, ticks)))
    widths = [max(map(len, label.splitlines() or [""])) / LETTERS for label in labels]
    gaps = np.diff(inches_sorted)
    overlap = any(here + there > 2 * gap for here, there, gap in zip(widths, widths[1:], gaps))
    if not overlap and len(widths) * max(widths) <= axis.get_window_extent().width / axis.figure.dpi:
        return
    last, shown = -math.inf, []
    for x, label in zip(inches_sorted, labels):
        shown.append(label if x - last > LINE else "")
        last = x if shown[-1] else last
    slanted = min(gaps, default=math.inf) > 2 * LINE
    axis.set_xticks(places, shown, fontsize=8, **({"rotation": 30, "ha": "right"} if slanted else {"rotation": 90}))


def _heat(axis: Any, heat: Heat) -> Any:
    width = heat.x[1] - heat.x[0]
    axis.set_facecolor(_mpl().colormaps[MAP](0.0))
    return axis.imshow(
        np.minimum(heat.density, heat.top).T, origin="lower", aspect="auto", cmap=MAP, vmin=0, vmax=heat.top,
        extent=(heat.x[0] - width / 2, heat.x[-1] + width / 2, -1, 1), interpolation="nearest",
    )  # fmt: skip


def _series(axis: Any, series: Series) -> None:
    x, y = (np.array(values, dtype=float) for values in (series.x, series.y))  # None is NaN, a gap
    colour = _colour(series.colour)
    if series.low is not None and series.high is not None:
        along, side, cap = (x, "xerr", 0) if series.across else (y, "yerr", 3)
        ends = [np.array(end, dtype=float) for end in (series.low, series.high)]
        reach = np.nan_to_num(np.stack([along - ends[0], ends[1] - along])).clip(0)
        axis.errorbar(x, y, **{side: reach}, fmt="none", ecolor=colour, elinewidth=1.3, capsize=cap)
    fill, edge = "white" if series.hollow else colour, "white" if series.halo else colour
    style: dict[str, Any] = {"color": colour, "mfc": fill, "mec": edge, "lw": POINTS * series.width}
    style |= {"ls": DASH[series.dash], "zorder": 3} if series.dash else {"ls": "", "zorder": 4}
    if series.halo and series.dash:
        style["path_effects"] = [_mpl().patheffects.withStroke(linewidth=3, foreground="white")]
    sizes = series.size if isinstance(series.size, Sequence) else [series.size]
    symbols = [series.symbol] if series.symbol is None or isinstance(series.symbol, str) else series.symbol
    uniform = len(sizes) == len(symbols) == 1
    for k in range(1 if uniform else len(x)):
        points = slice(None) if uniform else slice(k, k + 1)
        marker = {"marker": SYMBOL.get(symbols[k % len(symbols)] or "", ""), "ms": POINTS * sizes[k % len(sizes)]}
        label = series.name if k == 0 and series.name else None
        axis.plot(x[points], y[points], label=label, **style, **marker)


def _colour(name: str) -> str:
    return COLOURS.get(name, name)
