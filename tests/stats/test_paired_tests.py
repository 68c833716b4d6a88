"""The tests themselves: brute force, closed forms, and other people's implementations."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from by_hand import crossed
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from decondense.stats.checkpoints import mcnemar, mcnemar_power, paired_interval, permutation, smallest_effect
from decondense.stats.crossed import Crossed, crossed_macro
from decondense.stats.intervals import mean_interval
from decondense.stats.significance import holm


@given(st.integers(0, 14), st.integers(0, 14))
def test_mcnemar_by_counting_all_outcomes(gained, lost):
    """Every way the differing items could have gone, each equally likely; at least as extreme as what was seen."""
    n = gained + lost
    seen = abs(gained - lost)
    extreme = sum(math.comb(n, k) for k in range(n + 1) if abs(2 * k - n) >= seen)
    assert mcnemar(gained, lost) == pytest.approx(extreme / 2**n, rel=1e-12)


@pytest.mark.parametrize(("n", "psi", "delta"), [(30, 0.3, 0.2), (60, 0.1, 0.1), (25, 1.0, 0.5), (40, 0.2, 0.0)])
def test_mcnemar_power_by_summing_over_everything(n, psi, delta):
    """All numbers of gained and lost items with their multinomial probabilities."""
    up, down = (psi + delta) / 2, (psi - delta) / 2
    total = 0.0
    for gained in range(n + 1):
        for lost in range(n - gained + 1):
            if mcnemar(gained, lost) <= 0.05:
                total += stats.multinomial.pmf([gained, lost, n - gained - lost], n, [up, down, max(0.0, 1 - psi)])
    assert mcnemar_power(n, psi, delta) == pytest.approx(total, abs=1e-9)


def differing(items, number):
    """Two checkpoints that differ on so many items, half of them either way."""
    base, treated = np.zeros((2, 1, items))
    base[0, : number // 2] = treated[0, number // 2 : number] = 1
    return base, treated


def test_smallest_effect_has_the_power_it_states():
    effect = smallest_effect([differing(1000, 100)], alpha=0.005)
    assert mcnemar_power(1000, 0.1, effect, alpha=0.005) == pytest.approx(0.8, abs=1e-3)
    # few differing items seen: a difference needs at least as many as itself
    assert smallest_effect([differing(1000, 0)]) == pytest.approx(8 / 1000, rel=0.2)
    assert smallest_effect([differing(4, 2)]) is None
    # tasks of one size are one task; graded outcomes that never differ say nothing
    assert smallest_effect([differing(500, 50)] * 2) == pytest.approx(smallest_effect([differing(1000, 100)]), rel=1e-6)
    assert smallest_effect([(np.full((1, 9), 0.3), np.full((1, 9), 0.3))]) is None


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=9), st.sampled_from([1, 10, 3]))
@example([2, 1, -1, -3, 1], 10)
@settings(max_examples=40)
def test_permutation_by_all_signs(differences, parts):
    """In whole numbers, in which as much is as much; tenths do not sum to 0."""
    signed = [abs(np.dot(differences, signs)) for signs in itertools.product((-1, 1), repeat=len(differences))]
    expected = np.mean(np.array(signed) >= abs(sum(differences)))
    assert permutation(np.array(differences) / parts) == pytest.approx(expected, abs=1e-12)


def test_permutation_sampled_agrees_with_mcnemar_and_t():
    rng = np.random.default_rng(3)
    signs = np.array([1.0] * 60 + [-1.0] * 38 + [0.0] * 400)
    assert permutation(signs) == pytest.approx(mcnemar(60, 38), abs=0.005)
    values = rng.normal(0.15, 1, 300)
    assert permutation(values) == pytest.approx(stats.ttest_1samp(values, 0).pvalue, abs=0.01)
    assert permutation(values) == permutation(values)
    assert permutation(np.zeros(9)) == 1.0
    assert permutation(values + 5) == 1 / 10_001


def test_paired_interval():
    base = np.array([1.0] * 50 + [0.0] * 50)
    treated = np.array([1.0] * 45 + [0.0] * 5 + [1.0] * 12 + [0.0] * 38)
    low, high = paired_interval(base, treated)
    p, q = 13 / 102, 6 / 102  # Bonett and Price: one is added to either count
    half = 1.959964 * math.sqrt((p + q - (p - q) ** 2) / 102)
    assert (low, high) == pytest.approx((p - q - half, p - q + half), rel=1e-6)
    x, y = np.random.default_rng(0).random((2, 40))
    expected = stats.ttest_rel(y, x).confidence_interval()
    assert paired_interval(x, y) == pytest.approx((expected.low, expected.high))


# -- seeds and items -----------------------------------------------------------------------------------------


def brute_variance(tasks):
    """The formula of docs/statistics.md with loops: two arms, independent seeds."""
    t_count = len(tasks)
    macro = [[np.mean([task[arm][s].mean() for task in tasks]) for s in range(len(tasks[0][arm]))] for arm in (0, 1)]
    seed_part = sum(np.var(m, ddof=1) / len(m) for m in macro)
    item_part = noise_part = 0.0
    for task in tasks:
        n = task[0].shape[1]
        differences = [np.mean([r[i] for r in task[1]]) - np.mean([r[i] for r in task[0]]) for i in range(n)]
        item_part += np.var(differences, ddof=1) / n / t_count**2
        for arm in task:
            s_count = len(arm)
            total = 0.0
            for s in range(s_count):
                for i in range(n):
                    total += (arm[s, i] - arm[s].mean() - arm[:, i].mean() + arm.mean()) ** 2
            noise_part += total / ((s_count - 1) * (n - 1)) / (n * s_count) / t_count**2
    return max(seed_part, noise_part) + max(0.0, item_part - noise_part)


@pytest.mark.parametrize("shape", [((3, 3), (40,)), ((2, 4), (17, 30)), ((5, 3), (8, 9, 50))])
def test_crossed_against_loops(shape):
    (a, b), sizes = shape
    rng = np.random.default_rng(5)
    tasks = [((rng.random((a, n)) < 0.5).astype(float), rng.random((b, n))) for n in sizes]
    estimate = crossed_macro(tasks)
    assert estimate.se**2 == pytest.approx(brute_variance(tasks), rel=1e-10)
    assert estimate.difference == pytest.approx(np.mean([y.mean() - x.mean() for x, y in tasks]))


def test_without_item_heterogeneity_it_is_welchs_t_test():
    """Items that all answer alike leave the seeds' spread only."""
    levels = [np.array([0.1, 0.4, 0.2]), np.array([0.5, 0.9, 0.3, 0.6])]
    base, treated = (np.repeat(level[:, None], 50, axis=1) for level in levels)
    estimate = crossed(base, treated)
    welch = stats.ttest_ind(levels[1], levels[0], equal_var=False)
    assert estimate.p == pytest.approx(welch.pvalue, rel=1e-6)
    assert estimate.seed_df == pytest.approx(welch.df)
    assert estimate.interval() == pytest.approx(tuple(welch.confidence_interval()), rel=1e-6)


