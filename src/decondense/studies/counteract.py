"""C6: mid-training with cross-entropy alone leaves condensation; with the dispersion loss it goes. How much of it goes
is reported beside the verdict, since the claim's "it goes" is a matter of degree."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from ..figures.studies import heat_grid
from ..records import known
from ..stats.verdicts import decide, judged, trend_and_level
from .runs import MATTERS_COSINE, MATTERS_NATS, Conclusion, Runs, Settings, cosine, held_out, spearman
from .settings import loss_of

PLAIN, TREATED = needed = ("cross-entropy", "dispersion")


def conclude(runs: Runs, settings: Settings) -> Conclusion:
    change, trend, loss = (runs.contrast(TREATED, PLAIN, metric) for metric in (cosine, spearman, held_out))
    # secondary, and reported as such: is the other half of the claim true?
    left = decide([cosine(run) - cosine(run, 0) for run in runs.of(PLAIN)], claim="less")
    shown = {arm: runs.of(arm) for arm in needed if arm in runs}
    start = float(np.mean([cosine(run, 0) for trained in shown.values() for run in trained] or [math.nan]))
    share = -100 * known(change.estimate) / runs.mean(PLAIN, cosine)
    part = "" if math.isnan(share) else f", which is {share:.1f} % of it"
    size = judged(runs.differences(TREATED, PLAIN, cosine), MATTERS_COSINE * runs.mean(PLAIN, cosine))
    worth = judged(runs.differences(TREATED, PLAIN, held_out), MATTERS_NATS)
    verdicts = {"trend": trend.verdict, "level": change.verdict}
    sentence = (
        f"mean cosine {start:.3f} before, {runs.said(PLAIN, cosine)} after cross-entropy, "
        f"{runs.said(TREATED, cosine)} with dispersion; difference {change.words(4)}{part}{change.why}: "
        f"{size} (of {100 * MATTERS_COSINE:g} % or more). Spearman, difference {trend.words(3)}. "
        f"{trend_and_level(**verdicts)} Held-out loss {loss.words(5)}: {worth} (of {MATTERS_NATS:g} nats or more)."
    )
    headline = f"mean cosine, {TREATED} minus {PLAIN}: {change.short(4)}{part}: {size}"
    steps, moved = {}, {}  # by arm, one dot per seed: the blocks' mean cosine at every snapshot; each state's change
    for arm, trained in shown.items():
        at = [shot.step for shot in trained[0].snapshots]
        steps[arm] = (at, [[cosine(run, i) for run in trained] for i in range(len(at))])
        ends = np.array([[run.snapshots[i].mean_cosine for i in (0, -1)] for run in trained], dtype=float)
        moved[arm] = (range(ends.shape[2]), (ends[:, 1] - ends[:, 0]).T.tolist())  # (states, seeds)
    over_steps = {"title": "mean cosine of the blocks", "x": "optimiser step", "y": "mean cosine", "series": steps}
    over_depth = {"title": "after minus before, state by state", "x": "hidden state (0: embedding)", "series": moved}
    draw = partial(
        heat_grid,
        [(arm, [(f"step {s.step}", s) for s in trained[0].snapshots]) for arm, trained in shown.items()],
        note=f"seed {runs.seeds[0]}; {_loss_in_words(settings)}",
        below=[over_steps, over_depth | {"y": "mean cosine", "line": 0.0}],
    )
    estimate: dict[str, Any] = {"mean_cosine": change, "spearman": trend, "held_out_loss": loss}
    estimate |= {"cross_entropy_alone": left, "findings": {"mean_cosine": size, "held_out_loss": worth}}
    estimate |= {"share_removed_percent": share, "verdicts": verdicts}
    return Conclusion(change.verdict, headline, sentence, *runs.rows(), estimate, draw)


def _loss_in_words(settings: Settings) -> str:
    loss = loss_of(settings, TREATED)
    estimator = loss.get("options", {}).get("estimator")
    return f"λ = {loss['weight']}" + (f", {estimator.replace('_', ' ')} estimator" if estimator else "")
