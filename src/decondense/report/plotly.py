"""A chart in the form that plotly.js takes: the layout, and the traces of every frame. Plain dictionaries.

INK, FAINT and PAPER have stand-in colours, which page.js replaces by those of the light or dark page.
"""

from __future__ import annotations

import html
import textwrap
from typing import Any

import numpy as np

from ..figures.chart import FAINT, INK, Axis, Band, Chart, Frame, Heat, Series, Values
from ..words import round_to

COLOURS = {INK: "#010101", FAINT: "#808081"}
PAPER = "#fefefe"
VIRIDIS_ZERO = "#440154"
FIELDS = {"label": "meta", "of": "customdata"}
QUIET = {"hoverinfo": "skip"}


def plain(text: Any) -> str:
    """Escape text so that plotly shows it unchanged: plotly renders some HTML, which a name must not be able to use."""
    return html.escape(" ".join(str(text).split()), quote=False)


def unfilled(text: Any) -> str:
    """Escape text where plotly also fills in %{…}, which a name must not be able to use either: in hover texts, and in
    the names of traces with a `meta`."""
    return plain(text).replace("%{", "%\u200b{")


def columns(chart: Chart) -> dict[str, str] | None:
    """Return the fields of the traces that are columns of the CSV, with the columns' names."""
    return {FIELDS.get(key, key): name for key, name in chart.columns.items()} or None


def layout(chart: Chart) -> dict[str, Any]:
    """Return plotly's layout, without fonts and colours, which the page sets."""
    named = {s.name for f in chart.frames for s in f.marks if isinstance(s, (Series, Band)) and s.name}
    heat = isinstance(chart.frames[0].marks[0], Heat)
    described: dict[str, Any] = {
        "margin": {"l": 16 if chart.y.ticks else 56, "r": 16, "t": 12, "b": 48},
        "hoverlabel": {"align": "left", "namelength": -1},
        "xaxis": _in_lines(_axis(chart.x)) | (_whole(chart) if chart.x.whole else {}),
        "yaxis": _axis(chart.y),
        "shapes": _shapes(chart),
        "showlegend": chart.height > 260 if heat else bool(chart.legend) or len(named) > 1,
    }
    return described | ({"plot_bgcolor": VIRIDIS_ZERO} if heat else {})


def _axis(axis: Axis) -> dict[str, Any]:
    described: dict[str, Any] = {"title": {"text": plain(axis.title)}}
    if axis.range is not None:
        described["range"] = round_to(axis.range)
    if axis.scale == "log":
        described["type"] = "log"
    if axis.ticks is not None:
        described |= {"tickvals": [place for place, _ in axis.ticks], "automargin": True}
        described["ticktext"] = [plain(label) for _, label in axis.ticks]
    return described if axis.grid else described | {"showgrid": False, "zeroline": False}


def _whole(chart: Chart) -> dict[str, Any]:
    """Ask for a tick per whole number where plotly would put more; with many it takes fewer by itself."""
    places = [float(x) for frame in chart.frames for mark in frame.marks for x in mark.x]
    low, high = chart.x.range or (min(places, default=0.0), max(places, default=0.0))
    return {"dtick": 1} if high - low <= 20 else {}


def _in_lines(axis: dict[str, Any]) -> dict[str, Any]:
    """Wrap tick labels. Plotly would hide those that reach beyond the chart, and lose the axis title with the last."""
    if "ticktext" not in axis:
        return axis
    lines = [textwrap.wrap(label, 20, break_long_words=False, break_on_hyphens=False) for label in axis["ticktext"]]
    return axis | {"ticktext": ["<br>".join(some) for some in lines], "ticklabeloverflow": "allow"}


def _shapes(chart: Chart) -> list[dict[str, Any]]:
    shapes: list[dict[str, Any]] = []
    for box in chart.boxes:
        y = {"yref": "paper", "y0": 0, "y1": 1} if box.y is None else {"y0": box.y[0], "y1": box.y[1]}
        style = {"fillcolor": _colour(box.colour), "opacity": box.opacity, "line": {"width": 0}, "layer": "below"}
        shapes.append({"type": "rect", "x0": round_to(box.x[0]), "x1": round_to(box.x[1])} | y | style)
    for rule in chart.rules:
        along, other = ("x", "y") if rule.axis == "x" else ("y", "x")
        ends = {f"{along}0": round_to(rule.at), f"{along}1": round_to(rule.at), f"{other}0": 0, f"{other}1": 1}
        line = {"color": _colour(rule.colour), "width": rule.width, "dash": rule.dash}
        shapes.append({"type": "line", f"{other}ref": "paper", "line": line} | ends)
    return shapes


