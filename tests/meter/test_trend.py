from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from decondense.figures.measured import verdict
from decondense.meter.result import histogram_quantiles
from decondense.meter.trend import bootstrap_trend, curve_statistics, rank_correlation
from decondense.records import STATISTICS, Interval
from decondense.words import span

LEVEL, SAID = Interval(value=0.4, low=0.38, high=0.421), ", mean cosine of the blocks 0.40 [0.38, 0.42]"


def said(every, blocks) -> str:
    """The verdict of two curves, as `bootstrap_trend` gives them."""
    trend = {"all": every, "blocks": blocks}
    return verdict({c: {n: Interval(**entry) for n, entry in row.items()} for c, row in trend.items()}, LEVEL)


def test_statistics_agree_with_scipy_and_with_ties():
    rng = np.random.default_rng(0)
    for n in (2, 3, 6, 31):
        for curve in (rng.normal(size=n), rng.integers(0, 4, size=n).astype(float) + np.eye(n)[0]):
            spearman, kendall, slope, last = curve_statistics(curve, last=2)
            depth = np.arange(n)
            assert spearman == pytest.approx(stats.spearmanr(depth, curve).statistic)
            assert kendall == pytest.approx(stats.kendalltau(depth, curve).statistic)
            assert slope == pytest.approx(np.polyfit(depth / (n - 1), curve, 1)[0])
            assert last == pytest.approx(curve[-2:].mean())


def test_rank_correlation_with_ties_on_both_sides():
    """By hand: ranks 1, 2½, 2½, 4 against 1½, 3, 1½, 4; and as scipy has it."""
    by_hand = np.dot([-1.5, 0, 0, 1.5], [-1, 0.5, -1, 1.5]) / np.sqrt((2 * 1.5**2) * (1 + 0.25 + 1 + 2.25))
    assert rank_correlation([5, 7, 7, 9], [0.2, 0.4, 0.2, 0.5]) == pytest.approx(by_hand, abs=1e-15)
    rng = np.random.default_rng(2)
    for n in (3, 5, 12):
        x, y = rng.integers(0, 3, n), rng.integers(0, 4, n) / 10
        x[:2], y[:2] = (0, 1), (0, 1)
        assert rank_correlation(x, y) == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-12)
    assert rank_correlation([3, 1, 2], [-1, 5, 0.5]) == -1
    assert np.isnan(rank_correlation([1, 2, 3], [4, 4, 4]))


@pytest.mark.parametrize("n", range(2, 64))
def test_a_perfect_order_is_exactly_one(n):
    rising = np.linspace(0.1, 0.9, n)
    assert curve_statistics(rising)[:2].tolist() == [1, 1]
    assert curve_statistics(rising[::-1])[:2].tolist() == [-1, -1]


def test_a_constant_curve_has_no_rank_correlation():
    spearman, kendall, slope, _ = curve_statistics(np.full(5, 0.3))
    assert np.isnan(spearman)
    assert np.isnan(kendall)
    assert slope == pytest.approx(0)
    for states in (5, 1):  # one block has no trend
        trend = bootstrap_trend(np.full((4, states), 0.3))
        assert trend["spearman"] == {"value": None, "low": None, "high": None}
        assert trend["last"]["value"] == pytest.approx(0.3)


@pytest.mark.parametrize(("level", "rounding"), [(1, 5e-6), (0.6, 4e-6)])
def test_rounding_is_no_order(level, rounding):
    """All layers of a model that has collapsed have a mean cosine of 1; those of one with two directions, say, 0.6."""
    falling = level - np.linspace(0, rounding, 7) + np.random.default_rng(4).normal(scale=1e-9, size=(5, 7))
    assert np.isnan(curve_statistics(falling.mean(0))[:2]).all()
    trend = bootstrap_trend(falling)
    assert trend["spearman"] == trend["kendall"] == {"value": None, "low": None, "high": None}
    assert said(trend, trend) == f"constant over depth: Spearman undefined{SAID}"
    above = np.concatenate([np.full((5, 1), 0.2), falling], axis=1)  # the embedding layer is no cone
    tied = np.concatenate([[0.2], np.ones(7)])
    assert curve_statistics(above.mean(0))[:2].tolist() == curve_statistics(tied)[:2].tolist()
    assert curve_statistics(level - 20 * np.linspace(0, rounding, 7))[:2].tolist() == [-1, -1]  # more than rounding


def test_resamplings_of_ties_alone_count_as_no_trend():
    """Of two windows one has a trend and the other none: resampled without the first there is nothing to rank."""
    table = np.stack([np.linspace(0.1, 0.9, 5), np.full(5, 0.3)])
    assert bootstrap_trend(table)["spearman"] == {"value": 1, "low": 0, "high": 1}
    trend = bootstrap_trend(table)
    assert said(trend, trend) == f"no clear trend: Spearman 1.00 [0.00, 1.00]{SAID}"


