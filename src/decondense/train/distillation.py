"""Distillation, the paper's equation 1: the teacher's softened predictions as a second target.

    L = (1 − share) · L_task + share · τ² · CE(softmax(t/τ), softmax(s/τ))        t, s: logits of teacher and student

CE(p, q) = −Σ_v p_v log q_v, over the positions that have a label, weighted like the task loss: their sum over the
step's `num_items_in_batch`, so gradient accumulation is exact. The factor τ² keeps the gradient's size while τ varies.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

POSITIONS = 4096  # of logits in float32 at once: 0.8 GB for a vocabulary of 49,152


def distillation(student: Tensor, teacher: Tensor, labels: Tensor, *, temperature: float) -> Tensor:
    """τ² · Σ over labelled positions of CE(softmax(t/τ), softmax(s/τ)).

    student, teacher (batch, tokens, vocabulary); labels (batch, tokens), −100 where nothing is predicted, not shifted:
    the logits at position i are about label i + 1. Goes over POSITIONS at a time and computes them again in the
    backward pass: besides the logits nothing as large as them is kept.
    """
    labelled = labels[:, 1:] != -100
    total = student.new_zeros((), dtype=torch.float32)
    for s, t in zip(student[:, :-1][labelled].split(POSITIONS), teacher[:, :-1][labelled].split(POSITIONS)):
        part = checkpoint(_cross_entropy, s, t, temperature, use_reentrant=False, preserve_rng_state=False)
        total = total + part
    return temperature**2 * total


def _cross_entropy(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    p = torch.softmax(teacher.float() / temperature, -1)
    return -(p * torch.log_softmax(student.float() / temperature, -1)).sum()


def share_loss(
    task: Tensor,
    student: Tensor,
    teacher: nn.Module,
    inputs: dict[str, Any],
    items: Tensor | int | None,
    *,
    temperature: float,
    share: float,
) -> Tensor:
    """The task loss mixed with the distillation term; `items` as the trainer divides the task loss by them."""
    labels = inputs["labels"]
    given = {k: v for k, v in inputs.items() if k in ("input_ids", "attention_mask", "position_ids")}
    with torch.no_grad():
        target = teacher(**given, use_cache=False).logits
    count = (labels[:, 1:] != -100).sum() if items is None else items
    return (1 - share) * task + share * distillation(student, target, labels, temperature=temperature) / count


def same_tokens(one: Any, other: Any) -> bool:
    """Whether two tokenizers make the same numbers of a piece of text, as far as one piece can tell."""
    probe = "A naïve test: 1234 tokens,\n\n and a few more…"
    return one(probe)["input_ids"] == other(probe)["input_ids"]


def check_teacher(student: Any, teacher: Any, tokenizers: tuple[Any, Any], context: int) -> None:
    """Refuse a teacher whose logits are about other tokens, or that cannot see a whole block."""
    sizes = [m.get_output_embeddings().weight.shape[0] for m in (student, teacher)]
    same = same_tokens(*tokenizers)
    if sizes[0] != sizes[1] or not same:
        raise ValueError(
            f"a teacher must share the student's vocabulary of {sizes[0]} tokens, this one has {sizes[1]}"
            + ("" if same else " and splits text otherwise")
            + ": choose one of the same family."
        )
    limit = getattr(teacher.config, "max_position_embeddings", None)
    if limit is not None and limit < context:
        raise ValueError(
            f"a teacher must see whole blocks of {context} tokens, this one sees {limit}: shorten context."
        )
