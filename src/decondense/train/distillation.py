"""Distillation, the paper's equation 1: the teacher's softened predictions as a second target.

    L = (1 − share) · L_task + share · τ² · CE(softmax(t/τ), softmax(s/τ))        t, s: logits of teacher and student

CE(p, q) = −Σ_v p_v log q_v, summed over the positions that have a label and divided, like the task loss, by the step's
`num_items_in_batch`, so gradient accumulation is exact. The factor τ² keeps the size of the gradient as τ varies.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

POSITIONS = 4096  # whose logits are in float32 at once: 0.8 GB for a vocabulary of 49,152


def predictions(teacher: nn.Module, inputs: dict[str, Any]) -> Tensor:
    """The teacher's logits (batch, tokens, vocabulary)."""
    given = {k: v for k, v in inputs.items() if k in ("input_ids", "attention_mask", "position_ids")}
    with torch.no_grad():
        return teacher(**given, use_cache=False).logits


def share_loss(
    task: Tensor, student: Tensor, teacher: Tensor, labels: Tensor, items: Tensor | int | None, *,
    temperature: float, share: float,
) -> Tensor:  # fmt: skip
    """The task loss mixed with the distillation term; `items`: what the trainer divides the task loss by."""
    count = (labels[:, 1:] != -100).sum() if items is None else items
    return (1 - share) * task + share * distillation(student, teacher, labels, temperature=temperature) / count


def distillation(student: Tensor, teacher: Tensor, labels: Tensor, *, temperature: float) -> Tensor:
    """τ² · Σ over labelled positions of CE(softmax(t/τ), softmax(s/τ)).

    student, teacher (batch, tokens, vocabulary); labels (batch, tokens), −100 where nothing is predicted, not shifted:
    the logits at position i predict label i + 1.
    """
    labelled = torch.nn.functional.pad(labels[:, 1:] != -100, (0, 1))
    return _SoftTargets.apply(student.flatten(0, 1), teacher.flatten(0, 1), labelled.flatten(), temperature)


class _SoftTargets(torch.autograd.Function):
    """Value and gradient in one pass, POSITIONS at a time. With p and q the softened predictions of teacher and student
    the gradient for s is τ² · (q − p)/τ; only that gradient is kept, which is as large as the logits."""

    @staticmethod
    def forward(ctx: Any, student: Tensor, teacher: Tensor, labelled: Tensor, temperature: float) -> Tensor:
        total = student.new_zeros((), dtype=torch.float32)
        gradient = torch.empty_like(student)
        for s, t, counted, out in zip(*(x.split(POSITIONS) for x in (student, teacher, labelled[:, None], gradient))):
            p = torch.softmax(t.float() / temperature, -1)
            q = torch.log_softmax(s.float() / temperature, -1)
            total -= torch.where(counted, p * q, 0).sum()
            out.copy_(torch.where(counted, q.exp_().sub_(p).mul_(temperature), 0))
        ctx.save_for_backward(gradient)
        return temperature**2 * total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        scaled = torch.empty_like(gradient)
        for one, out in zip(gradient.split(POSITIONS), scaled.split(POSITIONS)):
            out.copy_(one.float() * upstream)  # 1/items, in `upstream`, would lose digits in 16 bits
        return scaled, None, None, None


def same_tokens(one: Any, other: Any) -> bool:
    """Whether two tokenizers turn one piece of text into the same ids, as far as one piece can tell."""
    probe = "A naïve test: 1234 tokens,\n\n and a few more…"
    return one(probe)["input_ids"] == other(probe)["input_ids"]


def check_teacher(student: Any, teacher: Any, tokenizers: tuple[Any, Any], context: int) -> None:
    """Refuse a teacher that has another vocabulary, or that cannot see a whole block."""
    sizes = [m.get_output_embeddings().weight.shape[0] for m in (student, teacher)]
    same = same_tokens(*tokenizers)
    if sizes[0] != sizes[1] or not same:
        raise ValueError(
            f"a teacher must share the student's vocabulary of {sizes[0]} tokens, this one has {sizes[1]}"
            + ("" if same else " and splits text differently")
            + ": choose one of the same family."
        )
    limit = getattr(teacher.config, "max_position_embeddings", None)
    if limit is not None and limit < context:
        raise ValueError(f"a teacher must see whole blocks of {context} tokens, this one sees {limit}: lower context.")
