"""Insides of torch."""

from __future__ import annotations

from typing import Any

from . import Moved


def is_replica(module: Any) -> bool:
    """Whether nn.DataParallel made this copy of a model: copies run side by side, which one handle cannot serve."""
    if not hasattr(type(module), "_replicate_for_data_parallel"):
        raise Moved("torch", "nn.Module._replicate_for_data_parallel", "replicas of nn.DataParallel must be refused")
    return "_is_replica" in vars(module)
