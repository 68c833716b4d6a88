"""I-STAR: one minus the isotropy of the cloud, IsoScore*.

    Σ_ζ = (1 − ζ) C + ζ S,   C = covariance over the n tokens,   λ its eigenvalues,   d = width
    λ̂ = √d λ/‖λ‖,   δ = ‖λ̂ − 1‖/√(2(d − √d)),   φ = (d − δ²(d − √d))²/d²,   IsoScore* = (dφ − 1)/(d − 1)
    L = 1 − IsoScore*

Source: Rudman & Eickhoff 2023, arXiv 2305.19358. Their seven steps reduce to one: ‖λ̂ − 1‖² = 2(d − √d Σλ/‖λ‖), hence
φ = (Σλ)²/(d‖λ‖²) and

    L = (d − P)/(d − 1),   P = (tr Σ_ζ)²/‖Σ_ζ‖²_F  the participation ratio,

so no eigenvalues are computed: value and gradient take two matrix products, O(N F min(N, F)).

A positive weight makes the cloud more isotropic; the authors report that a *negative* weight, for less isotropy, helps
most tasks. Their cloud is all tokens of a batch in all layers together; here every sequence of every layer is a cloud,
as for the other losses. With n tokens C has rank n − 1 at most: without shrinkage L ≥ (d − n + 1)/(d − 1).
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from .. import geometry
from .covariance import off_diagonal_power
from .pairs import full_precision
from .registry import Common, register


@register(
    "one minus the isotropy of the cloud, IsoScore*",
    source="rival",
    reference="Rudman & Eickhoff 2023, arXiv 2305.19358",
    aliases=("istar",),
)
def i_star(
    z: Tensor,
    mask: Tensor | None = None,
    *,
    shrinkage: float = 0.0,
    target: Tensor | None = None,
    **common: Unpack[Common],
) -> Tensor:
    """1 − IsoScore* of hidden states z (batch, tokens, width): a scalar in [0, 1], or (batch,) unreduced.

    shrinkage  ζ ∈ [0, 1]; 0 is IsoScore, which does not see the scale of z.
    target     S (width, width), the covariance of a larger sample (`losses.pooled_covariance`); default: the identity.

    Tokens that differ by no more than rounding have no shape: the value is 1, that of a line, and the gradient 0.
    """
    _check(shrinkage, target, z.shape[2])
    z, weight, n = geometry.keep(z, mask)
    x = _shape(z, geometry.centred(z, weight, n), scale=shrinkage == 0)
    width = z.shape[2]
    freedom = (n - 1).clamp_min(1)
    variance = x.square().sum(1) / freedom[:, None]
    trace = variance.sum(1)
    power = off_diagonal_power(x) / freedom.square() + variance.square().sum(1)
    if shrinkage:
        trace, power = _shrunk(x, freedom, trace, power, shrinkage, target)
    empty = power == 0
    ratio = torch.where(empty, 1, trace.square() / torch.where(empty, 1, power))
    return (width - ratio) / (width - 1) if width > 1 else 0 * ratio  # one feature is isotropic


def _shape(z: Tensor, x: Tensor, *, scale: bool) -> Tensor:
    """The centred states x, zero where they are only rounding, and with `scale` divided by their largest entry.

    float32 would not hold the fourth power of large or small states. The ratio P does not depend on the scale, so its
    gradient is right although the divisor is treated as a constant.
    """
    with torch.no_grad():
        peak = x.abs().amax((1, 2), keepdim=True)
        flat = peak <= 4 * torch.finfo(x.dtype).eps * z.abs().amax((1, 2), keepdim=True)
        divisor = torch.where(flat, 1, peak) if scale else torch.ones_like(peak)
    return torch.where(flat, 0, x / divisor)


def _shrunk(
    x: Tensor, freedom: Tensor, trace: Tensor, power: Tensor, zeta: float, target: Tensor | None
) -> tuple[Tensor, Tensor]:
    """tr Σ_ζ and ‖Σ_ζ‖²_F = (1 − ζ)² ‖C‖² + 2ζ(1 − ζ) ⟨C, S⟩ + ζ² ‖S‖², where ⟨C, S⟩ = Σ_i x_i·S x_i/(n − 1)."""
    width = x.shape[2]
    of_target: Tensor | float = float(width)
    square: Tensor | float = float(width)
    if target is None:
        inner = trace
    else:
        s = target.detach().to(x)
        s = (s + s.T) / 2
        with torch.no_grad(), full_precision(x.device):
            image = x @ s
        # has the value x·Sx and the gradient 2Sx, without a matrix product in the backward pass
        inner = ((2 * x - x.detach()) * image).sum((1, 2)) / freedom
        of_target, square = s.trace(), s.square().sum()
    rest = 1 - zeta
    return rest * trace + zeta * of_target, rest**2 * power + 2 * zeta * rest * inner + zeta**2 * square


def _check(shrinkage: float, target: Tensor | None, width: int) -> None:
    if isinstance(shrinkage, geometry.NO_NUMBER) or not 0 <= shrinkage <= 1:
        raise ValueError(f"shrinkage must lie in [0, 1], got {shrinkage!r}: 0 for none, 1 for the target alone.")
    if target is None:
        return
    if not isinstance(target, Tensor) or target.shape != (width, width):
        raise ValueError(
            f"target must be a covariance (width, width) = ({width}, {width}), got {geometry.shape_or_type(target)}: "
            "make one with losses.pooled_covariance."
        )
    if shrinkage == 0:
        raise ValueError("target needs a shrinkage above 0, got 0.0: give a shrinkage, or leave target out.")
