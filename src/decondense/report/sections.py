"""Make a result's section of the page, one function per kind. Training runs and studies have modules of their own."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from ..figures.chart import FAINT, PALETTE, Axis, Band, Chart, Frame, Series
from ..figures.measured import SEEN, SMALLEST, Geometry
from ..figures.measurements import trend_charts
from ..figures.tasks import forest_chart, score_chart, score_rows
from ..records import STATISTICS, Comparison, Evaluation, Measurement, Significance, differences
from ..words import DIFFERENCE, DIFFERENCE_COLUMNS, cell, difference_cells, duration, from_where, points, several, span
from .panels import Line, Shot, depths_of, heat_panel
from .reproduce import evaluate_command, measure_command, significance_command
from .section import Origin, Panel, Section, Source, Table

ALIKE = "The mean cosine itself says how alike the directions of a text's tokens are."
GLOSS = {
    "condensing": f"By rank, deeper layers mostly have the higher mean cosine. {ALIKE}",
    "dispersing": f"By rank, deeper layers mostly have the lower mean cosine. {ALIKE}",
    "no clear trend": "By rank, the mean cosine neither rises nor falls clearly with depth (Spearman is below "
    f"{SMALLEST:g} in size, or its interval includes zero), or its change over depth, the slope, is below {SEEN:g} in "
    f"size, has the opposite sign, or has an interval that includes zero. {ALIKE}",
}
TREND_NOTE = (
    "Spearman and Kendall: rank correlation of mean cosine with depth, +1 when every layer is more condensed than the "
    "one before. Slope: change of mean cosine over the whole depth. Last: mean cosine of the last {last} states. "
    "In brackets: 95 % intervals from a bootstrap over windows."
)
CURVES = {
    "all": "all states, the last after the final norm",
    "blocks": "blocks only, without the embedding",
    "all_before_norm": "all states, the last before the final norm",
    "blocks_before_norm": "blocks only, before the final norm",
}


def measurement(source: Source[Measurement]) -> Section:
    record = source.record
    result = Geometry(record)
    panel = heat_panel([("Density of cosines at every layer", [Shot(result)])])
    (chart,) = panel.charts
    for frame in chart.frames:
        frame.caption = ""  # the verdict says it
    chart.note = "Orange: mean; dotted: 5 and 95 % of the cosines. Densities above the scale have its last colour."
    if not panel.views:
        chart.note += " The released view was not measured (option --released)."
    model, settings = record.model, record.settings
    head = "" if model.kind == "memory" else " (an output head of its own not counted)"  # the meter loads none
    facts = [
        ("model", f"{model.parameters:,} parameters{head}, {model.layers} layers, width {model.width}, {model.dtype}"),
        ("text", from_where(record.text.name, record.text.source)),
        ("windows", f"{record.windows_done} × {settings['tokens']} tokens"),
    ]
    notes = list(record.notes)
    if not record.complete:
        notes.insert(0, f"incomplete: {record.windows_done} of {settings['windows']} windows were measured.")
    parts = ("model", "text", "settings", "versions", "final_norm", "complete", "windows_done")
    command = measure_command(record, source.config)
    curve = depth_curve(result)
    states = Table.of("Every hidden state", curve.rows or [])
    label = f"{result.label} on {result.text}"
    return Section(
        "measurement", label, result.verdict,
        [origin_of(source, _configuration(source, *parts), command, facts)],
        gloss=GLOSS.get(result.verdict.split(":")[0], ""), notes=notes, panels=[panel, Panel([curve])], opened=(0, 1),
        tables=[_trend_table(record), states], depths=depths_of([Line(label, label, shots=[Shot(result)])]),
    )  # fmt: skip


def _trend_table(record: Measurement) -> Table:
    rows, shown = [], []
    for curve, trend in record.trend.items():
        states = CURVES.get(curve, curve)
        row: dict[str, Any] = {"states": states}
        for name in STATISTICS:
            entry = trend[name]
            row |= {name: entry.value, f"{name}_low": entry.low, f"{name}_high": entry.high}
        rows.append(row)
        shown.append([states, *(span(trend[n].value, trend[n].low, trend[n].high) for n in STATISTICS)])
    note = TREND_NOTE.format(last=record.settings["last"])
    heads = ["states", *(name.capitalize() for name in STATISTICS)]
    return Table.of("Trend over depth", rows, shown=shown, heads=heads, note=note)


def depth_curve(result: Geometry) -> Chart:
    """Mean cosine against layer: its 95 % interval over windows, the range of the cosines, and the mean without the
    3 strongest dimensions."""
    layers, mean, quantiles = result.layers, result.mean_cosine, result.quantiles
    split = layers if result.final_norm else layers + 1
    x = list(range(split))
    low, high = result.band
    has_interval = len(result.per_window) > 1
    bare = np.minimum(result.values("mean_cosine_without_variance3"), result.values("mean_cosine_without_cosine3"))
    mean_texts = [f"mean {span(m, a if has_interval else None, b, 3)}" for m, a, b in zip(mean, low, high)]
    marks: list[Any] = [
        Band(x, quantiles[:split, 0], quantiles[:split, 4], "5–95 % of the cosines", FAINT, 0.18),
        *([Band(x, low[:split], high[:split], "95 % interval of the mean", PALETTE[0], 0.35)] if has_interval else []),
    ]
    bare_texts = [f"without 3 dimensions {span(value, digits=3)}" for value in bare]
    lines: tuple[tuple[Any, list[str], str, dict[str, Any]], ...] = (
        (mean, mean_texts, "mean", {"dash": "solid", "width": 2.5}),
        (bare, bare_texts, "mean without the 3 strongest dimensions", {"dash": "dash", "colour": PALETTE[1]}),
    )
    for values, texts, name, style in lines:
        marks.append(Series(x, values[:split], name, of=texts[:split], hover="layer {x}\n{of}", **style))
    if result.final_norm:
        ends = [(mean[layers], mean_texts[layers].removeprefix("mean "), "after the final norm", False)]
        before = result.before_norm
        if before is not None:
            ends.append((before.mean_cosine, span(before.mean_cosine, digits=3), "the same before it", True))
        for value, text, name, hollow in ends:
            style = {"symbol": "circle", "size": 9, "hollow": hollow, "hover": "layer {x}\n{of}"}
            marks.append(Series([layers], [value], name, of=[f"{name}: {text}"], **style))
    axis = Axis("layer (0 = embedding)", (-0.5, layers + 0.5))
    chart = Chart("Mean cosine over depth", axis, Axis("cosine of two tokens"), [Frame(marks)], height=400)
    states = zip_longest(result.record.states, low, high)  # the state before the final norm has none
    chart.rows = [state.row() | {"mean_low": a, "mean_high": b} for state, a, b in states]
    return chart


def comparison(source: Source[Comparison], below: Sequence[Source[Measurement]] = ()) -> Section:
    """`below`: the measurements in folders below this one, drawn side by side on one scale."""
    record = source.record
    rows = [row.model_dump() for row in record.rows]
    names = ["model", "revision", "text", "parameters", "layers", "windows"]
    names = [name for name in names if any(row[name] is not None for row in rows)]
    shown = [
        [cell(row[name]) if row[name] is not None else "" for name in names]
        + [span(row.get("mean_cosine"), row.get("mean_cosine_low"), row.get("mean_cosine_high"), digits=3)]
        + [span(row[f], row[f"{f}_low"], row[f"{f}_high"]) for f in STATISTICS]
        for row in rows
    ]
    heads = [*names, "mean cosine", *(name.capitalize() for name in STATISTICS)]
    note = "In brackets: 95 % intervals from a bootstrap over windows. "
    note += "Parameters count an own output head only of models in memory."
    charts = trend_charts(rows, axis=record.axis, paired=record.paired)
    for chart in charts:
        chart.rows = rows
    panels = [
        Panel(charts, note="Lines: 95 % intervals. Spearman above zero: the cosine rises with depth; below: it falls.")
    ]
    command = None
    if below:
        results = [Geometry(measured.record) for measured in below]
        heat = heat_panel([(f"{r.label} on {r.text}", [Shot(r)]) for r in results], "Side by side, on one scale")
        for chart, result in zip(heat.charts, results):
            for frame in chart.frames:
                frame.caption = result.verdict
        panels.append(heat)
        flag = " --paired" if record.paired else ""
        folders = " ".join(shlex.quote(measured.folder) for measured in below)
        command = f"decondense compare{flag} {folders} --out {shlex.quote(source.folder)}"
    config = _configuration(source, "axis", "paired") | {"results": [{n: row[n] for n in names} for row in rows]}
    origin = origin_of(source, config, command)
    if command is None:
        origin.remark = "The command was not recorded; the table names the models, texts and numbers of windows."
    arrangement = {"size": "by size", "checkpoint": "by checkpoint", "text": "by text"}.get(record.axis, "side by side")
    title = f"{len(rows)} results {'in pairs' if record.paired else arrangement}"
    table = Table.of("All results", rows, shown=shown, heads=heads, note=note)
    sentences = [record.difference.sentence] if record.difference is not None else []
    return Section(
        "comparison", title, record.verdict, [origin], notes=[*sentences, *record.notes], panels=panels, tables=[table]
    )


def evaluation(source: Source[Evaluation]) -> Section:
    record = source.record
    model, tasks = record.model, record.tasks
    panels, tables, parts = [], [], []
    if tasks:
        panels.append(Panel([score_chart(record)]))
        tables.append(_score_table(record))
        if record.macro_average is not None:
            parts.append(f"average accuracy over {several(len(tasks), 'task')}: {points(record.macro_average)} %")
    if record.texts:
        columns = ["tokens", "window_tokens", "token_perplexity", "word_perplexity", "bits_per_byte"]
        rows = [{"text": name} | {c: row.get(c) for c in columns} for name, row in record.texts.items()]
        tables.append(Table.of("Texts", rows, heads=["text", *(c.replace("_", " ") for c in columns)]))
        parts += [f"{name}: {row['bits_per_byte']:.4f} bits per byte" for name, row in record.texts.items()]
    facts = [("model", f"{model.parameters:,} parameters, {model.dtype}, on {model.device or 'an unknown device'}")]
    if record.checkpoint.training_seed is not None:
        facts.append(("training seed", str(record.checkpoint.training_seed)))
    config = _configuration(source, "model", "settings", "data", "checkpoint", "versions")
    notes = list(record.notes)
    if limit := record.settings.get("limit"):
        notes.insert(0, f"only the first {limit} items of every task were taken: for trying out.")
    origin = origin_of(source, config, evaluate_command(record, source.config), facts)
    if origin.hardware is None and model.device:
        origin.hardware = f"{model.device} (kind not recorded)"
    return Section(
        "evaluation", model.description, "; ".join(parts) or "nothing was scored", [origin], notes=notes,
        panels=panels, tables=tables,
    )  # fmt: skip


def _score_table(record: Evaluation) -> Table:
    def cell_text(column: str, value: Any) -> str:
        if value is not None and column in ("acc", "stderr", "acc_norm"):
            return points(value)
        return f"{value:.3f}" if value is not None and column == "ece" else cell(value)

    rows = score_rows(record)
    shown = [[cell_text(column, value) for column, value in row.items()] for row in rows]
    heads = ["task", "items", "shots", "accuracy, %", "± (items)", "normalised, %", "ECE", "perplexity"]
    return Table.of("Scores", rows, shown=shown, heads=heads)


def significance(source: Source[Significance]) -> Section:
    record = source.record
    panels, tables = [], []
    for title, part, scale, unit in (
        ("Benchmarks: treated − base", record, 100.0, "points"),
        ("Log-likelihood of the right answers", record.likelihood, 1.0, "nats per item"),
    ):
        if part is None or not part.tasks:
            continue
        rows = differences(part)
        chart = forest_chart(title, rows, scale=scale, unit=unit, power=record.power)
        table = effect_table(title, rows) if part is record.likelihood else difference_table(rows)
        chart.rows = [dict(zip(table.columns, row)) for row in table.rows]
        panels.append(Panel([chart]))
        tables.append(table)
    keys = ("run", "model", "weights", "training_seed", "selected_by", "step")
    runs = [{"arm": a} | {k: run.get(k) for k in keys} for a in ("base", "treated") for run in getattr(record, a)]
    tables.append(Table.of("Runs", runs, heads=["arm", *(key.replace("_", " ") for key in keys)]))
    config = _configuration(source, "base", "treated", "seeds", "paired", "claim", "alpha", "power")
    origin = origin_of(source, config, significance_command(record))
    origin.remark = "Runs are named by their folder; write the path to each where they lie."
    title = f"Treated against base: {record.arms} ({PurePosixPath(source.folder).name})"
    return Section("significance", title, record.verdict, [origin], notes=record.notes, panels=panels, tables=tables)


def effect_table(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return the differences as fractions (or nats), not in points, with six digits."""
    return Table.of(title, [{name: row.get(name) for name in DIFFERENCE_COLUMNS} for row in rows])


