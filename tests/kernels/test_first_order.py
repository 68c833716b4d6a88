"""The first-order sums and their gradient against plain loops in float64."""

from __future__ import annotations

import math

import numpy as np
import oracle
import pytest
import torch
from test_pairwise import CUDA, DTYPES, FLOOR, cloud, error

from decondense.kernels import available, first_order

SHAPES = [(1, 2, 3), (2, 45, 40), (3, 33, 7), (1, 300, 5), (2, 19, 130)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("eps", [1e-2, 0.0])
def test_sums_and_gradient(shape, dtype, eps, device):
    z = cloud(*shape, seed=sum(shape)).to(dtype).to(device)
    coefficient = torch.linspace(0.5, -1.5, shape[0])
    total, square, count, norms = first_order.forward(z, None, eps=eps)
    expected = oracle.sums(z, None, eps=eps)
    for got, want in zip((total, square, count, norms), expected, strict=True):
        assert got.dtype == torch.float32
        assert error(got, want) < 1e-6
    grad = first_order.backward(z, None, norms, total, coefficient.to(device), eps=eps)
    assert grad.dtype == dtype
    assert error(grad, oracle.first_order_gradient(z, None, coefficient, eps=eps)) < max(3e-6, FLOOR[dtype])


def test_ragged_mask(device):
    z = cloud(4, 40, 24).to(device)
    mask = torch.arange(40)[None, :] < torch.tensor([40, 17, 1, 0])[:, None]
    mask[0, ::3] = False
    mask = mask.to(device)
    z[~mask] = math.nan
    coefficient = torch.tensor([1.0, 2.0, 0.0, 0.0], device=device)
    total, square, count, norms = first_order.forward(z, mask)
    for got, want in zip((total, square, count, norms), oracle.sums(z.nan_to_num(), mask), strict=True):
        assert error(got, want) < 1e-6
    grad = first_order.backward(z, mask, norms, total, coefficient)
    assert error(grad, oracle.first_order_gradient(z.nan_to_num(), mask, coefficient)) < 1e-6
    assert (grad[~mask] == 0).all()
    assert (grad[2:] == 0).all()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_invalid_numbers_are_seen(bad, device):
    z = cloud(2, 20, 16).to(device)
    z[1, 7, 3] = bad
    total, square, _, _ = first_order.forward(z, None)
    assert total[0].isfinite().all()
    assert (total[1].square().sum() - square[1]).isnan()


def test_zero_vectors_and_strides(device):
    base = cloud(2, 40, 48).to(device)
    base[0, 4] = 0
    ones = torch.ones(2, device=device)
    for z in (base[:, ::2], base[:, :, 8:24], base[:, :, ::2]):
        total, _, _, norms = first_order.forward(z, None)
        grad = first_order.backward(z, None, norms, total, ones)
        assert error(grad, oracle.first_order_gradient(z, None, ones.cpu())) < 1e-6


def test_gradient_is_that_of_the_mean_cosine(device):
    """Against autograd through ½ (‖T‖² − Q), the thing it is the gradient of."""
    z = cloud(2, 30, 16).double().requires_grad_()
    u = z / (z.norm(dim=-1, keepdim=True) + 1e-2)
    (0.5 * (u.sum(1).square().sum() - u.square().sum())).backward()
    f = z.detach().float().to(device)
    total, _, _, norms = first_order.forward(f, None)
    grad = first_order.backward(f, None, norms, total, torch.ones(2, device=device))
    assert error(grad, z.grad.numpy()) < 1e-6


def test_mean_cosine(device):
    """The mean over the pairs i ≠ j, pair by pair, and its gradient through autograd in float64."""
    z = cloud(4, 30, 40)
    mask = torch.arange(30)[None, :] < torch.tensor([30, 11, 1, 0])[:, None]
    leaf = z.double().requires_grad_()
    u = leaf / (leaf.norm(dim=-1, keepdim=True) + 1e-2)
    means = [
        torch.stack([u[b, i] @ u[b, j] for i in range(n) for j in range(n) if i != j]).mean()
        for b, n in ((0, 30), (1, 11))
    ]
    (means[0] - 2 * means[1]).backward()
    z[~mask] = math.nan
    got, saved = first_order.mean_cosine(z.to(device), mask.to(device))
    assert error(got[:2], torch.stack(means).detach().numpy()) < 1e-6
    assert got[2:].tolist() == [0.0, 0.0]
    upstream = torch.tensor([1.0, -2.0, 3.0, 4.0], device=device)
    grad = first_order.mean_cosine_backward(z.to(device), mask.to(device), saved, upstream)
    assert error(grad, leaf.grad.numpy()) < 1e-6


def test_empty_batch(device):
    z = torch.zeros(0, 5, 8, device=device)
    total, square, _count, norms = first_order.forward(z, None)
    assert total.shape == (0, 8)
    assert first_order.backward(z, None, norms, total, square).shape == (0, 5, 8)


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
    total, square, count, norms = first_order.forward(z, None)
    u = z.double() / (z.double().norm(dim=-1, keepdim=True) + 1e-2)
    assert error(total, u.sum(1).cpu().numpy()) < 1e-6
    assert error(square, u.square().sum((1, 2)).cpu().numpy()) < 1e-6
    assert count.tolist() == [20001]
    assert np.isfinite(norms.cpu().numpy()).all()
