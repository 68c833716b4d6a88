"""Every loss, value and gradient, against the loops of reference.py."""

from __future__ import annotations

import sys

import pytest
import reference
import torch

from decondense import losses

CASES = {
    "exact": (losses.dispersion, {}, reference.dispersion, {}),
    "exact tau clamp": (
        losses.dispersion,
        {"tau": 0.3, "clamp": 0.4},
        reference.dispersion,
        {"tau": 0.3, "clamp": 0.4},
    ),
    "exact hard": (
        losses.dispersion,
        {"hard_clamp": True, "clamp": 0.4},
        reference.dispersion,
        {"hard": True, "clamp": 0.4},
    ),
    "exact diagonal": (losses.dispersion, {"diagonal": True}, reference.dispersion, {"diagonal": True}),
    "exact cosine": (
        losses.dispersion,
        {"distance": "cosine", "tau": 0.5, "eps": 0.0},
        reference.dispersion,
        {"kind": "cosine", "tau": 0.5, "eps": 0.0},
    ),
    "first order": (losses.dispersion, {"estimator": "first_order"}, reference.first_order, {}),
    "first order hard": (
        losses.dispersion,
        {"estimator": "first_order", "clamp": 0.6, "hard_clamp": True},
        reference.first_order,
        {"clamp": 0.6, "hard": True},
    ),
    "first order clamped": (
        losses.dispersion,
        {"estimator": "first_order", "clamp": 0.8},
        reference.first_order,
        {"clamp": 0.8},
    ),
    "second order": (
        losses.dispersion,
        {"estimator": "second_order", "tau": 0.4},
        reference.second_order,
        {"tau": 0.4},
    ),
    "second order clamped": (
        losses.dispersion,
        {"estimator": "second_order", "clamp": 0.8},
        reference.second_order,
        {"clamp": 0.8},
    ),
    "orthogonalization": (losses.orthogonalization, {}, reference.orthogonalization, {}),
    "orthogonalization hard": (
        losses.orthogonalization,
        {"hard_clamp": True, "clamp": 0.5, "margin": 0.4},
        reference.orthogonalization,
        {"hard": True, "clamp": 0.5, "margin": 0.4},
    ),
    "orthogonalization cosine": (
        losses.orthogonalization,
        {"distance": "cosine", "diagonal": True, "margin": 0.2},
        reference.orthogonalization,
        {"kind": "cosine", "diagonal": True, "margin": 0.2},
    ),
    "decorrelation token": (losses.decorrelation, {}, reference.decorrelation, {}),
    "decorrelation feature": (
        losses.decorrelation,
        {"axis": "feature"},
        reference.decorrelation,
        {"axis": "feature"},
    ),
    "decorrelation sum": (
        losses.decorrelation,
        {"axis": "feature", "pairs": "sum", "diagonal": True},
        reference.decorrelation,
        {"axis": "feature", "total": "sum", "diagonal": True},
    ),
    "l2": (losses.l2_repel, {"tau": 5.0}, reference.l2_repel, {"tau": 5.0}),
    "l2 paper": (
        losses.l2_repel,
        {"pairs": "sum", "norm": "sum"},
        reference.l2_repel,
        {"total": "sum", "norm": "sum"},
    ),
    "l2 diagonal": (
        losses.l2_repel,
        {"diagonal": True, "norm_weight": 0.0, "tau": 20.0},
        reference.l2_repel,
        {"diagonal": True, "norm_weight": 0.0, "tau": 20.0},
    ),
    "entropy": (losses.perplexity_entropy, {"tau": 8.0}, reference.perplexity_entropy, {"tau": 8.0}),
}
SHAPES = {"tiny": (2, 2, 3), "odd": (3, 7, 5), "wide": (1, 5, 19), "one feature too few": (2, 9, 4)}


def cloud(shape: tuple[int, ...], cone: float = 0.7, seed: int = 0) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(shape, generator=g, dtype=torch.float64)
    return z + cone * torch.randn(shape[0], 1, shape[2], generator=g, dtype=torch.float64)


