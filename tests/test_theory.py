"""Propositions E.1 and E.2: quadrature against closed forms and simulation, bounds that hold and one that does not."""

from __future__ import annotations

import csv
import math
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import mpmath
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from decondense import theory
from decondense.figures.theory import theory_figure

LENGTHS = st.floats(1e-3, 1e3)
PADDING = st.integers(1, 5000)


def exact(r, m, digits=40):
    """α = (r/√2) U(½, (3 − m)/2, r²/2): the confluent hypergeometric function, in many digits."""
    with mpmath.workdps(digits):
        return r / mpmath.sqrt(2) * mpmath.hyperu(0.5, mpmath.mpf(3 - m) / 2, mpmath.mpf(r) ** 2 / 2)


def simulated(r, m, draws, seed):
    """Mean of r/√(r² + U) over draws of U ~ χ²_m, and its standard error."""
    values = r / np.sqrt(r * r + np.random.default_rng(seed).chisquare(m, draws))
    return values.mean(), values.std(ddof=1) / math.sqrt(draws)


# ---- E.1 ----


@settings(max_examples=100, deadline=None)
@given(
    pairs=st.lists(st.tuples(st.integers(-99, 99), st.integers(-99, 99)), min_size=1, max_size=8),
    times=st.integers(1, 9),
)
def test_repetition_leaves_the_cosine_exactly(pairs, times):
    """In whole numbers: sign and square of the cosine are fractions, and the same fractions."""
    x, y = (np.array(v, dtype=object) for v in zip(*pairs))
    assume(any(x) and any(y))

    def squared(a, b):
        inner = int(a @ b)
        return Fraction(inner * abs(inner), int(a @ a) * int(b @ b))

    assert squared(np.repeat(x, times), np.repeat(y, times)) == squared(x, y)
    whole = theory.cosine(x.astype(float), y.astype(float))
    assert theory.cosine(np.repeat(x, times), np.repeat(y, times)) == pytest.approx(whole, abs=1e-14)
    assert whole == pytest.approx(math.copysign(math.sqrt(abs(squared(x, y))), squared(x, y)), abs=1e-14)


# ---- α by quadrature ----


@pytest.mark.parametrize("m", [1, 2, 3, 7, 64, 832, 5000])
@pytest.mark.parametrize("r", [1e-8, 0.01, 1.0, 10.0, 300.0, 1e3])
def test_confluent_hypergeometric_function(r, m):
    assert theory.alpha(r, m) == pytest.approx(float(exact(r, m)), rel=1e-11)


@pytest.mark.parametrize(("r", "m"), [(0.5, 1), (1.0, 3), (2.0, 17), (1.0, 832), (40.0, 832)])
def test_the_definition_integrated_over_the_density(r, m):
    """E over χ_m, the root of U, whose density has no pole at 0."""
    where = [max(0.0, math.sqrt(m) - 12), math.sqrt(m) + 12]
    value, _ = integrate.quad(lambda w: r / math.hypot(r, w) * stats.chi.pdf(w, m), *where, epsabs=0, epsrel=1e-12)
    assert theory.alpha(r, m) == pytest.approx(value, rel=1e-10)


@pytest.mark.parametrize(("r", "m"), [(0.3, 1), (1.0, 2), (1.0, 832), (25.0, 100)])
def test_simulation(r, m):
    mean, error = simulated(r, m, 200_000, seed=1)
    assert abs(mean - theory.alpha(r, m)) < 4 * error < 8e-3


def test_limits():
    assert theory.alpha(0.0, 5) == 0
    for m in (2, 9, 832):
        assert theory.alpha(1e-9, m) / 1e-9 == pytest.approx(1 / math.sqrt(theory.kappa(m)), rel=1e-9)
        assert theory.effective_padding(1e-12, m) == pytest.approx(theory.kappa(m), rel=1e-9)
        assert theory.effective_padding(0.0, m) == theory.kappa(m)
        assert theory.effective_padding(1e6, m) == pytest.approx(m, abs=1e-8)
    assert theory.alpha(1e9, 9) == pytest.approx(1)
    assert theory.alpha(1e200, 9) == 1
    assert theory.effective_padding(1e200, 9) == 9
    assert 0 < theory.alpha(1e-200, 1) < 1e-190
    assert max(theory.alpha(r, 3) for r in np.logspace(5, 12, 200)) == 1


