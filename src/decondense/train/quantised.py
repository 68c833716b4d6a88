"""The held-out loss of a model as it would be after quantisation: simulated, in place, and undone bit for bit.

Symmetric, to nearest, no calibration: a group g of numbers becomes s · round(g / s), s = max|g| / (2^(bits−1) − 1).

int8        weights in groups of 32 along the input dimension
int4        the same with 15 levels
int8-int8   weights as int8, and the input of every linear layer too: one scale per token, computed on the fly

Linear layers are nn.Linear and the Conv1D of transformers, the output head among them; where it is tied, the input
embedding is the same tensor and rounded with it. Untied embeddings, biases and norms stay as they are, and so do
experts that are stored as one tensor. nn.MultiheadAttention does not call its linear layer: neither in_proj_weight nor
any input of it is rounded. Sums are made in the precision of the run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.pytorch_utils import Conv1D

from ..words import Tell, nobody
from .held_out import Document, document_losses

GROUP = 32


def rounded(values: Tensor, bits: int, group: int | None = None) -> Tensor:
    """Round every group of the last dimension (..., n) to its grid by the equation above; default: one group. The last
    group may be shorter."""
    size = values.shape[-1]
    group = group or size
    groups = F.pad(values.float(), (0, -size % group)).unflatten(-1, (-1, group))
    scale = groups.abs().amax(-1, keepdim=True) / (2 ** (bits - 1) - 1)
    steps = torch.round(groups / torch.where(scale > 0, scale, 1.0))
    return (steps * scale).flatten(-2)[..., :size].to(values.dtype)


@contextlib.contextmanager
def quantised(model: nn.Module, scheme: str) -> Iterator[None]:
    """Within this context the model computes as after quantisation. Compiled blocks must be set aside
    (`insides.torch.eager`), since they do not see hooks that are registered later."""
    weights, _, activations = scheme.partition("-")
    layers = [module for module in model.modules() if isinstance(module, (nn.Linear, Conv1D))]
    # the weight of a Conv1D is (in, out); tied weights are one tensor
    shared = {id(layer.weight): (layer.weight, isinstance(layer, Conv1D)) for layer in layers}
    with contextlib.ExitStack() as undo, torch.no_grad():
        for weight, across in shared.values():
            undo.callback(weight.data.copy_, weight.detach().clone())
            by_input = weight.data.T if across else weight.data
            by_input.copy_(rounded(by_input, int(weights.removeprefix("int")), GROUP))
        for layer in layers if activations else ():
            bits = int(activations.removeprefix("int"))
            hook = layer.register_forward_pre_hook(partial(_rounded_input, bits), with_kwargs=True)
            undo.callback(hook.remove)
        yield


def _rounded_input(bits: int, _: nn.Module, args: tuple[Any, ...], by_name: dict[str, Any]) -> tuple[Any, Any]:
    """Round the one input of a linear layer, given by position or by name."""
    args = tuple(rounded(x, bits) for x in args)
    return args, {name: rounded(x, bits) for name, x in by_name.items()}


def quantised_losses(
    model: Any, documents: list[Document], context: int, deciles: np.ndarray, schemes: Sequence[str], *,
    progress: Tell = nobody,
) -> dict[str, dict[str, float]]:  # fmt: skip
    """Scheme → text → loss, in the form of `held_out_texts`, which is of the model without quantisation."""
    losses = {}
    for scheme in schemes:
        shown: dict[str, Any] = {"progress": progress, "what": f"held-out documents in {scheme}"}
        with quantised(model, scheme):
            losses[scheme] = document_losses(model, documents, context, deciles, **shown)["held_out_texts"]
    return losses
