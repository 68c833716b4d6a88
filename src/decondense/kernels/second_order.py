"""The first two moments of the cosines of a sequence, and their gradient.

The second-order estimator needs, over the P = n(n−1) ordered pairs of the n tokens that count,

    m₁ = 1/P Σ_{i≠j} c_ij,     m₂ = 1/P Σ_{i≠j} c_ij²,     c_ij = u_i·u_j,   u_i = z_i/(‖z_i‖ + ε) = a_i z_i.

m₁ follows from T = Σ u_i (`rows.py`).  With K = UᵀU (F × F),

    Σ_{i≠j} c_ij² = ‖K‖²_F − Σ_i ‖u_i‖⁴,     ∂m₂/∂u_i = 4/P (K u_i − ‖u_i‖² u_i),

because ‖UᵀU‖_F = ‖UUᵀ‖_F; the ‖u_i‖⁴ are computed from U as rounded for the product, since in a short sequence
the difference would show.  The gradient of p m₁ + q m₂ (p, q one number per sequence) is then

    g_i = 2p/P (T − u_i) + 4q/P (K u_i − ‖u_i‖² u_i).

Centred.  Not K is stored in 16 bits but the scatter about the mean, which is small beside K where tokens are
condensed:

    C = K − T Tᵀ/n,     K u_i = C u_i + (T·u_i/n) T,

so that only the correction C u_i has 16-bit rounding; the rest is float32.  C is stored times F/n, so that its entries
are of order one at any length (K itself would leave the range of float16, and K/n would lose digits).

Launches: statistics, which also write U in the dtype of the products, and their reduction; the tiles of C, lower
triangle only, each written twice, with the sum of the squares of K; C U by cuBLAS; one kernel for the moments.
Backward: one row-wise kernel that assembles g_i and takes it through the normalisation.

Where N ≤ F the smaller Gram matrix is UUᵀ, and Σ c_ij² is the `decorrelation` curve of `pairwise.py`, whose weights
are anchored at the mean cosine: its remainder is G_i = a_i Σ_{j≠i} (c_ij − m₁) u_j, hence

    g_i = (2p/P + 4q/P m₁) (T − u_i) + 4q/P G_i/a_i.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from decondense.kernels import pairwise, product_dtype, rows, tf32_products
from decondense.kernels.rows import INTERPRET, centre, inverse, through_unit
from decondense.kernels.tiles import below_diagonal

# At most so many: with more, two programs of the scatter kernel do not fit into the shared memory of a multiprocessor,
# and the end of one is not hidden behind the products of the other.
STAGES = 3


@triton.jit
def _scatter_kernel(
    u, total, count, scatter, partial, tokens, width,
    EVEN: tl.constexpr, GRAD: tl.constexpr, PRECISION: tl.constexpr, CAST: tl.constexpr,
    SIDE: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """One tile of K → the sum of its squares, and the tile of C · F/n."""
    tile = tl.program_id(0)
    b = tl.program_id(1)
    i, j = below_diagonal(tile)
    row = i * SIDE + tl.arange(0, SIDE)
    column = j * SIDE + tl.arange(0, SIDE)
    depth = tl.arange(0, DEPTH)
    # features are contiguous in memory but the sum runs over tokens: both operands are read along their outer axis
    start = u + b.to(tl.int64) * tokens * width
    left = start + depth[None, :] * width + row[:, None]
    right = start + depth[:, None] * width + column[None, :]
    product = tl.zeros((SIDE, SIDE), dtype=tl.float32)
    for k in range(0, tokens, DEPTH):
        if EVEN:
            p = tl.load(left)
            q = tl.load(right)
        else:
            here = depth < tokens - k
            p = tl.load(left, mask=(row < width)[:, None] & here[None, :], other=0.0)
            q = tl.load(right, mask=here[:, None] & (column < width)[None, :], other=0.0)
        if CAST:
            p = p.to(tl.float32)
            q = q.to(tl.float32)
        product = tl.dot(p, q, product, input_precision=PRECISION)
        left += DEPTH * width
        right += DEPTH * width
    amount = tl.sum(tl.sum(product * product, axis=1), axis=0)
    amount = tl.where(i == j, amount, 2.0 * amount)
    tl.store(partial + b * tl.num_programs(0) + tile, amount)
    if GRAD:
        n = tl.maximum(tl.load(count + b), 1.0)
        down = tl.load(total + b.to(tl.int64) * width + row, mask=row < width, other=0.0)
        across = tl.load(total + b.to(tl.int64) * width + column, mask=column < width, other=0.0)
        c = (product - (down / n)[:, None] * across[None, :]) * (width / n)
        c = c.to(scatter.dtype.element_ty)
        target = scatter + b.to(tl.int64) * width * width
        inside = (row < width)[:, None] & (column < width)[None, :]
        tl.store(target + row[:, None] * width + column[None, :], c, mask=inside)
        if i != j:
            mirror = (column < width)[:, None] & (row < width)[None, :]
            tl.store(target + column[:, None] * width + row[None, :], tl.trans(c), mask=mirror)


@triton.jit
def _moments_kernel(partial, fourths, numbers, moments, factors, batch, tiles, programs, parts, BLOCK: tl.constexpr):
    """The sums of a sequence → m₁, m₂ and the factors 4/P and n."""
    b = tl.program_id(0)
    block = tl.arange(0, BLOCK)
    sums = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, tiles, BLOCK):
        sums += tl.load(partial + b * tiles + start + block, mask=start + block < tiles, other=0.0)
    lengths = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, parts, BLOCK):
        lengths += tl.load(numbers + (2 + start + block) * batch + b, mask=start + block < parts, other=0.0)
    fourth = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, programs, BLOCK):
        fourth += tl.load(fourths + b * programs + start + block, mask=start + block < programs, other=0.0)
    n = tl.load(numbers + batch + b)
    some = n >= 2.0
    pairs = tl.where(some, n * (n - 1.0), 1.0)
    first = (tl.sum(lengths, axis=0) - tl.load(numbers + b)) / pairs
    second = (tl.sum(sums, axis=0) - tl.sum(fourth, axis=0)) / pairs
    tl.store(moments + b, tl.where(some, first, 0.0))
    tl.store(moments + batch + b, tl.where(some, second, 0.0))
    tl.store(factors + b, tl.where(some, 4.0 / pairs, 0.0))
    tl.store(factors + batch + b, n)


@triton.jit
def _gradient_kernel(
    z, norms, total, remainder, factors, upstream, other, grad,
    batch, tokens, width, stride_b, stride_n, eps,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, PAIRS: tl.constexpr, CENTRED: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """g_i taken through the normalisation. PAIRS: remainder and factors come from `pairwise`, with m₁ in place of n.

    CENTRED: z is centred again here; the gradient is then centred by itself, so needs no step of its own.
    """
    b = tl.program_id(1)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, WIDTH)
    present = rows < tokens
    inside = columns < width
    norm = tl.load(norms + b.to(tl.int64) * tokens + rows, mask=present, other=-1.0)
    masked = norm < 0  # false for NaN: an invalid number at a token that counts must stay visible
    some = (~masked)[:, None] & inside[None, :]
    source = z + b.to(tl.int64) * stride_b + rows.to(tl.int64)[:, None] * stride_n + columns[None, :]
    where = (b.to(tl.int64) * tokens + rows)[:, None] * width + columns[None, :]
    x = tl.load(source, mask=some, other=0.0).to(tl.float32)
    if CENTRED:
        x = centre(x, inside, width)
    rest = tl.load(remainder + where, mask=some, other=0.0).to(tl.float32)
    t = tl.load(total + b.to(tl.int64) * width + columns, mask=inside, other=0.0)
    scale = inverse(norm + eps)
    u = x * scale[:, None]
    quarter = tl.load(factors + b)
    k = quarter * tl.load(upstream + batch + b)
    w = 0.5 * quarter * tl.load(upstream + b)
    extra = tl.load(factors + batch + b)
    if PAIRS:
        g = scale[:, None] * ((w + k * extra) * (t[None, :] - u)) + k * rest
    else:
        n = tl.maximum(extra, 1.0)
        mean = tl.sum(u * t[None, :], axis=1) / n
        size = norm * scale
        second = rest * (n / width) + mean[:, None] * t[None, :] - (size * size)[:, None] * u
        g = scale[:, None] * (w * (t[None, :] - u) + k * second)
    g = through_unit(g, x, norm, scale, inside)
    weight = tl.where(masked, 0.0, tl.abs(w) + tl.abs(k))[:, None]
    g = tl.where(weight == 0.0, 0.0, g)
    there = present[:, None] & inside[None, :]
    if ADD:
        g += tl.load(other + where, mask=there, other=0.0).to(tl.float32)
    tl.store(grad + where, g.to(grad.dtype.element_ty), mask=there)


def like(z: Tensor) -> list[Tensor]:
    """Empty tensors for what `forward` returns."""
    short = z.shape[1] <= z.shape[2]
    return rows.like(z, pairwise.like(z)[-1].dtype if short else product_dtype(z), 2)


def forward(
    z: Tensor, mask: Tensor | None = None, *, eps: float = 1e-2, centred: bool = False, need_grad: bool = True
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """z (B, N, F) → (m₁, m₂) (2, B) float32, 0 for fewer than two tokens, and what `backward` needs.

    mask (B, N) bool marks the tokens that count.  `need_grad=False` skips the second product.  `centred` subtracts the
    mean over its features from each token first; it is for N > F only, and ignored otherwise.
    """
    if z.shape[1] <= z.shape[2]:
        pairs = pairwise.sums(z, mask, need_grad, pairwise.Options(curve="decorrelation", eps=eps))
        # the slope of c²/2 at the mean cosine is that cosine
        return torch.stack([pairs.factors[1], pairs.value]), pairs.saved
    z = rows.readable(z)
    batch, tokens, width = z.shape
    operand = product_dtype(z)
    sums = rows.statistics(z, rows.flags(mask), eps=eps, copy=operand, unit=True, centred=centred)
    u, fourth = sums.copy, sums.fourth
    assert u is not None
    assert fourth is not None
    dot = "tf32" if operand != torch.float32 or (z.is_cuda and tf32_products()) else "ieee"
    t = pairwise.gram_tile(u.element_size(), dot, z.device)
    across = rows.cdiv(width, t.rows)
    tiles = across * (across + 1) // 2
    partial = torch.empty((batch, tiles), dtype=torch.float32, device=z.device)
    moments = torch.empty((2, batch), dtype=torch.float32, device=z.device)
    factors = torch.empty((2, batch), dtype=torch.float32, device=z.device)
    scatter = torch.empty((batch, width, width), dtype=operand, device=z.device) if need_grad else None
    _scatter_kernel[tiles, batch](
        u, sums.total, sums.number, scatter, partial, tokens, width,
        EVEN=tokens % t.depth == 0 and width % t.rows == 0, GRAD=need_grad, PRECISION=dot,
        CAST=INTERPRET and operand == torch.bfloat16, SIDE=t.rows, DEPTH=t.depth,
        num_warps=t.warps, num_stages=min(t.stages, STAGES),
    )  # fmt: skip
    _moments_kernel[(batch,)](
        partial, fourth, sums.numbers, moments, factors,
        batch, tiles, fourth.shape[1], len(sums.numbers) - 2, BLOCK=256,
    )  # fmt: skip
    if scatter is None:
        return moments, ()
    remainder = torch.empty((batch, tokens, width), dtype=operand, device=z.device)
    torch.bmm(u, scatter, out=remainder)  # autocast does not act on `out=`
    return moments, (sums.norms, sums.total, factors, remainder)


def backward(
    z: Tensor,
    saved: tuple[Tensor, ...],
    upstream: Tensor,
    *,
    eps: float = 1e-2,
    centred: bool = False,
    other: Tensor | None = None,
) -> Tensor:
    """∂(Σ_b upstream_0b m₁_b + upstream_1b m₂_b)/∂z (B, N, F) in z's dtype, plus `other`; upstream (2, B) float32."""
    z = rows.readable(z)
    norms, total, factors, remainder = saved
    batch, tokens, width = z.shape
    grad = torch.empty((batch, tokens, width), dtype=z.dtype, device=z.device)
    high, padded, warps = rows.row_tile(width)
    _gradient_kernel[rows.cdiv(tokens, high), batch](
        z, norms, total, remainder, factors, upstream.to(torch.float32).contiguous(),
        None if other is None else other.contiguous(), grad, batch, tokens, width, z.stride(0), z.stride(1), eps,
        ROWS=high, WIDTH=padded, PAIRS=tokens <= width, CENTRED=centred, ADD=other is not None, num_warps=warps,
    )  # fmt: skip
    return grad
