"""The kernels of `pairwise.py`: tiles of the Gram matrix, the sum of their terms, and the masked product."""

from __future__ import annotations

import triton
import triton.language as tl

from decondense.kernels.curves import DISPERSION, DISPERSION_COSINE, HALF_PI, anchor, term_and_slope
from decondense.kernels.rows import inverse


@triton.jit
def below_diagonal(tile):
    """Row i and column j ≤ i of the tile with number i(i+1)/2 + j."""
    i = ((tl.sqrt(8.0 * tile.to(tl.float32) + 1.0) - 1.0) * 0.5).to(tl.int32)
    i = tl.where(i * (i + 1) // 2 > tile, i - 1, i)  # the root may be off by one in float32
    i = tl.where((i + 1) * (i + 2) // 2 <= tile, i + 1, i)
    return i, tile - i * (i + 1) // 2


@triton.jit
def tile_kernel(
    x, norms, numbers, weights, partial,
    batch, tokens, width, stride_b, stride_n, first_sequence, first_x, first_row, end_row, stride_wb,
    stride_wn, tiles, first_partial, eps, rate, limit, margin,
    LENGTH_PARTS: tl.constexpr, LENGTH_BLOCK: tl.constexpr, CURVE: tl.constexpr, HARD: tl.constexpr,
    SELF: tl.constexpr, TRIANGLE: tl.constexpr, MASKED: tl.constexpr,
    EVEN: tl.constexpr, GRAD: tl.constexpr, FINE: tl.constexpr, FAST: tl.constexpr,
    PRECISION: tl.constexpr, CAST: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """One tile of cosines → the sum of its terms, and its weights D_ij = (s_ij − w) a_i a_j.

    x begins with sequence first_x; weights begin with first_sequence, and their rows with first_row.
    MASKED: some tokens may not count; x may hold NaN there, which reaches only their own pairs, dropped below.
    """
    tile = tl.program_id(0)
    slot = tl.program_id(1)
    b = first_sequence + slot
    if TRIANGLE:
        i, j = below_diagonal(tile)
    else:
        high = tl.cdiv(end_row - first_row, ROWS)
        i = tile % high
        j = tile // high
    top = first_row + i * ROWS
    side = j * COLUMNS
    row = top + tl.arange(0, ROWS)
    column = side + tl.arange(0, COLUMNS)
    base = norms + b.to(tl.int64) * tokens
    row_norm = tl.load(base + row, mask=row < end_row, other=-1.0)
    column_norm = tl.load(base + column, mask=column < tokens, other=-1.0)
    row_valid = ~(row_norm < 0.0)  # NaN counts
    column_valid = ~(column_norm < 0.0)

    depth = tl.arange(0, DEPTH)
    start = x + (b - first_x).to(tl.int64) * stride_b
    # rows past the end read the last one again: cheaper than a mask, and their terms are dropped below
    left = start + tl.minimum(row, tokens - 1).to(tl.int64)[:, None] * stride_n + depth[None, :]
    right = start + tl.minimum(column, tokens - 1).to(tl.int64)[None, :] * stride_n + depth[:, None]
    product = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for k in range(0, width, DEPTH):
        if EVEN:
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

    scale = inverse(row_norm + eps)[:, None] * inverse(column_norm + eps)[None, :]
    c = product * scale
    part = tl.arange(0, LENGTH_BLOCK)
    length = tl.sum(tl.load(numbers + (2 + part) * batch + b, mask=part < LENGTH_PARTS, other=0.0), axis=0)
    square, n = tl.load(numbers + b), tl.load(numbers + batch + b)
    shift, slope_there = anchor(length, square, n, rate, limit, margin, CURVE, HARD)
    term, d = term_and_slope(c, shift, rate, limit, margin, CURVE, HARD, FINE, FAST)
    d = (d - slope_there) * scale
    # most tiles lie wholly inside the sequence and off its diagonal: no pairs must be dropped there
    partly = (top + ROWS > end_row) | (side + COLUMNS > tokens)
    if not SELF:
        partly = partly | ((top < side + COLUMNS) & (side < top + ROWS))
    if MASKED:
        partly = partly | True
    if partly:
        pair = row_valid[:, None] & column_valid[None, :]
        if not SELF:
            pair = pair & (row[:, None] != column[None, :])
        term = tl.where(pair, term, 0.0)
        d = tl.where(pair, d, 0.0)
    amount = tl.sum(tl.sum(term, axis=1), axis=0)
    if TRIANGLE:
        amount = tl.where(i == j, amount, 2.0 * amount)
    tl.store(partial + b.to(tl.int64) * tiles + first_partial + tile, amount)
    if GRAD:
        d = d.to(weights.dtype.element_ty)
        target = weights + slot.to(tl.int64) * stride_wb
        there = target + (row - first_row).to(tl.int64)[:, None] * stride_wn + column[None, :]
        tl.store(there, d, mask=(row < end_row)[:, None] & (column < tokens)[None, :])
        if TRIANGLE and i != j:
            mirror = target + column.to(tl.int64)[:, None] * stride_wn + row[None, :]
            tl.store(mirror, tl.trans(d), mask=(column < tokens)[:, None] & (row < end_row)[None, :])


@triton.jit
def finish_kernel(
    partial, numbers, value, factors, batch, tiles, rate, limit, margin, gain,
    LENGTH_PARTS: tl.constexpr, LENGTH_BLOCK: tl.constexpr, CURVE: tl.constexpr, HARD: tl.constexpr,
    SELF: tl.constexpr, MEAN: tl.constexpr, SEQUENCES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The sums of a sequence's tiles → its value, and the factor k and anchor w of its gradient.

    MEAN: store the mean of the values instead; one program then finishes all sequences, SEQUENCES at a time.
    """
    total = 0.0
    part = tl.arange(0, LENGTH_BLOCK)
    for first in range(tl.program_id(0) * SEQUENCES, batch, tl.num_programs(0) * SEQUENCES):
        b = first + tl.arange(0, SEQUENCES)
        here = b < batch
        sums = tl.zeros((SEQUENCES, BLOCK), dtype=tl.float32)
        for start in range(0, tiles, BLOCK):
            t = start + tl.arange(0, BLOCK)
            source = partial + b.to(tl.int64)[:, None] * tiles + t[None, :]
            sums += tl.load(source, mask=here[:, None] & (t < tiles)[None, :], other=0.0)
        s = tl.sum(sums, axis=1)
        source = numbers + (2 + part)[:, None] * batch + b[None, :]
        length = tl.sum(tl.load(source, mask=(part < LENGTH_PARTS)[:, None] & here[None, :], other=0.0), axis=0)
        square = tl.load(numbers + b, mask=here, other=0.0)
        n = tl.load(numbers + batch + b, mask=here, other=0.0)
        shift, slope_there = anchor(length, square, n, rate, limit, margin, CURVE, HARD)
        some = n >= 2.0
        if SELF:
            pairs = tl.where(some, n * n, 1.0)
        else:
            pairs = tl.where(some, n * (n - 1.0), 1.0)
        k = 2.0 * gain
        if CURVE == DISPERSION:
            v = tl.log(s / pairs) + (shift - HALF_PI) * rate
            k = k / s
        elif CURVE == DISPERSION_COSINE:
            v = tl.log(s / pairs) + shift * rate
            k = k / s
        else:
            v = s / pairs
            k = k / pairs
        v = tl.where(some, v, 0.0)
        if MEAN:
            total += tl.sum(v, axis=0)
        else:
            tl.store(value + b, v, mask=here)
        tl.store(factors + b, tl.where(some, k, 0.0), mask=here)
        tl.store(factors + batch + b, slope_there, mask=here)
    if MEAN:
        tl.store(value, total / batch)


@triton.jit
def product_kernel(
    weights, z, norms, out, first_row, count_rows, tokens, width,
    stride_wb, stride_wn, stride_zb, stride_zn, stride_ob, first_sequence, first_z,
    PRECISION: tl.constexpr, CAST: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """G = D z where rows of z may be masked: masked rows are never read, because 0 · NaN would be NaN."""
    blocks = tl.cdiv(width, COLUMNS)
    row = (tl.program_id(0) // blocks) * ROWS + tl.arange(0, ROWS)
    column = (tl.program_id(0) % blocks) * COLUMNS + tl.arange(0, COLUMNS)
    slot = tl.program_id(1)
    b = first_sequence + slot
    inside = column < width
    left = weights + slot.to(tl.int64) * stride_wb + row.to(tl.int64)[:, None] * stride_wn
    right = z + (b - first_z).to(tl.int64) * stride_zb + column[None, :]
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for k in range(0, tokens, DEPTH):
        token = k + tl.arange(0, DEPTH)
        norm = tl.load(norms + b.to(tl.int64) * tokens + token, mask=token < tokens, other=-1.0)
        valid = ~(norm < 0.0)
        p = tl.load(left + token[None, :], mask=(row < count_rows)[:, None] & valid[None, :], other=0.0)
        q = tl.load(right + token.to(tl.int64)[:, None] * stride_zn, mask=valid[:, None] & inside[None, :], other=0.0)
        if CAST:
            p = p.to(tl.float32)
            q = q.to(tl.float32)
        total = tl.dot(p, q, total, input_precision=PRECISION)
    target = out + b.to(tl.int64) * stride_ob + (first_row + row).to(tl.int64)[:, None] * width
    tl.store(
        target + column[None, :], total.to(out.dtype.element_ty), mask=(row < count_rows)[:, None] & inside[None, :]
    )
