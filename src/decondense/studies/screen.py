"""Which losses on the hidden states are worth confirming when a small model is trained from nothing?

One seed, one budget, many arms, each at the learning rates that its name ends with. One seed decides nothing, so the
verdict is always undecided: the screen chooses what `pretrain` confirms with fresh seeds. Criterion of the choice,
stated beforehand: of every arm its best learning rate, and of those the two arms with the lowest held-out loss that
are not controls and below cross-entropy at its own best rate; two weights of one loss on the same layers count as one
arm, the better one.

The loss of a run is the mean over texts of the mean over held-out documents, nats per token.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from ..figures.studies import effects
from ..records import Training
from ..stats.verdicts import UNDECIDED
from ..words import signed
from .core import Conclusion, Study
from .runs import Runs, cosine
from .settings import Settings, joined

NONE = "cross-entropy"
CRITERION = (
    "One seed decides nothing. Of every arm its best learning rate; of those the two lowest held-out losses below that "
    "of cross-entropy at its own best rate, controls and second weights of the same loss and layers apart, go on to "
    "the study pretrain."
)


def by_document(run: Training) -> float:
    """Held-out loss, nats per token: mean over texts of the mean over documents."""
    texts: dict[str, list[float]] = {}
    for document in run.held_out_documents or ():
        texts.setdefault(document.text, []).append(math.nan if document.loss is None else document.loss)
    return sum(sum(losses) / len(losses) for losses in texts.values()) / len(texts) if texts else math.nan


def expanded(arms: dict[str, Any]) -> Settings:
    """Every arm at each of its `rates`, named "ARM @ RATE"."""
    return {
        f"{arm} @ {rate:g}": joined({key: value for key, value in change.items() if key != "rates"},
                                    {"train": {"learning_rate": rate}})
        for arm, change in arms.items()
        for rate in change["rates"]
    }  # fmt: skip


def conclude(runs: Runs, settings: Settings) -> Conclusion:
    losses = {arm: runs.mean(arm, by_document) for arm in runs.arms}
    best: dict[str, str] = {}
    for arm in sorted((a for a in losses if math.isfinite(losses[a])), key=losses.__getitem__):
        best.setdefault(arm.partition(" @ ")[0], arm)
    base = losses[best[NONE]] if NONE in best else math.nan
    chosen: dict[tuple[Any, Any], str] = {}
    for arm in best.values():
        loss = joined(settings["base"], settings["arms"][arm]).get("loss", {})
        if loss.get("name", "none") != "none" and losses[arm] < base:
            chosen.setdefault((loss["name"], str(loss.get("layers", "all"))), arm)
    winners = list(chosen.values())[:2]
    named = ", ".join(f"{arm} ({signed(losses[arm] - base, 4)})" for arm in winners)
    sentence = (
        f"one seed; against cross-entropy at its best rate, {f'{base:.4f}' if math.isfinite(base) else 'not run'}, go "
        f"on: {named or 'none'}; {len(runs.arms)} of {len(settings['arms'])} arms were run."
    )
    columns = ["arm", "loss", "minus_cross_entropy", "minus_same_rate", "mean_cosine", "mean_cosine_last_state"]
    rows: list[list[Any]] = []
    for arm in sorted(runs.arms, key=lambda a: (math.isnan(losses[a]), losses[a])):
        same = losses.get(f"{NONE} @ {arm.partition(' @ ')[2]}", math.nan)
        shots = [run.snapshots[-1].mean_cosine[-1] for run in runs.of(arm) if run.snapshots]
        last = shots[0] if shots and shots[0] is not None else math.nan
        geometry = runs.mean(arm, cosine) if shots else math.nan
        rows.append([arm, losses[arm], losses[arm] - base, losses[arm] - same, geometry, last])
    draw = partial(
        effects,
        [(row[0], [row[2]]) for row in rows],
        x="held-out loss minus that of cross-entropy at its best rate, nats per token",
        note="one seed each: this chooses what is confirmed, and decides nothing",
    )
    estimate = {"cross_entropy": base, "chosen": winners}
    return Conclusion(UNDECIDED, sentence, columns, rows, estimate, draw if math.isfinite(base) else None)


STUDY = Study(
    "screen", "Table 4", "Trained from nothing, which losses on the hidden states are worth confirming?",
    CRITERION, conclude, arms=expanded,
)  # fmt: skip
