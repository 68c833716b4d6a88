"""The losses whose kernels multiply in 16 bits: against the loops in float64, beside the plain formula in 16 bits."""

from __future__ import annotations

import math

import pytest
import reference
import rival_reference as rival
import torch
from routines import CUDA, cloud, error

from decondense import losses
from decondense.kernels import repulsion

DEVICE = "cuda" if CUDA else "cpu"
pytestmark = pytest.mark.usefixtures("chosen")


def vicreg(z):
    """Plain torch: autocast makes the product 16 bits wide."""
    x = z - z.mean(1, keepdim=True)
    c = x.mT @ x / (z.shape[1] - 1)
    variance = c.diagonal(dim1=1, dim2=2)
    off = c.square().sum((1, 2)) - variance.square().sum(1)
    return 25 * (1 - (variance + 1e-4).sqrt()).clamp_min(0).mean(1) + off / z.shape[2]


def l2_repel(z, tau):
    x = z - z.mean(1, keepdim=True)
    square = x.square().sum(-1)
    distance = (square[:, :, None] + square[:, None, :] - 2 * (x @ x.mT)).clamp_min(0)
    pairs = ~torch.eye(z.shape[1], dtype=torch.bool, device=z.device)
    value = torch.logsumexp(-distance[:, pairs] / tau, 1) - math.log(int(pairs.sum()))
    return value + 0.1 * z.square().mean((1, 2))


def koleo(z):
    u = z / z.norm(dim=-1, keepdim=True)
    nearest = (u @ u.mT - 2 * torch.eye(z.shape[1], device=z.device)).argmax(-1, keepdim=True)
    distance = (u - u.gather(1, nearest.expand_as(u))).norm(dim=-1)
    return -torch.log(distance + 1e-8).mean(1)


CASES = {
    "vicreg": (losses.vicreg, vicreg, rival.vicreg, {}),
    "l2_repel": (losses.l2_repel, l2_repel, reference.l2_repel, {"tau": 2.0}),
    "koleo": (losses.koleo, koleo, rival.koleo, {}),
}
SHAPES = [(2, 33, 8), (2, 9, 14)]
every_case = pytest.mark.parametrize(("loss", "eager", "loops", "options"), CASES.values(), ids=CASES.keys())


def gradient(function, z, dtype=torch.bfloat16, **options):
    leaf = z.detach().clone().requires_grad_()
    with torch.autocast(z.device.type, dtype, enabled=z.dtype == torch.float32):
        value = function(leaf, **options).float().mean()
    value.backward()
    return value.detach().reshape(1), leaf.grad


def truth(loops, z, mask=None, **options):
    leaf = z.detach().double().cpu().requires_grad_()
    value = reference.over_batch(loops, leaf, None if mask is None else mask.cpu(), **options)
    return value.detach().reshape(1), torch.autograd.grad(value, leaf)[0]


@pytest.mark.parametrize("condensed", [0.0, 0.9])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@every_case
def test_as_good_as_the_plain_formula(loss, eager, loops, options, shape, condensed):
    z = cloud(*shape, condensed=condensed, spread=0.5).to(DEVICE)
    expected, theirs = truth(loops, z, **options), gradient(eager, z, **options)
    found = gradient(loss, z, backend="triton", **options)
    assert error(found[0], expected[0]) <= max(2 * error(theirs[0], expected[0]), 2e-3)
    assert error(found[1], expected[1]) <= 2 * error(theirs[1], expected[1])


@every_case
def test_ragged_mask(loss, eager, loops, options):
    """A sequence with holes, a shorter one, a single token, none; what is masked is never read."""
    z = cloud(4, 20, 8, spread=0.5).to(DEVICE)
    mask = torch.arange(20)[None, :] < torch.tensor([20, 7, 1, 0])[:, None]
    mask[0, ::3] = False
    mask = mask.to(DEVICE)
    expected = truth(loops, z, mask, **options)
    z[~mask] = math.nan
    value, grad = gradient(loss, z, mask=mask, backend="triton", **options)
    assert error(value, expected[0]) < 5e-3
    assert error(grad, expected[1]) < 1e-2
    assert (grad[~mask] == 0).all()
    assert (grad[2:] == 0).all()


@every_case
def test_only_where_16_bits_are_asked_for(loss, eager, loops, options):
    z = cloud(2, 20, 8).to(DEVICE)
    plain = loss(z, backend="torch", **options)
    assert torch.equal(loss(z, **options), plain)
    with pytest.raises(ValueError, match=r"needs products in .*got torch.float32: use autocast"):
        loss(z, backend="triton", **options)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@every_case
