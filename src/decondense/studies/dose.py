"""Is condensation causal? The weight of the loss from −1 (condensing on purpose) to +1.

If condensation harms language modelling, pushing the geometry one way must help and the other way must hurt. A
penalty of any sign also disturbs the training, which costs something in both directions; over doses that are
symmetric around 0 that cost cancels in the slope, and what is left is the direction. So both must hold: the paper's
λ = 0.1 against λ = 0, and the slope over all doses, one least-squares slope per seed. The most that dispersing could
gain is reported over all positive weights, at the level divided by their number, since the best of several is chosen.
Whether the weight moves the geometry is judged by trend and by level.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from ..figures.studies import curves
from ..stats.verdicts import combine, decide, trend_and_level
from ..words import cell
from .contrasts import perplexities
from .runs import Conclusion, Metric, Runs, Settings, cosine, held_out, spearman
from .settings import loss_of


def by_dose(settings: Settings) -> dict[float, str]:
    """Weight → the arm that has it, in the order of the weights. An arm is what its recipe says, not its name."""
    return dict(sorted((_dose(settings, arm), arm) for arm in settings["arms"]))


def _dose(settings: Settings, arm: str) -> float:
    loss = loss_of(settings, arm)
    if isinstance(loss["weight"], str):
        raise ValueError(
            f"an arm must have one loss at most, whose weight is its dose, got {loss['name']} in {arm!r}: keep one."
        )
    return float(loss["weight"]) if loss["name"] != "none" else 0.0


def refuse(settings: Settings) -> None:
    """Refuse settings without the doses that the criterion compares, or with one of them twice."""
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
        f"Held-out loss at λ = {cell(settings['dose'])} minus at λ = 0 is below 0, and the slope of held-out loss "
        f"over the {'symmetric ' if symmetric else ''}doses is below 0: both 95 % intervals over training seeds."
    )


def conclude(runs: Runs, settings: Settings) -> Conclusion:
    arm_of, dose = by_dose(settings), settings["dose"]
    arms_run = {d: arm for d, arm in arm_of.items() if arm in runs}
    against = {d: runs.contrast(arm, arm_of[0.0], held_out) for d, arm in arm_of.items() if d}
    slope, trend, level = (decide(_slopes(runs, arm_of, m), claim="less") for m in (held_out, spearman, cosine))
    positive = [d for d in arm_of if d > 0]
    strict = {d: runs.contrast(arm_of[d], arm_of[0.0], held_out, level=1 - 0.05 / len(positive)) for d in positive}
    most, at = max(((-x.low, d) for d, x in strict.items() if x.low is not None), default=(None, None))
    scores = {d: scored for d, arm in arm_of.items() if (scored := runs.scores(arm))}
    best = min(arms_run, key=lambda d: runs.mean(arms_run[d], held_out), default=0.0)
    finding = trend_and_level(trend.verdict, level.verdict)
    sentence = (
        f"held-out loss at λ = {cell(dose)} minus at 0 {against[dose].words(4)}; slope over doses, nats per unit of "
        f"λ, {slope.words(4)} (below 0: condensing hurts more than dispersing); lowest mean loss at λ = {cell(best)}"
        f". {_at_most(most, at, len(positive))}"
        f"Mean cosine {_at(runs, arm_of, cosine, '.3f')}, slope {level.words()}; Spearman "
        f"{_at(runs, arm_of, spearman, '+.2f')}, slope {trend.words()}. That a higher weight relieves condensation: "
        f"{finding[0].lower()}{finding[1:]}"
    )
    headline = (
        f"held-out loss, λ = {cell(dose)} minus 0: {against[dose].short(4)} nats; slope over all λ: "
        f"{slope.short(4)} nats per unit"
    )
    means = {
        arm_of[d]: {
            task: float(np.mean(values)) if (values := [one[task] for one in seeds.values() if task in one]) else None
            for task in runs.tasks
        }
        for d, seeds in scores.items()
    }
    estimate: dict[str, Any] = {"deciding": {f"λ {cell(dose)} − λ 0": against[dose]}}
    estimate |= {"against_zero": {arm_of[d]: x for d, x in against.items()}, "slope": slope, "scores": means}
    estimate |= {"spearman_slope": trend, "mean_cosine_slope": level, "gain_at_most": most}
    estimate["against_zero_corrected"] = {arm_of[d]: x for d, x in strict.items()}
    each = 1 - 0.05 / (len(arm_of) - 1)
    by_arm = {arm: perplexities(runs, arm, arm_of[0.0], level=each) for d, arm in arm_of.items() if d}
    task_names = next(iter(by_arm.values()))  # the same tasks for all: those of λ = 0
    estimate["perplexity"] = {task: {arm: by_task[task] for arm, by_task in by_arm.items()} for task in task_names}
    losses = {d: runs.differences(arm, arm_of[0.0], held_out) for d, arm in arms_run.items()}
    small = {d: values for d, values in losses.items() if abs(d) < max(map(abs, arms_run))}
    title, unit = "held-out loss minus that of λ = 0", "nats per token"
    panels = [_panel(title, unit, losses, line=0.0)]
    if len(small) > 2:  # again without the largest, which would hide them
        panels.append(_panel(f"{title}, small doses", unit, small, line=0.0))
    geometry = {d: runs.values(arm, cosine) for d, arm in arms_run.items()}
    panels.append(_panel("geometry", "mean cosine of the blocks", geometry))
    task = next((t for t in runs.tasks if not t.endswith("perplexity")), None)
    if task is not None:
        zero = scores.get(0.0, {})
        gains = {d: [100 * (seeds[s][task] - zero[s][task]) for s in seeds if s in zero] for d, seeds in scores.items()}
        panels.append(_panel(f"{task} minus that of λ = 0", "accuracy, points", gains, line=0.0))
    draw = partial(curves, panels, note="dots: training seeds; bars: 95 % intervals over them")
    return Conclusion(combine([against[dose], slope]), headline, sentence, *runs.rows(runs.tasks), estimate, draw)


def _panel(title: str, y: str, values: Mapping[float, list[float]], **more: Any) -> dict[str, Any]:
    doses = list(values)
    common = {"x": "weight λ", "scale": "symlog", "ticks": doses}
    # the weights are of one loss, whose name gives the line its colour
    return {"title": title, "y": y, "series": {"dispersion": (doses, list(values.values()))}, **common, **more}


def _at_most(most: float | None, at: float | None, tried: int) -> str:
    if most is None or at is None:
        return ""
    over = f" (over {tried} weights, each at the level divided by their number; at λ = {cell(at)})"
    return f"A gain from dispersing is at most {max(0.0, most):.4f} nats{over if tried > 1 else ''}. "


def _slopes(runs: Runs, arm_of: Mapping[float, str], metric: Metric) -> list[float]:
    """Σ λ (y_λ − ȳ)/Σ λ² per seed that has every dose; λ is centred to sum to 0."""
    x = np.asarray(list(arm_of))
    x = x - x.mean()
    return [float(x @ np.array(list(map(metric, all_doses))) / (x @ x)) for all_doses in runs.paired(*arm_of.values())]


def _at(runs: Runs, arm_of: Mapping[float, str], metric: Metric, form: str) -> str:
    """The metric at the lowest dose, at 0 and at the highest."""
    here = [d for d in dict.fromkeys((min(arm_of), 0.0, max(arm_of))) if arm_of[d] in runs]
    parts = [f"{runs.mean(arm_of[d], metric):{form}} at {cell(d)}".replace("-", "−") for d in here]
    return ", ".join(parts) or "unknown"
