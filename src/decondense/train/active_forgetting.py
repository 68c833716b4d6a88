"""Active forgetting (Chen et al. 2023), the paper's second baseline: embeddings that are made to forget.

Every K optimiser steps the input embeddings are drawn anew from N(0, std²) and their Adam state is cleared. They have
a learning rate of their own, linear: from 0 up over the first 8 % and down to 0 at the end of a cycle of the step index

    (g · ⌊T/K⌋) mod T          g: optimiser step, T: steps of the run, K: `every`

A run has ⌊T/K⌋ such cycles, in step with the forgetting only where K divides T. When K > T nothing is ever forgotten,
and the factor ⌊T/K⌋, which would be 0, counts as 1. An output head that is tied to the embeddings is forgotten with
them (docs/training.md).
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import TrainerCallback


def embedding_learning_rate(step: int, *, steps: int, every: int, warmup: float = 0.08) -> float:
    """The factor of the embeddings' peak learning rate at an optimiser step."""
    cycle_step = (step * max(1, steps // every)) % steps
    warmup_steps = max(1, round(warmup * steps))
    if cycle_step < warmup_steps:
        return cycle_step / warmup_steps
    return max(0.0, (steps - cycle_step) / max(1, steps - warmup_steps))


class Forgetting(TrainerCallback):
    """Draw the embeddings anew. The draw depends on the seed and the step alone, so a resumed run repeats it."""

    def __init__(self, *, every: int, std: float, seed: int) -> None:
        self.every, self.std, self.seed = every, std, seed

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step % self.every or state.global_step >= state.max_steps:
            return  # not at the very end: nothing would learn the embeddings again
        weight = kwargs["model"].get_input_embeddings().weight
        forget(weight, self.std, [self.seed, state.global_step])
        optimiser = kwargs["optimizer"]
        getattr(optimiser, "optimizer", optimiser).state.pop(weight, None)


@torch.no_grad()
def forget(weight: Any, std: float, seed: list[int]) -> None:
    """Fill `weight` with N(0, std²), the same numbers on every process and device, also when the weight is sharded."""
    generator = torch.Generator().manual_seed(int.from_bytes(str(seed).encode(), "big") % 2**63)
    fresh = torch.normal(0.0, std, weight.shape, generator=generator).to(weight.dtype)
    if hasattr(weight, "device_mesh"):
        from torch.distributed.tensor import distribute_tensor

        fresh = distribute_tensor(fresh.to(weight.device), weight.device_mesh, weight.placements)
    weight.copy_(fresh)
