"""Two measures beside the meter's: how noisy the gradient is, and how much of the last state says only how frequent
tokens are. `snapshots.probes` asks for them; they are taken at the steps of the snapshots, on held-out blocks in eval
mode, and leave the training unchanged. The gradient is that of the cross-entropy alone, whatever loss is trained; its
noise is measured between batches of blocks, since the tokens of a block are not independent draws.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import TrainerCallback

from ..stack import unnoticed
from ..words import Tell, nobody
from .blocks import Blocks, Order
from .held_out import TOKENS

BATCHES = 32


class Probes(TrainerCallback):
    """Logs `gradient_noise` and `frequency_share` beside every held-out loss; `begin` as in `Order`."""

    def __init__(self, trainer: Any, held_out: Blocks, counts: np.ndarray, begin: int | None, progress: Tell) -> None:
        if trainer.is_fsdp_enabled:
            raise ValueError(
                "snapshots.probes needs the whole weights in a process, and FSDP splits them: leave it out."
            )
        self.trainer, self.counts, self.progress = trainer, counts, progress
        size = min(max(1, TOKENS // held_out.context), len(held_out) // 2)
        if not size:
            raise ValueError(
                f"snapshots.probes needs two held-out blocks, got {len(held_out)}: raise data.held_out_tokens."
            )
        # Held-out texts lie one after the other; in random order every batch has blocks of all of them.
        blocks = Order(held_out, min(BATCHES, len(held_out) // size) * size, seed=0, begin=begin)
        self.batches = torch.stack([blocks[i]["input_ids"] for i in range(len(blocks))]).split(size)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Log after the held-out loss, which is evaluated at the steps of the snapshots. A line logged before that of
        the training would clear Trainer's `should_log`, and so take its place."""
        model = self.trainer.accelerator.unwrap_model(self.trainer.model)
        batches = [batch.to(self.trainer.args.device) for batch in self.batches]
        with unnoticed(model):
            noise = gradient_noise(_gradients(model, batches, self.progress), tokens=batches[0][:, 1:].numel())
            direction = frequency_direction(model.get_output_embeddings().weight, self.counts)
            share = frequency_share(_last_states(model, batches), direction)
        self.trainer.log({"gradient_noise": noise, "frequency_share": share})


def _gradients(model: Any, batches: Sequence[Tensor], progress: Tell = nobody) -> Iterator[list[Tensor]]:
    parameters = [p for p in model.parameters() if p.requires_grad]
    for number, ids in enumerate(batches):
        progress("batches of the probes", number, len(batches))
        with torch.enable_grad():
            logits = model(input_ids=ids, use_cache=False)["logits"][:, :-1].float()
            loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
            yield list(torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True))


@torch.no_grad()
def _last_states(model: Any, batches: Sequence[Tensor]) -> Iterator[Tensor]:
    for ids in batches:
        yield model.base_model(input_ids=ids, use_cache=False)["last_hidden_state"].flatten(0, 1)


def gradient_noise(gradients: Iterator[list[Tensor]], *, tokens: int) -> float:
    """The simple noise scale tr Σ / ‖G‖² (McCandlish et al. 2018), in tokens: the size of a batch whose gradient has
    as much noise as signal.

    From the gradients g_k of K batches of b `tokens` each, ḡ their mean: s² = Σ ‖g_k − ḡ‖² / (K − 1) estimates
    tr Σ / b, and ‖ḡ‖² − s²/K estimates ‖G‖², both without bias. NaN where the latter is not above 0: then the batches
    were too few to see the signal.
    """
    total: list[Tensor] = []
    squares, count = 0.0, 0
    for gradient in gradients:
        count += 1
        squares += float(sum(g.double().square().sum() for g in gradient))
        total = [t + g for t, g in zip(total, gradient)] if total else gradient
    mean = float(sum(t.double().square().sum() for t in total)) / count**2
    noise = (squares - count * mean) / (count - 1)
    signal = mean - noise / count
    return tokens * noise / signal if signal > 0 else math.nan


def frequency_direction(head: Tensor, counts: np.ndarray) -> Tensor:
    """Head W (vocabulary, width) and the `counts` of tokens in a text → unit vector Wᵀ(ℓ − ℓ̄)/‖·‖, ℓ = log(counts + 1):
    the direction of the last state along which logits covary most with the logarithm of frequency, over all rows of the
    head, including those of tokens that never occur."""
    logarithms = torch.from_numpy(np.log1p(counts)).to(head.device)
    direction = head.detach().double().T @ (logarithms - logarithms.mean())
    return direction / direction.norm()


def frequency_share(states: Iterator[Tensor], direction: Tensor) -> float:
    """Mean over tokens of ⟨z, d⟩²/‖z‖²: 1/width for a direction like any other, 1 where the states say nothing else."""
    total = count = 0.0
    for z in states:
        z = z.double()
        total += float(((z @ direction).square() / z.square().sum(1).clamp_min(1e-300)).sum())
        count += len(z)
    return total / count
