"""ℓ2-repel: the log-sum-exp over all pairs of −‖z_i − z_j‖²/τ, and its gradient, in the form of self-attention.

With x_i = z_i − c for any point c, and t_ij = −‖x_i − x_j‖²/τ, over the tokens that count,

    ℓ_i = log Σ_{j≠i} exp t_ij,    P_ij = exp(t_ij − ℓ_i),    L = log Σ_i exp ℓ_i,    w_i = exp(ℓ_i − L),
    ∂L/∂z_i = (4/τ) w_i (o_i − x_i),    o_i = Σ_j P_ij x_j;

each row of P is a softmax, so no maximum over all pairs is needed before the second product. Besides L the kernel
returns Σ_i ‖z_i‖², which the loss adds with a weight; its gradient 2 z_i is added in the same pass.

The products are in float16, of y = f x with f = 2¹⁴/√Σ‖z_i‖²: in range for any scale of z, with three bits more than
bfloat16, which the exponential needs because squared distances are large beside τ. ‖y_i‖² is computed from the rounded
y, so that t_ij is exact for points displaced by the rounding. The products y_i·y_j, ℓ and L are float32; o is rounded
to float16, in which cuBLAS may also add up parts of its sums, as torch allows by default.

c = Σ_i z_i/‖z_i‖ / Σ_i 1/‖z_i‖, a mean in which one massive activation counts only by its direction. It would pull the
plain mean away, and the differences between all other tokens would be lost in float16. A token near the origin draws c
there, which only makes centring useless; ‖c‖ never exceeds the largest norm, so y stays in range.

Launches: statistics and their reduction, y; per chunk t by cuBLAS, a row-wise kernel for P and ℓ, o by cuBLAS; one
kernel for L. Backward: one row-wise kernel.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from decondense.kernels import rows
from decondense.kernels.rows import inverse

# How many products of pairs are in memory at a time.
CHUNK = 1 << 25
COLUMNS = 4096


@triton.jit
def _grown(top, total, t):
    """Add t to a running log-sum-exp, lane by lane: the largest t so far (top), and the sum of exp(t − top)."""
    higher = tl.where(t > top, t, top)
    level = tl.where(higher == float("-inf"), 0.0, higher)
    return higher, total * tl.exp(top - level) + tl.exp(t - level)


@triton.jit
def _summed(top, total):
    """Combine the lanes to (level, sum): the log-sum-exp is level + log sum."""
    peak = tl.max(top, axis=0)
    level = tl.where(peak == float("-inf"), 0.0, peak)
    return level, tl.sum(total * tl.exp(top - level), axis=0)


@triton.jit
def _factor(square, b):
    """The factor f of sequence b."""
    q = tl.load(square + b)
    return tl.where(q == 0.0, 1.0, 16384.0 / tl.sqrt(q))


@triton.jit
def _centred(z, norms, total, number, b, row, column, tokens, width, stride_b, stride_n):
    """Some rows of z and of x, zero where a token does not count, and which of them count."""
    norm = tl.load(norms + b * tokens + row, mask=row < tokens, other=-1.0)
    counts = ~(norm < 0.0)  # NaN counts, and must stay visible
    inside = column < width
    some = counts[:, None] & inside[None, :]
    source = z + b * stride_b + row.to(tl.int64)[:, None] * stride_n + column[None, :]
    value = tl.load(source, mask=some, other=0.0).to(tl.float32)
    weight = tl.load(number + b)
    centre = tl.load(total + b * width + column, mask=inside, other=0.0) / tl.where(weight == 0.0, 1.0, weight)
    return value, tl.where(some, value - centre[None, :], 0.0), counts


@triton.jit
def _scale_kernel(
    z, norms, total, square, number, y, half, tokens, width, stride_b, stride_n,
    SCALED: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """y (or x, unless SCALED), rounded, and half its squared lengths, infinite for tokens that do not count."""
    b = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    _, x, counts = _centred(z, norms, total, number, b, row, column, tokens, width, stride_b, stride_n)
    if SCALED:
        x = x * _factor(square, b)
    rounded = x.to(y.dtype.element_ty)
    where = (b * tokens + row)[:, None] * width + column[None, :]
    tl.store(y + where, rounded, mask=(row < tokens)[:, None] & (column < width)[None, :])
    size = rounded.to(tl.float32)
    size = 0.5 * tl.sum(size * size, axis=1)
    tl.store(half + b * tokens + row, tl.where(counts, size, float("inf")), mask=row < tokens)


@triton.jit
def _softmax_kernel(
    products, half, square, weights, logits, first_sequence, first_row, count_rows, tokens, tau,
    GRAD: tl.constexpr, WHOLE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A row of products y_i·y_j → P_i and ℓ_i. WHOLE: the row is one block; else it is read twice."""
    slot = tl.program_id(1).to(tl.int64)
    b = first_sequence + slot
    row = tl.program_id(0)
    i = first_row + row
    start = (slot * count_rows + row) * tokens
    f = _factor(square, b)
    rate = 2.0 / (tau * f * f)
    own = tl.load(half + b * tokens + i)
    column = tl.arange(0, BLOCK)
    if WHOLE:
        there = (column < tokens) & (column != i)
        t = tl.load(products + start + column, mask=there, other=0.0) - own
        t = rate * (t - tl.load(half + b * tokens + column, mask=there, other=float("inf")))
        peak = tl.max(t, axis=0)
        level = tl.where(peak == float("-inf"), 0.0, peak)
        p = tl.exp(t - level)
        sum_ = tl.sum(p, axis=0)
        if GRAD:
            tl.store(weights + start + column, (p * inverse(sum_)).to(weights.dtype.element_ty), mask=column < tokens)
    else:
        top = tl.full((BLOCK,), float("-inf"), dtype=tl.float32)
        total = tl.zeros((BLOCK,), dtype=tl.float32)
        for k in range(0, tokens, BLOCK):
            j = k + column
            there = (j < tokens) & (j != i)
            t = tl.load(products + start + j, mask=there, other=0.0) - own
            t = rate * (t - tl.load(half + b * tokens + j, mask=there, other=float("inf")))
            top, total = _grown(top, total, t)
        level, sum_ = _summed(top, total)
        if GRAD:
            scale = inverse(sum_)
            for k in range(0, tokens, BLOCK):
                j = k + column
                there = (j < tokens) & (j != i)
                t = tl.load(products + start + j, mask=there, other=0.0) - own
                t = rate * (t - tl.load(half + b * tokens + j, mask=there, other=float("inf")))
                p = tl.exp(t - level) * scale
                tl.store(weights + start + j, p.to(weights.dtype.element_ty), mask=j < tokens)
    tl.store(logits + b * tokens + i, level + tl.log(sum_))


