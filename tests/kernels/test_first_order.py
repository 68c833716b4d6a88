"""The mean cosine and its gradient against plain loops in float64."""

from __future__ import annotations

import math

import oracle
import pytest
import torch
from test_pairwise import CUDA, DTYPES, FLOOR, cloud, error, ragged

from decondense.kernels import available, first_order

SHAPES = [(1, 2, 3), (2, 45, 40), (3, 33, 7), (1, 300, 5), (2, 19, 130)]


def run(z, mask=None, *, eps=1e-2):
    """Value and gradient, and what the loops say of both."""
    upstream = torch.linspace(0.5, -1.5, len(z))
    value, saved = first_order.forward(z, mask, eps=eps)
    grad = first_order.backward(z, mask, saved, upstream.to(z.device), eps=eps)
    means, expected = oracle.two_moments(z.nan_to_num(), mask, upstream, torch.zeros(len(z)), eps=eps)
    return value, grad, means[0], expected


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("eps", [1e-2, 0.0])
def test_value_and_gradient(shape, dtype, eps, device):
    z = cloud(*shape, seed=sum(shape)).to(dtype).to(device)
    value, grad, expected, expected_grad = run(z, eps=eps)
    assert value.dtype == torch.float32
    assert error(value, expected) < 2e-6
    assert grad.dtype == dtype
    assert error(grad, expected_grad) < max(3e-6, FLOOR[dtype])
    assert first_order.forward(z, eps=eps, need_grad=False)[1] == ()


def test_ragged_mask(device):
    z, mask = cloud(5, 40, 24).to(device), ragged(device)
    z[~mask] = math.nan  # a masked token is never read
    value, grad, expected, expected_grad = run(z, mask)
    assert error(value, expected) < 1e-6
    assert error(grad, expected_grad) < 1e-6
    assert value[3:].tolist() == [0.0, 0.0]
    assert (grad[~mask] == 0).all()
    assert (grad[3:] == 0).all()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_invalid_numbers_are_seen(bad, device):
    z = cloud(2, 20, 16).to(device)
    z[1, 7, 3] = bad
    value, _ = first_order.forward(z)
    assert value[0].isfinite()
    assert value[1].isnan()


def test_zero_vectors_and_strides(device):
    base = cloud(2, 40, 48).to(device)
    base[0, 4] = 0
    for z in (base[:, ::2], base[:, :, 8:24], base[:, :, ::2]):
        _, grad, _, expected = run(z)
        assert error(grad, expected) < 1e-6


def test_empty_batch(device):
    z = torch.zeros(0, 5, 8, device=device)
    value, saved = first_order.forward(z)
    assert value.shape == (0,)
    assert first_order.backward(z, None, saved, value).shape == (0, 5, 8)


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
    assert error(value, mean.cpu().numpy()) < 2e-6
    assert error(saved[1], u.sum(1).cpu().numpy()) < 1e-6
