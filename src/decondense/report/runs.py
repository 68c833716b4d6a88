"""Training runs side by side: runs of one model on one text form a section, and seeds of one arm share a colour."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from ..figures.measured import Geometry
from ..files import flat, grouped, told_apart
from ..records import Damaged, Measurement, Snapshot, Training, read
from ..stats.intervals import LEAST, student
from ..words import amount, duration, from_where, round_to, several, span
from .claims import Effect
from .panels import SPEARMAN, Line, Shot, curve_panel, depths_of, heat_panel, numbered, trend_panel
from .section import Panel, Section, Source, Table, inside, reason
from .sections import origin_of

DIGITS = {"held_out": 4, "spearman": 2, "mean_cosine": 3}
HELD_OUT = "held-out loss (mean over blocks)"  # not the mean over documents, which studies compare
SILENT = 60.0
"""Seconds without a new line in its log after which the page says so of a run."""
COMPARED = 3
"""Arms in the first line of the verdict, each against the arm without a loss if there is one; the line gives the number
of the others, which are behind "more"."""
LONG = 48
"""Most letters of a name made of settings: settings that fill a line are no name."""
LORA, RANK = "model.lora.", "model.lora.r"
SHORT = {"r": "LoRA rank", "alpha": "LoRA alpha", "dropout": "LoRA dropout", "target_modules": "LoRA targets"}
"""What the keys of a recipe's `model.lora` are called: alone, "r 16" says nothing."""
LAST = ("last", "mean cosine of the last states", lambda shot: shot.last)


@dataclass
class Run(Line):
    source: Source[Training] = field(kw_only=True)
    notes: list[str] = field(default_factory=list)
    named: str = ""  # the label and, where runs differ in settings, these settings

    @property
    def training(self) -> Training:
        return self.source.record

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """The run's settings by dotted name ("loss.weight"), without empty sections."""
        return {key: value for key, value in flat(self.training.recipe).items() if value != {}}

    def last(self, name: str) -> Any:
        """Return the last value in a column of the history."""
        return next((value for value in reversed(self.points(name)[2]) if value is not None), None)

    @property
    def ends(self) -> dict[str, tuple[Any, Any]]:
        """First and last finite value of each quantity in `DIGITS`."""
        values = {
            "held_out": [row.loss for row in self.training.held_out],
            "spearman": [shot.result.spearman for shot in self.shots],
            "mean_cosine": [shot.result.blocks for shot in self.shots],
        }
        finite = {name: [v for v in round_to(row, 12) if v is not None] for name, row in values.items()}
        return {name: (row[0], row[-1]) if row else (None, None) for name, row in finite.items()}


def group_of(record: Training) -> tuple[str, str]:
    return record.model.name, " + ".join(text.name for text in record.text)


