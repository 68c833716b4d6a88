"""Histogram of the cosines of all pairs of tokens of a sequence, without an N×N matrix in memory.

For unit vectors u_i the cosine of a pair is c_ij = u_i·u_j.  A program computes one tile of the lower triangle,
turns each cosine of a pair i > j into its bin

    ⌊(c + 1) · bins/2⌋, kept within 0 … bins − 1   (the last bin is closed on both sides),

counts the tile on chip and adds the counts to those of its sequence.  Whole numbers add up to the same in any
order, so the atomic additions do not make the result depend on the run.  A cosine that is not a number is in no bin.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from decondense.kernels import rows
from decondense.kernels.rows import INTERPRET
from decondense.kernels.tiles import below_diagonal


@triton.jit
def _histogram_kernel(
    u, counts, tokens, width, bins, stride_b, stride_n,
    CAST: tl.constexpr, BINS: tl.constexpr, TILE: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    b = tl.program_id(1)
    i, j = below_diagonal(tile)
    row = i * TILE + tl.arange(0, TILE)
    column = j * TILE + tl.arange(0, TILE)
    row_valid = row < tokens
    column_valid = column < tokens
    depth = tl.arange(0, DEPTH)
    start = u + b.to(tl.int64) * stride_b
    left = start + row.to(tl.int64)[:, None] * stride_n + depth[None, :]
    right = start + column.to(tl.int64)[None, :] * stride_n + depth[:, None]
    c = tl.zeros((TILE, TILE), dtype=tl.float32)
    for k in range(0, width, DEPTH):
        here = depth < width - k
        p = tl.load(left + k, mask=row_valid[:, None] & here[None, :], other=0.0)
        q = tl.load(right + k, mask=column_valid[None, :] & here[:, None], other=0.0)
        if CAST:
            p = p.to(tl.float32)
            q = q.to(tl.float32)
        c = tl.dot(p, q, c, input_precision="ieee")
    pair = row_valid[:, None] & column_valid[None, :] & (row[:, None] > column[None, :]) & (c == c)
    position = tl.where(pair, (c + 1.0) * (0.5 * bins), 0.0)
    index = tl.minimum(tl.maximum(position, 0.0).to(tl.int32), bins - 1)
    inside = tl.histogram(tl.reshape(index, (TILE * TILE,)), BINS, mask=tl.reshape(pair, (TILE * TILE,)))
    bin_ = tl.arange(0, BINS)
    tl.atomic_add(counts + b.to(tl.int64) * bins + bin_, inside.to(tl.int64), mask=bin_ < bins)


@torch.no_grad()
def cosine_histogram(u: Tensor, *, bins: int = 128) -> Tensor:
    """u (B, N, F) unit vectors → (B, bins) int64: pairs i < j by cosine over [−1, 1].

    Products of float32 vectors are full float32, whatever torch's settings for its own: a bin's edge is sharp.
    """
    u = rows.readable(u)
    batch, tokens, width = u.shape
    counts = torch.zeros((batch, bins), dtype=torch.int64, device=u.device)
    size = 32 if INTERPRET else 64
    high = rows.cdiv(tokens, size)
    with torch.cuda.device_of(u):
        _histogram_kernel[high * (high + 1) // 2, batch](
            u, counts, tokens, width, bins, u.stride(0), u.stride(1),
            CAST=INTERPRET and u.dtype == torch.bfloat16, BINS=max(2, rows.power_of_2(bins)), TILE=size, DEPTH=32,
        )  # fmt: skip
    return counts
