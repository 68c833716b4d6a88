"""Charts of measurements: the density of cosines over depth, and how it changes along a row of results.

`heat_frame` and `heat_chart` describe one heatmap, for files and for the page; `trend_charts` a statistic along a
row of results. The others draw whole figures, with a CSV of the numbers beside a file; `where` is passed on to `draw`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..checks import check_choice
from ..files import finite
from ..words import amount, round_to, several, span
from .chart import FAINT, INK, PALETTE, Axis, Band, Chart, Frame, Heat, Remark, Rule, Series, look, with_intervals
from .draw import LETTERS, Strip, Where, draw
from .measured import Geometry, Short, histogram_quantiles

CLIP = 10.0  # the density at which the published figures cut the colour scale
DEPTH = "depth: layer / number of layers (right of a white line: after the final norm)"


def floor_of(densities: Iterable[np.ndarray]) -> float:
    """Return the lower end of the cosine axis, below which no state has 0.1 % of its mass."""
    lowest = 1.0
    for density in densities:
        share = np.cumsum(density, axis=1) / np.maximum(1e-9, density.sum(1, keepdims=True))
        lowest = min(lowest, 2 * float((share > 1e-3).argmax(1).min()) / density.shape[1] - 1)
    return max(-1.0, math.floor(lowest / 0.25) * 0.25)


def top_of(densities: Iterable[np.ndarray]) -> float:
    """Return the end of the colour scale: the largest density, but at most `CLIP`, and at most 1.5 × the median of the
    panels' largest, so that one narrow density (a model before training) does not leave the other panels dark."""
    peaks = [float(density.max()) for density in densities]
    return min(CLIP, float(math.ceil(min(max(peaks), 1.5 * float(np.median(peaks))))))


def density_of(result: Short, view: str = "pooled") -> np.ndarray:
    """Return (states, bins) over cosines −1 … 1; `view`: pooled, or released if that was measured."""
    check_choice("view", view, ("pooled", "released"))
    return np.asarray(getattr(result, "histogram" if view == "pooled" else "released_histogram"), dtype=float)


def heat_frame(
    result: Short, *, top: float, view: str = "pooled", relative: bool = False, spread: bool = True, **more: Any
) -> Frame:
    """Describe one heatmap: the density at every state (0 … L, or with `relative` 0 … 1), the mean and, with `spread`
    in the pooled view, the 5 and 95 % quantiles. A state after the final norm is normalised differently: the curve
    stops before it, and its mean is a marker by itself."""
    density = density_of(result, view)
    mean = np.array(result.mean_cosine, dtype=float)
    layers = len(mean) - 1
    x = (np.arange(layers + 1) / (layers if relative else 1)).tolist()
    split = layers if result.final_norm else layers + 1
    style: dict[str, Any] = {"colour": PALETTE[1], "halo": True}
    marks: list[Any] = [Heat(x, density, top)]
    marks.append(Series(x[:split], mean[:split], "mean", dash="solid", width=2.5, **style))
    if spread and view == "pooled":
        counts = np.rint(1000 * density)  # linear inside a bin of 1/32: good enough for a thin line
        table = getattr(result, "quantiles", None)
        table = np.array([histogram_quantiles(row) for row in counts]) if table is None else table
        for k, name in ((0, "5 % and 95 %"), (4, "")):
            marks.append(Series(x[:split], table[:split, k], name, PALETTE[1], dash="dot", width=1.8))
    if result.final_norm:
        marks.append(Series(x[-1:], mean[-1:], "after the final norm", symbol="circle", size=9, **style))
        before = getattr(result, "before_norm", None)
        if before is not None:
            words = "the same before it"
            marks.append(Series(x[-1:], [before.mean_cosine], words, PALETTE[1], symbol="circle", size=9, hollow=True))
    return Frame(marks, view, **more)


