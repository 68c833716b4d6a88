"""Perplexity entropy: every token's softmax over its neighbours should be flat.

    P_ij = softmax over j ≠ i of −‖z_i − z_j‖²/τ,    L = mean_i Σ_j P_ij log₂(P_ij + ε)

Not in the paper, but one of the variants in its released code, whose form this is (ε = 0.01).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Unpack

import torch
from torch import Tensor

from .. import geometry
from .pairs import Stored, apply, tiles
from .registry import Common, register
from .sampling import RELEASED_SAMPLE


@register(
    "entropy of every token's softmax over its neighbours",
    source="released",
    reference="Liu et al. 2026",
    presets={"released": {"eps": 0.01, **RELEASED_SAMPLE}},
)
def perplexity_entropy(
    z: Tensor, mask: Tensor | None = None, *, tau: float = 1.0, eps: float = 1e-2, **common: Unpack[Common]
) -> Tensor:
    """Perplexity entropy of hidden states z (batch, tokens, width): a scalar, or (batch,) unreduced.

    tau is the temperature of the squared distances, eps the ε inside the logarithm.
    """
    geometry.check_positive("tau", tau)
    geometry.check_positive("eps", eps)
    return apply(_Neighbours(tau=tau, eps=eps), z, mask)


@dataclass(frozen=True)
class _Neighbours(Stored):
    """With q = log₂(P + ε) + P/((P + ε) ln 2) and A_ij = ∂L/∂‖z_i − z_j‖² = −P_ij (q_ij − Σ_k P_ik q_ik)/(τ n),

        ∂L/∂z_i = 2 Σ_j (A_ij + A_ji)(z_i − z_j).

    A softmax needs its whole row, so tiles are whole rows. A is not symmetric, hence the two terms.
    """

    tau: float
    eps: float

    def sums(self, z: Tensor, weight: Tensor | None, n: Tensor, need_gradient: bool) -> tuple[Tensor, Tensor | None]:
        z = geometry.centred(z, weight, n)
        value = z.new_zeros(z.shape[0])
        gradient = torch.zeros_like(z)
        for b, rows in tiles(z.shape[0], z.shape[1], z.device):
            left, right, tokens = z[b, rows], z[b], n[b, None, None]
            x = geometry.squared_distances(left, right).mul_(-1 / self.tau)
            x.diagonal(offset=rows.start, dim1=-2, dim2=-1).fill_(-torch.inf)
            if weight is not None:
                x.masked_fill_(weight[b, None, :] == 0, -torch.inf)
            x = torch.where(tokens < 2, 0, x)  # no other token: avoid the softmax of an empty row
            p = torch.softmax(x, -1)
            logarithm = torch.log2(p + self.eps)
            share = 1 / tokens.clamp_min(1)
            if weight is not None:
                share = share * weight[b, rows, None]
            share = torch.where(tokens < 2, 0, share)
            value[b] += (p * logarithm * share).sum((-2, -1))
            if not need_gradient:
                continue
            q = logarithm + p / (p + self.eps) / math.log(2)
            a = p * (q - (p * q).sum(-1, keepdim=True)) * share * (-2 / self.tau)
            gradient[b, rows] += a.sum(-1, keepdim=True) * left - a @ right
            gradient[b] += a.sum(-2).unsqueeze(-1) * right - a.mT @ left
        return value, gradient if need_gradient else None
