"""C6: mid-training with cross-entropy alone leaves condensation; with the dispersion loss it goes.

Criterion: mean cosine of the block outputs at the end, dispersion minus cross-entropy, is below 0; 95 % interval over
training seeds. How much of the condensation goes is said beside it: the claim's "it goes" is a matter of degree.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from ..figures.studies import heat_grid
from ..records import Training
from ..stats.verdicts import decide
from .arms import checking
from .core import Conclusion, Study
from .runs import Runs, cosine, held_out, spearman
from .settings import Settings, joined

CRITERION = (
    "Mean cosine of the block outputs at the end of mid-training, dispersion minus cross-entropy, is below 0: 95 "
    "% interval over training seeds, each seed giving one difference."
)
PLAIN, TREATED = "cross-entropy", "dispersion"


def conclude(runs: Runs, settings: Settings) -> Conclusion:
    change = decide(runs.differences(TREATED, PLAIN, cosine), claim="less")
    # secondary, and said as such: is the other half of the claim true, and what did it cost?
    left = decide([cosine(run) - cosine(run, 0) for run in runs.of(PLAIN)], claim="less")
    trend = decide(runs.differences(TREATED, PLAIN, spearman), claim="less")
    loss = decide(runs.differences(TREATED, PLAIN, held_out), claim="less")
    starts = runs.values(PLAIN, lambda r: cosine(r, 0)) + runs.values(TREATED, lambda r: cosine(r, 0))
    start = float(np.mean(starts)) if starts else float("nan")
    share = -100 * change.estimate / runs.mean(PLAIN, cosine) if change.estimate is not None else float("nan")
    sentence = (
        f"mean cosine {start:.3f} before, {runs.mean(PLAIN, cosine):.3f} after cross-entropy, "
        f"{runs.mean(TREATED, cosine):.3f} with dispersion; difference {change.words(4)}, which is {share:.1f} % of it"
        f"{change.why}. Held-out loss {loss.words(5)}."
    )
    shown = {arm: runs.of(arm) for arm in (PLAIN, TREATED) if arm in runs}
    draw = partial(
        heat_grid,
        [(arm, [(f"step {s.step}", s) for s in trained[0].snapshots]) for arm, trained in shown.items()],
        note=f"seed {runs.seeds[0]}; {_loss_in_words(settings)}",
        below=[_over_steps(shown), _over_depth(shown)],
    )
    estimate = {"mean_cosine": change, "spearman": trend, "held_out_loss": loss, "cross_entropy_alone": left}
    return Conclusion(change.verdict, sentence, *runs.rows(), estimate | {"share_removed_percent": share}, draw)


def _over_steps(shown: Mapping[str, list[Training]]) -> dict[str, Any]:
    """Mean cosine of the blocks at every snapshot, one dot per seed."""
    series = {}
    for arm, trained in shown.items():
        steps = [s.step for s in trained[0].snapshots]
        series[arm] = (steps, [[cosine(run, at) for run in trained] for at in range(len(steps))])
    return {"title": "mean cosine of the blocks", "x": "optimiser step", "y": "mean cosine", "series": series}


def _over_depth(shown: Mapping[str, list[Training]]) -> dict[str, Any]:
    """How far each state has moved by the end, one dot per seed."""
    series = {}
    for arm, trained in shown.items():
        ends = np.array([[run.snapshots[at].mean_cosine for at in (0, -1)] for run in trained], dtype=float)
        moved = (ends[:, 1] - ends[:, 0]).T.tolist()  # (states, seeds)
        series[arm] = (range(len(moved)), moved)
    title = "after minus before, state by state"
    return {"title": title, "x": "hidden state (0: embedding)", "y": "mean cosine", "line": 0.0, "series": series}


def _loss_in_words(settings: Settings) -> str:
    loss = joined(settings["base"], settings["arms"][TREATED]).get("loss", {})
    estimator = loss.get("options", {}).get("estimator")
    return f"λ = {loss.get('weight', 0.1):g}" + (f", {estimator.replace('_', ' ')} estimator" if estimator else "")


STUDY = Study(
    "counteract", "C6",
    "Does mid-training with the dispersion loss lower the condensation that cross-entropy alone leaves?",
    CRITERION, conclude, check=checking(PLAIN, TREATED),
)  # fmt: skip
