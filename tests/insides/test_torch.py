"""What decondense needs of the insides of torch and torchtitan is where it was, and what is gone is named."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
from torch import nn

from decondense.insides import Moved
from decondense.insides.torch import is_replica
from decondense.insides.torchtitan import configurations


def test_replicas_of_data_parallel(monkeypatch):
    module = nn.Linear(2, 2)
    assert not is_replica(module)
    assert is_replica(module._replicate_for_data_parallel())
    monkeypatch.delattr(nn.Module, "_replicate_for_data_parallel")
    with pytest.raises(Moved, match=r"_replicate_for_data_parallel must exist in torch, because replicas"):
        is_replica(module)


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
