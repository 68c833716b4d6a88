"""Eigenvalues of many symmetric matrices at once, in float64 throughout, with one program per matrix.

A is made tridiagonal, T = QᵀAQ, by reflections H = I − uuᵀ, ‖u‖² = 2, one for each column k, which zeroes that column
below the entry next to the diagonal. With p = Au and w = p − ½(uᵀp)u

    HAH = A − uwᵀ − wuᵀ.

Most of the time goes into reading A for every p. Writing A as often would take as long again, so A stays unchanged for
a panel of columns; the products, and the next columns, are corrected for the panel's reflections so far, whose u and w
are the rows of U and W:

    p = A₀u − Uᵀ(Wu) − Wᵀ(Uu).

Then one matrix product, A − UᵀW − WᵀU, updates the part of A behind the panel.

The eigenvalues of T, with diagonal d and off-diagonal e, are found by bisection, each in a lane of its own: the number
of negative pivots q_i = d_i − x − e²_{i−1}/q_{i−1} is the number of eigenvalues below x.

A is first divided by its largest entry, so that no square leaves the range of float64.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from decondense.kernels.launch import Launch
from decondense.kernels.rows import CASES, cdiv, power_of_2

# The largest n: a row of the matrix must fit into the registers of one program.
LIMIT = 2048
PANEL = 16  # columns
# Elements of A, U or W that a program loads at a time, the least padded width of a row, and the pipeline stages: three
# tiles of A are requested in advance, because the one program on a multiprocessor must keep the memory busy.
TILE, NARROWEST, STAGES, WARPS = 4096, 128, 4, 8
# Eigenvalues per program, and its warps. After so many halvings the interval is below the resolution of ‖A‖.
LANES, LANE_WARPS, HALVINGS = 128, 4, 56
# For a matrix whose largest entry is 1: a column with a smaller sum of squares, or a smaller pivot, counts as zero.
NOTHING = tl.constexpr(1e-280)


@triton.jit(do_not_specialize=["number"])
def _panel_kernel(
    a, panel, diagonal, squares, n, number,
    PANEL: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Reduce panel number `number` of columns → their d, and e², stored from the next column on; the rows of `panel`
    become U, W and U again.

    Threads of a program read what other threads have written to memory, after the next barrier. A is not written.
    """
    b = tl.program_id(0).to(tl.int64)
    first = number * PANEL
    a += b * n * n + first * (n + 1)
    panel += b * 3 * PANEL * n
    diagonal += b * n + first
    squares += b * n + first
    left = n - first
    c = tl.arange(0, BLOCK)
    inside = c < left
    row = tl.arange(0, ROWS)
    for k in range(tl.minimum(left, PANEL)):
        sums = tl.zeros((ROWS, BLOCK), dtype=tl.float64)
        for top in range(0, k, ROWS):
            j = top + row
            there = panel + j[:, None] * n + c[None, :]
            u = tl.load(there, mask=(j < k)[:, None] & inside[None, :], other=0.0)
            w = tl.load(there + PANEL * n, mask=(j < k)[:, None] & inside[None, :], other=0.0)
            u_k = tl.load(panel + j * n + k, mask=j < k, other=0.0)
            w_k = tl.load(panel + (PANEL + j) * n + k, mask=j < k, other=0.0)
            sums += u * w_k[:, None] + w * u_k[:, None]
        x = tl.load(a + k * n + c, mask=inside, other=0.0) - tl.sum(sums, axis=0)
        tl.store(diagonal + c, x, mask=c == k)

        head = tl.sum(tl.where(c == k + 1, x, 0.0), axis=0)
        tail = tl.where(c > k + 1, x, 0.0)
        square = tl.sum(tail * tail, axis=0)
        some = square > NOTHING  # else the column is tridiagonal already
        norm = tl.sqrt(head * head + square)
        e = tl.where(head < 0.0, norm, -norm)
        size = tl.where(some, tl.sqrt(norm * tl.abs(head - e)), 1.0)
        new = tl.where(some, tl.where(c == k + 1, head - e, tail) / size, 0.0)
        e = tl.where(some, e, head)
        tl.store(squares + k + 1, e * e, mask=k + 1 < left)
        tl.store(panel + k * n + c, new, mask=inside)
        tl.store(panel + (2 * PANEL + k) * n + c, new, mask=inside)
        tl.debug_barrier()

        sums = tl.zeros((ROWS, BLOCK), dtype=tl.float64)
        for top in range(0, k, ROWS):
            j = top + row
            there = panel + j[:, None] * n + c[None, :]
            u = tl.load(there, mask=(j < k)[:, None] & inside[None, :], other=0.0)
            w = tl.load(there + PANEL * n, mask=(j < k)[:, None] & inside[None, :], other=0.0)
            along_u = tl.sum(u * new[None, :], axis=1)
            along_w = tl.sum(w * new[None, :], axis=1)
            sums -= u * along_w[:, None] + w * along_u[:, None]
        for top in tl.range(k + 1, left, ROWS, num_stages=STAGES):
            r = top + row
            present = r < left
            factor = tl.load(panel + k * n + r, mask=present, other=0.0)
            part = tl.load(a + r[:, None] * n + c[None, :], mask=present[:, None] & inside[None, :], other=0.0)
            sums += factor[:, None] * part
        p = tl.where(c > k, tl.sum(sums, axis=0), 0.0)
        p -= 0.5 * tl.sum(p * new, axis=0) * new
        tl.store(panel + (PANEL + k) * n + c, p, mask=inside)
        tl.debug_barrier()