def test_paired_without_item_heterogeneity_is_the_paired_t_test():
    x, y = np.array([0.1, 0.4, 0.2]), np.array([0.3, 0.5, 0.35])
    estimate = crossed(np.repeat(x[:, None], 20, 1), np.repeat(y[:, None], 20, 1), paired=True)
    assert estimate.p == pytest.approx(stats.ttest_rel(y, x).pvalue, rel=1e-6)


def test_identical_seeds_leave_the_items():
    """Three copies have no seed variance: what remains is the paired t test over items, not three times the items."""
    rng = np.random.default_rng(1)
    x, y = (rng.random((2, 200)) < 0.5).astype(float)
    estimate = crossed(np.tile(x, (3, 1)), np.tile(y, (3, 1)))
    assert estimate.p == pytest.approx(stats.ttest_rel(y, x).pvalue, rel=1e-3)
    assert estimate.seed_variance == 0


def test_one_seed_each_is_the_paired_t_test_over_items():
    rng = np.random.default_rng(2)
    x, y = rng.random((2, 1, 80))
    assert crossed(x, y).p == pytest.approx(stats.ttest_rel(y[0], x[0]).pvalue, rel=1e-3)


def test_a_single_seed_borrows_the_other_arms_variance():
    rng = np.random.default_rng(2)
    base, treated = rng.random((1, 50)), rng.random((3, 50)) + np.array([[0], [0.1], [0.2]])
    spread = treated.mean(1).var(ddof=1)
    estimate = crossed(base, treated)
    assert estimate.seed_variance == pytest.approx(spread * (1 + 1 / 3))
    assert estimate.seed_df == pytest.approx(2)


