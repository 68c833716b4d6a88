"""Numbers on their way from a GPU to the host. Who asks for one waits until the GPU has done all that was launched, and
launches nothing meanwhile."""

from __future__ import annotations

import torch
from torch import Tensor


def sent(value: Tensor) -> Tensor:
    """On the CPU, or on its way there: it has come when a `mark` made afterwards is reached."""
    if not value.is_cuda:
        return value.cpu()
    return torch.empty_like(value, device="cpu", pin_memory=True).copy_(value, non_blocking=True)


def mark(device: torch.device) -> torch.cuda.Event | None:
    """Behind all that was launched so far; None on a CPU, where that is done."""
    return torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None
