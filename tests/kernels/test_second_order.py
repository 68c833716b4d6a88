"""The two moments of the cosines and their gradient against plain loops in float64."""

from __future__ import annotations

import math

import oracle
import pytest
import torch
from test_pairwise import CUDA, DTYPES, FLOOR, cloud, error, ragged

from decondense.kernels import second_order

# More tokens than features, as many, fewer; tiles of 32 in the interpreter. Several sequences each: the rounding of the
# unit vectors is what is left of the error of a value, and a single one may have none by luck.
SHAPES = [(4, 45, 40), (6, 33, 7), (5, 64, 32), (6, 3, 2), (3, 33, 33), (4, 19, 50)]


def upstream(batch, device):
    return torch.stack([torch.linspace(0.5, -1.5, batch), torch.linspace(2.0, 1.0, batch)]).to(device)


def run(z, mask=None, *, eps=1e-2):
    moments, saved = second_order.forward(z, mask, eps=eps)
    grad = second_order.backward(z, mask, saved, upstream(len(z), z.device), eps=eps)
    return moments, grad


def reference(z, mask=None, *, eps=1e-2):
    return oracle.two_moments(z, mask, *upstream(len(z), "cpu"), eps=eps)


def assert_as_good_as_eager(z, mask=None):
    moments, grad = reference(z, mask)
    got, got_grad = run(z, mask)
    leaf = z.detach().clone().requires_grad_()
    eager = oracle.eager_moments(leaf, mask)
    (eager * upstream(len(z), z.device)).sum().backward()
    assert got.dtype == torch.float32
    assert got_grad.dtype == z.dtype
    for k in range(2):
        assert error(got[k], moments[k]) <= max(2 * error(eager[k], moments[k]), 2e-6)
    assert error(got_grad, grad) <= max(2 * error(leaf.grad, grad), FLOOR[z.dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_moments_and_gradient(shape, dtype, device):
    assert_as_good_as_eager(cloud(*shape, seed=sum(shape)).to(dtype).to(device))


@pytest.mark.parametrize("condensed", [0.0, 0.99])
@pytest.mark.parametrize("tokens", [20, 60])
@pytest.mark.parametrize("dtype", DTYPES)
def test_from_dispersed_to_condensed(condensed, tokens, dtype, device):
    assert_as_good_as_eager(cloud(3, tokens, 32, condensed=condensed).to(dtype).to(device))


@pytest.mark.parametrize("tokens", [30, 80])
def test_autocast_takes_bfloat16_products(tokens, device):
    """Centred: the part that all tokens share is float32, so the error is far below that of the formula."""
    z = cloud(1, tokens, 48, condensed=0.9).to(device)
    moments, grad = reference(z)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        got, got_grad = run(z)
    leaf = z.bfloat16().requires_grad_()
    (oracle.eager_moments(leaf) * upstream(1, device)).sum().backward()
    assert got_grad.dtype == torch.float32
    assert error(got, moments) < 1e-3
    assert error(got_grad, grad) < 0.25 * error(leaf.grad, grad)


@pytest.mark.parametrize("width", [12, 48])
@pytest.mark.parametrize("dtype", DTYPES)
def test_ragged_mask(width, dtype, device):
    z, mask = cloud(5, 40, width).to(dtype).to(device), ragged(device)
    moments, grad = reference(z, mask)
    z[~mask] = math.nan  # a masked token is never read
    got, got_grad = run(z, mask)
    assert error(got, moments) < max(2e-6, FLOOR[dtype])
    assert error(got_grad, grad) < max(2e-6, 2 * FLOOR[dtype])
    assert (got[:, 3:] == 0).all()
    assert (got_grad[3:] == 0).all()
    assert (got_grad[~mask] == 0).all()


@pytest.mark.parametrize("width", [8, 30])
@pytest.mark.parametrize("eps", [1e-2, 0.0])
def test_zero_vectors(width, eps, device):
    z = cloud(1, 20, width).to(device)
    z[0, 3] = 0
    moments, grad = reference(z, eps=eps)
    got, got_grad = run(z, eps=eps)
    assert error(got, moments) < 2e-6
    assert error(got_grad, grad) < 2e-6


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("width", [8, 30])
def test_invalid_numbers_are_seen(bad, width, device):
    z = cloud(2, 20, width).to(device)
    z[1, 7, 3] = bad
    got, grad = run(z)
    assert got[:, 0].isfinite().all()
    assert got[:, 1].isnan().all()
    assert grad[0].isfinite().all()
    assert grad[1].isnan().any()


def test_strides(device):
    base = cloud(2, 24, 20).to(device)
    for z in (base[:, ::2, :10], base[:, :, 4:14], base[:, :, ::2], base.transpose(0, 1)[:4]):
        got, grad = run(z)
        expected, expected_grad = run(z.contiguous())
        torch.testing.assert_close(got, expected)
        torch.testing.assert_close(grad, expected_grad)


def test_upstream_of_one_moment_alone(device):
    """The gradient is linear in the upstream, also where it is zero."""
    z = cloud(1, 30, 8).to(device)
    _, saved = second_order.forward(z)
    one, other, both, none = (
        second_order.backward(z, None, saved, torch.tensor(pair, device=device))
        for pair in ([[1.0], [0.0]], [[0.0], [3.0]], [[1.0], [3.0]], [[0.0], [0.0]])
    )
    torch.testing.assert_close(one + other, both)
    assert (none == 0).all()


@pytest.mark.parametrize("width", [8, 30])
def test_values_alone(width, device):
    z = cloud(2, 20, width).to(device)
    alone, nothing = second_order.forward(z, need_grad=False)
    assert nothing == ()
    torch.testing.assert_close(alone, second_order.forward(z)[0])


def test_float16_stays_in_range(device):
    """One feature holds nearly everything, over many tokens: K itself would leave the range of float16."""
    z = 0.01 * cloud(1, 70000 if CUDA else 700, 8)
    z[..., 0] = torch.where(torch.rand(z.shape[1], generator=torch.Generator().manual_seed(0)) < 0.5, 30.0, -30.0)
    got, grad = run(z.half().to(device))
    assert got.isfinite().all()
    assert grad.isfinite().all()
    assert abs(float(got[1]) - 1) < 2e-3


def test_empty_batch(device):
    for width in (3, 8):
        z = torch.zeros(0, 5, width, device=device)
        moments, grad = run(z)
        assert moments.shape == (2, 0)
        assert grad.shape == z.shape


def test_same_bits_every_time(device):
    z = cloud(1, 70, 40).to(device)
    assert all(torch.equal(first, again) for first, again in zip(run(z), run(z)))


@pytest.mark.skipif(not CUDA, reason="needs a GPU: the interpreter is too slow for full tiles")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("shape", [(2, 1024, 768), (2, 999, 300), (1, 4096, 1024), (2, 513, 768), (1, 9000, 8192)])
def test_full_tiles_on_the_gpu(shape, dtype, device):
    """Against eager float64, which the loops above confirm on small shapes."""
    z = cloud(*shape, condensed=0.8).to(dtype).to(device)
    leaf = z.double().requires_grad_()
    u = leaf / (leaf.norm(dim=-1, keepdim=True) + 1e-2)
    c = u @ u.transpose(1, 2)
    c = c - torch.diag_embed(c.diagonal(dim1=1, dim2=2))
    count = shape[1] * (shape[1] - 1)
    moments = torch.stack([c.sum((1, 2)), c.square().sum((1, 2))]) / count
    (moments * upstream(len(z), device)).sum().backward()
    expected = leaf.grad.cpu().numpy()
    got, grad = run(z)
    narrow = z.clone().requires_grad_()
    (oracle.eager_moments(narrow) * upstream(len(z), device)).sum().backward()
    assert error(got, moments.detach().cpu().numpy()) < 1e-3
    assert error(grad, expected) <= max(2 * error(narrow.grad, expected), FLOOR[dtype])