@triton.jit
def _finish_kernel(logits, norms, square, value, whole, batch, tokens, BLOCK: tl.constexpr):
    """ℓ_i of a sequence → `value`: L, 0 for fewer than two tokens, and Σ‖z_i‖²; `whole`: L, there ∞, so w_i = 0."""
    b = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    top = tl.full((BLOCK,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    number = tl.zeros((BLOCK,), dtype=tl.float32)
    for k in range(0, tokens, BLOCK):
        here = k + column < tokens
        norm = tl.load(norms + b * tokens + k + column, mask=here, other=-1.0)
        number += tl.where(norm < 0.0, 0.0, 1.0)  # NaN counts
        t = tl.load(logits + b * tokens + k + column, mask=here, other=float("-inf"))
        top, total = _grown(top, total, t)
    level, sum_ = _summed(top, total)
    found = level + tl.log(sum_)
    few = tl.sum(number, axis=0) < 2.0
    tl.store(value + b, tl.where(few, 0.0, found))
    tl.store(whole + b, tl.where(few, float("inf"), found))
    tl.store(value + batch + b, tl.load(square + b))


@triton.jit
def _gradient_kernel(
    z, norms, total, square, number, logits, whole, pull, upstream, other, grad,
    batch, tokens, width, stride_b, stride_n, tau, ROWS: tl.constexpr, WIDTH: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """(4/τ) w_i (o_i − x_i) and 2 z_i, each times its upstream gradient."""
    b = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    here, x, counts = _centred(z, norms, total, number, b, row, column, tokens, width, stride_b, stride_n)
    some = counts[:, None] & (column < width)[None, :]
    where = (b * tokens + row)[:, None] * width + column[None, :]
    o = tl.load(pull + where, mask=some, other=0.0).to(tl.float32) / _factor(square, b)
    w = tl.exp(tl.load(logits + b * tokens + row, mask=counts, other=float("-inf")) - tl.load(whole + b))
    a = w * (4.0 / tau) * tl.load(upstream + b)
    g = a[:, None] * (o - x) + 2.0 * tl.load(upstream + batch + b) * here
    g = tl.where(some, g, 0.0)
    there = (row < tokens)[:, None] & (column < width)[None, :]
    if ADD:
        g += tl.load(other + where, mask=there, other=0.0).to(tl.float32)
    tl.store(grad + where, g.to(grad.dtype.element_ty), mask=there)


def chunks(batch: int, tokens: int) -> Iterator[tuple[slice, slice]]:
    """(sequences, rows) to multiply with all tokens at a time: some whole sequences, or some rows of one."""
    sequences, high = max(1, CHUNK // tokens**2), max(1, min(tokens, CHUNK // tokens))
    for b in range(0, batch, sequences):
        for row in range(0, tokens, high):
            yield slice(b, min(b + sequences, batch)), slice(row, min(row + high, tokens))


def centred(z: Tensor, sums: rows.Statistics, dtype: torch.dtype, *, scaled: bool) -> tuple[Tensor, Tensor]:
    """y, or x unless `scaled`, (B, N, F) in `dtype`, zero for tokens that do not count, and half its squared lengths
    (B, N), infinite for these tokens."""
    batch, tokens, width = z.shape
    copy = torch.empty(z.shape, dtype=dtype, device=z.device)
    half = torch.empty((batch, tokens), dtype=torch.float32, device=z.device)
    high, padded, warps = rows.row_tile(width)
    _scale_kernel[rows.cdiv(tokens, high), batch](
        z, sums.norms, sums.total, sums.square, sums.number, copy, half,
        tokens, width, z.stride(0), z.stride(1), SCALED=scaled, ROWS=high, WIDTH=padded, num_warps=warps,
    )  # fmt: skip
    return copy, half


def like(z: Tensor) -> list[Tensor]:
    """Empty tensors for what `forward` returns."""
    batch, tokens, width = z.shape
    shapes = ((2, batch), (batch, tokens), (batch, width), (batch,), (batch,), (batch, tokens), (1, batch))
    return [*(z.new_empty(s, dtype=torch.float32) for s in shapes), z.new_empty(z.shape, dtype=torch.float16)]


def forward(
    z: Tensor, mask: Tensor | None = None, *, tau: float = 1.0, need_grad: bool = True
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """z (B, N, F), mask (B, N) bool → L and Σ‖z_i‖² (2, B) float32, L = 0 for fewer than two tokens, and what
    `backward` needs."""
    z = rows.readable(z)
    batch, tokens, _ = z.shape
    sums = rows.statistics(z, rows.flags(mask), eps=0.0, centre=True)
    y, half = centred(z, sums, torch.float16, scaled=True)
    logits = torch.empty_like(half)
    value, whole = torch.empty((3, batch), dtype=torch.float32, device=z.device).split((2, 1))
    pull = torch.empty_like(y) if need_grad else None
    block = min(COLUMNS, rows.power_of_2(tokens))
    for b, row in chunks(batch, tokens):
        products = rows.product(y[b, row], y[b].mT)
        weights = torch.empty_like(products, dtype=torch.float16) if need_grad else None
        _softmax_kernel[products.shape[1], products.shape[0]](
            products, half, sums.square, weights, logits, b.start, row.start, products.shape[1], tokens, float(tau),
            GRAD=need_grad, WHOLE=tokens <= block, BLOCK=block, num_warps=max(1, block // 256),
        )  # fmt: skip
        if weights is not None and pull is not None:
            rows.product(weights, y[b], pull[b, row])
    _finish_kernel[(batch,)](logits, sums.norms, sums.square, value, whole, batch, tokens, BLOCK=1024)
    if pull is None:
        return value, ()
    return value, (sums.norms, sums.total, sums.square, sums.number, logits, whole, pull)


def backward(
    z: Tensor, saved: tuple[Tensor, ...], upstream: Tensor, *, tau: float = 1.0, other: Tensor | None = None
) -> Tensor:
    """∂(Σ_b upstream_0b L_b + upstream_1b Σ‖z_i‖²)/∂z (B, N, F) in z's dtype, plus `other`; upstream (2, B) float32."""
    z = rows.readable(z)
    batch, tokens, width = z.shape
    grad = torch.empty(z.shape, dtype=z.dtype, device=z.device)
    high, padded, warps = rows.row_tile(width)
    _gradient_kernel[rows.cdiv(tokens, high), batch](
        z, *saved, upstream.to(torch.float32).contiguous(), None if other is None else other.contiguous(), grad,
        batch, tokens, width, z.stride(0), z.stride(1), float(tau),
        ROWS=high, WIDTH=padded, ADD=other is not None, num_warps=warps,
    )  # fmt: skip
    return grad
