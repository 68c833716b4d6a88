"""The exact kernel against plain loops in float64."""

from __future__ import annotations

import math

import numpy as np
import oracle
import pytest
import torch

from decondense.kernels import MAX_WIDTH, pairwise
from decondense.kernels.curves import CURVES

CUDA = torch.cuda.is_available()
DTYPES = [torch.float32, torch.float16] + ([torch.bfloat16] if CUDA else [])


def cloud(batch, tokens, width, *, condensed=0.5, spread=3.0, seed=0):
    """Tokens round a common direction per sequence, norms log-normal: like hidden states."""
    g = torch.Generator().manual_seed(seed)
    common = torch.randn(batch, 1, width, generator=g)
    z = math.sqrt(condensed) * common + math.sqrt(1 - condensed) * torch.randn(batch, tokens, width, generator=g)
    return z * spread * torch.exp(0.5 * torch.randn(batch, tokens, 1, generator=g))


def run(z, mask=None, *, upstream=None, curve="dispersion", **options):
    value, saved = pairwise.forward(z, mask, curve=curve, **options)
    upstream = torch.ones(len(z), device=z.device) if upstream is None else upstream
    return value, pairwise.backward(z, mask, saved, upstream, curve=curve, **options)


def reference(z, mask=None, *, curve="dispersion", **options):
    return oracle.pairwise(z, mask, curve_name=curve, **options)


def ragged(device):
    """A mask (5, 40): a sequence with holes, shorter ones, a single token, none."""
    mask = torch.arange(40)[None, :] < torch.tensor([40, 17, 2, 1, 0])[:, None]
    mask[0, ::3] = False
    return mask.to(device)


# Rounding alone: below this nothing is asked of the kernels.
FLOOR = {torch.float32: 1e-6, torch.float16: 5e-4, torch.bfloat16: 4e-3}


def error(a, b):
    a = a.detach().double().cpu().numpy() if isinstance(a, torch.Tensor) else a
    return float(np.linalg.norm(a - b) / max(np.linalg.norm(b), 1e-300))


def eager_errors(z, mask, value, grad, *, curve="dispersion", **options):
    leaf = z.detach().clone().requires_grad_()
    out = oracle.eager(leaf, mask, curve_name=curve, **options)
    out.sum().backward()
    return error(out, value), error(leaf.grad, grad)


