"""The kernels' losses of many layers in one step of autograd, their gradients added where they are computed.

Two things cost more than the sums over the tokens when a loss is put on every layer of a model. One is the arithmetic
of a few numbers per sequence: here all layers give their numbers at once, (layers, batch), and a curve is applied to
them together. The other is an addition. The states of a layer have a gradient from the layers above, and autograd
adds the loss's to it: read, read, write, as much as the loss itself. A hook on the states sees the gradient from
above and may return another one, so the row-wise kernel that ends the loss's backward pass takes it as an addend and
writes the sum. The loss's own gradient is never in memory, for no layer.

That needs a gradient from above. It is there if the states of the next chosen layer are computed from these, which
the graph of autograd tells; the last layer, and any other that does not feed the next (packed documents, a compiled
model, whose layers are one node), returns its gradient the usual way. The hook runs after the backward pass of the
loss, because the states are an input of it. In `torch.autograd.grad` and `backward(inputs=…)` nothing rides: there the
states may be among the inputs, and autograd does not show a hook's result to all of those.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Protocol

import torch
from torch import Tensor

from .pairs import FusedPairs


class Routine(Protocol):
    """One way of computing numbers per sequence for states of one shape, and later their gradient."""

    def forward(
        self, states: Sequence[Tensor], mask: Tensor | None, need_gradient: Sequence[bool]
    ) -> tuple[Tensor, list[tuple[Tensor, ...]]]:
        """(layers, …, batch), and what the backward pass of each layer needs."""

    def backward(
        self, z: Tensor, mask: Tensor | None, saved: tuple[Tensor, ...], upstream: Tensor, addend: Tensor | None = None
    ) -> Tensor:
        """The gradient of one layer's states, plus the addend."""


@dataclass(frozen=True)
class MeanCosines:
    """c̄: (layers, batch)."""

    eps: float

    def forward(
        self, states: Sequence[Tensor], mask: Tensor | None, need_gradient: Sequence[bool]
    ) -> tuple[Tensor, list[tuple[Tensor, ...]]]:
        from ..kernels import first_order

        return first_order.mean_cosines(states, mask, eps=self.eps)

    def backward(
        self, z: Tensor, mask: Tensor | None, saved: tuple[Tensor, ...], upstream: Tensor, addend: Tensor | None = None
    ) -> Tensor:
        from ..kernels import first_order

        return first_order.mean_cosine_backward(z, mask, saved, upstream, eps=self.eps, addend=addend)


@dataclass(frozen=True)
class TwoMoments:
    """The means of c and of c²: (layers, 2, batch)."""

    eps: float

    def forward(
        self, states: Sequence[Tensor], mask: Tensor | None, need_gradient: Sequence[bool]
    ) -> tuple[Tensor, list[tuple[Tensor, ...]]]:
        from ..kernels import second_order

        found = [second_order.forward(z, mask, eps=self.eps, need_grad=g) for z, g in zip(states, need_gradient)]
        return torch.stack([value for value, _ in found]), [saved for _, saved in found]

    def backward(
        self, z: Tensor, mask: Tensor | None, saved: tuple[Tensor, ...], upstream: Tensor, addend: Tensor | None = None
    ) -> Tensor:
        from ..kernels import second_order

        return second_order.backward(z, mask, saved, upstream, eps=self.eps, addend=addend)


@dataclass(frozen=True)
class Pairs:
    """A loss over all pairs: (layers, batch)."""

    loss: FusedPairs

    def forward(
        self, states: Sequence[Tensor], mask: Tensor | None, need_gradient: Sequence[bool]
    ) -> tuple[Tensor, list[tuple[Tensor, ...]]]:
        found = [self.loss.forward(z, mask, g) for z, g in zip(states, need_gradient)]
        return torch.stack([value for value, _ in found]), [saved for _, saved in found]

    def backward(
        self, z: Tensor, mask: Tensor | None, saved: tuple[Tensor, ...], upstream: Tensor, addend: Tensor | None = None
    ) -> Tensor:
        return self.loss.backward(z, mask, saved, upstream, addend)


