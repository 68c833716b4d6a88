"""The mean cosine: where its kernels are available, and many programs of them."""

from __future__ import annotations

import pytest
import torch
from routines import CUDA, cloud, error

from decondense.kernels import available, first_order


def test_available(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert available("cpu") is False
    assert available("cuda:0") is CUDA
    assert available(torch.device("meta")) is False
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert available(torch.device("cpu")) is True
    assert available("cuda") is False


@pytest.mark.skipif(not CUDA, reason="needs a GPU")
def test_many_programs_on_the_gpu(device):
    z = cloud(1, 20001, 769).to(device)
    value, saved = first_order.forward(z)
    u = z.double() / (z.double().norm(dim=-1, keepdim=True) + 1e-2)
    mean = (u.sum(1).square().sum() - u.square().sum()) / (20001 * 20000)
    assert error(value, mean) < 2e-6
    assert error(saved[1], u.sum(1)) < 1e-6
