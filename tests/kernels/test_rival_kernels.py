"""The rivals that have a kernel: same values and gradients as through torch."""

from __future__ import annotations

import pytest
import torch

from decondense import losses

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def _chosen(monkeypatch):
    if DEVICE == "cpu":
        monkeypatch.setenv("TRITON_INTERPRET", "1")


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("loss", "options"),
    [(losses.uniformity, {"t": 2.0}), (losses.uniformity, {"t": 15.0}), (losses.cosreg, {})],
    ids=["uniformity", "sharp uniformity", "cosreg"],
)
def test_kernels_and_torch_agree(loss, options, masked):
    z = (torch.randn(3, 37, 24) + torch.randn(3, 1, 24)).to(DEVICE).requires_grad_()
    mask = torch.ones(3, 37, dtype=torch.bool, device=DEVICE)
    mask[1, 20:] = False
    mask[2, 1:] = False  # one token: zero, whatever constant the value carries
    mask = mask if masked else None
    a, b = (loss(z, mask, backend=backend, reduction="none", **options) for backend in ("triton", "torch"))
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    found, expected = (torch.autograd.grad(3 * x.sum(), z)[0] for x in (a, b))
    assert (found - expected).norm() <= 1e-5 * expected.norm() + 1e-9
