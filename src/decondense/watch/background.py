"""Compute the eigenvalues of a reading on the CPU while the GPU runs the next steps."""

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
    """Whether to work in the background: for states on a GPU. On a CPU, training and eigenvalues share the cores."""
    return state.is_cuda


def beside_training(job: Callable[[], T], device: torch.device) -> Future[T]:
    """Run a job in a thread once the GPU has done what was launched so far. The job is nearly all torch computation,
    which releases the GIL for the training loop."""
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
    # A DataLoader forks; a child forked in the middle of a LAPACK call may find its locks taken for ever.
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=lambda: wait(list(_running)))
    return ThreadPoolExecutor(1, "decondense-monitor")
