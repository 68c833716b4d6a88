"""The two moments of the cosines: what only their kernels must do."""

from __future__ import annotations

import pytest
import torch
from routines import CUDA, cloud, eager, error, reference, run


@pytest.mark.parametrize("tokens", [30, 80])
def test_autocast_takes_bfloat16_products(tokens, device):
    """Centred: the part that all tokens share is float32, so the error is far below that of the formula."""
    z = cloud(1, tokens, 48, condensed=0.9).to(device)
    moments, grad = reference("second_order", z)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        got, got_grad = run("second_order", z)
    _, theirs = eager("second_order", z.bfloat16())
    assert got_grad.dtype == torch.float32
    assert error(got, moments) < 1e-3
    assert error(got_grad, grad) < 0.25 * error(theirs, grad)


def test_float16_stays_in_range(device):
    """One feature holds nearly everything, over many tokens: K itself would leave the range of float16."""
    z = 0.01 * cloud(1, 70000 if CUDA else 700, 8)
    z[..., 0] = torch.where(torch.rand(z.shape[1], generator=torch.Generator().manual_seed(0)) < 0.5, 30.0, -30.0)
    got, grad = run("second_order", z.half().to(device), eps=0.01)
    assert got.isfinite().all()
    assert grad.isfinite().all()
    assert abs(float(got[1]) - (30 / 30.01) ** 4) < 1e-3  # ε is 0.01
