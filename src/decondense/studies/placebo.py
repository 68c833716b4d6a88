"""Dose with a placebo: is it the geometry, or would any penalty of that strength do the same?

Every weight is tried twice, with dispersion (first order) and with the loss `placebo` (losses/placebo.py derives it,
docs/studies.md says why). At +λ both disturb alike, and one of them disperses; at −λ one of them condenses. If
condensation harms, dispersion must end with a lower held-out loss than its placebo at +λ and with a higher one at −λ.
That is a test only where the placebo has left the mean cosine alone, so there is a gate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..records import Training
from ..stats.verdicts import REPRODUCED, UNDECIDED, Decision, combine
from .contrasts import losses_drawn, over_documents, over_items, share_of_change
from .runs import RUINED, Conclusion, Runs, Settings, by_document, cosine, spearman
from .settings import loss_of

REAL, BLIND = "dispersion", "placebo"
GATE = 25.0  # percent of what dispersion does to the mean cosine at the same weight


def by_weight(settings: Settings) -> dict[str, dict[float, str]]:
    """Loss → weight → the arm that has it; 0 is the same arm in both. An arm is what its recipe says."""
    arms: dict[str, dict[float, str]] = {REAL: {}, BLIND: {}}
    for arm in settings["arms"]:
        loss = loss_of(settings, arm)
        if loss["name"] == "none":
            arms[REAL][0.0] = arms[BLIND][0.0] = arm
        else:
            arms.setdefault(loss["name"], {})[float(loss["weight"])] = arm
    return {kind: dict(sorted(those.items())) for kind, those in arms.items()}


def refuse(settings: Settings) -> None:
    arms, dose = by_weight(settings), settings["dose"]
    counted = sum(len(those) for those in arms.values()) - 1
    if set(arms) != {REAL, BLIND} or arms[REAL].keys() != arms[BLIND].keys() or counted != len(settings["arms"]):
        raise ValueError(
            f"every weight must be there once with {REAL} and once with {BLIND}, and once without a loss, got "
            f"{', '.join(settings['arms'])}: change arms.NAME.loss.weight of both."
        )
    if not {0.0, dose, -dose} <= arms[REAL].keys() or dose <= 0:
        raise ValueError(
            f"the weights must hold 0, dose and −dose, dose above 0, got dose {dose:g} and "
            f"{', '.join(f'{weight:g}' for weight in arms[REAL])}: take one that is there with both signs."
        )


def conclude(runs: Runs, settings: Settings) -> Conclusion:
    arms, dose = by_weight(settings), settings["dose"]
    real, blind, none = arms[REAL], arms[BLIND], arms[REAL][0.0]
    weights = [weight for weight in real if weight]
    helps = {w: over_documents(runs, real[w], blind[w]) for w in weights if w > 0}
    hurts = {w: over_documents(runs, blind[w], real[w]) for w in weights if w < 0}
    seen = {w: share_of_change(runs, blind[w], real[w], none, margin=GATE) for w in weights}
    met = all(seen[w].verdict == REPRODUCED for w in (dose, -dose))
    gate_known = all(seen[w].low is not None for w in (dose, -dose))
    gate = "met" if met else ("not met" if gate_known else "not known at both") + ", and nothing follows"
    alone = {arm: over_documents(runs, arm, none) for those in arms.values() for w, arm in those.items() if w}
    likely = {w: over_items(runs, real[w], blind[w], kind="log_share") for w in helps}
    ruined = [arm for arm, one in alone.items() if one.estimate is not None and one.estimate > RUINED]
    norms = {arm: runs.mean(arm, _median_norm) / runs.mean(none, _median_norm) for arm in runs.arms}
    moved, trend = ({arm: runs.contrast(arm, none, metric) for arm in alone} for metric in (cosine, spearman))
    up, down = helps[dose], hurts[-dose]
    halves = {w: half for w, half in ((dose, up), (-dose, down)) if not {real[w], blind[w]} & {*ruined}}
    verdict = combine(list(halves.values()))
    if len(halves) < 2 and verdict == REPRODUCED:  # reproduced takes both halves
        verdict = UNDECIDED
    four, spoilt = (real[dose], blind[dose], real[-dose], blind[-dose]), " and ".join(ruined)
    known_norms = [f"{arm} {norms[arm]:.2f}" for arm in four if math.isfinite(norms.get(arm, math.nan))]
    sentence = (
        f"of dispersion's change of the mean cosine the placebo has {_percent(seen[dose])} at λ = {dose:g} and "
        f"{_percent(seen[-dose])} at −{dose:g}: the gate of ±{GATE:g} % is {gate}. "
        f"Held-out loss, dispersion minus placebo at λ = {dose:g} "
        f"{up.words(4)}{up.why}; placebo minus dispersion at −{dose:g} {down.words(4)}{down.why} (below 0: condensing "
        f"hurts more than as strong a push elsewhere). Against no loss: "
        f"{'; '.join(f'{arm} {alone[arm].words(4)}' for arm in four)}. "
        f"{f'The model is ruined by {spoilt}, and a comparison with it decides nothing. ' if ruined else ''}"
        f"{_likely(likely[dose], dose)}Norm of the gradient of the weights, median over the run, in units of that "
        f"without a loss: {', '.join(known_norms) or 'not known'}."
    )
    compared = {dose: f"dispersion minus placebo at λ = {dose:g}", -dose: f"placebo minus dispersion at −{dose:g}"}
    headline = "held-out loss, nats: " + "; ".join(
        f"{words}: {halves[w].short(4) if w in halves else 'does not count, a model is ruined'}"
        for w, words in compared.items()
    )
    if not met:
        shares = " and ".join(seen[w].short(1) for w in compared)
        headline = f"percent of dispersion's effect on the mean cosine in the placebo: {shares}; the gate is {gate}"
    columns, rows = runs.rows(runs.tasks, loss_by_document=by_document, gradient_norm=_median_norm)
    pairs = [those[w] for w in sorted(weights, reverse=True) for those in (real, blind)]
    draw = losses_drawn(
        runs, settings, {arm: runs.differences(arm, none, by_document) for arm in pairs}, none,
        words={none: "without a loss"}, x="held-out loss minus that without a loss, nats per token (right of 0: worse)",
        note="dots: training seeds; bars: 95 % intervals over them alone; shaded: too small to matter", far=RUINED,
    )  # fmt: skip
    estimate: dict[str, Any] = {"gate_percent": GATE, "gate_met": met, "seen_percent": _named(seen, blind)}
    estimate |= {"dispersion_minus_placebo": _named(helps, real), "placebo_minus_dispersion": _named(hurts, real)}
    estimate |= {"against_no_loss": alone, "mean_cosine": moved, "spearman": trend, "gradient_norm": norms}
    estimate |= {"log_likelihood": _named(likely, real)}
    estimate |= {"log_likelihood_alone": {arm: over_items(runs, arm, none, kind="log_share") for arm in alone}}
    verdict = verdict if met else UNDECIDED
    return Conclusion(verdict, headline, sentence, columns, rows, estimate, draw)


def _percent(seen: Decision) -> str:
    return seen.words(1).replace(" 90 % interval", " %, 90 % interval", 1)


def _median_norm(run: Training) -> float:
    known = [line.grad_norm for line in run.history if line.grad_norm is not None]
    return float(np.median(known)) if known else math.nan


def _likely(decision: Decision | None, dose: float) -> str:
    if decision is None:
        return ""
    return (
        f"Log-likelihood of what is right, average over tasks, dispersion minus placebo at λ = {dose:g} "
        f"{decision.words(4)} nats per item{decision.why}. "
    )


def _named(by: Mapping[float, Any], arm_of: Mapping[float, str]) -> dict[str, Any]:
    return {arm_of[weight]: value for weight, value in by.items()}
