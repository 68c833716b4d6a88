"""Propositions E.1 and E.2 of the paper, with the upper bound that holds. The proofs are in docs/theory.md.

E.1  Repeating the entries of two vectors k times leaves their cosine unchanged.
E.2  Padding x and y with m independent standard normal entries each multiplies their expected cosine by
     α(‖x‖, m) · α(‖y‖, m), where

         α(r, m) = E[ r/√(r² + U) ],   U ~ χ²_m.

     ================  ====================================  =====================================================
     lower_bound       r/√(r² + m)                           holds
     published_upper   r/√(r² + m − 1)                       fails for every m ≥ 2 and r below `crossing(m)`
     simple_upper      r/√(r² + m − 2)                       holds, m > 2
     sharp_upper       r/√(r² + κ_m)                         holds, and no larger constant than κ_m does

     κ_m = 2 (Γ(m/2)/Γ((m−1)/2))² = 1/E[U^(−1/2)]²,   m − 3/2 < κ_m < m − 1.

All bounds follow from one quantity, the number of coordinates that the padding is worth, `effective_padding`:
α = r/√(r² + k) with k(r, m) = r²(1/α² − 1), which rises strictly from κ_m (r → 0) to m (r → ∞).

numpy and scipy only; r and m are plain numbers, m the number of padded coordinates, at least 1.
"""

from __future__ import annotations

import math

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

ACCURACY = 1e-10  # relative, of the quadrature in `alpha`
GPT2_PADDING = 832  # 1600 − 768 coordinates: from the width of GPT2 to that of GPT2-xl, the paper's example


def cosine(x: ArrayLike, y: ArrayLike) -> float:
    """Return x·y/(‖x‖‖y‖) of two vectors of the same size, neither of them zero."""
    a, b = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    if a.ndim != 1 or a.shape != b.shape:
        raise ValueError(f"x and y must be vectors of one length, got {a.shape} and {b.shape}: flatten them.")
    length = float(np.linalg.norm(a) * np.linalg.norm(b))
    if length == 0:
        raise ValueError("x and y must not be zero, got a vector of length 0: it has no direction.")
    return float(a @ b) / length


def alpha(r: float, m: int) -> float:
    """α(r, m) = E[r/√(r² + U)], U ~ χ²_m, by quadrature to a relative 1e-10.

    1/√a = 2/√π ∫ exp(−a v²) dv turns the expectation into the transform E exp(−v² U) = (1 + 2v²)^(−m/2), and
    v = sinh(y)/√2 makes the integrand smooth, falling and of one scale for every r and m:

        α = √(2/π) r ∫₀^∞ exp(−(m − 1) log cosh y − ½ r² sinh² y) dy.
    """
    _check(r, m)
    if r == 0:
        return 0.0

    def exponent(y: float) -> float:
        # log cosh y = y + log((1 + e^(−2y))/2), for small y in a form that loses no digits
        logcosh = math.log1p(2 * math.sinh(y / 2) ** 2) if y < 1 else y + math.log1p(math.exp(-2 * y)) - math.log(2)
        try:
            stretch = r * math.sinh(y)
        except OverflowError:
            stretch = math.inf
        return (m - 1) * logcosh + 0.5 * stretch * stretch

    end = 1 / math.hypot(r, math.sqrt(m))
    while exponent(end) < 45:  # beyond `end` the integrand is below e^−45 < 1e-19 of its peak
        end *= 1.5
    integral, error = scipy.integrate.quad(lambda y: math.exp(-exponent(y)), 0, end, epsabs=0, epsrel=1e-12, limit=200)
    if not error <= ACCURACY * integral:
        raise ArithmeticError(f"the quadrature of α({r}, {m}) reached {error / integral:.1e} only: report this pair.")
    return min(1.0, math.sqrt(2 / math.pi) * r * integral)


