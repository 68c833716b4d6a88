"""Compare two arms of a study on what both of them read, held-out documents or the items of benchmarks, and what one
loss does to the geometry with what another does.

Seeds and documents (items) are both samples, and crossed (docs/statistics.md); texts and tasks have equal weight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..figures.studies import effects
from ..records import Training, known
from ..stats.crossed import crossed_macro
from ..stats.verdicts import NOT, REPRODUCED, UNDECIDED, Decision, decide, equivalent, from_interval, unclear, undecided
from ..words import list_of
from .outcomes import paired_outcomes
from .runs import MATTERS_NATS, MATTERS_POINTS, MATTERS_SHARE, Draw, Runs, cosine
from .settings import Settings, loss_of

NONE = "cross-entropy"  # the arm without an added loss, where models are trained from nothing
SMALLEST = 0.005  # nats per token: the smallest effect that matters there
BETWEEN = " · "  # the parts of an arm's name
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


def over_documents(runs: Runs, arm: str, base: str, *, smallest: float = MATTERS_NATS, level: float = 0.95) -> Decision:
    """Is the held-out loss of `arm` minus that of `base`, nats per token, mean over texts of the mean over documents,
    below 0? Not reproduced where a gain of `smallest` or more is excluded. Seeds are paired, as runs of one seed share
    the order of their data."""
    both = runs.paired(base, arm)
    return _crossed(by_texts(*zip(*both)) if both else [], len(both), "less", smallest, level, paired=True)


def over_items(
    runs: Runs, arm: str, base: str, *, kind: str, level: float = 0.95, only: str | None = None
) -> Decision | None:
    """Is `arm` minus `base` above 0, on average over tasks or on the one task `only`? `kind` is "correct", what counted
    as right, in points, or "log_share", the log-likelihood of what is right, in nats per item. Over the seeds that both
    have, which the interval takes as unpaired, as in `significance`. None where no task was scored in both."""
    plain, treated = (runs.outcomes.get(name, {}) for name in (base, arm))
    sets = [[one[seed] for seed in plain if seed in treated] for one in (plain, treated)]
    scale, matters = KINDS[kind]
    tasks = paired_outcomes(*sets, kind=kind) if all(sets) else {}
    pairs = [(scale * b, scale * t) for task, (b, t) in tasks.items() if only in (None, task)]
    return _crossed(pairs, len(sets[0]), "greater", matters, level, paired=False) if pairs else None


def perplexities(runs: Runs, arm: str, base: str, *, level: float) -> dict[str, Decision]:
    """Task → is its perplexity in `arm` minus that in `base`, seed by seed, below 0?"""
    treated, plain = runs.scores(arm), runs.scores(base)
    names = dict.fromkeys(name for one in plain.values() for name in one if name.endswith("perplexity"))
    gaps = {name: [treated[s][name] - plain[s][name] for s in treated if s in plain] for name in names}
    return {name: decide(some, claim="less", level=level) for name, some in gaps.items()}


def below_everywhere(
    losses: Mapping[str, Mapping[str, Decision | None]], smallest: float
) -> tuple[str, str, dict[str, Decision]]:
    """(verdict, headline, deciding difference by name). `losses`: loss → model → its difference to cross-entropy, None
    where it is not known. Reproduced where one loss has every interval below −`smallest`, not reproduced where every
    loss has one above it. What decides is the model in which a loss is farthest from a gain, for the loss that is
    nearest to one there, among losses not excluded if there are any. The headline also names losses not compared."""
    below = [loss for loss, row in losses.items() if all(d and known(d.high) < -smallest for d in row.values())]
    judged = {loss: {model: d for model, d in row.items() if d and d.low is not None} for loss, row in losses.items()}
    above = [loss for loss, row in judged.items() if any(known(d.low) > -smallest for d in row.values())]
    verdict = REPRODUCED if below else NOT if losses and len(above) == len(losses) else UNDECIDED
    open_ = [loss for loss, row in judged.items() if row and loss not in above]
    end = (lambda d: known(d.high)) if open_ else (lambda d: known(d.low))
    worst = {loss: max(row.items(), key=lambda entry: end(entry[1])) for loss, row in judged.items() if row}
    if not worst:
        return verdict, "not known, with too few seeds or none", {}
    loss = min(below or open_ or worst, key=lambda loss: end(worst[loss][1]))
    model, difference = worst[loss]
    sought = f"{smallest:g} nats of held-out loss in every model"
    if below:
        headline = f"{loss} gains {sought}; least in {model}: {difference.short()}"
    else:
        none = f"no loss {'gains' if verdict == NOT else 'is shown to gain'} {sought}"
        headline = f"{none}; nearest to it {loss}: {difference.short()} in {model}"
        if missing := [loss for loss in losses if loss not in worst]:
            headline += f"; not compared: {list_of(missing)}"
    return verdict, headline, {f"{loss} in {model}": difference}


def sides(decisions: Mapping[str, Decision]) -> str:
    """Which arms are above 0 with the whole interval, and which below. Names may have commas, so "and" joins them."""
    above = [arm for arm, d in decisions.items() if known(d.low) > 0]
    below = [arm for arm, d in decisions.items() if known(d.high) < 0]
    return f"above 0 in {' and '.join(above) or 'none'}; below 0 in {' and '.join(below) or 'none'}"


def share_of_change(runs: Runs, arm: str, whole: str, none: str, *, margin: float, around: float = 0.0) -> Decision:
    """What percentage of `whole`'s change of the mean cosine c does `arm` make, over the seeds that have all three: is
    100 (c_arm − c_none)/(c_whole − c_none) within ±`margin` of `around`? Undecided where `whole` changes nothing."""
    changes = [[cosine(run) - cosine(plain) for run in two] for *two, plain in runs.paired(arm, whole, none)]
    if not all(by_whole for _, by_whole in changes):
        return undecided(f"{whole} changes nothing", len(changes), level=0.9)
    return equivalent([100 * change / by_whole for change, by_whole in changes], margin=margin, around=around)


def losses_drawn(
    runs: Runs, settings: Settings, gaps: Mapping[str, Sequence[float]], base: str, *,
    words: Mapping[str, str] = {}, **more: Any,
) -> Draw | None:  # fmt: skip
    """The figure of `gaps`, arm → held-out losses minus those of `base`, with the mean cosines at its right; None where
    there are none. `words`: arm → what the figure calls it, if not its name. `more`: options of `effects`."""
    shown = [arm for arm, values in gaps.items() if values]
    return partial(
        effects, [(words.get(arm, arm), gaps[arm]) for arm in shown], margin=MATTERS_NATS,
        losses=[loss_of(settings, arm)["name"] for arm in shown], right=[runs.said(arm, cosine) for arm in shown],
        right_title=f"mean cosine ({words.get(base, base)}: {runs.said(base, cosine)})", **more,
    ) if shown else None  # fmt: skip


def _crossed(pairs: Pairs, seeds: int, claim: str, smallest: float, level: float, *, paired: bool) -> Decision:
    gaps = np.mean([treated.mean(1) - base.mean(1) for base, treated in pairs], axis=0).tolist() if pairs else []
    if (unknown := unclear(gaps, level=level)) is not None:
        return unknown
    crossed = crossed_macro(pairs, paired=paired)
    return from_interval(
        crossed.difference, *crossed.interval(level), n=seeds, claim=claim, smallest=smallest, level=level,
        resolution=crossed.minimal_effect(alpha=1 - level),
    )  # fmt: skip
