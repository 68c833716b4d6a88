"""The λ, τ table, and the choices around it: layers, clamp, sample size, weight schedule. The criterion is about the
paper's grid, and any of its cells might be the better one, so the level is divided by their number. The other choices
are told, and decide nothing."""

from __future__ import annotations

from functools import partial

from ..figures.studies import effects
from ..stats.verdicts import NOT, REPRODUCED, UNDECIDED
from .runs import Conclusion, Runs, Settings, cosine, held_out

CENTRE, *CELLS = needed = [
    f"λ {weight:g}, τ {tau:g}"
    for weight, tau in ((0.1, 1.0), (0.01, 1.0), (0.5, 1.0), (1.0, 1.0), (0.1, 0.1), (0.1, 0.5), (0.1, 2.0))
]


def conclude(runs: Runs, settings: Settings) -> Conclusion:
    beats = {arm: runs.contrast(CENTRE, arm, held_out) for arm in CELLS}
    strict = {arm: runs.contrast(CENTRE, arm, held_out, level=1 - 0.05 / len(CELLS)) for arm in CELLS}
    worse = [arm for arm, d in beats.items() if d.verdict == REPRODUCED]
    better = [arm for arm, d in strict.items() if d.verdict == NOT]
    verdict = REPRODUCED if len(worse) == len(CELLS) else NOT if better else UNDECIDED
    closest = max(beats.items(), key=lambda pair: pair[1].estimate if pair[1].estimate is not None else -1e9)
    sentence = (
        f"of {len(CELLS)} other cells {len(worse)} have a higher held-out loss than the paper's choice with the whole "
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
        colours=[0 if a in CELLS else 2 if a == "cross-entropy" else 1 for a in against],
        note="blue: the paper's grid; orange: other choices; green: cross-entropy alone",
    )
    beside = {arm: runs.contrast(arm, CENTRE, held_out) for arm in runs.arms if arm not in needed}
    estimate = {"centre_minus_cell": beats, "others_minus_centre": beside}
    return Conclusion(verdict, sentence, *runs.rows(), estimate, draw)
