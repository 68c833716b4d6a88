"""The bootstrap over windows: the levels of its percentiles by hand, and what they do to its width."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from decondense.stats.intervals import bootstrap


def resampled_means(table: np.ndarray, *, samples: int = 2000, seed: int = 0) -> np.ndarray:
    """By repeating rows, as often as each was drawn."""
    rows = len(table)
    weights = np.random.default_rng(seed).multinomial(rows, [1 / rows] * rows, size=samples)
    drawn = np.repeat(np.tile(np.arange(rows), samples), weights.ravel()).reshape(samples, rows)
    return table[drawn].mean(1)


def test_the_ends_are_expanded_percentiles():
    """Ten rows: t with 9 degrees of freedom is 2.2622 in a printed table, times √(10/9) 2.3845, and of a normal
    variable 0.855 % lie below −2.3845. So of 2001 sorted values the low end lies between the 18th and the 19th."""
    level = stats.norm.cdf(-np.sqrt(10 / 9) * stats.t.ppf(0.975, 9))
    assert level == pytest.approx(0.00855, abs=5e-6)
    table = np.random.default_rng(5).gamma(1.0, size=(10, 3))
    value, low, high = bootstrap(table, lambda rows: rows, samples=2001, seed=4)
    ordered = np.sort(resampled_means(table, samples=2001, seed=4), axis=0)
    below = int(2000 * level)
    part = 2000 * level - below
    assert below == 17
    assert value == pytest.approx(table.mean(0))
    assert low == pytest.approx((1 - part) * ordered[below] + part * ordered[below + 1])
    assert high == pytest.approx((1 - part) * ordered[-1 - below] + part * ordered[-2 - below])


@pytest.mark.parametrize("rows", [2, 3, 4, 5, 7, 12, 30, 200])
@pytest.mark.parametrize("samples", [1, 20, 2000])
def test_never_narrower_than_percentiles_and_no_wider_than_the_resamplings(rows, samples):
    table = np.random.default_rng(rows).gamma(1.0, size=(rows, 4))
    drawn = resampled_means(table, samples=samples)
    _, low, high = bootstrap(table, lambda means: means, samples=samples)
    plain = np.quantile(drawn, [0.025, 0.975], axis=0)
    assert (low <= plain[0] + 1e-12).all()
    assert (high >= plain[1] - 1e-12).all()
    assert (low >= drawn.min(0) - 1e-12).all()
    assert (high <= drawn.max(0) + 1e-12).all()
    if samples == 2000:
        wider = (high - low) / (plain[1] - plain[0])
        if rows == 200:
            assert wider == pytest.approx(1, abs=0.03)
        elif 4 < rows < 30:
            assert (wider > 1.05).all()


def test_with_few_rows_the_ends_are_the_extremes():
    """The level of up to four rows lies beyond 2000 resamplings: the lowest and the highest mean, which are those of
    one row taken again and again. Nothing is extrapolated."""
    for rows in (2, 3, 4):
        table = np.random.default_rng(rows).normal(size=(rows, 2))
        _, low, high = bootstrap(table, lambda means: means)
        assert low == pytest.approx(table.min(0))
        assert high == pytest.approx(table.max(0))


def test_it_holds_the_mean_of_few_skewed_rows_more_often_than_percentiles_do():
    """Ten rows of a χ² variable with 8 degrees of freedom, 600 times."""
    rng, hits = np.random.default_rng(6), np.zeros(2)
    for seed in range(600):
        table = rng.chisquare(8, size=(10, 1))
        _, low, high = bootstrap(table, lambda means: means, samples=500, seed=seed)
        plain = np.quantile(resampled_means(table, samples=500, seed=seed), [0.025, 0.975])
        hits += [plain[0] <= 8 <= plain[1], low[0] <= 8 <= high[0]]
    before, after = hits / 600
    assert before < 0.91
    assert 0.92 <= after <= 0.97
