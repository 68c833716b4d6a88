"""KoLeo: the distance of every token to its nearest neighbour on the sphere, and its gradient.

With u_i = z_i/‖z_i‖, j(i) the nearest neighbour of i among the n tokens that count and ρ_i = ‖u_i − u_j(i)‖,

    L = −1/n Σ_i log(ρ_i + ε),     c_i = −1/(n ρ_i (ρ_i + ε))  (0 where ρ_i = 0),
    ∂L/∂u_i = c_i (u_i − u_j(i)) − Σ_{k: j(k)=i} c_k (u_k − u_i).

Two candidates for each neighbour are found from float16 products with float32 sums, as the largest u_i·u_j − ½‖u_j‖² of
the rounded u. Float32 differences then give their distances and decide. A wrong neighbour is possible only if three or
more are equally near up to the rounding.

Launches: statistics, which write u in float16; per chunk the products by cuBLAS and a row-wise kernel for j(i); one
kernel for ρ_i. Backward: tokens are sorted by their neighbours, then a row-wise kernel adds in that order: no atomics.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from decondense.kernels import repulsion, rows
from decondense.kernels.rows import inverse

# A fused multiply-add for u − v would round u differently from v, and identical tokens would not be at distance 0.
AS_WRITTEN = {"enable_fp_fusion": False}


@triton.jit
def _nearest_kernel(
    products, norms, sizes, index, second, first_sequence, first_row, count_rows, tokens, BLOCK: tl.constexpr
):  # fmt: skip
    """A row of products → `index`, the token j with the largest u_i·u_j − ½‖u_j‖², the first of several; and `second`,
    the next largest if rounding may have swapped the two, else −1. Of tokens whose numbers differ by a multiple of
    BLOCK only the best is a candidate."""
    slot = tl.program_id(1).to(tl.int64)
    b = first_sequence + slot
    row = tl.program_id(0)
    i = first_row + row
    start = (slot * count_rows + row) * tokens
    column = tl.arange(0, BLOCK)
    best = tl.full((BLOCK,), float("-inf"), dtype=tl.float32)
    found = tl.full((BLOCK,), -1, dtype=tl.int32)
    for k in range(0, tokens, BLOCK):
        j = k + column
        there = (j < tokens) & (j != i)
        norm = tl.load(norms + b * tokens + j, mask=there, other=-1.0)
        t = tl.load(products + start + j, mask=there, other=0.0)
        t -= 0.5 * tl.load(sizes + b * tokens + j, mask=there, other=0.0)
        better = (t > best) & (norm >= 0.0)
        best = tl.where(better, t, best)
        found = tl.where(better, j, found)
    top = tl.max(best, axis=0)
    first = tl.min(tl.where(best == top, found, tokens), axis=0)
    rest = tl.where(found == first, float("-inf"), best)
    next_ = tl.max(rest, axis=0)
    other = tl.min(tl.where(rest == next_, tl.where(found == first, -1, found), tokens), axis=0)
    # u moves by up to 2⁻¹¹ when it is rounded, half of ρ² by up to 2⁻¹⁰ ρ, and the difference of two by twice that
    distance = tl.sqrt(tl.maximum(tl.load(sizes + b * tokens + i) - 2.0 * top, 0.0))
    close = top - next_ < 0.001953125 * distance + 1e-6
    counts = ~(tl.load(norms + b * tokens + i) < 0.0)
    tl.store(index + b * tokens + i, tl.where(counts, first, -1))
    tl.store(second + b * tokens + i, tl.where(counts & close, other, -1))


@triton.jit
def _unit_row(z, norms, b, row, column, tokens, inside, stride_b, stride_n):
    """u of one token, and 1/‖z‖; both 0 for token −1."""
    there = row >= 0
    norm = tl.load(norms + b * tokens + row, mask=there, other=0.0)
    x = tl.load(z + b * stride_b + row.to(tl.int64) * stride_n + column, mask=inside & there, other=0.0).to(tl.float32)
    scale = inverse(norm)
    return x * scale, scale


@triton.jit
def _distance_kernel(
    z, norms, number, index, second, part, weight, tokens, width, stride_b, stride_n, eps, WIDTH: tl.constexpr
):
    """The nearer of the two candidates, its contribution to L, and c_i; the last two are 0 for tokens that do not count
    and in sequences with fewer than two."""
    b = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0)
    column = tl.arange(0, WIDTH)
    inside = column < width
    valid = ~(tl.load(norms + b * tokens + i) < 0.0)
    u, _ = _unit_row(z, norms, b, tl.where(valid, i, -1), column, tokens, inside, stride_b, stride_n)
    j = tl.load(index + b * tokens + i)
    v, _ = _unit_row(z, norms, b, j, column, tokens, inside, stride_b, stride_n)
    square = tl.sum((u - v) * (u - v), axis=0)
    k = tl.load(second + b * tokens + i)
    v, _ = _unit_row(z, norms, b, k, column, tokens, inside, stride_b, stride_n)
    other = tl.where(k < 0, float("inf"), tl.sum((u - v) * (u - v), axis=0))
    tl.store(index + b * tokens + i, tl.where(other < square, k, j))
    distance = tl.sqrt(tl.where(other < square, other, square))
    n = tl.load(number + b)
    pairs = valid & (n >= 2.0)
    tl.store(part + b * tokens + i, tl.where(pairs, -tl.log(distance + eps) / n, 0.0))
    tl.store(weight + b * tokens + i, tl.where(pairs, -inverse(n * distance * (distance + eps)), 0.0))


@triton.jit
def _gradient_kernel(
    z, norms, index, weight, order, start, upstream, other, grad, tokens, width, stride_b, stride_n,
    WIDTH: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """∂L/∂z of one token. `weight` is c, `order` the tokens sorted by neighbour, `start` where each group begins."""
    b = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0)
    column = tl.arange(0, WIDTH)
    inside = column < width
    valid = ~(tl.load(norms + b * tokens + i) < 0.0)
    u, scale = _unit_row(z, norms, b, tl.where(valid, i, -1), column, tokens, inside, stride_b, stride_n)
    j = tl.load(index + b * tokens + i)
    v, _ = _unit_row(z, norms, b, j, column, tokens, inside, stride_b, stride_n)
    g = tl.load(weight + b * tokens + i) * (u - v)
    first = tl.load(start + b * (tokens + 1) + i)
    last = tl.load(start + b * (tokens + 1) + i + 1)
    for place in range(first, last):
        k = tl.load(order + b * tokens + place)
        v, _ = _unit_row(z, norms, b, k, column, tokens, inside, stride_b, stride_n)
        g -= tl.load(weight + b * tokens + k) * (v - u)
    along = tl.sum(g * u, axis=0)
    g = tl.where(valid, tl.load(upstream + b) * scale * (g - u * along), 0.0)
    where = (b * tokens + i) * width + column
    if ADD:
        g += tl.load(other + where, mask=inside, other=0.0).to(tl.float32)
    tl.store(grad + where, g.to(grad.dtype.element_ty), mask=inside)


def like(z: Tensor) -> list[Tensor]:
    """Empty tensors for what `forward` returns."""
    dtypes = (torch.float32, torch.int32, torch.float32)
    saved = (z.new_empty(z.shape[:2], dtype=dtype) for dtype in dtypes)
    return [z.new_empty(z.shape[0], dtype=torch.float32), *saved]


def forward(
    z: Tensor, mask: Tensor | None = None, *, eps: float = 1e-8, need_grad: bool = True
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """z (B, N, F), mask (B, N) bool → L (B,) float32, 0 for fewer than two tokens, and what `backward` needs."""
    z = rows.readable(z)
    batch, tokens, width = z.shape
    sums = rows.statistics(z, rows.flags(mask), eps=0.0, copy=torch.float16, unit=True)
    u = sums.copy
    assert u is not None
    index, second = (torch.empty((batch, tokens), dtype=torch.int32, device=z.device) for _ in range(2))
    block = min(repulsion.COLUMNS, rows.power_of_2(tokens))
    for b, row in repulsion.chunks(batch, tokens):
        products = rows.product(u[b, row], u[b].mT)
        _nearest_kernel[products.shape[1], products.shape[0]](
            products, sums.norms, sums.sizes, index, second, b.start, row.start, products.shape[1], tokens,
            BLOCK=block, num_warps=max(1, block // 256),
        )  # fmt: skip
    part, weight = torch.empty((2, batch, tokens), dtype=torch.float32, device=z.device).unbind()
    _, padded, warps = rows.row_tile(width)
    _distance_kernel[tokens, batch](
        z, sums.norms, sums.number, index, second, part, weight, tokens, width, z.stride(0), z.stride(1), eps,
        WIDTH=padded, num_warps=warps, **AS_WRITTEN,
    )  # fmt: skip
    return part.sum(1), (sums.norms, index, weight) if need_grad else ()


def backward(
    z: Tensor, saved: tuple[Tensor, ...], upstream: Tensor, *, eps: float = 1e-8, other: Tensor | None = None
) -> Tensor:
    """∂(Σ_b upstream_b L_b)/∂z (B, N, F) in z's dtype, plus `other` if there is one; upstream (B,) float32."""
    z = rows.readable(z)
    norms, index, weight = saved
    batch, tokens, width = z.shape
    neighbour, order = index.sort(dim=1, stable=True)
    ends = torch.arange(tokens + 1, dtype=torch.int32, device=z.device).expand(batch, -1).contiguous()
    start = torch.searchsorted(neighbour, ends, out_int32=True)
    grad = torch.empty(z.shape, dtype=z.dtype, device=z.device)
    _, padded, warps = rows.row_tile(width)
    _gradient_kernel[tokens, batch](
        z, norms, index, weight, order, start, upstream.to(torch.float32).contiguous(),
        None if other is None else other.contiguous(), grad, tokens, width, z.stride(0), z.stride(1),
        WIDTH=padded, ADD=other is not None, num_warps=warps, **AS_WRITTEN,
    )  # fmt: skip
    return grad
