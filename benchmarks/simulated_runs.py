"""Simulated runs with a known truth, to see whether the tests say what they should.

Item i of task t is answered right by seed s of an arm when a hidden score is positive:

    μ_t(arm) + b_i + g_(arm,i) + u_(arm,s,t) + e_(arm,s,i) > 0.

b: difficulty of the item, shared by all runs; g: items that a way of training gets right or wrong whatever the seed;
u: the seed's own level on the task, correlated over tasks; e: the rest. Var b + Var g + Var e = 1, so that the expected
accuracy of a seed without u is Φ(μ). With `cluster` items in a group, `shared` of g and of e is one draw for the whole
group. Items are drawn anew in every simulation: a null is a null over items and seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

__all__ = ["PAPER_ITEMS", "Truth", "simulate"]

PAPER_ITEMS = (1000, 5153, 500, 1838, 817, 1267, 2376, 1172, 4183, 14042)
"""How many items the ten benchmarks have, in the order of ``tasks.PAPER``."""
PAPER_ACCURACY = (0.33, 0.30, 0.20, 0.63, 0.41, 0.52, 0.45, 0.24, 0.27, 0.25)
"""What a small model scores on them, roughly."""


@dataclass(frozen=True)
class Truth:
    """seed_sd, effect: in accuracy (0.005 is half a point). persistent, noise: variances of g and e."""

    items: Sequence[int] = PAPER_ITEMS
    accuracy: Sequence[float] = PAPER_ACCURACY
    seeds: tuple[int, int] = (3, 3)
    seed_sd: float | Sequence[float] = 0.005
    seed_correlation: float = 0.3
    persistent: float = 0.02
    noise: float = 0.03
    effect: float | Sequence[float] = 0.0
    paired_correlation: float = 0.0
    cluster: int = 1
    shared: float = 0.5

    def clusters(self) -> list[np.ndarray | None]:
        """For every task the group of each item."""
        return [None if self.cluster == 1 else np.arange(n) // self.cluster for n in self.items]


def simulate(truth: Truth, rng: np.random.Generator) -> list[tuple[np.ndarray, np.ndarray]]:
    """For every task (base (S_A, n), treated (S_B, n)) of zeros and ones."""
    tasks = len(truth.items)
    effects = np.broadcast_to(np.asarray(truth.effect, dtype=np.float64), (tasks,))
    spreads = np.broadcast_to(np.asarray(truth.seed_sd, dtype=np.float64), (tasks,))
    common = [rng.standard_normal(s) for s in truth.seeds]
    result = []
    for t, n in enumerate(truth.items):
        difficulty = np.sqrt(1 - truth.persistent - truth.noise) * rng.standard_normal(n)
        own = [rng.standard_normal(s) for s in truth.seeds]
        arms = []
        for arm, seeds in enumerate(truth.seeds):
            # Φ is steepest where φ(μ) is largest: a seed's spread in accuracy is the same on every task
            accuracy = truth.accuracy[t] + (effects[t] if arm else 0.0)
            level = stats.norm.ppf(accuracy)
            correlated = np.sqrt(truth.seed_correlation) * common[arm]
            z = correlated + np.sqrt(1 - truth.seed_correlation) * own[arm]
            if arm == 1 and truth.paired_correlation and truth.seeds[0] == truth.seeds[1]:
                first = np.sqrt(truth.seed_correlation) * common[0] + np.sqrt(1 - truth.seed_correlation) * own[0]
                z = truth.paired_correlation * first + np.sqrt(1 - truth.paired_correlation**2) * z
            seed_level = spreads[t] / stats.norm.pdf(level) * z
            kept = np.sqrt(truth.persistent) * _grouped(truth, rng, 1, n)[0]
            rest = np.sqrt(truth.noise) * _grouped(truth, rng, seeds, n)
            arms.append((level + difficulty + kept + seed_level[:, None] + rest > 0).astype(np.float64))
        result.append((arms[0], arms[1]))
    return result


def _grouped(truth: Truth, rng: np.random.Generator, rows: int, n: int) -> np.ndarray:
    """(rows, n) of variance 1; items of a cluster share a part of it."""
    own = rng.standard_normal((rows, n))
    if truth.cluster == 1:
        return own
    group = rng.standard_normal((rows, -(-n // truth.cluster))).repeat(truth.cluster, axis=1)[:, :n]
    return np.sqrt(truth.shared) * group + np.sqrt(1 - truth.shared) * own
