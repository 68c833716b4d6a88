"""The λ, τ table, and the choices around it: layers, clamp, sample size, weight schedule. The criterion is about the
paper's grid: no other cell is better than the paper's choice by as much as would matter. (The first criterion, that the
paper's choice beats every cell, cannot be met where cells tie.) Any of the cells might be the better one, so that is
concluded at the level divided by their number. Reported beside it: the log-likelihood of what is right on the tasks, as
the benchmark averages of the paper's own table are coarser, and every cell against no loss at all. The other choices
are reported, and decide nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..stats.verdicts import NOT, REPRODUCED, Decision, combine, not_below
from .contrasts import losses_drawn, over_items, sides
from .runs import MATTERS_NATS, MATTERS_SHARE, Conclusion, Runs, Settings, held_out

# The paper's grid from the weakest to the strongest: to first order λ and τ only multiply the loss by λ/τ.
GRID = [
    f"λ {weight:g}, τ {tau:g}"
    for weight, tau in ((0.01, 1.0), (0.1, 2.0), (0.1, 1.0), (0.1, 0.5), (0.5, 1.0), (0.1, 0.1), (1.0, 1.0))
]
CENTRE = "λ 0.1, τ 1"
CELLS = [cell for cell in GRID if cell != CENTRE]
needed = (CENTRE, *CELLS)
PLAIN = "cross-entropy"


def conclude(runs: Runs, settings: Settings) -> Conclusion:
    against_centre = {
        arm: not_below(runs.differences(arm, CENTRE, held_out), margin=MATTERS_NATS, tried=len(CELLS)) for arm in CELLS
    }
    good = [arm for arm, d in against_centre.items() if d.verdict == REPRODUCED]
    better = [arm for arm, d in against_centre.items() if d.verdict == NOT]
    beaten = [arm for arm in CELLS if runs.contrast(CENTRE, arm, held_out).verdict == REPRODUCED]
    level = 1 - 0.05 / len(CELLS)
    over_tasks = {arm: over_items(runs, arm, CENTRE, kind="log_share", level=level) for arm in CELLS}
    likelihoods = {arm: one for arm, one in over_tasks.items() if one is not None}
    points = {arm: over_items(runs, arm, CENTRE, kind="correct", level=level) for arm in likelihoods}
    plain = {arm: runs.contrast(arm, PLAIN, held_out, level=1 - 0.05 / len(needed)) for arm in needed}
    others = {arm: runs.contrast(arm, CENTRE, held_out) for arm in runs.arms if arm not in [*needed, PLAIN]}
    closest = min(against_centre.items(), key=lambda pair: pair[1].estimate if pair[1].estimate is not None else 1e9)
    sentence = (
        f"of {len(CELLS)} other cells {len(good)} have no held-out loss lower by {MATTERS_NATS:g} nats or more, and "
        f"{len(better)} have ({', '.join(better) or 'none'}); {len(beaten)} are worse than the paper's choice with the "
        f"whole 95 % interval; its strongest rival minus the paper's choice, {closest[0]}: {closest[1].words(5)}."
        f"{_plain(plain)}{_likely(likelihoods)}"
    )
    headline = (
        f"a gain of {MATTERS_NATS:g} nats over the paper's choice is excluded in {len(good)} of {len(CELLS)} other "
        f"cells and shown in {len(better)}; nearest to one is {closest[0]}: {closest[1].short(5)}"
    )
    against = {arm: d for arm in [*GRID, *others] if (d := runs.differences(arm, PLAIN, held_out))}
    draw = losses_drawn(
        runs, settings, against, PLAIN, words={CENTRE: f"the paper's choice: {CENTRE}"},
        x=f"held-out loss minus that of {PLAIN}, nats per token (right of 0: worse)",
        # all have one loss, and so one colour: words tell which is the paper's choice
        note="the paper's grid from the weakest to the strongest\n"
        "dots: seeds; bars: 95 % intervals over them; shaded: too small to matter",
    )  # fmt: skip
    estimate: dict[str, Any] = {
        "strongest_rival": dict([closest]), "cell_minus_centre": against_centre, "minus_cross_entropy": plain,
        "others_minus_centre": others,
    }  # fmt: skip
    if likelihoods:
        estimate |= {"log_likelihood_minus_centre": likelihoods, "points_minus_centre": points}
    verdict = combine(list(against_centre.values()))
    return Conclusion(verdict, headline, sentence, *runs.rows(runs.tasks), estimate, draw)


def _plain(cells: Mapping[str, Decision]) -> str:
    """Which cells have a higher held-out loss than cross-entropy alone, or a lower one."""
    if cells[CENTRE].estimate is None:
        return ""
    return f" Minus {PLAIN}'s: {sides(cells)}; the paper's choice {cells[CENTRE].words(4)}."


def _likely(cells: Mapping[str, Decision]) -> str:
    """Which cells give the right answers a higher likelihood than the paper's choice does, or a lower one."""
    if not cells:
        return ""
    best = max(cells.items(), key=lambda pair: pair[1].estimate if pair[1].estimate is not None else -1e9)
    return (
        f" Log-likelihood of what is right, average over tasks, minus the paper's choice, nats per item: "
        f"{sides(cells)}; highest, {best[0]}: {best[1].words(4)} (matters from {MATTERS_SHARE:g})."
    )
