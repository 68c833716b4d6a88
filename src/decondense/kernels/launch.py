"""A kernel that is launched often: Triton looks at its arguments once.

`kernel[grid](…)` looks at every argument of every call to find the compiled variant. With thirty of them the host is
busy for longer than many of these kernels run. What decides are dtypes, whole numbers, constants and whether the
tensors begin at a multiple of 16 bytes; a `Launch` holds all of it but the last, so a later call whose tensors do goes
straight to the compiled kernel. It gets their addresses: of a tensor Triton would ask for its own once more, and then
the driver whether it is one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor


class Launch:
    """kernel[grid](*tensors, *numbers, **constants) by `launch(*tensors)`.

    The tensors of a later call have the dtypes and the device of the first, and are None where they were: keep a launch
    under all that decides about these (`functools.lru_cache` on what makes it).
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
