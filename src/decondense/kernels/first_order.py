"""The mean cosine of a sequence, at which the first-order estimator evaluates the loss curve, and its gradient.

    c̄ = (‖T‖² − Q)/(n(n−1)),   T = Σ_i u_i,   Q = Σ_i ‖u_i‖²,   u_i = z_i/(‖z_i‖ + ε),

so it costs one read of z.  Since ∂(‖T‖² − Q)/∂u_i = 2 (T − u_i),

    ∂c̄/∂u_i = 2/(n(n−1)) (T − u_i),

which `projection.project` pushes through the normalisation.  Forward: one read of z.  Backward: one read and one write.
"""

from __future__ import annotations

from torch import Tensor

from decondense.kernels import rows
from decondense.kernels.projection import project


def like(z: Tensor) -> list[Tensor]:
    """Empty tensors for what `forward` returns."""
    return rows.like(z, None)


def forward(
    z: Tensor, mask: Tensor | None = None, *, eps: float = 1e-2, need_grad: bool = True
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """z (B, N, F), mask (B, N) bool → c̄ (B,) float32, 0 for fewer than two tokens, and what `backward` needs."""
    sums = rows.statistics(rows.readable(z), rows.flags(mask), eps=eps)
    mean, coefficient = rows.mean_cosine(sums)
    return mean, (sums.norms, sums.total, coefficient) if need_grad else ()


def backward(
    z: Tensor, saved: tuple[Tensor, ...], upstream: Tensor, *, eps: float = 1e-2, other: Tensor | None = None
) -> Tensor:
    """∂(Σ_b upstream_b c̄_b)/∂z (B, N, F) in z's dtype, plus `other` if there is one; upstream (B,) float32."""
    norms, total, coefficient = saved
    return project(rows.readable(z), norms, total, coefficient, upstream, eps=eps, other=other)
