"""The curves of the pairwise losses, as functions that a kernel calls on a tile of cosines.

A loss is a function of the cosines c_ij of one sequence: either a log-mean-exp of logits ℓ(c), or a mean of f(c).
A curve gives, for a tile of cosines, the term that is summed and its slope divided by a constant, the gain.

                              term                               slope / gain          gain
    dispersion                exp ℓ, ℓ = −arccos(c̃)/(πτ)         exp ℓ / √(1−c̃²)       1/(πτ)
    dispersion_cosine         exp ℓ, ℓ = c/τ                     exp ℓ                 1/τ
    orthogonalization         max(0, m − arccos(c̃)/π)²           max(0, ·) / √(1−c̃²)   2/π
    orthogonalization_cosine  max(0, m + c)²                     max(0, m + c)         2
    decorrelation             c²                                 c                     2

c̃ is c clamped to ±(1−t).  Straight-through (the default) the slope is that at the boundary, so only c̃ appears
above; with the hard clamp it is zero outside.

The logits are shifted by the logit ℓ(c̄) of the sequence's mean cosine c̄: the term is exp(ℓ(c) − ℓ(c̄)), which has
mean about one for any τ.  The logits span at most 1/τ (2/τ for the cosine), so no running maximum is needed for
τ ≥ `MIN_TAU`.

arccos(c) = π/2 − arcsin(c), and for x = |c| arcsin(x) = π/2 − √(1−x²) P(x), where P(x) = arccos(x)/√(1−x²) is
analytic at x = 1 (it is θ/sin θ as a function of cos θ; the nearest singularity is x = −1), so that a polynomial
converges fast on [0, 1]: fitted for least relative error, degree 8 is within 7.1e-8 and degree 6 within 2.7e-6.
1/√(1−c²) is wanted for the slope anyway, so value and slope together take one reciprocal root and one exponential.
`FINE` uses degree 8 and 1−c² as (1−x)(1+x); 16-bit cosines, accurate to three digits, need only degree 6.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl

CURVES = {
    "dispersion": 0,
    "dispersion_cosine": 1,
    "orthogonalization": 2,
    "orthogonalization_cosine": 3,
    "decorrelation": 4,
}
# A float32 cosine cannot be limited more closely to ±1.
MIN_CLAMP = 2.0**-23

DISPERSION = tl.constexpr(0)
DISPERSION_COSINE = tl.constexpr(1)
ORTHOGONALIZATION = tl.constexpr(2)
ORTHOGONALIZATION_COSINE = tl.constexpr(3)

LOG2E = tl.constexpr(math.log2(math.e))
HALF_PI = tl.constexpr(math.pi / 2)
INVERSE_PI = tl.constexpr(1 / math.pi)
SIGN = tl.constexpr(-(2**31))


def gain(curve: str, tau: float) -> float:
    """The factor by which the slopes from the kernels must be multiplied."""
    return {"dispersion": 1 / (math.pi * tau), "dispersion_cosine": 1 / tau, "orthogonalization": 2 / math.pi}.get(
        curve, 2.0
    )


@triton.jit
def _reciprocal_root(x, FAST: tl.constexpr):
    if FAST:  # without the handling of subnormal numbers, which do not occur
        return tl.inline_asm_elementwise("rsqrt.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)
    return tl.rsqrt(x)


@triton.jit
def _exp2(x, FAST: tl.constexpr):
    if FAST:
        return tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)
    return tl.exp2(x)


@triton.jit
def arcsine(c, limit, FINE: tl.constexpr, FAST: tl.constexpr):
    """arcsin(c̃) and 1/√(1−c̃²), c̃ = c kept within ±limit, limit < 1; NaN stays NaN."""
    c = tl.clamp(c, -limit, limit, propagate_nan=tl.PropagateNan.ALL)
    x = tl.abs(c)
    if FINE:
        y = (1.0 - x) * (1.0 + x)
        p = 0.0174789967 * x - 0.0972654594
        p = p * x + 0.25208701
        p = p * x - 0.423583112
        p = p * x + 0.556556268
        p = p * x - 0.660969323
        p = p * x + 0.784880991
        p = p * x - 0.999981517
        p = p * x + 1.57079622
    else:
        y = 1.0 - c * c
        p = 0.0423203456 * x - 0.194527671
        p = p * x + 0.420272225
        p = p * x - 0.617311039
        p = p * x + 0.778026433
        p = p * x - 0.999569716
        p = p * x + 1.57079211
    r = _reciprocal_root(y, FAST)
    s = HALF_PI - y * r * p
    bits = s.to(tl.int32, bitcast=True) ^ (c.to(tl.int32, bitcast=True) & SIGN)  # the sign of c
    return bits.to(tl.float32, bitcast=True), r


@triton.jit
def term_and_slope(
    c, shift, rate, limit, margin,
    CURVE: tl.constexpr, HARD: tl.constexpr, FINE: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """The summed term and its derivative with respect to c, divided by the gain.

    rate: 1/(πτ) for dispersion, 1/τ for dispersion_cosine.  shift: the arcsine of the mean cosine for dispersion,
    the mean cosine for dispersion_cosine; other curves ignore both.
    """
    if CURVE == DISPERSION:
        a, r = arcsine(c, limit, FINE, FAST)
        scale = rate * LOG2E
        f = _exp2(a * scale - shift * scale, FAST)
        s = f * r
        if HARD:
            s = tl.where(tl.abs(c) > limit, 0.0, s)
    elif CURVE == DISPERSION_COSINE:
        scale = rate * LOG2E
        f = _exp2(c * scale - shift * scale, FAST)
        s = f
    elif CURVE == ORTHOGONALIZATION:
        a, r = arcsine(c, limit, FINE, FAST)
        d = a * INVERSE_PI + (margin - 0.5)
        d = tl.where(d < 0.0, 0.0, d)
        f = d * d
        s = d * r
        if HARD:
            s = tl.where(tl.abs(c) > limit, 0.0, s)
    elif CURVE == ORTHOGONALIZATION_COSINE:
        d = margin + c
        d = tl.where(d < 0.0, 0.0, d)
        f = d * d
        s = d
    else:
        f = c * c
        s = c
    return f, s


@triton.jit
def anchor(length, square, n, rate, limit, margin, CURVE: tl.constexpr, HARD: tl.constexpr):
    """Shift and slope at the mean off-diagonal cosine c̄ = (‖T‖² − Q)/(n(n−1)), from `length` ‖T‖², `square` Q and n."""
    mean = tl.where(n < 2.0, 0.0, (length - square) / tl.where(n < 2.0, 1.0, n * (n - 1.0)))
    shift = mean
    if CURVE == DISPERSION:
        shift = arcsine(mean, limit, True, False)[0]
    slope = term_and_slope(mean, shift, rate, limit, margin, CURVE, HARD, True, False)[1]
    return shift, slope
