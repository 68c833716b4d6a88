"""The table of variants: the paper's losses and baselines; at smoke and paper scale also their ancestors, and rivals
that the paper does not compare with.

All arms train on the same tokens in the same order, and the criterion compares them there, which any machine can
decide. Beside the criterion, where times were kept, a loss that makes a step slower is charged for it: cross-entropy is
also trained on 10 % more tokens, which says what a longer training would have gained, and an arm's *loss at matched
cost* is its held-out loss minus what cross-entropy would have reached in the same time (linear in the cost, from its
two runs of the same seed). Every arm outside the criterion is reported against cross-entropy. Where tasks were scored,
so are the average over them and the log-likelihood of what is right, at the level divided by the number of arms, and
the average before any training ("original": one step at a learning rate of 0, with which every warm-up begins).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

import numpy as np

from ..figures.studies import effects
from ..stats.verdicts import REPRODUCED, Decision, combine, decide, deciding, interval
from .arms import recipe_of
from .contrasts import over_items, sides
from .runs import MATTERS_NATS, MATTERS_POINTS, MATTERS_SHARE, RUINED, Conclusion, Runs, cosine, held_out, seed_of
from .settings import Settings

ORIGINAL, PLAIN, LONGER, OURS = "original", "cross-entropy", "cross-entropy, 10 % more tokens", "dispersion"
PAPER = ("decorrelation", "l2_repel", "orthogonalization")  # in the paper's order
needed = (PLAIN, OURS, *PAPER)
KINDS = THEIRS, ANCESTORS, BASELINES, RIVALS = "the paper's losses", "ancestors", "baselines", "rivals"


def refuse(settings: Settings) -> None:
    if LONGER not in settings["arms"]:
        return
    plain, longer = (recipe_of(settings, arm, 0).steps for arm in (PLAIN, LONGER))
    if longer <= plain:  # what more tokens gain is read off these two
        raise ValueError(
            f"the arm {LONGER!r} must train for more steps than {PLAIN!r}, got {longer} and {plain}: with --set, "
            f"change base.data.tokens and arms.{LONGER}.data.tokens together."
        )


def conclude(runs: Runs, settings: Settings) -> Conclusion:
    matched = {arm: _matched(runs, arm) for arm in runs.arms if arm not in (ORIGINAL, LONGER)}
    ours = matched.get(OURS, {})
    contrasts = {arm: runs.contrast(OURS, arm, held_out) for arm in PAPER}
    charged = {
        arm: decide([ours[s] - x for s, x in matched.get(arm, {}).items() if s in ours], claim="less") for arm in PAPER
    }
    gains = {arm: interval(list(v.values())) for arm, v in matched.items() if v and arm != PLAIN}
    compared = [arm for arm in runs.arms if arm not in (ORIGINAL, PLAIN, LONGER)]
    better = [arm for arm in compared if runs.contrast(arm, PLAIN, held_out).verdict == REPRODUCED]
    level = 1 - 0.05 / max(1, len(compared))
    scored = {
        kind: {arm: d for arm in compared if (d := over_items(runs, arm, PLAIN, kind=kind, level=level)) is not None}
        for kind in ("correct", "log_share")
    }
    sentence = "; ".join(f"{OURS} minus {arm} {d.words(4)}" for arm, d in contrasts.items())
    sentence += f"; below cross-entropy on the same tokens with the whole interval: {', '.join(better) or 'none'}. "
    if any(d.estimate is not None for d in charged.values()):
        listed = [arm for arm, (_, _, high) in gains.items() if high < 0]
        sentence += "At matched cost " + "; ".join(f"minus {arm} {d.words(4)}" for arm, d in charged.items())
        sentence += f"; below cross-entropy there: {', '.join(listed) or 'none'}."
    else:
        sentence += "At matched cost: not known, as no times were kept."
    sentence += _in_words(runs, scored)
    headline = f"held-out loss of {OURS}, nats, minus that of {deciding(contrasts, 4)}"
    columns, rows = runs.rows(runs.tasks)
    columns += ["cost", "loss_at_matched_cost"]
    for row in rows:
        row += [runs.costs(row[0], PLAIN).get(row[1]), matched.get(row[0], {}).get(row[1])]
    by_kind = sorted(compared, key=lambda arm: KINDS.index(_kind(arm)))
    against = {arm: gaps for arm in by_kind if (gaps := runs.differences(arm, PLAIN, held_out))}
    costs = {arm: list(runs.costs(arm, PLAIN).values()) for arm in against}
    plain_cosine = runs.mean(PLAIN, cosine)
    right = [f"{runs.mean(arm, cosine):.3f}" for arm in against]
    if timed := any(costs.values()):
        words = [f"{sum(some) / len(some):.2f}×" if some else "–" for some in costs.values()]
        right = [f"{level} · {cost}" for level, cost in zip(right, words)]
    draw = partial(
        effects, [(arm.replace("_", " "), gaps) for arm, gaps in against.items()], margin=MATTERS_NATS, far=RUINED,
        x="held-out loss minus cross-entropy's on the same tokens, nats per token",
        losses=list(against), groups=list(map(_kind, against)),
        right=right if math.isfinite(plain_cosine) else None,  # else none was measured
        right_title=f"mean cosine{' · cost' * timed} (cross-entropy {plain_cosine:.3f})",
        note="shaded: too little to matter",
    )  # fmt: skip
    estimate = {"contrasts": contrasts, "contrasts_at_matched_cost": charged, "at_matched_cost": gains}
    estimate |= {"points": scored["correct"], "log_likelihood": scored["log_share"]}
    return Conclusion(combine(list(contrasts.values())), headline, sentence, columns, rows, estimate, draw)


def _in_words(runs: Runs, scored: Mapping[str, Mapping[str, Decision]]) -> str:
    if not scored["correct"]:
        return ""
    levels = [f"{arm} {average:.2f}" for arm in (ORIGINAL, PLAIN) if math.isfinite(average := _average(runs, arm))]
    words = f" Average over tasks, points: {', '.join(levels)}"
    kinds = (("correct", 2, MATTERS_POINTS, "points"), ("log_share", 4, MATTERS_SHARE, "nats per item"))
    for kind, digits, matters, unit in kinds:
        decisions = scored[kind]
        what = "" if kind == "correct" else " Log-likelihood of what is right"
        ours = f"; {OURS} {decisions[OURS].words(digits)} {unit}" if OURS in decisions else ""
        words += f"{what}; minus cross-entropy's {sides(decisions)}{ours} (matters from {matters:g})."
    return words


def _average(runs: Runs, arm: str) -> float:
    """Over seeds and tasks, in points; perplexities apart."""
    seeds = [[x for task, x in one.items() if not task.endswith("perplexity")] for one in runs.scores(arm).values()]
    return 100 * float(np.mean([float(np.mean(scores)) for scores in seeds] or [math.nan]))


def _matched(runs: Runs, arm: str) -> dict[int, float]:
    """seed → held-out loss minus that of cross-entropy at the same cost: with b and b′ the losses of cross-entropy on
    1 and k times the tokens, b + (cost − 1)/(k − 1) · (b′ − b). A run without a speed has no such number."""
    result = {}
    costs = runs.costs(arm, PLAIN) if arm != PLAIN else dict.fromkeys(runs.seeds, 1.0)
    for run, plain, longer in runs.paired(arm, PLAIN, LONGER):
        if (seed := seed_of(run)) in costs:
            factor = (longer.tokens or 0) / (plain.tokens or 1)
            gained = (held_out(longer) - held_out(plain)) / (factor - 1)
            result[seed] = held_out(run) - (held_out(plain) + max(0.0, costs[seed] - 1) * gained)
    return result


def _kind(arm: str) -> str:
    from ..losses.registry import registered

    if arm in registered("rival"):
        return RIVALS
    if arm in ("noisy embedding", "active forgetting"):
        return BASELINES
    return ANCESTORS if arm.endswith("ancestor") else THEIRS
