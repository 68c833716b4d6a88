"""Uniformity: tokens on the sphere repel each other as charges with a Gaussian potential.

    u_i = z_i/‖z_i‖,   L = log ( 1/(n(n−1)) Σ_{i≠j} exp(−t ‖u_i − u_j‖²) ),   t = 2

Source: Wang & Isola 2020, arXiv 2005.10242, where the points are the representations of a batch of images and their
alignment term stands beside it; here they are the token states of one sequence, and there is no second view to align.
On the sphere ‖u_i − u_j‖² = 2 − 2 c_ij, so this is dispersion with D = −cosine and τ = 1/(2t), shifted by −2t: the
same gradient as that of Wang & He 2025 without the diagonal.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .. import geometry
from . import pairs
from .options import finish, fused
from .registry import register
from .sampling import sample

# exp(−4t), an antipodal pair, is still a normal float32 there.
LARGEST_T = 20.0


@register(
    "log of a mean over the pairs of a Gaussian potential on the sphere",
    source="rival",
    reference="Wang & Isola 2020, arXiv 2005.10242",
)
def uniformity(
    z: Tensor,
    mask: Tensor | None = None,
    *,
    t: float = 2.0,
    max_tokens: int | None = None,
    shared_sample: bool = False,
    generator: torch.Generator | None = None,
    backend: str = "auto",
    reduction: str = "mean",
) -> Tensor:
    """Uniformity loss of hidden states z (batch, tokens, width): a scalar, or (batch,) unreduced.

    t is the sharpness of the potential: 0 for identical tokens at any t, −2t for orthogonal ones. A vector of zeros has
    no direction and counts as orthogonal to all others. max_tokens, shared_sample, generator and backend as in
    `dispersion`.
    """
    mask = geometry.check_states(z, mask)
    if not 0 < t <= LARGEST_T:
        raise ValueError(
            f"t must lie in (0, {LARGEST_T:g}], got {t}: above it exp(−4t) leaves float32; Wang & Isola use 2."
        )
    z, mask = sample(z, mask, max_tokens, shared=shared_sample, generator=generator)
    tau = 1 / (2 * t)
    if fused(z, backend, tau=tau):
        value = pairs.apply(pairs.Kernel("pairwise", curve="dispersion_cosine", tau=tau, eps=0.0), z, mask) - 2 * t
    else:
        value = pairs.apply(pairs.CosinePairs(curve=Potential(t), log=True, eps=0.0), z, mask)
    return finish(value, mask, reduction)


@dataclass(frozen=True)
class Potential:
    """f = exp(−t (2 − 2c)) ∈ [exp(−4t), 1],  f' = 2t f."""

    t: float

    def __call__(self, c: Tensor) -> tuple[Tensor, Tensor]:
        f = c.sub_(1).mul_(2 * self.t).exp_()
        return f, f * (2 * self.t)
