"""Orthogonalization: pairs closer than a margin are pushed apart until they are orthogonal, then left alone.

    L = mean_{i≠j} max(0, margin − D_ij)²,   D_ij = arccos(c_ij)/π,   margin ½ = a right angle

Source: Liu et al. 2026, table of variants; with D = −cosine it is the hinge form of Wang & He 2025.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Unpack

from torch import Tensor

from .. import geometry
from ..checks import check_choice
from . import pairs
from .dispersion import DISTANCES
from .kernel import Kernel
from .options import fused
from .registry import Common, register
from .sampling import RELEASED_SAMPLE


@register(
    "squared gap to a right angle of the pairs that are closer",
    source="paper",
    reference="Liu et al. 2026",
    presets={
        "paper": {"hard_clamp": True, "clamp": 0.01, "eps": 0.01},
        "released": {"clamp": 0.25, "eps": 0.01, **RELEASED_SAMPLE},
        "disperse": {"distance": "cosine", "diagonal": True, "eps": 0.0},
    },
    eps_of_units=True,
)
def orthogonalization(
    z: Tensor,
    mask: Tensor | None = None,
    *,
    margin: float = 0.5,
    clamp: float = 0.1,
    eps: float = 1e-2,
    hard_clamp: bool = False,
    distance: str = "angular",
    diagonal: bool = False,
    backend: str = "auto",
    **common: Unpack[Common],
) -> Tensor:
    """Orthogonalization loss of hidden states z (batch, tokens, width): a scalar, or (batch,) unreduced.

    Options shared with `dispersion` mean the same as there. We recommend the straight-through clamp: the hard clamp
    of Algorithm 1 cannot separate tokens that have already collapsed.
    """
    geometry.check_clamp(clamp)
    geometry.check_finite(margin=margin)
    check_choice("distance", distance, DISTANCES)
    routine: pairs.Routine
    if fused(z, backend):
        curve = "orthogonalization" if distance == "angular" else "orthogonalization_cosine"
        routine = Kernel(
            "pairwise", curve=curve, margin=margin, clamp=clamp, hard_clamp=hard_clamp, eps=eps, diagonal=diagonal
        )
    else:
        hinge = Hinge(margin=margin, clamp=clamp, hard_clamp=hard_clamp, distance=distance)
        routine = pairs.CosinePairs(curve=hinge, log=False, eps=eps, diagonal=diagonal)
    return pairs.apply(routine, z, mask)


@dataclass  # not frozen, see `dispersion.Logit`
class Hinge:
    """f = max(0, margin − D)²,  f' = 2 max(0, margin − D) · (−dD/dc)."""

    margin: float
    clamp: float
    hard_clamp: bool
    distance: str

    def __call__(self, c: Tensor) -> tuple[Tensor, Tensor]:
        if self.distance == "cosine":
            gap = (c + self.margin).clamp_min_(0)
            return gap.square(), 2 * gap
        angle, slope = geometry.arc(c, self.clamp, hard=self.hard_clamp)
        gap = angle.div_(math.pi).neg_().add_(self.margin).clamp_min_(0)
        return gap.square(), slope.div_(math.pi).mul_(gap).mul_(2)