def test_states_in_16_bits(loss, eager, loops, options, dtype):
    z = cloud(2, 20, 8, spread=0.5).to(dtype).to(DEVICE)
    if (loss, dtype) == (losses.vicreg, torch.float16):
        pytest.skip("float16 has not the range of a covariance: torch, in float32")
    expected = truth(loops, z, **options)
    value, grad = gradient(loss, z, backend="triton", **options)
    assert grad.dtype == dtype
    assert error(value, expected[0]) < 5e-3
    assert error(grad, expected[1]) < 1e-2


@pytest.mark.parametrize(
    "options",
    [
        {"diagonal": True, "tau": 5.0, "norm_weight": 0.0},
        {"pairs": "sum", "norm": "sum", "tau": 3.0},
        {"norm_weight": 0.0, "tau": 0.5, "constant": 1.0},
    ],
    ids=str,
)
def test_options_of_l2_repel(options):
    z = cloud(2, 20, 8, spread=0.5).to(DEVICE)
    expected = gradient(losses.l2_repel, z.double(), backend="torch", **options)
    found = gradient(losses.l2_repel, z, backend="triton", **options)
    assert error(found[0], expected[0]) < 1e-3
    assert error(found[1], expected[1]) < 2e-3


def test_options_of_vicreg():
    z = cloud(2, 20, 8, spread=0.5).to(DEVICE)
    options = {"variance_weight": 3.0, "covariance_weight": 0.5, "gamma": 2.0, "eps": 0.1}
    expected = gradient(losses.vicreg, z.double(), backend="torch", **options)
    found = gradient(losses.vicreg, z, backend="triton", **options)
    assert error(found[0], expected[0]) < 1e-3
    assert error(found[1], expected[1]) < 5e-3


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_repulsion_at_any_scale(scale):
    z = scale * cloud(2, 20, 8).to(DEVICE)
    options = {"tau": 10.0 * scale**2, "norm_weight": 0.0}
    expected = gradient(losses.l2_repel, z.double(), backend="torch", **options)
    assert error(gradient(losses.l2_repel, z, backend="triton", **options)[1], expected[1]) < 2e-3


@pytest.mark.parametrize("condensed", [0.0, 0.9])
@pytest.mark.parametrize("tokens", [6, 40])
def test_repulsion_beside_a_massive_activation(tokens, condensed):
    """The mean that holds it is far from all other tokens, whose differences float16 would lose."""
    z = cloud(2, tokens, 16, condensed=condensed, spread=1.0)
    z[:, 0] *= 3000 / z[:, 0].norm(dim=-1, keepdim=True)
    z, options = z.to(DEVICE), {"tau": 10.0, "norm_weight": 0.0}
    expected = gradient(losses.l2_repel, z.double(), backend="torch", **options)
    found = gradient(losses.l2_repel, z, backend="triton", **options)
    assert error(found[0], expected[0]) < 1e-3
    assert error(found[1], expected[1]) < 1e-3


@pytest.mark.parametrize("loss", [losses.l2_repel, losses.koleo])
def test_pieces_of_a_row_and_rows_of_a_sequence(loss, monkeypatch):
    z = cloud(2, 33, 8, spread=0.5).to(DEVICE)
    whole = gradient(loss, z, backend="triton")
    for chunk, columns in ((33 * 33 * 2, 16), (33 * 5, 16), (1, 64)):
        monkeypatch.setattr(repulsion, "CHUNK", chunk)
        monkeypatch.setattr(repulsion, "COLUMNS", columns)
        torch.testing.assert_close(gradient(loss, z, backend="triton"), whole, rtol=1e-3, atol=1e-5)


def test_neighbours_at_no_distance_and_at_the_origin():
    """Twins have no direction to part in, zeros have none at all, and one token is the nearest of many."""
    z = cloud(2, 20, 8).to(DEVICE)
    z[0, 3] = z[0, 11]
    z[0, [5, 6]] = 0
    z[1, 1:12] = z[1, :1] + 0.3 * z[1, 1:12]
    expected = gradient(losses.koleo, z.double(), backend="torch")
    for a, b in zip(gradient(losses.koleo, z, backend="triton"), expected):
        assert error(a, b) < 1e-4


def test_neighbours_are_chosen_in_float32():
    """From products in 16 bits alone one of these tokens would take the second nearest: an error of 0.09."""
    z = cloud(2, 64, 96).to(DEVICE)
    expected = gradient(losses.koleo, z.double(), backend="torch")
    assert error(gradient(losses.koleo, z, backend="triton")[1], expected[1]) < 1e-5


@every_case
def test_invalid_numbers_are_seen(loss, eager, loops, options):
    z = cloud(2, 20, 8).to(DEVICE)
    z[1, 7, 3] = math.nan
    with torch.autocast(DEVICE, torch.bfloat16):
        value = loss(z, backend="triton", reduction="none", **options)
    assert value[0].isfinite()
    assert value[1].isnan()
