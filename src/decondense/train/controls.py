"""Controls: other methods that could explain a gain, to compare a loss on the hidden states with.

dropout           every dropout of the architecture at one rate
z_loss            λ · mean over predicted tokens of log²Z, Z = Σ_v exp(logit_v): keeps the logits small
label_smoothing   (1 − ε) · CE + ε · mean over the vocabulary of −log p_v
centre_last       m, a running mean over training tokens of the last hidden state, is subtracted before the head. Within
                  a step m is a constant, made of earlier steps only, so no token sees another through it. It becomes
                  part of the final norm's bias when the model is saved.

The logged task_loss stays the plain cross-entropy CE; the added terms are logged beside it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import TrainerCallback

from ..stack import repeated_blocks
from .folder import sharded

MOMENTUM = 0.99  # of the running mean, per optimiser step


def dropout_keys(config: Any) -> list[str]:
    """The names of the dropout rates in a configuration, without those of heads that a language model does not have."""
    names = [name for name, value in vars(config).items() if isinstance(value, (int, float))]
    rates = [name for name in names if name.endswith("pdrop") or "dropout" in name]
    keys = [name for name in rates if not any(word in name for word in ("classifier", "summary"))]
    if not keys:
        raise ValueError(
            f"baselines.dropout needs an architecture with dropout, and {config.model_type} has none: leave it out."
        )
    return keys


def logit_terms(logits: Tensor, labels: Tensor, items: Tensor | int) -> dict[str, Tensor]:
    """Terms beside the cross-entropy, each a sum over predicted tokens divided by `items`.

    logits (tokens, vocabulary) in float32; labels (tokens,), the token that each row predicts, −100 for none.
    `label_smoothing` is what ε multiplies: mean_v(−log p_v) − CE.
    """
    predicted = labels != -100
    log_partition = torch.logsumexp(logits, -1)
    label_logits = logits.gather(-1, labels.clamp(min=0)[:, None])[:, 0]
    return {
        "z_loss": (log_partition.square() * predicted).sum() / items,
        "label_smoothing": ((label_logits - logits.mean(-1)) * predicted).sum() / items,
    }


class Centre(TrainerCallback):
    """Subtracts the running mean from the output of the final norm, while training and after."""

    def __init__(self, model: Any) -> None:
        if sharded():
            raise ValueError("baselines.centre_last keeps its mean on every process: it does not go with FSDP.")
        self.norm: Any = final_norm(model)
        bias: Any = getattr(self.norm, "bias", None)
        if bias is None:
            raise ValueError(
                f"baselines.centre_last needs a final norm with a bias to keep the mean in, and that of "
                f"{type(model).__name__} ({type(self.norm).__name__}) has none: choose another architecture, like gpt2."
            )
        # A buffer, so that checkpoints keep it.
        self.norm.register_buffer("running_mean", torch.zeros_like(bias, dtype=torch.float32))
        self._sum: Any = 0.0
        self._count = 0
        self._hook = self.norm.register_forward_hook(self._centred)

    def _centred(self, module: Any, args: Any, out: Tensor) -> Tensor:
        if module.training and torch.is_grad_enabled():
            self._sum = self._sum + out.detach().float().flatten(0, -2).sum(0)
            self._count += out.numel() // out.shape[-1]
        return out - module.running_mean.to(out.dtype)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        mean, self._sum, self._count = self._sum / self._count, 0.0, 0
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(mean)
            mean /= torch.distributed.get_world_size()
        momentum = MOMENTUM if state.global_step > 1 else 0.0
        moved = momentum * self.norm.running_mean + (1 - momentum) * mean
        self.norm.running_mean.copy_(torch.where(moved.isfinite(), moved, self.norm.running_mean))

    @torch.no_grad()
    def fold(self) -> None:
        """Move the mean into the norm's bias, so that the model computes the same without this class."""
        self._hook.remove()
        self.norm.bias -= self.norm.running_mean.to(self.norm.bias.dtype)
        del self.norm.running_mean


def final_norm(model: Any) -> nn.Module:
    """The norm after the last block: the last one of the stack that lies outside the blocks."""
    inside = {m for block in repeated_blocks(model) for m in block.modules()}
    outside = [m for m in model.base_model.modules() if m not in inside and "norm" in type(m).__name__.lower()]
    if not outside:
        raise ValueError(f"baselines.centre_last needs a final norm, {type(model).__name__} has none: leave it out.")
    return outside[-1]
