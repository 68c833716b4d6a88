"""The losses through their kernels: same values and gradients as through torch."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from decondense import kernels, losses
from decondense.losses.options import fused
from decondense.meter.statistics import has_kernel

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = pytest.mark.usefixtures("chosen")
CASES = {
    "exact": (losses.dispersion, {"estimator": "exact", "tau": 0.5}),
    "hard clamp": (losses.dispersion, {"estimator": "exact", "hard_clamp": True, "clamp": 0.5}),
    "cosine": (losses.dispersion, {"estimator": "exact", "distance": "cosine", "diagonal": True}),
    "first order": (losses.dispersion, {"estimator": "first_order"}),
    "second order": (losses.dispersion, {"estimator": "second_order"}),
    "a constant": (losses.dispersion, {"estimator": "exact", "constant": 0.5}),
    "sampled": (losses.dispersion, {"estimator": "sampled", "max_tokens": 40}),
    "orthogonalization": (losses.orthogonalization, {"margin": 0.4}),
    "orthogonalization, cosine": (losses.orthogonalization, {"distance": "cosine", "diagonal": True}),
    "uniformity": (losses.uniformity, {"t": 2.0}),
    "sharp uniformity": (losses.uniformity, {"t": 15.0}),
    "cosreg": (losses.cosreg, {}),
    "decorrelation": (losses.decorrelation, {}),
    "decorrelation of features": (losses.decorrelation, {"axis": "feature", "diagonal": True}),
}


def cloud(tokens: int = 37, width: int = 24) -> torch.Tensor:
    return (torch.randn(3, tokens, width) + torch.randn(3, 1, width)).to(DEVICE).requires_grad_()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_kernels_and_torch_agree(case, masked):
    loss, options = case
    z = cloud()
    mask = torch.ones(3, 37, dtype=torch.bool, device=DEVICE)
    mask[1, 20:] = False
    mask[2, 1:] = False  # one token: zero, whatever constant the value carries
    mask = mask if masked else None
    a, b = (loss(z, mask, backend=backend, reduction="none", **options) for backend in ("triton", "torch"))
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    found, expected = (torch.autograd.grad(3 * x.sum(), z)[0] for x in (a, b))
    assert (found - expected).norm() <= 1e-5 * expected.norm() + 1e-9


OTHER_CURVES = {"hard clamp", "orthogonalization, cosine", "uniformity", "decorrelation of features"}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", [name for name in CASES if name not in OTHER_CURVES])
def test_the_mean_is_that_of_the_values(name, masked):
    """Some kernels take it in their own step of autograd: of a leaf, and where their gradient waits for another. Each
    kernel with several tiles; other curves of the same one with one tile."""
    loss, options = CASES[name]
    z = cloud() if name in ("exact", "first order", "second order") else cloud(28, 18)
    tokens = z.shape[1]
    mask = torch.arange(tokens, device=DEVICE) < torch.tensor([[tokens], [20], [1]], device=DEVICE) if masked else None
    for leaf in (True, False):
        results = []
        for reduction in ("mean", "none"):
            layer = z if leaf else 2 * z
            torch.manual_seed(0)  # of the sample
            values = loss(layer, mask, backend="triton", reduction=reduction, **options)
            value = values[:2].mean() if masked and values.ndim else values.mean()  # the last sequence has no pair
            results.append((value, *torch.autograd.grad(1000 * value + layer.sum(), z)))
        (value, found), (wanted, expected) = results
        torch.testing.assert_close(value, wanted, rtol=1e-6, atol=1e-7)
        assert (found - expected).norm() <= 1e-6 * expected.norm()


def test_many_layers_at_once():
    z = cloud()
    for backend in ("triton", "torch"):
        loss = losses.get("dispersion", estimator="first_order", backend=backend)
        values, cosines = loss.over_layers([z, 2 * z], None)
        torch.testing.assert_close(values[0], losses.dispersion(z, estimator="first_order", reduction="none"))
        torch.testing.assert_close(cosines[1], losses.mean_cosine(2 * z, eps=1e-2))


def test_a_kernel_that_cannot_run():
    with pytest.raises(ValueError, match="backend='triton' needs CUDA"):
        losses.dispersion(torch.randn(1, 4, 3, dtype=torch.float64), backend="triton")


def test_states_wider_than_a_program_stay_with_torch(monkeypatch):
    """ "auto" must not choose a kernel that refuses them."""
    monkeypatch.setattr(kernels, "available", lambda device: True)
    for width, expected in ((kernels.MAX_WIDTH, True), (kernels.MAX_WIDTH + 1, False)):
        z = SimpleNamespace(device=torch.device("cuda"), dtype=torch.float32, shape=(1, 2, width))
        assert fused(z, "auto") is expected
        assert has_kernel(z) is expected  # the meter's histogram has the same limit
    with pytest.raises(ValueError, match=r"width ≤ 16384.*width 16385"):
        fused(z, "triton")