@triton.jit
def _bisection_kernel(
    diagonal, squares, found, n, stride,
    HALVINGS: tl.constexpr, BLOCK: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """d and e² (0 before the first d) → eigenvalues: lane number k finds the one with k eigenvalues below it."""
    b = tl.program_id(0).to(tl.int64)
    number = tl.program_id(1) * LANES + tl.arange(0, LANES)
    diagonal += b * stride
    squares += b * stride
    c = tl.arange(0, BLOCK)
    d = tl.load(diagonal + c, mask=c < n, other=0.0)
    before = tl.sqrt(tl.load(squares + c, mask=c < n, other=0.0))
    after = tl.sqrt(tl.load(squares + c + 1, mask=c + 1 < n, other=0.0))
    high = tl.zeros((LANES,), dtype=tl.float64) + tl.max(tl.abs(d) + before + after, axis=0)
    low = -high
    for _ in range(HALVINGS):
        x = 0.5 * (low + high)
        q = tl.full((LANES,), 1.0, dtype=tl.float64)
        below = tl.zeros((LANES,), dtype=tl.int32)
        for i in range(n):
            q = tl.load(diagonal + i) - x - tl.load(squares + i) / q
            q = tl.where(tl.abs(q) < NOTHING, -NOTHING, q)
            below += q < 0.0
        high = tl.where(below > number, x, high)
        low = tl.where(below > number, low, x)
    tl.store(found + b * n + number, 0.5 * (low + high), mask=number < n)


@torch.no_grad()
def eigenvalues(gram: Tensor) -> Tensor:
    """gram (…, n, n) float64, symmetric, n ≤ LIMIT → eigenvalues (…, n) ascending, not finite if the matrix is not."""
    n = gram.shape[-1]
    if gram.numel() == 0:
        return gram.new_empty(gram.shape[:-1])
    matrices = gram.reshape(-1, n, n)
    largest = torch.linalg.vector_norm(matrices, torch.inf, (1, 2), keepdim=True)
    largest += largest == 0
    batch, padded = len(matrices), cdiv(n, 16) * 16  # rows aligned for wide loads
    a = gram.new_zeros(batch, padded, padded)  # the padding stays zero: its d and e² follow the real ones
    torch.div(matrices, largest, out=a[:, :n, :n])
    panels, bisection = _launches(batch, n, padded, a.device)
    panel = a.new_empty(batch, 3 * PANEL, padded)
    diagonal, squares = a.new_zeros(2, batch, padded)
    found = a.new_empty(batch, n)
    with torch.cuda.device_of(gram):
        for number, launch in enumerate(panels, 1):
            launch(a, panel, diagonal, squares)
            done = number * PANEL
            if done < n:
                behind = panel[:, :, PANEL : PANEL + padded - done]  # columns of `panel` count from the panel's first
                a[:, done:, done:].baddbmm_(behind[:, : 2 * PANEL].mT, behind[:, PANEL:], alpha=-1)
        bisection(diagonal, squares, found)
    return found.mul_(largest[:, 0]).view(gram.shape[:-1])


@functools.lru_cache(CASES)
def _launches(batch: int, n: int, padded: int, device: torch.device) -> tuple[list[Launch], Launch]:
    """The launches of the panels, and of the bisection."""
    panels = []
    for number in range(cdiv(n, PANEL)):
        block = max(NARROWEST, power_of_2(padded - number * PANEL))
        constants = {"PANEL": PANEL, "BLOCK": block, "ROWS": TILE // block, "STAGES": STAGES}
        panels.append(Launch(_panel_kernel, (batch, 1), padded, number, warps=WARPS, **constants))
    sizes = {"HALVINGS": HALVINGS, "BLOCK": power_of_2(n), "LANES": LANES}
    return panels, Launch(_bisection_kernel, (batch, cdiv(n, LANES)), n, padded, warps=LANE_WARPS, **sizes)
