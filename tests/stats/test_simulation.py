"""Known truths: with no difference the tests keep their level, with one they have the power they state, and pooling
seeds as if they were items does not. Small here; benchmarks/bench_significance.py has the full numbers."""

from __future__ import annotations

import functools
import math
from dataclasses import replace

import numpy as np
import pytest
from by_hand import crossed
from scipy import stats
from simulated_runs import Truth, simulate

from decondense.stats.bootstrap import hierarchical_bootstrap
from decondense.stats.checkpoints import checkpoint_average, mcnemar, permutation, smallest_effect
from decondense.stats.crossed import crossed_macro
from decondense.stats.significance import analyse, holm

SMALL = {"items": (250, 900, 125, 400, 200), "accuracy": (0.33, 0.3, 0.2, 0.63, 0.41)}
PAIRS = 120


def at_most(level: float, tries: int) -> float:
    """What a true rate of ``level`` exceeds with a probability of 1 in 1000."""
    return stats.binom.ppf(0.999, tries, level) / tries


def at_least(level: float, tries: int) -> float:
    return stats.binom.ppf(0.001, tries, level) / tries


@functools.cache
def rates(truth: Truth, *, seed: int = 0, tries: int = PAIRS) -> dict[str, float]:
    rng = np.random.default_rng(seed)
    counts = {"tasks": 0, "macro": 0, "pooled": 0}
    for _ in range(tries):
        outcomes = simulate(truth, rng)
        counts["tasks"] += min(holm([crossed(a, b).p for a, b in outcomes])) <= 0.05
        counts["macro"] += crossed_macro(outcomes).p <= 0.05
        # the mistake: three runs on n items as 3n items
        pooled = [mcnemar(int(np.sum(b > a)), int(np.sum(b < a))) for a, b in outcomes]
        counts["pooled"] += min(holm(pooled)) <= 0.05
    return {name: count / tries for name, count in counts.items()}


def test_simulated_accuracy_and_spread_are_as_asked():
    truth = Truth(items=(4000,), accuracy=(0.3,), seeds=(40, 40), seed_sd=0.02, effect=0.05)
    ((base, treated),) = simulate(truth, np.random.default_rng(0))
    assert base.mean() == pytest.approx(0.3, abs=0.02)
    assert treated.mean() - base.mean() == pytest.approx(0.05, abs=0.02)
    assert crossed(base, treated).seed_sd == pytest.approx(0.02, rel=0.3)


@pytest.mark.parametrize("seed_sd", [0.0, 0.01])
def test_no_difference(seed_sd):
    found = rates(Truth(**SMALL, seed_sd=seed_sd))
    assert found["tasks"] <= at_most(0.05, PAIRS)
    assert found["macro"] <= at_most(0.05, PAIRS)


def test_pooling_seeds_as_items_fails_its_level():
    found = rates(Truth(**SMALL, seed_sd=0.01))
    assert found["pooled"] > 3 * 0.05
    assert found["pooled"] > at_most(0.05, PAIRS)


def test_one_checkpoint_against_another():
    """McNemar after Holm keeps its level for the claim it makes: seed_sd = 0, so two checkpoints are exchangeable."""
    rng = np.random.default_rng(3)
    truth = Truth(**SMALL, seeds=(1, 1), seed_sd=0.0)
    hits = 0
    for _ in range(300):
        tests = [mcnemar(int(np.sum(b > a)), int(np.sum(b < a))) for a, b in simulate(truth, rng)]
        hits += min(holm(tests)) <= 0.05
    assert hits / 300 <= at_most(0.05, 300)


def test_stated_power_of_mcnemar_is_met():
    rng = np.random.default_rng(4)
    items, psi = 1000, 0.12
    seen = np.zeros((2, 1, items))
    seen[0, 0, :60] = seen[1, 0, 60:120] = 1
    effect = smallest_effect([(seen[0], seen[1])])
    up, down = (psi + effect) / 2, (psi - effect) / 2
    draws = rng.multinomial(items, [up, down, 1 - psi], size=2000)
    hits = np.mean([mcnemar(int(g), int(h)) <= 0.05 for g, h, _ in draws])
    assert at_least(0.8, 2000) <= hits <= 1 - at_least(0.2, 2000)


