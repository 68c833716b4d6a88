"""Plotly charts of condensation: heatmaps, curves over depth, trends. They are descriptions; plotly.js draws them.

Colours: viridis, and the Okabe–Ito palette with a dash or a symbol of its own for each series, so that nothing is said
by hue alone. Three stand-ins are replaced by the colours of the light or dark page when it is drawn: ``INK``,
``FAINT`` and ``PAPER``.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import plotly.graph_objects as go
from scipy import stats

from ..figures.heat_scale import floor_of, top_of
from ..figures.palette import PALETTE
from ..meter.result import Condensation
from .section import Chart, Frame, Panel, Table, shorts, span

__all__ = [
    "VIEWS",
    "Geometry",
    "depth_curve",
    "heat_frames",
    "heat_panel",
    "heatmap",
    "layout",
    "plain",
    "run_line",
    "scale_of",
    "trend_charts",
]

INK, FAINT, PAPER = "#010101", "#808081", "#fefefe"
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "cross")
VIEWS = [("pooled", "pooled: all pairs of all windows"), ("released", "released: matrices averaged first")]
VIRIDIS_ZERO = "#440154"
QUIET = {"hoverinfo": "skip"}


class Geometry(Protocol):
    """What a heatmap is drawn from: a measurement, or what a study keeps of one. ``record`` says whether there is a
    ``final_norm``, and whether there is a ``released_histogram`` too."""

    @property
    def record(self) -> dict[str, Any]: ...
    @property
    def layers(self) -> int: ...
    @property
    def histogram(self) -> np.ndarray: ...
    @property
    def mean_cosine(self) -> np.ndarray: ...
    @property
    def quantiles(self) -> np.ndarray: ...
    @property
    def before_norm(self) -> dict[str, Any] | None: ...


def plain(text: Any) -> str:
    """Text that plotly shows as it is: its labels know a little HTML, which a name must not be able to use."""
    return html.escape(" ".join(str(text).split()), quote=False)


def unfilled(text: Any) -> str:
    """The same where plotly also fills %{…}, in hover texts and in the names of traces that have a ``meta``: a name
    must not be able to ask for that."""
    return plain(text).replace("%{", "%\u200b{")


def style(number: int) -> tuple[str, str, str]:
    """Colour, dash and symbol of the n-th series: no two alike among the first 48."""
    turn = number % len(PALETTE) + number // len(PALETTE)
    return PALETTE[number % len(PALETTE)], DASHES[turn % len(DASHES)], SYMBOLS[turn % len(SYMBOLS)]


def layout(**options: Any) -> dict[str, Any]:
    """Checked by plotly, without its template: the page brings fonts and colours."""
    base: dict[str, Any] = {
        "margin": {"l": 56, "r": 16, "t": 12, "b": 48},
        "hoverlabel": {"align": "left", "namelength": -1},
    }
    return go.Layout(**(base | options)).to_plotly_json()


def scatter(x: Sequence[Any], y: Sequence[Any], **options: Any) -> dict[str, Any]:
    """Plotly checks the description; the numbers are added after, as it copies every one of them several times."""
    return go.Scatter(**options).to_plotly_json() | {"x": list(x), "y": list(y)}


# -- heatmaps ------------------------------------------------------------------------------------------------


def heatmap(
    title: str, frames: Sequence[Frame], results: Sequence[Geometry], *, small: bool = False, floor: float
) -> Chart:
    """The frames of one or several results as one chart; ``results`` says how deep and whether a norm comes last."""
    layers = max(result.layers for result in results)
    normed = any(result.record["final_norm"] for result in results)
    ends = f"0 = embedding, {layers} = after the final norm" if normed else "0 = embedding"
    shapes = []
    if normed:
        shapes.append({"type": "line", "x0": layers - 0.5, "x1": layers - 0.5, "yref": "paper", "y0": 0, "y1": 1})
        shapes[-1]["line"] = {"color": "white", "width": 1.5}
    description = layout(
        xaxis={"title": {"text": "layer" if small else f"layer ({ends})"}, "range": [-0.5, layers + 0.5]},
        yaxis={"title": {"text": "cosine" if small else "cosine of two tokens"}, "range": [floor, 1]},
        plot_bgcolor=VIRIDIS_ZERO,
        shapes=shapes,
        showlegend=not small,
    )
    for axis in ("xaxis", "yaxis"):
        description[axis] |= {"showgrid": False, "zeroline": False}
    return Chart(title, description, list(frames), height=260 if small else 440)


def heat_panel(
    rows: Sequence[tuple[str, Sequence[tuple[int | None, str, Geometry, str]]]],
    title: str,
    note: str,
    *,
    views: Sequence[tuple[str, str]] = (),
    slider: str = "Training step",
) -> Panel:
    """A heatmap per row on one scale, and one slider for all: each shows its last state up to that step. Rows are a
    title and (step, words for the slider, geometry, caption)."""
    results = [result for _, row in rows for _, _, result, _ in row]
    floor, top = scale_of(results)
    charts = []
    labels: dict[int, str] = {}
    for name, row in rows:
        frames = []
        for step, words, result, caption in row:
            if step is not None:
                labels[step] = words
            frames += heat_frames(result, top=top, step=step, caption=caption)
        own = [result for _, _, result, _ in row]
        charts.append(heatmap(name, frames, own, small=len(rows) > 1, floor=floor))
    steps = [(step, labels[step]) for step in sorted(labels)]
    return Panel(charts, title, note, list(views), steps, small=len(rows) > 1, slider=slider)


def heat_frames(result: Geometry, *, top: float, step: int | None = None, caption: str = "") -> list[Frame]:
    """One frame for each view that was measured."""
    frames = []
    for view, _ in VIEWS:
        if view == "released" and "released_histogram" not in result.record:
            continue
        data = [_density_trace(density(result, view), top), *_overlay(result, view)]
        frames.append(Frame(data, view, step, caption))
    return frames


def density(result: Geometry, view: str) -> np.ndarray:
    return getattr(result, "histogram" if view == "pooled" else "released_histogram")


def _density_trace(values: np.ndarray, top: float) -> dict[str, Any]:
    """values (L+1, bins). Bins that are empty at every layer are left out at both ends: the background has the colour
    of zero. Three decimals."""
    bins = values.shape[1]
    rounded = values.round(3)
    used = np.flatnonzero(rounded.any(0))
    first, last = (int(used[0]), int(used[-1])) if len(used) else (0, bins - 1)
    centres = -1 + (2 * np.arange(bins) + 1) / bins
    trace = go.Heatmap(
        zmin=0,
        zmax=top,
        colorscale="Viridis",
        colorbar={"title": {"text": "density", "side": "right"}, "thickness": 12, "outlinewidth": 0},
        hovertemplate="layer %{x}<br>cosine %{y:.3f}<br>density %{z:.3f}<extra></extra>",
    ).to_plotly_json()
    # "0" and not "0.0": most bins are empty
    z = [[int(v) if v == int(v) else v for v in row] for row in rounded.T[first : last + 1].tolist()]
    y = [round(float(c), 6) for c in centres[first : last + 1]]
    return trace | {"x": list(range(len(values))), "y": y, "z": z}


def _overlay(result: Geometry, view: str) -> list[dict[str, Any]]:
    """The mean, and for the pooled view the 5 and 95 % quantiles. The last state has another normalisation, so the
    curve stops before it and it stands by itself."""
    layers = result.layers
    split = layers if result.record["final_norm"] else layers + 1
    x = list(range(split))
    mean = shorts(result.mean_cosine, 4)
    traces = [
        scatter(x, mean[:split], mode="lines", line={"color": "white", "width": 5}, showlegend=False, **QUIET),
        scatter(x, mean[:split], mode="lines", line={"color": PALETTE[1], "width": 2.5}, name="mean", **QUIET),
    ]
    if view == "pooled":
        for k, name in ((0, "5 % and 95 %"), (4, None)):
            line = {"color": "white", "width": 1.2, "dash": "dot"}
            y = shorts(result.quantiles[:split, k], 4)
            traces.append(scatter(x, y, mode="lines", line=line, name=name, showlegend=False, **QUIET))
    if result.record["final_norm"]:
        marker = {"color": PALETTE[1], "size": 9, "line": {"color": "white", "width": 1.5}}
        traces.append(
            scatter([layers], [mean[layers]], mode="markers", marker=marker, name="after the final norm", **QUIET)
        )
        before = result.before_norm
        if before is not None:
            marker = {"color": "white", "size": 9, "line": {"color": PALETTE[1], "width": 2}}
            y = shorts([before["mean_cosine"]], 4)
            traces.append(scatter([layers], y, mode="markers", marker=marker, name="the same before it", **QUIET))
    return traces


def scale_of(results: Sequence[Geometry]) -> tuple[float, float]:
    """Where the axis begins, for every view that was measured, and where the colours end, for the pooled one."""
    views = [
        density(result, view)
        for result in results
        for view, _ in VIEWS
        if view == "pooled" or "released_histogram" in result.record
    ]
    return floor_of(views), top_of([density(result, "pooled") for result in results])


def depth_curve(result: Condensation) -> Chart:
    """Mean cosine against layer: its 95 % interval over windows, the range of the cosines, and the mean without the
    3 strongest dimensions."""
    layers = result.layers
    split = layers if result.record["final_norm"] else layers + 1
    x = list(range(split))
    mean, low, high = mean_interval(result)
    quantiles = result.quantiles
    bare = np.minimum(result.values("mean_cosine_without_variance3"), result.values("mean_cosine_without_cosine3"))
    none = {"width": 0}
    traces = [
        scatter(x, shorts(quantiles[:split, 4], 4), mode="lines", line=none, showlegend=False, **QUIET),
        scatter(
            x, shorts(quantiles[:split, 0], 4), mode="lines", line=none, fill="tonexty", name="5–95 % of the cosines",
            fillcolor="rgba(128,128,129,0.18)", **QUIET,
        ),
    ]  # fmt: skip
    if low is not None and high is not None:
        traces += [
            scatter(x, shorts(high[:split]), mode="lines", line=none, showlegend=False, **QUIET),
            scatter(
                x, shorts(low[:split]), mode="lines", line=none, fill="tonexty", name="95 % interval of the mean",
                fillcolor="rgba(0,114,178,0.35)", **QUIET,
            ),
        ]  # fmt: skip
    hover = "layer %{x}<br>%{customdata}<extra></extra>"
    words = [
        span(mean[i], None if low is None else low[i], None if high is None else high[i], 3) for i in range(layers + 1)
    ]
    blue = {"color": PALETTE[0], "width": 2.5}
    traces.append(
        scatter(
            x, shorts(mean[:split]), mode="lines", line=blue, name="mean", hovertemplate=hover,
            customdata=[f"mean {w}" for w in words[:split]],
        )
    )  # fmt: skip
    dotted = {"color": PALETTE[1], "width": 2, "dash": "dash"}
    texts = [f"without 3 dimensions {span(v, None, None, 3)}" for v in bare[:split]]
    traces.append(
        scatter(x, shorts(bare[:split]), mode="lines", line=dotted, name="mean without the 3 strongest dimensions",
                customdata=texts, hovertemplate=hover)
    )  # fmt: skip
    if result.record["final_norm"]:
        points = [(mean[layers], words[layers], PALETTE[0], "after the final norm")]
        before = result.before_norm
        if before is not None:
            points.append(
                (before["mean_cosine"], span(before["mean_cosine"], None, None, 3), PAPER, "the same before it")
            )
        for value, text, fill, name in points:
            marker = {"color": fill, "size": 9, "line": {"color": PALETTE[0], "width": 2}}
            traces.append(
                scatter(
                    [layers], shorts([value]), mode="markers", marker=marker, name=name, hovertemplate=hover,
                    customdata=[f"{name}: {text}"],
                )
            )  # fmt: skip
    description = layout(
        xaxis={"title": {"text": "layer (0 = embedding)"}, "range": [-0.5, layers + 0.5]},
        yaxis={"title": {"text": "cosine of two tokens"}},
    )
    return Chart("Mean cosine over depth", description, [Frame(traces)], height=400, table=states_table(result))


def mean_interval(result: Condensation) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    """The mean over windows of each state's mean cosine, with the 95 % interval of a mean, m ± t · s/√n."""
    windows = result.per_window
    mean = result.mean_cosine
    n = len(windows)
    if n < 2:
        return mean, None, None
    reach = stats.t.ppf(0.975, n - 1) * windows.std(0, ddof=1) / math.sqrt(n)
    return mean, mean - reach, mean + reach