def test_swapping_the_arms_changes_the_sign_only():
    rng = np.random.default_rng(8)
    base, treated = rng.random((3, 60)), rng.random((4, 60))
    one, other = crossed(base, treated), crossed(treated, base)
    assert one.difference == pytest.approx(-other.difference)
    assert one.p == pytest.approx(other.p)


def test_p_is_the_level_of_the_interval_that_touches_zero():
    rng = np.random.default_rng(8)
    estimate = crossed(rng.random((3, 60)), rng.random((3, 60)) + 0.1)
    low, high = estimate.interval(1 - estimate.p)
    assert min(abs(low), abs(high)) == pytest.approx(0, abs=1e-9)


def relabelled(base, treated):
    """All ways to call so many of the runs base; as extreme as what was seen."""
    runs = np.concatenate([base, treated]).mean(1)
    seen, extreme, count = abs(treated.mean() - base.mean()), 0, 0
    for chosen in itertools.combinations(range(len(runs)), len(base)):
        rest = [i for i in range(len(runs)) if i not in chosen]
        extreme += abs(runs[list(chosen)].mean() - runs[rest].mean()) >= seen - 1e-12
        count += 1
    return extreme / count


@pytest.mark.parametrize("seeds", [(3, 3), (2, 2), (2, 4), (1, 5)])
@pytest.mark.parametrize("items", [3, 10])
def test_no_variance_at_all(seeds, items):
    """Nothing to measure a difference by: exact tests, over seeds and over items, and never a p of 0."""
    base, treated = (np.zeros((s, items)) for s in seeds)
    same = crossed(base, treated)
    assert (same.p, same.minimal_effect()) == (1.0, None)
    assert all(math.isnan(end) for end in same.interval())
    other = crossed(base, treated + 1)
    assert other.p == pytest.approx(max(relabelled(base, treated + 1), mcnemar(items, 0)))
    assert other.minimal_effect() is None


def test_no_variance_with_paired_seeds_or_one_seed():
    assert crossed(np.zeros((3, 20)), np.ones((3, 20)), paired=True).p == pytest.approx(2 / 2**3)
    assert crossed(np.zeros((1, 2)), np.ones((1, 2))).p == pytest.approx(0.5)
    # what one task gains the other loses: no difference
    opposite = [(np.zeros((1, 5)), np.ones((1, 5))), (np.ones((1, 5)), np.zeros((1, 5)))]
    assert crossed_macro(opposite).p == 1.0


def test_rounding_is_not_a_variance():
    x = np.random.default_rng(0).random((3, 60))
    shifted = crossed(x, x + 0.1, paired=True)
    assert shifted.se == 0
    assert shifted.p == pytest.approx(2 / 2**3)
    assert all(math.isnan(end) for end in paired_interval(x[0], x[0] + 0.1))


def test_seeds_that_tie_by_chance_are_no_proof():
    """Two seeds with equal scores and much seed × item noise: that noise is the least their variance can be."""
    base = np.array([[1.0, 0, 0, 0], [0, 1.0, 0, 0]])
    treated = np.array([[1.0, 1, 0, 0], [0, 0, 1.0, 1]])
    estimate = crossed(base, treated)
    per_arm = [np.var(arm - arm.mean(0), axis=1, ddof=1).sum() / (2 - 1) / 4 for arm in (base, treated)]
    assert estimate.se**2 == pytest.approx(sum(per_arm) / 2)
    assert estimate.p >= 1 / 3


def brute_cluster_variance(values, clusters):
    """Of a mean: G/(G − 1) Σ_g (Σ_(i in g) (x_i − x̄))²/n²."""
    names = sorted(set(clusters))
    sums = [sum(x - np.mean(values) for x, c in zip(values, clusters) if c == name) for name in names]
    return len(names) / (len(names) - 1) * sum(s**2 for s in sums) / len(values) ** 2


