"""What VICReg and I-STAR need from a covariance matrix, without building it if there are fewer tokens than features.

With X (tokens, width) centred and C = XᵀX/(n − 1):

    Σ_f≠g (XᵀX)_fg² = ‖XᵀX‖²_F − Σ_f (XᵀX)_ff²,    ‖XᵀX‖_F = ‖XXᵀ‖_F      O(N F min(N, F))
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .. import geometry
from .pairs import apply, full_precision


def off_diagonal_power(x: Tensor) -> Tensor:
    """Σ_f≠g (XᵀX)_fg² (batch,) of centred states x (batch, tokens, width)."""
    return apply(_OffDiagonal(), x, None)


def pooled_covariance(z: Tensor, mask: Tensor | None = None) -> Tensor:
    """The covariance (width, width) of all tokens of a batch z (batch, tokens, width) that count, without gradient.

    Meant as the shrinkage target of `i_star`: use a large batch, with many more tokens than features.
    """
    mask = geometry.check_states(z, mask)
    tokens = z.detach().flatten(0, 1) if mask is None else z.detach()[mask]
    if len(tokens) < 2:
        raise ValueError(f"a covariance needs at least 2 tokens that count, got {len(tokens)}: pass a larger batch.")
    with full_precision(z.device):
        return torch.cov(tokens.T.to(torch.promote_types(z.dtype, torch.float32)))


@dataclass(frozen=True)
class _OffDiagonal:
    """With G = XᵀX and Ĝ the same without its diagonal: ∂ Σ Ĝ² / ∂X = 4 X Ĝ = 4 (XXᵀ X − X diag G)."""

    def forward(self, x: Tensor, mask: Tensor | None, need_gradient: bool) -> tuple[Tensor, tuple[Tensor, ...]]:
        with full_precision(x.device):
            if x.shape[1] > x.shape[2]:
                gram = x.mT @ x
                gram.diagonal(dim1=-2, dim2=-1).zero_()  # before squaring: a feature may outweigh all others
                return gram.square().sum((1, 2)), (gram,)
            # One feature may outweigh all others, which leaves the difference few digits: float64 where that is cheap.
            wide = x.double() if x.device.type == "cpu" else x
            gram = wide @ wide.mT
            power = gram.square().sum((1, 2)) - wide.square().sum(1).square().sum(1)
            return power.clamp_min(0).to(x.dtype), (gram.to(x.dtype),)

    def backward(self, x: Tensor, mask: Tensor | None, saved: tuple[Tensor, ...], upstream: Tensor) -> Tensor:
        (gram,) = saved
        with full_precision(x.device):
            if x.shape[1] > x.shape[2]:
                product = x @ gram
            else:
                product = gram @ x - x * x.square().sum(1, keepdim=True)
            return product.mul_(4 * upstream[:, None, None])
