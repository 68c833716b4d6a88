"""Ours: do the cheap estimators train the same model as the exact loss, and what do they cost?

The default margin of 0.005 nats per token is half a percent of perplexity; all three estimators must lie inside. The
difference in mean cosine and the tokens per second are told beside it.
"""

from __future__ import annotations

from functools import partial

from ..figures.studies import effects
from ..stats.verdicts import LEAST, Mean, combine, equivalent, interval, signed
from .runs import Conclusion, Runs, Settings, cosine, held_out

NONE, EXACT = "cross-entropy", "exact"
OTHERS = ("first order", "second order", "sampled")
needed = (EXACT, *OTHERS)


def criterion_of(settings: Settings) -> str:
    return (
        f"Held-out loss of each estimator minus that of the exact loss is within ±{settings['margin']:g} nats per "
        "token: the 90 % interval over training seeds (two one-sided tests at 5 %) lies inside, for first order, "
        "second order and sampled."
    )


def refuse(settings: Settings) -> None:
    if settings["margin"] <= 0:
        raise ValueError(f"margin must be above 0, in nats per token, got {settings['margin']}: the default is 0.005.")


def conclude(runs: Runs, settings: Settings) -> Conclusion:
    losses = {arm: runs.differences(arm, EXACT, held_out) for arm in (NONE, *OTHERS)}
    same = {arm: equivalent(losses[arm], margin=settings["margin"]) for arm in OTHERS}
    geometry = {arm: interval(d) for arm in (NONE, *OTHERS) if (d := runs.differences(arm, EXACT, cosine))}
    cost = {arm: _mean_cost(runs, arm) for arm in runs.arms if arm != NONE}
    # seed by seed, how much of what the exact loss does to the mean cosine is left
    kept = {arm: _kept(runs, arm) for arm in OTHERS}
    keeps = ", ".join(f"{arm} {k.mean:.1f} % [{k.low:.1f}, {k.high:.1f}]" for arm, k in kept.items() if k is not None)
    words = "; ".join(f"{arm} {d.words(4)}" for arm, d in same.items())
    prices = ", ".join(f"{arm} {x:.3f}×" for arm, x in cost.items() if x is not None) or "not measured"
    moved = ", ".join(f"{arm} {signed(g[0], 4)}" for arm, g in geometry.items())
    sentence = (
        f"held-out loss minus exact: {words}. Mean cosine minus exact: {moved or 'unknown'}; of the exact loss's "
        f"change of it there is left: {keeps or 'unknown'}. Time per token "
        f"against cross-entropy: {prices}."
    )
    shown = [arm for arm in (NONE, *OTHERS) if arm in runs]
    right = [
        f"{signed(geometry[arm][0])} · {'1×' if arm == NONE else f'{cost[arm]:.3f}×' if cost[arm] else '–'}"
        for arm in shown
        if arm in geometry
    ]
    draw = partial(
        effects,
        [(arm, losses[arm]) for arm in shown],
        x="held-out loss minus that of the exact loss, nats per token",
        margin=settings["margin"],
        right=right if len(right) == len(shown) else None,
        right_title="mean cosine minus exact · cost",
        level=0.9,
        note="dots: training seeds; bars: 90 % intervals; shaded: the margin",
    )
    estimate = {"held_out_loss": same, "margin": settings["margin"], "cost": cost, "mean_cosine": geometry}
    estimate["kept_percent"] = kept
    return Conclusion(combine(list(same.values())), sentence, *runs.rows(), estimate, draw)


def _kept(runs: Runs, arm: str) -> Mean | None:
    """100 (c_none − c_arm)/(c_none − c_exact) of the mean cosines c, over the seeds that have all three; None for fewer
    than three seeds, and where the exact loss changed nothing."""
    none, exact, here = (runs.table.get(name, {}) for name in (NONE, EXACT, arm))
    changes = [
        (cosine(none[s]) - cosine(here[s]), cosine(none[s]) - cosine(exact[s]))
        for s in here
        if s in none and s in exact
    ]
    known = len(changes) >= LEAST and all(by_exact for _, by_exact in changes)
    return interval([100 * change / by_exact for change, by_exact in changes]) if known else None


def _mean_cost(runs: Runs, arm: str) -> float | None:
    """Over the seeds that both have; None where one of them has no speed."""
    ratios = [runs.cost(arm, seed, NONE) for seed in runs.table[arm] if seed in runs.table.get(NONE, {})]
    return sum(r for r in ratios if r) / len(ratios) if ratios and None not in ratios else None