def test_bootstrap_is_the_loop_it_says_it_is():
    table = np.random.default_rng(1).normal(size=(7, 5))
    found = bootstrap_trend(table, samples=200, seed=9, last=2)
    weights = np.random.default_rng(9).multinomial(7, [1 / 7] * 7, size=200)
    values = []
    for row in weights:
        resampled = [table[w] for w, times in enumerate(row) for _ in range(times)]
        values.append(curve_statistics(np.mean(resampled, axis=0), last=2))
    tail = stats.norm.cdf(-np.sqrt(7 / 6) * stats.t.ppf(0.975, 6))
    for i, name in enumerate(STATISTICS):
        low, high = np.quantile([v[i] for v in values], [tail, 1 - tail])
        assert found[name]["low"] == pytest.approx(low)
        assert found[name]["high"] == pytest.approx(high)
        assert found[name]["value"] == pytest.approx(curve_statistics(table.mean(0), last=2)[i])
    assert bootstrap_trend(table, seed=9) == bootstrap_trend(table, seed=9)


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(2)
    truth = np.linspace(0.2, 0.5, 6)
    slope = curve_statistics(truth)[2]
    hits = 0
    for _ in range(200):
        table = truth + rng.normal(scale=0.1, size=(40, 1)) + rng.normal(scale=0.2, size=(40, 6))
        entry = bootstrap_trend(table, samples=200)["slope"]
        hits += entry["low"] <= slope <= entry["high"]
    assert 0.88 <= hits / 200 <= 0.99


def entry(value, low, high, change=None):
    change = [None if low is None else math.copysign(0.1, value)] * 3 if change is None else change
    return {
        "spearman": {"value": value, "low": low, "high": high},
        "slope": dict(zip(("value", "low", "high"), change)),
    }


def test_verdict_words():
    up, flat, down = entry(0.81, 0.74, 0.86), entry(0.1, -0.2, 0.4), entry(-0.5, -0.6, -0.4)
    assert said(up, up) == f"condensing: Spearman 0.81 [0.74, 0.86]{SAID}"
    assert said(down, down) == f"dispersing: Spearman −0.50 [−0.60, −0.40]{SAID}"
    assert said(up, flat).endswith(f"{SAID}; without the embedding layer no clear trend, 0.10 [−0.20, 0.40]")
    one = entry(0.9, None, None)
    assert said(one, one) == f"undecided (one window has no interval): Spearman 0.90{SAID}"


@pytest.mark.parametrize("sign", [1, -1])
def test_a_small_trend_is_none_however_short_its_interval(sign):
    """A rank correlation moves in steps, and its interval may be one step wide."""
    small, enough = (entry(sign * size, sign * size, sign * size) for size in (0.19, 0.2))
    assert said(small, small).startswith("no clear trend: Spearman ")
    assert said(enough, enough).startswith("condensing" if sign > 0 else "dispersing")


@pytest.mark.parametrize("sign", [1, -1])
def test_a_change_that_nobody_sees_is_no_trend_however_steady(sign):
    """Untrained models have mean cosines of 0.00 in every layer, which may rise with each of them."""

    def of(change, low, high):
        ends = sorted((sign * low, sign * high))
        curve = entry(sign * 0.9, sign * 0.9, sign * 0.9, [sign * change, *ends])
        return said(curve, curve)

    rank = span(sign * 0.9, sign * 0.9, sign * 0.9)
    small = span(sign * 0.002, *sorted((sign * 0.001, sign * 0.003)), 3, sign=True)
    assert of(0.002, 0.001, 0.003) == f"no clear trend: Spearman {rank} with a change of {small} over depth{SAID}"
    assert of(0.05, -0.01, 0.11).startswith(f"no clear trend: Spearman {rank} with a change of ")
    assert of(-0.05, -0.06, -0.04).startswith(f"no clear trend: Spearman {rank} with a change of "), "of the other sign"
    assert of(0.01, 0.009, 0.011) == f"{'condensing' if sign > 0 else 'dispersing'}: Spearman {rank}{SAID}"


def test_steady_cosines_of_zero_are_no_condensation():
    table = np.linspace(0, 0.004, 7) + np.random.default_rng(5).normal(scale=1e-5, size=(12, 7))
    trend = bootstrap_trend(table)
    assert trend["spearman"]["low"] == 1
    assert said(trend, trend).startswith("no clear trend: Spearman 1.00 [1.00, 1.00] with a change of +0.004 ")
    above = bootstrap_trend(0.3 + 10 * table)
    assert said(above, above).startswith("condensing: Spearman 1.00 [1.00, 1.00], mean cosine")


def test_a_single_state_has_no_trend_and_is_not_called_constant():
    """A model of one block: two states with the embedding layer, one without it."""
    table = np.array([[0.1, 0.2], [0.2, 0.4]])
    end = "; without the embedding layer no trend in a single state, undefined"
    found = said(bootstrap_trend(table), bootstrap_trend(table[:, 1:]))
    assert found == f"condensing: Spearman 1.00 [1.00, 1.00]{SAID}{end}"
    level = bootstrap_trend(np.full((2, 3), 0.5))
    assert said(level, level) == f"constant over depth: Spearman undefined{SAID}"


def test_quantiles_are_within_one_bin_of_the_truth():
    rng = np.random.default_rng(3)
    for values in (rng.uniform(-1, 1, 5000), np.clip(rng.normal(0.7, 0.05, 5000), -1, 1), np.full(10, 0.3)):
        counts = np.histogram(values, bins=1024, range=(-1, 1))[0]
        found = histogram_quantiles(counts)
        wanted = np.quantile(values, [0.05, 0.25, 0.5, 0.75, 0.95])
        assert np.abs(np.array(found) - wanted).max() <= 2 / 1024 + 1e-12
