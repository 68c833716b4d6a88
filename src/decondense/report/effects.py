"""Plotly charts of benchmarks: the forest plot of a comparison, and the scores of one model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..figures.forest import shown_range
from ..figures.palette import PALETTE
from .charts import FAINT, INK, PAPER, layout, plain, scatter
from .section import Chart, Frame, Table, cell, short, shorts

__all__ = ["effect_table", "forest", "scores"]


def forest(
    title: str,
    rows: Sequence[dict[str, Any]],
    *,
    scale: float,
    unit: str,
    power: float,
    contrast: str = "treated − base",
) -> Chart:
    """One line per task, the average last. A square is the difference (``contrast`` names the arms), as large as the
    task has items, filled where Holm's correction leaves a difference; its line is the 95 % interval. Small dots are
    single seeds. The grey band is what this design could have missed."""
    places = list(range(len(rows), 0, -1))
    largest = max(row["items"] for row in rows)
    shapes: list[dict[str, Any]] = []
    for place, row in zip(places, rows):
        if row["smallest_effect"] is not None:
            reach = scale * row["smallest_effect"]
            shapes.append({"type": "rect", "x0": -reach, "x1": reach, "y0": place - 0.42, "y1": place + 0.42})
            shapes[-1] |= {"fillcolor": "rgba(128,128,129,0.16)", "line": {"width": 0}, "layer": "below"}
    if rows[-1]["task"] == "average" and len(rows) > 1:
        shapes.append({"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 1.5, "y1": 1.5})
        shapes[-1]["line"] = {"color": FAINT, "width": 1}
    traces = [_seeds(places, rows, scale)]
    for strong, name in ((False, "no difference shown"), (True, "differs")):
        chosen = [(place, row) for place, row in zip(places, rows) if bool(row["significant"]) is strong]
        if chosen:
            traces.append(_estimates(chosen, largest, scale, strong, name, unit))
    labels = [f"{plain(row['task'])}  ({row['items']:,})" for row in rows]
    chart = layout(
        xaxis={
            "title": {"text": f"{plain(contrast)}, {unit}"},
            "zeroline": True,
            "zerolinecolor": INK,
            "zerolinewidth": 1.5,
            "range": shorts(shown_range(rows, scale=scale)),
        },
        yaxis={"tickvals": places, "ticktext": labels, "range": [0.4, len(rows) + 0.6], "showgrid": False},
        shapes=shapes,
        margin={"l": 16, "r": 16, "t": 12, "b": 48},
    )
    chart["yaxis"]["automargin"] = True
    note = (
        "Squares: difference, larger with more items; lines: 95 % interval; filled: differs (tasks after Holm's "
        "correction); small dots: single seeds; grey: differences that would be found with less than "
        f"{100 * power:.0f} % probability."
    )
    return Chart(title, chart, [Frame(traces)], height=130 + 34 * len(rows), note=note, table=effect_table(title, rows))


def _estimates(
    chosen: Sequence[tuple[int, dict[str, Any]]], largest: int, scale: float, strong: bool, name: str, unit: str
) -> dict[str, Any]:
    rows = [row for _, row in chosen]
    values = [scale * row["difference"] for row in rows]
    ends = [(row["low"], row["high"]) for row in rows]
    reach = [
        (0.0, 0.0) if low is None or high is None else (max(0.0, v - scale * low), max(0.0, scale * high - v))
        for v, (low, high) in zip(values, ends)
    ]
    colour = PALETTE[0] if strong else FAINT
    return scatter(
        shorts(values),
        [place for place, _ in chosen],
        mode="markers",
        name=name,
        marker={
            "symbol": ["diamond" if row["task"] == "average" else "square" for row in rows],
            "size": [round(8 + 9 * (row["items"] / largest) ** 0.5, 1) for row in rows],
            "color": colour if strong else PAPER,
            "line": {"color": colour, "width": 2},
            "opacity": 1,
        },
        error_x={
            "type": "data",
            "symmetric": False,
            "array": shorts(r[1] for r in reach),
            "arrayminus": shorts(r[0] for r in reach),
            "color": colour,
            "thickness": 2,
            "width": 0,
        },
        customdata=[_said(row, scale, unit) for row in rows],
        hovertemplate="%{customdata}<extra></extra>",
    )


def _said(row: dict[str, Any], scale: float, unit: str) -> str:
    def points(value: float | None) -> str:
        return "–" if value is None else f"{scale * value:+.2f}".replace("-", "−")

    p = row["p"] if row.get("p_holm") is None else row["p_holm"]
    return (
        f"<b>{plain(row['task'])}</b><br>{points(row['difference'])} {unit}<br>"
        f"{points(row['low'])} to {points(row['high'])}<br>p = {p:.3g}"
    )


def _seeds(places: Sequence[int], rows: Sequence[dict[str, Any]], scale: float) -> dict[str, Any]:
    x, y, text = [], [], []
    for place, row in zip(places, rows):
        seeds = row.get("treated_seeds") or []
        if len(seeds) > 1:
            for number, value in enumerate(seeds, 1):
                x.append(scale * (value - row["base"]))
                y.append(place + 0.26)
                text.append(f"treated seed {number}: {x[-1]:+.2f}".replace("-", "−"))
    return scatter(
        shorts(x),
        y,
        mode="markers",
        name="single seeds",
        showlegend=bool(x),
        marker={"size": 5, "color": PALETTE[1], "symbol": "circle"},
        customdata=text,
        hovertemplate="%{customdata}<extra></extra>",
    )


EFFECTS = (
    "task", "items", "base", "treated", "difference", "low", "high", "test", "p", "p_holm", "significant",
    "smallest_effect", "seed_sd", "item_se",
)  # fmt: skip


def effect_table(title: str, rows: Sequence[dict[str, Any]]) -> Table:
    """Fractions (or nats), not points, six digits."""
    body = [[v if isinstance(v := row.get(c), (str, bool)) else short(v) for c in EFFECTS] for row in rows]
    return Table(title, list(EFFECTS), body, folded=True)


def scores(tasks: dict[str, dict[str, Any]], average: float | None) -> Chart:
    """Accuracy of each task with its 95 % interval over items, the average as a line."""
    names = list(tasks)
    places = list(range(len(names), 0, -1))
    values = [100 * tasks[name]["acc"] for name in names]
    reach = [None if tasks[name].get("stderr") is None else 196 * tasks[name]["stderr"] for name in names]
    said = [
        f"<b>{plain(name)}</b><br>{value:.2f}"
        + ("" if r is None else f" ± {r:.2f}")
        + f"<br>{tasks[name]['items']:,} items"
        for name, value, r in zip(names, values, reach)
    ]
    trace = scatter(
        shorts(values),
        places,
        mode="markers",
        name="accuracy, 95 % over items",
        marker={"size": 10, "color": PALETTE[0]},
        error_x={"type": "data", "array": shorts(r or 0 for r in reach), "thickness": 2, "color": PALETTE[0]},
        customdata=said,
        hovertemplate="%{customdata}<extra></extra>",
    )
    shapes: list[dict[str, Any]] = []
    if average is not None:
        at = short(100 * average)
        shapes.append({"type": "line", "x0": at, "x1": at, "yref": "paper", "y0": 0, "y1": 1})
        shapes[-1]["line"] = {"color": FAINT, "width": 1.5, "dash": "dash"}
    description = layout(
        xaxis={"title": {"text": "accuracy, %"}},
        yaxis={"tickvals": places, "ticktext": [plain(n) for n in names], "range": [0.4, len(names) + 0.6]},
        shapes=shapes,
        showlegend=False,
    )
    description["yaxis"] |= {"automargin": True, "showgrid": False}
    description["margin"]["l"] = 16
    columns = ["task", "items", "shots", "acc", "stderr", "acc_norm", "ece", "perplexity"]
    rows = [[name, *(short(tasks[name].get(c)) for c in columns[1:])] for name in names]
    shown = [[_words(column, value) for column, value in zip(columns, row)] for row in rows]
    heads = ["task", "items", "shots", "accuracy, %", "± (items)", "normalised, %", "ECE", "perplexity"]
    note = "Lines: 95 % interval over items." + ("" if average is None else " Dashed: the average over tasks.")
    table = Table("Scores", columns, rows, shown=shown, heads=heads)
    return Chart(
        "Accuracy of each task", description, [Frame([trace])], height=120 + 30 * len(names), note=note, table=table
    )


def _words(column: str, value: Any) -> str:
    if value is not None and column in ("acc", "stderr", "acc_norm"):
        return f"{100 * value:.2f}"
    return f"{value:.3f}" if value is not None and column == "ece" else cell(value)