@pytest.mark.parametrize(("r", "m"), [(1.0, 3), (28.0, 832), (29.0, 832), (40.0, 832), (300.0, 832), (3e4, 17)])
def test_effective_padding_keeps_its_digits(r, m):
    """Against 60 digits, on both sides of r² = m, where the way of computing it changes."""
    with mpmath.workdps(60):
        worth = float(mpmath.mpf(r) ** 2 * (1 / exact(r, m, 60) ** 2 - 1))
    assert theory.effective_padding(r, m) == pytest.approx(worth, abs=2e-12 * m)


def test_kappa_is_the_moment():
    for m in (2, 3, 10, 128, 129, 130, 832, 10**6):
        with mpmath.workdps(60):
            ratio = mpmath.exp(mpmath.loggamma(mpmath.mpf(m) / 2) - mpmath.loggamma(mpmath.mpf(m - 1) / 2))
            assert theory.kappa(m) == pytest.approx(float(2 * ratio**2), abs=3e-12 + 4e-16 * m)
    assert theory.kappa(2) == pytest.approx(2 / math.pi)
    assert theory.kappa(1) == 0


# ---- the bounds ----


@settings(max_examples=150, deadline=None)
@given(r=LENGTHS, m=PADDING)
def test_the_bounds_that_hold(r, m):
    a = theory.alpha(r, m)
    slack = 1 + 1e-12  # r/√(r² + m) and α agree in all digits of a float where r² is much more than m
    assert theory.lower_bound(r, m) < a * slack
    assert a < theory.sharp_upper(r, m) * slack
    if m > 2:
        assert theory.sharp_upper(r, m) < theory.simple_upper(r, m) * slack
        assert a < theory.simple_upper(r, m) * slack


@settings(max_examples=150, deadline=None)
@given(r=LENGTHS, m=st.integers(2, 5000))
def test_the_same_without_rounding(r, m):
    """In terms of k the bounds are 1/2 apart or more where they bind, and strict."""
    k = theory.effective_padding(r, m)
    fuzz = 1e-9 * m
    assert m - 1.5 < theory.kappa(m) < m - 1
    assert theory.kappa(m) - fuzz < k < m + fuzz
    assert theory.effective_padding(1.3 * r, m) > k - fuzz  # it rises
    if r * r >= (m - 1) / 2:
        assert k > m - 1 - fuzz  # the published bound holds here
    if r * r <= m / 2 - 6:
        assert k < m - 1  # and fails here


@settings(max_examples=30, deadline=None)
@given(m=st.integers(2, 5000))
def test_the_published_bound_fails_below_the_crossing(m):
    r = theory.crossing(m)
    assert m / 2 - 6 < r * r < (m - 1) / 2
    for factor, fails in ((0.1, True), (0.9, True), (1.1, False), (10.0, False)):
        assert (theory.effective_padding(factor * r, m) < m - 1) is fails
    assert theory.alpha(0.5 * r, m) > theory.published_upper(0.5 * r, m)


def test_the_papers_own_example():
    """GPT2 → GPT2-xl, unit vectors: 832 padded coordinates."""
    m = theory.GPT2_PADDING
    a = theory.alpha(1.0, m)
    assert a == pytest.approx(0.034679, abs=5e-7)
    assert theory.published_upper(1.0, m) == pytest.approx(0.034669, abs=5e-7)
    assert (
        theory.lower_bound(1.0, m)
        < theory.published_upper(1.0, m)
        < a
        < theory.sharp_upper(1.0, m)
        < theory.simple_upper(1.0, m)
    )
    # the cosine of unit vectors: at most c/831 by the simple bound, where the paper has c/832
    assert theory.simple_upper(1.0, m) ** 2 == pytest.approx(1 / 831)
    assert theory.published_upper(1.0, m) ** 2 == pytest.approx(1 / 832)
    assert 1 / 832 < a * a < 1 / 831
    # and no simulation is needed to see it, but one agrees: 5 standard errors above the claimed bound
    mean, error = simulated(1.0, m, 1_000_000, seed=2)
    assert mean - 5 * error > theory.published_upper(1.0, m)


