"""One checkpoint against another: the items are the sample.

Tests on paired outcomes, their intervals, and what they could have shown. Arrays only; docs/statistics.md, sections 2
and 6, says which test is used when, and why.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import scipy

from .intervals import mean_interval, shares, student

Pair = tuple[np.ndarray, np.ndarray]
MANY = 20_000
"""Above this number of items a resampled mean is normal to all digits shown, and is treated as normal."""


def mcnemar(gained: int, lost: int) -> float:
    """Exact two-sided McNemar test: under the null, each of the ``gained + lost`` items on which the two checkpoints
    differ goes either way with probability ½."""
    return float(min(1.0, 2 * scipy.special.bdtr(min(gained, lost), gained + lost, 0.5))) if gained + lost else 1.0


def permutation(differences: np.ndarray, *, samples: int = 10_000, seed: int = 0) -> float:
    """Paired permutation test: under the null the two runs are exchangeable on every item, so the sign of each
    difference is a fair coin. Two-sided on the mean; p = (1 + #{|mean of signed| ≥ |mean|}) / (1 + samples), never 0.
    With at most 12 non-zero differences all sign patterns are tried and p is exact; with more than 20,000, none of
    which dominates, the mean is taken as normal with the variance Σd²/n²."""
    values = np.asarray(differences, dtype=np.float64)
    values = values[values != 0]
    if len(values) < 2:  # one difference is as extreme with either sign
        return 1.0
    observed = abs(values.sum()) - 1e-9 * np.abs(values).sum()

    def extreme(signs: np.ndarray) -> int:
        """Count the rows of sign bits, 1 for plus, whose sum is at least as far from 0 as the observed one."""
        return int(np.sum(np.abs(2 * (signs @ values) - values.sum()) >= observed))

    if len(values) <= 12:
        patterns = np.arange(1 << len(values))[:, None] >> np.arange(len(values)) & 1
        return extreme(patterns) / len(patterns)
    squares = float(np.sum(values**2))
    if len(values) > MANY and np.max(values**2) < 1e-3 * squares:
        return max(1e-15, float(2 * scipy.special.ndtr(-abs(values.sum()) / math.sqrt(squares))))
    # scipy's permutation_test takes a minute for the items of mmlu: it permutes pairs of numbers where a bit is enough
    rng = np.random.default_rng(seed)
    count, step = 0, max(1, 4_000_000 // len(values))
    for start in range(0, samples, step):
        size = (min(step, samples - start), -(-len(values) // 8))
        bits = np.unpackbits(rng.integers(0, 256, size=size, dtype=np.uint8), axis=1)
        count += extreme(bits[:, : len(values)])
    return (1 + count) / (1 + samples)


# -- intervals -----------------------------------------------------------------------------------------------


def paired_interval(base: np.ndarray, treated: np.ndarray, *, level: float = 0.95) -> tuple[float, float]:
    """Interval for the difference of two checkpoints over items. 0/1 outcomes: Bonett and Price's adjusted Wald
    interval for paired proportions, which also behaves with few differing items; graded ones: Student's t, and NaN
    where the differences have no spread to estimate it from."""
    if is_binary(base, treated):
        n = len(base) + 2
        p, q = (float(np.sum(treated > base)) + 1) / n, (float(np.sum(treated < base)) + 1) / n
        half = float(scipy.special.ndtri((1 + level) / 2)) * math.sqrt((p + q - (p - q) ** 2) / n)
        return max(-1.0, p - q - half), min(1.0, p - q + half)
    difference = np.asarray(treated, np.float64) - np.asarray(base, np.float64)
    if spread(difference, float(max(np.max(np.abs(base)), np.max(np.abs(treated))))) == 0:
        return math.nan, math.nan
    mean, half = student(difference, level)
    return float(mean - half), float(mean + half)


def checkpoint_average(
    tasks: Sequence[Pair], weights: Sequence[float] | None = None,
    clusters: Sequence[np.ndarray | None] | None = None, *, samples: int = 10_000, seed: int = 0,
) -> tuple[float, tuple[float, float], tuple[float, float]]:  # fmt: skip
    """Return p, the 95 % and the 90 % interval of the difference of two checkpoints, averaged over tasks, each task
    (1, items) in both arms. p is from the permutation test on all items, each with the weight w/n of its task (clusters
    keep together); the intervals are from ``mean_interval`` and ignore clusters. A task with so few items that they do
    not vary cannot make the average look certain, as it would with a t test over items."""
    weighted = []
    for (base, treated), w, group in zip(tasks, shares(len(tasks), weights), clusters or [None] * len(tasks)):
        values = w * (treated[0] - base[0]) / base.shape[1]
        weighted.append(values if group is None else np.bincount(group, values))
    differences = [float(treated.mean() - base.mean()) for base, treated in tasks]
    outer, inner = (
        mean_interval(differences, [paired_interval(b[0], t[0], level=level) for b, t in tasks], weights)
        for level in (0.95, 0.9)
    )
    return permutation(np.concatenate(weighted), samples=samples, seed=seed), outer, inner


# -- what could have been shown ------------------------------------------------------------------------------


def mcnemar_power(items: int, discordant: float, effect: float, *, alpha: float = 0.05) -> float:
    """Probability that the exact test rejects at ``alpha``.

    ``discordant`` is the probability ψ that the checkpoints differ on an item, ``effect`` the difference δ of their
    accuracies (|δ| ≤ ψ): the number of differing items is Bin(items, ψ), and each favours the better checkpoint with
    probability (1 + δ/ψ)/2. The sum runs over all numbers of differing items within 10 standard deviations.
    """
    if discordant <= 0:
        return 0.0
    share = min(1.0, (1 + abs(effect) / discordant) / 2)
    centre, width = items * discordant, math.sqrt(items * discordant * (1 - min(discordant, 1 - 1e-12))) + 1
    numbers = np.arange(max(1, math.floor(centre - 10 * width)), min(items, math.ceil(centre + 10 * width)) + 1)
    limit = _limits(int(numbers[0]), int(numbers[-1]), alpha)
    rejected = scipy.stats.binom.cdf(limit, numbers, share) + scipy.stats.binom.sf(numbers - limit - 1, numbers, share)
    rejected = np.where(limit < 0, 0.0, rejected)
    return float(np.sum(scipy.stats.binom.pmf(numbers, items, min(1.0, discordant)) * rejected))


@lru_cache(maxsize=8)
def _limits(first: int, last: int, alpha: float) -> np.ndarray:
    """For every number n = first, …, last of differing items: the largest count k with 2·P(X ≤ k) ≤ alpha, or −1 where
    even k = 0 is not extreme enough. Cached, because a search for an effect repeats the same arguments."""
    numbers = np.arange(first, last + 1)
    limit = scipy.stats.binom.ppf(alpha / 2, numbers, 0.5)
    return np.where(2 * scipy.stats.binom.cdf(limit, numbers, 0.5) <= alpha, limit, limit - 1)


def smallest_effect(tasks: Sequence[Pair], *, alpha: float = 0.05, power: float = 0.8) -> float | None:
    """The difference, the same on every task, that the test of two checkpoints finds with the given power; ``None``
    where there are too few items for any, or no outcome differs and the size of a difference is unknown. Meant for 0/1
    outcomes and for graded ones of which few differ: where many do, the difference itself would count as noise here.

    tasks: (base, treated), each (1, items). Only items that differ enter the test, an item of task t with its
    difference over T n_t. They are replaced by m items with differences of one size that have the same sum of absolute
    values and the same sum of squares: with u_t = mean |d| and s_t = Σ d²/Σ |d| over the items of a task,

        U = mean_t u_t,     differing items m = U² / [(1/T²) Σ_t s_t u_t/n_t],

    and the power is that of McNemar's exact test on these m. For 0/1 outcomes of one task, or of tasks of one size, m
    is the number of differing items itself and the test equals McNemar's. A difference δ above u_t needs more items to
    differ: u_t is then δ. The answer is therefore never below what the exact test could reject at all."""
    sizes = np.array([base.shape[1] for base, _ in tasks], dtype=np.float64)
    total = int(sizes.sum())
    gaps = [np.abs(treated - base) for base, treated in tasks]
    mean_gap = np.array([gap.mean() for gap in gaps])
    binary = [is_binary(base, treated) for base, treated in tasks]
    unit = np.array([np.sum(g**2) / g.sum() if g.any() else 1.0 if b else math.nan for g, b in zip(gaps, binary)])
    if np.all(np.isnan(unit)):
        return None
    unit = np.where(np.isnan(unit), np.nanmax(unit), unit)

    def power_excess(effect: float) -> float:
        gap = np.maximum(mean_gap, effect)
        if not gap.any():
            return -power
        differing = gap.mean() ** 2 / (np.sum(unit * gap / sizes) / len(tasks) ** 2)
        share = min(1.0, differing / total)
        return mcnemar_power(total, share, share * effect / gap.mean(), alpha=alpha) - power

    # the effect at which all items differ
    most = 1.0 if all(binary) else max(float(mean_gap.max()), total * float(np.sum(unit / sizes)) / len(tasks) ** 2)
    return float(scipy.optimize.brentq(power_excess, 0.0, most, xtol=1e-7)) if power_excess(most) >= 0 else None


def few_differ(tasks: Sequence[Pair], *, alpha: float = 0.05, power: float = 0.8) -> bool:
    """Whether so few items differ that the test of two checkpoints would lack power even if all of them favoured the
    same one. Large differences weigh more: with d over n_t, the items count as (Σ|d|)²/Σd²."""
    gaps = np.concatenate([np.abs(treated - base).ravel() / base.shape[1] for base, treated in tasks])
    share = float(np.sum(gaps) ** 2 / np.sum(gaps**2)) / len(gaps) if gaps.any() else 0.0
    return mcnemar_power(len(gaps), share, share, alpha=alpha) < power


def is_binary(*outcomes: np.ndarray) -> bool:
    return all(bool(np.all((values == 0) | (values == 1))) for values in outcomes)


def spread(values: np.ndarray, size: float) -> float:
    """Unbiased variance; 0 where the values spread by no more than the rounding of outcomes of that size."""
    return 0.0 if len(values) < 2 or np.ptp(values) <= 1e-12 * size else float(np.var(values, ddof=1))
