"""What every kernel must do, against plain loops in float64."""

from __future__ import annotations

import math

import pytest
import torch
from routines import CUDA, DTYPES, FLOOR, ROUTINES, assert_as_good_as_eager, cloud, eager, error, reference, run

# Beside (4, 45, 40): more tokens than features, as many, fewer; tiles of 32 in the interpreter. Several sequences each:
# the rounding of the unit vectors is what is left of the error of a value, and a single one may have none by luck.
SHAPES = [(6, 33, 7), (5, 64, 32), (6, 3, 2), (6, 2, 3), (3, 33, 33), (4, 19, 50), (3, 31, 130)]
# One curve of those that one kernel serves, where the curve makes no difference; the two ways of the second order.
KERNELS = ["dispersion", "first_order", "second_order"]
WIDTHS = [("dispersion", 16), ("first_order", 16), ("second_order", 8), ("second_order", 30)]
every_kernel = pytest.mark.parametrize(("name", "width"), WIDTHS)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ROUTINES)
def test_value_and_gradient(name, dtype, device):
    assert_as_good_as_eager(name, cloud(4, 45, 40).to(dtype).to(device))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", KERNELS)
def test_odd_shapes(name, shape, device):
    for dtype in DTYPES if CUDA else DTYPES[:1]:
        assert_as_good_as_eager(name, cloud(*shape, seed=sum(shape)).to(dtype).to(device))


@pytest.mark.parametrize("condensed", [0.0, 0.9, 0.999])
@pytest.mark.parametrize("name", KERNELS)
def test_from_dispersed_to_condensed(name, condensed, device):
    for tokens in (20, 60):
        for dtype in DTYPES:
            assert_as_good_as_eager(name, cloud(3, tokens, 32, condensed=condensed).to(dtype).to(device))


@pytest.mark.parametrize("dtype", DTYPES)
@every_kernel
def test_ragged_mask(name, width, dtype, device):
    """A sequence with holes, shorter ones, a single token, none; a masked token is never read."""
    z = cloud(5, 40, width).to(dtype).to(device)
    mask = torch.arange(40)[None, :] < torch.tensor([40, 17, 2, 1, 0])[:, None]
    mask[0, ::3] = False
    mask = mask.to(device)
    expected, expected_grad = reference(name, z, mask)
    z[~mask] = math.nan
    value, grad = run(name, z, mask)
    assert error(value, expected) < max(2e-6, FLOOR[dtype])
    assert error(grad, expected_grad) < (1 if name == "first_order" else 2) * FLOOR[dtype]
    assert (value[..., 3:] == 0).all()
    assert (grad[3:] == 0).all()
    assert (grad[~mask] == 0).all()
    again, _ = run(name, z[:2, :17], mask[:2, :17])  # the padded tail adds nothing
    near = FLOOR[dtype] if name == "second_order" else 1e-6  # of which 17 tokens may go the other way
    torch.testing.assert_close(again[..., 1], value[..., 1], rtol=near, atol=near)


@every_kernel
def test_mask_of_ones_changes_nothing(name, width, device):
    z = cloud(2, 20, width).to(device)
    for a, b in zip(run(name, z), run(name, z, torch.ones(2, 20, dtype=torch.bool, device=device))):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(("name", "width"), [*WIDTHS, *((name, 16) for name in ROUTINES if name not in KERNELS)])
def test_invalid_numbers_are_seen(name, width, bad, device):
    z = cloud(2, 20, width).to(device)
    z[1, 7, 3] = bad
    value, grad = run(name, z)
    assert value[..., 0].isfinite().all()
    assert value[..., 1].isnan().all()
    assert grad[0].isfinite().all()
    assert grad[1].isnan().any()


@pytest.mark.parametrize("eps", [1e-2, 0.0])
@every_kernel
def test_zero_vectors(name, width, eps, device):
    z = cloud(1, 20, width).to(device)
    z[0, [3, 11]] = 0
    for a, b in zip(run(name, z, eps=eps), reference(name, z, eps=eps)):
        assert error(a, b) < 2e-6


@pytest.mark.parametrize("name", KERNELS)
def test_strides(name, device):
    base = cloud(2, 24, 20).to(device)
    base[0, 4] = 0
    for z in (base[:, ::2, :10], base[:, :, 4:14], base[:, :, ::2], base.transpose(0, 1)[:4]):
        for a, b in zip(run(name, z), run(name, z.contiguous())):
            torch.testing.assert_close(a, b)


@every_kernel
def test_upstream(name, width, device):
    """The gradient is linear in it, also where it is zero, and can be asked for again."""
    z = cloud(3, 20, width).to(device)
    kernel, shape = ROUTINES[name][0], (2, 3) if name == "second_order" else (3,)
    _, saved = kernel.forward(z)
    g = torch.Generator().manual_seed(0)
    a, b = (torch.randn(shape, generator=g).to(device) for _ in range(2))
    a[..., 1] = b[..., 1] = 0
    one, other, both, again = (kernel.backward(z, saved, upstream) for upstream in (a, 3 * b, a + 3 * b, a))
    torch.testing.assert_close(one + other, both)
    assert torch.equal(one, again)
    assert (both[1] == 0).all()


@every_kernel
def test_value_alone(name, width, device):
    z, kernel = cloud(2, 20, width).to(device), ROUTINES[name][0]
    value, saved = kernel.forward(z, need_grad=False)
    assert saved == ()
    torch.testing.assert_close(value, kernel.forward(z)[0], rtol=1e-6, atol=1e-6)


@every_kernel
def test_same_bits_every_time(name, width, device):
    z = cloud(2, 70, width).to(device)
    assert all(torch.equal(first, again) for first, again in zip(run(name, z), run(name, z)))


@pytest.mark.skipif(not CUDA, reason="needs a GPU: the interpreter is too slow for full tiles")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("shape", [(2, 513, 768), (3, 300, 771), (1, 1000, 8192), (2, 999, 300), (1, 4096, 1024)])
@pytest.mark.parametrize("name", KERNELS)
def test_full_tiles_on_the_gpu(name, shape, dtype, device):
    """Against eager float64, which the loops above confirm on small shapes."""
    z = cloud(*shape, condensed=0.8).to(dtype).to(device)
    truth = tuple(x.cpu().numpy() for x in eager(name, z.double()))
    assert_as_good_as_eager(name, z, truth=truth, floor=1e-3 if name == "second_order" else None)
