"""The λ, τ table, and the choices around it: layers, clamp, sample size, weight schedule.

Criterion: held-out loss at the paper's choice (λ = 0.1, τ = 1) minus that of every other cell of its grid is below 0:
95 % intervals over training seeds. Not reproduced when some cell is better than the paper's, with the level divided
by the number of cells, as any of them might be. The other choices are told, and decide nothing.
"""

from __future__ import annotations

from functools import partial

from ..figures.studies import effects
from ..stats.verdicts import NOT, REPRODUCED, UNDECIDED, decide
from .arms import checking
from .core import Conclusion, Study
from .runs import Runs, cosine, held_out
from .settings import Settings

CRITERION = (
    "Held-out loss at λ = 0.1, τ = 1 minus that of every other cell of the paper's grid is below 0 (95 % "
    "intervals over training seeds); not reproduced when a cell is better at the level divided by the number of "
    "cells."
)
CENTRE = "λ 0.1, τ 1"
GRID = [(0.01, 1.0), (0.5, 1.0), (1.0, 1.0), (0.1, 0.1), (0.1, 0.5), (0.1, 2.0)]


def cell(weight: float, tau: float) -> str:
    return f"λ {weight:g}, τ {tau:g}"


def conclude(runs: Runs, settings: Settings) -> Conclusion:
    others = [cell(w, t) for w, t in GRID]
    beats = {arm: decide(runs.differences(CENTRE, arm, held_out), claim="less") for arm in others}
    level = 1 - 0.05 / len(others)
    strict = {arm: decide(runs.differences(CENTRE, arm, held_out), claim="less", level=level) for arm in others}
    worse = [arm for arm, d in beats.items() if d.verdict == REPRODUCED]
    better = [arm for arm, d in strict.items() if d.verdict == NOT]
    verdict = REPRODUCED if len(worse) == len(others) else NOT if better else UNDECIDED
    closest = max(beats.items(), key=lambda pair: pair[1].estimate if pair[1].estimate is not None else -1e9)
    sentence = (
        f"of {len(others)} other cells {len(worse)} have a higher held-out loss than the paper's choice with the whole "
        f"interval, and {len(better)} a lower one ({', '.join(better) or 'none'}); paper's choice minus its strongest "
        f"rival, {closest[0]}: {closest[1].words(4)}."
    )
    against = {arm: d for arm in runs.arms if arm != CENTRE and (d := runs.differences(arm, CENTRE, held_out))}
    draw = partial(
        effects,
        list(against.items()),
        x=f"held-out loss minus that of {CENTRE}, nats per token",
        right=[f"{runs.mean(a, cosine):.3f}" for a in against],
        right_title="mean cosine",
        colours=[0 if a in others else 2 if a == "cross-entropy" else 1 for a in against],
        note="blue: the paper's grid; orange: other choices; green: cross-entropy alone",
    )
    beside = [arm for arm in runs.arms if arm not in (CENTRE, *others)]
    estimate = {
        "centre_minus_cell": beats,
        "others_minus_centre": {a: decide(runs.differences(a, CENTRE, held_out), claim="less") for a in beside},
    }
    return Conclusion(verdict, sentence, *runs.rows(), estimate, draw)


STUDY = Study(
    "hyper", "λ, τ table",
    "Is λ = 0.1, τ = 1 the best of the paper's grid, and do layers, clamp, sample size or schedule matter?",
    CRITERION, conclude, check=checking(CENTRE, *(cell(w, t) for w, t in GRID)),
)  # fmt: skip