def difference_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return `effect_table` with text in points for people."""
    note = "In points (percent). Could have shown: the smallest true difference that would probably have been found."
    shown = [list(difference_cells(row, items="{:,}")) for row in rows]
    return replace(effect_table("Differences", rows), shown=shown, heads=list(DIFFERENCE), note=note)


def _configuration(source: Source[Any], *parts: str) -> dict[str, Any]:
    """Return the content of config.yaml and these parts of the record."""
    content = source.record.model_dump(include=set(parts), exclude_unset=True)
    written = {"config.yaml": source.config} if source.config else {}
    return written | {key: content[key] for key in parts if key in content}


def origin_of(
    source: Source[Any], config: dict[str, Any], command: str | None, facts: Sequence[tuple[str, str]] = (), *,
    seconds: float | None = None,
) -> Origin:  # fmt: skip
    record, run = source.record, source.run
    hardware = getattr(record, "hardware", None) or run.get("hardware")
    hardware = None if hardware == "none" else hardware  # a study that was not run
    all_facts = list(facts)
    seconds = seconds if seconds is not None else run.get("seconds")
    if isinstance(seconds, (int, float)):
        all_facts.append(("time", duration(float(seconds))))
    versions = getattr(record, "versions", None)
    if versions:
        all_facts.append(("versions", ", ".join(f"{name} {version}" for name, version in versions.items())))
    return Origin(source.folder, config, command, hardware=None if hardware is None else str(hardware), facts=all_facts)
