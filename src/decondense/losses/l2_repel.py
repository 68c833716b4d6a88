"""ℓ2-repel: dispersion by Euclidean distance, with a weight on the norm.

    L = log ( 1/(n(n−1)) Σ_{i≠j} exp(−‖z_i − z_j‖²/τ) ) + λ_norm · mean(z²)

Source: Liu et al. 2026, table of variants. The paper's formula has the bare sum and ‖Z‖²; its released code
keeps the diagonal, divides by n² and takes the mean of z². We leave the diagonal out on purpose: hidden states
of real models are thousands of units apart, so every exp(−‖z_i − z_j‖²/τ) vanishes beside the n ones of the
diagonal. With the diagonal, the repulsion then has no gradient at all, and only the norm term trains.

Without the diagonal the loss falls as states grow: for s·z it is about s²·(λ_norm·mean(z²) − d²/τ), d² the squared
distance of the nearest pair; d² is a sum over the features where mean(z²) is a mean, so unless tokens nearly coincide
there is no lower bound. On SmolLM2-135M a weight of 0.1 on all layers destroys the model within 50 steps (study
`variants`). The presets "released" (diagonal) and "paper" (‖Z‖²) are bounded below but pull the states towards 0.
With "released" the same study ends 0.23 nats above cross-entropy and with a narrower cone; "paper" was not tried.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Unpack

import torch
from torch import Tensor

from .. import geometry
from ..checks import check_choice
from .kernel import Kernel
from .options import fused_in_16_bits
from .pairs import Stored, apply, tiles
from .registry import Common, register
from .sampling import RELEASED_SAMPLE


@register(
    "log of a mean over the pairs of exp(−squared distance/τ), and a weight on the norm",
    source="paper",
    reference="Liu et al. 2026",
    presets={
        "paper": {"pairs": "sum", "norm": "sum", "norm_weight": 0.1},
        "released": {"diagonal": True, "constant": 0.01, "norm_weight": 0.1, **RELEASED_SAMPLE},
        "disperse": {"diagonal": True, "norm_weight": 0.0},
    },
)
def l2_repel(
    z: Tensor,
    mask: Tensor | None = None,
    *,
    tau: float = 1.0,
    norm_weight: float = 0.1,
    norm: str = "mean",
    pairs: str = "mean",
    diagonal: bool = False,
    constant: float = 0.0,
    backend: str = "auto",
    **common: Unpack[Common],
) -> Tensor:
    """ℓ2-repel loss of hidden states z (batch, tokens, width): a scalar, or (batch,) unreduced.

    tau          temperature; squared distances of hidden states are large, so 1.0 looks at nearest pairs only.
    norm_weight  λ_norm; `norm="mean"` weighs the mean of z², `norm="sum"` the paper's ‖Z‖².
    pairs        "mean": log of the mean over pairs; "sum": log of the sum, as the paper writes it.
    diagonal, constant: as in `dispersion`.
    backend      as in `dispersion`: the kernel is used where autocast or the dtype of the states asks for 16-bit
                 products, and then multiplies in float16.
    """
    geometry.check_positive("tau", tau)
    geometry.check_finite(norm_weight=norm_weight, constant=constant)
    check_choice("norm", norm, ("mean", "sum"))
    check_choice("pairs", pairs, ("mean", "sum"))
    n: Tensor | float = z.shape[1]  # a plain number if possible: every tensor operation is a launch
    if mask is not None:
        n = mask.sum(1).to(z.dtype if z.dtype == torch.float64 else torch.float32)
    if fused_in_16_bits(z, backend, torch.bfloat16, torch.float16):
        value, square = apply(Kernel("repulsion", tau=tau), z, mask)
        if diagonal:  # n more pairs, at distance 0
            value = torch.logaddexp(value, _log(n, value) + torch.zeros_like(value))
    else:
        value = apply(_Repulsion(tau=tau, diagonal=diagonal), z, mask)
        square = geometry.keep(z, mask)[0].square().sum((1, 2)) if norm_weight else value
    if pairs == "mean":
        value = value - _log(n * n if diagonal else n * (n - 1), value)
    if norm_weight:
        value = value + square * (norm_weight if norm == "sum" else norm_weight / (n * z.shape[2]))
    return value + constant if constant else value


def _log(n: Tensor | float, value: Tensor) -> Tensor | float:
    if torch.compiler.is_compiling() and not isinstance(n, Tensor):  # math.log would pin the length: a graph for each
        n = value.new_full((), n)
    return torch.log(n) if isinstance(n, Tensor) else math.log(n)


@dataclass(frozen=True)
class _Repulsion(Stored):
    """log Σ exp(x_ij), x = −‖z_i − z_j‖²/τ; with p the softmax over all pairs and r_i = Σ_j p_ij,

        ∂L/∂z_i = −(4/τ) Σ_j p_ij (z_i − z_j) = −(4/τ) (r_i z_i − Σ_j p_ij z_j).

    The logits have no lower bound, so a running maximum is kept, and the sums so far are rescaled when it rises.
    """

    tau: float
    diagonal: bool

    def sums(self, z: Tensor, weight: Tensor | None, n: Tensor, need_gradient: bool) -> tuple[Tensor, Tensor | None]:
        z = geometry.centred(z, weight, n)
        batch, tokens, _ = z.shape
        peak = z.new_full((batch,), -torch.inf)
        total, row, pull = z.new_zeros(batch), z.new_zeros(batch, tokens), torch.zeros_like(z)
        for b, rows in tiles(batch, tokens, z.device):
            width = rows.stop - rows.start
            left, right = z[b, rows], z[b, rows.start :]
            x = geometry.squared_distances(left, right).mul_(-1 / self.tau)
            x.diagonal(dim1=-2, dim2=-1).fill_(0 if self.diagonal else -torch.inf)
            if weight is not None:
                x.masked_fill_((weight[b, rows, None] * weight[b, None, rows.start :]) == 0, -torch.inf)
            top = torch.maximum(peak[b], x.amax((-2, -1)))
            level = torch.where(torch.isneginf(top), 0, top)
            p = x.sub_(level[:, None, None]).exp_()
            shrink = torch.exp(peak[b] - level)
            total[b] = total[b] * shrink + 2 * p.sum((-2, -1)) - p[..., :width].sum((-2, -1))
            peak[b] = top
            if not need_gradient:
                continue
            # A token does not repel itself, and its large weight must not drown the others in rounding.
            p.diagonal(dim1=-2, dim2=-1).zero_()
            row[b] *= shrink[:, None]
            pull[b] *= shrink[:, None, None]
            row[b, rows] += p.sum(-1)
            row[b, rows.stop :] += p[..., width:].sum(-2)
            pull[b, rows].baddbmm_(p, right)
            pull[b, rows.stop :].baddbmm_(p[..., width:].mT, left)
        value = geometry.enough(n, peak + torch.log(total))
        if not need_gradient:
            return value, None
        scale = geometry.enough(n, -4 / (self.tau * total))
        return value, (row.unsqueeze(-1) * z - pull) * scale[:, None, None]
