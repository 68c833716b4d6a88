"""What need not keep a GPU waiting: the eigenvalues of a reading, on the CPU, while the next steps run."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

import torch
from torch import Tensor

from ..host import mark

T = TypeVar("T")
_running: set[Future] = set()


def in_background(state: Tensor) -> bool:
    """On a CPU there is nobody to wait for: training and eigenvalues would share the cores."""
    return state.is_cuda


def beside_training(job: Callable[[], T], device: torch.device) -> Future[T]:
    """Run it in a thread, once the GPU has done what was asked of it so far. Torch computes nearly all of the time, and
    leaves Python to the training."""
    reached = mark(device)

    def run() -> T:
        if reached is not None:
            reached.synchronize()
        return job()

    future = _thread().submit(run)
    _running.add(future)
    future.add_done_callback(_running.discard)
    return future


@functools.cache
def _thread() -> ThreadPoolExecutor:
    # A DataLoader forks, and a child of a process in the middle of LAPACK may find its locks taken for ever.
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=lambda: wait(list(_running)))
    return ThreadPoolExecutor(1, "decondense-monitor")
