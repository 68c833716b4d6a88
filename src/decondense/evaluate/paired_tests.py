"""Tests on paired outcomes, what they could have shown, and the correction for several of them.

Everything here is numpy and scipy on arrays; docs/statistics.md says which test is used when, and why.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize, special, stats

__all__ = [
    "Crossed",
    "crossed",
    "crossed_macro",
    "holm",
    "mcnemar",
    "mcnemar_power",
    "paired_interval",
    "permutation",
    "smallest_mcnemar_effect",
]


# -- one checkpoint against another: the items are the sample ------------------------------------------------


def mcnemar(gained: int, lost: int) -> float:
    """Exact two-sided McNemar test.

    Of the ``gained + lost`` items on which the two checkpoints differ, under the null each goes either way with
    probability ½: p = min(1, 2·P(X ≤ min(gained, lost))), X ~ Bin(gained + lost, ½).
    """
    if gained < 0 or lost < 0:
        raise ValueError(f"gained and lost must be counts, got {gained} and {lost}.")
    if gained + lost == 0:
        return 1.0
    return float(min(1.0, 2 * stats.binom.cdf(min(gained, lost), gained + lost, 0.5)))


def mcnemar_power(items: int, discordant: float, effect: float, *, alpha: float = 0.05) -> float:
    """Probability that the exact test rejects at ``alpha``.

    ``discordant`` is the probability ψ that the checkpoints differ on an item, ``effect`` the difference δ of their
    accuracies (|δ| ≤ ψ): the number of differing items is Bin(items, ψ), and each favours the better checkpoint with
    probability (1 + δ/ψ)/2. The sum runs over all numbers of differing items within 10 standard deviations.
    """
    if discordant <= 0:
        return 0.0
    share = min(1.0, (1 + abs(effect) / discordant) / 2)
    centre, spread = items * discordant, math.sqrt(items * discordant * (1 - min(discordant, 1 - 1e-12))) + 1
    numbers = np.arange(max(1, math.floor(centre - 10 * spread)), min(items, math.ceil(centre + 10 * spread)) + 1)
    # largest count k with 2·P(X ≤ k) ≤ alpha; −1 where even 0 is not extreme enough
    limit = stats.binom.ppf(alpha / 2, numbers, 0.5)
    limit = np.where(2 * stats.binom.cdf(limit, numbers, 0.5) <= alpha, limit, limit - 1)
    rejected = stats.binom.cdf(limit, numbers, share) + stats.binom.sf(numbers - limit - 1, numbers, share)
    rejected = np.where(limit < 0, 0.0, rejected)
    return float(np.sum(stats.binom.pmf(numbers, items, min(1.0, discordant)) * rejected))


def smallest_mcnemar_effect(items: int, discordant: float, *, alpha: float = 0.05, power: float = 0.8) -> float | None:
    """The difference of accuracies that the exact test finds with the given power.

    The checkpoints are taken to differ on a share ``discordant`` of the items, or on as many as the difference itself
    needs when that is more. ``None`` where the items are too few for any difference."""

    def short(effect: float) -> float:
        return mcnemar_power(items, min(1.0, max(discordant, effect)), effect, alpha=alpha) - power

    if short(1.0) < 0:
        return None
    return float(optimize.brentq(short, 0.0, 1.0, xtol=1e-7))


def permutation(differences: np.ndarray, *, samples: int = 10_000, seed: int = 0) -> float:
    """Paired permutation test: under the null the two runs are exchangeable on every item, so the sign of each
    difference is a coin. Two-sided on the mean; p = (1 + #{|mean of signed| ≥ |mean|}) / (1 + samples), never 0.
    With at most 12 non-zero differences all sign patterns are tried and p is exact."""
    values = np.asarray(differences, dtype=np.float64)
    values = values[values != 0]
    if len(values) == 0:
        return 1.0
    observed = abs(values.sum())
    slack = 1e-9 * np.abs(values).sum()
    if len(values) <= 12:
        patterns = (np.arange(1 << len(values))[:, None] >> np.arange(len(values))) & 1
        return float(np.mean(np.abs((2 * patterns - 1) @ values) >= observed - slack))
    rng = np.random.default_rng(seed)
    extreme, done = 0, 0
    while done < samples:
        rows = min(samples - done, max(1, 4_000_000 // len(values)))
        bits = np.unpackbits(rng.integers(0, 256, size=(rows, -(-len(values) // 8)), dtype=np.uint8), axis=1)
        sums = 2 * (bits[:, : len(values)] @ values) - values.sum()
        extreme += int(np.sum(np.abs(sums) >= observed - slack))
        done += rows
    return (1 + extreme) / (1 + samples)


def paired_interval(base: np.ndarray, treated: np.ndarray, *, level: float = 0.95) -> tuple[float, float]:
    """Interval for the difference of two checkpoints over items. 0/1 outcomes: Bonett and Price's adjusted Wald
    interval for paired proportions, which also behaves with few differing items; graded ones: Student's t."""
    n = len(base)
    binary = bool(np.all((base == 0) | (base == 1)) and np.all((treated == 0) | (treated == 1)))
    if binary:
        gained, lost = float(np.sum(treated > base)), float(np.sum(treated < base))
        p, q = (gained + 1) / (n + 2), (lost + 1) / (n + 2)
        half = stats.norm.ppf((1 + level) / 2) * math.sqrt((p + q - (p - q) ** 2) / (n + 2))
        return max(-1.0, p - q - half), min(1.0, p - q + half)
    difference = np.asarray(treated, np.float64) - np.asarray(base, np.float64)
    if n < 2:
        return float("nan"), float("nan")
    half = stats.t.ppf((1 + level) / 2, n - 1) * difference.std(ddof=1) / math.sqrt(n)
    return float(difference.mean() - half), float(difference.mean() + half)


# -- one way of training against another: seeds and items are both samples -----------------------------------


def _t_quantile(alpha: float, df: float) -> float:
    """t_(1−α/2), from the lower tail, where a small α keeps its digits."""
    return -float(special.ndtri(alpha / 2) if df > 1e9 else special.stdtrit(df, alpha / 2))


@dataclass(frozen=True)
class Crossed:
    """A difference with its uncertainty over seeds and items.

    ``seed_variance`` (the spread over seeds, seed × item noise included) and ``item_variance`` (arm × item) are the two
    parts of the variance of ``difference``, each with its degrees of freedom. ``noise`` is the seed × item part inside
    the first; ``seed_sd`` the spread of a seed's score beyond it, averaged over the arms."""

    difference: float
    seed_variance: float
    seed_df: float
    item_variance: float
    item_df: float
    noise: float
    seed_sd: float

    @property
    def se(self) -> float:
        return math.sqrt(self.seed_variance + self.item_variance)

    @property
    def df(self) -> float:
        """Satterthwaite's degrees of freedom of the sum of the two parts; shown, but not what the test uses."""
        bottom = self.seed_variance**2 / self.seed_df + self.item_variance**2 / self.item_df
        return self.se**4 / bottom if bottom > 0 else math.inf

    def critical(self, alpha: float = 0.05) -> float:
        """Cochran and Cox: the t quantiles of the two parts, weighted by the parts. Satterthwaite's single t with
        estimated degrees of freedom rejects too often here, because with three seeds a small seed variance makes the
        standard error small and the degrees of freedom large at once."""
        total = self.seed_variance + self.item_variance
        if total == 0:
            return _t_quantile(alpha, math.inf)
        parts = ((self.seed_variance, self.seed_df), (self.item_variance, self.item_df))
        return sum(part / total * _t_quantile(alpha, df) for part, df in parts if part > 0)

    @property
    def p(self) -> float:
        """The level at which the test just rejects; never below 1e-15, where the quantiles end."""
        if self.se == 0:
            return 1.0 if self.difference == 0 else 0.0
        ratio = abs(self.difference) / self.se
        if ratio < 1e-12:
            return 1.0
        low, high = -15.0, 0.0
        if ratio >= self.critical(10.0**low):
            return 10.0**low
        return float(
            10 ** optimize.brentq(lambda e: self.critical(min(1 - 1e-15, 10**e)) - ratio, low, high, xtol=1e-10)
        )

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        half = self.critical(1 - level) * self.se
        return self.difference - half, self.difference + half

    def power(self, effect: float, *, alpha: float = 0.05) -> float:
        """How often the test finds a true difference, if the two variances are what they were estimated to be.

        With S = V_s χ²_νs/ν_s and I = V_i χ²_νi/ν_i, what another experiment would estimate, the test rejects when
        |D| > c(S, I) √(S + I), D ~ N(effect, V_s + V_i): the mean of that probability over S and I, which are taken at
        equally likely values. Both sides of the inequality move with S, so a noncentral t, which fixes c, promises
        more than the test keeps."""
        if self.se == 0:
            return 1.0 if effect else 0.0
        seeds = _likely_values(self.seed_variance, self.seed_df, 400)[:, None]
        items = _likely_values(self.item_variance, self.item_df, 40)[None, :]
        total = np.maximum(seeds + items, 1e-300)
        weighted = seeds * _t_quantile(alpha, self.seed_df) if self.seed_variance > 0 else np.zeros_like(seeds)
        weighted = weighted + (items * _t_quantile(alpha, self.item_df) if self.item_variance > 0 else 0.0)
        bound = weighted / np.sqrt(total)
        found = special.ndtr((abs(effect) - bound) / self.se) + special.ndtr((-abs(effect) - bound) / self.se)
        return float(found.mean())

    def minimal_effect(self, *, alpha: float = 0.05, power: float = 0.8) -> float:
        """The smallest true difference that is found with the given power."""
        if self.se == 0:
            return 0.0
        high = self.se
        while self.power(high, alpha=alpha) < power and high < 1e6 * self.se:
            high *= 2
        return float(optimize.brentq(lambda x: self.power(x, alpha=alpha) - power, 0.0, high, xtol=1e-6 * self.se))


def _likely_values(variance: float, df: float, number: int) -> np.ndarray:
    """``number`` equally likely values of an estimate of ``variance`` with ``df`` degrees of freedom."""
    if variance <= 0 or df > 1e9:
        return np.array([max(0.0, variance)])
    middles = (np.arange(number) + 0.5) / number
    return variance * stats.chi2.ppf(middles, df) / df


@dataclass(frozen=True)
class _Parts:
    """What one task gives: seed means per arm, the variance over items of the difference of arm means, the seed × item
    noise in it, and the same noise in one seed's mean."""

    seed_means: tuple[np.ndarray, ...]
    items: int
    item_variance: float
    noise: float
    noise_per_seed: float
    difference: float


def _parts(base: np.ndarray, treated: np.ndarray, paired: bool) -> _Parts:
    base, treated = np.asarray(base, np.float64), np.asarray(treated, np.float64)
    if base.ndim != 2 or treated.ndim != 2 or base.shape[1] != treated.shape[1]:
        raise ValueError(f"outcomes must be (seeds, items) with the same items, got {base.shape} and {treated.shape}.")
    if paired and len(base) != len(treated):
        raise ValueError(
            f"paired seeds need as many base as treated runs, got {len(base)} and {len(treated)}: leave pairing out."
        )
    n = base.shape[1]
    arms = (treated - base,) if paired else (treated, base)
    per_item = treated.mean(0) - base.mean(0)
    noise, per_seed = 0.0, []
    known = [_residual(arm) for arm in arms]
    pooled = [k for k in known if k is not None]
    for arm, residual in zip(arms, known):
        # an arm of one seed borrows the other arm's noise
        value = residual if residual is not None else (sum(pooled) / len(pooled) if pooled else 0.0)
        noise += value / (n * len(arm))
        per_seed.append(value / n)
    return _Parts(
        seed_means=tuple(arm.mean(1) for arm in arms),
        items=n,
        item_variance=float(per_item.var(ddof=1) / n) if n > 1 else 0.0,
        noise=noise,
        noise_per_seed=float(np.mean(per_seed)),
        difference=float(per_item.mean()),
    )


def _residual(arm: np.ndarray) -> float | None:
    """Mean square of seed × item: what is left after seed means and item means."""
    seeds, items = arm.shape
    if seeds < 2 or items < 2:
        return None
    rest = arm - arm.mean(1, keepdims=True) - arm.mean(0, keepdims=True) + arm.mean()
    return float(np.sum(rest**2) / ((seeds - 1) * (items - 1)))


def crossed(base: np.ndarray, treated: np.ndarray, *, paired: bool = False) -> Crossed:
    """Difference of two ways of training on one task; ``base`` (S_A, n) and ``treated`` (S_B, n) hold the outcomes
    of every seed on the same n items. See ``crossed_macro``."""
    return crossed_macro([(base, treated)], paired=paired)


def crossed_macro(tasks: Sequence[tuple[np.ndarray, np.ndarray]], *, paired: bool = False) -> Crossed:
    """Mean over tasks of treated − base, seeds and items both random and crossed.

    An outcome is y = arm + item + arm×item + seed(arm) + seed×item, so with M_s a seed's mean over tasks

        Var(difference) = Σ_arms σ²_seed/S + (1/T²) Σ_t [σ²_(arm×item)/n + Σ_arms σ²_(seed×item)/(n S)].

    The variance of the M_s over seeds, divided by S, estimates the first and the last term together; the variance over
    items of the difference of the arms' means, divided by n, the second and the last; the residual the last alone:

        V = Σ_arms s²(M_s)/S + max(0, (1/T²) Σ_t [s²_items/n − residual/(n S)]).

    The two parts of V have their own degrees of freedom: Welch's for the seeds of two arms, nearly the number of items
    for the other. The test weights their t quantiles (``Crossed.critical``).

    Seeds of the two arms are independent samples unless ``paired``. An arm with a single seed is given the other arm's
    seed variance; with one seed in both there is none to estimate, and the items alone are the sample.
    """
    parts = [_parts(base, treated, paired) for base, treated in tasks]
    count = len(parts)
    means = [np.mean([part.seed_means[arm] for part in parts], axis=0) for arm in range(len(parts[0].seed_means))]
    item_total = sum(part.item_variance for part in parts) / count**2
    noise = sum(part.noise for part in parts) / count**2
    per_seed = sum(part.noise_per_seed for part in parts) / count**2
    variances = [float(m.var(ddof=1)) if len(m) > 1 else None for m in means]
    known = [v for v in variances if v is not None]
    difference = sum(part.difference for part in parts) / count
    item_term = sum((part.item_variance / count**2) ** 2 / max(1, part.items - 1) for part in parts)
    item_df = item_total**2 / item_term if item_term else math.inf
    if not known:
        return Crossed(difference, 0.0, math.inf, item_total, item_df, 0.0, math.nan)
    seed_total, seed_term = 0.0, 0.0
    for m, v in zip(means, variances):
        if v is not None:
            seed_total += v / len(m)
            seed_term += (v / len(m)) ** 2 / (len(m) - 1)
    if len(known) < len(variances):
        # one arm has a single seed: its variance is the other's, one and the same estimate used twice
        size = next(len(m) for m, v in zip(means, variances) if v is not None)
        seed_total = known[0] * (1 / size + 1)
        seed_term = seed_total**2 / (size - 1)
    return Crossed(
        difference=difference,
        seed_variance=seed_total,
        seed_df=seed_total**2 / seed_term if seed_term > 0 else math.inf,
        item_variance=max(0.0, item_total - noise),
        item_df=item_df,
        noise=min(noise, seed_total),
        seed_sd=math.sqrt(max(0.0, float(np.mean(known)) - per_seed)),
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values: the i-th smallest of m is multiplied by m − i + 1, then made non-decreasing."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted = [0.0] * len(p_values)
    running = 0.0
    for rank, i in enumerate(order):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = running
    return adjusted
