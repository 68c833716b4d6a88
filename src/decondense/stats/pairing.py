"""Which runs may be compared, and which of their items belong together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..evaluate.logs import Log, Scores, beyond_shares, named
from ..files import grouped
from ..words import several
from .checkpoints import Pair


def check_runs(arms: list[list[Log]], *, paired: bool = False) -> list[str]:
    """Refuse checkpoints picked from the middle, several checkpoints of one training run, copies, and pairs of runs
    whose recorded seeds are in another order in the other arm."""
    notes = []
    treated_seeds = {run.training_seed for run in arms[1]} - {None}
    for base, treated in zip(*arms) if paired else ():
        if base.training_seed != treated.training_seed and base.training_seed in treated_seeds:
            raise ValueError(
                f"with --paired the i-th runs must share their training seed, but {base.label!r} has "
                f"{base.training_seed} and {treated.label!r} {treated.training_seed}: give both arms, and the rows of "
                "a table, in one order of the seeds."
            )
    for arm, runs in zip(("base", "treated"), arms):
        fingerprints: set[str] = set()
        trained = []  # (place, checkpoint)
        for run in runs:
            notes += [f"{arm} run {run.label!r}, {note}" for note in run.notes]
            if run.fingerprint in fingerprints:
                what = "have the same weights" if run.record is not None else "are the same log"
                raise ValueError(
                    f"two {arm} runs {what} (one is {run.label!r}): a copy is not another seed; leave it out."
                )
            fingerprints.add(run.fingerprint)
            if run.record is None:
                continue
            checkpoint = run.record.checkpoint
            if checkpoint.final is False and checkpoint.selected_by == "final":
                raise ValueError(
                    f"the {arm} run {run.label!r} is step {checkpoint.step} of {checkpoint.steps}, and nothing "
                    "says how that checkpoint was chosen: compare the final one, or evaluate it with "
                    "--selected-by held-out-loss if that is the truth."
                )
            if checkpoint.selected_by != "final":
                notes.append(f"{arm} run {run.label!r}: the checkpoint was chosen by {checkpoint.selected_by}.")
            # One folder with different weights was retrained: two runs. A model outside any folder is its own run.
            trained.append((checkpoint.place or run.record.model.name, checkpoint))
        for place, inside in grouped(trained).items():
            if len({checkpoint.folder for checkpoint in inside}) > 1:
                raise ValueError(
                    f"{len(inside)} {arm} runs are checkpoints of one training run ({inside[-1].run or place!r}): the "
                    "unit is the training seed; give its final checkpoint only."
                )
    if {run.fingerprint for run in arms[0]} & {run.fingerprint for run in arms[1]}:
        notes.append("a base and a treated run have the same weights, or are the same log.")
    return notes


@dataclass
class Matched:
    """A task on the items that all runs have, in one order: outcomes (seeds, items) of both arms, the group of every
    item, and what guessing would score."""

    score: Pair | None
    likelihood: Pair | None
    clusters: np.ndarray | None
    chance: float


def match(arms: list[list[Log]], *, common: bool = False) -> tuple[dict[str, Matched], list[str]]:
    """Every task that the runs share, and notes about what had to be left out. Items are matched by id and checked by
    the hash of what was asked."""
    runs = [run for arm in arms for run in arm]
    tasks = list(dict.fromkeys(task for run in runs for task in run.tasks))
    notes = []
    for task in list(tasks):
        without = [run.label for run in runs if task not in run.tasks]
        if without:
            if not common:
                raise ValueError(
                    f"task {task!r} is missing in {len(without)} of {len(runs)} runs ({', '.join(without[:3])}): "
                    "evaluate all runs on the same tasks, or compare what they share with --common."
                )
            tasks.remove(task)
            notes.append(f"{task} is left out: {len(without)} of {len(runs)} runs do not have it.")
    if not tasks:
        raise ValueError("the runs have no task in common: evaluate them on the same tasks.")
    return {task: _task(task, arms, common, notes) for task in tasks}, notes


def _task(task: str, arms: list[list[Log]], common: bool, notes: list[str]) -> Matched:
    runs = [run for arm in arms for run in arm]
    columns = [run.tasks[task] for run in runs]
    _same_metric(task, runs, columns, notes)
    places = [dict(zip(column.ids, range(len(column.ids)))) for column in columns]
    union = dict.fromkeys(name for column in columns for name in column.ids)
    shared = [name for name in union if all(name in place for place in places)]
    order = [[place[name] for name in shared] for place in places]
    absent = [name for name in union if any(name not in place for place in places)]
    kind = next((kind for kind in columns[0].hashes if all(kind in column.hashes for column in columns)), None)
    hashes_by_run = []
    if kind is not None:
        hashes_by_run = [[hashes[i] for i in rows] for hashes, rows in zip((c.hashes[kind]() for c in columns), order)]
    elif absent:
        raise ValueError(
            "items whose wording cannot be compared must have the same ids in all runs, with --common too, but "
            f"{len(absent)} of {len(union)} items of {task!r} are not in all {named(absent)}: give logs of one tool, "
            "or tables with a column hash or prompt; if an id surely means the same item in all runs, leave the "
            f"{several(len(absent), 'other item')} out."
        )
    else:
        notes.append(f"{task}: items are matched by id alone; the logs do not tell whether their words are the same.")
    changed = dict.fromkeys(name for name, *words in zip(shared, *hashes_by_run) if len(set(words)) > 1)
    missing = len(absent) + len(changed)
    if missing:
        reason = _why_different(runs)
        kept = [name for name in shared if name not in changed]
        what = f"{missing} of {len(union)} items of {task!r} are not in all of them"
        if changed:
            what += f", {len(changed)} of these asked in other words {named(list(changed))}"
        elif not reason:
            what += f" {named(absent)}"
        if not common or not kept:
            shared_ones = f", or compare the {len(kept)} shared items with --common" if kept else ""
            raise ValueError(
                f"the runs must have the same items, but {what}{reason}: evaluate with the same data, shots, seed and "
                f"limit{shared_ones}."
            )
        notes.append(f"{task}: {missing} of {len(union)} items are not in all runs and are left out{reason}.")
        order = [[place[name] for name in kept] for place in places]
    return Matched(
        _pair(arms, [column.score for column in columns], order),
        _pair(arms, [column.likelihood for column in columns], order),
        _groups(task, runs, columns, order),
        columns[0].chance,
    )


def _same_metric(task: str, runs: Sequence[Log], columns: Sequence[Scores], notes: list[str]) -> None:
    first = columns[0]
    for run, column in zip(runs, columns):
        if (column.score is None) != (first.score is None) or column.lower != first.lower:
            says = ["none", "better when higher", "better when lower"]
            kinds = [says[0 if c.score is None else 1 + c.lower] for c in (first, column)]
            raise ValueError(
                f"the scores of {task!r} must mean the same in all runs, but {first.metric or 'none'!r} in "
                f"{runs[0].label!r} is {kinds[0]} and {column.metric or 'none'!r} in {run.label!r} is {kinds[1]}: name "
                "the metric with --metric."
            )
    names = list(dict.fromkeys(column.metric for column in columns))
    if len(names) > 1:
        notes.append(f"{task}: the metric is called {' and '.join(names)}; they are compared as one metric.")
    if first.lower:
        notes.append(f"{task}: {first.metric} is better when lower, so its sign is turned: above 0 is better.")
    if first.given is not None and first.better_higher is None:
        notes.append(
            f"{task}: the name {first.metric} does not say whether more of it is better, so higher is taken as better: "
            "if that is wrong, give --lower-is-better."
        )
    scores = [column.given for column in columns if column.given is not None]
    if scores and (reach := beyond_shares(np.concatenate(scores))):
        higher = "" if first.lower else ", and higher counts as better"
        notes.append(f"{task}: the scores go {reach}, not from 0 to 1: a point is 0.01 of {first.metric}{higher}.")


def _pair(arms: list[list[Log]], values: list[np.ndarray | None], order: list[list[int]]) -> Pair | None:
    rows = [value[places] for value, places in zip(values, order) if value is not None]
    if len(rows) < len(values):
        return None
    size = len(arms[0])
    return np.array(rows[:size]), np.array(rows[size:])


def _groups(task: str, runs: Sequence[Log], columns: Sequence[Scores], order: list[list[int]]) -> np.ndarray | None:
    """(items,) the number of each item's group, which must be the same in all runs that have groups."""
    clusters = None
    for run, column, rows in zip(runs, columns, order):
        if column.clusters is None:
            continue
        groups = [column.clusters[i] for i in rows]
        clusters = clusters or groups
        if groups != clusters:
            raise ValueError(
                f"the items of {task!r} must be in the same clusters in all runs, but {run.label!r} differs."
            )
    return None if clusters is None else np.unique(clusters, return_inverse=True)[1]


def _why_different(runs: Sequence[Log]) -> str:
    for key in ("shots", "limit", "seed", "text_tokens"):
        values = list(dict.fromkeys(str(run.record.settings.get(key)) for run in runs if run.record is not None))
        if len(values) > 1:
            return f" ({key} is {' and '.join(values)})"
    return ""
