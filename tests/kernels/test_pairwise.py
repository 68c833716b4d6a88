"""The exact kernel against plain loops in float64."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import routines
import torch
from routines import CUDA, DTYPES, FLOOR, assert_as_good_as_eager, cloud, error

from decondense.kernels import pairwise, tf32_products
from decondense.kernels.curves import CURVES
from decondense.kernels.tiles import finish_kernel

run, reference = (functools.partial(f, "dispersion") for f in (routines.run, routines.reference))


@pytest.mark.parametrize(
    "options",
    [
        {"tau": 0.1},
        {"tau": 0.03},
        {"tau": 5.0},
        {"clamp": 0.5},
        {"clamp": 0.5, "hard_clamp": True},
        {"clamp": 0.5, "hard_clamp": True, "curve": "orthogonalization"},
        {"diagonal": True, "clamp": 0.25},
        {"diagonal": True, "tau": 0.1},
        {"diagonal": True, "curve": "orthogonalization_cosine"},
        {"eps": 0.5},
        {"margin": 0.2, "curve": "orthogonalization"},
        {"margin": -0.3, "curve": "orthogonalization_cosine"},
        {"tau": 0.07, "curve": "dispersion_cosine"},
    ],
    ids=str,
)
def test_options(options, device):
    curve = options.get("curve", "dispersion")
    rest = {key: value for key, value in options.items() if key != "curve"}
    assert_as_good_as_eager(curve, cloud(2, 37, 24, condensed=0.3).to(device), **rest)


def test_the_mean_of_many_sequences(device):
    """One program takes it, some sequences at a time; its gradient is that of the values."""
    z = cloud(37, 5, 8).to(device)
    values, saved = pairwise.forward(z)
    mean, of_mean = pairwise.forward(z, mean=True)
    torch.testing.assert_close(mean, values.double().mean().float(), rtol=1e-6, atol=0)
    each, one = torch.full_like(values, 1 / 37), mean.new_ones(())
    torch.testing.assert_close(pairwise.backward(z, of_mean, one, mean=True), pairwise.backward(z, saved, each))


@pytest.mark.parametrize("mean", [False, True])
def test_the_sums_of_many_tiles(mean, device):
    """More sequences and more tiles than are added at a time."""
    batch, tiles = 37, 1100
    partial = torch.rand(batch, tiles, device=device)
    numbers = torch.tensor([[1.0], [3.0], [2.0]], device=device).repeat(1, batch)  # Q, n, ‖T‖²
    value, factors = (torch.full(shape, math.nan, device=device) for shape in ((1,) if mean else (batch,), (2, batch)))
    finish_kernel[(1 if mean else batch, 1)](
        partial, numbers, value, factors, batch, tiles, 0.0, 0.9, 0.5, 2.0, LENGTH_PARTS=1, LENGTH_BLOCK=1,
        CURVE=CURVES["decorrelation"], HARD=False, SELF=False, MEAN=mean, SEQUENCES=16 if mean else 1, BLOCK=128,
    )  # fmt: skip
    wanted = partial.double().sum(1) / 6
    torch.testing.assert_close(value.double(), wanted.mean(0, keepdim=True) if mean else wanted, rtol=1e-6, atol=0)
    torch.testing.assert_close(factors, torch.tensor([[4 / 6], [1 / 6]], device=device).expand(2, batch))


def test_identical_vectors(device):
    z = torch.ones(1, 20, 16, device=device)
    grad = reference(z)[1]
    got_value, got_grad = run(z)
    assert abs(float(got_value) + math.acos(0.9) / math.pi) < 1e-6  # every cosine saturates at 1 − 0.1
    assert np.abs(got_grad.cpu().numpy() - grad).max() < 1e-6


def test_antipodal_clusters(device):
    """Mean cosine about zero: the anchor's gradient says nothing, the deviations must say it all."""
    z = cloud(1, 40, 32, condensed=0.95)
    z[:, ::2] *= -1
    assert_as_good_as_eager("dispersion", z.to(device))
    assert_as_good_as_eager("dispersion", z.half().to(device))


def test_two_vectors_closed_form(device):
    z = torch.tensor([[[3.0, 0.0], [0.0, 2.0]]], device=device)
    value, grad = run(z, eps=0.0, upstream=torch.ones(1))
    assert abs(float(value) + 0.5) < 1e-6  # −arccos(0)/π
    # ∂/∂z_1 of −arccos(c)/π with c = 0: (1/π) (z_2/‖z_2‖)/‖z_1‖
    expected = torch.tensor([[[0.0, 1 / (3 * math.pi)], [1 / (2 * math.pi), 0.0]]], device=device)
    torch.testing.assert_close(grad, expected, rtol=1e-5, atol=1e-7)


def planned(z, masked):
    size = 4 if z.dtype == torch.float16 else z.element_size()
    options = {"itemsize": z.element_size(), "weight_itemsize": size, "masked": masked, "block": pairwise.BLOCK}
    return pairwise.plan(*z.shape, **options)


