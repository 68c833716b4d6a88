"""Row-wise kernels shared by the estimators.

Notation: tokens z_i of one sequence, ‖z_i‖ their norms, a_i = 1/(‖z_i‖ + ε), u_i = a_i z_i.

`statistics` reads z once and gives

    ‖z_i‖,   T = Σ_i u_i,   Q = Σ_i ‖u_i‖²,   n = the number of tokens that count,   ‖T‖²,

from which the mean off-diagonal cosine follows: c̄ = (‖T‖² − Q) / (n(n−1)).  Every program sums its own
rows, a second small kernel adds the programs' sums in a fixed order: no atomics, the same bits every time.
On request the same pass also writes z, or u, in another dtype for the matrix products.

A masked token is marked by the norm −1; its z is never loaded, so NaN there cannot leak.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from decondense.kernels.launch import Launch

# Whether Triton's interpreter runs the kernels, on a CPU: fixed when Triton is imported.
INTERPRET: bool = triton.knobs.runtime.interpret

# Elements of z that a warp holds at a time; a program reads at least so many and at least one row (measured: smaller
# programs keep more loads in flight).
WARP = 1024
STATISTICS_TILE, STATISTICS_STAGES = 2048, 3
PROJECT_TILE = 1024
# Programs in the first pass over z: enough to fill a large GPU several times over, few enough that their
# partial sums stay small beside z.
PROGRAMS = 1056
REDUCE_WIDTH, REDUCE_PARTS = 32, 128
# How many cases, a shape with its options, have their launches cached.
CASES = 1024


class Statistics(NamedTuple):
    """What one read of z gives; float32 throughout."""

    total: Tensor  # (B, F)  T
    norms: Tensor  # (B, N)  ‖z_i‖, −1 where masked
    numbers: Tensor  # (2 + ⌈F/32⌉, B)  Q, n, and ‖T‖² in parts, one per 32 features
    copy: Tensor | None  # (B, N, F)  z or u in another dtype, zero where masked
    sizes: Tensor | None  # (B, N)  ‖u_i‖² of the rounded copy of u
    fourth: Tensor | None  # (B, parts)  Σ ‖u_i‖⁴ of the rounded copy of u

    @property
    def square(self) -> Tensor:
        """(B,)  Q"""
        return self.numbers[0]

    @property
    def number(self) -> Tensor:
        """(B,)  n"""
        return self.numbers[1]


def readable(z: Tensor) -> Tensor:
    """z with a contiguous last axis, copied only if necessary. Empty tensors, and those that kernels cannot read, never
    come here from the losses (`geometry.check_states`, `losses.options.fused`)."""
    return z if z.stride(2) == 1 else z.contiguous()


def flags(mask: Tensor | None) -> Tensor | None:
    """A mask of booleans as the kernels read it."""
    return None if mask is None else mask.contiguous().view(torch.uint8)


def like(z: Tensor, remainder: torch.dtype | None, values: int | None = None) -> list[Tensor]:
    """Empty tensors for what the `forward` of an estimator returns: its values, (B,) or (values, B), ‖z_i‖, T and one
    number per sequence; with a remainder two numbers per sequence, (2, B), and the remainder."""
    batch, tokens, width = z.shape
    numbers = (batch,) if remainder is None else (2, batch)
    shapes = [(batch,) if values is None else (values, batch), (batch, tokens), (batch, width), numbers]
    tensors = [z.new_empty(shape, dtype=torch.float32) for shape in shapes]
    return tensors if remainder is None else [*tensors, z.new_empty((batch, tokens, width), dtype=remainder)]


def product(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """The product a b of 16-bit matrices (B, ·, ·), summed in float32: returned in float32, or rounded into `out`."""
    with torch.autocast(a.device.type, enabled=False):
        if not a.is_cuda:  # the CPU has no 16-bit product with 32-bit sums
            return a.float() @ b.float() if out is None else out.copy_(a.float() @ b.float())
        return torch.bmm(a, b, out_dtype=torch.float32) if out is None else torch.bmm(a, b, out=out)


@triton.jit
def inverse(x):
    """1/x, and 0 at 0: a vector of length zero has no direction. NaN stays NaN."""
    return tl.where(x == 0.0, 0.0, 1.0 / x)


@triton.jit
def centre(x, inside, width):
    """Every row minus its mean over the `width` features that are inside."""
    x = tl.where(inside[None, :], x, 0.0)
    return tl.where(inside[None, :], x - (tl.sum(x, axis=1) / width)[:, None], 0.0)


@triton.jit
def through_unit(g, x, norm, scale, inside):
    """a_i g_i → ∂L/∂z_i: removes the part along z_i."""
    g = tl.where(inside[None, :], g, 0.0)
    along = tl.sum(g * x, axis=1) * scale / tl.where(norm == 0.0, 1.0, norm)
    return g - x * along[:, None]


@triton.jit
def _statistics_kernel(
    z, mask, norms, copy, sizes, scratch, fourths,
    tokens, width, stride_b, stride_n, rows_per_program, eps,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, HAS_MASK: tl.constexpr,
    COPY: tl.constexpr, UNIT: tl.constexpr, CENTRED: tl.constexpr, RAW: tl.constexpr, CENTRE: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(0)
    parts = tl.num_programs(0)
    b = tl.program_id(1)
    columns = tl.arange(0, WIDTH)
    inside = columns < width
    first = part * rows_per_program
    last = tl.minimum(first + rows_per_program, tokens)
    total = tl.zeros((ROWS, WIDTH), dtype=tl.float32)
    square = tl.zeros((ROWS,), dtype=tl.float32)
    count = tl.zeros((ROWS,), dtype=tl.float32)
    fourth = tl.zeros((ROWS,), dtype=tl.float32)
    for start in tl.range(first, last, ROWS, num_stages=STAGES):
        rows = start + tl.arange(0, ROWS)
        present = rows < last
        valid = present
        if HAS_MASK:
            valid = valid & (tl.load(mask + b.to(tl.int64) * tokens + rows, mask=present, other=0) != 0)
        source = z + b.to(tl.int64) * stride_b + rows.to(tl.int64)[:, None] * stride_n + columns[None, :]
        x = tl.load(source, mask=valid[:, None] & inside[None, :], other=0.0)
        x = x.to(tl.float32)
        if CENTRED:
            x = centre(x, inside, width)
        norm = tl.sqrt(tl.sum(x * x, axis=1))
        if RAW:
            scale = tl.where(valid, 1.0, 0.0)
        else:
            scale = tl.where(valid, inverse(norm + eps), 0.0)
        u = x * scale[:, None]
        if COPY:
            target = copy + (b.to(tl.int64) * tokens + rows)[:, None] * width + columns[None, :]
            if UNIT:
                rounded = u.to(copy.dtype.element_ty)
                size = rounded.to(tl.float32)
                size = tl.sum(size * size, axis=1)
                tl.store(sizes + b.to(tl.int64) * tokens + rows, size, mask=present)
                fourth += size * size
            else:
                rounded = x.to(copy.dtype.element_ty)
            tl.store(target, rounded, mask=present[:, None] & inside[None, :])
        total += u
        if CENTRE:
            length = norm
            count += scale
        else:
            length = norm * scale
            count += tl.where(valid, 1.0, 0.0)
        square += tl.where(valid, length * length, 0.0)
        tl.store(norms + b.to(tl.int64) * tokens + rows, tl.where(valid, norm, -1.0), mask=present)
    where = b * parts + part
    tl.store(scratch + where.to(tl.int64) * width + columns, tl.sum(total, axis=0), mask=inside)
    programs = tl.num_programs(1).to(tl.int64) * parts
    tl.store(scratch + programs * width + where, tl.sum(square, axis=0))
    tl.store(scratch + programs * (width + 1) + where, tl.sum(count, axis=0))
    if UNIT:
        tl.store(fourths + where, tl.sum(fourth, axis=0))


@triton.jit
def _reduce_kernel(scratch, total, numbers, parts, width, BLOCK: tl.constexpr, PARTS: tl.constexpr):
    """The partial sums of the programs → T, and the rows of `numbers`."""
    block = tl.program_id(0)
    b = tl.program_id(1)
    batch = tl.num_programs(1)
    columns = block * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    sums = tl.zeros((PARTS, BLOCK), dtype=tl.float32)
    for start in range(0, parts, PARTS):
        p = start + tl.arange(0, PARTS)
        source = scratch + (b * parts + p).to(tl.int64)[:, None] * width + columns[None, :]
        sums += tl.load(source, mask=(p < parts)[:, None] & inside[None, :], other=0.0)
    t = tl.sum(sums, axis=0)
    tl.store(total + b.to(tl.int64) * width + columns, t, mask=inside)
    tl.store(numbers + (2 + block) * batch + b, tl.sum(t * t, axis=0))
    if block == 0:
        programs = batch.to(tl.int64) * parts
        squares = scratch + programs * width + b * parts
        q = tl.zeros((PARTS,), dtype=tl.float32)
        n = tl.zeros((PARTS,), dtype=tl.float32)
        for start in range(0, parts, PARTS):
            p = start + tl.arange(0, PARTS)
            q += tl.load(squares + p, mask=p < parts, other=0.0)
            n += tl.load(squares + programs + p, mask=p < parts, other=0.0)
        tl.store(numbers + b, tl.sum(q, axis=0))
        tl.store(numbers + batch + b, tl.sum(n, axis=0))


@triton.jit
def _mean_cosine_kernel(numbers, mean, coefficient, batch, parts, ROWS: tl.constexpr, PARTS: tl.constexpr):
    b = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = b < batch
    p = tl.arange(0, PARTS)
    source = numbers + (2 + p)[:, None] * batch + b[None, :]
    t = tl.sum(tl.load(source, mask=(p < parts)[:, None] & inside[None, :], other=0.0), axis=0)
    q = tl.load(numbers + b, mask=inside, other=0.0)
    n = tl.load(numbers + batch + b, mask=inside, other=0.0)
    pairs = tl.where(n < 2.0, 1.0, n * (n - 1.0))
    tl.store(mean + b, tl.where(n < 2.0, 0.0, (t - q) / pairs), mask=inside)
    tl.store(coefficient + b, tl.where(n < 2.0, 0.0, 2.0 / pairs), mask=inside)


def cdiv(a: int, b: int) -> int:
    """⌈a/b⌉. Triton's own function takes the host several microseconds, and so does its `next_power_of_2`."""
    return -(-a // b)


def power_of_2(n: int) -> int:
    """The least power of two that is at least n."""
    return 1 << max(0, n - 1).bit_length()


def row_tile(width: int, elements: int = PROJECT_TILE) -> tuple[int, int, int]:
    """The rows per program, its padded width and its warps."""
    padded = max(16, power_of_2(width))
    return max(1, elements // padded), padded, max(elements, padded) // WARP


def statistics(
    z: Tensor,
    mask: Tensor | None,
    *,
    eps: float,
    copy: torch.dtype | None = None,
    unit: bool = False,
    centred: bool = False,
    raw: bool = False,
    centre: bool = False,
) -> Statistics:
    """One read of z (B, N, F): norms, T, Q, n, ‖T‖², and on request a copy of z (`unit`: of u) in another dtype.

    `centred` first subtracts from each token the mean over its features; `raw` uses z for u. `centre` gives Σ‖z_i‖² for
    Q and Σ a_i for n, so that T/n is the mean of z with weights a_i.
    """
    batch, tokens, width = z.shape
    read, add, parts, blocks = _reading(
        z.shape, z.stride(), z.dtype, z.device, mask is not None, eps, copy, unit, centred, raw, centre
    )
    new = functools.partial(torch.empty, dtype=torch.float32, device=z.device)
    # sizes as separate arguments: a tuple takes the host half as long again
    total, norms, numbers = new(batch, width), new(batch, tokens), new(2 + blocks, batch)
    copied = None if copy is None else torch.empty(batch, tokens, width, dtype=copy, device=z.device)
    lengths, fourth = (new(batch, tokens), new(batch, parts)) if unit else (None, None)
    scratch = new(batch * parts * (width + 2))
    read(z, mask, norms, copied, lengths, scratch, fourth)
    add(scratch, total, numbers)
    return Statistics(total, norms, numbers, copied, lengths, fourth)


@functools.lru_cache(CASES)
def _reading(
    shape: torch.Size,
    strides: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    masked: bool,
    eps: float,
    copy: torch.dtype | None,
    unit: bool,
    centred: bool,
    raw: bool,
    centre: bool,
) -> tuple[Launch, Launch, int, int]:
    """The launch that reads z, the one that adds its sums, and the numbers of programs and of parts of ‖T‖²."""
    batch, tokens, width = shape
    rows, padded, warps = row_tile(width, STATISTICS_TILE)
    per_program = rows * max(1, cdiv(tokens, rows * max(1, PROGRAMS // batch)))
    parts, blocks = cdiv(tokens, per_program), cdiv(width, REDUCE_WIDTH)
    read = Launch(
        _statistics_kernel, (parts, batch), tokens, width, *strides[:2], per_program, eps,
        ROWS=rows, WIDTH=padded, HAS_MASK=masked, COPY=copy is not None, UNIT=unit,
        CENTRED=centred, RAW=raw, CENTRE=centre, STAGES=STATISTICS_STAGES, warps=warps,
    )  # fmt: skip
    add = Launch(_reduce_kernel, (blocks, batch), parts, width, BLOCK=REDUCE_WIDTH, PARTS=REDUCE_PARTS)
    return read, add, parts, blocks


def mean_cosine(sums: Statistics) -> tuple[Tensor, Tensor]:
    """c̄ = (‖T‖² − Q)/(n(n−1)) and 2/(n(n−1)), each (B,); zeros for fewer than two tokens."""
    rows, batch = sums.numbers.shape
    device = sums.numbers.device
    mean = torch.empty(batch, dtype=torch.float32, device=device)
    coefficient = torch.empty(batch, dtype=torch.float32, device=device)
    _mean(batch, rows - 2, device)(sums.numbers, mean, coefficient)
    return mean, coefficient


@functools.lru_cache(CASES)
def _mean(batch: int, parts: int, device: torch.device) -> Launch:
    rows = 16
    return Launch(_mean_cosine_kernel, (cdiv(batch, rows), 1), batch, parts, ROWS=rows, PARTS=power_of_2(parts))
