"""The rule: closed forms, and its error rates when the truth is known."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from decondense.stats.crossed import Crossed
from decondense.stats.intervals import resolved
from decondense.stats.verdicts import (
    combine,
    decide,
    deciding,
    equivalent,
    from_interval,
    interval,
    not_below,
    resolves,
    slope,
    steady,
)

TRIALS = 400


def share(verdict, make):
    """Of TRIALS decisions, how many say `verdict`."""
    rng = np.random.default_rng(0)
    return sum(make(rng).verdict == verdict for _ in range(TRIALS)) / TRIALS


def test_interval_by_hand():
    """Three numbers: t with 2 degrees of freedom is 4.302653 at 95 % and 2.919986 at 90 %."""
    values = [1.0, 2.0, 4.0]
    mean = 7 / 3
    s = math.sqrt(sum((v - mean) ** 2 for v in values) / 2)
    for level, t in ((0.95, 4.30265273), (0.9, 2.91998558)):
        found = interval(values, level)
        assert found == pytest.approx((mean, mean - t * s / math.sqrt(3), mean + t * s / math.sqrt(3)), rel=1e-6)
    assert math.isnan(interval([1.0])[1])


# ---- a direction ----


@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize("claim", ["greater", "less"])
def test_no_effect_is_rarely_reproduced(seeds, claim):
    assert share("reproduced", lambda rng: decide(rng.normal(size=seeds), claim=claim)) <= 0.05
    assert share("not reproduced", lambda rng: decide(rng.normal(size=seeds), claim=claim)) <= 0.05


def test_large_effect_with_three_seeds_is_reproduced():
    assert share("reproduced", lambda rng: decide(10 + rng.normal(size=3))) > 0.95
    assert share("reproduced", lambda rng: decide(-10 + rng.normal(size=3), claim="less")) > 0.95
    assert share("not reproduced", lambda rng: decide(-10 + rng.normal(size=3))) > 0.95


@pytest.mark.parametrize("values", [[], [5.0], [5.0, 5.1]])
def test_fewer_than_three_seeds_are_undecided_however_large_the_effect(values):
    found = decide(values)
    assert found.verdict == "undecided"
    assert "at least 3" in found.reason
    assert found.n == len(values)
    for other in (
        equivalent(values, margin=100),
        not_below(values, margin=100),
        steady(values, margin=100),
    ):
        assert other.verdict == "undecided"


def test_the_same_number_three_times_has_no_spread():
    """A rank correlation takes few values: three equal differences come up by chance."""
    same = decide([-0.006, -0.006, -0.006], claim="less")
    assert same.verdict == "undecided"
    assert "no spread" in same.words()
    assert decide([1.0, 1.0, 1.0], bound=1.0).verdict == "reproduced"  # it cannot be more than that
    for none in (
        decide([0.0, 0.0, 0.0]),
        equivalent([0.0, 0.0, 0.0], margin=1),
        not_below([0.5, 0.5, 0.5], margin=1),
    ):
        assert (none.verdict, none.low, none.high) == ("undecided", None, None)
        assert "no spread" in none.words()
        assert none.why == ""
    assert decide([0.0, 0.0, 0.0]).words(2).startswith("0.00 (all 3 training seeds give the same number")


def test_a_direction_is_not_the_published_size():
    small = from_interval(0.04, 0.01, 0.07, n=30, smallest=0.55)
    assert small.verdict == "reproduced"
    assert small.reason.endswith("excludes an effect of 0.55: the direction, not the size")
    assert "size" not in from_interval(0.6, 0.4, 0.8, n=30, smallest=0.55).reason


def test_a_seed_without_a_value_is_undecided():
    assert decide([1.0, 1.1, float("nan")]).verdict == "undecided"
    assert "without a value" in decide([1.0, 1.1, float("nan")]).reason
    assert equivalent([0.0, 0.0, float("inf")], margin=1).verdict == "undecided"


def test_smallest_effect_turns_a_narrow_interval_around_zero_into_not_reproduced():
    assert from_interval(0.0, -0.1, 0.1, n=3).verdict == "undecided"
    assert from_interval(0.0, -0.1, 0.1, n=3, smallest=0.2).verdict == "not reproduced"
    assert from_interval(0.0, -0.1, 0.3, n=3, smallest=0.2).verdict == "undecided"
    assert from_interval(0.1, 0.05, 0.15, n=3, smallest=0.2).verdict == "reproduced"
    assert from_interval(-0.1, -0.15, -0.05, n=3, smallest=0.2, claim="less").verdict == "reproduced"
    assert from_interval(9.0, 8.0, 10.0, n=2).verdict == "undecided"  # items may be many: seeds are two
    assert from_interval(9.0, math.nan, 10.0, n=3).verdict == "undecided"
    with pytest.raises(ValueError, match="claim must be one of 'greater', 'less', got"):
        from_interval(0, -1, 1, n=3, claim="bigger")


# ---- no difference ----


def test_equivalence_at_the_margin_is_rarely_reproduced():
    """The worst case of two one-sided tests: the true difference is the margin itself."""
    assert share("reproduced", lambda rng: equivalent(1 + 0.3 * rng.normal(size=4), margin=1)) <= 0.07
    assert share("reproduced", lambda rng: not_below(-1 + 0.3 * rng.normal(size=4), margin=1)) <= 0.07
    assert share("not reproduced", lambda rng: equivalent(1 + 0.3 * rng.normal(size=4), margin=1)) <= 0.05


def test_equivalence_finds_sameness_and_difference():
    assert equivalent([0.001, -0.001, 0.0], margin=0.01).verdict == "reproduced"
    assert equivalent([0.05, 0.051, 0.049], margin=0.01).verdict == "not reproduced"
    assert equivalent([-0.05, -0.051, -0.049], margin=0.01).verdict == "not reproduced"
    assert equivalent([0.02, -0.03, 0.0], margin=0.01).verdict == "undecided"
    assert not_below([5.0, 5.1, 4.9], margin=0.01).verdict == "reproduced"
    assert not_below([-5.0, -5.1, -4.9], margin=0.01).verdict == "not reproduced"


# ---- models and texts ----


def test_slope_is_ordinary_least_squares():
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=6), rng.normal(size=6)
    line = stats.linregress(x, y)
    found = slope(x, y, [0] * 6)
    half = stats.t.ppf(0.975, 4) * line.stderr
    assert (found.estimate, found.low, found.high) == pytest.approx((line.slope, line.slope - half, line.slope + half))


def test_slope_with_families_is_regression_with_a_level_for_each():
    rng = np.random.default_rng(2)
    groups = [0, 0, 0, 1, 1, 1, 1, 2]  # the family of one counts for nothing
    x, y = rng.normal(size=8), rng.normal(size=8)
    design = np.array([[x[i], groups[i] == 0, groups[i] == 1] for i in range(7)], dtype=float)
    beta, rest, *_ = np.linalg.lstsq(design, y[:7], rcond=None)
    error = math.sqrt(float(rest[0]) / 4 * np.linalg.inv(design.T @ design)[0, 0])
    found = slope(x, y, groups)
    assert found.n == 7
    assert found.estimate == pytest.approx(beta[0])
    assert found.high - found.estimate == pytest.approx(stats.t.ppf(0.975, 4) * error)


def test_slope_error_rate_and_too_few_models():
    x = np.arange(6.0)
    assert share("reproduced", lambda rng: slope(x, rng.normal(size=6), [0] * 6)) <= 0.05
    assert share("reproduced", lambda rng: slope(x, 5 * x + rng.normal(size=6), [0] * 6)) > 0.95
    assert slope([1, 2, 3], [3, 2, 1], [0] * 3, claim="less").verdict == "undecided"
    assert slope([1, 1, 1, 1], [1, 2, 3, 4], [0] * 4).reason == "the models do not differ enough for a slope"
    assert slope([1, 2, 1, 9], [1, 2, 3, 4], [0, 0, 1, 1]).reason == "too few models for a slope"


def test_steady_interval_covers_the_next_text():
    rng = np.random.default_rng(3)
    inside = 0
    for _ in range(2000):
        *four, fifth = rng.normal(size=5)
        found = steady(four, margin=1.0)
        inside += found.low <= fifth <= found.high
    assert 0.935 < inside / 2000 < 0.965


def test_steady_ends_where_no_value_can_be():
    """Ten correlations, most of them near 1; the verdict and the other end stay."""
    values = [0.75, 0.96, 1.0, 0.96, 0.96, 0.93, 0.75, 0.68, 0.93, 0.93]
    free, bound = steady(values, margin=0.2), steady(values, margin=0.2, most=1.0)
    assert free.high > 1.1
    assert bound == replace(free, high=1.0)
    down = steady([-value for value in values], margin=0.2, most=1.0)
    assert (down.low, down.high) == (-1.0, -free.low)


def test_steady_says_yes_no_and_perhaps():
    assert steady([0.8, 0.81, 0.79, 0.8], margin=0.2).verdict == "reproduced"
    assert steady([0.9, -0.9, 0.8, -0.7], margin=0.2).verdict == "not reproduced"
    assert steady([0.8, 0.9, 0.75, 0.7], margin=0.2).verdict == "undecided"
    assert steady([0.01, -0.01, 0.0, 0.0], margin=0.2).verdict == "undecided"  # no sign to agree on


# ---- several parts, words ----


def test_combine():
    yes, no, perhaps = decide([1, 1.1, 0.9]), decide([-1, -1.1, -0.9]), decide([1, -1, 0])
    assert combine([yes, yes]) == "reproduced"
    assert combine([yes, perhaps]) == "undecided"
    assert combine([yes, perhaps, no]) == "not reproduced"
    assert combine([]) == "undecided"


def test_words():
    assert decide([1.0, 2.0, 4.0]).words(1) == "+2.3 [−1.5, +6.1] over 3 training seeds (resolves 5.0)"
    assert "90 % interval" in equivalent([0.0, 0.1, 0.2], margin=1).words()
    assert decide([2.0]).words(1) == "+2.0 (1 of at least 3 training seeds)"
    assert decide([]).words() == "unknown (0 of at least 3 training seeds)"
    assert decide([1.0, 2.0, 4.0]).short(1) == "+2.3 [−1.5, +6.1]"
    assert decide([1.0, 2.0, 4.0], level=0.9).short(1) == "+2.3 [−0.2, +4.9] (90 %)"
    assert decide([2.0]).short(1) == "+2.0 (1 training seed, no interval)"
    assert decide([1.0, 1.0, 1.0], bound=1.0).short(1) == "+1.0 in 3 of 3 training seeds"
    assert decide([]).short() == decide([]).words()


def test_the_parts_that_decide_are_told():
    yes, no, perhaps = decide([1, 1.1, 0.9]), decide([-1, -1.1, -0.9]), decide([1, -1, 0])
    assert deciding({"a": yes, "b": perhaps, "c": no}, 0) == "c −1 [−1, −1]"
    assert deciding({"a": yes, "b": perhaps}, 1) == "b 0.0 [−2.5, +2.5]"
    assert deciding({"a": yes, "b": yes}, 1) == "a +1.0 [+0.8, +1.2], b +1.0 [+0.8, +1.2]"
    assert deciding(dict.fromkeys("abcde", no), 0).endswith("c −1 [−1, −1] and 2 more")
    assert deciding({}, 0) == "unknown"


@pytest.mark.parametrize(("level", "df"), [(0.95, 2), (0.9, 2), (0.95, 9), (0.95, 40)])
def test_resolution_is_found_four_times_out_of_five(level, df):
    limit = stats.t.ppf((1 + level) / 2, df)
    effect = resolved(limit, level, df)  # of a standard error of 1
    assert stats.nct.sf(limit, df, effect) + stats.nct.cdf(-limit, df, effect) == pytest.approx(0.8, abs=1e-4)


def test_resolution_stands_beside_every_interval():
    values = [1.0, 2.0, 4.0]
    test = Crossed(0.0, ((np.var(values, ddof=1) / 3, 2.0),), 0.0, math.inf, 0.0, 0.0)
    found = [decide(values), equivalent(values, margin=9), not_below(values, margin=9)]
    for one, alpha in zip(found, (0.05, 0.1, 0.1)):
        assert one.resolution == pytest.approx(test.minimal_effect(alpha=alpha), rel=1e-3)
        assert one.words(1).endswith(f" (resolves {one.resolution:.1f})")
    line = slope([1, 2, 3, 4], [1.0, 2.0, 3.5, 3.0], [0] * 4)
    assert line.resolution == pytest.approx(resolved(line.high - line.estimate, 0.95, 2))
    assert resolves(0.000123) == " (resolves 0.00012)"
    assert resolves(12.34) == " (resolves 12)"
    assert resolves(None) == resolves(0.0) == ""
    assert decide([1.0, 1.0, 1.0], bound=1.0).words(2) == "+1.00 in 3 of 3 training seeds"


@pytest.mark.parametrize(
    ("outer", "inner", "words"),
    [
        ((0.4, 0.9), (0.45, 0.85), "an effect that matters"),
        ((-0.9, -0.4), (-0.85, -0.45), "an effect that matters"),
        ((0.05, 0.31), (0.08, 0.28), "an effect, too small to matter"),
        ((-0.1, 0.2), (-0.08, 0.18), "no effect that matters"),
        ((-0.1, 0.32), (-0.08, 0.29), "no effect that matters"),
        ((0.1, 0.9), (0.2, 0.8), "undecided"),
        ((-0.2, 0.9), (-0.1, 0.8), "undecided"),
        ((None, None), (math.nan, math.nan), "undecided"),
    ],
)
def test_what_an_interval_says_about_an_effect_that_would_matter(outer, inner, words):
    from decondense.stats.verdicts import finding

    assert finding(dict(zip(("low", "high"), outer)), inner, 0.3) == words


def test_how_often_each_finding_is_wrong():
    """Five numbers of spread 1: nothing, half of what would matter, exactly that. No wrong claim in more than 5 %."""
    from decondense.stats.verdicts import finding

    rng, tries, smallest = np.random.default_rng(0), 2000, 1.2
    for truth, wrong in (
        (0.0, ("an effect that matters", "an effect, too small to matter")),
        (smallest / 2, ("an effect that matters",)),
        (smallest, ("an effect that matters",)),
        (smallest, ("no effect that matters", "an effect, too small to matter")),
    ):
        found = []
        for _ in range(tries):
            values = truth + rng.standard_normal(5)
            outer, inner = interval(values), interval(values, 0.9)
            found.append(finding({"low": outer.low, "high": outer.high}, (inner.low, inner.high), smallest))
        assert np.mean([one in wrong for one in found]) <= 0.065
