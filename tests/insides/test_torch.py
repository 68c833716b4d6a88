"""What decondense needs of torch and torchtitan is where it was, and what is gone is named; errors without a type."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import pytest
import torch
from torch import nn

from decondense.insides import Moved
from decondense.insides import torch as inside
from decondense.insides.torchtitan import configurations


def test_replicas_of_data_parallel(monkeypatch):
    module = nn.Linear(2, 2)
    assert not inside.is_replica(module)
    assert inside.is_replica(module._replicate_for_data_parallel())
    monkeypatch.delattr(nn.Module, "_replicate_for_data_parallel")
    with pytest.raises(Moved, match=r"_replicate_for_data_parallel must exist in torch, because replicas"):
        inside.is_replica(module)


def test_compiled_modules_are_set_aside_and_come_back():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].compile()
    assert model[0]._compiled_call_impl is not None  # what compile() sets, and what a call looks at
    model[0]._compiled_call_impl = lambda x: x + 7
    with inside.eager(model):
        plain = model[0](torch.zeros(1, 2))
    assert torch.equal(plain, model[0].forward(torch.zeros(1, 2)))
    assert torch.equal(model[0](torch.zeros(1, 2)), torch.full((1, 2), 7.0))


def test_an_attribute_that_is_gone_is_named(monkeypatch):
    monkeypatch.delattr(nn.Module, "_compiled_call_impl")
    moved = pytest.raises(Moved, match=r"_compiled_call_impl must exist in torch, because compiled blocks")
    with moved, inside.eager(nn.Linear(2, 2)):
        pass


def test_context_parallelism_is_noticed(monkeypatch):
    ring = importlib.import_module("torch.distributed.tensor.experimental._context_parallel._attention")
    assert not inside.context_is_parallel()
    ring._enable_cp_dtensor_dispatcher()  # what `context_parallel` does when it is entered
    try:
        assert inside.context_is_parallel()
    finally:
        ring._disable_cp_dtensor_dispatcher()
    assert not inside.context_is_parallel()
    monkeypatch.delattr(ring, "custom_ops")
    with pytest.raises(Moved, match=r"custom_ops must exist in torch, because sequences that are split"):
        inside.context_is_parallel()


def test_memory_that_is_not_there():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 55)
    assert inside.out_of_memory(caught.value)
    assert inside.out_of_memory(torch.OutOfMemoryError("CUDA out of memory."))
    assert not inside.out_of_memory(RuntimeError("shapes do not fit"))


def test_a_process_that_is_gone():
    assert inside.lost_process(torch.distributed.DistBackendError("NCCL error"))
    assert inside.lost_process(RuntimeError("[pair.cc:553] Connection closed by peer [127.0.0.1]:30382."))
    assert not inside.lost_process(RuntimeError("shapes do not fit"))


def test_configurations_of_torchtitan(monkeypatch):
    """torchtitan itself where it is installed; its shape, and what a missing list says, everywhere."""
    package, models, family = (ModuleType(name) for name in ("torchtitan", "torchtitan.models", "registry"))
    family.toy_1b = lambda: "a configuration"
    monkeypatch.setitem(sys.modules, "torchtitan", package)
    monkeypatch.setitem(sys.modules, "torchtitan.models", models)
    monkeypatch.setitem(sys.modules, "torchtitan.models.toy", ModuleType("torchtitan.models.toy"))
    monkeypatch.setitem(sys.modules, "torchtitan.models.toy.config_registry", family)
    with pytest.raises(Moved, match=r"torchtitan\.models\._supported_models must exist in torchtitan"):
        list(configurations("toy_1b"))
    models._supported_models = frozenset(["toy", "other"])
    assert [f() for f in configurations("toy_1b")] == ["a configuration"]
    assert list(configurations("toy_2b")) == []


def test_the_installed_torchtitan():
    pytest.importorskip("torchtitan")
    assert list(configurations("qwen3_0_6b"))
