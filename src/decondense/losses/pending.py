"""A gradient that is computed only when autograd adds it to another one, so that a single pass writes the sum.

A hidden state is read by the next layer and by the loss, and autograd adds the two gradients: it reads both and writes
their sum, as much traffic as the first-order loss itself. So a kernel that can add gives autograd a placeholder for its
gradient, a tensor without memory. When the placeholder is added to another gradient, the kernel computes the sum. Any
other operation computes the gradient itself; the placeholder then keeps it, since a hook may change it in place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only


class Pending(Tensor):
    """A placeholder for the gradient of z: `compute(None)` computes it, `compute(other)` its sum with another one."""

    compute: Callable[[Tensor | None], Tensor]
    known: Tensor | None

    @staticmethod
    def __new__(cls, z: Tensor, compute: Callable[[Tensor | None], Tensor]) -> Pending:
        pending: Pending = torch.Tensor._make_wrapper_subclass(cls, z.shape, dtype=z.dtype, device=z.device)
        pending.compute, pending.known = compute, None
        return pending

    def whole(self) -> Tensor:
        """The gradient itself, computed once."""
        if self.known is None:
            self.known = self.compute(None)
        return self.known

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.aten.add.Tensor and not kwargs:
            pending, other = args if isinstance(args[0], Pending) else reversed(args)
            alike = type(other) is Tensor and (other.shape, other.dtype) == (pending.shape, pending.dtype)
            if alike and pending.known is None:
                return pending.compute(other)
        args, kwargs = tree_map_only(Pending, Pending.whole, (args, kwargs or {}))
        return func(*args, **kwargs)


def computed(gradient: Tensor) -> Tensor:
    """The gradient itself, in place of a placeholder. Also used as a hook of z, for the case that no other gradient was
    added: whatever reads it next may need its memory."""
    return gradient.whole() if isinstance(gradient, Pending) else gradient
