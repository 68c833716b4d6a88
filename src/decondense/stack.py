"""The modules of a Transformer: where its blocks are, and how to run it for a look during training."""

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
    an encoder–decoder, the decoder. If the body only wraps a decoder, that decoder: OPT with a head, and decoder-only
    BART and the like, call the decoder directly, past the body."""
    if is_encoder_decoder(model):
        return model.get_decoder()
    body = model.base_model
    decoder: Any = getattr(body, "decoder", None)
    wraps = hasattr(decoder, "base_model") and set(decoder.parameters()) == set(body.parameters())
    return decoder if wraps else body


def padded_by(model: nn.Module, name: str) -> tuple[str, str] | None:
    """The innermost Transformer stack or layer of torch's own that contains a module, or that the module wraps (as a
    checkpoint wrapper does): its name, and the name of its padding-mask argument. None if there is none."""
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
    """The blocks of the stack: the module list with the most parameters in the model; of two with the same parameters
    the outer. Not the longest list: a layer may hold more experts than there are layers."""
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m)]
    return list(max(lists, key=lambda modules: sum(p.numel() for p in modules.parameters()), default=()))


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put the model in eval mode, and afterwards every module back in its own mode: frozen parts may differ."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextlib.contextmanager
def unnoticed(model: nn.Module) -> Iterator[None]:
    """Run a model for a look during training without effect on it: in eval mode, compiled modules uncompiled, and the
    random state restored afterwards."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with evaluating(model), eager(model), torch.random.fork_rng(devices):
        yield
