"""VICReg on token states: every feature keeps its spread over the tokens, and no two features say the same.

    C = covariance over the n tokens (n − 1 degrees of freedom),  d = width
    L = μ · 1/d Σ_f max(0, γ − √(C_ff + ε))  +  ν · 1/d Σ_f≠g C_fg²,     μ = 25, ν = 1, γ = 1, ε = 10⁻⁴

Source: Bardes, Ponce & LeCun 2022, arXiv 2105.04906. Their third term, invariance, pulls two augmented views of one
image together; a token sequence has one view, so it is left out. The paper weights the two views' hinges 25 : 1 against
their covariances, and so do we for the one cloud; its code halves only the hinges, which makes 12.5 : 1.

VICReg is made for the output of a projector, with a spread near 1. Hidden states of language models have other scales,
and the covariance term grows with the fourth power of the scale, so the weight must be tuned anew for every model.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from .. import geometry
from .covariance import off_diagonal_power
from .kernel import Kernel
from .options import fused_in_16_bits
from .pairs import apply
from .registry import Common, register


@register(
    "spread of every feature, and covariance of every two",
    source="rival",
    reference="Bardes, Ponce & LeCun 2022, arXiv 2105.04906",
)
def vicreg(
    z: Tensor,
    mask: Tensor | None = None,
    *,
    variance_weight: float = 25.0,
    covariance_weight: float = 1.0,
    gamma: float = 1.0,
    eps: float = 1e-4,
    backend: str = "auto",
    **common: Unpack[Common],
) -> Tensor:
    """Variance and covariance terms of hidden states z (batch, tokens, width): a scalar, or (batch,) unreduced.

    variance_weight μ and covariance_weight ν are the weights of the two terms (0 leaves one out), gamma is the standard
    deviation above which a feature is left alone, eps keeps the slope of the root finite at a constant feature.
    backend as in `dispersion`: the kernel is used where autocast or the dtype of the states asks for bfloat16 products.
    """
    geometry.check_positive("gamma", gamma)
    geometry.check_positive("eps", eps)
    geometry.check_finite(variance_weight=variance_weight, covariance_weight=covariance_weight)
    width = z.shape[2]
    small = width <= 2 * z.shape[1] or backend == "triton"  # the matrix, relative to z
    if fused_in_16_bits(z, backend, torch.bfloat16) and small:
        weights = {"variance_weight": variance_weight, "covariance_weight": covariance_weight}
        return apply(Kernel("covariance", gamma=gamma, eps=eps, **weights), z, mask)
    z, weight, n = geometry.keep(z, mask)
    x = geometry.centred(z, weight, n)
    freedom = (n - 1).clamp_min(1)
    variance = x.square().sum(1) / freedom[:, None]
    hinge = (gamma - torch.sqrt(variance + eps)).clamp_min(0).mean(1)
    covariance = off_diagonal_power(x) / (freedom.square() * width)
    return variance_weight * hinge + covariance_weight * covariance
