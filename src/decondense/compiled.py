"""What a compiled model still does in Python at every call: weight the penalty, and note that a backward pass ran.

torch.compile traces a call once. A number that changes from step to step would become a constant of the graph, or a
reason to compile again; a custom operator is opaque to it, and runs every time.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

_attachments: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def number_of(attachment: Any) -> int:
    """Register an attachment (`handle.py`) under a number, since operators cannot take objects. The operators call its
    `weigh()` at every call and its `reach(gradient)` at every backward pass."""
    _attachments[id(attachment)] = attachment
    return id(attachment)


# Unsafe for CUDA graphs: they replay kernels without running any Python.
@torch.library.custom_op("decondense::weighted", mutates_args=(), tags=(torch.Tag.cudagraph_unsafe,))
def weighted(penalty: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """weight · penalty, and the weight as a scalar tensor."""
    weight = penalty.new_full((), _attachments[number].weigh())
    return weight * penalty, weight


@weighted.register_fake
def _(penalty: Tensor, number: int) -> tuple[Tensor, Tensor]:
    return torch.empty_like(penalty), penalty.new_empty(())


@torch.library.custom_op("decondense::reached", mutates_args=(), tags=(torch.Tag.cudagraph_unsafe,))
def reached(gradient: Tensor, weight: Tensor, number: int) -> Tensor:
    """The backward pass of `weighted`: weight · gradient, after telling the attachment."""
    _attachments[number].reach(gradient)
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