def test_clusters_against_loops():
    rng = np.random.default_rng(0)
    clusters = rng.integers(0, 7, 60)
    base, treated = rng.random((3, 60)), rng.random((2, 60)) + 0.3 * rng.random(7)[clusters]
    estimate = crossed(base, treated, clusters=[clusters])
    per_item = treated.mean(0) - base.mean(0)
    noise = 0.0
    for arm in (base, treated):
        of_seeds = [brute_cluster_variance(row - arm.mean(0), clusters) for row in arm]
        noise += sum(of_seeds) / (len(arm) - 1) / len(arm)
    seeds = sum(np.var(arm.mean(1), ddof=1) / len(arm) for arm in (base, treated))
    items = brute_cluster_variance(per_item, clusters)
    assert estimate.se**2 == pytest.approx(max(seeds, noise) + max(0.0, items - noise), rel=1e-12)
    assert estimate.item_df == pytest.approx(6)
    assert estimate.effective == pytest.approx(60 * np.var(per_item, ddof=1) / 60 / items)
    alone = crossed(base, treated, clusters=[np.arange(60)])
    assert alone.se == pytest.approx(crossed(base, treated).se)
    assert alone.effective == pytest.approx(60)


def test_clusters_against_statsmodels():
    """The cluster-robust standard error of a mean, as statsmodels 0.15.0 gives it:
    OLS(values, ones).fit(cov_type="cluster", cov_kwds={"groups": clusters}).bse[0]."""
    values = np.array([0.3, 0.1, 0.9, 0.8, 0.2, 0.0, 0.7, 0.6, 0.5, 0.4])
    clusters = np.array([0, 0, 1, 1, 2, 2, 3, 3, 3, 0])
    estimate = crossed(np.zeros((1, 10)), values[None], clusters=[clusters])
    assert estimate.se == pytest.approx(0.14764823060233395, rel=1e-12)


def test_weights_of_tasks_by_loops():
    rng = np.random.default_rng(1)
    tasks = [(rng.random((3, n)), rng.random((4, n)) + shift) for n, shift in ((20, 0.1), (50, 0.3))]
    weights = [0.8, 0.2]
    estimate = crossed_macro(tasks, weights=weights)
    assert estimate.difference == pytest.approx(sum(w * (t.mean() - b.mean()) for w, (b, t) in zip(weights, tasks)))
    seeds = 0.0
    for arm in (0, 1):
        means = [sum(w * task[arm][s].mean() for w, task in zip(weights, tasks)) for s in range(len(tasks[0][arm]))]
        seeds += np.var(means, ddof=1) / len(means)
    noise = sum(w**2 * crossed(b, t).noise for w, (b, t) in zip(weights, tasks))
    items = sum(w**2 * np.var(t.mean(0) - b.mean(0), ddof=1) / b.shape[1] for w, (b, t) in zip(weights, tasks))
    assert estimate.se**2 == pytest.approx(max(seeds, noise) + max(0.0, items - noise))


def test_mean_interval():
    """Of one difference its own; of normal ones what adding variances gives."""
    assert mean_interval([0.2], [(-0.1, 0.4)]) == pytest.approx((-0.1, 0.4))
    ses = np.array([0.01, 0.03, 0.02])
    differences = np.array([0.1, 0.0, 0.05])
    low, high = mean_interval(differences, [(d - 1.96 * s, d + 1.96 * s) for d, s in zip(differences, ses)])
    half = 1.96 * math.sqrt(np.sum(ses**2)) / 3
    assert (low, high) == pytest.approx((0.05 - half, 0.05 + half))


def of_variances(seed: float, seed_df: float, item: float, item_df: float) -> Crossed:
    return Crossed(0.0, ((seed, seed_df),), item, item_df, noise=0.0, seed_sd=0.0)


