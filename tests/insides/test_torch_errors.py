"""What decondense needs of torch's insides, and the sentences of errors that have no type."""

from __future__ import annotations

import pytest
import torch

from decondense.insides import Moved
from decondense.insides import torch as inside


def test_compiled_modules_are_set_aside_and_come_back():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    model[0].compile()
    assert model[0]._compiled_call_impl is not None  # what compile() sets, and what a call looks at
    model[0]._compiled_call_impl = lambda x: x + 7
    with inside.eager(model):
        plain = model[0](torch.zeros(1, 2))
    assert torch.equal(plain, model[0].forward(torch.zeros(1, 2)))
    assert torch.equal(model[0](torch.zeros(1, 2)), torch.full((1, 2), 7.0))


def test_an_attribute_that_is_gone_is_named(monkeypatch):
    monkeypatch.delattr(torch.nn.Module, "_compiled_call_impl")
    moved = pytest.raises(Moved, match=r"_compiled_call_impl must exist in torch, because compiled blocks")
    with moved, inside.eager(torch.nn.Linear(2, 2)):
        pass


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
