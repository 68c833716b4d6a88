"""A loss kernel inside the graph of a compiled block: the compiler adds the two gradients of z in a kernel of its own.

Outside of a graph, the loss's gradient is added to the block's in a pass of its own (`pending.py`), which reads z and
the other gradient and writes their sum. A compiled block already has a kernel with this traffic, for the gradient of
the norm layer with which the block begins. The loss's part, too, is computed row by row (`kernels/projection.py`): with
g_i = ∂L/∂u_i in two parts, k (w (T − u_i) + G_i/a_i), where a_i = 1/(‖z_i‖ + ε),

    ∂L/∂z_i = a_i (g_i − u_i (g_i·z_i)/‖z_i‖).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .. import geometry
from ..kernels import autocast_dtype
from .kernel import Kernel, launched


def beside(kernel: Kernel, z: Tensor) -> tuple[Tensor, Tensor]:
    """z (batch, tokens, width) for the block to read, and the loss values (batch,), as one node of a graph."""
    seen, values = _Beside.apply(z, kernel, autocast_dtype(z))
    return seen, values


class _Beside(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, kernel: Kernel, autocast: torch.dtype | None) -> tuple[Tensor, Tensor]:
        values, *saved = launched(z, None, True, autocast, *kernel.named)
        ctx.save_for_backward(z, *saved)
        ctx.eps, ctx.count_self = kernel.options["eps"], kernel.options.get("diagonal", False)
        return z.view_as(z), values

    @staticmethod
    def backward(ctx: Any, other: Tensor, upstream: Tensor) -> tuple[Tensor, None, None]:
        z, *saved = ctx.saved_tensors
        return _sum(z, saved, upstream, other, ctx.eps, ctx.count_self), None, None


def _sum(z: Tensor, saved: Sequence[Tensor], upstream: Tensor, other: Tensor, eps: float, count_self: bool) -> Tensor:
    """∂(Σ_b upstream_b L_b)/∂z + `other`, in z's dtype; `saved` is (norms, T, k) or (norms, T, (k, w), G)."""
    norms, total, factors, *remainder = saved
    norm, x, t = norms.unsqueeze(-1), z.float(), total.unsqueeze(1)
    scale = geometry.inverse(norm + eps)
    g = scale * (t if count_self else t - x * scale)
    if remainder:
        factors, w = factors
        g = g * w[:, None, None] + remainder[0].float()
    # As `geometry.unit_gradient`, of a_i g_i, plus a zero. Since the sum needs nothing of `other`, the compiler would
    # move it into an earlier kernel that reads z, and both would lose more time than this saves. A zero that depends on
    # `other` keeps it here.
    along = (g * x + 0.0 * other).sum(-1, keepdim=True) * scale / torch.where(norm == 0, 1, norm)
    k = (factors * upstream)[:, None, None]
    return (torch.where(k == 0, 0, (g - x * along) * k) + other).to(z.dtype)
