"""Panels of runs and measurements, the same for training runs and for the runs of a study."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from ..figures.chart import INK, Axis, Chart, Frame, Rule, Series, look, series_numbers, with_intervals
from ..figures.measured import Geometry, Short
from ..figures.measurements import density_of, floor_of, heat_chart, heat_frame, top_of
from ..figures.training import Curve, curve_charts
from ..files import flat, grouped
from ..records import known
from ..words import amount, round_to, span
from .section import Depth, Panel

VIEWS = [("pooled", "pooled: all pairs of all windows"), ("released", "released: matrices averaged first")]
SPEARMAN = ("spearman", "Spearman of mean cosine with depth", lambda shot: shot.result.spearman)
BLOCKS = ("mean_cosine", "mean cosine of all blocks", lambda shot: shot.result.blocks)


@dataclass
class Shot:
    """A measurement of a run, whole or in the short form that runs keep. `name` is the checkpoint's, if it has one."""

    result: Short
    step: int | None = None
    tokens: int | None = None
    name: str = ""

    @property
    def mean_cosine(self) -> np.ndarray:
        return np.array(self.result.mean_cosine, dtype=float)  # null is NaN, a gap in the curve

    @property
    def last(self) -> float | None:
        """Mean cosine of the last states."""
        return self.result.trend("last") if isinstance(self.result, Geometry) else self.result.last

    @property
    def when(self) -> str:
        return "" if self.step is None else self.name or f"step {self.step:,}"

    @property
    def on_slider(self) -> str:
        """The label on the slider: a step is the same for all runs, but checkpoints have other names in every model."""
        if self.name:
            return f"checkpoint {(self.step or 0) + 1}"
        return f"step {self.step or 0:,}" + ("" if self.tokens is None else f" · {amount(self.tokens)} tokens")

    @property
    def caption(self) -> str:
        low, high = self.interval("spearman")
        rho = f"Spearman {span(round_to(self.result.spearman), low, high)}"
        return f"{self.when}: {rho}" if self.when else rho

    def interval(self, name: str) -> Sequence[Any]:
        """Return the ends of a statistic's interval over windows, None where they are not known."""
        return round_to(self.result.interval(name)) if isinstance(self.result, Geometry) else (None, None)


@dataclass
class Line(Curve):
    """A run, or a model that was measured: `arm` and its `number` are shared with other seeds, `label` is not."""

    shots: list[Shot] = field(default_factory=list)

    @property
    def seed(self) -> int | None:
        """The seed of a training run; None where its recipe, which may hold anything, has no integer there."""
        seed = flat(self.record.recipe).get("train.seed") if self.record is not None else None
        return seed if isinstance(seed, int) else None

    @property
    def normed(self) -> bool:
        """Whether the last state is after a final norm."""
        return bool(self.shots[-1].result.final_norm)

    @property
    def drawable(self) -> list[Shot]:
        return [shot for shot in self.shots if shot.result.histogram is not None]


L = TypeVar("L", bound=Line)


def numbered(lines: Sequence[L]) -> dict[str, list[L]]:
    """Group the lines by arm, and give each the number of its arm."""
    arms = grouped((line.arm, line) for line in lines)
    of = series_numbers(arms)
    for arm, members in arms.items():
        for line in members:
            line.number = of[arm]
    return arms


def _views(result: Short) -> list[str]:
    released = isinstance(result, Geometry) and result.record.released_histogram is not None
    return ["pooled", "released"] if released else ["pooled"]


