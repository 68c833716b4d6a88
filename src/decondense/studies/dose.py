"""Is condensation causal? The weight of the loss from −1 (condensing on purpose) to +1.

If condensation harms language modelling, pushing the geometry one way must help and the other way must hurt. A
penalty of any sign also disturbs the training, which costs something in both directions; over doses that are
symmetric around 0 that cost cancels in the slope, and what is left is the direction.

Criterion, two parts that must both hold over training seeds (95 % intervals): held-out loss at the paper's λ = 0.1
minus at λ = 0 is below 0; and the slope of held-out loss over all doses, one least-squares slope per seed, is below
0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from ..figures.studies import curves
from ..stats.verdicts import combine, decide
from .arms import check as check_arms
from .core import Conclusion, Study
from .runs import Metric, Runs, cosine, held_out, spearman
from .settings import Settings, joined, read_scales


def by_dose(settings: Settings) -> dict[float, str]:
    """Weight → the arm that has it, in the order of the weights. An arm is what its recipe says, not its name."""
    found = {_dose(settings, arm): arm for arm in settings["arms"]}
    return {dose: found[dose] for dose in sorted(found)}


def _dose(settings: Settings, arm: str) -> float:
    loss = joined(settings["base"], settings["arms"][arm]).get("loss", {})
    return float(loss.get("weight", 0.1)) if loss.get("name", "none") != "none" else 0.0


def check(settings: Settings) -> None:
    """The doses that the criterion compares are there, each once."""
    check_arms(settings)
    doses = by_dose(settings)
    listed = ", ".join(f"{_dose(settings, arm):g}" for arm in settings["arms"])
    if len(doses) < len(settings["arms"]):
        raise ValueError(f"the arms must differ in loss.weight, got {listed}: give each its own.")
    if 0.0 not in doses:
        raise ValueError(f"one arm must have λ = 0, which the others are compared with, got {listed}: leave it in.")
    if settings["dose"] not in doses or not settings["dose"]:
        raise ValueError(
            f"dose must be the weight of an arm, and not 0, got {settings['dose']:g}, while the arms have {listed}: "
            "take one of those, or set arms.NAME.loss.weight."
        )


def criterion_of(settings: Settings) -> str:
    doses = list(by_dose(settings))
    symmetric = doses == [-d for d in reversed(doses)]
    return (
        f"Held-out loss at λ = {_plain(settings['dose'])} minus at λ = 0 is below 0, and the slope of held-out loss "
        f"over the {'symmetric ' if symmetric else ''}doses is below 0: both 95 % intervals over training seeds."
    )


def conclude(runs: Runs, settings: Settings) -> Conclusion:
    arm_of = by_dose(settings)
    doses = list(arm_of)
    zero = arm_of[0.0]
    against = {d: decide(runs.differences(arm_of[d], zero, held_out), claim="less") for d in doses if d}
    slope = decide(_slopes(runs, arm_of), claim="less")
    verdict = combine([against[settings["dose"]], slope])
    scored = [d for d in doses if runs.scores(arm_of[d])]
    tasks = list(dict.fromkeys(t for d in scored for scores in runs.scores(arm_of[d]).values() for t in scores))
    best = min((d for d in doses if arm_of[d] in runs), key=lambda d: runs.mean(arm_of[d], held_out), default=0.0)
    sentence = (
        f"held-out loss at λ = {_plain(settings['dose'])} minus at 0 {against[settings['dose']].words(4)}; slope over "
        f"doses, nats per unit of λ, {slope.words(4)} (below 0: condensing hurts more than dispersing); lowest mean "
        f"loss at λ = {_plain(best)}. Mean cosine {_at(runs, arm_of, cosine, '.3f')}; Spearman "
        f"{_at(runs, arm_of, spearman, '+.2f')}."
    )
    estimate = {
        "against_zero": {arm_of[d]: x for d, x in against.items()},
        "slope": slope,
        "scores": {arm_of[d]: {t: _mean_score(runs, arm_of[d], t) for t in tasks} for d in scored},
    }
    panels = _panels(runs, arm_of, next((t for t in tasks if not t.endswith("perplexity")), None))
    draw = partial(curves, panels, note="dots: training seeds; bars: 95 % intervals over them")
    return Conclusion(verdict, sentence, *runs.rows(tasks), estimate, draw)


def _panels(runs: Runs, arm_of: Mapping[float, str], task: str | None) -> list[dict[str, Any]]:
    """Over the doses: loss against λ = 0, the small doses again where the ends would hide them, geometry, a task."""
    here, zero = [d for d, arm in arm_of.items() if arm in runs], arm_of[0.0]

    def panel(title: str, y: str, values: Mapping[float, list[float]], **more: Any) -> dict[str, Any]:
        doses = list(values)
        common = {"x": "weight λ", "scale": "symlog", "ticks": doses}
        return {"title": title, "y": y, "series": {"": (doses, list(values.values()))}, **common, **more}

    title, unit = "held-out loss minus that of λ = 0", "nats per token"
    losses = {d: [x for x in runs.differences(arm_of[d], zero, held_out) if math.isfinite(x)] for d in here}
    small = {d: values for d, values in losses.items() if abs(d) < max(map(abs, here))}
    panels = [panel(title, unit, losses, line=0.0)]
    panels += [panel(f"{title}, small doses", unit, small, line=0.0)] if len(small) > 2 else []
    panels.append(panel("geometry", "mean cosine of the blocks", {d: runs.values(arm_of[d], cosine) for d in here}))
    if task is not None:
        at_zero, scores = runs.scores(zero), {d: runs.scores(arm) for d, arm in arm_of.items() if runs.scores(arm)}
        gains = {
            d: [100 * (seeds[seed][task] - at_zero[seed][task]) for seed in seeds if seed in at_zero]
            for d, seeds in scores.items()
        }
        panels.append(panel(f"{task} minus that of λ = 0", "accuracy, points", gains, line=0.0))
    return panels


def _slopes(runs: Runs, arm_of: Mapping[float, str]) -> list[float]:
    """Σ λ (y_λ − ȳ)/Σ λ² per seed that has every dose; λ sums to 0."""
    x = np.asarray(list(arm_of))
    x = x - x.mean()
    slopes = []
    for seed in runs.seeds:
        row = [runs.table.get(arm, {}).get(seed) for arm in arm_of.values()]
        if all(r is not None for r in row):
            y = np.array([held_out(r) for r in row if r is not None])
            slopes.append(float(x @ y / (x @ x)))
    return slopes


def _mean_score(runs: Runs, arm: str, task: str) -> float | None:
    values = [scores[task] for scores in runs.scores(arm).values() if task in scores]
    return float(np.mean(values)) if values else None


def _plain(dose: float) -> str:
    return f"{dose:g}".replace("-", "−")


def _at(runs: Runs, arm_of: Mapping[float, str], metric: Metric, form: str) -> str:
    """The metric at the lowest dose, at 0 and at the highest."""
    here = [d for d in dict.fromkeys((min(arm_of), 0.0, max(arm_of))) if arm_of[d] in runs]
    parts = [f"{runs.mean(arm_of[d], metric):{form}} at {_plain(d)}".replace("-", "−") for d in here]
    return ", ".join(parts) or "unknown"


STUDY = Study(
    "dose", "causality",
    "Does language modelling improve when the geometry is dispersed, and suffer when it is condensed?",
    criterion_of(read_scales("dose")["gpu"]), conclude, criterion_of=criterion_of, check=check,
)  # fmt: skip
