"""Runs that another study has made: the same recipe and the same seed are not trained twice.

`counteract` asks about the geometry of the runs whose benchmarks `benchmarks` reports, `init` about the course of one
arm of `width`. A run is taken over when recipe and seed are equal and it holds what is asked for (heatmaps, outcomes of
the tasks); where it came from is kept with it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .study import Settings, read_piece

__all__ = ["known_runs", "run_key", "taken_over"]

Run = Mapping[str, Any]
_OF_TASKS = ("scores", "outcomes", "weights", "dtype")
_TASK_SETTINGS = ("tasks", "shots", "limit", "dtype")


def run_key(settings: Settings, arm: str, seed: int) -> str:
    """What decides the outcome of a training, as text: the whole recipe with its seed, without its name."""
    from .training import recipe_of

    recipe = recipe_of(settings, arm, seed)
    content = recipe.model_dump(mode="json") | {"name": None}
    distillation = recipe.baselines.distillation
    if distillation is not None and distillation.teacher == "teacher":
        content["teacher"] = settings["teacher"]
    return json.dumps(content, sort_keys=True)


def known_runs(folders: Sequence[Path]) -> dict[str, list[tuple[str, Settings, Run]]]:
    """Key → (where from, its study's settings, the run), of all training runs in these study folders."""
    known: dict[str, list[tuple[str, Settings, Run]]] = {}
    for folder in folders:
        files = sorted((folder / "pieces").glob("*.json"))
        if not files:
            raise FileNotFoundError(f"no piece files at {str(folder)!r}: give folders that `decondense study` wrote.")
        for file in files:
            piece = read_piece(file)
            about = {k: piece[k] for k in ("hardware", "versions")}
            for arm, run in piece.get("runs", {}).items():
                key = run_key(piece["settings"], arm, piece["what"]["seed"])
                origin = run.get("from", f"{piece['study']}, {piece['piece']}, {arm}")
                known.setdefault(key, []).append((origin, piece["settings"], {**run, **about}))
    return known


def taken_over(
    known: Mapping[str, list[tuple[str, Settings, Run]]], settings: Settings, arm: str, seed: int
) -> dict[str, Any] | None:
    """The run of this arm and seed as `training.work` would have made it, or None where none is good enough."""
    if not known:
        return None
    for origin, theirs, run in known.get(run_key(settings, arm, seed), []):
        wanted = bool(settings.get("tasks"))
        if wanted and any(theirs.get(k) != settings.get(k) for k in _TASK_SETTINGS):
            continue
        if wanted and "outcomes" not in run and settings.get("tasks_needed", True):
            continue
        snapshots = _with_heatmaps(run["snapshots"], settings.get("heatmaps", "none"))
        if snapshots is None:
            continue
        kept = {k: v for k, v in run.items() if wanted or k not in _OF_TASKS}
        # a speed is compared with that of other arms on the same machine at the same time, and this is neither
        return kept | {"snapshots": snapshots, "tokens_per_second": None, "seconds": None, "from": origin}
    return None


def _with_heatmaps(snapshots: Sequence[Run], which: str) -> list[dict[str, Any]] | None:
    """The snapshots with the histograms that are asked for and no others; None where one is missing."""
    drawn = {"all": range(len(snapshots)), "last": [len(snapshots) - 1], "none": []}[which]
    if any("histogram" not in snapshots[i] for i in drawn if i >= 0):
        return None
    return [
        {k: v for k, v in shot.items() if k != "histogram" or number in drawn} for number, shot in enumerate(snapshots)
    ]
