"""The section of a study: verdict, table, its own figures, and charts of the runs it rests on."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from ..records import Damaged, Measured, Study, Training, read
from .claims import claim_of
from .panels import BLOCKS, SPEARMAN, Line, Shot, curve_panel, depth_panel, depths_of, heat_panel, numbered, trend_panel
from .section import Panel, Picture, Section, Source, Table, inside, reason
from .sections import origin_of

HEATMAPS = 6
"""Most runs that are drawn as heatmaps."""
FRAMES = 16
"""Most heatmaps of a study in all, over runs and steps: they make up most of the page's size."""
T = TypeVar("T")


def study(source: Source[Study]) -> Section:
    record = source.record
    lines, notes = read_lines(source)
    panels = _panels(lines)
    tables = [Table("Numbers", record.table.columns, record.table.rows)] if record.table.columns else []
    pictures = []
    for name in record.figures:
        try:
            alt = f"Figure of the study {record.study}: {record.sentence}"
            pictures.append(Picture(name, alt, _png(source.path.parent, name)))
        except (Damaged, OSError, ValueError) as error:  # ValueError: a name that no path can have
            notes.append(f"the figure {name} is not shown: {error}")
    facts = [("claim", record.claim), ("scale", record.scale), ("criterion", record.criterion)]
    if record.runs:
        facts.append(("runs", str(len(record.runs))))
    config: dict[str, Any] = {"study": record.study, "scale": record.scale, "config": record.config}
    config |= {key: value for key in ("estimate", "versions", "runs") if (value := getattr(record, key))}
    title = f"{record.claim} · {record.study} ({record.scale} scale)"
    main_panel = record.shown.panel if record.shown else None
    opened = [number for number, panel in enumerate(panels) if panel.title == main_panel] or [0]
    if pictures and (main_panel == "picture" or not panels):
        opened = []
    return Section(
        "study", title, sentence_of(record), [origin_of(source, config, record.command, facts)], badge=record.verdict,
        headline=record.headline, gloss=record.question, notes=notes, panels=panels, tables=tables,
        pictures=pictures, claim=claim_of(record), opened=opened, depths=depths_of(lines),
    )  # fmt: skip


def sentence_of(record: Study) -> str:
    """Return the sentence without the verdict at its beginning, which the page shows beside it."""
    rest = record.sentence.removeprefix(f"{record.verdict}:").strip()
    return rest or record.sentence


def _png(folder: Path, name: str) -> str:
    path = inside(folder, name, "result")
    if not path.is_file():
        raise Damaged("it does not exist.")
    data = path.read_bytes()
    if not data.startswith(b"\x89PNG\r\n\x1a\n"):
        raise Damaged("it is not a PNG file.")
    return base64.b64encode(data).decode("ascii")


# ---- the runs it rests on ----


def read_lines(source: Source[Study]) -> tuple[list[Line], list[str]]:
    """Read the runs and measurements of a study, in the order in which its settings name them and then by seed; also
    return notes on those that could not be read."""
    root = source.path.parent / "runs"
    lines: list[tuple[str, Line]] = []  # with its name in the settings
    measured: list[Measured] = []
    notes: list[str] = []
    missing = 0
    for name in source.record.runs:
        try:
            run = read(inside(root, f"{name}/result.json", "result"))
            if isinstance(run, Training):
                arm = run.arm or name
                shots = [Shot(s, s.step, s.tokens) for s in run.snapshots if s.step is not None]
                line = Line(arm, arm, record=run, shots=shots)
                line.label += "" if line.seed is None else f", seed {line.seed}"
                lines.append((arm, line))
            elif isinstance(run, Measured):
                measured.append(run)
            else:
                raise Damaged(f"it is a {run.kind}, and no run.")
        except FileNotFoundError:
            missing += 1
        except (Damaged, OSError, ValueError) as error:  # ValueError: a name that no file can have
            notes.append(f"the run {name} could not be read and is not in the charts: {reason(error, root.resolve())}")
    lines += _measured(measured)
    if missing and lines:
        notes.append(f"{missing} of {len(source.record.runs)} runs are missing: the charts are without them.")
    settings = json.dumps(source.record.config, ensure_ascii=False)
    places = {name: settings.find(json.dumps(name, ensure_ascii=False)) for name, _ in lines}
    lines.sort(key=lambda entry: (places[entry[0]] < 0, places[entry[0]], entry[1].seed or 0))
    for _, line in lines:
        line.shots.sort(key=lambda shot: shot.step or 0)
    return [line for _, line in lines], notes