def heat_chart(
    title: str, frames: Sequence[Frame], results: Sequence[Short], *, floor: float, y: str = "", relative: bool = False
) -> Chart:
    """Put the frames of one or several results into one chart; without `y` a small chart with short axis titles."""
    layers = max(len(result.mean_cosine) - 1 for result in results)
    normed = any(result.final_norm for result in results)
    step = 1 / layers if relative else 1.0
    end = 1.0 if relative else float(layers)
    ends = f"0 = embedding, {layers} = after the final norm" if normed else "0 = embedding"
    name = "depth: layer / number of layers (0 = embedding layer)" if relative else f"layer ({ends})" if y else "layer"
    rules = [Rule(end - step / 2, colour="#ffffff", width=1.6)] if normed else []
    x = Axis(name, (-step / 2, end + step / 2), grid=False, whole=not relative)
    return Chart(title, x, Axis(y or "cosine", (floor, 1), grid=False), list(frames), rules, height=440 if y else 260)


def heat_rows(
    rows: Sequence[Sequence[tuple[str, Short]]], *, view: str = "pooled", spread: bool = False,
    floor: float | None = None,
) -> list[list[Chart]]:  # fmt: skip
    """Describe small heatmaps (title, result) on one scale, for a file."""
    densities = [density_of(result, view) for row in rows for _, result in row]
    lowest, top = floor_of(densities) if floor is None else floor, top_of(densities)

    def small(title: str, result: Short) -> Chart:
        frame = heat_frame(result, top=top, view=view, relative=True, spread=spread)
        chart = heat_chart(title, [frame], [result], floor=lowest, relative=True)
        chart.x.title = chart.y.title = ""  # the strip has common titles
        return chart

    return [[small(*panel) for panel in row] for row in rows]


def heatmap(result: Geometry, path: Where = None, *, view: str = "pooled", **where: Any) -> Any:
    """Density of cosines (colour) against depth, with the mean and the 5–95 % band. `view`: pooled, released."""
    densities = [density_of(result, view)]
    frame = heat_frame(result, top=top_of(densities), view=view, relative=True)
    title = f"{result.label} on {result.text}\n{result.verdict}".replace("; ", ";\n")  # as wide as the figure at most
    y_title = "cosine similarity of two tokens of a window"
    chart = heat_chart(title, [frame], [result], floor=floor_of(densities), y=y_title, relative=True)
    chart.legend = "lower right"
    strip = Strip([[chart]], (7.2, 4.8), _footnote(result, view))
    return draw([strip], path, name="heatmap.png", rows=_heatmap_rows([result], [result.label], view), **where)


def heatmaps(
    results: Sequence[Geometry], path: Where = None, *, view: str = "pooled", names: Sequence[str] | None = None,
    **where: Any,
) -> Any:  # fmt: skip
    """Draw several heatmaps side by side on one scale; `names` replace the models' own."""
    columns = min(4, len(results))
    names = [r.label for r in results] if names is None else names
    panels: list[tuple[str, Short]] = []
    for r, label in zip(results, _with_texts(results, names)):
        panels.append((f"{_wrap(label)}\nSpearman {span(r.spearman, *round_to(r.interval('spearman'), 12))}", r))
    rows = heat_rows([panels[i : i + columns] for i in range(0, len(panels), columns)], view=view, spread=True)
    rows[0][0].legend = "lower right"
    size = (3.1 * columns + 1.4, 3.1 * len(rows) + 0.9)
    strip = Strip(rows, size, DEPTH, "cosine similarity", shared=True)
    return draw([strip], path, name="heatmaps.png", rows=_heatmap_rows(results, names, view), **where)


def _with_texts(results: Sequence[Geometry], names: Sequence[str]) -> list[str]:
    """Add the texts to the names, if the texts differ."""
    one_text = len({r.text for r in results}) == 1
    return [name if one_text else f"{name}, {r.text}" for r, name in zip(results, names)]


