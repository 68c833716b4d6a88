"""One way of training against another: training seeds and items are both samples, and crossed.

Every run answers the same items, so a difference varies with the seeds of each arm, with the items, and with both
together. ``crossed_macro`` has the model and the variance; docs/statistics.md, sections 3 and 6, the reasons.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy

from .checkpoints import mcnemar, spread
from .intervals import shares, t_quantile


@dataclass(frozen=True)
class Crossed:
    """A difference with its uncertainty over seeds and items.

    ``seeds``: (variance, degrees of freedom), what the spread of each arm's seeds adds to the variance of
    ``difference``, seed × item noise included. Two arms, or one entry for paired seeds and where a lone seed borrows
    its variance. Their sum is never below its known part, the seed × item ``noise`` (see ``_floored``).
    ``item_variance`` (arm × item) is the other part of the variance. ``seed_sd``: the spread of a seed's score beyond
    the noise, averaged over the arms (for paired seeds, that of a pair's difference). ``exact``: the p-value where both
    parts are 0 (see ``_without_variance``); no interval and no smallest effect can be stated then. ``effective``: the
    number of independent items with the variance that these items have in their clusters."""

    difference: float
    seeds: tuple[tuple[float, float], ...]
    item_variance: float
    item_df: float
    noise: float
    seed_sd: float
    exact: float = 1.0
    effective: float = math.nan

    @property
    def seed_variance(self) -> float:
        return sum(variance for variance, _ in self.seeds)

    @property
    def seed_df(self) -> float:
        """Welch's degrees of freedom."""
        bottom = sum(variance**2 / df for variance, df in self.seeds)
        return self.seed_variance**2 / bottom if bottom > 0 else math.inf

    @property
    def se(self) -> float:
        return math.sqrt(self.seed_variance + self.item_variance)

    def critical(self, alpha: float = 0.05) -> float:
        """Cochran and Cox's critical value: the t quantiles of the seeds' and the items' part, weighted by the two
        variances. Satterthwaite's single t with estimated degrees of freedom rejects too often here: with three seeds,
        a small seed variance makes the standard error small and the degrees of freedom large at once."""
        total = self.seed_variance + self.item_variance
        if total == 0:
            return float(t_quantile(alpha, math.inf))
        parts = ((self.seed_variance, self.seed_df), (self.item_variance, self.item_df))
        return float(sum(part / total * t_quantile(alpha, df) for part, df in parts if part > 0))

    @property
    def p(self) -> float:
        """The level at which the test just rejects; never below 1e-15, where the quantiles end."""
        if self.se == 0:
            return self.exact
        ratio = abs(self.difference) / self.se
        if ratio < 1e-12:
            return 1.0
        if ratio >= self.critical(1e-15):
            return 1e-15
        root = scipy.optimize.brentq(lambda e: self.critical(min(1 - 1e-15, 10**e)) - ratio, -15, 0, xtol=1e-10)
        return float(10**root)

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        if self.se == 0:
            return math.nan, math.nan
        half = self.critical(1 - level) * self.se
        return self.difference - half, self.difference + half

    def minimal_effect(self, *, alpha: float = 0.05, power: float = 0.8) -> float | None:
        """The smallest true difference that is found with the given power; ``None`` without variance, and where the
        seeds are too few for that level."""
        if self.se == 0:
            return None
        bounds, high = self.bounds(alpha), self.se
        while self.power(high, bounds) < power and high < 1e6 * self.se:
            high *= 2
        if self.power(high, bounds) < power:
            return None
        return float(scipy.optimize.brentq(lambda x: self.power(x, bounds) - power, 0.0, high, xtol=1e-6 * self.se))

    def power(self, effect: float, bounds: np.ndarray) -> float:
        """How often the test finds a true difference, if the variances are what they were estimated to be.

        Another experiment would estimate each variance V (of each arm's seeds, of the items) as V χ²_ν/ν, and reject
        when |D| > t* √(sum of the estimates) (``bounds``), D ~ N(effect, sum of the V). The power is the mean of that
        probability over equally likely values of the estimates. t* and Welch's degrees of freedom in it change with the
        estimates; a noncentral t, which fixes both, promises more power than the test has."""
        above, below = (abs(effect) - bounds) / self.se, (-abs(effect) - bounds) / self.se
        return float(np.mean(scipy.special.ndtr(above) + scipy.special.ndtr(below)))

    def bounds(self, alpha: float) -> np.ndarray:
        """How large a difference must be to be found, for every combination of likely estimates of the variances."""
        number = 400 if len(self.seeds) < 2 else 60
        estimates = [_likely_values(variance, df, number) for variance, df in self.seeds]
        items = _likely_values(self.item_variance, self.item_df, 40 if len(self.seeds) < 2 else 12)
        *arms, items = np.meshgrid(*estimates, items, indexing="ij", sparse=True)
        total = np.maximum(sum(arms, start=np.zeros(1)), self.noise)
        bottom = sum((v**2 / df for v, (_, df) in zip(arms, self.seeds)), start=np.zeros(1))
        with np.errstate(invalid="ignore"):
            df = np.where(bottom > 0, total**2 / bottom, np.inf)
        weighted = total * t_quantile(alpha, df)
        weighted = weighted + (items * t_quantile(alpha, self.item_df) if self.item_variance > 0 else 0.0)
        return weighted / np.sqrt(np.maximum(total + items, 1e-300))


def _likely_values(variance: float, df: float, number: int) -> np.ndarray:
    """``number`` equally likely values of an estimate of ``variance`` with ``df`` degrees of freedom."""
    if variance <= 0 or df > 1e9:
        return np.array([max(0.0, variance)])
    middles = (np.arange(number) + 0.5) / number
    return variance * scipy.special.chdtri(df, 1 - middles) / df


@dataclass(frozen=True)
class _Parts:
    """What one task contributes. ``units``: the number of clusters, or of items where there are none; ``effective``:
    the number of independent items with the same variance. ``item_variance``: of the mean over items of the difference
    of the arms' means; ``noise``: its seed × item part, ``noise_per_seed`` that in one seed's mean. ``size``: of the
    largest outcome, to tell rounding from spread. ``gained``, ``lost``: items on which treated is higher, lower."""

    seed_means: tuple[np.ndarray, ...]
    units: int
    effective: float
    item_variance: float
    noise: float
    noise_per_seed: float
    difference: float
    size: float
    gained: int
    lost: int


def _parts(base: np.ndarray, treated: np.ndarray, paired: bool, clusters: np.ndarray | None) -> _Parts:
    base, treated = np.asarray(base, np.float64), np.asarray(treated, np.float64)
    arms = (treated - base,) if paired else (treated, base)
    per_item = treated.mean(0) - base.mean(0)
    size = float(max(np.max(np.abs(base)), np.max(np.abs(treated))))
    noises = [_noise_of_a_seed(arm, clusters, size) for arm in arms]
    pooled = [k for k in noises if k is not None]
    # an arm of one seed borrows the other arm's noise
    per_seed = [k if k is not None else (sum(pooled) / len(pooled) if pooled else 0.0) for k in noises]
    n, varies = len(per_item), np.ptp(per_item) > 1e-12 * size
    independent, clustered = (_mean_variance(per_item, groups) if varies else 0.0 for groups in (None, clusters))
    return _Parts(
        seed_means=tuple(arm.mean(1) for arm in arms),
        units=n if clusters is None else int(clusters.max()) + 1,
        effective=n * independent / clustered if clustered else float(n),
        item_variance=clustered,
        noise=sum(k / len(arm) for k, arm in zip(per_seed, arms)),
        noise_per_seed=float(np.mean(per_seed)),
        difference=float(per_item.mean()),
        size=size,
        gained=int(np.sum(per_item > 1e-12 * size)),
        lost=int(np.sum(per_item < -1e-12 * size)),
    )


def _mean_variance(values: np.ndarray, clusters: np.ndarray | None) -> float:
    """Variance of the mean of (…, n) values, summed over all but the last axis: with G clusters,
    G/(G − 1) Σ_g (Σ_(i in g) (x_i − x̄))²/n²; without clusters, s²/n."""
    rest = np.atleast_2d(values - values.mean(-1, keepdims=True))
    if clusters is not None:
        rest = np.array([np.bincount(clusters, row) for row in rest])
    groups = rest.shape[1]
    return float(np.sum(rest**2)) * groups / max(1, groups - 1) / values.shape[-1] ** 2


def _without_variance(means: Sequence[np.ndarray], parts: Sequence[_Parts]) -> float:
    """p where neither seeds nor items vary: the larger p of two exact tests, the sign test over the items that differ
    and the permutation test of the seeds' labels. The seeds of an arm all score the same, so only the observed labels
    and, with equally many seeds in each arm, their exchange are as extreme; for pairs, all signs kept or all flipped.
    With one seed in each arm only the items are tested."""
    items = mcnemar(sum(part.gained for part in parts), sum(part.lost for part in parts))
    if len(means) == 1:
        seeds = 2 / 2 ** len(means[0])
    else:
        first, second = (len(m) for m in means)
        seeds = (2 if first == second else 1) / math.comb(first + second, first)
    return items if all(len(m) == 1 for m in means) else max(items, seeds)


def _noise_of_a_seed(arm: np.ndarray, clusters: np.ndarray | None, size: float) -> float | None:
    """The variance that seed × item adds to one seed's mean, from the residuals after seed means and item means."""
    seeds, items = arm.shape
    if seeds < 2 or items < 2:
        return None
    rest = arm - arm.mean(0, keepdims=True)
    return _mean_variance(rest, clusters) / (seeds - 1) if np.ptp(rest, axis=1).max() > 1e-12 * size else 0.0


def _floored(seeds: tuple[tuple[float, float], ...], noise: float) -> tuple[tuple[float, float], ...]:
    """The seeds' parts, raised in proportion where their sum is below the seed × item noise that it contains. The noise
    is known from all items, the spread of three seeds hardly at all: without this floor, seeds that agree by chance
    would give an interval narrower than the items alone allow."""
    total = sum(variance for variance, _ in seeds)
    if total >= noise:
        return seeds
    if total == 0:
        return tuple((noise / len(seeds), df) for _, df in seeds)
    return tuple((variance * noise / total, df) for variance, df in seeds)


def crossed_macro(
    tasks: Sequence[tuple[np.ndarray, np.ndarray]], *, paired: bool = False,
    clusters: Sequence[np.ndarray | None] | None = None, weights: Sequence[float] | None = None,
) -> Crossed:  # fmt: skip
    """Mean over tasks of treated − base, seeds and items both random and crossed. ``tasks``: base (S_A, n) and treated
    (S_B, n), the outcomes of every seed on the same n items of a task; ``clusters``: (n,) for every task, the number of
    the group that an item belongs to; ``weights`` w of the tasks, 1/T each by default.

    An outcome is y = arm + item + arm×item + seed(arm) + seed×item, so with M_s a seed's mean over tasks

        Var(difference) = Σ_arms σ²_seed/S + Σ_t w_t² [σ²_(arm×item)/n + Σ_arms σ²_(seed×item)/(n S)].

    The variance of the M_s over seeds, divided by S, estimates the first and the last term together (A); the variance
    over items of the difference of the arms' means, divided by n, the second and the last (B); the residual the last
    alone (C). A has few degrees of freedom and must not fall below the part of it that is known:

        V = max(A, C) + max(0, B − C).

    The two parts of V have their own degrees of freedom: Welch's for the seeds of two arms, nearly the number of items
    (of clusters) for the other. The test weights their t quantiles (``Crossed.critical``). With clusters B and C are
    computed from the sums over each cluster (``_mean_variance``).

    Seeds of the two arms are independent samples unless ``paired``. An arm with a single seed is given the other arm's
    seed variance; with one seed in both there is none to estimate, and the items alone are the sample.
    """
    parts = [_parts(b, t, paired, g) for (b, t), g in zip(tasks, clusters or [None] * len(tasks))]
    share = shares(len(parts), weights)
    means = [share @ np.array([part.seed_means[arm] for part in parts]) for arm in range(len(parts[0].seed_means))]
    item_parts = share**2 * [part.item_variance for part in parts]
    item_total = float(item_parts.sum())
    noise = float(share**2 @ [part.noise for part in parts])
    per_seed = float(share**2 @ [part.noise_per_seed for part in parts])
    size = max(part.size for part in parts)
    variances = [spread(m, size) if len(m) > 1 else None for m in means]
    seed_variances = [v for v in variances if v is not None]
    difference = float(share @ [part.difference for part in parts])
    exact = _without_variance(means, parts) if abs(difference) > 1e-12 * size else 1.0
    item_term = float(np.sum(item_parts**2 / [max(1, part.units - 1) for part in parts]))
    item_df = item_total**2 / item_term if item_term else math.inf
    seeds = tuple((v / len(m), len(m) - 1.0) for m, v in zip(means, variances) if v is not None)
    if seed_variances and len(seed_variances) < len(variances):
        # one arm has a single seed: its variance is the other's, one and the same estimate used twice
        seeds = ((seed_variances[0] + seeds[0][0], seeds[0][1]),)
    return Crossed(
        difference=difference,
        seeds=_floored(seeds, noise),
        item_variance=max(0.0, item_total - noise),
        item_df=item_df,
        noise=noise,
        seed_sd=math.sqrt(max(0.0, float(np.mean(seed_variances)) - per_seed)) if seed_variances else math.nan,
        exact=exact,
        effective=sum(part.effective for part in parts),
    )