def test_four_coordinates_cross_at_one():
    """−½ √(1 + u) e^(−u/2) is a primitive of ¼ u e^(−u/2)/√(1 + u): α(1, 4) = ½, and the published bound is ½ too."""
    assert theory.alpha(1.0, 4) == pytest.approx(0.5, rel=1e-12)
    assert theory.published_upper(1.0, 4) == 0.5
    assert theory.crossing(4) == pytest.approx(1, rel=1e-9)
    assert [m for m in range(2, 14) if theory.crossing(m) > 1 + 1e-9] == list(range(5, 14))


# ---- the cosine ----


@pytest.mark.parametrize("sign", [1, -1])
def test_cosine_after_padding(sign):
    rng = np.random.default_rng(0)
    x = rng.standard_normal(6)
    y = sign * (x + 0.5 * rng.standard_normal(6))
    expected = theory.expected_cosine(x, y, 10)
    mean, error = theory.simulate_cosine(x, y, 10, draws=200_000, seed=3)
    assert abs(mean - expected) < 4 * error
    lengths = [float(np.linalg.norm(v)) for v in (x, y)]
    low, high = (math.prod(bound(r, 10) for r in lengths) for bound in (theory.lower_bound, theory.sharp_upper))
    # a negative cosine reverses the published order of the inequality
    assert low < expected / theory.cosine(x, y) < high


def test_the_simulation_has_the_noise_of_the_padding():
    """Vectors too short to matter: what is left is the cosine of two random ones, of variance 1/m."""
    mean, error = theory.simulate_cosine([1e-6, 0], [0, 1e-6], 50, draws=40_000, seed=4)
    assert error * math.sqrt(40_000) == pytest.approx(1 / math.sqrt(50), rel=0.02)
    assert abs(mean) < 4 * error


def test_orthogonal_vectors_stay_orthogonal():
    assert theory.expected_cosine([1, 0], [0, 2], 7) == 0


# ---- errors, the figure ----


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: theory.alpha(-1.0, 3), "r must be a length, finite and not negative, got -1.0"),
        (lambda: theory.alpha(math.nan, 3), "got nan"),
        (lambda: theory.alpha(1.0, 0), "m must be a whole number of at least 1, got 0"),
        (lambda: theory.alpha(1.0, 2.5), "got 2.5"),
        (lambda: theory.simple_upper(1.0, 2), "needs m > 2, got 2: sharp_upper holds"),
        (lambda: theory.crossing(1), "m of at least 2, got 1"),
        (lambda: theory.cosine([1, 2], [1]), r"got \(2,\) and \(1,\)"),
        (lambda: theory.cosine([0, 0], [1, 1]), "must not be zero"),
        (lambda: theory.simulate_cosine([1], [1], 2, draws=1), "draws must be at least 2"),
        (lambda: theory.curves(2), "curves need m > 2"),
    ],
)
def test_errors(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def table(path):
    with path.open(newline="") as file:
        return [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]


def test_figure_and_its_numbers(tmp_path):
    path = theory_figure(tmp_path / "theory.png", points=9)
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    rows = table(tmp_path / "theory.csv")
    assert len(rows) == 9
    for row in rows:
        assert row["alpha"] == theory.alpha(row["r"], 832)
        assert row["lower"] <= row["alpha"] <= row["sharp"] <= row["simple"]
    fails = [row["alpha"] > row["published"] for row in rows]
    assert fails == [True] * 4 + [fails[4]] + [False] * 4  # the middle one is the crossing itself
    assert sorted(p.name for p in tmp_path.iterdir()) == ["theory.csv", "theory.png"]
    with pytest.raises(ValueError, match=r"must be \.png"):
        theory_figure(tmp_path / "theory.docx", points=3)


def test_the_committed_figure_has_these_numbers():
    rows, data = table(Path(__file__).parent.parent / "docs" / "figures" / "theory.csv"), theory.curves()
    assert list(rows[0]) == ["m", *data]
    assert rows[0]["m"] == theory.GPT2_PADDING
    for name, values in data.items():
        assert [row[name] for row in rows] == pytest.approx(values.tolist(), rel=1e-9)


def test_without_torch():
    code = "import sys, decondense.theory as t; print('torch' in sys.modules, t.alpha(1.0, 2))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.startswith("False 0.65567")
