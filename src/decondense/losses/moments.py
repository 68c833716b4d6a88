"""Moments of the cosines of a cloud, in matrix products.

Σ_{i≠j} c_ij  = ‖Σ u_i‖² − Σ ‖u_i‖²          O(NF)
Σ_{i≠j} c_ij² = ‖UᵀU‖²_F − Σ ‖u_i‖⁴          O(N F min(N, F)), as ‖UᵀU‖_F = ‖UUᵀ‖_F
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .. import geometry
from .kernel import Kernel
from .options import fused
from .pairs import Routine, apply, full_precision


def mean_cosine(z: Tensor, mask: Tensor | None = None, *, eps: float = 0.0, backend: str = "auto") -> Tensor:
    """c̄ (batch,): the mean cosine over the pairs i ≠ j of each sequence, 0 for fewer than two tokens."""
    mask = geometry.check_states(z, mask)
    return apply(first_routine(z, eps, backend), z, mask)


def first_routine(z: Tensor, eps: float, backend: str) -> Routine:
    return Kernel("first_order", eps=eps) if fused(z, backend) else MeanCosine(eps)


def second_routine(z: Tensor, eps: float, backend: str, *, centred: bool = False) -> Routine:
    return Kernel("second_order", eps=eps, centred=centred) if fused(z, backend) else TwoMoments(eps)


def mean_square(z: Tensor, mask: Tensor | None, *, backend: str, centred: bool = False) -> Tensor:
    """The mean of c_ij² over the pairs i ≠ j (batch,); 0 for fewer than two tokens.

    `centred` first subtracts from each token the mean over its features, so that c_ij is a correlation.
    """
    in_kernel = fused(z, backend) and z.shape[1] > z.shape[2]  # the kernel then centres, without a pass over z
    if centred and not in_kernel:
        z, _, _ = geometry.keep(z, mask)
        z = z - z.mean(-1, keepdim=True)
    return apply(second_routine(z, 0.0, backend, centred=centred and in_kernel), z, mask)[1]


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
            # g = k (s − u),  dz = (g − u (g·z)/r) / (r + ε),  rearranged as  dz = p s − q z: two passes over z
            k = geometry.enough(n, upstream * 2 / geometry.pair_count(n))[:, None, None]
            p = k * scale
            q = p * scale * (1 + torch.bmm(z, s.mT) * geometry.inverse(r) - r * scale)
            return (z * -q).addcmul_(p, s).to(dtype)

    def summed(self, s: Tensor, square: Tensor, n: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The sums over the whole sequence: complete already, unless a subclass splits sequences."""
        return s, square, n

    def _scale(self, r: Tensor, weight: Tensor | None) -> Tensor:
        scale = geometry.inverse(r + self.eps)
        return scale if weight is None else scale * weight.unsqueeze(-1)


@dataclass(frozen=True)
class TwoMoments:
    """Means of c_ij and of c_ij², (2, batch). With K = UᵀU:  ∂ Σ c_ij² /∂u_i = 4 (K u_i − ‖u_i‖² u_i).

    Where N ≤ F the smaller UUᵀ is computed instead of K.
    """

    eps: float

    def forward(self, z: Tensor, mask: Tensor | None, need_gradient: bool) -> tuple[Tensor, tuple[Tensor, ...]]:
        with full_precision(z.device):
            full, _, n = geometry.keep(z, mask)
            u, r = geometry.unit(full, self.eps)
            gram = u.mT @ u if u.shape[1] > u.shape[2] else u @ u.mT
            s = u.sum(1, keepdim=True)
            length = u.square().sum(-1)
            count = geometry.pair_count(n)
            first = (s.square().sum((1, 2)) - length.sum(1)) / count
            second = (gram.square().sum((1, 2)) - length.square().sum(1)) / count
        return geometry.enough(n, torch.stack([first, second])), (gram, s, r, n)

    def backward(self, z: Tensor, mask: Tensor | None, saved: tuple[Tensor, ...], upstream: Tensor) -> Tensor:
        gram, s, r, n = saved
        with full_precision(z.device):
            full, _, _ = geometry.keep(z, mask)
            u = full * geometry.inverse(r + self.eps)
            product = u @ gram if u.shape[1] > u.shape[2] else gram @ u
            length = u.square().sum(-1, keepdim=True)
            # g_i = a (s − u_i) + b (K u_i − ‖u_i‖² u_i)
            count = geometry.pair_count(n)
            a, b = geometry.enough(n, 2 * upstream[0] / count), geometry.enough(n, 4 * upstream[1] / count)
            g = a[:, None, None] * (s - u) + b[:, None, None] * (product - length * u)
            if mask is not None:
                g = g * mask.unsqueeze(-1)
            return geometry.unit_gradient(u, r, g, self.eps).to(z.dtype)
