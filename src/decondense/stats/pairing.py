"""Which runs may be compared, and which of their items belong together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ..evaluate.items import EvaluatedRun, Item

__all__ = ["check_runs", "match"]


def check_runs(arms: list[list[EvaluatedRun]]) -> list[str]:
    """Refuse checkpoints picked from the middle, several checkpoints of one training run, and copies."""
    notes = []
    for arm, runs in zip(("base", "treated"), arms):
        seen: Counter[str] = Counter()
        names: dict[str, str] = {}
        folders: dict[str, list[str]] = {}
        for run in runs:
            checkpoint, weights = run.record.checkpoint, run.record.model.weights
            if checkpoint.final is False and checkpoint.selected_by == "final":
                raise ValueError(
                    f"the {arm} run {run.label!r} is step {checkpoint.step} of {checkpoint.steps}, and nothing "
                    "says how that checkpoint was chosen: compare the final one, or evaluate it with "
                    "--selected-by held-out-loss if that is the truth."
                )
            if checkpoint.selected_by != "final":
                notes.append(f"{arm} run {run.label!r}: the checkpoint was chosen by {checkpoint.selected_by}.")
            seen[weights] += 1
            if seen[weights] > 1:
                raise ValueError(
                    f"two {arm} runs have the same weights (one is {run.label!r}): a copy is not another seed; "
                    "leave it out."
                )
            place, folder = _training_run(run)
            folders.setdefault(place, []).append(folder)
            names[place] = checkpoint.run or Path(place).name
        for place, inside in folders.items():
            if len(set(inside)) > 1:
                raise ValueError(
                    f"{len(inside)} {arm} runs are checkpoints of one training run ({names[place]!r}): the unit is the "
                    "training seed; give its final checkpoint only."
                )
    if {r.record.model.weights for r in arms[0]} & {r.record.model.weights for r in arms[1]}:
        notes.append("a base and a treated run have the same weights.")
    return notes


def _training_run(run: EvaluatedRun) -> tuple[str, str]:
    """(training run, folder in it): the same first and another second is another checkpoint of the same run. The same
    folder with other weights was trained anew. Evaluations that did not record it are judged by the path as typed."""
    checkpoint = run.record.checkpoint
    if checkpoint.place is not None:
        return checkpoint.place, checkpoint.folder or ""
    typed = Path(run.record.model.name)
    return (str(typed.parent), typed.name) if typed.name.startswith("checkpoint-") else (str(typed), "")


def _keys(items: Sequence[Item]) -> list[tuple[str, str, int]]:
    """Items by subtask and hash; the k-th copy of a repeated item is its own."""
    seen: Counter[tuple[str, str]] = Counter()
    keys = []
    for item in items:
        key = (item["subtask"], item["item"])
        keys.append((*key, seen[key]))
        seen[key] += 1
    return keys


def match(
    arms: list[list[EvaluatedRun]], *, common: bool = False
) -> tuple[dict[str, list[list[list[Item]]]], list[str]]:
    """For every task the items of every run of both arms in one order, and notes about what had to be left out."""
    runs = [run for arm in arms for run in arm]
    tasks = list(dict.fromkeys(task for run in runs for task in run.items))
    notes = []
    for task in list(tasks):
        without = [run.label for run in runs if task not in run.items]
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
    matched: dict[str, list[list[list[Item]]]] = {}
    for task in tasks:
        tables = [[dict(zip(_keys(run.items[task]), run.items[task])) for run in arm] for arm in arms]
        flat = [table for arm in tables for table in arm]
        union = set().union(*flat)
        shared = [key for key in flat[0] if all(key in table for table in flat)]
        if len(shared) < len(union):
            missing = len(union) - len(shared)
            why = _why_different(runs)
            if not common or not shared:
                raise ValueError(
                    f"the runs must have the same items, but {missing} of {len(union)} items of {task!r} are not in "
                    f"all of them{why}: evaluate with the same data, shots, seed and limit, or compare the "
                    f"{len(shared)} shared items with --common."
                )
            notes.append(f"{task}: {missing} of {len(union)} items are not in all runs and are left out{why}.")
        matched[task] = [[[table[key] for key in shared] for table in arm] for arm in tables]
    return matched, notes


def _why_different(runs: Sequence[EvaluatedRun]) -> str:
    for key in ("shots", "limit", "seed", "text_tokens"):
        values = list(dict.fromkeys(str(run.record.settings.get(key)) for run in runs))
        if len(values) > 1:
            return f" ({key} is {' and '.join(values)})"
    return ""
