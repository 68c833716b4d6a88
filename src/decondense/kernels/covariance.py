"""The squares of a covariance matrix and their gradient, from products in bfloat16 with float32 sums.

With X the centred states of one sequence (rows that do not count are zero), G = XᵀX (F × F) and Ĝ the same without its
diagonal, the values are

    G_ff for every feature f,   and   Σ_{f≠g} G_fg²,     F + 1 numbers per sequence,

and for an upstream gradient p_f, q

    ∂/∂X = X M,     M = 4q Ĝ + 2 diag(p).

Centring needs no step of its own on the way back: the rows of X add up to zero, and so do those of X M.

Launches: statistics and their reduction, X; the products by cuBLAS, between them passes over F × F numbers. The
diagonal goes before anything is squared or rounded, because one feature may outweigh all others.
"""

from __future__ import annotations

import torch

from decondense.kernels import rows
from decondense.kernels.repulsion import centred


def like(z: torch.Tensor) -> list[torch.Tensor]:
    """Empty tensors for what `forward` returns."""
    batch, _, width = z.shape
    saved = (z.new_empty(shape, dtype=torch.bfloat16) for shape in (z.shape, (batch, width, width)))
    return [z.new_empty((batch, width + 1), dtype=torch.float32), *saved]


@torch.no_grad()
def forward(
    z: torch.Tensor, mask: torch.Tensor | None = None, *, need_grad: bool = True
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """z (B, N, F), mask (B, N) bool → (B, F + 1) float32, and what `backward` needs: X and Ĝ in bfloat16."""
    z, mask = rows.check(z, mask)
    x, _ = centred(z, rows.statistics(z, mask, eps=0.0, raw=True), torch.bfloat16, scaled=False)
    gram = rows.product(x.mT, x)
    diagonal = gram.diagonal(dim1=-2, dim2=-1)
    squares = diagonal.clone()
    diagonal.zero_()
    power = torch.linalg.vector_norm(gram, dim=(1, 2)).square()
    return torch.cat([squares, power.unsqueeze(1)], 1), (x, gram.to(torch.bfloat16)) if need_grad else ()


@torch.no_grad()
def backward(
    z: torch.Tensor, mask: torch.Tensor | None, saved: tuple[torch.Tensor, ...], upstream: torch.Tensor
) -> torch.Tensor:
    """X M (B, N, F) in z's dtype; upstream (B, F + 1) float32."""
    x, gram = saved
    upstream = upstream.to(torch.float32)
    matrix = torch.mul(gram, 4 * upstream[:, -1, None, None], out=torch.empty_like(gram))
    matrix.diagonal(dim1=-2, dim2=-1).copy_(2 * upstream[:, :-1])
    return rows.product(x, matrix, torch.empty_like(x) if z.dtype == x.dtype else None)
