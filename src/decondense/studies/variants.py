"""The table of variants: the paper's losses, their ancestors, its baselines, and rivals it does not compare with.

All arms train on the same tokens in the same order, and the criterion compares them there, which any machine can
decide. A loss that makes a step slower is charged for it where times were kept, beside the criterion: cross-entropy is
also trained on 10 % more tokens, which says what a longer training would have bought, and an arm's *loss at matched
cost* is its held-out loss minus what cross-entropy would have reached in the same time (linear in the cost, from its
two runs of the same seed). Every arm outside the criterion is told against cross-entropy.
"""

from __future__ import annotations

from functools import partial

from ..figures.studies import effects
from ..losses.registry import registered
from ..stats.verdicts import REPRODUCED, combine, decide, interval
from .arms import recipe_of
from .runs import Conclusion, Runs, Settings, cosine, held_out

PLAIN, LONGER, OURS = "cross-entropy", "cross-entropy, 10 % more tokens", "dispersion"
PAPER = ("decorrelation", "l2_repel", "orthogonalization")  # in the paper's order
needed = (PLAIN, LONGER, OURS, *PAPER)


def arms(named: Settings) -> Settings:
    """The arms of the file, and one for every registered loss that none of them has, controls apart."""
    there = {arm.get("loss", {}).get("name") for arm in named.values()} | registered("control").keys()
    return named | {name: {"loss": {"name": name}} for name in registered() if name not in there}


def refuse(settings: Settings) -> None:
    plain, longer = (recipe_of(settings, arm, 0).steps for arm in (PLAIN, LONGER))
    if longer <= plain:  # what more tokens buy is read off the two
        raise ValueError(
            f"the arm {LONGER!r} must train for more steps than {PLAIN!r}, got {longer} and {plain}: change both with "
            f"--set, base.data.tokens and arms.{LONGER}.data.tokens."
        )


def conclude(runs: Runs, settings: Settings) -> Conclusion:
    matched = {arm: _matched(runs, arm) for arm in runs.arms if arm != LONGER}
    ours = matched.get(OURS, {})
    contrasts = {arm: runs.contrast(OURS, arm, held_out) for arm in PAPER}
    charged = {
        arm: decide([ours[s] - x for s, x in matched.get(arm, {}).items() if s in ours], claim="less") for arm in PAPER
    }
    gains = {arm: interval(list(v.values())) for arm, v in matched.items() if v and arm != PLAIN}
    better = [arm for arm in runs.arms if arm not in (PLAIN, LONGER) and _below(runs, arm)]
    sentence = "; ".join(f"{OURS} minus {arm} {d.words(4)}" for arm, d in contrasts.items())
    sentence += f"; below cross-entropy on the same tokens with the whole interval: {', '.join(better) or 'none'}. "
    if any(d.estimate is not None for d in charged.values()):
        listed = [arm for arm, (_, _, high) in gains.items() if high < 0]
        sentence += "At matched cost " + "; ".join(f"minus {arm} {d.words(4)}" for arm, d in charged.items())
        sentence += f"; below cross-entropy there: {', '.join(listed) or 'none'}."
    else:
        sentence += "At matched cost: not known, as no times were kept."
    columns, rows = runs.rows()
    columns += ["cost", "loss_at_matched_cost"]
    for row in rows:
        row += [runs.cost(row[0], row[1], PLAIN), matched.get(row[0], {}).get(row[1])]
    against = {a: d for a in runs.arms if a not in (PLAIN, LONGER) and (d := runs.differences(a, PLAIN, held_out))}
    right = []
    for arm in against:
        costs = [x for seed in runs.table[arm] if (x := runs.cost(arm, seed, PLAIN)) is not None]
        right.append(f"{runs.mean(arm, cosine):.3f} · " + (f"{sum(costs) / len(costs):.2f}×" if costs else "–"))
    draw = partial(
        effects,
        [(arm.replace("_", " "), list(against[arm])) for arm in against],
        x="held-out loss minus cross-entropy's on the same tokens, nats per token",
        right=right,
        right_title="mean cosine · cost",
        colours=[_colour(arm) for arm in against],
        note="blue: the paper's losses; pink: ancestors; green: baselines; orange: rivals",
    )
    estimate = {"contrasts": contrasts, "contrasts_at_matched_cost": charged, "at_matched_cost": gains}
    return Conclusion(combine(list(contrasts.values())), sentence, columns, rows, estimate, draw)


def _below(runs: Runs, arm: str) -> bool:
    return runs.contrast(arm, PLAIN, held_out).verdict == REPRODUCED


def _matched(runs: Runs, arm: str) -> dict[int, float]:
    """seed → held-out loss minus that of cross-entropy at the same cost: with b and b′ the losses of cross-entropy on
    1 and k times the tokens, b + (cost − 1)/(k − 1) · (b′ − b). A run without a speed has no such number."""
    result = {}
    for seed, run in runs.table[arm].items():
        plain, longer = runs.table.get(PLAIN, {}).get(seed), runs.table.get(LONGER, {}).get(seed)
        cost = 1.0 if arm == PLAIN else runs.cost(arm, seed, PLAIN)
        if plain is None or longer is None or cost is None:
            continue
        factor = (longer.tokens or 0) / (plain.tokens or 1)
        gained = (held_out(longer) - held_out(plain)) / (factor - 1)
        result[seed] = held_out(run) - (held_out(plain) + max(0.0, cost - 1) * gained)
    return result


def _colour(arm: str) -> int:
    if arm in registered("rival"):
        return 1
    return 3 if arm.endswith("ancestor") else 2 if arm in ("noisy embedding", "active forgetting") else 0
