"""From the gradient with respect to the unit vectors to that with respect to the tokens (notation: `rows.py`).

With g_i = ∂L/∂u_i

    ∂L/∂z_i = a_i (g_i − u_i (g_i·z_i)/‖z_i‖),

because ∂u/∂z = a (I − u zᵀ/‖z‖).  `project` takes a gradient in two parts,

    g_i = k (w (T − u_i) + G_i / a_i),

the first-order part (w a scalar per sequence) and, for the exact losses, a stored remainder G whose rows
already carry the factor a_i.  For a zero vector z/‖z‖ counts as 0, like the gradient of torch's norm at zero.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from decondense.kernels.launch import Launch
from decondense.kernels.rows import CASES, cdiv, inverse, row_tile, through_unit


@triton.jit
def _project_kernel(
    z, norms, total, remainder, factors, upstream, other, grad,
    tokens, width, stride_b, stride_n, stride_u, share, eps,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, REMAINDER: tl.constexpr, SELF: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
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
    t = tl.load(total + b.to(tl.int64) * width + columns, mask=inside, other=0.0)
    scale = inverse(norm + eps)
    # a_i g_i, up to the factor k
    if SELF:
        g = scale[:, None] * t[None, :]
    else:
        g = scale[:, None] * (t[None, :] - x * scale[:, None])
    k = tl.load(factors + b) * (tl.load(upstream + b * stride_u).to(tl.float32) * share)
    if REMAINDER:
        w = tl.load(factors + tl.num_programs(1) + b)
        g = g * w + tl.load(remainder + where, mask=some, other=0.0).to(tl.float32)
    g = through_unit(g, x, norm, scale, inside)
    k = tl.where(masked, 0.0, k)[:, None]
    g = tl.where(k == 0.0, 0.0, g * k)
    there = present[:, None] & inside[None, :]
    if ADD:
        g += tl.load(other + where, mask=there, other=0.0).to(tl.float32)
    tl.store(grad + where, g.to(grad.dtype.element_ty), mask=there)


def project(
    z: Tensor,
    norms: Tensor,
    total: Tensor,
    factors: Tensor,
    upstream: Tensor,
    *,
    eps: float,
    count_self: bool = False,
    remainder: Tensor | None = None,
    other: Tensor | None = None,
) -> Tensor:
    """∂L/∂z from g_i = k (w (T − u_i) + G_i/a_i): one read of z (and of G), one write.

    k is `factors` (B,) times `upstream`, (B,) or () for the mean over the sequences, and w is 1. With a remainder G
    (B, N, F), `factors` is (2, B) with w in the second row. `count_self` keeps the token itself: T instead of T − u_i.
    `other` is a gradient of the same shape and dtype that is added in the same pass.
    """
    grad = torch.empty_like(z, memory_format=torch.contiguous_format)
    other = None if other is None else other.contiguous()
    rest = None if remainder is None else remainder.dtype
    launch = _projection(
        z.shape, z.stride(), z.dtype, z.device, rest, upstream.stride(), upstream.dtype, eps, count_self,
        other is not None,
    )  # fmt: skip
    launch(z, norms, total, remainder, factors, upstream, other, grad)
    return grad


@functools.lru_cache(CASES)
def _projection(
    shape: torch.Size,
    strides: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    remainder: torch.dtype | None,
    stride_u: tuple[int, ...],
    upstream: torch.dtype,
    eps: float,
    count_self: bool,
    add: bool,
) -> Launch:
    batch, tokens, width = shape
    rows, padded, warps = row_tile(width)
    return Launch(
        _project_kernel, (cdiv(tokens, rows), batch), tokens, width, *strides[:2],
        *((stride_u[0], 1.0) if stride_u else (0, 1 / batch)), eps,
        ROWS=rows, WIDTH=padded, REMAINDER=remainder is not None, SELF=count_self, ADD=add, warps=warps,
    )  # fmt: skip
