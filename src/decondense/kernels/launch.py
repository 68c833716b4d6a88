"""Launch a kernel often without Triton's overhead: it inspects the arguments only once.

`kernel[grid](…)` inspects every argument of every call to find the compiled variant. With thirty arguments that keeps
the host busy for longer than many of these kernels run. The variant depends on dtypes, integers, constants and whether
the tensors begin at a multiple of 16 bytes. A `Launch` fixes all of these but the last, so a later call with aligned
tensors goes straight to the compiled kernel. It passes addresses: given tensors, Triton would ask each for its address
again, and then ask the driver whether that lies on the GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor


class Launch:
    """`launch(*tensors)` runs kernel[grid](*tensors, *numbers, **constants).

    The tensors of later calls must have the dtypes and the device of the first call's, and be None where those were. So
    cache a launch under everything that decides these (`functools.lru_cache` on the function that makes it).
    """

    def __init__(
        self, kernel: Any, grid: tuple[int, int], *numbers: float, warps: int = 4, stages: int = 3, **constants: Any
    ) -> None:
        self.kernel, self.grid = kernel, (*grid, 1)
        self.rest = (*numbers, *(constants[name] for name in kernel.arg_names if name in constants))
        self.options = {"num_warps": warps, "num_stages": stages}
        self.run: Callable[..., None] | None = None  # for tensors that all begin at a multiple of 16 bytes

    def __call__(self, *tensors: Tensor | None) -> None:
        addresses, bits = [], 0
        for tensor in tensors:
            address = 0 if tensor is None else tensor.data_ptr()
            addresses.append(address)
            bits |= address
        aligned = bits % 16 == 0
        if aligned and self.run is not None:
            self.run(*addresses, *self.rest)
            return
        compiled = self.kernel[self.grid](*tensors, *self.rest, **self.options)
        if aligned and compiled is not None:  # Triton's interpreter compiles nothing
            self.run = compiled[self.grid]