def curve_chart(results: Sequence[Geometry], names: Sequence[str]) -> Chart:
    """Show the mean cosines of several results over depth in one chart, with 95 % intervals over windows; a curve stops
    before the final norm, as in a heatmap."""
    bands: list[Any] = []  # below all lines
    lines: list[Any] = []
    curves = _curves(results, names)
    for number, (row, label) in enumerate(zip(curves, _with_texts(results, names))):
        style = look(number)
        split = len(row) - 1 if results[number].final_norm else len(row)
        x, mean, low, high = ([one[key] for one in row] for key in ("depth", *MEAN))
        has_interval = len(results[number].per_window) > 1  # one window has no interval
        bands += [Band(x[:split], low[:split], high[:split], "", style["colour"], 0.2)] if has_interval else []
        lines.append(Series(x[:split], mean[:split], label, **style | {"symbol": None}))
        if results[number].final_norm:
            ends: dict[str, Any] = {"low": low[split:], "high": high[split:]} if has_interval else {}
            lines.append(Series(x[split:], mean[split:], **style | ends | {"dash": None}))
    x_axis = Axis("depth: layer / number of layers (0 = embedding layer)", (-0.03, 1.03))
    y_axis = Axis("mean cosine of two tokens")
    legend = "beside" if len(results) > 4 else "best"
    rows = finite([state for curve in curves for state in curve])
    return Chart("", x_axis, y_axis, [Frame([*bands, *lines])], legend=legend, rows=rows)


def curve_plot(results: Sequence[Geometry], path: Where = None, *, names: Sequence[str], **where: Any) -> Any:
    note = "bands: 95 % intervals over windows"
    if any(r.final_norm for r in results):
        note += "; points at the right: after the final norm"
    chart, width = curve_chart(results, names), 7.2
    if chart.legend == "beside":
        width += max(map(len, _with_texts(results, names))) / LETTERS
    return draw([Strip([[chart]], (width, 4.8), note)], path, name="curves.png", rows=chart.rows, **where)


MEAN = ("mean_cosine", "mean_cosine_low", "mean_cosine_high")


def _curves(results: Sequence[Geometry], names: Sequence[str]) -> list[list[dict[str, Any]]]:
    """Return for each result a list of rows, one per state."""
    curves = []
    for result, name in zip(results, names):
        values = np.stack([result.mean_cosine, *result.band], -1).tolist()  # NaN is a gap in a band
        rows = [{"state": i, "depth": i / result.layers} | dict(zip(MEAN, three)) for i, three in enumerate(values)]
        curves.append([{"model": name, "text": result.text} | row for row in rows])
    return curves


def _footnote(result: Geometry, view: str) -> str:
    record = result.record
    footnote = f"{several(record.windows_done, 'window')} × {record.settings['tokens']} tokens, "
    footnote += "all pairs of all windows" if view == "pooled" else "matrices averaged over windows, diagonal counted"
    if not record.complete:
        footnote += f"; INCOMPLETE, {record.settings['windows']} asked"
    if record.final_norm:
        footnote += "\nright of the white line: after the final norm, last_hidden_state; the others are before it"
    return footnote


def _heatmap_rows(results: Sequence[Geometry], names: Sequence[str], view: str) -> list[dict[str, Any]]:
    rows = []
    for result, name in zip(results, names):
        mean = result.mean_cosine
        for layer, row in enumerate(density_of(result, view)):
            base = {"model": name, "text": result.text, "state": layer, "depth": layer / result.layers}
            bins = {f"{-1 + (2 * b + 1) / len(row):.6f}": round(float(v), 6) for b, v in enumerate(row)}
            rows.append(base | {"mean_cosine": mean[layer]} | bins)
    return rows


def _wrap(title: str, width: int = 34) -> str:
    parts = title.split(", ", 1) if len(title) > width else [title]
    return "\n".join(part if len(part) <= width else part[: width - 1] + "…" for part in parts)


# ---- along a row of results ----


