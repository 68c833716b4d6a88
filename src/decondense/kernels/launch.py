"""Launching a kernel with little work for the host.

Triton looks at every argument of every call to decide which compiled variant it needs; with twenty arguments that
takes longer than many of these kernels run.  What decides is little: the dtypes, whether pointers are aligned and
whether whole numbers are 1 or divisible by 16.  `launch` keeps the compiled kernel under that key and calls it.
"""

from __future__ import annotations

from typing import Any

import torch
import triton

INTERPRET: bool = triton.knobs.runtime.interpret

_compiled: dict[tuple[Any, ...], Any] = {}


def _tensor(t: torch.Tensor | None) -> tuple[torch.dtype, bool] | None:
    return None if t is None else (t.dtype, t.data_ptr() % 16 == 0)


def _number(n: int | float) -> int:
    if n.__class__ is float:
        return -1
    return 1 if n == 1 else 2 * (n % 16 == 0) + 4 * (n > 2147483647)


def launch(
    kernel: Any,
    grid: tuple[int, int],
    tensors: tuple[torch.Tensor | None, ...],
    numbers: tuple[int | float, ...],
    constants: tuple[Any, ...],
    *,
    warps: int = 4,
    stages: int = 3,
) -> None:
    """kernel[grid](*tensors, *numbers, *constants) on the device of the first tensor.

    The kernel's parameters come in this order: pointers, whole numbers and floats, constexprs.
    """
    if INTERPRET:
        kernel[grid](*tensors, *numbers, *constants)
        return
    assert tensors[0] is not None
    device = tensors[0].device.index
    if device != torch.cuda.current_device():
        with torch.cuda.device(device):
            launch(kernel, grid, tensors, numbers, constants, warps=warps, stages=stages)
        return
    key = (id(kernel), device, warps, stages, constants, *map(_tensor, tensors), *map(_number, numbers))
    found = _compiled.get(key)
    if found is None:
        _compiled[key] = kernel[grid](*tensors, *numbers, *constants, num_warps=warps, num_stages=stages)
    else:
        stream = torch._C._cuda_getCurrentRawStream(device)
        found[(*grid, 1)](*tensors, *numbers, *constants, stream=stream)
