"""Compiles every kernel for a GPU that need not be there, a line for each: `python offline.py [90] [all]`.

The kernels' own functions are called with tensors that hold nothing and say that they lie on a GPU; where Triton would
launch, it compiles, down to the machine code: a variant of each kernel, and one that adds to another gradient, or all.
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from decondense import kernels
from decondense.kernels import (
    cosines,
    covariance,
    eigenvalues,
    first_order,
    nearest,
    pairwise,
    repulsion,
    rows,
    second_order,
)
from decondense.kernels.launch import Launch

TYPES = {
    torch.float64: "fp64", torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16",
    torch.int64: "i64", torch.int32: "i32", torch.int16: "i16", torch.uint8: "u8", torch.bool: "i1",
}  # fmt: skip
SHARED = 232_448  # bytes of an H100's block
compiled: dict[tuple[Any, ...], None] = {}


class Pretended(torch.Tensor):
    is_cuda = True


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta").as_subclass(Pretended)


def compile_instead(kernel: JITFunction, *given: Any, grid: Any, warmup: bool, **named: Any) -> None:
    """In place of a launch. As Triton does, a whole number of 1 and None are constants of the code."""
    values = dict(zip(kernel.arg_names, given)) | {k: v for k, v in named.items() if k in kernel.arg_names}
    options = {k: v for k, v in named.items() if k not in kernel.arg_names}
    signature, constants = {}, {}
    for place, parameter in enumerate(kernel.params):
        value = values[parameter.name]
        if parameter.is_constexpr or value is None or (type(value) is int and value == 1):
            signature[parameter.name], constants[(place,)] = "constexpr", value
        elif isinstance(value, torch.Tensor):
            signature[parameter.name] = "*" + TYPES[value.dtype]
        else:
            signature[parameter.name] = "fp32" if isinstance(value, float) else "i32"
    variant: tuple[Any, ...] = (kernel.__module__, kernel.__name__, values.get("ADD"), values.get("MEAN"))
    if "all" in sys.argv:
        variant += (*signature.values(), *map(str, constants.values()), str(options))
    if variant not in compiled:
        compiled[variant] = None
        target = GPUTarget("cuda", next((int(word) for word in sys.argv if word.isdigit()), 90), 32)
        triton.compile(ASTSource(kernel, signature, constants), target=target, options=options)
        print(kernel.__module__.rpartition(".")[2], kernel.__name__, flush=True)


def both(module: Any, z: torch.Tensor, mask: torch.Tensor | None, *, moments: int = 1, **options: Any) -> None:
    """Forward and backward, by itself and added to another gradient."""
    _, saved = module.forward(z, mask, **options)
    upstream = empty(*((moments, len(z)) if moments > 1 else (len(z),)))
    for other in (None, z) if module is not covariance else (None,):
        adding = {} if other is None else {"other": torch.empty_like(other)}
        module.backward(z, saved, upstream, **options, **adding)


def everything() -> None:
    z, mask = empty(4, 256, 96), empty(4, 256, dtype=torch.bool)
    both(first_order, z, mask)
    both(second_order, z, None, moments=2, centred=True)
    both(second_order, empty(4, 32, 96, dtype=torch.bfloat16), None, moments=2)  # fewer tokens than features
    both(pairwise, z, mask, curve="dispersion", tau=1.0, clamp=0.1)
    both(pairwise, empty(4, 256, 96, dtype=torch.float16), None, curve="dispersion", tau=1.0, clamp=0.1, mean=True)
    both(repulsion, z, mask, moments=2)
    both(nearest, z, mask)
    both(covariance, z, mask)
    cosines.cosines(empty(2, 256, 64))
    eigenvalues.eigenvalues(empty(2, 512, 512, dtype=torch.float64))


def main() -> None:
    properties = SimpleNamespace(shared_memory_per_block_optin=SHARED, multi_processor_count=132)
    with ExitStack() as patches:
        for target, name, new in (
            (JITFunction, "run", compile_instead),
            (torch.cuda, "get_device_properties", lambda *_: properties),
            (kernels, "autocast_dtype", lambda z: torch.bfloat16),
            (pairwise, "autocast_dtype", lambda z: torch.bfloat16),
            (rows, "product", lambda a, b, out=None: a.float() @ b.float() if out is None else out),  # cuBLAS
            (Launch, "__call__", lambda self, *tensors: self.kernel[self.grid](*tensors, *self.rest, **self.options)),
        ):
            patches.enter_context(mock.patch.object(target, name, new))
        # Nobody looks into the cache again, whose key is a hash of Triton, half a gigabyte.
        patches.enter_context(mock.patch("triton.runtime.cache.triton_key", return_value="", create=True))
        everything()


if __name__ == "__main__":
    main()
    os._exit(0)  # every line is out, and taking torch to pieces takes a while