def trend_charts(rows: Sequence[Mapping[str, Any]], *, axis: str, paired: bool) -> list[Chart]:
    """Spearman and the mean cosine of the last states against size, checkpoint, text or model, with intervals."""
    places, labels, title = positions(rows, axis, paired)
    ticks = sorted(dict(reversed(list(zip(places, labels)))).items())
    x = Axis(title, ticks=ticks, scale="log" if axis == "size" and all(p > 0 for p in places) else "linear")
    charts = []
    for name, words in (("spearman", "Spearman of mean cosine with depth"), ("last", "mean cosine of the last states")):
        marks: list[Any] = []
        joined = not paired and axis in ("size", "checkpoint")
        every, texts = range(len(rows)), list(dict.fromkeys(row["text"] for row in rows))
        parts: list[tuple[str, Sequence[int]]] = [(words, every)]
        if paired:
            parts = [("first of the pair", every[::2]), ("second of the pair", every[1::2])]
        elif joined and len(texts) > 1:  # a line joins models on one text
            parts = [(text, [i for i in every if rows[i]["text"] == text]) for text in texts]
        for k in range(0, len(rows) if paired else 0, 2):
            ends = [rows[k][name], rows[k + 1][name]]
            marks.append(Series(places[k : k + 2], ends, colour=FAINT, dash="solid", width=1.5))
        for number, (label, indices) in enumerate(parts):
            chosen = sorted(indices, key=lambda i: places[i] if joined else i)
            shown = [rows[i] for i in chosen]
            text = [", ".join(str(row[key]) for key in ("model", "revision", "text") if row.get(key)) for row in shown]
            x_values = [places[i] for i in chosen]
            marks.append(with_intervals(x_values, shown, name, text=text, number=number, joined=joined, name=label))
        y = Axis(words, range=(-1.08, 1.08) if name == "spearman" else None)
        chart = Chart(
            words[0].upper() + words[1:], x, y, [Frame(marks)], height=340, legend="best" if len(parts) > 1 else ""
        )
        if name == "spearman":
            chart.rules = [Rule(0, "y", INK)]
            sides = (("condensing ↑", 3), ("dispersing ↓", -3))
            chart.remarks = [Remark(said, min(places), 0, shift=(-6, up)) for said, up in sides]
        charts.append(chart)
    return charts


def trend_plot(rows: Sequence[Mapping[str, Any]], path: Where = None, *, axis: str, paired: bool, **where: Any) -> Any:
    charts = trend_charts(rows, axis=axis, paired=paired)
    for chart in charts:
        chart.title = ""  # the axis says it
    note = "bars: 95 % intervals from a bootstrap over windows"
    room = max(0, max(len(label) for _, label in charts[0].x.ticks or ()) - 18) / LETTERS  # room for long labels
    return draw([Strip([charts], (8.4 + 2 * room, 4.2 + room), note)], path, name="trend.png", rows=rows, **where)


def positions(rows: Sequence[Mapping[str, Any]], axis: str, paired: bool) -> tuple[list[float], list[str], str]:
    """Return the places on the x axis, the tick labels and the axis title."""
    if axis == "size":
        sizes = [float(row["parameters"]) for row in rows]
        return sizes, [amount(size) for size in sizes], "parameters"
    key, title = {"checkpoint": ("revision", "checkpoint"), "text": ("text", "text")}.get(axis, ("model", "model"))
    labels = [str(row[key]).split(":")[0] if key == "text" else str(row[key]) for row in rows]
    order = list(dict.fromkeys(labels))  # a checkpoint on several texts has one place
    places = [i // 2 if paired else order.index(label) if axis == "checkpoint" else i for i, label in enumerate(labels)]
    width, longest = 18, max(map(len, labels))
    folders = len({_short(label, longest) for label in labels}) < len(set(labels))
    while width < longest and len({_short(label, width, folders) for label in labels}) < len(set(labels)):
        width += 1
    return list(map(float, places)), [_short(label, width, folders) for label in labels], title


def _short(label: str, width: int, folders: bool = False) -> str:
    """Shorten a label, but not the part in brackets, which tells apart two results of the same name; `folders`: nor
    leave out those in front of the name."""
    name, bracket, rest = label.partition(" (")
    name, room = name if folders else name.rsplit("/", maxsplit=1)[-1], max(4, width - len(bracket + rest))
    return (name if len(name) <= room else name[: room - 1] + "…") + bracket + rest