def states_table(result: Condensation) -> Table:
    """Every number of every hidden state."""
    _, low, high = mean_interval(result)
    rows: list[list[Any]] = []
    columns: list[str] = []
    for number, state in enumerate(result.record["states"]):
        flat = state.row()
        inside = low is not None and high is not None and number <= result.layers
        flat |= {"mean_low": low[number] if inside else None, "mean_high": high[number] if inside else None}  # type: ignore[index]
        columns = columns or list(flat)
        rows.append([flat[c] if isinstance(flat[c], str) else shorts([flat[c]])[0] for c in columns])
    return Table("Every hidden state", columns, rows, folded=True)


# -- a statistic along a row of results ----------------------------------------------------------------------


def trend_charts(rows: Sequence[dict[str, Any]], *, axis: str, paired: bool, table: Table) -> list[Chart]:
    """Spearman and the mean cosine of the last states against size, checkpoint, text or model, with intervals."""
    places, labels, title = _positions(rows, axis, paired)
    log = axis == "size" and all(p > 0 for p in places)
    ticks: dict[str, Any] = {"title": {"text": title}, "tickvals": sorted(set(places))}
    ticks["ticktext"] = [plain(labels[places.index(p)]) for p in ticks["tickvals"]]
    if log:
        ticks["type"] = "log"
    charts = []
    for name, words in (("spearman", "Spearman of mean cosine with depth"), ("last", "mean cosine of the last states")):
        traces = []
        parts = (("first of the pair", 0, 2), ("second of the pair", 1, 2)) if paired else ((words, 0, 1),)
        for number, (label, start, stride) in enumerate(parts):
            chosen = list(range(start, len(rows), stride))
            joined = not paired and axis in ("size", "checkpoint")
            if joined:
                chosen.sort(key=lambda i: places[i])
            traces.append(
                interval_trace(
                    [places[i] for i in chosen],
                    [rows[i] for i in chosen],
                    name,
                    label=label,
                    colour=number,
                    text=[_row_name(rows[i]) for i in chosen],
                    lines=joined,
                )
            )
        charts.append(
            Chart(
                words[0].upper() + words[1:],
                layout(
                    xaxis=ticks,
                    yaxis={"title": {"text": words}} | ({"range": [-1.08, 1.08]} if name == "spearman" else {}),
                    showlegend=paired,
                ),
                [Frame(traces)],
                height=340,
                table=table,
            )
        )
    return charts


