"""What a compiled model still does in Python at every call: weigh the penalty, and note that a backward pass came by.

torch.compile traces a call once. A number that changes from step to step would be a constant of its graph, or a reason
to compile again; an operator is not looked into, and runs every time.
"""

from __future__ import annotations

import weakref
from typing import Any, Protocol

import torch
from torch import Tensor

__all__ = ["name", "weight_of", "weighted"]


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


# CUDA graphs replay kernels without Python, so they are cut at such an operator. One that depends on nothing computed
# comes first; in the middle it could part an operator that returns a list from what reads it, and torch cannot record
# that (pytorch/pytorch#193953).
@torch.library.custom_op("decondense::weight", mutates_args=(), tags=(torch.Tag.cudagraph_unsafe,))
def weight_of(number: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The weight of this call as a scalar tensor."""
    return torch.full((), _named[number].weigh(), dtype=dtype, device=device)


@weight_of.register_fake
def _(number: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.empty((), dtype=dtype, device=device)


@torch.library.custom_op("decondense::weighted", mutates_args=())
def weighted(penalty: Tensor, weight: Tensor, number: int) -> Tensor:
    """weight · penalty; a backward pass is noted."""
    return weight * penalty


@weighted.register_fake
def _(penalty: Tensor, weight: Tensor, number: int) -> Tensor:
    return torch.empty_like(penalty)


@torch.library.custom_op("decondense::reached", mutates_args=(), tags=(torch.Tag.cudagraph_unsafe,))
def reached(gradient: Tensor, weight: Tensor, number: int) -> Tensor:
    """weight · gradient, on its way back to the penalty."""
    _named[number].reach(gradient)
    return weight * gradient


@reached.register_fake
def _(gradient: Tensor, weight: Tensor, number: int) -> Tensor:
    return torch.empty_like(gradient)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:
    _, weight, ctx.number = inputs
    ctx.save_for_backward(weight)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
    return reached(gradient, *ctx.saved_tensors, ctx.number), None, None


weighted.register_autograd(_backward, setup_context=_keep)
