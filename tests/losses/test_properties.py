"""What must hold for any cloud: hypothesis looks for one where it does not."""

from __future__ import annotations

import math

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decondense import losses

settings.register_profile("short", max_examples=25, deadline=None)
settings.load_profile("short")

CLOUDS = hnp.arrays(
    dtype="float64",
    shape=hnp.array_shapes(min_dims=3, max_dims=3, min_side=2, max_side=7),
    elements=st.floats(-10, 10, allow_subnormal=False),
).map(torch.from_numpy)
LOSSES = {
    **{name: entry.function for name, entry in losses.registered().items() if entry.source != "control"},
    "first_order": lambda z, *a, **k: losses.dispersion(z, *a, estimator="first_order", **k),
    "second_order": lambda z, *a, **k: losses.dispersion(z, *a, estimator="second_order", **k),
}
ANGULAR = ("dispersion", "first_order", "second_order", "orthogonalization")
DIRECTIONS = ("uniformity", "koleo", "cosreg", "i_star")  # of the rivals: those that see neither scale nor axes


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-7)


def given_cloud(name, z):
    """A little noise for the rivals: exact ties and flat features are tested by themselves."""
    noise = 0.05 * np.random.default_rng(7).standard_normal(z.shape)
    return z + torch.from_numpy(noise) if name in losses.registered("rival") else z


@pytest.mark.parametrize("name", LOSSES)
@given(z=CLOUDS, seed=st.integers(0, 999))
def test_order_does_not_matter(name, z, seed):
    """Of tokens, of sequences, and of features."""
    z, g = given_cloud(name, z), torch.Generator().manual_seed(seed)
    rows, tokens, features = (torch.randperm(size, generator=g) for size in z.shape)
    close(LOSSES[name](z), LOSSES[name](z[rows][:, tokens]))
    close(LOSSES[name](z), LOSSES[name](z[:, :, features]))


@pytest.mark.parametrize("name", LOSSES)
@given(z=CLOUDS, padding=st.integers(1, 5), junk=st.floats(-1e6, 1e6))
def test_padding_does_not_matter(name, z, padding, junk):
    z = given_cloud(name, z)
    mask = torch.nn.functional.pad(torch.ones(z.shape[:2], dtype=torch.bool), (padding, 0), value=False)
    close(LOSSES[name](z), LOSSES[name](torch.nn.functional.pad(z, (0, 0, padding, 0), value=junk), mask))


@pytest.mark.parametrize(
    "name", [*losses.registered("paper"), *losses.registered("released"), "first_order", "second_order", *DIRECTIONS]
)
@given(z=CLOUDS, scale=st.floats(1e-3, 1e3), seed=st.integers(0, 999))
def test_rotation_and_scale_do_not_matter(name, z, scale, seed):
    """The scale only without ε, and to angles; decorrelation of the tokens sees the axes."""
    z, g = given_cloud(name, z), torch.Generator().manual_seed(seed)
    rotation, _ = torch.linalg.qr(torch.randn(z.shape[2], z.shape[2], generator=g, dtype=z.dtype))
    if name != "decorrelation":
        close(LOSSES[name](z), LOSSES[name](z @ rotation))
    if name in DIRECTIONS:
        close(LOSSES[name](z), LOSSES[name](scale * z @ rotation))
    if name in ANGULAR:
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


@given(z=CLOUDS, t=st.floats(0.1, 10))
def test_bounds_of_the_rivals(z, t):
    z = given_cloud("koleo", z)
    n, d = z.shape[1:]
    assert -4 * t - 1e-9 <= losses.uniformity(z, t=t).item() <= 1e-9
    assert -1 / (n - 1) - 1e-9 <= losses.cosreg(z).item() <= 1 + 1e-9
    assert -math.log(2 + 1e-8) - 1e-9 <= losses.koleo(z).item() <= -math.log(1e-8) + 1e-9
    assert max(0, (d - n + 1) / (d - 1)) - 1e-9 <= losses.i_star(z).item() <= 1 + 1e-9
    assert -1e-9 <= losses.barlow_twins(z).item() <= 5e-3 * d * (d - 1) + 1e-9
    assert losses.vicreg(z).item() >= 0


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
