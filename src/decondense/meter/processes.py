"""Splitting windows over processes started by torchrun or ``accelerate launch``, and joining their tallies."""

from __future__ import annotations

import os
from typing import TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")


def join_group() -> tuple[int, int]:
    """Join the launcher's process group; return (rank, number of processes), (0, 1) without a launcher."""
    launched = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if not dist.is_available() or not (dist.is_initialized() or launched):
        return 0, 1
    if not dist.is_initialized():
        dist.init_process_group("gloo")  # only small Python objects travel, so gloo serves on every device
    return dist.get_rank(), dist.get_world_size()


def local_device() -> str | None:
    """Return this process's own GPU, or ``None`` to let the caller choose a device."""
    rank = os.environ.get("LOCAL_RANK")
    return f"cuda:{rank}" if rank is not None and torch.cuda.is_available() else None


def gather(item: T, world: int) -> list[T]:
    """The items of all ``world`` processes, in the order of their ranks, in every process."""
    everyone = [item] * world
    if world > 1:
        dist.all_gather_object(everyone, item)
    return everyone
