"""The trend of mean cosine over depth, with intervals from a bootstrap over windows. Plain numpy.

A curve is y_l, l = 0 … n−1, one value per hidden state.

* spearman: Pearson correlation of the ranks of y with the ranks of l (ties share their mean rank);
* kendall:  τ_b = Σ_{l<m} sign(y_m − y_l) / √(P · (P − ties in y)), P = n(n−1)/2 (l itself has no ties);
* slope:    least-squares slope of y against l/(n−1): the change of mean cosine over the whole depth;
* last:     mean of y over the last ``last`` states.

Ranks count differences that may be rounding as ties. Mean cosines come from unit vectors in float32, a few roundings
of 2⁻²⁴ ≈ 6e-8 each. Where tokens differ these average out: against float64 the mean is off by at most 3e-7. Tokens that
share a few directions round alike, and with thousands of them nothing averages out: the mean is off by up to 3e-6
with two directions in 16 dimensions, so values within ``TIED`` of each other are equal, and by up to 6e-6 with one, so
values within ``COLLAPSED`` of 1 are 1.

Spearman and Kendall are the same with and without the diagonal: μ_all = 1/N + (1 − 1/N) μ_off is increasing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..files import finite
from ..records import STATISTICS
from ..stats.intervals import bootstrap

Estimate = dict[str, float | None]  # value, low and high; None where there is none
TIED, COLLAPSED = 5e-6, 1e-5


def curve_statistics(curves: np.ndarray, *, last: int = 3) -> np.ndarray:
    """curves (…, n) → (…, 4) in the order of ``STATISTICS``. NaN: the rank correlations of a curve that is constant up
    to rounding, and every trend of a single state."""
    curves = np.asarray(curves, dtype=np.float64)
    n = curves.shape[-1]
    depth = np.arange(n) - (n - 1) / 2
    spread = (depth**2).sum()
    later, earlier = np.tril_indices(n, -1)
    sign = _order(curves[..., later], curves[..., earlier])
    # The rank of y_l minus the mean rank is Σ_m sign(y_l − y_m) / 2, ties and all. (scipy.stats has ranks too, but its
    # import takes a second.)
    ranks = sign @ (np.eye(n)[later] - np.eye(n)[earlier]) / 2
    pairs = n * (n - 1) / 2
    untied = np.abs(sign).sum(-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        # One root of whole numbers instead of the product of two roots: a perfect order gives exactly 1.
        spearman = (ranks * depth).sum(-1) / np.sqrt((ranks**2).sum(-1) * spread)
        kendall = sign.sum(-1) / np.sqrt(pairs * untied)
        slope = (curves * depth).sum(-1) / spread * (n - 1)
    tail = curves[..., -min(last, n) :].mean(-1)
    return np.stack([spearman, kendall, slope, tail], axis=-1)


def _order(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the sign of a − b; 0 for a tie."""
    one, other = (np.where(np.abs(1 - v) <= COLLAPSED, 1.0, v) for v in (a, b))
    return np.where(np.abs(one - other) <= TIED, 0.0, np.sign(one - other))


def rank_correlation(x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray) -> float:
    """Return Spearman's ρ of two rows of numbers; ties share their mean rank; NaN where one row is constant."""
    rows = (np.asarray(x, np.float64), np.asarray(y, np.float64))
    a, b = (_order(row[:, None], row).sum(1) for row in rows)
    norm = np.sqrt((a @ a) * (b @ b))  # a, b: twice the rank minus the mean rank, as above
    return float(a @ b / norm) if norm > 0 else math.nan


def bootstrap_trend(table: np.ndarray, *, samples: int = 2000, seed: int = 0, last: int = 3) -> dict[str, Estimate]:
    """table (windows, states) of mean cosines → for each statistic its value on the mean curve and a 95 % interval over
    ``samples`` resamplings of the windows (``stats.intervals.bootstrap``), in which a curve of only ties counts as 0.
    The interval is ``None`` with a single window and for a statistic without a value."""
    table = np.asarray(table, dtype=np.float64)
    estimates = bootstrap(table, lambda curves: curve_statistics(curves, last=last), samples=samples, seed=seed)
    rows = finite(estimates.T.tolist())
    return {name: dict(zip(("value", "low", "high"), row)) for name, row in zip(STATISTICS, rows)}
