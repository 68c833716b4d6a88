"""The curves of the pairwise losses, as functions a kernel calls on a tile of cosines.

A loss is a function of the cosines c_ij of one sequence: either a log-mean-exp of logits ℓ(c), or a mean of
f(c).  A curve gives, for a tile of cosines, the term that is summed and its slope.

    dispersion                ℓ(c) = −arccos(c̃)/(πτ)          ℓ'(c) = 1/(πτ √(1−c̃²))
    dispersion_cosine         ℓ(c) = c/τ                       ℓ'(c) = 1/τ
    orthogonalization         f(c) = max(0, m − arccos(c̃)/π)²  f'(c) = 2 max(0, ·)/(π √(1−c̃²))
    orthogonalization_cosine  f(c) = max(0, m + c)²            f'(c) = 2 max(0, m + c)
    decorrelation             f(c) = c²                        f'(c) = 2c

c̃ is c clamped to ±(1−t).  Straight-through (the default) the slope is that at the boundary, so only c̃ appears
above; with the hard clamp it is zero outside.

The logits are shifted by the logit ℓ(c̄) of the sequence's mean cosine c̄: the summed term is exp(ℓ(c) − ℓ(c̄)),
its slope exp(ℓ(c) − ℓ(c̄)) ℓ'(c).  The terms then have mean about one for any τ.  The logits span at most 1/τ
(2/τ for the cosine), so no running maximum is needed for τ ≥ `MIN_TAU`.

arccos(x) = √(1−x²) P(x) on [0, 1] with P(x) = arccos(x)/√(1−x²), which is analytic at x = 1 (θ/sin θ as a
function of cos θ; the nearest singularity is x = −1), so a polynomial converges fast: degree 8, fitted for least
relative error, is within 7.1e-8; arccos(−x) = π − arccos(x).  1/√(1−x²) is wanted for the slope anyway, so
value and slope together take one reciprocal root and one exponential.
"""

from __future__ import annotations

import triton
import triton.language as tl

CURVES = {
    "dispersion": 0,
    "dispersion_cosine": 1,
    "orthogonalization": 2,
    "orthogonalization_cosine": 3,
    "decorrelation": 4,
}
# Below, exp(1/τ) leaves the range of float32.
MIN_TAU = 0.025

DISPERSION = tl.constexpr(0)
DISPERSION_COSINE = tl.constexpr(1)
ORTHOGONALIZATION = tl.constexpr(2)
ORTHOGONALIZATION_COSINE = tl.constexpr(3)

LOG2E = tl.constexpr(1.4426950408889634)
PI = tl.constexpr(3.141592653589793)
INVERSE_PI = tl.constexpr(0.3183098861837907)


@triton.jit
def clamp_cosine(c, limit):
    """±limit by comparisons: they leave NaN alone, where the hardware's min and max would drop it."""
    return tl.where(c > limit, limit, tl.where(c < -limit, -limit, c))


@triton.jit
def angle(c):
    """arccos(c) and 1/√(1−c²) for |c| ≤ 1."""
    x = tl.abs(c)
    y = (1.0 - x) * (1.0 + x)
    r = tl.rsqrt(tl.where(y < 1e-12, 1e-12, y))
    p = 0.0174789967 * x - 0.0972654594
    p = p * x + 0.25208701
    p = p * x - 0.423583112
    p = p * x + 0.556556268
    p = p * x - 0.660969323
    p = p * x + 0.784880991
    p = p * x - 0.999981517
    p = p * x + 1.57079622
    a = y * r * p
    return tl.where(c < 0.0, PI - a, a), r


@triton.jit
def term_and_slope(c, shift, rate, limit, margin, CURVE: tl.constexpr, HARD: tl.constexpr):
    """The summed term and its derivative with respect to c.

    rate: 1/(πτ) for dispersion, 1/τ for dispersion_cosine.  shift: the angle of the mean cosine for dispersion,
    the mean cosine for dispersion_cosine; other curves ignore both.
    """
    if CURVE == DISPERSION:
        theta, r = angle(clamp_cosine(c, limit))
        f = tl.exp2((shift - theta) * (rate * LOG2E))
        s = f * r * rate
        if HARD:
            s = tl.where(tl.abs(c) > limit, 0.0, s)
    elif CURVE == DISPERSION_COSINE:
        f = tl.exp2((c - shift) * (rate * LOG2E))
        s = f * rate
    elif CURVE == ORTHOGONALIZATION:
        theta, r = angle(clamp_cosine(c, limit))
        d = margin - theta * INVERSE_PI
        d = tl.where(d < 0.0, 0.0, d)
        f = d * d
        s = d * r * (2.0 * INVERSE_PI)
        if HARD:
            s = tl.where(tl.abs(c) > limit, 0.0, s)
    elif CURVE == ORTHOGONALIZATION_COSINE:
        d = margin + c
        d = tl.where(d < 0.0, 0.0, d)
        f = d * d
        s = 2.0 * d
    else:
        f = c * c
        s = 2.0 * c
    return f, s


@triton.jit
def anchor(
    length, square, count, b, rate, limit, margin,
    LENGTH_PARTS: tl.constexpr, LENGTH_BLOCK: tl.constexpr, CURVE: tl.constexpr, HARD: tl.constexpr,
):  # fmt: skip
    """Shift and slope at the mean off-diagonal cosine c̄ = (‖T‖² − Q)/(n(n−1)) of sequence b."""
    parts = tl.arange(0, LENGTH_BLOCK)
    t = tl.sum(tl.load(length + b * LENGTH_PARTS + parts, mask=parts < LENGTH_PARTS, other=0.0), axis=0)
    n = tl.load(count + b)
    mean = tl.where(n < 2.0, 0.0, (t - tl.load(square + b)) / tl.where(n < 2.0, 1.0, n * (n - 1.0)))
    if CURVE == DISPERSION:
        shift, r = angle(clamp_cosine(mean, limit))
    else:
        shift = mean
    f, slope = term_and_slope(mean, shift, rate, limit, margin, CURVE, HARD)
    return shift, slope
