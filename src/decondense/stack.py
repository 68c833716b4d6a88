"""The modules of a Transformer: where its blocks are, and how to look at it while it trains."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from .insides.torch import eager
from .insides.transformers import is_encoder_decoder


def unwrap_peft(model: Any) -> Any:
    """The transformers model inside a PEFT model; any other model as it is."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def stack_of(model: Any) -> Any:
    """The module of a transformers model that every call goes through, from the embedding layer to the last block; of
    an encoder–decoder the decoder. Where the body is nothing but a wrapper of a decoder, it is that: the heads of OPT,
    and of BART and its like without an encoder, call the decoder past the body."""
    if is_encoder_decoder(model):
        return model.get_decoder()
    body = model.base_model
    decoder: Any = getattr(body, "decoder", None)
    wraps = hasattr(decoder, "base_model") and set(decoder.parameters()) == set(body.parameters())
    return decoder if wraps else body


def padded_by(model: nn.Module, name: str) -> tuple[str, str] | None:
    """Of torch's own stacks and layers the innermost around a module, or the one that it wraps, as a checkpoint does:
    its name, and what its argument is called that says what is padding."""
    sources = (nn.TransformerEncoder, nn.TransformerEncoderLayer)
    targets = (nn.TransformerDecoder, nn.TransformerDecoderLayer)
    while len(inside := list(model.get_submodule(name).named_children())) == 1:
        name = f"{name}.{inside[0][0]}"
    levels = name.split(".")
    for level in range(len(levels), -1, -1):
        outer = ".".join(levels[:level])
        module = model.get_submodule(outer)
        if isinstance(module, (*sources, *targets)):
            return outer, "src_key_padding_mask" if isinstance(module, sources) else "tgt_key_padding_mask"
    return None


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """The blocks of the stack: of all lists of modules in the model the one with the most parameters, and of two that
    hold the same ones the outer. The longest would not do: a layer may hold more experts than there are layers."""
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m)]
    return list(max(lists, key=lambda modules: sum(p.numel() for p in modules.parameters()), default=()))


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """In eval mode, and afterwards every module in the mode it had: a frozen part may have been in another."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextlib.contextmanager
def unnoticed(model: nn.Module) -> Iterator[None]:
    """A look at a model that trains: in eval mode, compiled modules as they are written, and afterwards the random
    numbers as they were."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with evaluating(model), eager(model), torch.random.fork_rng(devices):
        yield
