"""Uniformity: tokens on the sphere repel each other as charges with a Gaussian potential.

    u_i = z_i/‖z_i‖,   L = log ( 1/(n(n−1)) Σ_{i≠j} exp(−t ‖u_i − u_j‖²) ),   t = 2

Source: Wang & Isola 2020, arXiv 2005.10242, where the points are the representations of a batch of images and an
alignment term is added; here they are the token states of one sequence, and there is no second view to align.
On the sphere ‖u_i − u_j‖² = 2 − 2 c_ij, so this is dispersion with D = −cosine and τ = 1/(2t), shifted by −2t: the
same gradient as the loss of Wang & He 2025 without the diagonal.
"""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from ..geometry import NO_NUMBER
from .dispersion import dispersion
from .registry import Common, register

# exp(−4t), an antipodal pair, is still a normal float32 there.
LARGEST_T = 20.0


@register(
    "log of a mean over the pairs of a Gaussian potential on the sphere",
    source="rival",
    reference="Wang & Isola 2020, arXiv 2005.10242",
)
def uniformity(
    z: Tensor, mask: Tensor | None = None, *, t: float = 2.0, backend: str = "auto", **common: Unpack[Common]
) -> Tensor:
    """Uniformity loss of hidden states z (batch, tokens, width): a scalar, or (batch,) unreduced.

    t is the sharpness of the potential. The value is 0 for identical tokens at any t, −2t for orthogonal ones. A vector
    of zeros has no direction and counts as orthogonal to all others; backend as in `dispersion`.
    """
    if isinstance(t, NO_NUMBER) or not 0 < t <= LARGEST_T:
        raise ValueError(
            f"t must lie in (0, {LARGEST_T:g}], got {t!r}: above it exp(−4t) leaves float32; Wang & Isola use 2."
        )
    value = dispersion(z, mask, distance="cosine", tau=1 / (2 * t), eps=0.0, backend=backend, reduction="none")
    return value - 2 * t
