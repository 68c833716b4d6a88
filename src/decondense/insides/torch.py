"""Insides of torch: what wraps a model, compilation switched off for a while, errors without a type of their own."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from . import Moved, attribute, member


def is_replica(module: Any) -> bool:
    """Whether this is a replica made by nn.DataParallel: replicas run side by side, which one handle cannot serve."""
    if not hasattr(type(module), "_replicate_for_data_parallel"):
        raise Moved("torch", "nn.Module._replicate_for_data_parallel", "replicas of nn.DataParallel must be refused")
    return "_is_replica" in vars(module)


def unwrapped(model: Any) -> Any:
    """The module inside wrappers of DDP and `torch.compile`, in any order; any other module as it is. Its hooks still
    run: DDP calls the module, and the compiler compiles it with its hooks."""
    if isinstance(model, nn.DataParallel):
        raise TypeError(
            "a model must run in one place of a process, got nn.DataParallel, whose replicas run side by side: use "
            "DDP, or give the model in it, its .module, where that is what you call."
        )
    inner = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
    inner = getattr(inner, "_orig_mod", inner)
    return inner if inner is model else unwrapped(inner)


_COMPILED = "compiled blocks must be called without their compilation, or with another"


def compiled_call(module: nn.Module) -> Any:
    """The compiled call that `nn.Module.compile` stores in a module; None if the module was not compiled."""
    return attribute(module, "_compiled_call_impl", library="torch", why=_COMPILED)


def replace_compiled_call(module: nn.Module, call: Any) -> None:
    """Store another compiled call, as no public function does. Copies and pickles of the module leave it out."""
    module._compiled_call_impl = call


def call_with(module: nn.Module, forward: Any, *args: Any, **kwargs: Any) -> Any:
    """Run the call that `nn.Module.compile` compiles, hooks included, with another `forward` in the middle."""
    call = attribute(module, "_call_impl", library="torch", why=_COMPILED)
    vars(module)["forward"] = forward
    try:
        return call(*args, **kwargs)
    finally:
        del vars(module)["forward"]


@contextlib.contextmanager
def eager(model: nn.Module) -> Iterator[None]:
    """Run compiled modules uncompiled: a look at the model during training is not worth a compilation."""
    compiled = {module: compiled_call(module) for module in model.modules()}
    for module in compiled:
        replace_compiled_call(module, None)
    try:
        yield
    finally:
        for module, call in compiled.items():
            replace_compiled_call(module, call)


def context_is_parallel() -> bool:
    """Whether torch's context parallelism is on, so that this process sees its part of every sequence. The only trace
    of it is that attention on DTensors is dispatched to a ring."""
    module = "torch.distributed.tensor.experimental._context_parallel._attention"
    if module not in sys.modules:  # never imported: it was not switched on
        return False
    why = "sequences that are split over processes must be noticed"
    rings = member(module, "custom_ops", why=why)
    dispatcher = attribute(torch.distributed.tensor.DTensor, "_op_dispatcher", library="torch", why=why)
    handlers = attribute(dispatcher, "_custom_op_handlers", library="torch", why=why)
    return any(handlers.get(operation) is ring for operation, ring in rings.items())


def out_of_memory(error: RuntimeError) -> bool:
    """Whether memory ran out: torch has an error type for a GPU's memory, but only a message for the host's."""
    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)


def lost_process(error: RuntimeError) -> bool:
    """Whether another process is gone: errors of NCCL have a type, those of gloo only the connection's message."""
    gloo = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "gloo", "Gloo")
    known = isinstance(error, torch.distributed.DistError) if torch.distributed.is_available() else False
    return known or any(sentence in str(error) for sentence in gloo)
