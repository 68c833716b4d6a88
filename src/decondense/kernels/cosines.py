"""Histogram and sums of the cosines of all pairs of tokens of a sequence, without an N×N matrix in memory.

For unit vectors u_i the cosine of a pair is c_ij = u_i·u_j.  A program computes one tile of the lower triangle,
turns each cosine of a pair i > j into its bin

    ⌊(c + 1) · bins/2⌋, kept within 0 … bins − 1   (the last bin is closed on both sides),

counts the tile on chip and adds the counts to those of its sequence.  Integers add up to the same in any order, so
the atomic additions give the same result in every run.  Σ (c − about)², and Σ c by the distance of the two positions,
are kept per tile and added in a fixed order.  A NaN cosine is in no bin and no sum.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from decondense.kernels import rows
from decondense.kernels.rows import INTERPRET
from decondense.kernels.tiles import below_diagonal


@triton.jit
def _cosines_kernel(
    u, about, counts, sums, tokens, width, bins, distances, stride_b, stride_n,
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
    apart = row[:, None] - column[None, :]
    pair = row_valid[:, None] & column_valid[None, :] & (apart > 0) & (c == c)
    position = tl.where(pair, (c + 1.0) * (0.5 * bins), 0.0)
    index = tl.minimum(tl.maximum(position, 0.0).to(tl.int32), bins - 1)
    inside = tl.histogram(tl.reshape(index, (TILE * TILE,)), BINS, mask=tl.reshape(pair, (TILE * TILE,)))
    bin_ = tl.arange(0, BINS)
    tl.atomic_add(counts + b.to(tl.int64) * bins + bin_, inside.to(tl.int64), mask=bin_ < bins)

    c = tl.where(pair, c, 0.0)
    sums += (b.to(tl.int64) * tl.num_programs(0) + tile) * (distances + 1)
    for k in range(distances):
        near = 1 << k
        if ((i - j + 1) * TILE > near) & ((i - j - 1) * TILE < 2 * near):  # else no pair of the tile is so far apart
            tl.store(sums + k, tl.sum(tl.sum(tl.where((apart >= near) & (apart < 2 * near), c, 0.0), axis=1), axis=0))
    c = tl.where(pair, c - tl.load(about + b), 0.0)
    tl.store(sums + distances, tl.sum(tl.sum(c * c, axis=1), axis=0))


class Cosines(NamedTuple):
    """Statistics of the pairs i > j of each sequence."""

    counts: Tensor  # (B, bins) int64, by cosine over [−1, 1]
    deviations: Tensor  # (B,) float64, Σ (c − about)²
    apart: Tensor  # (B, ⌈log₂ N⌉) float64, Σ c of the pairs with 2^k ≤ i − j < 2^(k+1)


@torch.no_grad()
def cosines(u: Tensor, about: Tensor | None = None, *, bins: int = 128) -> Cosines:
    """The histogram and sums for unit vectors u (B, N, F), N ≥ 2, and `about` (B,), float32, 0 by default.

    Products of float32 vectors are in full float32, whatever torch's own settings, because a bin's edge is sharp.
    """
    u = rows.readable(u)
    batch, tokens, width = u.shape
    size = 32 if INTERPRET else 64
    high = rows.cdiv(tokens, size)
    tiles, distances = high * (high + 1) // 2, (tokens - 1).bit_length()
    counts = torch.zeros((batch, bins), dtype=torch.int64, device=u.device)
    sums = torch.zeros((batch, tiles, distances + 1), dtype=torch.float32, device=u.device)
    about = sums.new_zeros(batch) if about is None else about
    with torch.cuda.device_of(u):
        _cosines_kernel[tiles, batch](
            u, about, counts, sums, tokens, width, bins, distances, u.stride(0), u.stride(1),
            CAST=INTERPRET and u.dtype == torch.bfloat16, BINS=max(2, rows.power_of_2(bins)), TILE=size, DEPTH=32,
        )  # fmt: skip
    whole = sums.sum(1, dtype=torch.float64)
    return Cosines(counts, whole[:, -1], whole[:, :-1])
