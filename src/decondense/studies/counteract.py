"""C6: mid-training with cross-entropy alone leaves condensation; with the dispersion loss it goes.

Criterion: mean cosine of the block outputs at the end, dispersion minus cross-entropy, is below 0; 95 % interval over
training seeds. How much of the condensation goes is said beside it: the claim's "it goes" is a matter of degree.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..stats.verdicts import decide
from . import scales, training
from .study import Conclusion, Settings, Study
from .training import Runs, cosine, held_out, joined, spearman

CRITERION = (
    "Mean cosine of the block outputs at the end of mid-training, dispersion minus cross-entropy, is below 0: 95 "
    "% interval over training seeds, each seed giving one difference."
)
PLAIN, TREATED = "cross-entropy", "dispersion"


def conclude(pieces: list[dict[str, Any]], settings: Settings) -> Conclusion:
    runs = Runs(pieces, list(settings["arms"]))
    change = decide(runs.differences(TREATED, PLAIN, cosine), claim="less")
    # secondary, and said as such: is the other half of the claim true, and what did it cost?
    left = decide([cosine(r) - cosine(r, 0) for r in runs.table.get(PLAIN, {}).values()], claim="less")
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
    columns, rows = runs.rows()

    def draw(path: Path) -> Path:
        from ..figures.studies import heat_grid

        shown = [
            (arm, [(f"step {s['step']}", s) for s in runs.first(arm)["snapshots"]])
            for arm in (PLAIN, TREATED)
            if arm in runs
        ]
        below = [
            _over_steps(runs, "mean cosine of the blocks", cosine),
            _over_depth(runs),
        ]
        return heat_grid(shown, path, note=f"seed {runs.seeds[0]}; {_loss_in_words(settings)}", below=below)

    estimate = {
        "mean_cosine": change.record(),
        "spearman": trend.record(),
        "held_out_loss": loss.record(),
        "cross_entropy_alone": left.record(),
        "share_removed_percent": share,
    }
    return Conclusion(change.verdict, sentence, columns, rows, estimate, draw)


def _over_steps(runs: Runs, title: str, metric: Any) -> dict[str, Any]:
    """The metric at every snapshot, one dot per seed."""
    series = {}
    for arm in (PLAIN, TREATED):
        table = list(runs.table.get(arm, {}).values())
        if table:
            steps = [s["step"] for s in table[0]["snapshots"]]
            series[arm] = (steps, [[metric(run, at) for run in table] for at in range(len(steps))])
    return {"title": title, "x": "optimiser step", "y": "mean cosine", "series": series}


def _over_depth(runs: Runs) -> dict[str, Any]:
    """How far each state has moved by the end, one dot per seed."""
    series = {}
    for arm in (PLAIN, TREATED):
        table = list(runs.table.get(arm, {}).values())
        if table:
            moved = [
                np.subtract(run["snapshots"][-1]["mean_cosine"], run["snapshots"][0]["mean_cosine"]) for run in table
            ]
            states = range(len(moved[0]))
            series[arm] = (states, [[float(m[i]) for m in moved] for i in states])
    title = "after minus before, state by state"
    return {"title": title, "x": "hidden state (0: embedding)", "y": "mean cosine", "line": 0.0, "series": series}


def _loss_in_words(settings: Settings) -> str:
    loss = joined(settings["base"], settings["arms"][TREATED]).get("loss", {})
    estimator = loss.get("options", {}).get("estimator")
    return f"λ = {loss.get('weight', 0.1):g}" + (f", {estimator.replace('_', ' ')} estimator" if estimator else "")


STUDY = Study(
    name="counteract",
    claim="C6",
    question="Does mid-training with the dispersion loss lower the condensation that cross-entropy alone leaves?",
    criterion=CRITERION,
    scales={
        "smoke": {
            "about": "a Llama of 2 layers and width 32 with and without the loss, 3 seeds, 4 steps",
            "cost": "15 s of a CPU core",
            "base": joined(scales.TINY_SHORT, {"snapshots": {"count": 2}}),
            "arms": {PLAIN: {}, TREATED: joined(scales.DISPERSION, {"loss": {"weight": 1.0}})},
            "seeds": scales.SEEDS,
            "heatmaps": "all",
        },
        "gpu": {
            "about": "SmolLM2-135M with and without the loss, 3 seeds, 20M tokens each, heatmaps at 6 steps",
            "cost": "3 pieces of about 3 minutes on an H200, or none with --reuse of `benchmarks`",
            "base": scales.LONG,
            "arms": {PLAIN: {}, TREATED: scales.FIRST_ORDER},
            "seeds": scales.SEEDS,
            "heatmaps": "all",
        },
        "paper": {
            "about": "GPT2 on 200M tokens of wikitext-103 with and without the loss, 3 seeds, heatmaps at 6 steps",
            "cost": "6 trainings of 200M tokens, about 6 × 15 minutes on an H200",
            "base": joined(scales.PUBLISHED_MIDTRAIN, {"snapshots": {"count": 5}}),
            "arms": {PLAIN: {}, TREATED: scales.DISPERSION},
            "seeds": scales.SEEDS,
            "heatmaps": "all",
            "arms_per_piece": 1,
        },
    },
    plan=training.plan,
    work=training.work,
    conclude=conclude,
    check=training.checking(PLAIN, TREATED),
)