def read_run(source: Source[Training]) -> Run:
    """Return a run with its snapshots: whole where their files are there, else in the short form that the run keeps."""
    record, folder = source.record, source.path.parent
    run = Run("", record=record, source=source)
    if not record.finished and source.path.name == "progress.json":
        run.notes.append(f"still training: {record.steps:,} steps are planned.")
        for path in sorted((folder / "snapshots").glob("step-*.json")):
            with contextlib.suppress(ValueError, OSError):  # still being written: the next reading sees it
                result, step = Geometry(_whole(folder, f"snapshots/{path.name}")), int(path.stem.split("-")[1])
                run.shots.append(Shot(result, step, step * (record.tokens or 0) // max(1, record.steps)))
    elif not record.finished and record.history:
        run.notes.append(f"unfinished: the run stopped at step {record.history[-1].step:,}.")
    for snapshot in sorted(record.snapshots, key=lambda snapshot: snapshot.step or 0):
        shot = Shot(snapshot, snapshot.step, snapshot.tokens)
        if snapshot.file is not None:
            try:
                shot.result = Geometry(_whole(folder, snapshot.file))
            except (Damaged, OSError) as error:
                why = reason(error, folder.resolve())
                run.notes.append(f"the snapshot {snapshot.file} could not be read: {why}")
        run.shots.append(shot)
    lost = sum(1 for row in record.history if row.loss is None)
    if lost:
        run.notes.append(f"{lost} of {len(record.history)} steps have no finite loss: the curve has gaps there.")
    if record.skipped:
        run.notes.append(f"{several(record.skipped, 'step')} left out, where loss or gradient was not finite.")
    return run


def read_running(places: Sequence[Any]) -> list[Source[Training]]:
    """Return the runs that are not finished, with what they have so far in progress.json."""
    running = []
    for file in sorted({file for place in map(Path, places) for file in place.rglob("progress.json")}):
        with contextlib.suppress(Damaged, OSError):  # the run is just ending: the next reading sees its result
            record = read(file)
            if isinstance(record, Training) and not (file.parent / "result.json").exists():
                running.append(Source(file.parent.name, file, record))
    return running


def now(places: Sequence[Any]) -> list[dict[str, Any]]:
    """Say how far each run that is training has come, in words and numbers, with its losses so far."""
    runs = read_running(places)
    states = []
    for label, source in zip(told_apart([str(source.path.parent) for source in runs]), runs):
        record, curve = source.record, Line("", record=source.record)
        step = max([*(row.step for row in record.history), *(row.step for row in record.held_out)], default=0)
        speed = record.tokens_per_second
        phrases = [f"step {step:,} of {record.steps:,}"]
        if speed and record.tokens:
            phrases.append(f"about {duration((1 - step / max(1, record.steps)) * record.tokens / speed)} left")
        for name, quantity in (("task_loss", "loss"), ("held_out", "held-out loss")):
            losses = [value for value in curve.points(name)[2] if value is not None]
            phrases += [f"{quantity} {losses[-1]:.3f}"] if losses else []
        silent = time.time() - source.path.stat().st_mtime
        if silent > SILENT:
            phrases.append(f"nothing new for {duration(silent)}")
        lines = {name: [curve.points(name)[at] for at in (0, 2)] for name in ("task_loss", "held_out")}
        states.append({"run": label, "step": step, "steps": record.steps, "words": ", ".join(phrases), "lines": lines})
    return states


def _whole(folder: Path, file: str) -> Measurement:
    record = read(inside(folder, file, "run"))
    if not isinstance(record, Measurement):
        raise Damaged(f"it is a {record.kind}.")
    return record


def training(runs: Sequence[Run]) -> Section:
    """Make the section of runs that share model and text; runs without an added loss, the baseline, come first."""
    runs = sorted(runs, key=lambda run: run.recipe.get("loss.name") != "none")
    differing = _name_runs(runs)
    arms = numbered(runs)
    many = len(runs) > 1
    model, text = group_of(runs[0].training)
    title = f"{PurePosixPath(model).name} trained on {text}" + (f": {len(runs)} runs" if many else "")
    note = "Every recorded step is drawn. Seeds of one arm share colour and dash." if many else ""
    interval_note = "Lines: 95 % intervals from a bootstrap over windows."
    panels = [
        _heat(runs),
        curve_panel(runs, "Curves", note, unit="tokens"),
        trend_panel(runs, (SPEARMAN, LAST), "Trend over training", interval_note, unit="tokens"),
    ]
    origins = []
    for run in runs:
        record = run.training
        facts = [
            ("model", f"{record.model.parameters:,} parameters ({record.model.source})"),
            ("text", "; ".join(from_where(text.name, text.source) for text in record.text)),
        ]
        if record.tokens_per_second:
            facts.append(("speed", f"{record.tokens_per_second:,.0f} tokens/s"))
        bulk = {"schema_", "command", "history", "held_out", "held_out_documents", "snapshots"}
        config = record.model_dump(exclude=bulk, exclude_unset=True)
        origin = origin_of(run.source, config, record.command, facts, seconds=record.seconds)
        origin.title = run.named if many else ""
        origins.append(origin)
    differences = _differences(arms)
    # without differences, the first line is about several arms, or it would be about the first alone
    clauses = [*_first_line(differences), *_each(arms)] if differences else _first_line(_each(arms))
    return Section(
        "training", title, "; ".join(clauses), origins, clauses=clauses,
        gloss="What happened to loss and geometry. Intervals of differences are over training seeds.",
        notes=[f"{run.label}: {note}" if many else note for run in runs for note in run.notes],
        panels=[panel for panel in panels if panel is not None], tables=[_run_table(runs, differing)],
        depths=depths_of([replace(run, label=run.named) for run in runs]),
    )  # fmt: skip


# ---- names ----


def _name_runs(runs: Sequence[Run]) -> list[str]:
    """Label runs by folder, and arms by the name from the study that made them or else by the settings in which they
    differ; return the names of these settings."""
    keys = dict.fromkeys(key for run in runs for key in run.recipe)
    differing = [key for key in keys if _is_setting(key) and _differs(key, runs)]
    names = [_last(key) for key in differing]
    for run, label in zip(runs, told_apart([run.source.folder for run in runs])):
        recipe = run.recipe
        run.label = run.named = label
        settings = []
        for key, name in zip(differing, names):
            if recipe.get("loss.name") == "none" and key.startswith("loss."):  # its weight and the like have no effect
                settings += ["no added loss"] if key == "loss.name" else []
            elif recipe.get(key) is not None:
                value = recipe[key]
                shown = f"[{', '.join(map(str, value))}]" if isinstance(value, list) else value
                settings.append(f"{name if names.count(name) == 1 else key} {shown}")
            elif key == RANK:
                settings.append("no LoRA")
        first, lora, rest = ", ".join(settings).partition("LoRA ")
        run.arm = (
            first + lora + rest.replace(", LoRA ", ", ")
            if differing
            else run.label
            if len(runs) == 1
            else f"same settings{_seeds(runs)}"
        )
        if settings and len(run.arm) <= LONG:
            run.named = f"{label} ({run.arm})"
    arms = numbered(runs)
    study_arms = [{run.training.arm for run in members} for members in arms.values()]
    for (arm, members), own_arms in zip(arms.items(), study_arms):
        if len(own_arms) == 1 == study_arms.count(own_arms) and (study_arm := members[0].training.arm):
            arm = study_arm
        elif differing and (len(arm) > LONG or not arm):  # too long or empty: called after its first run
            arm = members[0].label + (f" and others of its settings{_seeds(members)}" if len(members) > 1 else "")
        for run in members:
            run.arm = arm
    return differing


def _seeds(runs: Sequence[Run]) -> str:
    """End a name that ends in "settings": runs of one arm may be of several seeds, or repetitions of one seed."""
    seeds = {run.seed for run in runs}
    return " and seed" if len(seeds) == 1 else f", {len(seeds)} seeds"


def _last(key: str) -> str:
    """Shorten a setting's name: "loss.name" to "loss", "loss.weight" to "weight"."""
    if key.startswith(LORA):
        return SHORT.get(key.removeprefix(LORA), key)
    return key.removesuffix(".name").rsplit(".", 1)[-1]


def _differs(key: str, runs: Sequence[Run]) -> bool:
    """Whether runs differ in a setting; those of adapters are compared where there are adapters, and that there are
    none is a difference of their rank."""
    asked = [run for run in runs if key == RANK or not key.startswith(LORA) or RANK in run.recipe]
    return len({str(run.recipe.get(key)) for run in asked}) > 1


def _is_setting(key: str) -> bool:
    """Whether a key tells arms apart: a run's name, place and seed do not."""
    return key != "name" and key.rsplit(".", 1)[-1] not in ("seed", "out", "folder", "report_to", "device")


# ---- words and tables ----


def _differences(arms: dict[str, list[Run]]) -> list[str]:
    """Return the clauses that come first: values at the end with the loss minus without it, for two arms that differ in
    nothing else and have finished runs of the same seeds; means over the pairs, with Student's interval from three
    pairs on."""
    losses = {arm: members[0].recipe.get("loss.name") for arm, members in arms.items()}
    baselines = {_but_loss(members[0]): members for arm, members in arms.items() if losses[arm] == "none"}
    treated = {arm: members for arm, members in arms.items() if losses[arm] != "none"}
    names = [losses[arm] for arm in treated]
    clauses = []
    for (arm, members), name in zip(treated.items(), names):
        pairs = _pairs(baselines.get(_but_loss(members[0]), []), members)
        parts = []
        for key, quantity in (("held_out", HELD_OUT), ("mean_cosine", "mean cosine")):
            ends = [(a.ends[key][1], b.ends[key][1]) for a, b in pairs]
            if ends and None not in (end for pair in ends for end in pair):
                mean, half = student([after - before for before, after in ends])
                interval = (mean - half, mean + half) if len(ends) >= LEAST else (None, None)
                parts.append(f"{quantity} {Effect(quantity, mean, *interval).text}")
        if parts:
            seeds = f"{several(len(pairs), 'seed')}, {'95 % intervals' if len(pairs) >= LEAST else 'so no interval'}"
            label = name if names.count(name) == 1 else arm.removesuffix(_seeds(members))  # those compared follow
            clauses.append(f"With the loss minus without it ({label}, {seeds}): {', '.join(parts)}")
    return clauses


def _first_line(clauses: Sequence[str]) -> list[str]:
    """Join the first few clauses, each about an arm, into one."""
    more = [f"And {several(len(clauses) - COMPARED, 'more arm')}"] if len(clauses) > COMPARED else []
    return [". ".join([*clauses[:COMPARED], *more]), *clauses[COMPARED:]]


def _but_loss(run: Run) -> str:
    """Return the settings of an arm other than those of the loss, as text."""
    rest = {k: v for k, v in run.recipe.items() if _is_setting(k) and not k.startswith("loss.")}
    return str(sorted((k, str(v)) for k, v in rest.items() if v is not None))


def _pairs(base: Sequence[Run], treated: Sequence[Run]) -> list[tuple[Run, Run]]:
    """Pair finished runs of the same seed; of a seed that was run twice take the first run."""
    first, second = ({run.seed: run for run in reversed(runs) if run.training.finished} for runs in (base, treated))
    return [(first[seed], second[seed]) for seed in first if seed is not None and seed in second]


def _each(arms: dict[str, list[Run]]) -> list[str]:
    """Return one clause per arm: held-out loss, mean cosine and Spearman before and after, as means over seeds; a seed
    that was run twice counts once."""
    clauses = []
    for arm, members in arms.items():
        of_seed = grouped((run.label if run.seed is None else run.seed, run) for run in members)
        parts = []
        for name, quantity in (("held_out", HELD_OUT), ("mean_cosine", "mean cosine"), ("spearman", "Spearman")):
            seed_ends = [[run.ends[name] for run in same if run.ends[name][0] is not None] for same in of_seed.values()]
            seed_means = [_mean_ends(ends) for ends in seed_ends if ends]
            if seed_means:
                parts.append(f"{quantity} {_moved(name, _mean_ends(seed_means))}")
        distinct_seeds = f" of {several(len(of_seed), 'seed')}" if len(of_seed) < len(members) else ""
        seeds = f" ({len(members)} runs{distinct_seeds}, means)" if len(members) > 1 else ""
        name = f"{arm}{seeds}: " if len(arms) > 1 or seeds else ""
        clauses.append(name + (", ".join(parts) or "nothing was measured"))
    return clauses


def _mean_ends(ends: Sequence[Sequence[float]]) -> list[float]:
    return [sum(column) / len(ends) for column in zip(*ends)]


def _moved(name: str, ends: Sequence[Any]) -> str:
    return " → ".join(span(end, digits=DIGITS[name]) for end in ends)


def _run_table(runs: Sequence[Run], differing: Sequence[str]) -> Table:
    names = [_last(key).replace("_", " ") for key in differing]
    heads = [
        "run", *names, "seed", "steps", "tokens", "task loss, last", "penalty, last", HELD_OUT, "Spearman",
        "mean cosine", "tokens/s", "hardware", "finished",
    ]  # fmt: skip
    rows, shown = [], []
    for run in runs:
        record, seed = run.training, run.seed
        settings = {key: run.recipe.get(key) for key in differing}
        steps, tokens, task, penalty = (run.last(name) for name in ("step", "tokens", "task_loss", "penalty"))
        row = {"run": run.label, **settings, "seed": seed, "steps": steps, "tokens": tokens}
        row |= {"task_loss": task, "penalty": penalty}
        for name, (first, last) in run.ends.items():
            row |= {f"{name}_first": first, f"{name}_last": last}
        speeds = {"tokens_per_second": record.tokens_per_second, "hardware": record.hardware}
        rows.append(row | speeds | {"finished": record.finished})
        speed, moved = record.tokens_per_second, [_moved(*item) for item in run.ends.items()]
        shown.append([
            run.label, *("–" if s is None else str(s) for s in (*settings.values(), seed)),
            "–" if steps is None else f"{steps:,}", "–" if tokens is None else amount(tokens), span(task, digits=4),
            span(penalty, digits=4), *moved, "–" if speed is None else f"{speed:,.0f}", record.hardware,
            "yes" if record.finished else "no",
        ])  # fmt: skip
    note = "Held-out loss, Spearman and mean cosine (of all blocks): first → last. Task loss, penalty: as last logged."
    return Table.of("Runs", rows, shown=shown, heads=heads, note=note)


def _heat(runs: Sequence[Run]) -> Panel | None:
    rows = [(run.named, run.drawable) for run in runs if run.drawable]
    if not rows:
        return None
    first = rows[0][1][0].result
    windows = f"{first.windows} held-out windows" if isinstance(first, Snapshot) else ""
    if isinstance(first, Geometry):
        windows = f"{first.record.windows_done} held-out windows of {first.record.settings['tokens']} tokens"
    return heat_panel(rows, "Geometry before, during and after", f"The meter on {windows}.")
