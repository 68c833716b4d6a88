"""A kernel that is launched often: Triton looks at its arguments once.

`kernel[grid](…)` looks at every argument of every call to find the compiled variant. With thirty of them the host is
busy for longer than many of these kernels run. What decides are dtypes, whole numbers, constants and whether the
tensors begin at a multiple of 16 bytes; a `Launch` holds all of it but the last, so a later call goes straight to the
compiled kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


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
        self.compiled: dict[tuple[bool, ...], Callable[..., None]] = {}

    def __call__(self, *tensors: torch.Tensor | None) -> None:
        aligned = tuple([t is None or t.data_ptr() % 16 == 0 for t in tensors])
        run = self.compiled.get(aligned)
        if run is not None:
            run(*tensors, *self.rest)
            return
        compiled = self.kernel[self.grid](*tensors, *self.rest, **self.options)
        if compiled is not None:  # as it is in Triton's interpreter
            self.compiled[aligned] = compiled[self.grid]
