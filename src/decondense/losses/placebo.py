"""A placebo for the dispersion loss: it pushes as hard, but leaves the mean cosine alone. A control, not a treatment.

    v_i = z_i − z̄                    the states without their mean over the tokens of the sequence
    L   = dispersion(v), all pairs    the same pairwise loss, which does not see what the states have in common
    R   = ∂/∂z log f(c̄)              the real gradient (dispersion to first order), parallel to ∂c̄/∂z
    B   = ∂L/∂z = C ∂L/∂v             C subtracts the mean over the tokens: Σ_i B_i = 0, no push along any direction
                                      that all tokens share, such as their mean
    A   = C R                         R without what its tokens have in common
    P   = B − A ⟨B, A⟩/⟨A, A⟩         Σ_i P_i = 0 still, and ⟨P, R⟩ = ⟨P, A⟩ + ⟨P, R − A⟩ = 0: a step along −P does not
                                      change c̄ to first order, ⟨·, ·⟩ being the sum over tokens and features
    gradient = σ P ‖R‖/‖P‖            σ = 1: the norm of the real one, for every sequence, layer and step

So with σ = 1 a weight λ pushes the states of a layer as hard with this loss as with first-order dispersion, and the two
differ only in direction. The norm of what reaches the *weights* may still differ: in SmolLM2-135M more of this push
arrives there than of the real one. σ, the option `strength`, corrects for that, once for a model and a step size
(`benchmarks/placebo_strength.py`). The push is blind to the mean cosine in the states of each layer; as weights are
shared by tokens and layers, training with it may still move the mean cosine a little, which study `placebo` measures.

The backward pass does not return the derivative of the value L, which is for information; P is L's gradient with one
direction projected out, so a step along −P still lowers L. Two tokens have no such direction, and get no gradient.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Unpack

import torch
from torch import Tensor

from .. import geometry
from . import pairs
from .dispersion import Logit
from .moments import MeanCosine
from .registry import Common, register

LEFT = 1e-5  # of the norm of B: if less is left after the projection, it is rounding


@register(
    "pairs of centred states, as hard a push as dispersion's and blind to the mean cosine",
    source="control",
    reference="docs/studies.md",
    eps_of_units=True,
)
def placebo(
    z: Tensor,
    mask: Tensor | None = None,
    *,
    tau: float = 1.0,
    clamp: float = 0.1,
    eps: float = 1e-2,
    strength: float = 1.0,
    **common: Unpack[Common],
) -> Tensor:
    """Placebo of hidden states z (batch, tokens, width): a scalar, or (batch,) unreduced.

    tau, clamp and eps are those of `dispersion`, for the real loss as well as for L; strength is σ, the norm of the
    gradient relative to the real one.
    """
    geometry.check_positive("tau", tau)
    geometry.check_positive("strength", strength)
    geometry.check_clamp(clamp)
    return pairs.apply(Blind(tau, clamp, eps, strength), z, mask)


@dataclass(frozen=True)
class Blind(pairs.Stored):
    """L of each sequence, and σ P ‖R‖/‖P‖ as its gradient."""

    tau: float
    clamp: float
    eps: float
    strength: float

    def sums(self, z: Tensor, weight: Tensor | None, n: Tensor, need_gradient: bool) -> tuple[Tensor, Tensor | None]:
        logit = Logit(self.tau, self.clamp, hard_clamp=False, distance="angular", constant=0.0)
        pairwise = pairs.CosinePairs(curve=logit, log=True, eps=self.eps)
        value, slope = pairwise.sums(geometry.centred(z, weight, n), weight, n, need_gradient)
        if slope is None:
            return value, None
        blind = geometry.centred(slope if weight is None else slope * weight.unsqueeze(-1), weight, n)
        real = self._real(z, weight)
        seen = geometry.centred(real, weight, n)
        part = _dot(blind, seen) * geometry.inverse(_dot(seen, seen))
        rest = blind - part * seen
        before, left = _dot(blind, blind).sqrt(), _dot(rest, rest).sqrt()
        scale = torch.where(left > LEFT * before, self.strength * _dot(real, real).sqrt() * geometry.inverse(left), 0)
        return value, torch.where(n[:, None, None] > 2, rest * scale, 0)

    def _real(self, z: Tensor, weight: Tensor | None) -> Tensor:
        """R: with c the limited c̄,  ∂/∂z = 1/(πτ √(1 − c²)) · ∂c̄/∂z."""
        routine = MeanCosine(self.eps)
        mean, saved = routine.forward(z, weight, need_gradient=True)
        c = geometry.limited(mean, self.clamp, hard=True)
        return routine.backward(z, weight, saved, torch.rsqrt(1 - c * c) / (math.pi * self.tau))


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """(batch, 1, 1)"""
    return (a * b).sum((1, 2), keepdim=True)