@pytest.mark.parametrize("shift", [0.0, 0.3, 2.0])
@pytest.mark.parametrize("shape", ["normal", "skewed", "steps"])
def test_stated_power_of_graded_outcomes_is_met(shape, shift):
    """Two checkpoints on 150 items: whatever difference they were seen with, the one stated is found 8 times in 10."""
    rng = np.random.default_rng(6)
    draw = {
        "normal": lambda n: rng.normal(size=n),
        "skewed": lambda n: rng.exponential(size=n) - 1,
        "steps": lambda n: rng.choice([-1.0, -0.5, 0.0, 0.5, 1.0], size=n),
    }[shape]
    seen = draw(150)
    (row,) = analyse({"t": (np.zeros((1, 150)), (seen + shift)[None])}, bootstrap=0)["tasks"]
    effect, spread = row["smallest_effect"], np.std(seen, ddof=1) / np.std(draw(100_000))  # this sample's, as it states
    hits = [
        permutation(spread * draw(150) + sign * effect, samples=499) <= 0.05 for sign in (-1, 1) for _ in range(300)
    ]
    assert at_least(0.8, 600) <= np.mean(hits) <= 1 - at_least(0.2, 600)


def test_stated_power_with_seeds_is_met():
    """The true variances give the standard error of the design; the effect that ``minimal_effect`` states for it is
    found at least as often as stated."""
    truth = Truth(items=(1500,), accuracy=(0.4,), seeds=(5, 5), seed_sd=0.01)
    rng = np.random.default_rng(5)
    null = [crossed(*simulate(truth, rng)[0]) for _ in range(150)]
    design = replace(
        null[0],
        seeds=tuple((float(np.mean([e.seeds[arm][0] for e in null])), 4.0) for arm in (0, 1)),
        item_variance=float(np.mean([e.item_variance for e in null])),
    )
    effect = design.minimal_effect()
    assert math.sqrt(np.mean([e.se**2 for e in null])) == pytest.approx(np.std([e.difference for e in null]), rel=0.15)
    other = Truth(items=(1500,), accuracy=(0.4,), seeds=(5, 5), seed_sd=0.01, effect=effect)
    hits = np.mean([crossed(*simulate(other, rng)[0]).p <= 0.05 for _ in range(200)])
    assert hits >= at_least(0.8, 200)


@pytest.mark.parametrize("seeds", [(1, 5), (5, 1)])
def test_bootstrap_of_a_lone_seed_covers(seeds):
    """Where seeds dominate, a lone seed that is never moved would cover 7 times in 10."""
    rng = np.random.default_rng(7)
    truth = Truth(items=(1500,), accuracy=(0.4,), seeds=seeds, seed_sd=0.05)
    inside = 0
    for number in range(PAIRS):
        outcomes = simulate(truth, rng)
        found = hierarchical_bootstrap(outcomes, crossed_macro(outcomes), samples=200, seed=number)
        inside += found["low"] <= 0 <= found["high"]
    assert inside / PAIRS >= at_least(0.95, PAIRS)


def test_average_of_two_checkpoints_keeps_its_level():
    """The permutation test over all tasks and the interval from the tasks' intervals."""
    rng = np.random.default_rng(8)
    truth = Truth(**SMALL, seeds=(1, 1), seed_sd=0.0)
    found = [checkpoint_average(simulate(truth, rng), samples=200) for _ in range(PAIRS)]
    assert np.mean([p <= 0.05 for p, _, _ in found]) <= at_most(0.05, PAIRS)
    assert np.mean([low <= 0 <= high for _, (low, high), _ in found]) >= at_least(0.95, PAIRS)


def test_interval_covers():
    rng = np.random.default_rng(6)
    truth = Truth(**SMALL, seed_sd=0.01, effect=0.02)
    inside = 0
    for _ in range(PAIRS):
        low, high = crossed_macro(simulate(truth, rng)).interval()
        inside += low <= 0.02 <= high
    assert inside / PAIRS >= at_least(0.95, PAIRS)