@pytest.mark.parametrize("parts", [(1e-4, 4, 2e-5, 900), (3e-5, 2, 1e-4, 400), (0.0, 4, 1.0, math.inf)])
@pytest.mark.parametrize("alpha", [0.05, 0.005])
def test_minimal_effect_has_the_power_it_states(parts, alpha):
    """By drawing what the definition draws: two estimated variances and a difference, then the test itself."""
    design = of_variances(*parts)
    effect = design.minimal_effect(alpha=alpha)
    assert design.power(effect, design.bounds(alpha)) == pytest.approx(0.8, abs=1e-4)
    rng = np.random.default_rng(0)
    n = 4000
    drawn = [
        np.full(n, v) if math.isinf(df) or v == 0 else v * rng.chisquare(df, n) / df
        for v, df in ((parts[0], parts[1]), (parts[2], parts[3]))
    ]
    differences = rng.normal(effect, design.se, n)
    hits = [
        abs(d) > of_variances(s, parts[1], i, parts[3]).critical(alpha) * math.sqrt(s + i)
        for d, s, i in zip(differences, *drawn)
    ]
    assert np.mean(hits) == pytest.approx(0.8, abs=0.025)
    if math.isinf(parts[3]):
        assert effect == pytest.approx(stats.norm.ppf(1 - alpha / 2) + stats.norm.ppf(0.8), abs=1e-3)


@pytest.mark.parametrize("arms", [((1e-4, 4), (1e-4, 4)), ((4e-5, 1), (1e-4, 3)), ((1e-4, 2), (0.0, 2))])
@pytest.mark.parametrize("alpha", [0.05, 0.005])
def test_power_takes_in_that_welchs_degrees_of_freedom_are_estimated(arms, alpha):
    """Two arms, each with its estimated variance: the test with Welch's degrees of freedom of what was drawn."""
    design = Crossed(0.0, arms, 2e-5, 900, noise=0.0, seed_sd=0.0)
    effect = design.minimal_effect(alpha=alpha)
    rng = np.random.default_rng(1)
    hits = []
    for _ in range(4000):
        drawn = tuple((v * rng.chisquare(df) / df, df) for v, df in arms)
        seen = Crossed(0.0, drawn, 2e-5 * rng.chisquare(900) / 900, 900, noise=0.0, seed_sd=0.0)
        hits.append(abs(rng.normal(effect, design.se)) > seen.critical(alpha) * seen.se)
    assert np.mean(hits) == pytest.approx(0.8, abs=0.02)


@pytest.mark.parametrize(("alpha", "ends"), [(0.05, (0.55, 1.53)), (0.005, (0.6, 1.8))])
def test_how_far_the_stated_effect_is_off_with_three_seeds(alpha, ends):
    """docs/statistics.md, section 6: the middle 8 of 10 experiments, over what the true variances would state. The
    effect is √(sum of the variances) times a function of the larger one's share."""

    def stated(first, second):
        return Crossed(0.0, ((first, 2), (second, 2)), 0.0, 900, noise=0.0, seed_sd=0.0).minimal_effect(alpha=alpha)

    shares = np.linspace(0.5, 1, 13)
    factors = [stated(share, 1 - share) for share in shares]
    drawn = np.random.default_rng(0).chisquare(2, (100_000, 2)) / 2
    total = drawn.sum(1)
    effects = np.sqrt(total) * np.interp(drawn.max(1) / total, shares, factors)
    assert np.quantile(effects, [0.1, 0.9]) / stated(1.0, 1.0) == pytest.approx(ends, abs=0.01)


def test_power_of_one_sample_is_that_of_students_test():
    """One source of variance: the noncentral t, here by simulation."""
    rng = np.random.default_rng(0)
    samples = rng.normal(1.2, 1, size=(20_000, 5))
    hits = np.mean(stats.ttest_1samp(samples, 0, axis=1).pvalue <= 0.05)
    design = of_variances(1 / 5, 4, 0.0, 4)
    assert design.power(1.2, design.bounds(0.05)) == pytest.approx(hits, abs=0.012)


def test_two_seeds_cannot_meet_every_level():
    assert of_variances(1.0, 1, 0.0, 900).minimal_effect(alpha=1e-9) is None


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_by_stepping_down(p_values):
    """Reject while the smallest remaining p is at most α over the number that remain; adjusted p: the least such α."""
    adjusted = holm(p_values)
    for alpha in (0.01, 0.05, 0.3, 0.999):
        remaining = sorted(range(len(p_values)), key=lambda i: p_values[i])
        rejected = set()
        while remaining and p_values[remaining[0]] * len(remaining) <= alpha:
            rejected.add(remaining.pop(0))
        assert {i for i, p in enumerate(adjusted) if p <= alpha} == rejected
