"""Training runs side by side: runs of one model on one text make one section, seeds of one arm share a colour."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from ..meter.result import Condensation
from .charts import heat_panel, interval_trace, layout, run_line
from .section import Chart, Frame, Panel, Section, Table, amount, short, shorts, span
from .sections import origin_of, views_of
from .sources import Source, read_json

__all__ = ["Run", "read_run", "training"]


@dataclass
class Run:
    """A training run with its snapshots; ``label`` tells it from the others, ``arm`` is what it shares with the other
    seeds."""

    source: Source
    snapshots: list[tuple[int, int, Condensation]]
    notes: list[str] = field(default_factory=list)
    label: str = ""
    arm: str = ""

    @property
    def record(self) -> dict[str, Any]:
        return self.source.record

    @property
    def group(self) -> tuple[str, str]:
        return str(self.record["model"]["name"]), self.text

    @property
    def texts(self) -> list[dict[str, Any]]:
        """One text, or several that were read one after the other."""
        text = self.record["text"]
        return [text] if isinstance(text, dict) else list(text)

    @property
    def text(self) -> str:
        return " + ".join(str(text["name"]) for text in self.texts)

    def column(self, name: str) -> list[Any]:
        """A column of the history; where the task loss is not kept apart, the loss is the task loss."""
        if name == "task_loss":
            return [row.get("task_loss", row.get("loss")) for row in self.record["history"]]
        return [row.get(name) for row in self.record["history"]]

    def last(self, name: str) -> Any:
        known = [value for value in self.column(name) if value is not None]
        return known[-1] if known else None


def read_run(source: Source) -> Run:
    """Check what the charts need and read the snapshots. A snapshot that cannot be read is a note, not the end."""
    record = source.record
    for row in (*record["history"], *record["held_out"]):
        float(row["step"]), float(row["tokens"]), row["loss"]
    str(record["model"]["name"]), dict(record["recipe"])
    snapshots, notes = [], []
    root = source.path.parent.resolve()
    for entry in record["snapshots"]:
        path = (root / str(entry["file"])).resolve()
        try:
            if not path.is_relative_to(root):
                raise ValueError("it lies outside the run folder.")
            result = Condensation(read_json(path))
            views_of([result]), result.histogram, result.quantiles, result.interval("spearman")
            snapshots.append((int(entry["step"]), int(entry["tokens"]), result))
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            notes.append(f"the snapshot {entry['file']} could not be read: {error}")
    if not record["finished"]:
        at = record["history"][-1]["step"] if record["history"] else 0
        notes.insert(0, f"unfinished: the run stopped at step {at:,}.")
    lost = sum(1 for row in record["history"] if short(row["loss"]) is None)
    if lost:
        notes.append(f"{lost} of {len(record['history'])} steps have no finite loss: the curve has gaps there.")
    if record.get("skipped_steps"):
        notes.append(f"{len(record['skipped_steps'])} steps were skipped because their loss was not finite.")
    snapshots.sort(key=lambda item: item[0])
    return Run(source, snapshots, notes)


def training(runs: Sequence[Run]) -> Section:
    """The section of runs that share model and text; those without a loss come first, as what is compared with."""
    runs = sorted(runs, key=lambda run: _flatten(run.record["recipe"]).get("loss.name") != "none")
    differing = _name_runs(runs)
    many = len(runs) > 1
    name = PurePosixPath(str(runs[0].record["model"]["name"])).name
    title = f"{name} trained on {runs[0].text}" + (f": {len(runs)} runs" if many else "")
    panels = [panel for panel in (_snapshots(runs), _curves(runs), _trend(runs)) if panel is not None]
    origins = []
    for run in runs:
        record = run.record
        size, source = record["model"]["parameters"], record["model"].get("source", "unknown source")
        facts = [
            ("model", f"{size:,} parameters ({source})"),
            ("text", "; ".join(f"{t['name']} ({t.get('source', 'unknown source')})" for t in run.texts)),
        ]
        if record.get("tokens_per_second"):
            facts.append(("speed", f"{record['tokens_per_second']:,.0f} tokens/s"))
        bulk = ("schema", "command", "history", "held_out", "snapshots")
        config = {key: value for key, value in record.items() if key not in bulk}
        origin = origin_of(run.source, config, record.get("command"), facts)
        origin.title = run.label if many else ""
        origins.append(origin)
    notes = [f"{run.label}: {note}" if many else note for run in runs for note in run.notes]
    return Section(
        "training",
        title,
        _verdict(runs),
        origins,
        gloss="What happened to loss and geometry; whether arms truly differ is for a test of significance to say.",
        notes=notes,
        panels=panels,
        tables=[_run_table(runs, differing)],
    )


# -- names ---------------------------------------------------------------------------------------------------


def _name_runs(runs: Sequence[Run]) -> list[str]:
    """Label runs by folder, arms by the settings in which they differ; return the names of those settings."""
    flat = [_flatten(run.record["recipe"]) for run in runs]
    keys = list(dict.fromkeys(key for recipe in flat for key in recipe))
    differing = [k for k in keys if _is_setting(k) and len({str(recipe.get(k)) for recipe in flat}) > 1]
    folders = [PurePosixPath(run.source.folder) for run in runs]
    depth = 1
    while depth < 6 and len({folder.parts[-depth:] for folder in folders}) < len(folders):
        depth += 1
    # "loss.name dispersion" is said as "loss dispersion", "loss.weight 0.1" as "weight 0.1"
    words = [key.removesuffix(".name").rsplit(".", 1)[-1] for key in differing]
    for run, recipe, folder in zip(runs, flat, folders):
        run.label = "/".join(folder.parts[-depth:])
        bare = recipe.get("loss.name") == "none"  # then the weight of the loss says nothing
        said = [
            "no added loss"
            if bare and key == "loss.name"
            else f"{word if words.count(word) == 1 else key} {recipe[key]}"
            for key, word in zip(differing, words)
            if recipe.get(key) is not None and not (bare and key.startswith("loss.") and key != "loss.name")
        ]
        run.arm = ", ".join(said) if differing else run.label if len(runs) == 1 else "same settings, other seeds"
    # settings that fill a line are no name: the arm is then called after its first run
    for arm in {run.arm for run in runs if differing and (len(run.arm) > 48 or not run.arm)}:
        members = [run for run in runs if run.arm == arm]
        for run in members:
            run.arm = members[0].label + (" and its other seeds" if len(members) > 1 else "")
    return differing


def _is_setting(key: str) -> bool:
    """What a run is called, where it lies and its seed say nothing about the arm."""
    return key != "name" and key.rsplit(".", 1)[-1] not in ("seed", "out", "folder", "report_to", "device")


def _flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {prefix: value}
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        flat |= _flatten(inner, f"{prefix}.{key}" if prefix else str(key))
    return flat


def arms_of(runs: Sequence[Run]) -> dict[str, list[Run]]:
    arms: dict[str, list[Run]] = {}
    for run in runs:
        arms.setdefault(run.arm, []).append(run)
    return arms


# -- words and tables ----------------------------------------------------------------------------------------


def _verdict(runs: Sequence[Run]) -> str:
    """One clause per arm: held-out loss, mean cosine and Spearman, before and after, means over seeds."""
    arms = arms_of(runs)
    clauses = []
    for arm, members in arms.items():
        parts = []
        for words, pairs, digits in (
            ("held-out loss", [_ends(run.record["held_out"], lambda row: row["loss"]) for run in members], 4),
            ("mean cosine", [_ends(run.snapshots, _block_mean) for run in members], 3),
            ("Spearman", [_ends(run.snapshots, lambda s: s[2].spearman) for run in members], 2),
        ):
            known = [pair for pair in pairs if pair is not None]
            if known:
                first, last = (sum(pair[i] for pair in known) / len(known) for i in (0, 1))
                parts.append(f"{words} {_fixed(first, digits)} → {_fixed(last, digits)}")
        seeds = f" ({len(members)} runs, means)" if len(members) > 1 else ""
        name = f"{arm}{seeds}: " if len(arms) > 1 or seeds else ""
        clauses.append(name + (", ".join(parts) or "nothing was measured"))
    return "; ".join(clauses)


def _block_mean(snapshot: tuple[int, int, Condensation]) -> float:
    """Mean cosine over all blocks: what the loss acts on."""
    return float(snapshot[2].mean_cosine[1:].mean())


def _ends(rows: Sequence[Any], value: Callable[[Any], Any]) -> tuple[float, float] | None:
    """First and last finite value."""
    known = [float(v) for v in (short(value(row), 12) for row in rows) if v is not None]
    return (known[0], known[-1]) if known else None


def _run_table(runs: Sequence[Run], differing: Sequence[str]) -> Table:
    columns = [
        "run", *differing, "seed", "steps", "tokens", "task_loss", "penalty", "held_out_first", "held_out_last",
        "spearman_first", "spearman_last", "mean_cosine_first", "mean_cosine_last", "tokens_per_second", "finished",
    ]  # fmt: skip
    heads = [
        "run", *(key.removesuffix(".name").rsplit(".", 1)[-1].replace("_", " ") for key in differing), "seed", "steps",
        "tokens", "task loss, last", "penalty, last", "held-out loss", "Spearman", "mean cosine", "tokens/s",
        "finished",
    ]  # fmt: skip
    rows, shown = [], []
    for run in runs:
        record, recipe = run.record, _flatten(run.record["recipe"])
        seed = next((recipe[k] for k in recipe if k.rsplit(".", 1)[-1] == "seed"), None)
        held = _ends(record["held_out"], lambda row: row["loss"]) or (None, None)
        rho = _ends(run.snapshots, lambda s: s[2].spearman) or (None, None)
        cosine = _ends(run.snapshots, _block_mean) or (None, None)
        steps, tokens = run.last("step"), run.last("tokens")
        settings = [recipe.get(key) for key in differing]
        task, penalty = short(run.last("task_loss")), short(run.last("penalty"))
        speed = short(record.get("tokens_per_second"))
        numbers = [steps, tokens, task, penalty, *shorts([*held, *rho, *cosine]), speed]
        rows.append([run.label, *settings, seed, *numbers, bool(record["finished"])])
        moved = (
            f"{_fixed(first, digits)} → {_fixed(last, digits)}"
            for (first, last), digits in ((held, 4), (rho, 2), (cosine, 3))
        )
        shown.append([
            run.label, *("–" if s is None else str(s) for s in settings), "–" if seed is None else str(seed),
            "–" if steps is None else f"{steps:,}", "–" if tokens is None else amount(tokens), _fixed(task, 4),
            _fixed(penalty, 4), *moved, "–" if speed is None else f"{speed:,.0f}",
            "yes" if record["finished"] else "no",
        ])  # fmt: skip
    note = "Held-out loss, Spearman and mean cosine (of all blocks): first → last. Task loss, penalty: as last logged."
    return Table("Runs", columns, rows, shown, heads, note=note)


def _fixed(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}".replace("-", "−")


# -- charts --------------------------------------------------------------------------------------------------


def _snapshots(runs: Sequence[Run]) -> Panel | None:
    """A heatmap per run."""
    rows = []
    for run in runs:
        row = []
        for step, tokens, result in run.snapshots:
            low, high = result.interval("spearman")
            rho = span(short(result.spearman), short(low), short(high))
            words = f"step {step:,} · {amount(tokens)} tokens"
            row.append((step, words, result, f"step {step:,}: Spearman {rho}"))
        if row:
            rows.append((run.label, row))
    if not rows:
        return None
    results = [result for run in runs for _, _, result in run.snapshots]
    windows = results[0].record
    note = (
        f"The meter on {windows['windows_done']} held-out windows of {windows['settings']['tokens']} tokens. Orange: "
        "mean; dotted: 5 and 95 %. One colour scale for all; what is above it has its last colour."
    )
    return heat_panel(rows, "Geometry before, during and after", note, views=views_of(results))


def _curves(runs: Sequence[Run]) -> Panel | None:
    parts: list[tuple[str, str, Callable[[Run], tuple[list[Any], list[Any], list[Any]]]]] = [
        ("Task loss while training", "task loss, nats per token", lambda r: _history(r, "task_loss")),
        ("Held-out loss", "held-out loss, nats per token", _held_out),
        ("Penalty", "penalty", lambda r: _history(r, "penalty")),
        ("Mean cosine while training", "mean cosine", lambda r: _history(r, "mean_cosine")),
    ]
    charts = []
    for title, words, values in parts:
        traces = []
        for number, (arm, members) in enumerate(arms_of(runs).items()):
            for place, run in enumerate(members):
                steps, tokens, y = values(run)
                if any(v is not None for v in y):
                    mode = "lines+markers" if title == "Held-out loss" else "lines"
                    hover = "step %{customdata:,}<br>%{x:.3s} tokens<br>%{y:.4f}"
                    traces.append(
                        run_line(
                            tokens, y, label=run.label, arm=arm, number=number, first=place == 0, hover=hover,
                            mode=mode, customdata=steps,
                        )
                    )  # fmt: skip
        if traces:
            axes = {"xaxis": {"title": {"text": "tokens"}}, "yaxis": {"title": {"text": words}}}
            value = words.split(",")[0].replace(" ", "_").replace("-", "_")
            columns = {"meta": "run", "customdata": "step", "x": "tokens", "y": value}
            description = layout(**axes, showlegend=len(runs) > 1)
            charts.append(Chart(title, description, [Frame(traces)], height=340, columns=columns))
    if not charts:
        return None
    note = "Every recorded step is drawn. Seeds of one arm share colour and dash." if len(runs) > 1 else ""
    return Panel(charts, "Curves", note)


def _history(run: Run, name: str) -> tuple[list[Any], list[Any], list[Any]]:
    return run.column("step"), run.column("tokens"), shorts(run.column(name))


def _held_out(run: Run) -> tuple[list[Any], list[Any], list[Any]]:
    rows = run.record["held_out"]
    return [row["step"] for row in rows], [row["tokens"] for row in rows], shorts(row["loss"] for row in rows)


def _trend(runs: Sequence[Run]) -> Panel | None:
    """Spearman and the mean cosine of the last states over training, with intervals over windows."""
    charts = []
    for name, words in (("spearman", "Spearman of mean cosine with depth"), ("last", "mean cosine of the last states")):
        traces, rows = [], []
        for number, members in enumerate(arms_of(runs).values()):
            for place, run in enumerate(members):
                entries = []
                for step, tokens, result in run.snapshots:
                    low, high = (short(v) for v in result.interval(name))
                    value = short(result.trend(name))
                    entries.append({name: value, f"{name}_low": low, f"{name}_high": high})
                    rows.append([run.label, step, tokens, value, low, high])
                if not entries:
                    continue
                text = [f"{run.label}, step {step:,}" for step, _, _ in run.snapshots]
                x = [tokens for _, tokens, _ in run.snapshots]
                trace = interval_trace(x, entries, name, label=run.arm, colour=number, text=text, lines=True)
                traces.append(trace | {"legendgroup": str(number), "showlegend": place == 0})
        if traces and any(len(run.snapshots) > 1 for run in runs):
            table = Table(words, ["run", "step", "tokens", name, f"{name}_low", f"{name}_high"], rows)
            axes = {"xaxis": {"title": {"text": "tokens"}}, "yaxis": {"title": {"text": words}}}
            description = layout(**axes, showlegend=len(runs) > 1)
            charts.append(Chart(words[0].upper() + words[1:], description, [Frame(traces)], height=340, table=table))
    if not charts:
        return None
    return Panel(charts, "Trend over training", "Lines: 95 % intervals from a bootstrap over windows.")
