"""What the losses share around their mathematics: checked choices, and the mean over sequences."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

import torch
from torch import Tensor


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """One of a few words; the error names the nearest."""
    choices = list(choices)
    if value in choices:
        return
    near = difflib.get_close_matches(str(value), choices, n=1, cutoff=0.4)
    remedy = f"did you mean {near[0]!r}?" if near else "pick one of these."
    raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}: {remedy}")


def finish(value: Tensor, mask: Tensor | None, reduction: str) -> Tensor:
    """The mean over the sequences of values (batch,), 0 for those with fewer than two tokens that count."""
    check_choice("reduction", reduction, ("mean", "none"))
    if mask is not None:
        value = torch.where(mask.bool().sum(1) >= 2, value, 0)
    return value.mean() if reduction == "mean" else value
