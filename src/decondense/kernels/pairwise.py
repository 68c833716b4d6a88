"""The exact pairwise losses: value and gradient in one pass over the Gram matrix.

For one sequence of n tokens that count, u_i = z_i/(‖z_i‖ + ε) = a_i z_i and c_ij = u_i·u_j, a loss is

    L = log( 1/P Σ_{i≠j} exp ℓ(c_ij) )     or     L = 1/P Σ_{i≠j} f(c_ij),      P = n(n−1),

(P = n² when the diagonal counts).  `curves.py` lists ℓ and f.  The upstream gradient is one scalar per sequence,
and so is the normaliser S = Σ exp ℓ, hence with the slopes s_ij = ∂term/∂c_ij

    ∂L/∂u_i = k Σ_j s_ij u_j,     k = 2/S  or  2/P,

where Σ_j s_ij u_j needs no normaliser: the tiles of the Gram matrix give the sum of the terms and the slopes at the
same time, a second matrix product gives the gradient, and k is applied in the backward pass.

Anchored at the mean.  Let c̄ be the mean cosine, from one read of z (`rows.py`), and w = s(c̄) the slope there.
With T = Σ_j u_j,

    Σ_{j≠i} s_ij u_j = w (T − u_i) + Σ_{j≠i} (s_ij − w) u_j.

The first part is the first-order estimator's gradient, in float32; only the deviations s_ij − w are stored and
multiplied in 16 bits, so a rounding error is relative to a small correction instead of to the whole gradient
(and where tokens are condensed the whole gradient is almost parallel to u_i, which the projection removes).
The deviations are stored as  D_ij = (s_ij − w) a_i a_j: symmetric, so a tile of the lower triangle is computed once
and written twice, and (D z)_i = a_i Σ_j (s_ij − w) u_j = the remainder G_i that `rows.project` adds.

Launches: statistics and their reduction; then per chunk of sequences the tile kernel and one batched product by
cuBLAS; then one that finishes the sums.  Backward: one row-wise kernel.  D lives in a buffer reused by every
chunk, at most 3/4 of the bytes of z (at least `SMALL_BUFFER`); when a whole sequence does not fit, the chunk is a
block of rows of one sequence and both triangles are computed.  The sum of the terms is kept per tile and added in a
fixed order: there are no atomics, results are the same bits every time.

Precision (accumulation is always float32):
    z bfloat16                     products in bfloat16, D and G stored in bfloat16
    z float16                      Gram in float16, D and G float32 (second product tf32): nothing underflows
    z float32, bf16 autocast       products on a bfloat16 copy of z, G in bfloat16; norms, T, w from float32
    z float32 otherwise            tf32 when torch allows it (or fp16 autocast), else float32
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from decondense.kernels import rows
from decondense.kernels.curves import (
    CURVES,
    DISPERSION,
    DISPERSION_COSINE,
    MIN_TAU,
    anchor,
    term_and_slope,
)

SMALL_BUFFER = 8 << 20
BUFFER_SHARE = 0.75


class Precision(NamedTuple):
    """How one call multiplies: see the table at the top."""

    copy: torch.dtype | None  # dtype of the copy of z the products read, None for z itself
    weights: torch.dtype
    remainder: torch.dtype
    dot: str  # tl.dot's input_precision, of weight for float32 operands only


class Tile(NamedTuple):
    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


@triton.jit
def _tile_kernel(
    x, norms, length, square, count, weights, partial,
    tokens, width, stride_b, stride_n, first_sequence, first_row, end_row, stride_wb, stride_wn,
    tiles, first_partial, eps, rate, limit, margin,
    LENGTH_PARTS: tl.constexpr, LENGTH_BLOCK: tl.constexpr, CURVE: tl.constexpr, HARD: tl.constexpr,
    SELF: tl.constexpr, NORMALIZE: tl.constexpr, TRIANGLE: tl.constexpr, MASKED: tl.constexpr,
    EVEN: tl.constexpr, GRAD: tl.constexpr, PRECISION: tl.constexpr, CAST: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    slot = tl.program_id(1)
    b = first_sequence + slot
    if TRIANGLE:
        # tile = i(i+1)/2 + j with j ≤ i; the root may be off by one in float32
        i = ((tl.sqrt(8.0 * tile.to(tl.float32) + 1.0) - 1.0) * 0.5).to(tl.int32)
        i = tl.where(i * (i + 1) // 2 > tile, i - 1, i)
        i = tl.where((i + 1) * (i + 2) // 2 <= tile, i + 1, i)
        j = tile - i * (i + 1) // 2
    else:
        high = tl.cdiv(end_row - first_row, ROWS)
        i = tile % high
        j = tile // high
    row = first_row + i * ROWS + tl.arange(0, ROWS)
    column = j * COLUMNS + tl.arange(0, COLUMNS)
    base = norms + b.to(tl.int64) * tokens
    row_norm = tl.load(base + row, mask=row < end_row, other=-1.0)
    column_norm = tl.load(base + column, mask=column < tokens, other=-1.0)
    row_valid = ~(row_norm < 0.0)  # NaN counts
    column_valid = ~(column_norm < 0.0)

    depth = tl.arange(0, DEPTH)
    start = x + b.to(tl.int64) * stride_b
    # rows past the end read the last one again: cheaper than a mask, and their terms are dropped below
    left = start + tl.minimum(row, tokens - 1).to(tl.int64)[:, None] * stride_n + depth[None, :]
    right = start + tl.minimum(column, tokens - 1).to(tl.int64)[None, :] * stride_n + depth[:, None]
    product = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for k in range(0, width, DEPTH):
        if MASKED:
            here = depth < width - k
            p = tl.load(left + k, mask=row_valid[:, None] & here[None, :], other=0.0)
            q = tl.load(right + k, mask=column_valid[None, :] & here[:, None], other=0.0)
        elif EVEN:
            p = tl.load(left + k)
            q = tl.load(right + k)
        else:
            here = depth < width - k
            p = tl.load(left + k, mask=here[None, :], other=0.0)
            q = tl.load(right + k, mask=here[:, None], other=0.0)
        if CAST:
            p = p.to(tl.float32)
            q = q.to(tl.float32)
        product = tl.dot(p, q, product, input_precision=PRECISION)

    if NORMALIZE:
        row_scale = 1.0 / (row_norm + eps)
        column_scale = 1.0 / (column_norm + eps)
        c = product * row_scale[:, None] * column_scale[None, :]
    else:
        c = product
    shift, slope_there = anchor(
        length, square, count, b, rate, limit, margin, LENGTH_PARTS, LENGTH_BLOCK, CURVE, HARD
    )
    term, slope = term_and_slope(c, shift, rate, limit, margin, CURVE, HARD)
    pair = row_valid[:, None] & column_valid[None, :]
    if not SELF:
        pair = pair & (row[:, None] != column[None, :])
    amount = tl.sum(tl.sum(tl.where(pair, term, 0.0), axis=1), axis=0)
    if TRIANGLE:
        amount = tl.where(i == j, amount, 2.0 * amount)
    tl.store(partial + b.to(tl.int64) * tiles + first_partial + tile, amount)
    if GRAD:
        d = slope - slope_there
        if NORMALIZE:
            d = d * row_scale[:, None] * column_scale[None, :]
        d = tl.where(pair, d, 0.0).to(weights.dtype.element_ty)
        target = weights + slot.to(tl.int64) * stride_wb
        there = target + (row - first_row).to(tl.int64)[:, None] * stride_wn + column[None, :]
        tl.store(there, d, mask=(row < end_row)[:, None] & (column < tokens)[None, :])
        if TRIANGLE and i != j:
            mirror = target + column.to(tl.int64)[:, None] * stride_wn + row[None, :]
            tl.store(mirror, tl.trans(d), mask=(column < tokens)[:, None] & (row < end_row)[None, :])


@triton.jit
def _finish_kernel(
    partial, length, square, count, value, coefficient, slope, tiles, rate, limit, margin,
    LENGTH_PARTS: tl.constexpr, LENGTH_BLOCK: tl.constexpr, CURVE: tl.constexpr, HARD: tl.constexpr,
    SELF: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0)
    sums = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, tiles, BLOCK):
        t = start + tl.arange(0, BLOCK)
        sums += tl.load(partial + b.to(tl.int64) * tiles + t, mask=t < tiles, other=0.0)
    s = tl.sum(sums, axis=0)
    shift, slope_there = anchor(
        length, square, count, b, rate, limit, margin, LENGTH_PARTS, LENGTH_BLOCK, CURVE, HARD
    )
    n = tl.load(count + b)
    some = n >= 2.0
    if SELF:
        pairs = tl.where(some, n * n, 1.0)
    else:
        pairs = tl.where(some, n * (n - 1.0), 1.0)
    if CURVE == DISPERSION:
        v = tl.log(s / pairs) - shift * rate
        k = 2.0 / s
    elif CURVE == DISPERSION_COSINE:
        v = tl.log(s / pairs) + shift * rate
        k = 2.0 / s
    else:
        v = s / pairs
        k = 2.0 / pairs
    tl.store(value + b, tl.where(some, v, 0.0))
    tl.store(coefficient + b, tl.where(some, k, 0.0))
    tl.store(slope + b, slope_there)


@triton.jit
def _product_kernel(
    weights, z, norms, out, first_row, count_rows, tokens, width,
    stride_wb, stride_wn, stride_zb, stride_zn, stride_ob, first_sequence,
    PRECISION: tl.constexpr, CAST: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """G = D z for rows of z that may be masked: what is masked is never read, as 0 · NaN would be NaN."""
    blocks = tl.cdiv(width, COLUMNS)
    row = (tl.program_id(0) // blocks) * ROWS + tl.arange(0, ROWS)
    column = (tl.program_id(0) % blocks) * COLUMNS + tl.arange(0, COLUMNS)
    slot = tl.program_id(1)
    b = first_sequence + slot
    inside = column < width
    left = weights + slot.to(tl.int64) * stride_wb + row.to(tl.int64)[:, None] * stride_wn
    right = z + b.to(tl.int64) * stride_zb + column[None, :]
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for k in range(0, tokens, DEPTH):
        token = k + tl.arange(0, DEPTH)
        norm = tl.load(norms + b.to(tl.int64) * tokens + token, mask=token < tokens, other=-1.0)
        valid = ~(norm < 0.0)
        p = tl.load(left + token[None, :], mask=(row < count_rows)[:, None] & valid[None, :], other=0.0)
        q = tl.load(
            right + token.to(tl.int64)[:, None] * stride_zn, mask=valid[:, None] & inside[None, :], other=0.0
        )
        if CAST:
            p = p.to(tl.float32)
            q = q.to(tl.float32)
        total = tl.dot(p, q, total, input_precision=PRECISION)
    target = out + b.to(tl.int64) * stride_ob + (first_row + row).to(tl.int64)[:, None] * width
    tl.store(
        target + column[None, :],
        total.to(out.dtype.element_ty),
        mask=(row < count_rows)[:, None] & inside[None, :],
    )


def _precision(z: torch.Tensor) -> Precision:
    if z.dtype == torch.bfloat16:
        return Precision(None, torch.bfloat16, torch.bfloat16, "tf32")
    if z.dtype == torch.float16:
        return Precision(None, torch.float32, torch.float32, "tf32")
    kind = z.device.type
    autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    if autocast == torch.bfloat16:
        return Precision(torch.bfloat16, torch.bfloat16, torch.bfloat16, "tf32")
    tf32 = torch.backends.cuda.matmul.allow_tf32 or autocast == torch.float16
    return Precision(None, torch.float32, torch.float32, "tf32" if tf32 and z.is_cuda else "ieee")


def _tile(dtype: torch.dtype, dot: str) -> Tile:
    if rows.INTERPRET:
        return Tile(32, 32, 32, 4, 1)
    if dtype != torch.float32:
        return Tile(128, 128, 64, 8, 3)
    if dot == "ieee":
        return Tile(64, 64, 32, 4, 2)
    return Tile(128, 128, 32, 8, 3)


def _options(curve: str, tau: float, clamp: float) -> tuple[int, float]:
    if curve not in CURVES:
        raise ValueError(f"curve must be one of {', '.join(CURVES)}, got {curve!r}.")
    if curve.startswith("dispersion") and not tau >= MIN_TAU:
        raise ValueError(
            f"tau must be at least {MIN_TAU} for the kernels, got {tau}: "
            'use backend="torch" for a smaller temperature.'
        )
    if not 0.0 <= clamp < 1.0:
        raise ValueError(f"clamp must lie in [0, 1), got {clamp}: 0.1 is the usual value.")
    number = CURVES[curve]
    return number, 1.0 / (math.pi * tau) if curve == "dispersion" else 1.0 / tau


def plan(batch: int, tokens: int, z_bytes: int, itemsize: int, tile_rows: int) -> tuple[int, int]:
    """Sequences and rows of each that the buffer of weights holds at a time: (n, tokens) or (1, rows)."""
    row_bytes = _leading(tokens) * itemsize
    budget = max(SMALL_BUFFER, int(BUFFER_SHARE * z_bytes))
    sequences = budget // (row_bytes * tokens)
    if sequences >= 1:
        chunks = -(-batch // min(sequences, batch))
        return -(-batch // chunks), tokens
    return 1, max(tile_rows, budget // row_bytes // tile_rows * tile_rows)


def _leading(tokens: int) -> int:
    """Length of a row in the buffer: a multiple of 16, so that every row is aligned."""
    return -(-tokens // 16) * 16


def _splits(tokens: int, count_rows: int, width: int) -> int:
    """Into how many parts to cut the long sum of a row block, so that its few outputs still fill the GPU."""
    parts = 1
    while parts < 16 and tokens % (parts * 16) == 0 and count_rows * width * parts < 132 * 128 * 128:
        parts *= 2
    return parts


def _multiply(
    weights: torch.Tensor, x: torch.Tensor, out: torch.Tensor, *, sequence: int, first_row: int, dot: str,
    norms: torch.Tensor | None,
) -> None:  # fmt: skip
    """out[sequences, rows] = weights · x[sequences], weights (sequences, rows, tokens)."""
    sequences, count_rows, tokens = weights.shape
    width = x.shape[2]
    if norms is not None:
        t = _tile(weights.dtype, dot)
        grid = (triton.cdiv(count_rows, t.rows) * triton.cdiv(width, t.columns), sequences)
        _product_kernel[grid](
            weights, x, norms, out, first_row, count_rows, tokens, width,
            weights.stride(0), weights.stride(1), x.stride(0), x.stride(1), out.stride(0), sequence,
            PRECISION=dot, CAST=rows.INTERPRET or weights.dtype != x.dtype,
            ROWS=t.rows, COLUMNS=t.columns, DEPTH=t.depth, num_warps=t.warps, num_stages=t.stages,
        )  # fmt: skip
        return
    x = x[sequence : sequence + sequences]
    target = out[sequence : sequence + sequences, first_row : first_row + count_rows]
    parts = _splits(tokens, count_rows, width) if sequences == 1 and count_rows < tokens else 1
    if parts == 1 or not x.is_cuda:
        torch.bmm(weights, x, out=target)
        return
    each = tokens // parts
    left = weights[0].as_strided((parts, count_rows, each), (each, weights.stride(1), 1))
    right = x[0].as_strided((parts, each, width), (each * x.stride(1), x.stride(1), 1))
    if weights.dtype == torch.float32:
        partial = torch.bmm(left, right)
    else:
        partial = torch.bmm(left, right, out_dtype=torch.float32)
    target.copy_(partial.sum(0))


@torch.no_grad()
def forward(
    z: torch.Tensor,
    mask: torch.Tensor | None = None,
    *,
    curve: str = "dispersion",
    tau: float = 1.0,
    clamp: float = 0.1,
    hard_clamp: bool = False,
    margin: float = 0.5,
    eps: float = 1e-2,
    diagonal: bool = False,
    normalize: bool = True,
    need_grad: bool = True,
    deterministic: bool = False,
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """The loss of every sequence of z (B, N, F) → (value (B,) float32, what `backward` needs).

    mask (B, N) bool marks the tokens that count.  A sequence with fewer than two has the value 0.
    `normalize=False` takes u = z (decorrelation of embeddings the caller standardised).
    `need_grad=False` skips the second product; the saved tuple is then empty.
    `deterministic` is accepted for the interface: the kernels have no atomics and are always deterministic.
    """
    del deterministic
    number, rate = _options(curve, tau, clamp)
    z, mask = rows.check(z, mask)
    batch, tokens, width = z.shape
    how = _precision(z)
    # inside autocast only z's own dtype decides; the products below choose their operands themselves
    found = rows.statistics(z, mask, eps=eps, normalize=normalize, copy=how.copy)
    x = z if found.copy is None else found.copy
    t = _tile(x.dtype, how.dot)
    limit = 1.0 - clamp
    parts = found.length.shape[1]
    shared = dict(
        LENGTH_PARTS=parts, LENGTH_BLOCK=triton.next_power_of_2(max(1, parts)), CURVE=number,
        HARD=hard_clamp, SELF=diagonal,
    )  # fmt: skip

    if need_grad:
        sequences, high = plan(
            batch, tokens, z.numel() * z.element_size(), how.weights.itemsize, max(t.rows, 128)
        )
        high = min(high, tokens)
        buffer = torch.empty((sequences, high, _leading(tokens)), dtype=how.weights, device=z.device)
        remainder = torch.empty((batch, tokens, width), dtype=how.remainder, device=z.device)
    else:
        sequences, high = batch, tokens
        buffer = remainder = None
    triangle = high == tokens
    across = triton.cdiv(tokens, t.columns)
    # a whole number of tile rows per block, the last block apart, so tiles can be numbered block after block
    tiles = across * (across + 1) // 2 if triangle else across * triton.cdiv(tokens, t.rows)
    partial = torch.empty((batch, tiles), dtype=torch.float32, device=z.device)
    masked_product = mask is not None and found.copy is None
    fp16 = z.dtype == torch.float16

    for sequence in range(0, batch, sequences):
        some = min(sequences, batch - sequence)
        for first in range(0, tokens, high):
            end = min(first + high, tokens)
            here = tiles if triangle else across * triton.cdiv(end - first, t.rows)
            _tile_kernel[(here, some)](
                x, found.norms, found.length, found.square, found.count, buffer, partial,
                tokens, width, x.stride(0), x.stride(1), sequence, first, end,
                buffer.stride(0) if buffer is not None else 0,
                buffer.stride(1) if buffer is not None else 0,
                tiles, across * (first // t.rows), eps, rate, limit, margin,
                NORMALIZE=normalize, TRIANGLE=triangle, MASKED=mask is not None and found.copy is None,
                EVEN=width % t.depth == 0, GRAD=need_grad, PRECISION=how.dot,
                CAST=rows.INTERPRET and x.dtype == torch.bfloat16,
                ROWS=t.rows, COLUMNS=t.columns, DEPTH=t.depth, num_warps=t.warps, num_stages=t.stages,
                **shared,
            )  # fmt: skip
            if buffer is not None and remainder is not None:
                _multiply(
                    buffer[:some, : end - first, :tokens], x, remainder, sequence=sequence, first_row=first,
                    dot=how.dot, norms=found.norms if masked_product or fp16 else None,
                )  # fmt: skip

    value, coefficient, slope = torch.empty((3, batch), dtype=torch.float32, device=z.device)
    if batch:
        _finish_kernel[(batch,)](
            partial, found.length, found.square, found.count, value, coefficient, slope,
            tiles, rate, limit, margin, BLOCK=1024, **shared,
        )  # fmt: skip
    if remainder is None:
        return value, ()
    return value, (found.norms, found.total, coefficient, slope, remainder)


@torch.no_grad()
def backward(
    z: torch.Tensor,
    mask: torch.Tensor | None,
    saved: tuple[torch.Tensor, ...],
    upstream: torch.Tensor,
    *,
    eps: float = 1e-2,
    diagonal: bool = False,
    normalize: bool = True,
    **options: object,
) -> torch.Tensor:
    """∂(Σ_b upstream_b L_b)/∂z (B, N, F) in z's dtype; upstream (B,) float32.

    `saved` comes from `forward` on the same z, mask and options; it is left as it is, so a retained graph can be
    walked twice.  Of the options only eps, diagonal and normalize matter here.
    """
    del options
    z, _ = rows.check(z, mask)
    norms, total, coefficient, slope, remainder = saved
    return rows.project(
        z, norms, total, coefficient, eps=eps, normalize=normalize, count_self=diagonal,
        remainder=remainder, anchor=slope, upstream=upstream.to(torch.float32).contiguous(),
    )  # fmt: skip
