"""Insides of accelerate: the gradient norm that Trainer does not report in time, the precision of sharded models, and
whether sequences are split."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from . import attribute, member


def watch_gradient_norm(accelerator: Any, tell: Callable[[Any], None]) -> None:
    """Call `tell` with the gradient norm at every clipping. A norm that is not finite must be known before the
    optimiser step, but Trainer reports it only in the log."""
    why = "a gradient that is not finite must be noticed"
    clip = attribute(accelerator, "clip_grad_norm_", library="accelerate", why=why)

    def clipped(*args: Any, **kwargs: Any) -> Any:
        norm = clip(*args, **kwargs)
        tell(norm)
        return norm

    accelerator.clip_grad_norm_ = clipped


def sequence_parallel_size() -> int:
    """Over how many processes Ulysses splits a sequence in a hand-written loop: only the state shared by all
    `Accelerator`s of a process tells."""
    if "accelerate.state" not in sys.modules:  # never imported: there is no Accelerator
        return 1
    why = "sequences that are split over processes must be noticed"
    state = member("accelerate.state", "AcceleratorState", why=why)
    shared = attribute(state, "_shared_state", library="accelerate", why=why)
    config = shared.get("parallelism_config")
    return 1 if config is None else int(attribute(config, "sp_size", library="accelerate", why=why))


def keep_float32(accelerator: Any) -> None:
    """Keep outputs and gradient sums in float32 under FSDP2 in bf16, as they are without sharding. accelerate's policy
    would round what the model returns, its loss included, to 1/64, and add up the processes' gradients in bf16."""
    why = "a sharded model must return its loss in float32"
    if not attribute(accelerator, "is_fsdp2", library="accelerate", why=why):
        return
    plugin = attribute(accelerator.state, "fsdp_plugin", library="accelerate", why=why)
    policy = attribute(plugin, "mixed_precision_policy", library="accelerate", why=why)
    if policy is not None:
        plugin.mixed_precision_policy = replace(policy, reduce_dtype=torch.float32, output_dtype=None)
