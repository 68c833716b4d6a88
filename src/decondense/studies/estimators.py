"""Ours: do the cheap estimators train the same model as the exact loss, and what do they cost?

Criterion, stated beforehand: for first order, second order and 256 sampled tokens, held-out loss minus that of the
exact loss is within ±0.005 nats per token (half a percent of perplexity), by two one-sided tests at 5 % over training
seeds; all three must be. The difference in mean cosine and the tokens per second are told beside it.
"""

from __future__ import annotations

from functools import partial

from ..figures.studies import effects
from ..stats.verdicts import combine, equivalent, interval, signed
from .arms import checking
from .core import Conclusion, Study
from .runs import Runs, cosine, held_out, speed
from .settings import Settings

MARGIN = 0.005
NONE, EXACT = "cross-entropy", "exact"
OTHERS = ("first order", "second order", "sampled")


def criterion_of(settings: Settings) -> str:
    return (
        f"Held-out loss of each estimator minus that of the exact loss is within ±{settings['margin']:g} nats per "
        "token: the 90 % interval over training seeds (two one-sided tests at 5 %) lies inside, for first order, "
        "second order and sampled."
    )


def check(settings: Settings) -> None:
    if settings["margin"] <= 0:
        raise ValueError(
            f"margin must be above 0, in nats per token, got {settings['margin']}: the default is {MARGIN}."
        )
    checking(EXACT, *OTHERS)(settings)


def conclude(runs: Runs, settings: Settings) -> Conclusion:
    same = {arm: equivalent(runs.differences(arm, EXACT, held_out), margin=settings["margin"]) for arm in OTHERS}
    geometry = {arm: interval(d) for arm in (NONE, *OTHERS) if (d := runs.differences(arm, EXACT, cosine))}
    cost = {arm: _overhead(runs, arm) for arm in runs.arms if arm != NONE}
    words = "; ".join(f"{arm} {d.words(4)}" for arm, d in same.items())
    prices = ", ".join(f"{arm} {x:.3f}×" for arm, x in cost.items() if x is not None) or "not measured"
    moved = ", ".join(f"{arm} {signed(g[0], 4)}" for arm, g in geometry.items())
    sentence = (
        f"held-out loss minus exact: {words}. Mean cosine minus exact: {moved or 'unknown'}. Time per token against "
        f"cross-entropy: {prices}."
    )
    shown = [arm for arm in (NONE, *OTHERS) if arm in runs]
    right = [
        f"{signed(geometry[arm][0])} · {'1×' if arm == NONE else f'{cost[arm]:.3f}×' if cost[arm] else '–'}"
        for arm in shown
        if arm in geometry
    ]
    draw = partial(
        effects,
        [(arm, runs.differences(arm, EXACT, held_out)) for arm in shown],
        x="held-out loss minus that of the exact loss, nats per token",
        margin=settings["margin"],
        right=right if len(right) == len(shown) else None,
        right_title="mean cosine minus exact · cost",
        level=0.9,
        note="dots: training seeds; bars: 90 % intervals; shaded: the margin",
    )
    estimate = {"held_out_loss": same, "margin": settings["margin"], "cost": cost, "mean_cosine": geometry}
    return Conclusion(combine(list(same.values())), sentence, *runs.rows(), estimate, draw)


def _overhead(runs: Runs, arm: str) -> float | None:
    """Time per token against cross-entropy, mean over the seeds that have both."""
    both = [s for s in runs.table[arm] if s in runs.table.get(NONE, {})]
    ratios = [speed(runs.table[NONE][s]) / speed(runs.table[arm][s]) for s in both]
    return sum(ratios) / len(ratios) if ratios and all(x == x for x in ratios) else None


STUDY = Study(
    "estimators", "ours", "Do the cheap estimators train the same model as the exact loss, and at what cost?",
    criterion_of({"margin": MARGIN}), conclude, timed=True, check=check, criterion_of=criterion_of,
)  # fmt: skip
