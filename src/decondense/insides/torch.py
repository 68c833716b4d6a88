"""Insides of torch: replicas, compiled modules set aside for a while, and errors that have no type of their own."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from . import Moved, attribute, member


def is_replica(module: Any) -> bool:
    """Whether nn.DataParallel made this copy of a model: copies run side by side, which one handle cannot serve."""
    if not hasattr(type(module), "_replicate_for_data_parallel"):
        raise Moved("torch", "nn.Module._replicate_for_data_parallel", "replicas of nn.DataParallel must be refused")
    return "_is_replica" in vars(module)


def uncompiled(model: Any) -> Any:
    """The module inside what `torch.compile` returned, whose hooks are compiled with it; any other as it is."""
    return getattr(model, "_orig_mod", model)


@contextlib.contextmanager
def eager(model: nn.Module) -> Iterator[None]:
    """Modules that `nn.Module.compile` has compiled run as they are written: a look at the model in between is not
    worth a compilation, and no public call takes one off and puts it back."""
    why = "compiled blocks must be set aside while a model is measured"
    compiled = {m: attribute(m, "_compiled_call_impl", library="torch", why=why) for m in model.modules()}
    for module in compiled:
        module._compiled_call_impl = None
    try:
        yield
    finally:
        for module, call in compiled.items():
            module._compiled_call_impl = call


def context_is_parallel() -> bool:
    """Whether torch's context parallelism is on, so that this process sees its part of every sequence. It makes
    attention on DTensors go round a ring, and that is all that can be asked about it."""
    module = "torch.distributed.tensor.experimental._context_parallel._attention"
    if module not in sys.modules:  # who never imported it has not switched it on
        return False
    why = "sequences that are split over processes must be noticed"
    rings = member(module, "custom_ops", library="torch", why=why)
    dispatcher = attribute(torch.distributed.tensor.DTensor, "_op_dispatcher", library="torch", why=why)
    handlers = attribute(dispatcher, "_custom_op_handlers", library="torch", why=why)
    return any(handlers.get(operation) is ring for operation, ring in rings.items())


def out_of_memory(error: RuntimeError) -> bool:
    """A GPU's memory has an error of its own, that of the machine has only a sentence."""
    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)


def lost_process(error: RuntimeError) -> bool:
    """Whether another process is gone. NCCL's errors have a type, those of gloo only the sentence of the connection."""
    gloo = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "gloo", "Gloo")
    known = isinstance(error, torch.distributed.DistError) if torch.distributed.is_available() else False
    return known or any(sentence in str(error) for sentence in gloo)
