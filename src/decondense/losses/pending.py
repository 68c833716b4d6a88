"""A gradient that waits for the one it will be added to, so that both become one in a single pass over the states.

A hidden state is read by the next layer and by the loss, and autograd adds the two gradients: it reads both and writes
their sum, as much traffic as the first-order loss itself. So a kernel that can add gives autograd a promise of its
gradient, a tensor without memory. When that is added to another gradient, the kernel computes the sum; whatever else is
done with it is done with the gradient itself, which it then keeps: a hook may change it in place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only


class Pending(Tensor):
    """The gradient of z as `compute(None)`, and its sum with another as `compute(other)`."""

    compute: Callable[[Tensor | None], Tensor]
    known: Tensor | None

    @staticmethod
    def __new__(cls, z: Tensor, compute: Callable[[Tensor | None], Tensor]) -> Pending:
        pending: Pending = torch.Tensor._make_wrapper_subclass(cls, z.shape, dtype=z.dtype, device=z.device)
        pending.compute, pending.known = compute, None
        return pending

    def whole(self) -> Tensor:
        """The gradient by itself."""
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
    """The gradient itself. Also a hook of z, for where no other came to be added: what reads it next may look at its
    memory."""
    return gradient.whole() if isinstance(gradient, Pending) else gradient