def traces(frame: Frame) -> list[dict[str, Any]]:
    drawn: list[dict[str, Any]] = []
    groups: set[str] = set()
    for mark in frame.marks:
        if isinstance(mark, Heat):
            drawn.append(_heat(mark))
        elif isinstance(mark, Band):
            drawn += _band(mark)
        else:
            if mark.halo and mark.dash:
                under = Series(mark.x, mark.y, colour="#ffffff", dash="solid", width=2 * mark.width)
                drawn.append(_series(under) | {"showlegend": False})
            shown = bool(mark.name) and mark.group not in groups
            drawn.append(_series(mark) | {"showlegend": shown})
            groups |= {mark.group} if mark.group else set()
    return drawn


def _heat(heat: Heat) -> dict[str, Any]:
    """Leave out bins at both ends that are empty at every layer: the background has the colour of zero. Three decimals,
    and "0" instead of "0.0", as most bins are empty."""
    bins = heat.density.shape[1]
    rounded = heat.density.round(3)
    used = np.flatnonzero(rounded.any(0))
    first, last = (int(used[0]), int(used[-1])) if len(used) else (0, bins - 1)
    centres = -1 + (2 * np.arange(bins) + 1) / bins
    return {
        "type": "heatmap",
        "zmin": 0,
        "zmax": heat.top,
        "colorscale": "Viridis",
        "colorbar": {"title": {"text": "density", "side": "right"}, "thickness": 12, "outlinewidth": 0},
        "hovertemplate": "layer %{x}<br>cosine %{y:.3f}<br>density %{z:.3f}<extra></extra>",
        "x": list(range(len(rounded))),
        "y": [round(float(c), 6) for c in centres[first : last + 1]],
        "z": [[int(v) if v == int(v) else v for v in row] for row in rounded.T[first : last + 1].tolist()],
    }


def _band(band: Band) -> list[dict[str, Any]]:
    base: dict[str, Any] = {"type": "scatter", "mode": "lines", "x": list(band.x), "line": {"width": 0}, **QUIET}
    red, green, blue = bytes.fromhex(_colour(band.colour)[1:])
    see_through = f"rgba({red},{green},{blue},{band.opacity})"
    fill = {"fill": "tonexty", "name": plain(band.name), "fillcolor": see_through}
    upper, lower = (_numbers(values, 5) for values in (band.high, band.low))
    return [base | {"y": upper, "showlegend": False}, base | fill | {"y": lower}]


def _series(series: Series) -> dict[str, Any]:
    colour = _colour(series.colour)
    modes = [word for word, there in (("lines", series.dash), ("markers", series.symbol is not None)) if there]
    trace: dict[str, Any] = {"type": "scatter", "mode": "+".join(modes)}
    trace |= {"x": _numbers(series.x), "y": _numbers(series.y)}
    if series.name:
        trace["name"] = unfilled(series.name)
    if series.dash:
        trace["line"] = {"color": colour, "width": series.width, "dash": series.dash}
    if series.symbol is not None:
        width = 2 if series.hollow else 1.5 if series.halo else 0
        edge = {"color": "#ffffff" if series.halo else colour, "width": width}
        fill = PAPER if series.hollow else colour
        trace["marker"] = {"color": fill, "size": series.size, "symbol": series.symbol, "opacity": 1, "line": edge}
    if series.label:
        trace["meta"] = series.label
    if series.group:
        trace["legendgroup"] = series.group
    if series.of is not None:
        trace["customdata"] = [_lines(entry) if isinstance(entry, str) else entry for entry in series.of]
    if series.low is not None and series.high is not None:
        trace["error_x" if series.across else "error_y"] = _errors(series, colour)
    return trace | (_hover(series) if series.hover else QUIET)


def _errors(series: Series, colour: str) -> dict[str, Any]:
    along = series.x if series.across else series.y
    reach = [
        (0.0, 0.0) if None in three else (max(0.0, three[0] - three[1]), max(0.0, three[2] - three[0]))
        for three in zip(along, series.low or (), series.high or ())
    ]
    ends = {"array": _numbers([up for _, up in reach]), "arrayminus": _numbers([down for down, _ in reach])}
    style = {"color": colour, "thickness": 1.5} | ({"width": 0} if series.across else {})
    return {"type": "data", "symmetric": False, **ends, **style}


def _hover(series: Series) -> dict[str, Any]:
    template = series.hover.replace("{of", "{customdata").replace("{", "%{").replace("\n", "<br>")
    return {"hovertemplate": template.replace("%{label}", unfilled(series.label)) + "<extra></extra>"}


def _lines(text: str) -> str:
    return "<br>".join(map(unfilled, text.split("\n")))


def _numbers(values: Values, digits: int = 6) -> list[Any]:
    return round_to(list(values), digits)


def _colour(name: str) -> str:
    return COLOURS.get(name, name)
