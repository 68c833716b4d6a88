"""What docs/differences.md says about the losses, measured: paper, released code, literature and our defaults."""

from __future__ import annotations

import math

import clouds
import pytest
import torch

from decondense import losses


def cloud(tokens: int, width: int, cone: float) -> torch.Tensor:
    """Normal tokens around a common direction of relative length `cone`: mean cosine about cone²/(1 + cone²)."""
    return clouds.cloud((1, tokens, width), cone).requires_grad_()


def gradient(loss, z: torch.Tensor, **options) -> torch.Tensor:
    return clouds.gradient(loss(z, **options), z).flatten()


def agreement(a: torch.Tensor, b: torch.Tensor) -> float:
    return torch.cosine_similarity(a, b, dim=0).item()


@pytest.mark.parametrize(("tau", "factor"), [(1.0, 0.994), (0.1, 0.887)])
def test_the_diagonal_dilutes_the_gradient(tau, factor):
    """By S/(S + the diagonal's own terms), 256 tokens, clamp 0.1; ε leaves a trace of gradient on the diagonal."""
    z = cloud(256, 64, 0.0)
    without, diluted = (gradient(losses.dispersion, z, tau=tau, diagonal=d) for d in (False, True))
    total = 256 * 255 * math.exp(losses.dispersion(z, tau=tau).item())
    expected = total / (total + 256 * math.exp(-math.acos(0.9) / (math.pi * tau)))
    assert (diluted.norm() / without.norm()).item() == pytest.approx(expected, rel=1e-4)
    assert expected == pytest.approx(factor, abs=5e-4)
    assert agreement(without, diluted) > 0.9999


@pytest.mark.parametrize(("cone", "cosine"), [(0.0, 0.883), (1.0, 0.023), (3.0, 0.001)])
def test_the_two_decorrelations_part_ways_as_tokens_condense(cone, cosine):
    """The feature axis of the paper's formula is centred over the tokens; the token axis of its code is not."""
    z = cloud(128, 64, cone)
    paper, released = (losses.get("decorrelation", preset=p, **o) for p, o in (("paper", {}), ("released", {})))
    assert agreement(gradient(paper, z), gradient(released, z)) == pytest.approx(cosine, abs=5e-4)
    assert paper(z).item() == pytest.approx(paper(cloud(128, 64, 0.0)).item())


def test_the_wider_clamp_weakens_the_push_on_a_condensed_cloud():
    """Mean cosine 0.92: clamp 0.25 (the released default) leaves the direction and two thirds of the length."""
    z = cloud(128, 64, 3.0)
    ours, released = gradient(losses.dispersion, z), gradient(losses.get("dispersion", preset="released"), z)
    assert losses.mean_cosine(z).item() == pytest.approx(0.916, abs=5e-4)
    assert agreement(ours, released) > 0.9999
    assert (released.norm() / ours.norm()).item() == pytest.approx(0.665, abs=5e-4)


def test_orthogonalization_saturates_with_the_clamp():
    """Identical tokens: ¼ in the formula, (½ − arccos(1 − t)/π)² with the clamp t."""
    z = torch.ones(1, 4, 8, dtype=torch.float64)
    for clamp, value in ((0.0, 0.25), (0.1, 0.127), (0.25, 0.0724)):
        found = losses.orthogonalization(z, clamp=clamp, eps=0.0).item()
        assert found == pytest.approx((0.5 - math.acos(1 - clamp) / math.pi) ** 2, rel=1e-6)
        assert found == pytest.approx(value, abs=5e-4)


def test_the_norm_of_the_formula_is_not_the_mean_of_the_code():
    z = cloud(16, 8, 0.0)
    terms = [
        losses.l2_repel(z, norm=norm, norm_weight=1.0) - losses.l2_repel(z, norm_weight=0.0) for norm in ("sum", "mean")
    ]
    assert (terms[0] / terms[1]).item() == pytest.approx(16 * 8)


def test_growing_pays_without_the_diagonal():
    """ℓ2-repel of s·z falls as −s² without the diagonal; with it, or with the formula's norm, it rises."""
    z = cloud(32, 16, 0.0).detach()
    growing = [[losses.get("l2_repel", preset=p)(s * z).item() for s in (10, 100)] for p in (None, "paper", "released")]
    assert growing[0][1] < 50 * growing[0][0] < 0
    assert all(0 < small < large for small, large in growing[1:])


@pytest.mark.parametrize("name", ["vicreg", "barlow_twins", "i_star"])
def test_centred_rivals_do_not_see_condensation(name):
    """A vector added to all tokens takes the mean cosine from 0 to 0.999, and leaves these three as they were."""
    loss = getattr(losses, name)
    z = cloud(64, 16, 0.0)
    moved = (z.detach() + 40).requires_grad_()
    assert abs(losses.mean_cosine(z).item()) < 0.1
    assert losses.mean_cosine(moved).item() > 0.999
    torch.testing.assert_close(loss(moved), loss(z))
    torch.testing.assert_close(gradient(loss, moved), gradient(loss, z))
    # so they push nobody along the common direction on the whole
    away = moved.detach().mean(1).repeat(64, 1).flatten()
    assert abs(agreement(gradient(loss, moved), away)) < 1e-9


@pytest.mark.parametrize("name", ["uniformity", "cosreg", "koleo"])
def test_the_others_do(name):
    loss = getattr(losses, name)
    z = cloud(64, 16, 0.0)
    assert loss(z.detach() + 40).item() > loss(z).item() + 0.5
