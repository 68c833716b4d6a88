"""Charts of training runs: task loss, held-out loss, penalty and mean cosine against tokens or steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..records import Training
from .chart import Axis, Chart, Frame, Series, look, series_numbers
from .draw import Strip, Where, draw

PARTS = (
    ("Task loss while training", "task_loss", "task loss, nats per token"),
    ("Held-out loss", "held_out", "held-out loss, nats per token"),
    ("Penalty", "penalty", "penalty"),
    ("Mean cosine while training", "mean_cosine", "mean cosine"),
)


@dataclass
class Curve:
    """A run. The seeds of an arm share its `number`, and with it colour, dash and legend entry."""

    arm: str
    label: str = ""
    number: int = 0
    record: Training | None = None

    def points(self, name: str) -> tuple[list[int], list[int], list[float | None]]:
        """Return steps, tokens and values; where no separate task loss is recorded, the loss is the task loss."""
        assert self.record is not None, "only runs that were trained have curves"
        rows: Sequence[Any] = self.record.held_out if name == "held_out" else self.record.history
        if name == "held_out":
            values = [row.loss for row in rows]
        elif name == "task_loss":
            values = [row.loss if row.task_loss is None else row.task_loss for row in rows]
        else:
            values = [getattr(row, name) for row in rows]
        return [row.step for row in rows], [row.tokens for row in rows], values


def curve_charts(runs: Sequence[Curve], *, unit: str = "tokens", height: int = 340) -> list[Chart]:
    """Return a chart for each of `PARTS` that any run has, with a line for each run that has values."""
    counted = unit == "tokens"
    hover = "{label}\n" + ("step {of:,}\n{x:.3s} tokens\n{y:.4f}" if counted else unit + " {x:,}\n{y:.4f}")
    legend = "best" if len({run.number for run in runs}) > 1 else ""
    charts = []
    for title, name, y in PARTS:
        marks: list[Any] = []
        for run in runs:
            steps, tokens, values = run.points(name)
            if any(value is not None for value in values):
                style = look(run.number) if name == "held_out" else look(run.number) | {"symbol": None}
                x, of = (tokens, steps) if counted else (steps, None)
                labels: dict[str, Any] = {"label": run.label, "group": str(run.number), "of": of, "hover": hover}
                marks.append(Series(x, values, run.arm, **style, width=1.6, **labels))
        if marks:
            value = y.split(",")[0].replace(" ", "_").replace("-", "_").lower()
            columns = {"label": "run", **({"of": "step"} if counted else {}), "x": unit, "y": value}
            x_axis = Axis(unit, amounts=counted, whole=not counted)
            options: dict[str, Any] = {"legend": legend, "height": height, "columns": columns}
            charts.append(Chart(title, x_axis, Axis(y), [Frame(marks)], **options))
    return charts


def training_figure(runs: Sequence[tuple[str, Training]], path: Where = None, **where: Any) -> Any:
    """`runs`: (name, record of a training run). A panel each for the task loss, the held-out loss and, where any run
    has one, the penalty. A diverged loss runs out of the picture; the legend has the last value of each run."""
    of = series_numbers(name for name, _ in runs)
    curves = [Curve(name, name, of[name], record) for name, record in runs]
    charts = [chart for chart in curve_charts(curves) if chart.title != "Mean cosine while training"]
    for chart in charts:
        held_out = chart.title == "Held-out loss"
        chart.title, chart.y.title = chart.y.title.split(",")[0], ""
        chart.legend = "best" if held_out and len(runs) > 1 else ""
        lines = [mark for mark in chart.frames[0].marks if isinstance(mark, Series)]
        for line in lines:
            last = next(value for value in reversed(line.y) if value is not None)
            line.name = f"{line.label}: {last:.4f}"
        if chart.title != "penalty":
            chart.y.range = _without_collapse([[v for v in line.y if v is not None] for line in lines])
    return draw([Strip([charts], (3.6 * len(charts), 3.2))], path, name="training.png", **where)


def _without_collapse(lines: Sequence[Sequence[float]]) -> tuple[float, float] | None:
    """Return a y range with every value in it, except those of a run that ends above all starts and far above the other
    runs, which it would flatten."""
    low, high = min(map(min, lines)), max(map(max, lines))
    starts = [line[0] for line in lines]
    others = [max(line) for line in lines if line[-1] <= max(starts)]
    top = max(others + starts) if others else high
    high = top if high > top + 3 * (top - low) else high
    return (low - 0.05 * (high - low), high + 0.05 * (high - low)) if high > low else None
