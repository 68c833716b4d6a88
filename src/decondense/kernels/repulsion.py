"""ℓ2-repel: the log-sum-exp over all pairs of −‖z_i − z_j‖²/τ, and its gradient: attention of the states to themselves.

With x_i = z_i − z̄ and t_ij = −‖x_i − x_j‖²/τ, over the tokens that count,

    ℓ_i = log Σ_{j≠i} exp t_ij,    P_ij = exp(t_ij − ℓ_i),    L = log Σ_i exp ℓ_i,    w_i = exp(ℓ_i − L),
    ∂L/∂z_i = (4/τ) w_i (o_i − x_i),    o_i = Σ_j P_ij x_j;

the rows of P are a softmax, so no maximum over all pairs is needed before the second product. Beside L stands
Σ_i ‖z_i‖², of which the loss takes a share: its gradient 2 z_i is added in the same pass.

The products are in float16, on y = f x with f = 2¹⁴/√Σ‖z_i‖²: in range for any scale of z, with three bits more than
bfloat16 has, which the exponential needs: squared distances are large beside τ. Their squares are those of y as it was
rounded, so that t_ij is exact for points displaced by the rounding. Sums are float32.

Launches: the sums of z and y by torch; then per chunk t by cuBLAS, one row-wise kernel for P and ℓ, o by cuBLAS.
Backward: one row-wise kernel.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from decondense.kernels import rows
from decondense.kernels.rows import inverse

# Products of pairs that exist at a time.
CHUNK = 1 << 25
COLUMNS = 4096


@triton.jit
def _softmax_kernel(
    products, half, factor, weights, logits, first_sequence, first_row, count_rows, tokens, tau,
    GRAD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A row of products y_i·y_j → P_i and ℓ_i. Half the squared lengths of y, infinite for tokens that do not count."""
    slot = tl.program_id(1).to(tl.int64)
    b = first_sequence + slot
    row = tl.program_id(0)
    i = first_row + row
    start = (slot * count_rows + row) * tokens
    f = tl.load(factor + b)
    rate = 2.0 / (tau * f * f)
    own = tl.load(half + b * tokens + i)
    column = tl.arange(0, BLOCK)
    top = tl.full((BLOCK,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for k in range(0, tokens, BLOCK):
        j = k + column
        there = (j < tokens) & (j != i)
        t = tl.load(products + start + j, mask=there, other=0.0) - own
        t = rate * (t - tl.load(half + b * tokens + j, mask=there, other=float("inf")))
        higher = tl.where(t > top, t, top)
        level = tl.where(higher == float("-inf"), 0.0, higher)
        total = total * tl.exp(top - level) + tl.exp(t - level)
        top = higher
    peak = tl.max(top, axis=0)
    level = tl.where(peak == float("-inf"), 0.0, peak)
    sum_ = tl.sum(total * tl.exp(top - level), axis=0)
    tl.store(logits + b * tokens + i, level + tl.log(sum_))
    if GRAD:
        scale = inverse(sum_)
        for k in range(0, tokens, BLOCK):
            j = k + column
            there = (j < tokens) & (j != i)
            t = tl.load(products + start + j, mask=there, other=0.0) - own
            t = rate * (t - tl.load(half + b * tokens + j, mask=there, other=float("inf")))
            p = tl.exp(t - level) * scale
            tl.store(weights + start + j, p.to(weights.dtype.element_ty), mask=j < tokens)


@triton.jit
def _gradient_kernel(
    z, mean, pull, share, factor, upstream, grad, batch, tokens, width, stride_b, stride_n, tau,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """(4/τ) w_i (o_i − x_i) and 2 z_i, each times its upstream gradient."""
    b = tl.program_id(1)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    present = row < tokens
    inside = column < width
    w = tl.load(share + b.to(tl.int64) * tokens + row, mask=present, other=-1.0)
    masked = w < 0.0  # false for NaN, which must stay visible
    some = (~masked)[:, None] & inside[None, :]
    where = (b.to(tl.int64) * tokens + row)[:, None] * width + column[None, :]
    source = z + b.to(tl.int64) * stride_b + row.to(tl.int64)[:, None] * stride_n + column[None, :]
    x = tl.load(source, mask=some, other=0.0).to(tl.float32)
    o = tl.load(pull + where, mask=some, other=0.0).to(tl.float32) / tl.load(factor + b)
    m = tl.load(mean + b.to(tl.int64) * width + column, mask=inside, other=0.0)
    a = tl.where(masked, 0.0, w * (4.0 / tau) * tl.load(upstream + b))
    g = a[:, None] * (o - (x - m[None, :])) + 2.0 * tl.load(upstream + batch + b) * x
    tl.store(grad + where, tl.where(some, g, 0.0).to(grad.dtype.element_ty), mask=present[:, None] & inside[None, :])


def chunks(batch: int, tokens: int) -> Iterator[tuple[slice, slice]]:
    """(sequences, rows) that are multiplied with all tokens at a time: whole sequences, or some rows of one."""
    sequences, high = max(1, CHUNK // tokens**2), max(1, min(tokens, CHUNK // tokens))
    for b in range(0, batch, sequences):
        for row in range(0, tokens, high):
            yield slice(b, min(b + sequences, batch)), slice(row, min(row + high, tokens))


def like(z: torch.Tensor) -> list[torch.Tensor]:
    """Empty tensors for what `forward` returns."""
    batch, tokens, width = z.shape
    shapes = ((2, batch), (batch, width), (batch, tokens), (batch,))
    return [*(z.new_empty(shape, dtype=torch.float32) for shape in shapes), z.new_empty(z.shape, dtype=torch.float16)]


@torch.no_grad()
def forward(
    z: torch.Tensor, mask: torch.Tensor | None = None, *, tau: float = 1.0, need_grad: bool = True
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """z (B, N, F), mask (B, N) bool → L and Σ‖z_i‖² (2, B) float32, L = 0 for fewer than two tokens, and what
    `backward` needs."""
    z, _ = rows.check(z, mask)
    batch, tokens, _ = z.shape
    kept = z if mask is None else torch.where(mask.unsqueeze(-1), z, 0)
    n = z.new_full((batch,), tokens, dtype=torch.float32) if mask is None else mask.sum(1).float()
    length = torch.linalg.vector_norm(kept, dim=(1, 2), dtype=torch.float32)
    factor = torch.where(length == 0, 1, 2.0**14 / length)
    mean = kept.sum(1, dtype=torch.float32) / n.clamp_min(1)[:, None]
    y = torch.empty(z.shape, dtype=torch.float16, device=z.device)
    torch.addcmul(-(factor[:, None] * mean).unsqueeze(1), kept, factor[:, None, None], out=y)
    half = 0.5 * torch.linalg.vector_norm(y, dim=-1, dtype=torch.float32).square()
    if mask is not None:
        y.masked_fill_(~mask.unsqueeze(-1), 0)
        half.masked_fill_(~mask, torch.inf)
    logits = torch.empty_like(half)
    pull = torch.empty_like(y) if need_grad else None
    block = min(COLUMNS, triton.next_power_of_2(tokens))
    for b, row in chunks(batch, tokens):
        products = rows.product(y[b, row], y[b].mT)
        weights = torch.empty_like(products, dtype=torch.float16) if need_grad else None
        _softmax_kernel[products.shape[1], products.shape[0]](
            products, half, factor, weights, logits, b.start, row.start, products.shape[1], tokens, tau,
            GRAD=need_grad, BLOCK=block, num_warps=max(1, block // 256),
        )  # fmt: skip
        if weights is not None and pull is not None:
            rows.product(weights, y[b], pull[b, row])
    whole = torch.logsumexp(logits, 1)
    value = torch.stack([torch.where(n >= 2, whole, 0), length.square()])
    if pull is None:
        return value, ()
    share = torch.where((n >= 2)[:, None], torch.exp(logits - whole[:, None]), 0)
    if mask is not None:
        share.masked_fill_(~mask, -1)
    return value, (mean, share, factor, pull)


@torch.no_grad()
def backward(
    z: torch.Tensor,
    mask: torch.Tensor | None,
    saved: tuple[torch.Tensor, ...],
    upstream: torch.Tensor,
    *,
    tau: float = 1.0,
) -> torch.Tensor:
    """∂(Σ_b upstream_0b L_b + upstream_1b Σ‖z_i‖²)/∂z (B, N, F) in z's dtype; upstream (2, B) float32."""
    z, _ = rows.check(z, mask)
    mean, share, factor, pull = saved
    batch, tokens, width = z.shape
    grad = torch.empty(z.shape, dtype=z.dtype, device=z.device)
    if z.numel():
        high, padded, warps = rows.row_tile(width)
        _gradient_kernel[triton.cdiv(tokens, high), batch](
            z, mean, pull, share, factor, upstream.to(torch.float32).contiguous(), grad,
            batch, tokens, width, z.stride(0), z.stride(1), tau, ROWS=high, WIDTH=padded, num_warps=warps,
        )  # fmt: skip
    return grad
