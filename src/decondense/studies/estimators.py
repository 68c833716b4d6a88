"""Ours: do the cheap estimators do to the model what the exact loss does, and what do they cost?

The criterion is how much of the exact loss's change of the mean cosine an estimator makes, seed by seed: it may differ
by up to 10 %, the least that would matter. The first criterion, held-out loss within a margin (0.005 nats per token,
half a percent of perplexity), is reported beside it: at small budgets even training without a loss stays within.
"""

from __future__ import annotations

from functools import partial

from ..figures.studies import effects
from ..stats.verdicts import Decision, combine, equivalent, interval, resolves
from ..words import signed
from .contrasts import share_of_change
from .runs import MATTERS_COSINE, Conclusion, Runs, Settings, cosine, held_out

NONE, EXACT = "cross-entropy", "exact"
OTHERS = ("first order", "second order", "sampled")
needed = (EXACT, *OTHERS)


def refuse(settings: Settings) -> None:
    if settings["margin"] <= 0:
        raise ValueError(f"margin must be above 0, in nats per token, got {settings['margin']}: the default is 0.005.")


def conclude(runs: Runs, settings: Settings) -> Conclusion:
    losses = {arm: runs.differences(arm, EXACT, held_out) for arm in (NONE, *OTHERS)}
    equivalence = {arm: equivalent(losses[arm], margin=settings["margin"]) for arm in OTHERS}
    geometry = {arm: interval(d) for arm in (NONE, *OTHERS) if (d := runs.differences(arm, EXACT, cosine))}
    costs = {arm: list(runs.costs(arm, NONE).values()) for arm in runs.arms if arm != NONE}
    cost = {arm: sum(some) / len(some) if some else None for arm, some in costs.items()}
    # seed by seed, how much of what the exact loss does to the mean cosine is left
    kept = {arm: share_of_change(runs, arm, EXACT, NONE, margin=100 * MATTERS_COSINE, around=100) for arm in OTHERS}
    keeps = "; ".join(f"{arm} {_percent(d)}" for arm, d in kept.items())
    words = "; ".join(f"{arm} {d.words(4)}" for arm, d in equivalence.items())
    prices = ", ".join(f"{arm} {x:.3f}×" for arm, x in cost.items() if x is not None) or "not measured"
    moved = ", ".join(f"{arm} {signed(g[0], 4)}" for arm, g in geometry.items())
    sentence = (
        f"of the exact loss's change of the mean cosine there is left: {keeps}. Mean cosine minus exact: "
        f"{moved or 'unknown'}. Held-out loss minus exact: {words}. Time per token against cross-entropy: {prices}."
    )
    left = ", ".join(f"{arm} {d.short(1)}" for arm, d in kept.items())
    headline = f"percent of the exact loss's effect on the mean cosine: {left}"
    shown = [arm for arm in (NONE, *OTHERS) if arm in runs]
    right = [
        f"{signed(geometry[arm][0])} · {'1×' if arm == NONE else f'{cost[arm]:.3f}×' if cost[arm] else '–'}"
        for arm in shown
        if arm in geometry
    ]
    draw = partial(
        effects, [(arm, losses[arm]) for arm in shown], x="held-out loss minus that of the exact loss, nats per token",
        losses=[arm if arm == NONE else "dispersion" for arm in shown],  # the estimators are of one loss
        margin=settings["margin"], right=right if len(right) == len(shown) else None, level=0.9,
        right_title="mean cosine minus exact · cost",
        note="dots: training seeds; bars: 90 % intervals; shaded: the margin",
    )  # fmt: skip
    estimate = {"held_out_loss": equivalence, "margin": settings["margin"], "cost": cost, "mean_cosine": geometry}
    estimate["kept_percent"] = kept
    return Conclusion(combine(list(kept.values())), headline, sentence, *runs.rows(), estimate, draw)


def _percent(kept: Decision) -> str:
    if kept.estimate is None or kept.low is None:
        return f"{'unknown' if kept.estimate is None else f'{kept.estimate:.1f} %'} ({kept.reason})"
    return f"{kept.estimate:.1f} % 90 % interval [{kept.low:.1f}, {kept.high:.1f}]{resolves(kept.resolution)}"