def heat_panel(
    rows: Sequence[tuple[str, Sequence[Shot]]], title: str = "", note: str | None = None, **more: Any
) -> Panel:
    """Show a heatmap per row on one scale, small ones if there are several, with one slider for all: each row shows its
    last measurement up to that step. A choice of views if any of the results has the released one. A note is followed
    by what the lines and colours mean."""
    results = [shot.result for _, row in rows for shot in row]
    floor = floor_of([density_of(r, view) for r in results for view in _views(r)])
    top = top_of([density_of(r) for r in results])
    views = list(VIEWS) if any("released" in _views(result) for result in results) else []
    charts = []
    labels: dict[int, str] = {}
    for name, row in rows:
        frames = []
        for shot in row:
            if shot.step is not None:
                labels[shot.step] = shot.on_slider
            for view in _views(shot.result):
                frames.append(heat_frame(shot.result, top=top, view=view, step=shot.step, caption=shot.caption))
        y = "cosine of two tokens" if len(rows) == 1 else ""
        charts.append(heat_chart(name, frames, [shot.result for shot in row], floor=floor, y=y))
    if note is not None:
        meaning = "Orange: mean; dotted: 5 and 95 %. One colour scale for all; what is above it has its last colour."
        note = f"{note} {meaning}".lstrip()
    return Panel(charts, title, note or "", views, sorted(labels.items()), **more)


def curve_panel(lines: Sequence[Line], title: str, note: str, *, unit: str) -> Panel | None:
    trained = [line for line in lines if line.record is not None]
    charts = curve_charts(trained, unit=unit, height=_height(340, len({line.number for line in trained})))
    return Panel(charts, title, note) if charts else None


def trend_panel(
    lines: Sequence[Line], parts: Sequence[tuple[str, str, Callable[[Shot], Any]]], title: str, note: str, *, unit: str
) -> Panel | None:
    """Show statistics at the snapshots of every run that has several, with intervals over windows where known."""
    shown = [line for line in lines if len(line.shots) > 1]
    charts = []
    for name, quantity, value in parts:
        marks: list[Any] = []
        rows: list[dict[str, Any]] = []
        for line in shown:
            line_rows = []
            for shot in line.shots:
                low, high = shot.interval(name) if name in ("spearman", "last") else (None, None)
                statistic = {name: round_to(value(shot)), f"{name}_low": low, f"{name}_high": high}
                line_rows.append({"run": line.label, "step": shot.step, "tokens": shot.tokens} | statistic)
            rows += line_rows
            x = [shot.tokens if unit == "tokens" else shot.step for shot in line.shots]
            text = [f"{line.label}, {shot.when}" for shot in line.shots]
            more = {"name": line.arm, "group": str(line.number), "label": line.label}
            if any(row[name] is not None for row in line_rows):
                marks.append(with_intervals(x, line_rows, name, text=text, number=line.number, joined=True, **more))
        if marks:
            height = _height(340, len({line.number for line in shown}))
            chart = Chart(quantity[0].upper() + quantity[1:], Axis(unit), Axis(quantity), [Frame(marks)], height=height)
            filled = {key for key in rows[0] if any(row[key] is not None for row in rows)}
            chart.rows = [{key: value for key, value in row.items() if key in filled} for row in rows]
            charts.append(chart)
    return Panel(charts, title, note) if charts else None


def _height(least: int, entries: int) -> int:
    """Return a chart's height: its legend takes 20 pixels per entry and may fill half of the chart."""
    return max(least, 20 + 40 * entries)


# ---- over depth ----


