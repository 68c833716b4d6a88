"""The dispersion loss: the log of a mean over all pairs of exp(−angular distance / τ).

    u_i = z_i/(‖z_i‖ + ε),  c_ij = u_i·u_j,  D_ij = arccos(c_ij)/π ∈ [0, 1]
    L = log ( 1/(n(n−1)) Σ_{i≠j} exp(−D_ij/τ) ),   averaged over the sequences

Identical tokens give 0, or −arccos(1 − t)/(πτ) where cosines are clamped to ±(1 − t); orthogonal tokens give −1/(2τ):
lower is more dispersed. Source: Liu et al. 2026, arXiv 2602.00217; `algorithm_1.py` has the paper's own formula.

Four estimators of the same quantity, with f(c) = exp(−arccos(c)/(πτ)):

    exact         all pairs                                               O(N²F)
    second_order  log f(c̄) + ½ (f″/f)(c̄) Var(c)                           O(NF²)
    first_order   log f(c̄), with c̄ the mean cosine over the pairs         O(NF)
    sampled       exact on `max_tokens` random tokens of each sequence    O(max_tokens² F)

docs/estimators.md says what each costs and what it misses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Unpack

import torch
from torch import Tensor

from .. import geometry
from ..checks import check_choice
from . import moments, pairs
from .context_parallel import RingPairs, SharedMeanCosine
from .kernel import Kernel
from .options import fused
from .registry import Common, OfMoments, OfRoutine, register
from .sampling import RELEASED_SAMPLE

ESTIMATORS = ("exact", "first_order", "second_order", "sampled")
DISTANCES = ("angular", "cosine")


@register(
    "log of a mean over the pairs of exp(−angular distance/τ)",
    source="paper",
    reference="Liu et al. 2026, equation 2",
    presets={
        "paper": {"hard_clamp": True, "clamp": 0.01, "eps": 0.01, "constant": 0.01},
        "released": {"clamp": 0.25, "eps": 0.01, "constant": 0.01, **RELEASED_SAMPLE},
        "disperse": {"distance": "cosine", "diagonal": True, "eps": 0.0},
    },
    aliases=("angular_spread", "angular"),
    eps_of_units=True,
)
def dispersion(
    z: Tensor,
    mask: Tensor | None = None,
    *,
    tau: float = 1.0,
    clamp: float = 0.1,
    eps: float = 1e-2,
    estimator: str = "exact",
    hard_clamp: bool = False,
    distance: str = "angular",
    diagonal: bool = False,
    constant: float = 0.0,
    backend: str = "auto",
    process_group: Any = None,
    **common: Unpack[Common],
) -> Tensor | OfMoments | OfRoutine:
    """Dispersion loss of hidden states.

    z (batch, tokens, width); mask (batch, tokens), true where a token counts. Returns a scalar, or (batch,)
    with `reduction="none"`; float32, or float64 for float64 states.

    tau         temperature τ > 0.
    clamp       cosines are limited to ±(1 − clamp), straight-through: the value saturates and the gradient
                keeps the slope of the boundary, so that a fully condensed cloud still feels a push.
                `hard_clamp=True` is the paper's Algorithm 1, which has no gradient where the limit bites. We
                recommend straight-through: the two differ exactly where condensation is worst.
    eps         ε in u = z/(‖z‖ + ε). It bounds the gradient of very short vectors; 0 makes the loss invariant
                to scale.
    estimator   "exact" is the definition; see above for the others.
    distance    "angular", or "cosine" for D = −c (Wang & He 2025), which needs no clamp.
    diagonal    also count the n pairs i = j. Off by default: they have no gradient and only dilute the weights of
                the others, by S/(S + n) with S the sum over i ≠ j.
    constant    added inside the log-sum-exp, as Algorithm 1 does with its ε: shifts the value, not the gradient.
    max_tokens, shared_sample, generator, reduction: the options of every loss, `registry.Common`.
    backend     "auto": a Triton kernel on CUDA; "torch": never; "triton": always, or an error.
    process_group  z holds this rank's part of sequences that are split over the ranks of the group, in equal parts;
                the value is that of the whole sequence (`losses/context_parallel.py`).
    """
    geometry.check_positive("tau", tau)
    geometry.check_clamp(clamp)
    geometry.check_finite(constant=constant)
    check_choice("estimator", estimator, ESTIMATORS)
    check_choice("distance", distance, DISTANCES)
    if diagonal and estimator in ("first_order", "second_order"):
        raise ValueError(
            f"diagonal=True needs an estimator that visits pairs, got {estimator!r}: use estimator='exact'."
        )
    if process_group is not None and estimator not in ("exact", "first_order"):
        raise ValueError(
            f"process_group needs estimator='exact' or 'first_order', got {estimator!r}: "
            "second order and sampling do not cross ranks."
        )
    logit = Logit(tau, clamp, hard_clamp, distance, constant)
    if estimator == "first_order" and process_group is not None:
        shared = SharedMeanCosine(eps, process_group)
        return OfMoments(lambda mean, n: geometry.enough(n.detach(), logit.taylor(mean)), shared)
    if estimator == "first_order":
        return OfMoments(logit.taylor, moments.first_routine(z, eps, backend))
    if estimator == "second_order":
        return OfMoments(logit.taylor, moments.second_routine(z, eps, backend))
    routine: pairs.Routine
    if process_group is not None:
        routine = RingPairs(curve=logit, log=True, eps=eps, diagonal=diagonal, group=process_group)
    elif fused(z, backend, tau=tau):
        curve = "dispersion" if distance == "angular" else "dispersion_cosine"
        routine = Kernel(
            "pairwise", curve=curve, tau=tau, clamp=clamp, hard_clamp=hard_clamp, eps=eps, diagonal=diagonal
        )
    else:
        routine = pairs.CosinePairs(curve=logit, log=True, eps=eps, diagonal=diagonal)
    return OfRoutine(routine, constant)


@dataclass  # not frozen: torch 2.11, when tracing, loses the fields of a frozen dataclass inside another
class Logit:
    """log f(c) = −D(c)/τ: the values and slopes of f, and its Taylor series about the mean cosine.

    Angular, with k = 1/(πτ) and q = 1 − c²:   (log f)' = k q^(−1/2),   f″/f = k² q⁻¹ + k c q^(−3/2)
    Cosine:   log f = c/τ,   f″/f = 1/τ².
    """

    tau: float
    clamp: float
    hard_clamp: bool
    distance: str
    constant: float

    def __call__(self, c: Tensor) -> tuple[Tensor, Tensor]:
        """f and f' of a tile of cosines, for `pairs.CosinePairs`."""
        if self.distance == "cosine":
            f = torch.exp(c / self.tau)
            return f, f / self.tau
        k = 1 / (math.pi * self.tau)
        angle, slope = geometry.arc(c, self.clamp, hard=self.hard_clamp)
        f = angle.mul_(-k).exp_()
        return f, slope.mul_(f).mul_(k)

    def taylor(self, mean: Tensor, square: Tensor | None = None) -> Tensor:
        """log f(c̄), the first-order value; given `square`, the mean of c², plus ½ (f″/f)(c̄) Var(c)."""
        cosine, k = self.distance == "cosine", 1 / (math.pi * self.tau)
        c = mean if cosine else geometry.limited(mean, self.clamp, hard=self.hard_clamp)
        value = c / self.tau if cosine else -k * torch.arccos(c)
        if square is not None:
            q = 1 - c * c
            bend = 1 / self.tau**2 if cosine else k * k / q + k * c * torch.rsqrt(q) / q
            value = value + 0.5 * bend * (square - mean * mean)
        return value + self.constant if self.constant else value
