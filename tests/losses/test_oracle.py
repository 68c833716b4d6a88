"""Every loss, value and gradient, against the loops of reference.py and rival_reference.py."""

from __future__ import annotations

import sys

import pytest
import reference
import rival_reference as rival
import torch
from clouds import cloud, gradient

from decondense import losses

# The loops have shorter names for some options, and a function of their own for every estimator.
NAMES = {"hard_clamp": "hard", "distance": "kind", "pairs": "total", "shrinkage": "zeta", "redundancy_weight": "weight"}
NAMES |= {"variance_weight": "mu", "covariance_weight": "nu"}


def target(width: int) -> torch.Tensor:
    block = torch.tensor([[2.0, 0.3], [0.3, 0.5]], dtype=torch.float64)
    return torch.block_diag(*[block] * (width // 2 + 1))[:width, :width].clone()


def case(ours, theirs, **options):
    return ours, options, theirs, {NAMES.get(k, k): v for k, v in options.items() if k != "estimator"}


FIRST, SECOND = {"estimator": "first_order"}, {"estimator": "second_order"}
PAPER = {
    "exact": case(losses.dispersion, reference.dispersion),
    "exact tau clamp": case(losses.dispersion, reference.dispersion, tau=0.3, clamp=0.4),
    "exact hard": case(losses.dispersion, reference.dispersion, hard_clamp=True, clamp=0.4),
    "exact diagonal": case(losses.dispersion, reference.dispersion, diagonal=True),
    "exact cosine": case(losses.dispersion, reference.dispersion, distance="cosine", tau=0.5, eps=0.0),
    "first order": case(losses.dispersion, reference.first_order, **FIRST),
    "first order hard": case(losses.dispersion, reference.first_order, clamp=0.6, hard_clamp=True, **FIRST),
    "first order clamped": case(losses.dispersion, reference.first_order, clamp=0.8, **FIRST),
    "second order": case(losses.dispersion, reference.second_order, tau=0.4, **SECOND),
    "second order clamped": case(losses.dispersion, reference.second_order, clamp=0.8, **SECOND),
    "orthogonalization": case(losses.orthogonalization, reference.orthogonalization),
    "orthogonalization hard": case(
        losses.orthogonalization, reference.orthogonalization, hard_clamp=True, clamp=0.5, margin=0.4
    ),
    "orthogonalization cosine": case(
        losses.orthogonalization, reference.orthogonalization, distance="cosine", diagonal=True, margin=0.2
    ),
    "decorrelation token": case(losses.decorrelation, reference.decorrelation),
    "decorrelation feature": case(losses.decorrelation, reference.decorrelation, axis="feature"),
    "decorrelation sum": case(
        losses.decorrelation, reference.decorrelation, axis="feature", pairs="sum", diagonal=True
    ),
    "l2": case(losses.l2_repel, reference.l2_repel, tau=5.0),
    "l2 paper": case(losses.l2_repel, reference.l2_repel, pairs="sum", norm="sum"),
    "l2 diagonal": case(losses.l2_repel, reference.l2_repel, diagonal=True, norm_weight=0.0, tau=20.0),
    "entropy": case(losses.perplexity_entropy, reference.perplexity_entropy, tau=8.0),
}
RIVALS = {
    "uniformity": case(losses.uniformity, rival.uniformity),
    "uniformity sharp": case(losses.uniformity, rival.uniformity, t=7.0),
    "cosreg": case(losses.cosreg, rival.cosreg),
    "koleo": case(losses.koleo, rival.koleo),
    "koleo eps": case(losses.koleo, rival.koleo, eps=0.5),
    "vicreg": case(losses.vicreg, rival.vicreg),
    "vicreg weights": case(losses.vicreg, rival.vicreg, variance_weight=3.0, covariance_weight=0.5, gamma=1.7, eps=0.1),
    "barlow": case(losses.barlow_twins, rival.barlow_twins),
    "barlow weight": case(losses.barlow_twins, rival.barlow_twins, redundancy_weight=2.0),
    "i_star": case(losses.i_star, rival.i_star),
    "i_star identity": case(losses.i_star, rival.i_star, shrinkage=0.3),
    "i_star target": case(losses.i_star, rival.i_star, shrinkage=0.6, target=target),
}
CASES = {**PAPER, **RIVALS}
SHAPES = {"tiny": (2, 2, 3), "odd": (3, 7, 5), "wide": (1, 5, 19), "one feature too few": (2, 9, 4)}
# Covariances of so few tokens leave fewer digits.
RIVAL_SHAPES = {"tiny": (2, 3, 2), "odd": (3, 7, 5), "wide": (1, 5, 9), "tall": (2, 9, 3)}
DIGITS = {"paper": ((1e-11, 1e-13), (1e-9, 1e-12)), "rival": ((1e-11, 1e-12), (1e-8, 1e-10))}


def ready(name: str, width: int):
    """A case, its target grown to the width, and the digits asked of its value and gradient."""
    ours, options, theirs, loops = CASES[name]
    if "target" in options:
        options, loops = ({**o, "target": target(width)} for o in (options, loops))
    return ours, options, theirs, loops, DIGITS["rival" if name in RIVALS else "paper"]


def same(a: torch.Tensor, b: torch.Tensor, digits: tuple[float, float]) -> None:
    torch.testing.assert_close(a, b, rtol=digits[0], atol=digits[1])


@pytest.mark.parametrize(
    ("name", "shape"),
    [(n, s) for cases, shapes in ((PAPER, SHAPES), (RIVALS, RIVAL_SHAPES)) for n in cases for s in shapes.values()],
)
def test_value_and_gradient(name, shape):
    ours, options, theirs, loops, (of_value, of_gradient) = ready(name, shape[2])
    z = cloud(shape).requires_grad_()
    a, b = ours(z, **options), reference.over_batch(theirs, z, **loops)
    same(a, b, of_value)
    # the upstream gradient is −2.5, not one
    same(gradient(-2.5 * a, z), gradient(-2.5 * b, z), of_gradient)


@pytest.mark.parametrize("name", CASES)
def test_mask_is_the_same_as_trimming(name):
    ours, options, theirs, loops, (of_value, of_gradient) = ready(name, width := 4 if name in RIVALS else 6)
    z = cloud((4, 8, width)).requires_grad_()
    mask = torch.ones(4, 8, dtype=torch.bool)
    mask[0, 5:] = False  # right padding
    mask[1, :3] = False  # left padding
    mask[2, 1:] = False  # one token: no part of the mean
    mask[3, [0, 4]] = False  # holes
    a, b = ours(z, mask, **options), reference.over_batch(theirs, z, mask, **loops)
    same(a, b, of_value)
    ga, gb = gradient(a, z), gradient(b, z)
    same(ga, gb, of_gradient)
    assert (ga[~mask] == 0).all()
    # what stands at a position that does not count is never seen, whatever it is
    dirty = z.detach().clone()
    dirty[~mask] = torch.nan
    dirty[0, 6] = torch.inf
    dirty.requires_grad_()
    c = ours(dirty, mask, **options)
    torch.testing.assert_close(c, a.detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close(gradient(c, dirty), ga, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_no_token_counts(name):
    ours, options, *_ = ready(name, 3)
    z = cloud((2, 4, 3)).requires_grad_()
    mask = torch.zeros(2, 4, dtype=torch.bool)
    mask[1, 2] = True
    value = ours(z, mask, **options)
    assert value.item() == 0
    assert (gradient(value, z) == 0).all()


@pytest.mark.parametrize("name", CASES)
def test_many_tiles_are_one_tile(name, monkeypatch):
    """The same result whether the rows come in one tile or in several, also ragged ones."""
    ours, options, *_ = ready(name, 6)
    z = cloud((2, 13, 6)).requires_grad_()
    mask = torch.ones(2, 13, dtype=torch.bool)
    mask[1, 9:] = False
    whole = ours(z, mask, **options)
    expected = gradient(whole, z)

    def small(batch, tokens, device):
        return ((slice(b, b + 1), slice(r, min(r + 4, tokens))) for b in range(batch) for r in range(0, tokens, 4))

    for module in ("pairs", "l2_repel", "perplexity_entropy", "koleo"):
        # by sys.modules: the package's attribute of that name is the function
        monkeypatch.setattr(sys.modules[f"decondense.losses.{module}"], "tiles", small)
    tiled = ours(z, mask, **options)
    torch.testing.assert_close(tiled, whole, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(gradient(tiled, z), expected, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("name", CASES)
def test_non_contiguous(name):
    ours, options, *_ = ready(name, 8)
    z = cloud((3, 6, 8))
    strided = z.transpose(0, 2).contiguous().transpose(0, 2).requires_grad_()
    assert not strided.is_contiguous()
    z.requires_grad_()
    a, b = ours(strided, **options), ours(z, **options)
    torch.testing.assert_close(a, b)
    torch.testing.assert_close(gradient(a, strided), gradient(b, z))


@pytest.mark.parametrize("name", [*sorted(losses.registered().keys() - {"placebo"}), "first_order", "second_order"])
def test_gradcheck_inside_the_clamp(name):
    z = cloud((2, 5, 6), cone=0.3).requires_grad_()
    options = {"clamp": 0.01} if name in ("dispersion", "orthogonalization") else {}
    if name.endswith("_order"):
        name, options = "dispersion", {"estimator": name, "clamp": 0.01}
    assert torch.autograd.gradcheck(losses.get(name, **options), (z,))


@pytest.mark.parametrize("condensed", [0.0, 5.0])
@pytest.mark.parametrize("tau", [1.0, 0.3])
def test_algorithm_1_as_the_paper_writes_it(tau, condensed):
    """The ten lines of algorithm_1.py, the loops, and the preset, in float64; strongly condensed, the clamp bites."""
    g = torch.Generator().manual_seed(3)
    z = (torch.randn(2, 9, 5, generator=g, dtype=torch.float64) + condensed).requires_grad_()
    written = losses.algorithm_1(z, tau=tau)
    loops = reference.over_batch(reference.dispersion, z, tau=tau, clamp=0.01, hard=True) + 0.01
    preset = losses.get("dispersion", preset="paper", tau=tau)(z)
    expected = torch.autograd.grad(loops, z)[0]
    for value in (written, preset):
        torch.testing.assert_close(value, loops, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(torch.autograd.grad(value, z)[0], expected, rtol=1e-10, atol=1e-13)
