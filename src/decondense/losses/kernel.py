"""A Triton kernel as a routine of autograd (`pairs.Routine`), and as operators that are opaque to torch.compile.

A plain call goes through `pairs.apply` like every routine, because an operator would cost the host more time than a
small kernel takes; a traced call uses the operators. Both call `forward` and `backward` of one module in `kernels`,
whose `like` describes what these return without running them.
"""

from __future__ import annotations

import functools
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from ..kernels import autocast_dtype
from .pending import Pending

# The options of all kernels, in the order in which the operators take them: None where a kernel has no such option.
OPTIONS = {
    "curve": "str", "tau": "float", "clamp": "float", "margin": "float", "hard_clamp": "bool", "eps": "float",
    "diagonal": "bool", "centred": "bool", "variance_weight": "float", "covariance_weight": "float", "gamma": "float",
}  # fmt: skip
# Kernels whose `backward` can add its gradient to another: all but covariance, whose gradient is a cuBLAS product.
ADDING = ("first_order", "nearest", "pairwise", "repulsion", "second_order")
PROJECTING = ("first_order", "pairwise")  # their gradient is `projection.project`
AVERAGING = ("pairwise",)  # their option `mean` returns the mean of the values, so the upstream gradient is one number
_NAMED = "str name, " + ", ".join(f"{kind}? {name}" for name, kind in OPTIONS.items())


class Kernel:
    """A routine in Triton: the module `name` in `kernels`, with its options."""

    def __init__(self, name: str, **options: Any) -> None:
        self.name, self.options = name, options

    def forward(self, z: Tensor, mask: Tensor | None, need_gradient: bool) -> tuple[Tensor, tuple[Tensor, ...]]:
        with torch.cuda.device_of(z):  # a kernel is launched on the current device
            return _module(self.name).forward(z, mask, need_grad=need_gradient, **self.options)

    def backward(self, z: Tensor, mask: Tensor | None, saved: tuple[Tensor, ...], upstream: Tensor) -> Tensor:
        def compute(other: Tensor | None) -> Tensor:
            adding = {} if other is None else {"other": other}
            with torch.cuda.device_of(z):  # autograd may be working on another device
                return _module(self.name).backward(z, saved, upstream, **adding, **self.options)

        return Pending(z, compute) if self.waits(z) else compute(None)

    def waits(self, z: Tensor) -> bool:
        """Whether the gradient waits for another one to be added to: at a leaf there is none."""
        return self.name in ADDING and not z.is_leaf

    @property
    def projects(self) -> bool:
        return self.name in PROJECTING

    def traced(self, z: Tensor, mask: Tensor | None) -> Tensor:
        """The values (batch,), as a node of a traced graph."""
        need_gradient = z.requires_grad and torch.is_grad_enabled()
        return launched(z, mask, need_gradient, autocast_dtype(z), *self.named)[0]

    @property
    def named(self) -> tuple[Any, ...]:
        """Name and options in the order of the operators' arguments."""
        options = {**dict.fromkeys(OPTIONS), **self.options}  # an unknown option makes one argument too many: an error
        return self.name, *options.values()


@functools.cache
def _module(name: str) -> Any:
    return import_module(f"decondense.kernels.{name}")


def _same_autocast(z: Tensor, autocast: torch.dtype | None) -> torch.autocast:
    """Restore the autocast of the call that was traced: a graph runs without it."""
    return torch.autocast(z.device.type, dtype=autocast, enabled=autocast is not None)


def _named_options(*options: Any) -> dict[str, Any]:
    return {key: value for key, value in zip(OPTIONS, options) if value is not None}


@torch.library.custom_op(
    "decondense::kernel",
    mutates_args=(),
    schema=f"(Tensor z, Tensor? mask, bool need_gradient, ScalarType? autocast, {_NAMED}) -> Tensor[]",
)
def launched(
    z: Tensor, mask: Tensor | None, need_gradient: bool, autocast: torch.dtype | None, name: str, *options: Any
) -> list[Tensor]:
    """The values, and what the backward pass needs."""
    with _same_autocast(z, autocast):
        value, saved = Kernel(name, **_named_options(*options)).forward(z, mask, need_gradient)
    # results of an operator must not share memory, as small tensors from one allocation do
    return [x if x.untyped_storage().nbytes() == x.nbytes else x.clone() for x in (value, *saved)]


@launched.register_fake
def _(
    z: Tensor, mask: Tensor | None, need_gradient: bool, autocast: torch.dtype | None, name: str, *options: Any
) -> list[Tensor]:
    with _same_autocast(z, autocast):
        value, *saved = _module(name).like(z)
    return [value, *saved] if need_gradient else [value]


@torch.library.custom_op(
    "decondense::kernel_backward",
    mutates_args=(),
    schema=f"(Tensor z, Tensor[] saved, Tensor upstream, {_NAMED}) -> Tensor",
)
def _backward(z: Tensor, saved: list[Tensor], upstream: Tensor, name: str, *options: Any) -> Tensor:
    """The gradient with respect to z. There is no mask: what was saved marks the tokens that count."""
    with torch.cuda.device_of(z):
        return _module(name).backward(z, tuple(saved), upstream, **_named_options(*options))


@_backward.register_fake
def _(z: Tensor, saved: list[Tensor], upstream: Tensor, name: str, *options: Any) -> Tensor:
    return z.new_empty(z.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    ctx.set_materialize_grads(False)  # no zero gradients for what was saved
    z, _, _, _, *ctx.kernel = inputs
    ctx.save_for_backward(z, *output[1:])


def _differentiate(ctx: Any, gradients: list[Tensor | None]) -> tuple[Tensor | None, ...]:
    z, *saved = ctx.saved_tensors
    upstream = gradients[0]
    gradient = None if upstream is None else _backward(z, saved, upstream, *ctx.kernel)
    return gradient, *(None,) * (3 + len(ctx.kernel))


launched.register_autograd(_differentiate, setup_context=_keep)
