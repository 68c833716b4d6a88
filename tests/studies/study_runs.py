"""Runs made by hand: records with the numbers a test wants, in the form in which studies keep them."""

from __future__ import annotations

import base64
import copy
import functools
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np

from decondense import studies
from decondense.records import Measured, Outcomes, Snapshot, Training
from decondense.studies import settings_of
from decondense.studies.arms import recipe_of
from decondense.studies.core import Study, _write_config
from decondense.studies.runs import Conclusion, Run, Runs, measured_name, trained_name
from decondense.studies.work import save_run

STATES = 7


def snapshot(step: int | None, *, cosine: float = 0.5, spearman: float | None = 0.5, **more: Any) -> dict[str, Any]:
    """A measurement whose mean over the blocks is exactly `cosine`."""
    row = [0.1] * 64
    row[32 + int(30 * max(0.0, min(1.0, cosine)))] = 4.0
    return {
        "step": step, "tokens": 100 * (step or 0), "mean_cosine": [0.1] + [cosine] * (STATES - 1), "spearman": spearman,
        "spearman_blocks": spearman, "kendall": spearman, "slope": 0.1, "last": cosine, "windows": 4,
        "final_norm": True, "histogram": [row[:] for _ in range(STATES)],
    } | more  # fmt: skip


def run(
    *,
    held_out: float | None = 3.0,
    cosine: float = 0.5,
    spearman: float | None = 0.5,
    start: tuple[float, float] = (0.6, 0.9),
    speed: float | None = 1000.0,
    parameters: int = 1000,
    outcomes: Outcomes | None = None,
    **more: Any,
) -> dict[str, Any]:
    """What a study keeps of a training run; `start` is (mean cosine, Spearman) at step 0."""
    return {
        "schema": "decondense.train/2", "finished": True, "steps": 100, "tokens": 10_000,
        "model": {"name": "m", "parameters": parameters},
        "held_out": [{"step": 0, "tokens": 0, "loss": 6.0}, {"step": 100, "tokens": 10_000, "loss": held_out}],
        "history": [{"step": s, "tokens": 100 * s, "task_loss": x} for s, x in ((1, 6.0), (100, 3.0))],
        "snapshots": [snapshot(0, cosine=start[0], spearman=start[1]), snapshot(100, cosine=cosine, spearman=spearman)],
        "tokens_per_second": speed, "seconds": 10.0, "skipped_steps": 0, "hardware": "a machine",
        "versions": {"torch": "2.0"}, "outcomes": outcomes,
    } | more  # fmt: skip


def scored(tasks: dict[str, dict[str, Any]], weights: str, settings: dict[str, Any], **scores: float) -> Outcomes:
    asked = {key: settings.get(key) for key in ("tasks", "shots", "limit", "dtype")}
    return Outcomes(
        schema="decondense.outcomes/1", scores=scores, outcomes=tasks, weights=weights, dtype="x", settings=asked
    )


def packed(rng: np.random.Generator, rate: float, n: int = 200) -> dict[str, Any]:
    """Outcomes of one task."""
    correct = rng.random(n) < rate
    shares = np.asarray(np.log(rng.random(n) + 1e-3), dtype="<f2")
    content = {"n": n, "items": "same", "correct": "".join("1" if c else "0" for c in correct)}
    return content | {"log_share": base64.b64encode(shares.tobytes()).decode()}


@functools.cache
def _recipes(settings: str) -> dict[str, Any]:
    content = json.loads(settings)
    return {arm: recipe_of(content, arm, 0).model_dump(mode="json") for arm in content["arms"]}


def of_seeds(settings: dict[str, Any], make: Any, seeds: list[int]) -> list[Run]:
    """Every arm with every seed; `make(arm, seed)` gives the content of the record."""
    recipes = _recipes(json.dumps(settings))
    runs = []
    for seed in seeds:
        for arm, recipe in recipes.items():
            content = make(arm, seed) | ({"tokens": 11_000} if arm.endswith("more tokens") else {})
            outcomes = content.pop("outcomes")
            content |= {"recipe": recipe | {"train": recipe["train"] | {"seed": seed}}, "arm": arm}
            runs.append(Run(trained_name(arm, seed), Training.model_validate(content), outcomes))
    return runs


def measured(study: Study, settings: dict[str, Any], numbers: Any) -> list[Run]:
    """A run for every measurement that the study asks for; `numbers(config)` gives the snapshot, or None."""
    configs = [planned.config for planned in study.plan(settings) if planned.config is not None]
    made = [(config, numbers(config)) for config in configs]
    common = {"schema": "decondense.measured/1", "hardware": "a machine", "versions": {"torch": "2.0"}}
    return [
        Run(measured_name(config), Measured(measurement=Snapshot(**shot), config=config, **common))
        for config, shot in made
        if shot is not None
    ]


def concluded(study: Study, settings: dict[str, Any], runs: list[Run]) -> Conclusion:
    configs = [planned.config for planned in study.plan(settings) if planned.config is not None]
    end = study.conclude(Runs(runs, list(settings.get("arms", ())), configs), settings)
    assert 0 < len(end.headline) <= 220, end.headline
    assert not re.search(r"\bnan\b|None|\n", end.headline), end.headline
    return end


def write(folder: Path, study: Study, scale: str, settings: dict[str, Any], runs: list[Run]) -> None:
    for one in runs:
        save_run(one, folder / "runs")
    _write_config(study, scale, folder, settings)


known = functools.cache(lambda name, scale: settings_of(studies.STUDIES[name], scale))


def settled(name, scale="smoke"):
    return studies.STUDIES[name], copy.deepcopy(known(name, scale))


def of(name, make, seeds=(1, 2, 3)):
    """The conclusion of a study at smoke scale from runs that `make(arm, seed)` gives."""
    study, settings = settled(name)
    return concluded(study, settings, of_seeds(settings, make, list(seeds)))


def noise(arm: str, seed: int, size: float = 0.001) -> float:
    return size * math.sin(7 * seed + 13 * sum(map(ord, arm)))
