"""The "released" preset against values and gradients that the paper's released code printed."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from decondense import losses


def test_every_row_of_the_reference(shared):
    rows = json.loads((shared / "reference" / "released_losses.json").read_text())["rows"]
    assert len(rows) == 60
    for row in rows:
        rng = np.random.default_rng(row["seed"])
        shape = (row["B"], row["L"], row["F"])
        noise = rng.standard_normal(shape) + row["cone"] * rng.standard_normal((row["B"], 1, row["F"]))
        z = torch.tensor(noise, requires_grad=True)
        loss = losses.get(row["variant"], preset="released", tau=row["tau"], clamp=row["clamp"])
        value = loss(z)
        (grad,) = torch.autograd.grad(value, z)
        where = f"{row['variant']} tokens {row['L']} tau {row['tau']} clamp {row['clamp']}"
        assert value.item() == pytest.approx(row["loss"], rel=1e-9), where
        assert grad.norm().item() == pytest.approx(row["grad_norm"], rel=1e-9), where
        flat = grad.flatten().tolist()
        assert flat[:4] == pytest.approx(row["grad_first"], rel=1e-9, abs=1e-9 * row["grad_norm"]), where
        assert flat[-4:] == pytest.approx(row["grad_last"], rel=1e-9, abs=1e-9 * row["grad_norm"]), where


def test_more_than_256_tokens_are_sampled_once_for_the_batch():
    z = torch.randn(1, 300, 8).expand(3, -1, -1)
    loss = losses.get("dispersion", preset="released")
    values = loss(z, reduction="none")
    assert (values == values[0]).all()  # the same sequence thrice, the same tokens of it
    assert loss(z, reduction="none")[0] != values[0]  # the next call draws again
    torch.testing.assert_close(
        losses.get("dispersion", preset="released", max_tokens=None)(z), losses.dispersion(z, clamp=0.25) + 0.01
    )


def test_diagonal_swallows_the_repulsion_at_the_scale_of_hidden_states():
    """Squared distances around 2·10⁴: with the diagonal the repulsion's gradient is exactly zero."""
    z = (torch.randn(1, 32, 64) * 12.5).requires_grad_()
    released = losses.get("l2_repel", preset="released", norm_weight=0.0)
    (grad,) = torch.autograd.grad(released(z), z)
    assert grad.abs().max() == 0
    (grad,) = torch.autograd.grad(losses.l2_repel(z, norm_weight=0.0), z)
    assert grad.abs().max() > 0
