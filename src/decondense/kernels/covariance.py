"""VICReg's two terms and their gradient, from products in bfloat16 with float32 sums.

With X the centred states of one sequence (rows that do not count are zero), G = XᵀX (F × F), m = n − 1 and
σ_f = √(G_ff/m + ε),

    L = μ/F Σ_f max(0, γ − σ_f) + ν/(F m²) Σ_{f≠g} G_fg²,     ∂L/∂X = X M,
    M_fg = 4ν/(F m²) G_fg,     M_ff = −μ/(F m σ_f) where σ_f < γ, else 0.

Centring needs no step of its own in the backward pass: the rows of X add up to zero, and so do those of X M.

Launches: statistics and their reduction, X; G by cuBLAS; one kernel that reads a row of G, adds up its terms and writes
its row of M. Backward: M times the upstream gradient, X M by cuBLAS.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from decondense.kernels import rows
from decondense.kernels.repulsion import centred


@triton.jit
def _terms_kernel(
    gram, number, part, matrix, width, variance_weight, covariance_weight, gamma, eps,
    GRAD: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Row f of G → the contribution of feature f to L, and row f of M."""
    b = tl.program_id(1).to(tl.int64)
    f = tl.program_id(0)
    column = tl.arange(0, WIDTH)
    start = (b * width + f) * width
    row = tl.load(gram + start + column, mask=column < width, other=0.0)
    freedom = tl.maximum(tl.load(number + b) - 1.0, 1.0)
    own = tl.sum(tl.where(column == f, row, 0.0), axis=0)
    row = tl.where(column == f, 0.0, row)  # before squaring: a feature may outweigh all others
    deviation = tl.sqrt(own / freedom + eps)
    gap = gamma - deviation
    share = covariance_weight / (freedom * freedom * width)
    hinge = tl.where(gap < 0.0, 0.0, gap) * (variance_weight / width)
    tl.store(part + b * width + f, hinge + share * tl.sum(row * row, axis=0))
    if GRAD:
        slope = tl.where(gap > 0.0, -variance_weight / (width * freedom * deviation), 0.0)
        row = tl.where(column == f, slope, 4.0 * share * row)
        tl.store(matrix + start + column, row.to(matrix.dtype.element_ty), mask=column < width)


def like(z: Tensor) -> list[Tensor]:
    """Empty tensors for what `forward` returns."""
    batch, _, width = z.shape
    saved = (z.new_empty(shape, dtype=torch.bfloat16) for shape in (z.shape, (batch, width, width)))
    return [z.new_empty(batch, dtype=torch.float32), *saved]


def forward(
    z: Tensor,
    mask: Tensor | None = None,
    *,
    variance_weight: float = 25.0,
    covariance_weight: float = 1.0,
    gamma: float = 1.0,
    eps: float = 1e-4,
    need_grad: bool = True,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """z (B, N, F), mask (B, N) bool → L (B,) float32, and what `backward` needs: X and M in bfloat16."""
    z = rows.readable(z)
    batch, _, width = z.shape
    sums = rows.statistics(z, rows.flags(mask), eps=0.0, raw=True)
    x, _ = centred(z, sums, torch.bfloat16, scaled=False)
    gram = rows.product(x.mT, x)
    matrix = torch.empty_like(gram, dtype=torch.bfloat16) if need_grad else None
    part = torch.empty((batch, width), dtype=torch.float32, device=z.device)
    _, padded, warps = rows.row_tile(width)
    _terms_kernel[width, batch](
        gram, sums.number, part, matrix, width,
        float(variance_weight), float(covariance_weight), float(gamma), float(eps),
        GRAD=need_grad, WIDTH=padded, num_warps=warps,
    )  # fmt: skip
    return part.sum(1), () if matrix is None else (x, matrix)


def backward(z: Tensor, saved: tuple[Tensor, ...], upstream: Tensor, **options: float) -> Tensor:
    """∂(Σ_b upstream_b L_b)/∂z (B, N, F) in z's dtype; upstream (B,) float32. The options are those of `forward`."""
    x, matrix = saved
    matrix = torch.mul(matrix, upstream.to(torch.float32)[:, None, None], out=torch.empty_like(matrix))
    return rows.product(x, matrix, torch.empty_like(x) if z.dtype == x.dtype else None)
