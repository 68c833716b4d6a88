"""Copy numbers from a GPU without blocking: reading one directly would make the host wait until the GPU has done all
that was launched, and launch nothing meanwhile."""

from __future__ import annotations

import torch
from torch import Tensor


def sent(value: Tensor) -> Tensor:
    """A copy of `value` on the CPU; from a GPU, it is complete once a `mark` made afterwards has been reached."""
    if not value.is_cuda:
        return value.cpu()
    return torch.empty_like(value, device="cpu", pin_memory=True).copy_(value, non_blocking=True)


def mark(device: torch.device) -> torch.cuda.Event | None:
    """An event behind everything launched so far on a GPU; None on a CPU, which has nothing to wait for."""
    return torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None
