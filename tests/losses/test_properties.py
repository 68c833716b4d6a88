"""What must hold for any cloud: hypothesis looks for one where it does not."""

from __future__ import annotations

import math

import hypothesis.extra.numpy as hnp
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decondense import losses

settings.register_profile("short", max_examples=40, deadline=None)
settings.load_profile("short")

CLOUDS = hnp.arrays(
    dtype="float64",
    shape=hnp.array_shapes(min_dims=3, max_dims=3, min_side=2, max_side=7),
    elements=st.floats(-10, 10, allow_subnormal=False),
).map(torch.from_numpy)
LOSSES = {
    **losses.LOSSES,
    "first_order": lambda z, **k: losses.dispersion(z, estimator="first_order", **k),
    "second_order": lambda z, **k: losses.dispersion(z, estimator="second_order", **k),
}
ANGULAR = ("dispersion", "first_order", "second_order", "orthogonalization")


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("name", LOSSES)
@given(z=CLOUDS, seed=st.integers(0, 999))
def test_order_of_tokens_and_sequences_does_not_matter(name, z, seed):
    g = torch.Generator().manual_seed(seed)
    tokens = torch.randperm(z.shape[1], generator=g)
    rows = torch.randperm(z.shape[0], generator=g)
    close(LOSSES[name](z), LOSSES[name](z[rows][:, tokens]))


@pytest.mark.parametrize("name", [n for n in LOSSES if n != "decorrelation"])
@given(z=CLOUDS, seed=st.integers(0, 999))
def test_rotation_does_not_matter(name, z, seed):
    g = torch.Generator().manual_seed(seed)
    rotation, _ = torch.linalg.qr(torch.randn(z.shape[2], z.shape[2], generator=g, dtype=z.dtype))
    close(LOSSES[name](z), LOSSES[name](z @ rotation))


@pytest.mark.parametrize("name", ANGULAR)
@given(z=CLOUDS, scale=st.floats(1e-3, 1e3))
def test_scale_does_not_matter_without_eps(name, z, scale):
    z = z + 0.1  # a vector of zeros and one that underflows are different things
    close(LOSSES[name](z, eps=0.0), LOSSES[name](z * scale, eps=0.0))


@given(z=CLOUDS, shift=st.floats(-5, 5))
def test_distances_do_not_see_translation(z, shift):
    close(losses.l2_repel(z, norm_weight=0.0), losses.l2_repel(z + shift, norm_weight=0.0))
    close(losses.perplexity_entropy(z), losses.perplexity_entropy(z + shift))


@given(z=CLOUDS, tau=st.floats(0.2, 5), clamp=st.floats(0, 0.5))
def test_bounds(z, tau, clamp):
    low, high = -(1 - math.acos(1 - clamp) / math.pi) / tau, -math.acos(1 - clamp) / math.pi / tau
    for estimator in ("exact", "first_order", "sampled"):
        value = losses.dispersion(z, tau=tau, clamp=clamp, estimator=estimator, max_tokens=3).item()
        assert low - 1e-9 <= value <= high + 1e-6
    assert 0 <= losses.orthogonalization(z).item() <= 0.25
    assert -1e-9 <= losses.decorrelation(z).item() <= 1 + 1e-9


@given(z=CLOUDS)
def test_first_order_is_exact_for_equal_cosines(z):
    """Tokens with one common cosine (a regular simplex plus a common part) have no variance to miss."""
    n = z.shape[1]
    common = z.abs().mean().item()
    cloud = torch.cat([torch.eye(n, dtype=z.dtype), torch.full((n, 1), common, dtype=z.dtype)], 1).unsqueeze(0)
    for estimator in ("first_order", "second_order"):
        close(losses.dispersion(cloud, estimator=estimator), losses.dispersion(cloud))


@given(z=CLOUDS)
def test_a_step_against_the_gradient_does_not_raise_the_loss(z):
    z = (z + 0.01 * torch.randn(z.shape, generator=torch.Generator().manual_seed(1), dtype=z.dtype)).requires_grad_()
    value = losses.dispersion(z, clamp=0.01)
    (g,) = torch.autograd.grad(value, z)
    step = 1e-7 / (1 + g.norm() ** 2)
    assert losses.dispersion((z - step * g).detach(), clamp=0.01) <= value + 1e-9