@pytest.mark.parametrize("with_mask", [False, True])
@pytest.mark.parametrize("dtype", DTYPES if CUDA else [torch.float32])
def test_row_blocks_and_chunks_of_sequences(dtype, with_mask, device, monkeypatch):
    """A buffer for part of a sequence, or for some of the sequences, gives what one for all of it gives."""
    z = cloud(3, 130, 8).to(dtype).to(device)
    mask = None
    if with_mask:
        mask = (torch.rand(z.shape[:2], generator=torch.Generator().manual_seed(1)) < 0.8).to(device)
        z[~mask] = math.nan
    whole, whole_grad = run(z, mask)
    value, grad = reference(z.nan_to_num(), mask)
    assert error(whole, value) < FLOOR[dtype]
    assert error(whole_grad, grad) < 2 * FLOOR[dtype]
    assert planned(z, with_mask) == (3, 130, with_mask)
    size = 130 * (144 * (4 if dtype != torch.bfloat16 else 2) + with_mask * 8 * z.element_size())
    for small, expected in (
        (1, (1, 128, False)),  # rows of one sequence
        (2 * size, (2, 130, with_mask)),  # two sequences, then the third
        (size - 1, (1, 130, False) if with_mask else (1, 128, False)),  # no room for a clean copy
    ):
        monkeypatch.setattr(pairwise, "SMALL_BUFFER", small)
        monkeypatch.setattr(pairwise, "BUFFER_SHARE", 0.0)
        pairwise.prepared.cache_clear()
        assert planned(z, with_mask) == expected
        value, grad = run(z, mask)
        torch.testing.assert_close(value, whole, rtol=1e-6, atol=1e-6)
        assert error(grad, whole_grad) < FLOOR[dtype]
    pairwise.prepared.cache_clear()


@pytest.mark.parametrize("masked", [False, True])
def test_plan_keeps_to_the_budget(masked):
    for batch, tokens, width in [(32, 1024, 768), (8, 4096, 1024), (1, 131072, 1024), (2, 8192, 4096)]:
        found = pairwise.plan(batch, tokens, width, itemsize=2, weight_itemsize=2, masked=masked, block=pairwise.BLOCK)
        taken = found.sequences * 2 * tokens * (found.rows + found.clean * width)
        assert taken <= 0.75 * batch * tokens * width * 2
        assert found.rows == tokens or (found.sequences == 1 and found.rows % pairwise.BLOCK == 0)
    found = pairwise.plan(32, 1024, 768, itemsize=2, weight_itemsize=2, masked=masked, block=pairwise.BLOCK)
    assert found == ((8, 1024, True) if masked else (16, 1024, False))


def test_float16_gradients_do_not_underflow(device):
    z = (cloud(1, 40, 32) * 200).half().to(device)
    scale = 2.0**16
    _, grad = run(z, upstream=scale * routines.weights("dispersion", 1))
    assert error(grad.double() / scale, reference(z)[1]) < 2e-3


def test_autocast_takes_bfloat16_products(device):
    z = cloud(2, 48, 64, condensed=0.9).to(device)
    value, grad = reference(z)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        assert pairwise._precision(z).copy == torch.bfloat16
        got_value, got_grad = run(z)
    theirs = routines.eager("dispersion", z.bfloat16())
    assert got_grad.dtype == torch.float32
    assert error(got_value, value) <= 2 * error(theirs[0], value)
    assert error(got_grad, grad) <= error(theirs[1], grad)  # norms and the first-order part are float32


@pytest.mark.parametrize("name", ["dispersion", "second_order"])
def test_tf32_however_torch_was_told(name, device):
    """Trainer sets `fp32_precision` for `tf32=True` and compilation, and torch then refuses to read `allow_tf32`."""
    matmul, z = torch.backends.cuda.matmul, cloud(2, 48, 24).to(device)
    plain, own = routines.run(name, z), matmul.fp32_precision
    try:
        told = (("allow_tf32", True), ("allow_tf32", False), ("fp32_precision", "tf32"), ("fp32_precision", "none"))
        for setting, value in told:
            setattr(matmul, setting, value)
            assert tf32_products() == (value in (True, "tf32"))  # "none": it was told nothing
            for found, expected in zip(routines.run(name, z), plain):
                assert error(found, expected) < (5e-3 if CUDA else 1e-6)
    finally:
        matmul.fp32_precision = own


def test_masked_autocast(device):
    tokens = 270 if CUDA else 70  # tiles that touch neither the diagonal nor the end must mind the mask as well
    z = cloud(2, tokens, 32).to(device)
    mask = (torch.rand(2, tokens, generator=torch.Generator().manual_seed(0)) < 0.6).to(device)
    z[~mask] = math.nan
    value, grad = reference(z.nan_to_num(), mask)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        got_value, got_grad = run(z, mask)
    assert error(got_value, value) < 1e-3
    assert error(got_grad, grad) < 5e-3
