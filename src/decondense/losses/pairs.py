"""Sums over all pairs of tokens of a sequence, value and gradient in one pass over tiles of the Gram matrix.

Every loss here has one number per sequence, so its upstream gradient is one number per sequence too, and the
gradient can be computed beside the value and scaled later. For a loss of the cosines c_ij = u_i·u_j,

    S = Σ_ij f(c_ij),   ∂S/∂u_i = 2 Σ_j f'(c_ij) u_j     (the Gram matrix is symmetric),

a tile of rows needs two matrix products and is then discarded: no N × N matrix exists at any time. Only tiles on and
above the diagonal are visited; each also stands for its mirror image.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from .. import geometry
from .kernel import AVERAGING, Kernel
from .pending import computed


class Routine(Protocol):
    """One way of computing a loss: a value per sequence, and later the gradient for a given upstream (batch,)."""

    def forward(self, z: Tensor, mask: Tensor | None, need_gradient: bool) -> tuple[Tensor, tuple[Tensor, ...]]: ...

    def backward(self, z: Tensor, mask: Tensor | None, saved: tuple[Tensor, ...], upstream: Tensor) -> Tensor: ...


class _Apply(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, mask: Tensor | None, routine: Routine) -> Tensor:
        value, saved = routine.forward(z, mask, ctx.needs_input_grad[0])
        ctx.save_for_backward(z, mask, *saved)
        ctx.routine = routine
        return value

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        z, mask, *saved = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return ctx.routine.backward(z, mask, tuple(saved), upstream), None, None
        with torch.no_grad():
            gradient: Tensor = ctx.routine.backward(z, mask, tuple(saved), upstream)
        # create_graph=True: the gradient depends on z, but we have no formula for its derivative
        return _Once.apply(computed(gradient), z), None, None


class _Once(torch.autograd.Function):
    """A gradient that cannot be differentiated. torch's `once_differentiable` refuses only if the upstream gradient
    requires grad, which that of a loss does not."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, z: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[None, None]:
        raise RuntimeError(
            "the gradient of a loss of decondense cannot be differentiated again: leave the loss out of what is "
            "differentiated twice."
        )


def apply(routine: Routine, z: Tensor, mask: Tensor | None, *, mean: bool = False) -> Tensor:
    """The values (batch,) of a routine, or their mean, with its gradient attached.

    Kernels in `AVERAGING` take the mean themselves: another operation and its autograd step would cost the host more.
    """
    if isinstance(routine, Kernel):
        if torch.compiler.is_compiling():
            values = routine.traced(z, mask)
            return values.mean() if mean else values
        if mean and routine.name in AVERAGING:
            routine, mean = Kernel(routine.name, **routine.options, mean=True), False
        if torch.is_grad_enabled() and routine.waits(z):
            z.register_hook(computed)
    values = _Apply.apply(z, mask, routine)
    return values.mean() if mean else values


class Stored:
    """Base of routines that compute the gradient together with the value; the backward pass only scales it."""

    def sums(self, z: Tensor, weight: Tensor | None, n: Tensor, need_gradient: bool) -> tuple[Tensor, Tensor | None]:
        """The values (batch,) and their gradient, from what `geometry.keep` returns: z, the mask as numbers, and n."""
        raise NotImplementedError

    def forward(self, z: Tensor, mask: Tensor | None, need_gradient: bool) -> tuple[Tensor, tuple[Tensor, ...]]:
        with full_precision(z.device):
            value, gradient = self.sums(*geometry.keep(z, mask), need_gradient)
        if gradient is None:
            return value, ()
        # Stored in the dtype of z, except float16, in which gradients that are not scaled yet would underflow.
        return value, (gradient if z.dtype == torch.float16 else gradient.to(z.dtype),)

    def backward(self, z: Tensor, mask: Tensor | None, saved: tuple[Tensor, ...], upstream: Tensor) -> Tensor:
        (gradient,) = saved
        return (gradient * upstream[:, None, None]).to(z.dtype)


def full_precision(device: torch.device) -> torch.autocast:
    """Switch autocast off, which would compute the products in bfloat16."""
    return torch.autocast(device_type=device.type, enabled=False)


def tiles(batch: int, tokens: int, device: torch.device) -> Iterator[tuple[slice, slice]]:
    """(sequences, rows) of each tile: small enough for the cache on a CPU, large enough to fill a GPU."""
    area = 2**19 if device.type == "cpu" else 2**25
    group = min(batch, max(1, area // tokens**2))
    rows = min(tokens, 256 if device.type == "cpu" else 2048, max(32, area // (group * tokens)))
    for b in range(0, batch, group):
        for r in range(0, tokens, rows):
            yield slice(b, b + group), slice(r, min(r + rows, tokens))


@dataclass(frozen=True)
class CosinePairs(Stored):
    """log mean f(c_ij), or mean f(c_ij), over the pairs of each sequence: O(N²F) time, O(NF) memory.

    `curve` returns f and f' of a tile of cosines, which it may overwrite.
    """

    curve: Callable[[Tensor], tuple[Tensor, Tensor]]
    log: bool
    eps: float
    diagonal: bool = False

    def sums(self, z: Tensor, weight: Tensor | None, n: Tensor, need_gradient: bool) -> tuple[Tensor, Tensor | None]:
        u, r = geometry.unit(z, self.eps)
        total, gradient = self._sum(u, weight, need_gradient)
        total, n = self.summed(total, n)
        count = geometry.pair_count(n, diagonal=self.diagonal)
        mean = total / count
        value = geometry.enough(n, torch.log(mean) if self.log else mean)
        if gradient is None:
            return value, None
        scale = geometry.enough(n, 2 / (total if self.log else count))
        return value, geometry.unit_gradient(u, r, gradient, self.eps).mul_(scale[:, None, None])

    def summed(self, total: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
        """Σ f and n over the whole sequence: complete already, unless a subclass splits sequences."""
        return total, n

    def _sum(self, u: Tensor, weight: Tensor | None, need_gradient: bool) -> tuple[Tensor, Tensor | None]:
        """Σ f(c_ij) (batch,) and Σ_j f'(c_ij) u_j (batch, tokens, width)."""
        batch, tokens, _ = u.shape
        gradient = torch.zeros_like(u) if need_gradient else None
        parts: list[Tensor] = []  # summed at the end, since adding tile after tile would lose digits
        groups: list[Tensor] = []
        for b, rows in tiles(batch, tokens, u.device):
            width = rows.stop - rows.start
            left, right = u[b, rows], u[b, rows.start :]
            f, slope = self.curve(left @ right.mT)
            if weight is not None:
                pairs = weight[b, rows, None] * weight[b, None, rows.start :]
                f, slope = f * pairs, slope * pairs
            if not self.diagonal:
                f.diagonal(dim1=-2, dim2=-1).zero_()
                slope.diagonal(dim1=-2, dim2=-1).zero_()
            parts.append(2 * f.sum((-2, -1)) - f[..., :width].sum((-2, -1)))
            if rows.stop == tokens:
                groups.append(torch.stack(parts).sum(0))
                parts.clear()
            if gradient is not None:
                gradient[b, rows].baddbmm_(slope, right)
                gradient[b, rows.stop :].baddbmm_(slope[..., width:].mT, left)
        return torch.cat(groups), gradient