def assert_as_good_as_eager(z, mask=None, **options):
    """Error at most twice that of the eager formula; never asked to beat a few units of rounding."""
    value, grad = reference(z, mask, **options)
    got_value, got_grad = run(z, mask, **options)
    eager_value, eager_grad = eager_errors(z, mask, value, grad, **options)
    assert got_grad.dtype == z.dtype
    assert got_grad.shape == z.shape
    assert error(got_value, value) <= max(2 * eager_value, 1e-6)
    assert error(got_grad, grad) <= max(2 * eager_grad, FLOOR[z.dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("curve", list(CURVES))
def test_value_and_gradient(curve, dtype, device):
    z = cloud(2, 45, 40).to(dtype).to(device)
    assert_as_good_as_eager(z, curve=curve)


@pytest.mark.parametrize("condensed", [0.0, 0.9, 0.999])
@pytest.mark.parametrize("dtype", DTYPES)
def test_from_dispersed_to_condensed(condensed, dtype, device):
    assert_as_good_as_eager(cloud(1, 40, 64, condensed=condensed).to(dtype).to(device))


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
    assert_as_good_as_eager(cloud(2, 37, 24, condensed=0.3).to(device), **options)


@pytest.mark.parametrize("shape", [(1, 2, 2), (1, 3, 5), (3, 33, 7), (1, 64, 32), (2, 65, 33), (1, 31, 130)])
def test_odd_shapes(shape, device):
    assert_as_good_as_eager(cloud(*shape, seed=sum(shape)).to(device))


@pytest.mark.parametrize("dtype", DTYPES)
def test_mask_of_ragged_lengths(dtype, device):
    z, mask = cloud(5, 40, 24).to(dtype).to(device), ragged(device)
    z[~mask] = math.nan  # a masked token is never read
    value, grad = reference(z.nan_to_num(), mask)
    got_value, got_grad = run(z, mask)
    clean = z.nan_to_num()
    eager_value, eager_grad = eager_errors(clean[:3], mask[:3], value[:3], grad[:3])
    assert error(got_value, value) <= max(2 * eager_value, 1e-6)
    assert error(got_grad, grad) <= max(2 * eager_grad, FLOOR[dtype])
    assert (got_value[3:] == 0).all()
    assert (got_grad[3:] == 0).all()
    assert (got_grad[~mask] == 0).all()
    again, _ = run(z[:2, :17], mask[:2, :17])  # the padded tail adds nothing
    torch.testing.assert_close(again[1], got_value[1], rtol=1e-6, atol=1e-6)


def test_mask_of_ones_changes_nothing(device):
    z = cloud(2, 33, 16).to(device)
    plain, plain_grad = run(z)
    masked, masked_grad = run(z, torch.ones(2, 33, dtype=torch.bool, device=device))
    torch.testing.assert_close(plain, masked)
    torch.testing.assert_close(plain_grad, masked_grad)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("curve", list(CURVES))
def test_invalid_numbers_are_seen(bad, curve, device):
    z = cloud(2, 20, 16).to(device)
    z[1, 7, 3] = bad
    value, grad = run(z, curve=curve)
    assert value[0].isfinite()
    assert value[1].isnan()
    assert grad[0].isfinite().all()
    assert grad[1].isnan().any()


def test_zero_vectors(device):
    z = cloud(1, 20, 16).to(device)
    z[0, 3] = 0
    z[0, 11] = 0
    value, grad = reference(z)
    got_value, got_grad = run(z)
    assert error(got_value, value) < 1e-6
    assert error(got_grad, grad) < 1e-5


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
    assert_as_good_as_eager(z.to(device))
    assert_as_good_as_eager(z.half().to(device))


def test_two_vectors_closed_form(device):
    z = torch.tensor([[[3.0, 0.0], [0.0, 2.0]]], device=device)
    value, grad = run(z, eps=0.0)
    assert abs(float(value) + 0.5) < 1e-6  # −arccos(0)/π
    # ∂/∂z_1 of −arccos(c)/π with c = 0: (1/π) (z_2/‖z_2‖)/‖z_1‖
    expected = torch.tensor([[[0.0, 1 / (3 * math.pi)], [1 / (2 * math.pi), 0.0]]], device=device)
    torch.testing.assert_close(grad, expected, rtol=1e-5, atol=1e-7)


def test_upstream_gradient_and_no_side_effect(device):
    z = cloud(3, 20, 16).to(device)
    _value, saved = pairwise.forward(z, None)
    ones = pairwise.backward(z, None, saved, torch.ones(3, device=device))
    scale = torch.tensor([2.0, 0.0, -0.5], device=device)
    torch.testing.assert_close(pairwise.backward(z, None, saved, scale), ones * scale[:, None, None])
    torch.testing.assert_close(pairwise.backward(z, None, saved, torch.ones(3, device=device)), ones)


def test_strided_inputs(device):
    base = cloud(2, 12, 48).to(device)
    for z in (base[:, ::2], base[:, :, 8:24], base[:, :, ::2], base.transpose(0, 1)):
        value, grad = run(z)
        expected, expected_grad = run(z.contiguous())
        torch.testing.assert_close(value, expected)
        torch.testing.assert_close(grad, expected_grad)


def test_value_alone(device):
    z = cloud(2, 40, 16).to(device)
    value, saved = pairwise.forward(z, None, need_grad=False)
    assert saved == ()
    torch.testing.assert_close(value, run(z)[0], rtol=1e-6, atol=1e-6)


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
        assert planned(z, with_mask) == expected
        value, grad = run(z, mask)
        torch.testing.assert_close(value, whole, rtol=1e-6, atol=1e-6)
        assert error(grad, whole_grad.double().cpu().numpy()) < FLOOR[dtype]


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
    _value, saved = pairwise.forward(z, None)
    scale = torch.full((1,), 2.0**16, device=device)
    grad = pairwise.backward(z, None, saved, scale).double().cpu().numpy() / 2.0**16
    assert error(grad, reference(z)[1]) < 2e-3


def test_autocast_takes_bfloat16_products(device):
    z = cloud(2, 48, 64, condensed=0.9).to(device)
    value, grad = reference(z)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        assert pairwise._precision(z).copy == torch.bfloat16
        got_value, got_grad = run(z)
    eager_value, eager_grad = eager_errors(z.bfloat16(), None, value, grad)
    assert got_grad.dtype == torch.float32
    assert error(got_value, value) <= 2 * eager_value
    assert error(got_grad, grad) <= eager_grad  # norms and the first-order part are float32


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


def test_same_bits_every_time(device):
    z = cloud(2, 100, 48).to(device)
    assert all(torch.equal(first, again) for first, again in zip(run(z), run(z)))


def test_bad_arguments_say_what_to_do(device):
    z = cloud(1, 4, 8).to(device)
    for bad, mask, options, sentence in (
        (z, None, {"curve": "dispersal"}, "curve must be one of dispersion"),
        (z, None, {"tau": 0.0}, "tau must be at least"),
        (z, None, {"clamp": 1.0}, "clamp must lie in"),
        (z, torch.ones(1, 4, dtype=torch.int64, device=device), {}, r"attention_mask\.bool"),
        (z.double(), None, {}, "bfloat16, float16 or float32"),
        (z.new_zeros(1, 2, MAX_WIDTH + 1), None, {}, "widths up to"),
    ):
        with pytest.raises(ValueError, match=sentence):
            pairwise.forward(bad, mask, **options)


@pytest.mark.skipif(not CUDA, reason="needs a GPU: the interpreter is too slow for full tiles")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("shape", [(2, 513, 768), (3, 300, 771), (1, 1000, 8192)])
def test_full_tiles_on_the_gpu(shape, dtype, device):
    """Against eager float64 (checked against the loops above on small shapes by the tests before)."""
    z = cloud(*shape, condensed=0.8).to(dtype).to(device)
    leaf = z.double().requires_grad_()
    wide = leaf / (leaf.norm(dim=-1, keepdim=True) + 1e-2)
    c = wide @ wide.transpose(1, 2)
    inside = c.detach().clamp(-0.9, 0.9)
    theta = inside.acos() - (1 - inside**2).rsqrt() * (c - c.detach())
    eye = torch.eye(shape[1], dtype=torch.bool, device=device)
    value = (-theta / math.pi).masked_fill(eye, -math.inf).flatten(1).logsumexp(1)
    value = value - math.log(shape[1] * (shape[1] - 1))
    value.sum().backward()
    expected = leaf.grad.cpu().numpy()
    eager_value, eager_grad = eager_errors(z, None, value.detach().cpu().numpy(), expected)
    got_value, got_grad = run(z)
    assert error(got_value, value.detach().cpu().numpy()) <= max(2 * eager_value, 1e-6)
    assert error(got_grad, expected) <= max(2 * eager_grad, FLOOR[dtype])
