"""The sums behind the first-order estimator, and their gradient.

The estimator puts the mean off-diagonal cosine of a sequence into the curve of the loss,

    L = ℓ(c̄),   c̄ = (‖T‖² − Q)/(n(n−1)),   T = Σ_i u_i,   Q = Σ_i ‖u_i‖²,   u_i = z_i/(‖z_i‖ + ε),

so its cost is that of reading z.  Since ∂(‖T‖² − Q)/∂u_i = 2 (T − u_i),

    ∂L/∂u_i = coefficient · (T − u_i),   coefficient = ℓ'(c̄) · 2/(n(n−1)) · upstream,

one scalar per sequence, which the caller supplies; `backward` pushes it through the normalisation (see
`rows.py`).  Forward: one read of z.  Backward: one read of z and one write.

`mean_cosine` and `mean_cosine_backward` are the same with c̄ itself as the result: the division and the count of
the pairs happen in the kernels too, which for short sequences saves more than the sums cost.  `mean_cosines` takes
many layers at once, for the same reason.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from decondense.kernels import rows


@torch.no_grad()
def forward(
    z: torch.Tensor, mask: torch.Tensor | None = None, *, eps: float = 1e-2
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """z (B, N, F), mask (B, N) bool → T (B, F), Q (B,), n (B,), norms (B, N); all float32.

    Tokens that the mask leaves out add nothing and have the norm −1.
    """
    z, mask = rows.check(z, mask)
    found = rows.statistics(z, mask, eps=eps)
    return found.total, found.square, found.number, found.norms


@torch.no_grad()
def backward(
    z: torch.Tensor,
    mask: torch.Tensor | None,
    norms: torch.Tensor,
    total: torch.Tensor,
    coefficient: torch.Tensor,
    *,
    eps: float = 1e-2,
) -> torch.Tensor:
    """∂L/∂z (B, N, F) in z's dtype from ∂L/∂u_i = coefficient_b (T_b − u_i); coefficient (B,) float32.

    `norms` and `total` are those of `forward`; the norms carry the mask.  Where the coefficient is zero the
    gradient is zero.
    """
    z, _ = rows.check(z, mask)
    return rows.project(z, norms, total.contiguous(), coefficient.contiguous(), eps=eps)


@torch.no_grad()
def mean_cosine(
    z: torch.Tensor, mask: torch.Tensor | None = None, *, eps: float = 1e-2
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """z (B, N, F) → c̄ (B,) float32, 0 for fewer than two tokens, and what `mean_cosine_backward` needs."""
    means, (saved,) = mean_cosines([z], mask, eps=eps)
    return means[0], saved


@torch.no_grad()
def mean_cosines(
    states: Sequence[torch.Tensor], mask: torch.Tensor | None = None, *, eps: float = 1e-2
) -> tuple[torch.Tensor, list[tuple[torch.Tensor, ...]]]:
    """Layers of one shape (B, N, F), under one mask → c̄ (layers, B), and for each layer what its backward needs.

    Each layer is read by a launch of its own; the small sums of all of them take two launches together.
    """
    layers, batch = len(states), states[0].shape[0]
    checked = [rows.check(z, mask) for z in states]
    found = rows.statistics([z for z, _ in checked], checked[0][1], eps=eps)
    mean, coefficient = (part.view(layers, batch) for part in rows.mean_cosine(found))
    tokens, width = states[0].shape[1:]
    norms, total = found.norms.view(layers, batch, tokens), found.total.view(layers, batch, width)
    return mean, [(norms[k], total[k], coefficient[k]) for k in range(layers)]


@torch.no_grad()
def mean_cosine_backward(
    z: torch.Tensor,
    mask: torch.Tensor | None,
    saved: tuple[torch.Tensor, ...],
    upstream: torch.Tensor,
    *,
    eps: float = 1e-2,
    addend: torch.Tensor | None = None,
) -> torch.Tensor:
    """∂(Σ_b upstream_b c̄_b)/∂z (B, N, F) in z's dtype, plus the addend if given; upstream (B,) float32."""
    z, _ = rows.check(z, mask)
    norms, total, coefficient = saved
    upstream = upstream.to(torch.float32).contiguous()
    return rows.project(z, norms, total, coefficient, eps=eps, upstream=upstream, addend=addend)
