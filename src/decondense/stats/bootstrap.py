"""The hierarchical bootstrap of the average over tasks: items within tasks, seeds above them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy

from .checkpoints import MANY
from .crossed import Crossed


def hierarchical_bootstrap(
    outcomes: Sequence[tuple[np.ndarray, np.ndarray]], estimate: Crossed, *, paired: bool = False, samples: int = 2000,
    seed: int = 0, clusters: Sequence[np.ndarray | None] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Resample seeds within each arm (pairs of seeds when ``paired``) and items within each task. All runs share each
    draw of items, and all tasks each draw of seeds. Where items come in clusters, whole clusters are drawn.

    Plain resampling of S seeds shows only (S − 1)/S of their variance, so the weights' deviations from 1/S are
    multiplied by √(S/(S−1)) (Rao and Wu's rescaling). Bootstrap percentiles over three seeds are those of a normal, not
    of a t, so their distance from the estimate is multiplied by the ratio of ``estimate.critical`` to the normal
    quantile. Resampling both seeds and items counts the seed × item noise more than once (Owen's pigeonhole bootstrap),
    so the interval errs on the wide side. A lone seed cannot be resampled: it is moved by the spread of the other arm's
    seeds, just as the test borrows their variance.
    """
    rng = np.random.default_rng(seed)
    sizes = [len(outcomes[0][0]), len(outcomes[0][1])]
    weights = [_seed_weights(size, samples, rng) for size in sizes]
    if paired:
        weights[0] = weights[1]
    elif min(sizes) == 1 < max(sizes):
        # in treated − base, moving the lone seed up is the same as moving the other arm down
        larger_arm = int(sizes[1] > 1)
        weights[larger_arm] = weights[larger_arm] - _borrowed_weights(sizes[larger_arm], samples, rng)
    draws = np.zeros(samples)
    for (base, treated), group in zip(outcomes, clusters or [None] * len(outcomes)):
        stacked = np.concatenate([base, treated])
        cluster_sizes = np.ones(stacked.shape[1]) if group is None else np.bincount(group).astype(np.float64)
        if group is not None:
            stacked = np.array([np.bincount(group, row) for row in stacked])
        step = max(1, 4_000_000 // stacked.shape[1])
        for start in range(0, samples, step):
            part = slice(start, min(start + step, samples))
            means = _resampled_means(stacked, cluster_sizes, part.stop - start, rng)
            base_means = np.sum(means[:, : sizes[0]] * weights[0][part], axis=1)
            treated_means = np.sum(means[:, sizes[0] :] * weights[1][part], axis=1)
            draws[part] += (treated_means - base_means) / len(outcomes)
    widen = estimate.critical(0.05) / float(scipy.special.ndtri(0.975))
    low, high = np.quantile(draws, [0.025, 0.975])
    centre = estimate.difference
    return {
        "samples": samples,
        "low": float(centre + widen * (low - centre)),
        "high": float(centre + widen * (high - centre)),
        "se": float(draws.std(ddof=1)) if samples > 1 else math.nan,
        "widened_by": widen,
    }


def _seed_weights(size: int, samples: int, rng: np.random.Generator) -> np.ndarray:
    if size == 1:
        return np.ones((samples, 1))
    counts = rng.multinomial(size, np.full(size, 1 / size), size=samples) / size
    return 1 / size + math.sqrt(size / (size - 1)) * (counts - 1 / size)


def _borrowed_weights(size: int, samples: int, rng: np.random.Generator) -> np.ndarray:
    """Weights on ``size`` seeds that sum to 0 and give a normal deviation with the unbiased variance of one seed."""
    draws = rng.standard_normal((samples, size))
    return (draws - draws.mean(1, keepdims=True)) / math.sqrt(size - 1)


def _resampled_means(table: np.ndarray, sizes: np.ndarray, rows: int, rng: np.random.Generator) -> np.ndarray:
    """table (runs, n) → (rows, runs): means over n units drawn with replacement, the same for every run. A unit is an
    item, or the sum over a cluster of ``sizes`` items. Above ``MANY`` unclustered items, where resampling would
    take seconds, the means are drawn from the normal distribution that they then follow."""
    n = table.shape[1]
    if n > MANY and sizes.max() == 1:
        return rng.multivariate_normal(table.mean(1), np.cov(table, ddof=0) / n, size=rows, method="eigh")
    drawn = rng.integers(0, n, size=(rows, n))
    drawn += n * np.arange(rows)[:, None]
    counts = np.bincount(drawn.ravel(), minlength=rows * n).reshape(rows, n)
    return counts @ table.T / (counts @ sizes)[:, None]
