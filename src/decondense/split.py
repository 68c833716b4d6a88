"""Models and sequences that are split over several processes: detected, and refused where they cannot be supported.

Under context parallelism each process has its part of every sequence. A mean over pairs of tokens within the parts is
not the mean over the sequence, and the states do not show the difference: the libraries that split must be asked.
"""

from __future__ import annotations

from typing import Any

from .insides import accelerate, deepspeed, torch
from .insides.transformers import pipeline_stages


def refuse_split(what: str, remedy: str) -> None:
    """Raise where this process sees parts of sequences: inside torch's `context_parallel`, or under Ulysses."""
    by = "torch's context_parallel" if torch.context_is_parallel() else None
    if by is None and (size := accelerate.sequence_parallel_size()) > 1:
        by = f"accelerate's sequence parallelism over {size} processes"
    if by is None and (size := deepspeed.sequence_parallel_size()) > 1:
        by = f"DeepSpeed's Ulysses over {size} processes"
    if by is not None:
        raise ValueError(f"{what} must see whole sequences, got parts of them, split by {by}: {remedy}.")


def refuse_pipeline(model: Any) -> None:
    """Raise for a pipeline: each of its stages has some of the layers, and the task loss is on the last one."""
    if (stages := pipeline_stages(model)) > 1:
        raise ValueError(
            f"{type(model).__name__} must have all its layers on this process, got a pipeline of {stages} stages "
            "(pp_size): use fsdp_size or tp_size instead."
        )
