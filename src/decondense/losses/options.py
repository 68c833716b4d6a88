"""What the losses share besides their mathematics: checks of objects, and the choice of a kernel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import kernels
from ..checks import check_choice


def check_objects(*, generator: Any = None, process_group: Any = None, **others: Any) -> None:
    """Refuse objects of a wrong type, which torch would notice late (generator) or report in its own words (group)."""
    if generator is not None and not isinstance(generator, torch.Generator):
        raise TypeError(
            f"generator must be a torch.Generator, got {type(generator).__name__}: for a seed pass "
            "torch.Generator().manual_seed(1)."
        )
    if process_group is not None and not isinstance(process_group, torch.distributed.ProcessGroup):
        raise TypeError(
            f"process_group must be a torch.distributed.ProcessGroup, got {type(process_group).__name__}: for a device "
            "mesh pass mesh.get_group()."
        )


BACKENDS = ("auto", "torch", "triton")


def fused(z: Tensor, backend: str, *, tau: float = 1.0) -> bool:
    """Whether a Triton kernel computes this: by default on CUDA, elsewhere only with backend="triton".

    float64, very small temperatures and very wide states are left to torch.
    """
    check_choice("backend", backend, BACKENDS)
    if backend == "torch" or (backend == "auto" and z.device.type != "cuda"):
        return False
    fits = z.dtype != torch.float64 and tau >= kernels.MIN_TAU and z.shape[-1] <= kernels.MAX_WIDTH
    fits = fits and kernels.available(z.device)
    if backend == "triton" and not fits:
        raise ValueError(
            f"backend='triton' needs CUDA and Triton, float16, bfloat16 or float32 states of width ≤ "
            f"{kernels.MAX_WIDTH} and tau ≥ {kernels.MIN_TAU}, got {z.device.type}, {z.dtype}, width {z.shape[-1]} and "
            f"{tau}: use backend='auto'."
        )
    return fits


def fused_in_16_bits(z: Tensor, backend: str, *dtypes: torch.dtype) -> bool:
    """`fused` for kernels with 16-bit matrix products: only where states or autocast ask for one of `dtypes`."""
    check_choice("backend", backend, BACKENDS)
    asked = kernels.product_dtype(z)
    if backend == "triton" and asked not in dtypes:
        raise ValueError(
            f"backend='triton' needs products in {' or '.join(str(dtype) for dtype in dtypes)} here, got "
            f"{asked}: use autocast, states of that dtype, or backend='auto'."
        )
    return asked in dtypes and fused(z, backend)
