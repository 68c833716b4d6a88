"""Two arms of a study on what both of them read: held-out documents, or the items of benchmarks.

Seeds and documents (items) are both samples, and crossed (docs/statistics.md); texts and tasks have equal weight.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..records import Training
from ..stats.crossed import crossed_macro
from ..stats.verdicts import LEAST, UNDECIDED, Decision, from_interval
from .outcomes import paired_outcomes
from .runs import MATTERS_NATS, MATTERS_POINTS, MATTERS_SHARE, Runs

__all__ = ["by_texts", "over_documents", "over_items"]

UNIT = "training seed"
Pairs = list[tuple[np.ndarray, np.ndarray]]
KINDS = {"correct": (100.0, MATTERS_POINTS), "log_share": (1.0, MATTERS_SHARE)}  # in points, in nats per item


def by_texts(base: Sequence[Training], treated: Sequence[Training]) -> Pairs:
    """Per text (base, treated), each (seeds, documents) of losses in nats per token. Both arms must have the same
    documents."""
    tables = [
        {
            text: np.array([[d.loss for d in run.held_out_documents or () if d.text == text] for run in arm], float)
            for text in dict.fromkeys(d.text for run in arm for d in run.held_out_documents or ())
        }
        for arm in (base, treated)
    ]
    if {text: table.shape[1] for text, table in tables[0].items()} != {t: x.shape[1] for t, x in tables[1].items()}:
        raise ValueError("the runs of two arms must have the same held-out documents, but they differ: run them again.")
    return [(tables[0][text], tables[1][text]) for text in tables[0]]


def over_documents(runs: Runs, arm: str, base: str, *, level: float = 0.95) -> Decision:
    """Is the held-out loss of `arm` minus that of `base`, nats per token, mean over texts of the mean over documents,
    below 0? Seeds are paired: those of one number share the order of their data. No, where a gain that matters is
    excluded."""
    treated, plain = runs.table.get(arm, {}), runs.table.get(base, {})
    seeds = [seed for seed in treated if seed in plain]
    pairs = by_texts([plain[seed] for seed in seeds], [treated[seed] for seed in seeds]) if seeds else []
    return _crossed(pairs, len(seeds), "less", MATTERS_NATS, level, paired=True)


def over_items(runs: Runs, arm: str, base: str, *, kind: str, level: float = 0.95) -> Decision | None:
    """Is the average over tasks of `arm` minus `base` above 0: of what counted as right ("correct", in points), or of
    the log-likelihood of what is right ("log_share", nats per item)? Seeds are not paired, as in `significance`. None
    where no task was scored in both."""
    sets = [list(runs.outcomes.get(name, {}).values()) for name in (base, arm)]
    scale, matters = KINDS[kind]
    pairs = [(scale * b, scale * t) for b, t in paired_outcomes(*sets, kind=kind).values()] if all(sets) else []
    return _crossed(pairs, min(map(len, sets)), "greater", matters, level, paired=False) if pairs else None


def _crossed(pairs: Pairs, seeds: int, claim: str, smallest: float, level: float, *, paired: bool) -> Decision:
    if not pairs or seeds < LEAST:
        gaps = [float(treated.mean() - base.mean()) for base, treated in pairs]
        middle = float(np.mean(gaps)) if gaps else None
        return Decision(UNDECIDED, middle, None, None, seeds, UNIT, level, f"{seeds} of at least {LEAST} {UNIT}s")
    crossed = crossed_macro(pairs, paired=paired)
    return from_interval(
        crossed.difference, *crossed.interval(level), n=seeds, claim=claim, smallest=smallest, level=level,
        resolution=crossed.minimal_effect(alpha=1 - level),
    )  # fmt: skip
