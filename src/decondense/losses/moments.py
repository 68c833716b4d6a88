"""Moments of the cosines of a cloud, without its pairs.

Σ_{i≠j} c_ij  = ‖Σ u_i‖² − Σ ‖u_i‖²          O(NF)
Σ_{i≠j} c_ij² = ‖UᵀU‖²_F − Σ ‖u_i‖⁴          O(N F min(N, F)), as ‖UᵀU‖_F = ‖UUᵀ‖_F
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import geometry
from .options import fused
from .pairs import apply, full_precision


def mean_cosine(z: Tensor, mask: Tensor | None = None, *, eps: float = 0.0, backend: str = "auto") -> Tensor:
    """c̄ (batch,): the mean cosine over the pairs i ≠ j of each sequence, 0 for fewer than two tokens."""
    return apply(_FusedMeanCosine(eps) if fused(z, backend) else MeanCosine(eps), z, mask)


@dataclass(frozen=True)
class MeanCosine:
    """With s = Σ u_i:  ∂c̄/∂u_i = 2 (s − u_i)/(n(n−1)), pulled back to z without ever storing u."""

    eps: float

    def forward(self, z: Tensor, mask: Tensor | None, need_gradient: bool) -> tuple[Tensor, tuple[Tensor, ...]]:
        with full_precision(z.device):
            z, weight, n = geometry.keep(z, mask)
            r = geometry.norms(z)
            scale = self._scale(r, weight)
            s = torch.bmm(scale.mT, z)
            square = (r * scale).square().sum((1, 2))
            s, square, n = self.summed(s, square, n)
            pairs = geometry.pair_count(n)
            return geometry.enough(n, (s.square().sum((1, 2)) - square) / pairs), (s, r, n)

    def backward(self, z: Tensor, mask: Tensor | None, saved: tuple[Tensor, ...], upstream: Tensor) -> Tensor:
        s, r, n = saved
        dtype = z.dtype
        with full_precision(z.device):
            z, weight, _ = geometry.keep(z, mask)
            scale = self._scale(r, weight)
            # g = k (s − u),  dz = (g − u (g·z)/r) / (r + ε)  collected as  dz = p s − q z: two passes over z
            k = geometry.enough(n, upstream * 2 / geometry.pair_count(n))[:, None, None]
            p = k * scale
            q = p * scale * (1 + torch.bmm(z, s.mT) * geometry.inverse(r) - r * scale)
            return (z * -q).addcmul_(p, s).to(dtype)

    def summed(self, s: Tensor, square: Tensor, n: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The sums over the whole sequence: here they are complete already."""
        return s, square, n

    def _scale(self, r: Tensor, weight: Tensor | None) -> Tensor:
        scale = geometry.inverse(r + self.eps)
        return scale if weight is None else scale * weight.unsqueeze(-1)


@dataclass(frozen=True)
class _FusedMeanCosine:
    """The same on a GPU: one read of z forward, one read and one write backward."""

    eps: float

    def forward(self, z: Tensor, mask: Tensor | None, need_gradient: bool) -> tuple[Tensor, tuple[Tensor, ...]]:
        from ..kernels import first_order

        s, square, n, r = first_order.forward(z, mask, eps=self.eps)
        value = (s.square().sum(-1) - square) / geometry.pair_count(n)
        return geometry.enough(n, value), (s, r, n)

    def backward(self, z: Tensor, mask: Tensor | None, saved: tuple[Tensor, ...], upstream: Tensor) -> Tensor:
        from ..kernels import first_order

        s, r, n = saved
        k = geometry.enough(n, upstream * 2 / geometry.pair_count(n))
        return first_order.backward(z, mask, r, s, k, eps=self.eps)


def two_moments(z: Tensor, mask: Tensor | None = None, *, eps: float = 0.0) -> tuple[Tensor, Tensor]:
    """The means of c_ij and of c_ij² over the pairs i ≠ j, each (batch,); 0 for fewer than two tokens."""
    return _TwoMoments.apply(z, mask, eps)


def _operand(u: Tensor, dtype: torch.dtype) -> Tensor:
    """The dtype of the matrix products: that of the states or of autocast on a GPU, full precision on a CPU."""
    if u.device.type == "cpu":
        return u
    if torch.is_autocast_enabled(u.device.type):
        return u.to(torch.get_autocast_dtype(u.device.type))
    return u.to(dtype)


class _TwoMoments(torch.autograd.Function):
    """With K = UᵀU:  ∂ Σ c_ij² /∂u_i = 4 (K u_i − ‖u_i‖² u_i); with the smaller UUᵀ where N < F."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, mask: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
        full, _, n = geometry.keep(z, mask)
        u, r = geometry.unit(full, eps)
        half = _operand(u, z.dtype)
        with full_precision(z.device):
            gram = half.mT @ half if half.shape[1] > half.shape[2] else half @ half.mT
        s = u.sum(1, keepdim=True)
        length = u.square().sum(-1, keepdim=True)
        count = geometry.pair_count(n)
        first = (s.square().sum((1, 2)) - length.sum((1, 2))) / count
        fourth = torch.linalg.vector_norm(gram, dim=(1, 2), dtype=u.dtype).square()
        second = (fourth - length.square().sum((1, 2))) / count
        ctx.save_for_backward(z, mask, gram, s, r, n)
        ctx.eps = eps
        return geometry.enough(n, first), geometry.enough(n, second)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, first: Tensor, second: Tensor) -> tuple[Tensor, None, None]:
        z, mask, gram, s, r, n = ctx.saved_tensors
        full, _, _ = geometry.keep(z, mask)
        u = full * geometry.inverse(r + ctx.eps)
        half = u.to(gram.dtype)
        with full_precision(z.device):
            product = half @ gram if half.shape[1] > half.shape[2] else gram @ half
        length = u.square().sum(-1, keepdim=True)
        count = geometry.pair_count(n)
        a = geometry.enough(n, 2 * first / count)[:, None, None]
        b = geometry.enough(n, 4 * second / count)[:, None, None]
        g = a * (s - u) + b * (product - length * u)
        if mask is not None:
            g = g * mask.unsqueeze(-1)
        return geometry.unit_gradient(u, r, g, ctx.eps).to(z.dtype), None, None