def apply(routine: Routine, states: Sequence[Tensor], mask: Tensor | None) -> Tensor:
    """What a routine gives for states of one shape on one device, with its gradient attached: (layers, …, batch)."""
    riders: list[_Rider | None] = [None] * len(states)
    if torch.is_grad_enabled():
        for k, (below, above) in enumerate(pairwise(states)):
            if feeds(below, above):
                riders[k] = rider = _Rider()
                below.register_hook(rider)
    whole = torch.empty((), device=states[0].device, requires_grad=True) if any(riders) else None
    return _Layers.apply(routine, riders, whole, mask, *states)


def alike(states: Sequence[Tensor]) -> bool:
    """Whether the states can go through `apply` together."""
    return all(z.shape == states[0].shape and z.device == states[0].device for z in states)


class _Rider:
    """A hook on the states of one layer: adds the loss's gradient to the one that comes down to them.

    It holds its work from the backward pass of the loss until the hook runs in the same pass over the graph, and
    nothing that refers back to the graph.
    """

    def __init__(self) -> None:
        self._work: Callable[[Tensor], Tensor] | None = None
        self._task = -1

    def load(self, work: Callable[[Tensor], Tensor]) -> None:
        self._work, self._task = work, torch._C._current_graph_task_id()

    def __call__(self, gradient: Tensor | None) -> Tensor | None:
        work, self._work = self._work, None
        if work is None or self._task != torch._C._current_graph_task_id():
            return None  # a backward pass in which the loss has no part
        if gradient is None:
            raise RuntimeError(
                "the states of a layer must have a gradient from the layers above, got none: a function between "
                "these layers returns no gradient for its input; leave this layer out, or use backend='torch'."
            )
        with torch.no_grad():
            return work(gradient)


class _Layers(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        routine: Routine,
        riders: list[_Rider | None],
        whole: Tensor | None,
        mask: Tensor | None,
        *states: Tensor,
    ) -> Tensor:
        value, saved = routine.forward(states, mask, ctx.needs_input_grad[4:])
        ctx.save_for_backward(mask, *states, *(part for parts in saved for part in parts))
        ctx.routine, ctx.riders = routine, riders
        ctx.sizes = [len(parts) for parts in saved]
        return value

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Any, ...]:
        # A backward pass through the whole graph reaches every leaf, also `whole`, which nobody can ask for. Where the
        # graph of the backward pass itself is recorded, autograd must see the sum.
        ctx.ride = any(ctx.riders) and not torch.is_grad_enabled()
        ctx.ride = ctx.ride and torch._C._will_engine_execute_node(ctx.next_functions[0][0])
        return _Layers._gradients(ctx, upstream)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def _gradients(ctx: Any, upstream: Tensor) -> tuple[Any, ...]:
        mask, *tensors = ctx.saved_tensors
        layers = len(ctx.sizes)
        rest = iter(tensors[layers:])
        gradients: list[Tensor | None] = []
        for z, size, rider, above, need in zip(
            tensors, ctx.sizes, ctx.riders, upstream.unbind(), ctx.needs_input_grad[4:]
        ):
            saved = tuple(next(rest) for _ in range(size))
            gradient = None
            if need and rider is not None and ctx.ride:
                rider.load(partial(ctx.routine.backward, z.detach(), mask, saved, above))
            elif need:
                gradient = ctx.routine.backward(z, mask, saved, above)
            gradients.append(gradient)
        return None, None, None, None, *gradients


# Nodes to look at before giving up: a residual connection is found in a handful.
_NODES = 512


def feeds(below: Tensor, above: Tensor) -> bool:
    """Whether autograd computed `above` from `below`: if so, a gradient of the one becomes a gradient of the other."""
    target, start = below.grad_fn, above.grad_fn
    if target is None or start is None:
        return False
    born = target._sequence_nr()
    queue, seen = deque([start]), {start}
    while queue and len(seen) < _NODES:
        for node, number in queue.popleft().next_functions:
            if node is target and number == below.output_nr:
                return True
            # what is older than the target cannot have come from it
            if node is not None and node not in seen and node._sequence_nr() > born:
                seen.add(node)
                queue.append(node)
    return False