def simulate_cosine(x: ArrayLike, y: ArrayLike, m: int, *, draws: int = 10_000, seed: int = 0) -> tuple[float, float]:
    """Estimate the expected cosine of x and y after padding straight from its definition: pad, measure, average. Return
    the average and its standard error."""
    _check(1.0, m)
    if draws < 2:
        raise ValueError(f"draws must be at least 2, got {draws}: a standard error needs two.")
    a, b = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    inner, left, right = float(a @ b), float(a @ a), float(b @ b)
    rng = np.random.default_rng(seed)
    values = np.empty(draws)
    step = max(1, 2**20 // m)  # rows at a time: memory does not grow with the draws
    for start in range(0, draws, step):
        rows = slice(start, min(start + step, draws))
        g, h = rng.standard_normal((2, rows.stop - rows.start, m))
        values[rows] = (inner + (g * h).sum(1)) / np.sqrt((left + (g * g).sum(1)) * (right + (h * h).sum(1)))
    return float(values.mean()), float(values.std(ddof=1) / math.sqrt(draws))


def expected_cosine(x: ArrayLike, y: ArrayLike, m: int) -> float:
    """E.2: cos(x, y) · α(‖x‖, m) · α(‖y‖, m)."""
    return cosine(x, y) * alpha(float(np.linalg.norm(x)), m) * alpha(float(np.linalg.norm(y)), m)


def effective_padding(r: float, m: int) -> float:
    """Return k with α(r, m) = r/√(r² + k): how many fixed coordinates the m random ones are worth; κ_m at r = 0.

    For r² > m, where 1 − α loses digits, the excess D = α√(r² + m)/r − 1 is integrated by itself, as the difference of
    the two integrands in x = v√(r² + m), and k = m − (r² + m) D(2 + D)/(1 + D)².
    """
    _check(r, m)
    if r == 0:
        return kappa(m)
    square = r * r
    if square <= m:
        a = alpha(r, m)
        return square * (1 - a) * (1 + a) / (a * a)
    if square > 1e30 * m:
        return float(m)
    total = square + m

    def difference(x: float) -> float:
        w = x * x / total
        # w − ½ log(1 + 2w), for small w by its series, as the difference would be mostly rounding error
        gap = w * w * (1 - w * (4 / 3 - w * (2 - w * 16 / 5))) if w < 1e-3 else w - math.log1p(2 * w) / 2
        return math.exp(-x * x) * math.expm1(m * gap)

    # the integrand is at most exp(−x²) · exp(m w) ≤ exp(−x²/2) where r² > m: 12 is far enough
    excess = 2 / math.sqrt(math.pi) * scipy.integrate.quad(difference, 0, 12, epsabs=0, epsrel=1e-10, limit=200)[0]
    return m - total * excess * (2 + excess) / (1 + excess) ** 2


def kappa(m: int) -> float:
    """κ_m = 2 (Γ(m/2)/Γ((m−1)/2))², the limit of `effective_padding` for short vectors; 0 for m = 1.

    Γ overflows for large arguments and the difference of two large logarithms loses digits (scipy's poch is off by
    1e-7 for m = 16384). So from x = (m − 1)/2 = 64 on a series is summed, whose first omitted term is below 1e-12:

        (Γ(x + ½)/Γ(x))² = x − 1/4 + 1/(32 x) + 1/(128 x²) − 5/(2048 x³) − 23/(8192 x⁴) + …
    """
    _check(0.0, m)
    if m == 1:
        return 0.0
    x = (m - 1) / 2
    if x < 64:
        return 2 * (math.gamma(x + 0.5) / math.gamma(x)) ** 2
    return 2 * (x - 1 / 4 + 1 / (32 * x) + 1 / (128 * x**2) - 5 / (2048 * x**3) - 23 / (8192 * x**4))


def lower_bound(r: float, m: int) -> float:
    """r/√(r² + m) < α(r, m) for r > 0."""
    return _curve(r, m, float(m))


def published_upper(r: float, m: int) -> float:
    """r/√(r² + m − 1), which the paper claims to lie above α. It does so only for r above `crossing(m)`."""
    return _curve(r, m, float(m - 1))


def simple_upper(r: float, m: int) -> float:
    """r/√(r² + m − 2) > α(r, m) for r > 0 and m > 2."""
    if m <= 2:
        raise ValueError(f"the simple upper bound needs m > 2, got {m}: sharp_upper holds for every m.")
    return _curve(r, m, float(m - 2))


def sharp_upper(r: float, m: int) -> float:
    """r/√(r² + κ_m) > α(r, m) for r > 0; with any constant above κ_m it fails for small r."""
    return _curve(r, m, kappa(m))


BOUNDS = {"lower": lower_bound, "published": published_upper, "simple": simple_upper, "sharp": sharp_upper}


def crossing(m: int) -> float:
    """Return the one r with α = r/√(r² + m − 1), m ≥ 2: the published upper bound fails below it and holds above it.

    r² is less than (m − 1)/2, and for m > 12 more than m/2 − 6.
    """
    if m < 2:
        raise ValueError(f"the published bound crosses α for m of at least 2, got {m}: for m = 1 it is 1 and holds.")
    ends = 1e-12, (m - 1) / 2
    root = scipy.optimize.brentq(lambda s: effective_padding(math.sqrt(s), m) - (m - 1), *ends, xtol=1e-9, rtol=1e-12)
    return math.sqrt(float(root))


def curves(m: int = GPT2_PADDING, *, points: int = 121) -> dict[str, NDArray]:
    """Return the figure's numbers: α, its bounds and its effective padding, over lengths "r" from 1/100 to 100 times
    the crossing, evenly in log r; m > 2."""
    if m <= 2 or points < 2:
        raise ValueError(f"curves need m > 2 and at least 2 points, got m = {m} and {points}: take the default ones.")
    r = crossing(m) * np.logspace(-2, 2, points)
    functions = {"alpha": alpha, **BOUNDS, "effective": effective_padding}
    return {"r": r} | {name: np.array([f(x, m) for x in r.tolist()]) for name, f in functions.items()}


def _curve(r: float, m: int, k: float) -> float:
    _check(r, m)
    return r / math.hypot(r, math.sqrt(k)) if r > 0 else 0.0


def _check(r: float, m: int) -> None:
    if not (r >= 0 and math.isfinite(r)):
        raise ValueError(f"r must be a length, finite and not negative, got {r}: pass the norm of a vector.")
    if m < 1 or m != int(m):
        raise ValueError(f"m must be a whole number of at least 1, got {m}: it counts the padded coordinates.")
