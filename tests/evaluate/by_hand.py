"""Items made by hand, and the likelihood of one request by a plain loop."""

from __future__ import annotations

from typing import Any

import torch


def make_item(
    task: str, number: int, correct: float, *, values: tuple[float, ...] = (-1.0, -2.0), **changes: Any
) -> dict:
    item = {
        "task": task,
        "subtask": task,
        "doc_id": number,
        "item": f"{task}-{number}",
        "prediction": "0",
        "target": "0",
        "gold": [0],
        "correct": float(correct),
        "acc_norm": None,
        "loglikelihoods": list(values),
        "greedy": [False] * len(values),
        "units": [3] * len(values),
        "cut": 0,
    }
    return item | changes


def brute_force(model, context: list[int], continuation: list[int], limit: int) -> tuple[float, bool]:
    """One request, no batch, no padding, float64: Σ log p(token | everything before it)."""
    tokens = (context + continuation)[-(limit + 1) :]
    with torch.no_grad():
        scores = torch.log_softmax(model(torch.tensor([tokens[:-1]])).logits[0].double(), -1)
    total, greedy = 0.0, True
    for k, token in enumerate(continuation):
        row = scores[len(tokens) - 1 - len(continuation) + k]
        total += float(row[token])
        greedy &= int(row.argmax()) == token
    return total, greedy
