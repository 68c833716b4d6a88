"""Insides of accelerate: the gradient norm that Trainer does not hand on, the precision of sharded models, and whether
sequences are split."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from . import attribute, member


def watch_gradient_norm(accelerator: Any, tell: Callable[[Any], None]) -> None:
    """`tell` gets every norm that is clipped. A norm that is not finite must be known before the optimiser's step, and
    Trainer keeps it to itself until the log."""
    why = "a gradient that is not finite must be noticed"
    clip = attribute(accelerator, "clip_grad_norm_", library="accelerate", why=why)

    def clipped(*args: Any, **kwargs: Any) -> Any:
        norm = clip(*args, **kwargs)
        tell(norm)
        return norm

    accelerator.clip_grad_norm_ = clipped


def sequence_parallel_size() -> int:
    """Over how many processes Ulysses splits a sequence, in a loop by hand: only the state that all `Accelerator`s of a
    process share knows."""
    if "accelerate.state" not in sys.modules:  # who never imported it has no Accelerator
        return 1
    why = "sequences that are split over processes must be noticed"
    state = member("accelerate.state", "AcceleratorState", why=why)
    shared = attribute(state, "_shared_state", library="accelerate", why=why)
    config = shared.get("parallelism_config")
    return 1 if config is None else int(attribute(config, "sp_size", library="accelerate", why=why))


def keep_float32(accelerator: Any) -> None:
    """accelerate's policy for FSDP2 in bf16 also rounds what the model returns, its loss included, to 1/64, and adds up
    the gradients of the processes in bf16. Both stay in float32, as they do without sharding."""
    why = "a sharded model must return its loss in float32"
    if not attribute(accelerator, "is_fsdp2", library="accelerate", why=why):
        return
    plugin = attribute(accelerator.state, "fsdp_plugin", library="accelerate", why=why)
    policy = attribute(plugin, "mixed_precision_policy", library="accelerate", why=why)
    if policy is not None:
        plugin.mixed_precision_policy = replace(policy, reduce_dtype=torch.float32, output_dtype=None)
