"""Triton kernels: the exact pairwise losses, the first- and second-order estimators, the meter's histogram and spectra.

Importing this package does not import triton; each kernel module does when it is used.
`docs/kernels.md` holds the design, `docs/kernels-log.md` the measurements.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

import torch

# The kernels keep no running maximum, so the largest term, exp(1/τ) or for the cosine exp(2/τ), must fit float32 (e⁸⁸).
MIN_TAU = 0.025
# A row of z must fit into the registers of one program.
MAX_WIDTH = 16384
_INSTALLED = find_spec("triton") is not None  # a constant, because torch.compile cannot trace find_spec


def available(device: torch.device | str) -> bool:
    """True when the kernels can run on `device`: a CUDA device and Triton installed.

    On the CPU only Triton's interpreter can run them (`TRITON_INTERPRET=1` set before Triton is first
    imported): correct and very slow, meant for tests.
    """
    kind = device.split(":")[0] if isinstance(device, str) else device.type
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if kind == "cpu":
        return interpreted and _INSTALLED
    if kind != "cuda" or interpreted or not _INSTALLED or torch.version.hip is not None:
        return False
    return torch.cuda.is_initialized() or torch.cuda.is_available()  # is_available counts GPUs, which is slower


def autocast_dtype(z: torch.Tensor) -> torch.dtype | None:
    """The dtype of the autocast that is active on the device of z; None without one."""
    kind = z.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None


def product_dtype(z: torch.Tensor) -> torch.dtype:
    """The dtype in which matrix products are asked for: that of autocast for float32 states, else that of z."""
    return (autocast_dtype(z) if z.dtype == torch.float32 else None) or z.dtype


def tf32_products() -> bool:
    """Whether torch rounds the operands of float32 products on a GPU to tf32. It may have been told so in an older or
    a newer way; about the newer, `torch.backends.fp32_precision`, which transformers takes, `allow_tf32` raises."""
    return bool(torch.backends.cuda.matmul.fp32_precision == "tf32")
