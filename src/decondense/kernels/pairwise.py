"""The exact pairwise losses: value and gradient in one pass over the Gram matrix.

For one sequence of n tokens that count, u_i = z_i/(‖z_i‖ + ε) = a_i z_i and c_ij = u_i·u_j, a loss is

    L = log( 1/P Σ_{i≠j} exp ℓ(c_ij) )     or     L = 1/P Σ_{i≠j} f(c_ij),      P = n(n−1),

(P = n² when the diagonal counts); `curves.py` lists ℓ and f.  The upstream gradient is one scalar per sequence, and
so is the normaliser S = Σ exp ℓ, hence with the slopes s_ij = ∂term/∂c_ij

    ∂L/∂u_i = k Σ_j s_ij u_j,     k = 2/S  or  2/P,

where Σ_j s_ij u_j needs no normaliser: the tiles of the Gram matrix give the sum of the terms and the slopes at
the same time, a second matrix product gives the gradient, and k is applied in the backward pass.

Anchored at the mean.  Let c̄ be the mean cosine, from one read of z (`rows.py`), and w = s(c̄) the slope there.
With T = Σ_j u_j,

    Σ_{j≠i} s_ij u_j = w (T − u_i) + Σ_{j≠i} (s_ij − w) u_j.

The first part is the first-order estimator's gradient, in float32; only the deviations s_ij − w are stored and
multiplied in 16 bits, so a rounding error is relative to a small correction instead of to the whole gradient
(and where tokens are condensed the whole gradient is almost parallel to u_i, which the projection removes).
The deviations are stored as  D_ij = (s_ij − w) a_i a_j: symmetric, so a tile of the lower triangle is computed
once and written twice, and (D z)_i = a_i Σ_j (s_ij − w) u_j is the remainder G_i that `projection.project` adds.

Launches: statistics and their reduction; then per chunk of sequences the tile kernel and one batched product by
cuBLAS; then a kernel that finishes the sums.  Backward: one row-wise kernel.  D lives in a buffer reused by every
chunk, at most `BUFFER_SHARE` of the bytes of z (or `SMALL_BUFFER`); when a whole sequence does not fit, the chunk is
a block of rows of one sequence and both triangles are computed.  The sum of the terms is kept per tile and added in a
fixed order: no atomics, the same bits every time.

Precision (accumulation is always float32):
    z bfloat16                     products in bfloat16, D and G stored in bfloat16
    z float16                      Gram in float16, D and G float32 (second product tf32): nothing underflows
    z float32, bf16 autocast       products on a bfloat16 copy of z, G in bfloat16; norms, T, w from float32
    z float32 otherwise            tf32 when torch allows it (or fp16 autocast), else float32
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from decondense.kernels import autocast_dtype, rows, tf32_products
from decondense.kernels.curves import CURVES, MIN_CLAMP, gain
from decondense.kernels.launch import Launch
from decondense.kernels.projection import project
from decondense.kernels.rows import INTERPRET
from decondense.kernels.tiles import finish_kernel, product_kernel, tile_kernel

SMALL_BUFFER = 32 << 20  # a problem that fits into it is one chunk: fewer launches, and products that fill the GPU
BUFFER_SHARE = 0.75


class Precision(NamedTuple):
    """How one call multiplies: see the table at the top."""

    copy: torch.dtype | None  # dtype of the copy of z the products read, None for z itself
    weights: torch.dtype
    remainder: torch.dtype
    dot: str  # tl.dot's input_precision, which matters for float32 operands only


class Tile(NamedTuple):
    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


def _precision(z: Tensor) -> Precision:
    if z.dtype == torch.bfloat16:
        return Precision(None, torch.bfloat16, torch.bfloat16, "tf32")
    if z.dtype == torch.float16:
        return Precision(None, torch.float32, torch.float32, "tf32")
    autocast = autocast_dtype(z)
    if autocast == torch.bfloat16:
        return Precision(torch.bfloat16, torch.bfloat16, torch.bfloat16, "tf32")
    tf32 = tf32_products() or autocast == torch.float16
    return Precision(None, torch.float32, torch.float32, "tf32" if tf32 and z.is_cuda else "ieee")


# The rows of a block are a multiple of this, and so of the height of any tile.
BLOCK = 128


@functools.cache
def gram_tile(itemsize: int, dot: str, device: torch.device, triangle: bool = True) -> Tile:
    """The tile of the Gram matrix, measured on an H200; a GPU with less shared memory gets fewer stages."""
    if INTERPRET:
        return Tile(32, 32, 32, 4, 1)
    if itemsize == 4 and dot == "ieee":
        return Tile(64, 64, 32, 4, 2)
    depth = 128 // itemsize
    shared = getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 0)
    large = shared >= 160 << 10
    if triangle or not large:
        return Tile(128, 128, depth, 8, 4 if large else 2)
    return Tile(128, 256, depth, 8, 3)


def _leading(tokens: int) -> int:
    """Length of a row in the buffer: a multiple of 16, so that every row is aligned."""
    return rows.cdiv(tokens, 16) * 16


class Plan(NamedTuple):
    """The chunk worked on at a time: some whole sequences, or (rows < tokens) a block of rows of one sequence."""

    sequences: int
    rows: int
    clean: bool  # read a copy of these sequences with zeros where masked


def plan(batch: int, tokens: int, width: int, *, itemsize: int, weight_itemsize: int, masked: bool, block: int) -> Plan:
    """Fit the buffers into `BUFFER_SHARE` of the bytes of z (or `SMALL_BUFFER`).

    Masked tokens must not reach cuBLAS, where 0 · NaN is NaN: it gets a clean copy if one fits beside the weights,
    else the second product is computed by `product_kernel`, which skips masked tokens but is slower.
    """
    row_bytes = _leading(tokens) * weight_itemsize
    budget = max(SMALL_BUFFER, int(BUFFER_SHARE * batch * tokens * width * itemsize))
    for clean in (True, False) if masked else (False,):
        sequences = budget // (tokens * (row_bytes + clean * width * itemsize))
        if sequences >= 1:
            chunks = rows.cdiv(batch, sequences)
            return Plan(rows.cdiv(batch, chunks), tokens, clean)
    return Plan(1, min(tokens, max(block, budget // row_bytes // block * block)), False)


def _splits(tokens: int, count_rows: int, width: int) -> int:
    """Into how many parts to cut the long sum of a row block, so that its few outputs still fill the GPU."""
    parts = 1
    while parts < 16 and tokens % (parts * 16) == 0 and count_rows * width * parts < 132 * 128 * 128:
        parts *= 2
    return parts


class Step(NamedTuple):
    """One piece of the Gram matrix: `rows` rows from `first` on of the `sequences` sequences from `sequence` on."""

    sequence: int
    sequences: int
    first: int
    rows: int
    tiles: Launch


def _multiply(
    weights: Tensor, x: Tensor, out: Tensor, step: Step, *, first_x: int, dot: str, norms: Tensor | None
) -> None:
    """out[sequences, rows] = weights · x[sequences], weights (sequences, rows, tokens).

    x begins with sequence first_x.  With `norms`, which carry the mask, `product_kernel` computes the product.
    """
    sequence, first_row = step.sequence, step.first
    sequences, count_rows, tokens = weights.shape
    width = x.shape[2]
    if norms is not None:
        t = gram_tile(weights.element_size(), dot, x.device)
        product_kernel[rows.cdiv(count_rows, t.rows) * rows.cdiv(width, t.columns), sequences](
            weights, x, norms, out, first_row, count_rows, tokens, width, weights.stride(0), weights.stride(1),
            x.stride(0), x.stride(1), out.stride(0), sequence, first_x,
            PRECISION=dot, CAST=INTERPRET or weights.dtype != x.dtype,
            ROWS=t.rows, COLUMNS=t.columns, DEPTH=t.depth, num_warps=t.warps, num_stages=t.stages,
        )  # fmt: skip
        return
    if x.shape[0] > sequences:
        x = x[sequence - first_x : sequence - first_x + sequences]
    target = out if out.shape[0] == sequences else out[sequence : sequence + sequences]
    if count_rows < out.shape[1]:
        target = target[:, first_row : first_row + count_rows]
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


class Options(NamedTuple):
    """The options of a loss, which has checked them: tau is at least `MIN_TAU`."""

    curve: str = "dispersion"
    tau: float = 1.0
    clamp: float = 0.1
    hard_clamp: bool = False
    margin: float = 0.5
    eps: float = 1e-2
    diagonal: bool = False
    mean: bool = False  # return the mean over the sequences instead of a value for each


class Work(NamedTuple):
    """The prepared work of every call with the same shape and options."""

    at_once: Plan
    tiles: int  # per sequence
    steps: list[Step]
    finish: Launch


@functools.lru_cache(rows.CASES)
def prepared(
    shape: torch.Size,
    strides: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    how: Precision,
    masked: bool,
    need_grad: bool,
    options: Options,
) -> Work:
    """The launches of a call, in order; `strides` are those of z, of which the products may read a copy."""
    curve, tau, clamp, hard_clamp, margin, eps, diagonal, mean = options
    batch, tokens, width = shape
    x_dtype = how.copy or dtype
    at_once = Plan(batch, tokens, False)
    if need_grad:
        at_once = plan(
            batch, tokens, width, itemsize=dtype.itemsize, weight_itemsize=how.weights.itemsize,
            masked=masked and how.copy is None, block=BLOCK,
        )  # fmt: skip
    sequences, high, clean = at_once
    triangle = high == tokens
    t = gram_tile(x_dtype.itemsize, how.dot, device, triangle)
    across = rows.cdiv(tokens, t.columns)
    # every block but the last holds a whole number of tile rows, so tiles are numbered block after block
    tiles = across * (across + 1) // 2 if triangle else across * rows.cdiv(tokens, t.rows)
    if clean or how.copy is not None:
        strides = (tokens * width, width, 1)
    line = _leading(tokens) if need_grad else 0
    parts = rows.cdiv(width, rows.REDUCE_WIDTH)
    rate = gain(curve, tau) if curve.startswith("dispersion") else 0.0
    limit = 1.0 - max(clamp, MIN_CLAMP)
    shared = {
        "LENGTH_PARTS": parts, "LENGTH_BLOCK": rows.power_of_2(parts), "CURVE": CURVES[curve],
        "HARD": hard_clamp, "SELF": diagonal,
    }  # fmt: skip
    steps = []
    for sequence in range(0, batch, sequences):
        some = min(sequences, batch - sequence)
        for first in range(0, tokens, high):
            end = min(first + high, tokens)
            launch = Launch(
                tile_kernel, (tiles if triangle else across * rows.cdiv(end - first, t.rows), some),
                batch, tokens, width, *strides[:2], sequence, sequence if clean else 0, first, end, high * line, line,
                tiles, across * (first // t.rows), eps, rate, limit, margin,
                **shared, TRIANGLE=triangle, MASKED=masked, EVEN=width % t.depth == 0, GRAD=need_grad,
                FINE=x_dtype == torch.float32, FAST=not INTERPRET, PRECISION=how.dot,
                CAST=INTERPRET and x_dtype == torch.bfloat16,
                ROWS=t.rows, COLUMNS=t.columns, DEPTH=t.depth, warps=t.warps, stages=t.stages,
            )  # fmt: skip
            steps.append(Step(sequence, some, first, end - first, launch))
    together = min(rows.power_of_2(batch), 32) if mean else 1
    finish = Launch(
        finish_kernel, (1 if mean else batch, 1), batch, tiles, rate, limit, margin, gain(curve, tau),
        **shared, MEAN=mean, SEQUENCES=together, BLOCK=2048 // together if mean else 1024,
    )  # fmt: skip
    return Work(at_once, tiles, steps, finish)


class Sums(NamedTuple):
    """What one pass over the Gram matrix gives, in float32 except for the remainder."""

    value: Tensor  # (B,), or () for their mean
    factors: Tensor  # (2, B)  k and w
    norms: Tensor  # (B, N)
    total: Tensor  # (B, F)  T
    remainder: Tensor | None  # (B, N, F)  G

    @property
    def saved(self) -> tuple[Tensor, ...]:
        """What a backward pass needs."""
        return () if self.remainder is None else (self.norms, self.total, self.factors, self.remainder)


def sums(z: Tensor, mask: Tensor | None, need_grad: bool, options: Options) -> Sums:
    """The loss of every sequence of z (B, N, F), and what its gradient is made of.

    mask (B, N) bool marks the tokens that count.  A sequence with fewer than two has the value 0.
    `need_grad=False` skips the second product: there is no remainder then.
    """
    z = rows.readable(z)
    batch, tokens, width = z.shape
    how = _precision(z)
    work = prepared(z.shape, z.stride(), z.dtype, z.device, how, mask is not None, need_grad, options)
    of_rows = rows.statistics(z, rows.flags(mask), eps=options.eps, copy=how.copy)
    x = z if of_rows.copy is None else of_rows.copy
    buffer = remainder = clean = None
    if need_grad:
        sequences, high, cleaned = work.at_once
        buffer = torch.empty(sequences, high, _leading(tokens), dtype=how.weights, device=z.device)
        remainder = torch.empty(batch, tokens, width, dtype=how.remainder, device=z.device)
        if cleaned:
            clean, zero = z.new_empty(sequences, tokens, width), z.new_zeros(())
    # x may hold anything where the mask is false, unless it is a copy
    unclean = mask is not None and clean is None and of_rows.copy is None
    norms = of_rows.norms if unclean or z.dtype == torch.float16 else None
    partial = torch.empty(batch, work.tiles, dtype=torch.float32, device=z.device)
    for step in work.steps:
        sequence, some, _, high, tiles = step
        chunk, first_x = x, 0
        if clean is not None and mask is not None:
            chunk, first_x = clean[:some], sequence
            part = slice(sequence, sequence + some)
            torch.where(mask[part, :, None], z[part], zero, out=chunk)
        tiles(chunk, of_rows.norms, of_rows.numbers, buffer, partial)
        if buffer is not None and remainder is not None:
            weights = buffer if buffer.shape == (some, high, tokens) else buffer[:some, :high, :tokens]
            _multiply(weights, chunk, remainder, step, first_x=first_x, dot=how.dot, norms=norms)
    value = torch.empty(() if options.mean else batch, dtype=torch.float32, device=z.device)
    factors = torch.empty(2, batch, dtype=torch.float32, device=z.device)
    work.finish(partial, of_rows.numbers, value, factors)
    return Sums(value, factors, of_rows.norms, of_rows.total, remainder)


def like(z: Tensor) -> list[Tensor]:
    """Empty tensors for what `forward` returns."""
    return rows.like(z, _precision(z).remainder)


def forward(
    z: Tensor, mask: Tensor | None = None, *, need_grad: bool = True, **options: Any
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """`sums` → the values (B,) or their mean (), float32, and what `backward` needs: nothing without `need_grad`."""
    result = sums(z, mask, need_grad, Options(**options))
    return result.value, result.saved


def backward(
    z: Tensor,
    saved: tuple[Tensor, ...],
    upstream: Tensor,
    *,
    eps: float = 1e-2,
    diagonal: bool = False,
    other: Tensor | None = None,
    **options: Any,
) -> Tensor:
    """∂(Σ_b upstream_b L_b)/∂z (B, N, F) in z's dtype, plus `other` if there is one; upstream (B,) float32.

    A scalar upstream () belongs to the mean of the L_b. `saved` comes from `forward` on the same z and options, of
    which only eps and diagonal matter here.
    """
    z, (norms, total, factors, remainder) = rows.readable(z), saved
    return project(z, norms, total, factors, upstream, eps=eps, count_self=diagonal, remainder=remainder, other=other)
