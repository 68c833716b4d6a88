"""Splitting windows over processes started by torchrun or ``accelerate launch``, and joining their tallies."""

from __future__ import annotations

import os
from typing import TypeVar

__all__ = ["gather", "join_group", "local_device"]

T = TypeVar("T")


def join_group() -> tuple[int, int]:
    """Join the processes of a launcher, if there is one: (rank, number of processes), (0, 1) without."""
    import torch.distributed as dist

    launched = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if not dist.is_available() or not (dist.is_initialized() or launched):
        return 0, 1
    if not dist.is_initialized():
        dist.init_process_group("gloo")  # only small Python objects travel, so gloo serves on every device
    return dist.get_rank(), dist.get_world_size()


def local_device() -> str | None:
    """The accelerator that belongs to this process, or ``None`` to let the caller choose."""
    import torch

    rank = os.environ.get("LOCAL_RANK")
    return f"cuda:{rank}" if rank is not None and torch.cuda.is_available() else None


def gather(item: T) -> list[T]:
    """The items of all processes, in the order of their ranks, in every process."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return [item]
    everyone: list[T | None] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, item)
    return everyone  # type: ignore[return-value]
