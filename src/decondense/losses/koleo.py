"""KoLeo: every token is pushed away from its nearest neighbour on the sphere.

    u_i = z_i/‖z_i‖,   ρ_i = min_{j≠i} ‖u_i − u_j‖,   L = −1/n Σ_i log(ρ_i + ε),   ε = 10⁻⁸

Source: Sablayrolles et al. 2019, arXiv 1806.03198: the Kozachenko–Leonenko estimate of the entropy, up to constants;
DINOv2 adds ε. There the points are the images of a batch, here the tokens of one sequence.

The slope is 1/ρ: two tokens in nearly the same state push each other apart with nearly unbounded force, and two in
exactly the same state not at all, as there is no direction in which to part. In a repetitive text both happen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

import torch
from torch import Tensor

from .. import geometry
from .kernel import Kernel
from .options import fused_in_16_bits
from .pairs import Stored, apply, tiles
from .registry import Common, register


@register(
    "log distance of every token to its nearest neighbour on the sphere",
    source="rival",
    reference="Sablayrolles et al. 2019, arXiv 1806.03198",
)
def koleo(
    z: Tensor, mask: Tensor | None = None, *, eps: float = 1e-8, backend: str = "auto", **common: Unpack[Common]
) -> Tensor:
    """KoLeo loss of hidden states z (batch, tokens, width): a scalar, or (batch,) unreduced.

    eps is the ε inside the logarithm; distances well below it are not told apart. A vector of zeros has no direction
    and stays at the origin, at distance 1 from all unit vectors and 0 from other zeros.
    backend as in `dispersion`: the kernel is used where autocast or the dtype of the states asks for 16-bit products,
    and then finds neighbours with products in float16.
    """
    geometry.check_positive("eps", eps)
    kernel = fused_in_16_bits(z, backend, torch.bfloat16, torch.float16)
    return apply(Kernel("nearest", eps=eps) if kernel else _Nearest(eps), z, mask)


@dataclass(frozen=True)
class _Nearest(Stored):
    """With j(i) the nearest of i and e_i = u_i − u_j(i):

        ∂L/∂e_i = −e_i / (n ρ_i (ρ_i + ε)),   added to the gradient of u_i and subtracted from that of u_j(i).

    The neighbours are found tile by tile; their distances come from the differences e_i, not from the cosines, which
    have no digits left for near neighbours.
    """

    eps: float

    def sums(self, z: Tensor, weight: Tensor | None, n: Tensor, need_gradient: bool) -> tuple[Tensor, Tensor | None]:
        u, r = geometry.unit(z, 0.0)
        index = _nearest(geometry.centred(u, weight, n), weight).unsqueeze(-1).expand_as(u)
        difference = u - u.gather(1, index)
        distance = torch.linalg.vector_norm(difference, dim=-1)
        share = (1 / n.clamp_min(1)).unsqueeze(1)
        if weight is not None:
            share = share * weight
        value = geometry.enough(n, -(torch.log(distance + self.eps) * share).sum(1))
        if not need_gradient:
            return value, None
        push = difference * (-share * geometry.inverse(distance) / (distance + self.eps)).unsqueeze(-1)
        return value, geometry.unit_gradient(u, r, push.scatter_add(1, index, -push), 0.0)


def _nearest(x: Tensor, weight: Tensor | None) -> Tensor:
    """The nearest other token that counts, for every token (batch, tokens); of several equally near, the first."""
    index = torch.empty(x.shape[:2], dtype=torch.long, device=x.device)
    for b, rows in tiles(x.shape[0], x.shape[1], x.device):
        square = geometry.squared_distances(x[b, rows], x[b])
        square.diagonal(offset=rows.start, dim1=-2, dim2=-1).fill_(torch.inf)
        if weight is not None:
            square.masked_fill_(weight[b, None, :] == 0, torch.inf)
        index[b, rows] = square.argmin(-1)
    return index