def run_line(
    x: Sequence[Any],
    y: Sequence[Any],
    *,
    label: str,
    arm: str,
    number: int,
    first: bool,
    hover: str,
    marker: dict[str, Any] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """A curve of one run: seeds of an arm share its ``number``, and so colour, dash and entry of the legend, which the
    first of them brings."""
    shade, dash, symbol = style(number)
    given: dict[str, Any] = {
        "mode": "lines",
        "name": unfilled(arm),
        "meta": label,
        "legendgroup": str(number),
        "showlegend": first,
        "line": {"color": shade, "width": 1.6, "dash": dash},
        "marker": {"color": shade, "symbol": symbol, "size": 7} | (marker or {}),
        "hovertemplate": f"{unfilled(label)}<br>{hover}<extra></extra>",
    }
    return scatter(x, y, **(given | options))


def interval_trace(
    x: Sequence[Any],
    rows: Sequence[dict[str, Any]],
    name: str,
    *,
    label: str,
    colour: int,
    text: Sequence[str],
    lines: bool,
) -> dict[str, Any]:
    """Values with their intervals: rows hold ``name``, ``name_low`` and ``name_high``."""
    values = [row[name] for row in rows]
    ends = [(row.get(f"{name}_low"), row.get(f"{name}_high")) for row in rows]
    reach = [
        (0.0, 0.0) if v is None or low is None or high is None else (max(0.0, v - low), max(0.0, high - v))
        for v, (low, high) in zip(values, ends)
    ]
    shade, dash, symbol = style(colour)
    said = [f"{plain(t)}<br>{span(v, *e)}" for t, v, e in zip(text, values, ends)]
    return scatter(
        x,
        shorts(values),
        mode="lines+markers" if lines else "markers",
        name=plain(label),
        marker={"color": shade, "size": 9, "symbol": symbol},
        line={"color": shade, "width": 1.5, "dash": dash},
        error_y={
            "type": "data",
            "symmetric": False,
            "array": shorts(r[1] for r in reach),
            "arrayminus": shorts(r[0] for r in reach),
            "thickness": 1.5,
            "color": shade,
        },
        customdata=said,
        hovertemplate="%{customdata}<extra></extra>",
    )


def _positions(rows: Sequence[dict[str, Any]], axis: str, paired: bool) -> tuple[list[float], list[str], str]:
    from .section import amount

    if axis == "size":
        sizes = [float(row["parameters"]) for row in rows]
        return sizes, [amount(size) for size in sizes], "parameters"
    names = {
        "checkpoint": ([str(row["revision"]) for row in rows], "checkpoint"),
        "text": ([str(row["text"]).split(":")[0] for row in rows], "text"),
    }
    labels, title = names.get(axis, ([_short(str(row["model"])) for row in rows], "model"))
    places = [float(i // 2 if paired else i) for i in range(len(rows))]
    return places, labels, title


def _short(label: str, width: int = 18) -> str:
    label = label.rsplit("/", maxsplit=1)[-1]
    return label if len(label) <= width else label[: width - 1] + "…"


def _row_name(row: dict[str, Any]) -> str:
    parts = [row["model"], row.get("revision"), row.get("text")]
    return ", ".join(str(part) for part in parts if part)
