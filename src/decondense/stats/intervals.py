"""The one place that computes intervals: Student's for a mean, m ± t · s/√n, and the effect that it resolves; the one
for a mean of numbers with intervals of their own; and the bootstrap over windows. numpy and scipy only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import scipy  # imports its parts when they are first used; hence no `from scipy import` anywhere in `stats`
from numpy.typing import ArrayLike

LEAST = 3  # numbers; with two the interval is 12.7 standard errors wide on each side, and says nothing


def t_quantile(alpha: float, df: Any) -> Any:
    """t_(1−α/2) of numbers or arrays: a Student variable with `df` degrees of freedom lies outside ±t with probability
    α. Computed from the lower tail, where a small α keeps its digits. (scipy.stats is a hundred times slower.)"""
    normal = scipy.special.ndtri(alpha / 2)
    return -np.where(np.greater(df, 1e9), normal, scipy.special.stdtrit(np.minimum(df, 1e9), alpha / 2))


def student(values: ArrayLike, level: float = 0.95) -> tuple[Any, Any]:
    """The mean over the first axis of `values` (n, …) and half the width of its interval; NaN where n < 2."""
    a = np.asarray(values, dtype=np.float64)
    if len(a) < 2:
        return a.mean(0), np.full(a.shape[1:], np.nan)[()]
    return a.mean(0), t_quantile(1 - level, len(a) - 1) * a.std(0, ddof=1) / np.sqrt(len(a))


def shares(n: int, weights: Sequence[float] | None) -> np.ndarray:
    """(n,) the weights, 1/n each where there are none."""
    return np.full(n, 1 / n) if weights is None else np.asarray(weights, dtype=np.float64)


def mean_interval(
    values: Sequence[float], intervals: Sequence[tuple[float, float]], weights: Sequence[float] | None = None
) -> tuple[float, float]:
    """Interval for the mean of independent values, or their sum with other weights, from the interval of each (Zou and
    Donner's MOVER): the squared distances to the lower ends add up, and so do those to the upper ends. A single value
    keeps its own interval."""
    x, ends = np.asarray(values, dtype=np.float64), np.asarray(intervals, dtype=np.float64)
    share = shares(len(x), weights)
    low, high = np.sqrt(np.sum((share[:, None] * (ends - x[:, None])) ** 2, axis=0))
    return float(share @ x - low), float(share @ x + high)


def bootstrap(
    table: np.ndarray, of: Callable[[np.ndarray], np.ndarray], *, samples: int = 2000, seed: int = 0
) -> np.ndarray:
    """(3, …): `of` applied to the mean row of `table` (n rows, …), and the ends of its 95 % interval over `samples`
    resamplings of the rows, where NaN counts as 0. With one row, or where the value itself is NaN, the ends are NaN.

    The ends are the percentiles a and 1 − a of the resamplings, a = Φ(−√(n/(n−1)) · t₀.₉₇₅,ₙ₋₁), and not 2.5 and 97.5 %
    (Hesterberg 2015, the expanded percentile interval): resampled means of n rows spread by √((n−1)/n) of what they
    should, with the tails of a normal, not of Student's t. Where a < 1/samples, as with up to four rows and 2000
    samples, the ends stop at the lowest and highest resampling: nothing is extrapolated, so the interval is too narrow.
    """
    rows, value = len(table), np.asarray(of(table.mean(0)))
    if rows < 2:
        return np.stack([value, *np.full((2, *value.shape), np.nan)])
    weights = np.random.default_rng(seed).multinomial(rows, np.full(rows, 1 / rows), size=samples)
    resampled = np.nan_to_num(of(weights @ table / rows))
    tail = scipy.special.ndtr(-np.sqrt(rows / (rows - 1)) * t_quantile(0.05, rows - 1))
    return np.stack([value, *np.where(np.isnan(value), np.nan, np.quantile(resampled, [tail, 1 - tail], axis=0))])


def resolved(half: float, level: float, df: float) -> float:
    """The smallest true effect that Student's test at 1 − `level` finds four times out of five, from half the width of
    its interval, half = t · se: se · δ with P(|Z + δ| > t √(χ²/df)) = 0.8. The spread is taken as observed."""
    return half / float(t_quantile(1 - level, df)) * _noncentrality(level, float(df))


@lru_cache(maxsize=256)
def _noncentrality(level: float, df: float) -> float:
    """δ of `resolved`, by the mean over equally likely values of χ²: scipy's noncentral t gives out for a large t."""
    shares = (np.arange(4000) + 0.5) / 4000
    limits = float(t_quantile(1 - level, df)) * np.sqrt(scipy.special.chdtri(df, shares) / df)

    def short(delta: float) -> float:
        return float(np.mean(scipy.special.ndtr(delta - limits) + scipy.special.ndtr(-delta - limits))) - 0.8

    return float(scipy.optimize.brentq(short, 0.0, 2 * float(limits.max()) + 10, xtol=1e-12))
