"""The placebo: its gradient against loops in float64, and what it must not see."""

from __future__ import annotations

import pytest
import reference
import torch
from clouds import cloud, gradient

from decondense import losses

SHAPES = [(1, 3, 5), (2, 9, 4), (3, 12, 20)]
CASES = [{}, {"tau": 0.4, "clamp": 0.3}, {"eps": 0.0}, {"clamp": 0.8}]


def loop(z, **options):
    """(tokens, width) of one sequence: value and gradient, by autograd through the loops and Gram–Schmidt over the
    directions that must not be left: the real gradient, and every feature moved by the same in all tokens."""
    real = z.clone().requires_grad_()
    (target,) = torch.autograd.grad(reference.first_order(real, **options), real)
    own = z.clone().requires_grad_()
    value = reference.dispersion(own - own.mean(0), **options)
    (g,) = torch.autograd.grad(value, own)
    directions = []
    for feature in range(z.shape[1]):
        shift = torch.zeros_like(z)
        shift[:, feature] = 1.0
        directions.append(shift)
    directions.append(target)
    basis = []
    for d in directions:
        for b in basis:
            d = d - (d * b).sum() * b
        basis.append(d / d.norm())
    for b in basis:
        g = g - (g * b).sum() * b
    return value.detach(), g * target.norm() / g.norm()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("options", CASES)
def test_value_and_gradient_are_those_of_the_loops(shape, options):
    z = cloud(shape).requires_grad_()
    values = losses.placebo(z, reduction="none", **options)
    g = gradient(values.sum(), z)
    for row, value, one in zip(z.detach(), values, g):
        expected, direction = loop(row, **options)
        assert value.item() == pytest.approx(expected.item(), rel=1e-10)
        torch.testing.assert_close(one, direction, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("cone", [0.0, 0.7, 5.0])
def test_it_is_blind_and_as_strong_as_the_real_one(cone):
    """Nothing along the mean or any common direction, nothing along the gradient of the mean cosine, the real norm; and
    padding, which holds anything, has no part in it."""
    z = cloud((4, 16, 8), cone=cone)
    mask = torch.ones(4, 16, dtype=torch.bool)
    mask[1, 11:] = False
    mask[2, :5] = False
    z[~mask] = 1e3
    z.requires_grad_()
    blind = gradient(losses.placebo(z, mask, reduction="none").sum(), z)
    real = gradient(losses.dispersion(z, mask, estimator="first_order", reduction="none").sum(), z)
    cosine = gradient(losses.mean_cosine(z, mask, eps=1e-2).sum(), z)
    norms = real.flatten(1).norm(dim=1)
    assert (norms > 0).all()
    torch.testing.assert_close(blind.flatten(1).norm(dim=1), norms)
    assert (blind[~mask] == 0).all()
    assert blind.sum(1).norm(dim=1).max() < 1e-12
    along = (blind * cosine).sum((1, 2)) / (blind.flatten(1).norm(dim=1) * cosine.flatten(1).norm(dim=1))
    assert along.abs().max() < 1e-12
    own = gradient(losses.dispersion((z - _mean(z, mask)) * mask.unsqueeze(-1), mask, reduction="none").sum(), z)
    assert ((blind * own).sum((1, 2)) > 0).all()  # downhill for its own value


def _mean(z, mask):
    return (z * mask.unsqueeze(-1)).sum(1, keepdim=True) / mask.sum(1)[:, None, None]


def test_a_step_moves_the_mean_cosine_in_second_order_only():
    """A tenth of the step, a hundredth of the change; the real loss changes it by a tenth."""
    z = cloud((1, 20, 12), cone=1.0).requires_grad_()
    changes = {}
    for name, loss in (("placebo", losses.placebo), ("real", losses.get("dispersion", estimator="first_order"))):
        g = gradient(loss(z), z)
        with torch.no_grad():
            before = losses.mean_cosine(z)
            changes[name] = [(losses.mean_cosine(z - step * g, eps=1e-2) - losses.mean_cosine(z, eps=1e-2)).item()
                             for step in (1.0, 0.1)]  # fmt: skip
            assert before.item() > 0.3
    assert changes["real"][0] < 0
    assert changes["real"][0] / changes["real"][1] == pytest.approx(10, rel=0.3)
    assert changes["placebo"][0] / changes["placebo"][1] == pytest.approx(100, rel=0.3)
    assert abs(changes["placebo"][1]) < 0.05 * abs(changes["real"][1])


def test_strength_is_the_norm_in_units_of_the_real_one():
    z = cloud((2, 10, 6)).requires_grad_()
    plain, weak = (gradient(losses.placebo(z, strength=s), z) for s in (1.0, 0.07))
    torch.testing.assert_close(weak, 0.07 * plain)
    with pytest.raises(ValueError, match="strength must be a positive number, got 0"):
        losses.placebo(z, strength=0.0)


def test_two_tokens_have_no_direction_left():
    z = cloud((2, 2, 6)).float().requires_grad_()
    assert (gradient(losses.placebo(z), z) == 0).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_low_precision_keeps_the_norm(dtype):
    z = (30 * cloud((2, 64, 32), cone=2.0)).to(dtype)
    single, double = z.clone().requires_grad_(), z.double().requires_grad_()
    g, truth = gradient(losses.placebo(single), single).double(), gradient(losses.placebo(double), double)
    assert (g - truth).norm() < {torch.bfloat16: 1e-2, torch.float32: 1e-4}[dtype] * truth.norm()