def gradient(value: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(value, z, allow_unused=True, materialize_grads=True)[0]


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_value_and_gradient(case, shape):
    ours, options, theirs, loops = case
    z = cloud(shape).requires_grad_()
    a, b = ours(z, **options), reference.over_batch(theirs, z, **loops)
    torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-13)
    # the upstream gradient is −2.5, not one
    torch.testing.assert_close(gradient(-2.5 * a, z), gradient(-2.5 * b, z), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_mask_is_the_same_as_trimming(case):
    ours, options, theirs, loops = case
    z = cloud((4, 8, 6)).requires_grad_()
    mask = torch.ones(4, 8, dtype=torch.bool)
    mask[0, 5:] = False  # right padding
    mask[1, :3] = False  # left padding
    mask[2, 1:] = False  # one token: contributes zero
    mask[3, [0, 4]] = False  # holes
    a, b = ours(z, mask, **options), reference.over_batch(theirs, z, mask, **loops)
    torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-13)
    ga, gb = gradient(a, z), gradient(b, z)
    torch.testing.assert_close(ga, gb, rtol=1e-9, atol=1e-12)
    assert (ga[~mask] == 0).all()
    # what stands at a position that does not count is never seen, whatever it is
    with torch.no_grad():
        dirty = z.detach().clone()
        dirty[~mask] = torch.nan
        dirty[0, 6] = torch.inf
    dirty.requires_grad_()
    c = ours(dirty, mask, **options)
    torch.testing.assert_close(c, a.detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close(gradient(c, dirty), ga, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_no_token_counts(case):
    ours, options, _, _ = case
    z = cloud((2, 4, 3)).requires_grad_()
    mask = torch.zeros(2, 4, dtype=torch.bool)
    mask[1, 2] = True
    value = ours(z, mask, **options)
    assert value.item() == 0
    assert (gradient(value, z) == 0).all()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_many_tiles_are_one_tile(case, monkeypatch):
    """The same result whether the rows come in one tile or in several, also ragged ones."""
    ours, options, _, _ = case
    z = cloud((2, 13, 6)).requires_grad_()
    mask = torch.ones(2, 13, dtype=torch.bool)
    mask[1, 9:] = False
    whole = ours(z, mask, **options)
    expected = gradient(whole, z)

    def small(batch, tokens, device):
        return ((slice(b, b + 1), slice(r, min(r + 4, tokens))) for b in range(batch) for r in range(0, tokens, 4))

    for module in ("pairs", "l2_repel", "perplexity_entropy"):
        # by sys.modules: the package's attribute of that name is the function
        monkeypatch.setattr(sys.modules[f"decondense.losses.{module}"], "tiles", small)
    tiled = ours(z, mask, **options)
    torch.testing.assert_close(tiled, whole, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(gradient(tiled, z), expected, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_non_contiguous(case):
    ours, options, _, _ = case
    z = cloud((3, 6, 8))
    strided = z.transpose(0, 2).contiguous().transpose(0, 2).requires_grad_()
    assert not strided.is_contiguous()
    z.requires_grad_()
    a, b = ours(strided, **options), ours(z, **options)
    torch.testing.assert_close(a, b)
    torch.testing.assert_close(gradient(a, strided), gradient(b, z))


@pytest.mark.parametrize("estimator", ["exact", "first_order", "second_order"])
def test_gradcheck_inside_the_clamp(estimator):
    z = cloud((2, 5, 6), cone=0.3).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: losses.dispersion(x, estimator=estimator, clamp=0.01), (z,))


@pytest.mark.parametrize("name", ["orthogonalization", "decorrelation", "l2_repel", "perplexity_entropy"])
def test_gradcheck_of_the_others(name):
    z = cloud((2, 5, 6), cone=0.3).requires_grad_()
    options = {"clamp": 0.01} if name == "orthogonalization" else {}
    assert torch.autograd.gradcheck(lambda x: losses.LOSSES[name](x, **options), (z,))


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