def depth_panel(lines: Sequence[Line]) -> Panel | None:
    """Show mean cosine over depth before and after training, and the change."""
    arms = numbered([line for line in lines if line.shots])
    if not arms:
        return None
    every = [line for members in arms.values() for line in members]
    trained = {arm: [line for line in members if len(line.shots) > 1] for arm, members in arms.items()}
    relative = len({len(line.shots[-1].mean_cosine) for line in every}) > 1
    axis = Axis("depth: layer / number of layers" if relative else "layer (0 = embedding)")
    starts = {arm: _mean([line.shots[0] for line in members]) for arm, members in trained.items() if members}
    # Arms that begin with the same model: its curve is drawn with the first of them.
    arms_by_start = grouped((mean.round(4).tobytes(), arm) for arm, mean in starts.items())
    same_start = {same[0]: same for same in arms_by_start.values()}
    marks: list[Any] = []
    for arm, members in arms.items():
        style: dict[str, Any] = {"of": members[0], "relative": relative, "hover": "mean cosine {y:.3f}"}
        if arm in same_start:
            others = len(same_start[arm]) - 1
            shared_by_all = others > 0 and len(same_start) == 1
            name = "before, all arms" if shared_by_all else f"{arm}{f' and {others} more' if others else ''}, before"
            shade = INK if shared_by_all else ""
            marks += _over_depth(starts[arm], name, **style, dash="dot", width=1.4, shade=shade)
        name = f"{arm}, after" if trained[arm] else arm
        marks += _over_depth(_mean([line.shots[-1] for line in members]), name, **style)
    height = _height(380, len({mark.name for mark in marks}))
    chart = Chart("Mean cosine over depth", axis, Axis("mean cosine of two tokens"), [Frame(marks)], height=height)
    chart.rows = [
        {"run": line.label, "when": shot.when, "layer": layer, "mean_cosine": round_to(value)}
        for line in every
        for shot in (line.shots[:1] + line.shots[-1:] if len(line.shots) > 1 else line.shots)
        for layer, value in enumerate(shot.mean_cosine)
    ]
    if any(len(members) > 1 for members in arms.values()):
        chart.note = "Before and after an arm's own training, means over its seeds."
    change = _change([line for members in trained.values() for line in members], axis, height, relative)
    note = "The single marker at the right is the last state, after the final norm."
    normed = any(line.normed for line in every)
    return Panel([chart, *([change] if change else [])], "Over depth", note if normed else "")


def depths_of(lines: Sequence[Line]) -> list[Depth]:
    """Return the curves of every run or model, for a comparison of any two: after and before training."""
    curves = []
    for line in lines:
        ends = [(", after", line.shots[-1]), (", before", line.shots[0])] if len(line.shots) > 1 else []
        for when, shot in ends or [("", shot) for shot in line.shots]:
            cosine = round_to(shot.mean_cosine.tolist())
            curves.append(Depth(line.label + when, cosine, bool(shot.result.final_norm)))
    return curves


def _change(trained: Sequence[Line], axis: Axis, height: int, relative: bool) -> Chart | None:
    """Show after minus before: the curves themselves may lie over each other."""
    marks: list[Any] = []
    rows = []
    for line in trained:
        before, after = line.shots[0].mean_cosine, line.shots[-1].mean_cosine
        if len(before) == len(after):
            style: dict[str, Any] = {"of": line, "relative": relative, "hover": "{y:+.4f}", "label": line.label}
            marks += _over_depth(after - before, line.arm, **style)
            changes = enumerate(round_to((after - before).tolist()))
            rows += [{"run": line.label, "layer": layer, "change_of_mean_cosine": value} for layer, value in changes]
    if not marks:
        return None
    note = "After minus before: below 0 a layer is less condensed than it was. One line for each run."
    value = Axis("change of mean cosine")
    rules = [Rule(0, "y", INK)]
    return Chart("What training changed", axis, value, [Frame(marks)], rules, height=height, note=note, rows=rows)


def _mean(shots: Sequence[Shot]) -> np.ndarray:
    """Return the mean curve over seeds, of those that are as deep as the first."""
    curves = [shot.mean_cosine for shot in shots]
    return np.mean([curve for curve in curves if len(curve) == len(curves[0])], axis=0)


def _over_depth(
    values: np.ndarray, name: str, *, of: Line, relative: bool, hover: str, label: str = "", dash: str = "",
    width: float = 1.6, shade: str = "",
) -> list[Series]:  # fmt: skip
    """Show values against layers. A last state after a final norm is normalised differently: the line stops before it,
    and it is a marker by itself."""
    layers = list(range(len(values)))
    x = [layer / layers[-1] for layer in layers] if relative else layers
    y = [known(value) for value in values]
    style = look(of.number) | ({"colour": shade} if shade else {}) | ({"dash": dash} if dash else {})
    more: dict[str, Any] = {"group": f"{of.number} {name}", "label": label or name}
    more["hover"] = "{label}\nlayer {of}\n" + hover
    split = len(values) - 1 if of.normed else len(values)
    line = Series(x[:split], y[:split], name, **(style | {"symbol": None}), width=width, of=layers[:split], **more)
    end = Series(x[split:], y[split:], name, **(style | {"dash": None}), size=8, of=layers[split:], **more)
    return [line, end] if of.normed else [line]
