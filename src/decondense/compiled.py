"""What a compiled model still does in Python at every call: weigh the penalty, and note that a backward pass came by.

torch.compile traces a call once. A number that changes from step to step would be a constant of its graph, or a reason
to compile again; an operator is not looked into, and runs every time.
"""

from __future__ import annotations

import weakref
from typing import Any, Protocol

import torch
from torch import Tensor


class Weighing(Protocol):
    """Who is asked at every call: for the weight, and to note a backward pass."""

    def weigh(self) -> float: ...

    def reach(self, gradient: Tensor) -> None: ...


_named: weakref.WeakValueDictionary[int, Weighing] = weakref.WeakValueDictionary()


def name(one: Weighing) -> int:
    """The number under which the operators find it: they take no objects."""
    number = id(one)
    _named[number] = one
    return number


# CUDA graphs replay kernels and leave Python out.
@torch.library.custom_op("decondense::weighted", mutates_args=(), tags=(torch.Tag.cudagraph_unsafe,))
def weighted(penalty: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """weight · penalty, and the weight as a scalar tensor."""
    weight = penalty.new_full((), _named[number].weigh())
    return weight * penalty, weight


@weighted.register_fake
def _(penalty: Tensor, number: int) -> tuple[Tensor, Tensor]:
    return torch.empty_like(penalty), penalty.new_empty(())


@torch.library.custom_op("decondense::reached", mutates_args=(), tags=(torch.Tag.cudagraph_unsafe,))
def reached(gradient: Tensor, weight: Tensor, number: int) -> Tensor:
    """weight · gradient, on its way back to the penalty."""
    _named[number].reach(gradient)
    return weight * gradient


@reached.register_fake
def _(gradient: Tensor, weight: Tensor, number: int) -> Tensor:
    return torch.empty_like(gradient)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1])
    ctx.number = inputs[1]


def _backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, None]:
    return reached(gradient, *ctx.saved_tensors, ctx.number), None


weighted.register_autograd(_backward, setup_context=_keep)
