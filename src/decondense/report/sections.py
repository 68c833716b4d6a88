"""From a result to its section of the page, one function per kind. Training runs have a file of their own."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from ..meter.result import Condensation
from ..stats.tables import p_value, points
from .charts import VIEWS, depth_curve, heat_frames, heatmap, scale_of, states_table, trend_charts
from .effects import effect_table, forest, scores
from .reproduce import evaluate_command, measure_command, significance_command
from .section import Origin, Panel, Picture, Section, Table, cell, short, span
from .sources import Source
from .study_charts import benchmark_rows, study_panels

__all__ = ["comparison", "evaluation", "measurement", "origin_of", "sentence_of", "significance", "study"]

POWER = 0.8
"""At which studies state the smallest effect, as ``decondense significance`` does."""
GLOSS = {
    "condensing": "The deeper the layer, the more alike the directions of the tokens of one text.",
    "dispersing": "The deeper the layer, the further apart the directions of the tokens of one text.",
    "no clear trend": "The interval includes zero: the directions neither gather nor spread with depth for certain.",
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


def measurement(source: Source) -> Section:
    result = Condensation(source.record)
    views = views_of([result])
    floor, top = scale_of([result])
    frames = heat_frames(result, top=top)
    chart = heatmap("Density of cosines at every layer", frames, [result], floor=floor)
    chart.note = "Orange: mean; dotted: 5 and 95 % of the cosines. Densities above the scale have its last colour."
    if not views:
        chart.note += " The released view was not measured (option --released)."
    record = source.record
    model, settings = record["model"], record["settings"]
    facts = [
        (
            "model",
            f"{model['parameters']:,} parameters, {model['layers']} layers, width {model['width']}, {model['dtype']}",
        ),
        ("text", f"{record['text']['name']} ({record['text']['source']})"),
        ("windows", f"{record['windows_done']} × {settings['tokens']} tokens"),
    ]
    notes = result.notes
    if not result.complete:
        notes = [f"incomplete: {record['windows_done']} of {settings['windows']} windows were measured.", *notes]
    parts = ("model", "text", "settings", "versions", "final_norm", "complete", "windows_done")
    config: dict[str, Any] = {"config.yaml": source.config} if source.config else {}
    config |= {key: record[key] for key in parts if key in record}
    return Section(
        "measurement",
        f"{result.label} on {result.text}",
        result.verdict,
        [origin_of(source, config, measure_command(record, source.config), facts)],
        gloss=GLOSS.get(result.verdict.split(":")[0], ""),
        notes=notes,
        panels=[Panel([chart], views=views), Panel([depth_curve(result)])],
        tables=[_trend_table(record), states_table(result)],
    )


def views_of(results: Sequence[Condensation]) -> list[tuple[str, str]]:
    """Both views, if any of the results has the released one; else no choice."""
    return list(VIEWS) if any("released_histogram" in result.record for result in results) else []


def _trend_table(record: dict[str, Any]) -> Table:
    names = ("spearman", "kendall", "slope", "last")
    rows, shown = [], []
    for curve, trend in record["trend"].items():
        words = CURVES.get(curve, curve)
        rows.append([words, *(short(trend[n][part]) for n in names for part in ("value", "low", "high"))])
        shown.append([words, *(span(trend[n]["value"], trend[n]["low"], trend[n]["high"]) for n in names)])
    columns = ["states", *(n if part == "value" else f"{n}_{part}" for n in names for part in ("value", "low", "high"))]
    note = TREND_NOTE.format(last=record["settings"]["last"])
    return Table("Trend over depth", columns, rows, shown, ["states", *(n.capitalize() for n in names)], note=note)


def comparison(source: Source, below: Sequence[Source] = ()) -> Section:
    """``below``: the measurements in folders below this one, drawn side by side on one scale."""
    record = source.record
    rows = record["rows"]
    names = ["model", "revision", "text", "parameters", "layers", "windows"]
    names = [n for n in names if any(row[n] is not None for row in rows)]
    figures = ["spearman", "kendall", "slope", "last"]
    columns = list(rows[0])
    whole = [[v if isinstance(v := row[c], (str, bool)) else short(v) for c in columns] for row in rows]
    shown = [
        [cell(row[n]) if row[n] is not None else "" for n in names]
        + [span(row[f], row[f"{f}_low"], row[f"{f}_high"]) for f in figures]
        for row in rows
    ]
    table = Table("All results", columns, whole, shown, [*names, *(f.capitalize() for f in figures)])
    table.note = "In brackets: 95 % intervals from a bootstrap over windows."
    charts = trend_charts(rows, axis=record["axis"], paired=record["paired"], table=table)
    panels = [Panel(charts, note="Lines: 95 % intervals. Above zero: condensing with depth; below: dispersing.")]
    results = [Condensation(s.record) for s in below]
    if results:
        floor, top = scale_of(results)
        heat = []
        for result in results:
            frames = heat_frames(result, top=top, caption=result.verdict)
            heat.append(heatmap(f"{result.label} on {result.text}", frames, [result], small=True, floor=floor))
        panels.append(Panel(heat, "Side by side, on one scale", views=views_of(results), small=True))
    command = None
    if below:
        flag = " --paired" if record["paired"] else ""
        folders = " ".join(shlex.quote(s.folder) for s in below)
        command = f"decondense compare{flag} {folders} --out {shlex.quote(source.folder)}"
    config: dict[str, Any] = {"config.yaml": source.config} if source.config else {}
    config |= {"axis": record["axis"], "paired": record["paired"]}
    config["results"] = [{n: row[n] for n in names} for row in rows]
    origin = origin_of(source, config, command)
    if command is None:
        origin.remark = "The command was not recorded; the table names the models, texts and numbers of windows."
    what = {"size": "by size", "checkpoint": "by checkpoint", "text": "by text"}.get(record["axis"], "side by side")
    title = f"{len(rows)} results {'in pairs' if record['paired'] else what}"
    return Section("comparison", title, record["verdict"], [origin], panels=panels, tables=[table])


def evaluation(source: Source) -> Section:
    record = source.record
    model, tasks = record["model"], record["tasks"]
    panels, tables = [], []
    parts = []
    if tasks:
        chart = scores(tasks, record["macro_average"])
        panels.append(Panel([chart]))
        if chart.table is not None:
            tables.append(chart.table)
        parts.append(
            f"average accuracy over {len(tasks)} task{'s' * (len(tasks) > 1)}: {100 * record['macro_average']:.2f} %"
        )
    if record["texts"]:
        columns = ["tokens", "window_tokens", "token_perplexity", "word_perplexity", "bits_per_byte"]
        rows = [[name, *(short(row.get(c)) for c in columns)] for name, row in record["texts"].items()]
        tables.append(Table("Texts", ["text", *columns], rows, heads=["text", *(c.replace("_", " ") for c in columns)]))
        parts += [f"{name}: {row['bits_per_byte']:.4f} bits per byte" for name, row in record["texts"].items()]
    facts = [
        (
            "model",
            f"{model['parameters']:,} parameters, {model['dtype']}, on {model.get('device', 'an unknown device')}",
        )
    ]
    checkpoint = record.get("checkpoint") or {}
    if checkpoint.get("training_seed") is not None:
        facts.append(("training seed", str(checkpoint["training_seed"])))
    parts_of_config = ("model", "settings", "data", "checkpoint", "versions")
    config: dict[str, Any] = {"config.yaml": source.config} if source.config else {}
    config |= {key: record[key] for key in parts_of_config if key in record}
    if record["settings"].get("limit"):
        note = f"only the first {record['settings']['limit']} items of every task were taken: for trying out."
        notes = [note, *record["notes"]]
    else:
        notes = list(record["notes"])
    origin = origin_of(source, config, evaluate_command(record, source.config), facts)
    if origin.hardware is None and model.get("device"):
        origin.hardware = f"{model['device']} (kind not recorded)"
    return Section(
        "evaluation", str(model["description"]), "; ".join(parts) or "nothing was scored", [origin], notes=notes,
        panels=panels, tables=tables,
    )  # fmt: skip


def significance(source: Source) -> Section:
    record = source.record
    panels, tables = [], []
    for title, part, scale, unit in (
        ("Benchmarks: treated − base", record, 100.0, "points"),
        ("Log-likelihood of the right answers", record.get("likelihood"), 1.0, "nats per item"),
    ):
        if not part or not part["tasks"]:
            continue
        rows = [*part["tasks"]]
        if part["macro"] is not None and len(rows) > 1:
            rows.append({**part["macro"], "task": "average"})
        chart = forest(title, rows, scale=scale, unit=unit, power=record["power"])
        panels.append(Panel([chart]))
        if part is record:
            tables.append(_difference_table(rows))
        else:
            tables.append(effect_table(title, rows))
    arms = Table(
        "Runs",
        ["arm", "run", "model", "weights", "training_seed", "selected_by", "step"],
        [
            [arm, *(run.get(key) for key in ("run", "model", "weights", "training_seed", "selected_by", "step"))]
            for arm in ("base", "treated")
            for run in record[arm]
        ],
        heads=["arm", "run", "model", "weights", "training seed", "selected by", "step"],
        folded=True,
    )
    keys = ("base", "treated", "seeds", "paired", "claim", "alpha", "power")
    config: dict[str, Any] = {"config.yaml": source.config} if source.config else {}
    config |= {key: record[key] for key in keys if key in record}
    origin = origin_of(source, config, significance_command(record))
    origin.remark = "Runs are named by their folder; write the path to each where they lie."
    words = (
        "two checkpoints"
        if record["claim"] == "checkpoints"
        else "{} base and {} treated seeds".format(*record["seeds"])
    )
    title = f"Treated against base: {words} ({PurePosixPath(source.folder).name})"
    return Section(
        "significance", title, record["verdict"], [origin], notes=list(record["notes"]), panels=panels,
        tables=[*tables, arms],
    )  # fmt: skip


def _difference_table(rows: Sequence[dict[str, Any]]) -> Table:
    table = effect_table("Differences", rows)
    table.heads = [
        "task",
        "items",
        "base",
        "treated",
        "difference",
        "95 % interval",
        "p",
        "p (Holm)",
        "could have shown",
    ]
    table.shown = [
        [
            str(row["task"]),
            f"{row['items']:,}",
            points(row["base"]),
            points(row["treated"]),
            points(row["difference"], sign=True),
            f"{points(row['low'], sign=True)} to {points(row['high'], sign=True)}",
            p_value(row["p"]),
            "" if row.get("p_holm") is None else p_value(row["p_holm"]),
            points(row["smallest_effect"]),
        ]
        for row in rows
    ]
    table.folded = False
    table.note = (
        "In points (percent). Could have shown: the smallest true difference that would probably have been found."
    )
    return table


def study(source: Source) -> Section:
    record = source.record
    if not all(isinstance(record[key], str) for key in ("claim", "question", "verdict", "sentence")):
        raise TypeError("the words of a study must be text")
    table = record.get("table") or {"columns": [], "rows": []}
    tables = []
    panels, notes = study_panels(source)
    if table["columns"]:
        numbers = Table("Numbers", [str(c) for c in table["columns"]], [list(row) for row in table["rows"]])
        rows, contrast = benchmark_rows(record)
        if rows:
            chart = forest(f"Benchmarks: {contrast}", rows, scale=100.0, unit="points", power=POWER, contrast=contrast)
            panels.insert(0, Panel([chart]))
            if len(rows) == len(numbers.rows):
                words = _difference_table(rows)
                numbers.shown, numbers.heads, numbers.note = words.shown, words.heads, words.note
        tables.append(numbers)
    pictures = []
    for name in record.get("figures") or ():
        try:
            data = _png(source.path.parent, str(name))
            alt = f"Figure of the study {record['study']}: {record['sentence']}"
            pictures.append(Picture(str(name), alt, data))
        except (ValueError, OSError) as error:
            notes.append(f"figure {name}: {error}")
    facts = [("claim", str(record["claim"])), ("scale", str(record["scale"]))]
    if record.get("criterion"):
        facts.append(("criterion", str(record["criterion"])))
    config: dict[str, Any] = {"study": record["study"], "scale": record["scale"], "config": record.get("config") or {}}
    config |= {key: record[key] for key in ("estimate", "versions") if record.get(key)}
    if record.get("pieces"):
        config["pieces"] = record["pieces"]
        facts.append(("pieces", str(len(record["pieces"]))))
    origin = origin_of(source, config, str(record["command"]), facts)
    return Section(
        "study", f"{record['claim']} · {record['study']} ({record['scale']} scale)", sentence_of(record), [origin],
        badge=str(record["verdict"]), gloss=str(record["question"]), notes=notes, panels=panels,
        tables=tables, pictures=pictures,
    )  # fmt: skip


def sentence_of(record: dict[str, Any]) -> str:
    """The sentence without the verdict in front, which stands beside it anyway."""
    verdict, sentence = str(record["verdict"]), str(record["sentence"])
    rest = sentence.removeprefix(f"{verdict}:").strip()
    return rest if sentence.startswith(f"{verdict}:") and rest else sentence


def _png(folder: Path, name: str) -> str:
    """A PNG inside the result folder, in base64; nothing from elsewhere is taken in."""
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise ValueError("lies outside the result folder and is not shown.")
    if not path.is_file():
        raise ValueError("does not exist.")
    data = path.read_bytes()
    if not data.startswith(b"\x89PNG\r\n\x1a\n"):
        raise ValueError("is not a PNG file and is not shown.")
    return base64.b64encode(data).decode("ascii")


def origin_of(
    source: Source, config: dict[str, Any], command: str | None, facts: Sequence[tuple[str, str]] = ()
) -> Origin:
    record, run = source.record, source.run or {}
    hardware = record.get("hardware") or run.get("hardware")
    hardware = None if hardware == "none" else hardware  # a study that was not run
    found = list(facts)
    seconds = record.get("seconds", run.get("seconds"))
    if isinstance(seconds, (int, float)) and not isinstance(seconds, bool):
        found.append(("time", _duration(float(seconds))))
    versions = record.get("versions")
    if isinstance(versions, dict) and versions:
        found.append(("versions", ", ".join(f"{name} {version}" for name, version in versions.items())))
    return Origin(source.folder, config, command, hardware=None if hardware is None else str(hardware), facts=found)


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