def _measured(records: Sequence[Measured]) -> list[tuple[str, Line]]:
    """Return (name in the settings, line): a line per model, per text if texts differ, or for all checkpoints of a
    model."""
    texts = {str(record.config.get("text")) for record in records}
    models = {str(record.config.get("model")) for record in records}
    lines: dict[str, tuple[str, Line]] = {}
    for record in records:
        config = {key: str(value) for key, value in record.config.items()}
        model = config.get("model", "")
        name = (record.measurement.model or model) + (", distilled" if record.config.get("taught") else "")
        if record.config.get("revision") is not None:  # one of a row of checkpoints
            place = record.config.get("place")
            shot = Shot(record.measurement, place if isinstance(place, int) else 0, name=config["revision"])
            lines.setdefault(model, (model, Line(model, model)))[1].shots.append(shot)
            continue
        key = model
        if len(texts) > 1:
            key = config.get("text", "")
            name = f"{model} on {key}" if len(models) > 1 else key
        lines[f"{model} {key}"] = (key, Line(name, name, shots=[Shot(record.measurement)]))
    return list(lines.values())


# ---- charts ----


def _panels(lines: Sequence[Line]) -> list[Panel]:
    arms = numbered(lines)
    unit = "checkpoint" if any(shot.name for line in lines for shot in line.shots) else "step"
    note = (
        "Measured on held-out text. One line for each run; seeds of one arm share colour and dash. The axes are cut to "
        "what changed."
    )
    losses = "One line for each arm and seed. Only arms with an added loss have a penalty."
    panels = (
        _heat(arms),
        depth_panel(lines),
        trend_panel(lines, (BLOCKS, SPEARMAN), "Condensation over training", note, unit=unit),
        curve_panel(lines, "Training curves", losses, unit="step"),
    )
    return [panel for panel in panels if panel is not None]


def _spread(items: Sequence[T], count: int) -> list[T]:
    """Return at most `count` items: the first, the last, and others evenly between."""
    if len(items) <= count:
        return list(items)
    return [items[i] for i in sorted({round(k * (len(items) - 1) / (count - 1)) for k in range(count)})]


def _heat(arms: dict[str, list[Line]]) -> Panel | None:
    """Show a heatmap of each arm's first seed; if there are many arms or steps, only some of them."""
    firsts = [members[0] for members in arms.values() if members[0].drawable]
    if not firsts:
        return None
    shown = _spread(firsts, HEATMAPS)
    rows = [(line.label, _spread(line.drawable, max(2, FRAMES // len(shown)))) for line in shown]
    notes = []
    if len(shown) < len(firsts):
        notes.append(f"{len(shown)} of {len(firsts)} are drawn.")
    if any(len(members) > 1 for members in arms.values()):
        notes.append("The first seed of each arm.")
    windows = {shot.result.windows for _, row in rows for shot in row}  # type: ignore[union-attr]
    if len(windows) == 1:
        notes.append(f"The meter on {windows.pop()} windows.")
    title = "Geometry before, during and after" if any(len(row) > 1 for _, row in rows) else "Geometry"
    named = any(shot.name for _, row in rows for shot in row)
    return heat_panel(rows, title, " ".join(notes), slider="Checkpoint" if named else "Training step")
