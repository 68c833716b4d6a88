"""The rivals from the literature: loops, closed forms, other people's implementations, and a model to train."""

from __future__ import annotations

import importlib
import math
import sys
import types
from pathlib import Path

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import reference
import rival_reference as rival
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GPT2Config, GPT2LMHeadModel

import decondense as dc
from decondense import losses
from decondense.meter.spectrum import SPECTRAL, spectral_statistics

NAMES = tuple(losses.RIVALS)
TARGET = torch.tensor([[2.0, 0.3], [0.3, 0.5]], dtype=torch.float64)  # grown to any width by `target`


def target(width: int) -> torch.Tensor:
    blocks = torch.block_diag(*[TARGET] * (width // 2 + 1))
    return blocks[:width, :width].clone()


CASES = {
    "uniformity": (losses.uniformity, {}, rival.uniformity, {}),
    "uniformity sharp": (losses.uniformity, {"t": 7.0}, rival.uniformity, {"t": 7.0}),
    "cosreg": (losses.cosreg, {}, rival.cosreg, {}),
    "koleo": (losses.koleo, {}, rival.koleo, {}),
    "koleo eps": (losses.koleo, {"eps": 0.5}, rival.koleo, {"eps": 0.5}),
    "vicreg": (losses.vicreg, {}, rival.vicreg, {}),
    "vicreg weights": (
        losses.vicreg,
        {"variance_weight": 3.0, "covariance_weight": 0.5, "gamma": 1.7, "eps": 0.1},
        rival.vicreg,
        {"mu": 3.0, "nu": 0.5, "gamma": 1.7, "eps": 0.1},
    ),
    "barlow": (losses.barlow_twins, {}, rival.barlow_twins, {}),
    "barlow weight": (losses.barlow_twins, {"redundancy_weight": 2.0}, rival.barlow_twins, {"weight": 2.0}),
    "i_star": (losses.i_star, {}, rival.i_star, {}),
    "i_star identity": (losses.i_star, {"shrinkage": 0.3}, rival.i_star, {"zeta": 0.3}),
    "i_star target": (losses.i_star, {"shrinkage": 0.6, "target": target}, rival.i_star, {"zeta": 0.6}),
}
SHAPES = {"tiny": (2, 3, 2), "odd": (3, 7, 5), "wide": (1, 5, 9), "tall": (2, 9, 3)}


def cloud(shape: tuple[int, ...], cone: float = 0.7, seed: int = 0) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(shape, generator=g, dtype=torch.float64)
    return z + cone * torch.randn(shape[0], 1, shape[2], generator=g, dtype=torch.float64)


def ready(case, width: int):
    ours, options, theirs, loops = case
    if callable(options.get("target")):
        options, loops = {**options, "target": target(width)}, {**loops, "target": target(width)}
    return ours, options, theirs, loops


def gradient(value: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(value, z, allow_unused=True, materialize_grads=True)[0]


def everywhere(function):
    return pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())(function)


# ---- against the loops ----


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@everywhere
def test_value_and_gradient(case, shape):
    ours, options, theirs, loops = ready(case, shape[2])
    z = cloud(shape).requires_grad_()
    a, b = ours(z, **options), reference.over_batch(theirs, z, **loops)
    torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(gradient(-2.5 * a, z), gradient(-2.5 * b, z), rtol=1e-8, atol=1e-10)


@everywhere
def test_mask_is_the_same_as_trimming(case):
    ours, options, theirs, loops = ready(case, 4)
    z = cloud((4, 8, 4)).requires_grad_()
    mask = torch.ones(4, 8, dtype=torch.bool)
    mask[0, 5:] = False
    mask[1, :3] = False
    mask[2, 1:] = False  # one token: contributes zero
    mask[3, [0, 4]] = False
    a, b = ours(z, mask, **options), reference.over_batch(theirs, z, mask, **loops)
    torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)
    ga, gb = gradient(a, z), gradient(b, z)
    torch.testing.assert_close(ga, gb, rtol=1e-8, atol=1e-10)
    assert (ga[~mask] == 0).all()
    dirty = z.detach().clone()
    dirty[~mask] = torch.nan
    dirty[0, 6] = torch.inf
    dirty.requires_grad_()
    c = ours(dirty, mask, **options)
    torch.testing.assert_close(c, a.detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close(gradient(c, dirty), ga, rtol=1e-9, atol=1e-12)


@everywhere
def test_no_token_counts(case):
    ours, options, _, _ = ready(case, 3)
    z = cloud((2, 4, 3)).requires_grad_()
    mask = torch.zeros(2, 4, dtype=torch.bool)
    mask[1, 2] = True
    value = ours(z, mask, **options)
    assert value.item() == 0
    assert (gradient(value, z) == 0).all()


@pytest.mark.parametrize("name", ["uniformity", "koleo"])
def test_many_tiles_are_one_tile(name, monkeypatch):
    z = cloud((2, 13, 6)).requires_grad_()
    mask = torch.ones(2, 13, dtype=torch.bool)
    mask[1, 9:] = False
    whole = losses.RIVALS[name](z, mask)
    expected = gradient(whole, z)

    def small(batch, tokens, device):
        return ((slice(b, b + 1), slice(r, min(r + 4, tokens))) for b in range(batch) for r in range(0, tokens, 4))

    for module in ("pairs", "koleo"):
        monkeypatch.setattr(sys.modules[f"decondense.losses.{module}"], "tiles", small)
    tiled = losses.RIVALS[name](z, mask)
    torch.testing.assert_close(tiled, whole, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(gradient(tiled, z), expected, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("name", NAMES)
def test_gradcheck(name):
    z = cloud((2, 5, 6), cone=0.3).requires_grad_()
    assert torch.autograd.gradcheck(losses.RIVALS[name], (z,))


# ---- closed forms ----


def test_orthonormal_tokens():
    n = 6
    z = 3 * torch.eye(n, dtype=torch.float64).unsqueeze(0)
    assert losses.uniformity(z, t=1.5).item() == pytest.approx(-3.0)
    assert losses.cosreg(z).item() == pytest.approx(0.0, abs=1e-15)
    assert losses.koleo(z, eps=1e-12).item() == pytest.approx(-math.log(2) / 2)
    # the covariance is 9 (I − 1/n)/(n − 1): n − 1 equal eigenvalues and a zero
    assert losses.i_star(z).item() == pytest.approx(1 - (n - 2) / (n - 1))
    off = (9 / (n * (n - 1))) ** 2 * n * (n - 1) / n
    hinge = 1 - math.sqrt(9 / n + 1e-4)
    assert losses.vicreg(z).item() == pytest.approx(25 * max(0.0, hinge) + off)
    assert losses.barlow_twins(z).item() == pytest.approx(5e-3 * n * (n - 1) / (n - 1) ** 2)


def test_identical_tokens():
    """Fully condensed: each at its worst, and nothing to tell which way to go."""
    z = torch.randn(1, 1, 7, dtype=torch.float64).expand(2, 5, 7).clone().requires_grad_()
    expected = {
        "uniformity": 0.0,
        "cosreg": 1.0,
        "koleo": -math.log(1e-8),
        "vicreg": 25 * (1 - 1e-2),
        "barlow_twins": None,  # features without variance; rounding decides which of them have some
        "i_star": 1.0,
    }
    for name, value in expected.items():
        loss = losses.RIVALS[name](z)
        if value is not None:
            assert loss.item() == pytest.approx(value, abs=1e-7), name
            assert gradient(loss, z).abs().max() < 1e-6, name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_i_star_takes_rounding_for_no_shape(dtype):
    g = torch.Generator().manual_seed(2)
    z = torch.randn(1, 1, 33, generator=g, dtype=dtype).expand(1, 7, 33).clone().requires_grad_()
    value = losses.i_star(z)
    assert value.item() == 1
    assert (gradient(value, z) == 0).all()


def test_isotropy_is_that_of_the_meter():
    z = cloud((3, 20, 6))
    ours = 1 - losses.i_star(z, reduction="none")
    index = SPECTRAL.index("isoscore"), SPECTRAL.index("participation_ratio")
    for cloud_, score in zip(z, ours):
        statistics = spectral_statistics(cloud_)
        assert score.item() == pytest.approx(statistics[index[0]].item(), rel=1e-12)
        assert score.item() == pytest.approx((statistics[index[1]].item() - 1) / 5, rel=1e-12)


def test_few_tokens_bound_the_isotropy():
    """n tokens span n − 1 directions at most: 1 − IsoScore ≥ (d − n + 1)/(d − 1), reached by a regular simplex."""
    simplex = torch.eye(5, 12, dtype=torch.float64).unsqueeze(0)
    assert losses.i_star(simplex).item() == pytest.approx((12 - 5 + 1) / 11)
    assert losses.i_star(cloud((1, 5, 12))).item() > (12 - 5 + 1) / 11


def test_shrinkage_to_the_target_alone_forgets_the_tokens():
    z = cloud((2, 9, 4)).requires_grad_()
    s = losses.pooled_covariance(cloud((3, 40, 4), seed=5))
    value = losses.i_star(z, shrinkage=1.0, target=s)
    eigenvalues = torch.linalg.eigvalsh(s)
    participation = eigenvalues.sum() ** 2 / eigenvalues.square().sum()
    assert value.item() == pytest.approx(1 - ((participation - 1) / 3).item())
    assert gradient(value, z).abs().max() == 0


def test_pooled_covariance_is_that_of_the_tokens_that_count():
    z = cloud((3, 9, 4))
    mask = torch.ones(3, 9, dtype=torch.bool)
    mask[1, 4:] = False
    torch.testing.assert_close(losses.pooled_covariance(z, mask), torch.cov(z[mask].T))
    torch.testing.assert_close(losses.pooled_covariance(z), torch.cov(z.flatten(0, 1).T))
    with pytest.raises(ValueError, match="at least 2 tokens that count, got 1"):
        losses.pooled_covariance(z, torch.eye(3, 9, dtype=torch.bool) & (torch.arange(3) == 0)[:, None])


def test_uniformity_is_dispersion_by_cosine():
    """exp(−t‖u − v‖²) = exp(2tc) exp(−2t): Wang & He's D = −cosine at τ = 1/(2t), without the diagonal."""
    z = cloud((2, 9, 5)).requires_grad_()
    a = losses.uniformity(z, t=1.25)
    b = losses.dispersion(z, distance="cosine", tau=0.4, eps=0.0) - 2.5
    torch.testing.assert_close(a, b)
    torch.testing.assert_close(gradient(a, z), gradient(b, z))


def test_cosreg_points_where_first_order_dispersion_points():
    z = cloud((1, 9, 5)).requires_grad_()
    a = gradient(losses.cosreg(z), z).flatten()
    b = gradient(losses.dispersion(z, estimator="first_order", eps=0.0), z).flatten()
    assert torch.cosine_similarity(a, b, dim=0).item() == pytest.approx(1, abs=1e-12)


def test_cosreg_with_the_published_divisor():
    """Gao et al. divide by n², here n(n − 1) is the number of pairs: a factor of 1 − 1/n."""
    z = cloud((1, 9, 5))
    u = torch.nn.functional.normalize(z[0], dim=-1)
    published = ((u @ u.T).sum() - 9) / 81
    assert published.item() == pytest.approx((1 - 1 / 9) * losses.cosreg(z).item())


# ---- against other implementations ----


@pytest.fixture
def lightly(monkeypatch):
    """The files of lightly.loss one by one: the package as a whole asks for torchvision, these do not."""
    package = pytest.importorskip("lightly", reason="SKIPPED WITHOUT LIGHTLY: pip install --no-deps lightly")
    bare = types.ModuleType("lightly.loss")
    bare.__path__ = [str(Path(package.__file__).parent / "loss")]
    monkeypatch.setitem(sys.modules, "lightly.loss", bare)
    return lambda module: importlib.import_module(f"lightly.loss.{module}")


def test_koleo_of_lightly(lightly):
    z = cloud((1, 40, 16)).requires_grad_()
    ours, theirs = losses.koleo(z), lightly("koleo_loss").KoLeoLoss()(z[0])
    # theirs adds ε = 1e-8 to every coordinate of a difference as well
    torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=0)
    torch.testing.assert_close(gradient(ours, z), gradient(theirs, z), rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("scale", [0.3, 1.0, 3.0])
def test_vicreg_of_lightly(lightly, scale):
    """Two equal views have no invariance term; lightly halves the hinges and sums the covariances of the two."""
    z = (scale * cloud((1, 40, 16))).requires_grad_()
    theirs = lightly("vicreg_loss").VICRegLoss()(z[0], z[0])
    ours = losses.vicreg(z, variance_weight=25.0, covariance_weight=2.0)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=0)
    torch.testing.assert_close(gradient(ours, z), gradient(theirs, z), rtol=1e-10, atol=1e-13)


def test_barlow_twins_of_lightly(lightly):
    """Its batch norm adds 1e-5 to the variances: invisible beside 1e10."""
    z = (1e5 * cloud((1, 40, 16))).requires_grad_()
    theirs = lightly("barlow_twins_loss").BarlowTwinsLoss()(z[0], z[0])
    ours = losses.barlow_twins(z)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=0)
    torch.testing.assert_close(gradient(ours, z), gradient(theirs, z), rtol=1e-8, atol=1e-16)


@pytest.mark.parametrize("zeta", [0.0, 0.35])
def test_isoscore_of_its_authors(zeta):
    """Theirs takes √d in float32, hence seven digits."""
    package = pytest.importorskip(
        "IsoScore.IsoScore", reason="SKIPPED WITHOUT ISOSCORE: pip install --no-deps 'IsoScore>=2'"
    )
    z = (cloud((3, 50, 7)) * torch.linspace(0.2, 3, 7, dtype=torch.float64)).requires_grad_()
    s = losses.pooled_covariance(cloud((2, 90, 7), seed=4))
    theirs = torch.stack([1 - package.istar().IsoScore_star(x, s, zeta, is_eval=False) for x in z])
    ours = losses.i_star(z, shrinkage=zeta, target=s if zeta else None, reduction="none")
    torch.testing.assert_close(ours, theirs, rtol=2e-6, atol=0)
    torch.testing.assert_close(gradient(ours.sum(), z), gradient(theirs.sum(), z), rtol=1e-4, atol=1e-7)
    if zeta == 0:
        plain = torch.stack([1 - package.IsoScore(x.detach()) for x in z])
        torch.testing.assert_close(ours.detach(), plain, rtol=2e-6, atol=0)


# ---- whatever comes ----

CLOUDS = hnp.arrays(
    dtype="float64",
    shape=hnp.array_shapes(min_dims=3, max_dims=3, min_side=2, max_side=6),
    elements=st.floats(-10, 10, allow_subnormal=False),
)
# a little noise: exact ties and flat features are tested by themselves
SHAKEN = CLOUDS.map(lambda a: torch.from_numpy(a + 0.05 * np.random.default_rng(7).standard_normal(a.shape)))


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=25, deadline=None)
@given(z=SHAKEN, seed=st.integers(0, 999))
def test_order_does_not_matter(name, z, seed):
    g = torch.Generator().manual_seed(seed)
    tokens, rows = torch.randperm(z.shape[1], generator=g), torch.randperm(z.shape[0], generator=g)
    close(losses.RIVALS[name](z), losses.RIVALS[name](z[rows][:, tokens]))
    features = torch.randperm(z.shape[2], generator=g)
    close(losses.RIVALS[name](z), losses.RIVALS[name](z[:, :, features]))


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=25, deadline=None)
@given(z=SHAKEN, padding=st.integers(1, 5), junk=st.floats(-1e6, 1e6))
def test_padding_does_not_matter(name, z, padding, junk):
    mask = torch.ones(z.shape[:2], dtype=torch.bool)
    padded = torch.nn.functional.pad(z, (0, 0, padding, 0), value=junk)
    more = torch.nn.functional.pad(mask, (padding, 0), value=False)
    close(losses.RIVALS[name](z), losses.RIVALS[name](padded, more))


@pytest.mark.parametrize("name", ["uniformity", "koleo", "cosreg", "i_star"])
@settings(max_examples=25, deadline=None)
@given(z=SHAKEN, scale=st.floats(1e-3, 1e3), seed=st.integers(0, 999))
def test_rotation_and_scale_do_not_matter(name, z, scale, seed):
    g = torch.Generator().manual_seed(seed)
    rotation, _ = torch.linalg.qr(torch.randn(z.shape[2], z.shape[2], generator=g, dtype=z.dtype))
    close(losses.RIVALS[name](z), losses.RIVALS[name](scale * z @ rotation))


@settings(max_examples=50, deadline=None)
@given(z=SHAKEN, t=st.floats(0.1, 10))
def test_bounds(z, t):
    n, d = z.shape[1:]
    assert -4 * t - 1e-9 <= losses.uniformity(z, t=t).item() <= 1e-9
    assert -1 / (n - 1) - 1e-9 <= losses.cosreg(z).item() <= 1 + 1e-9
    assert -math.log(2 + 1e-8) - 1e-9 <= losses.koleo(z).item() <= -math.log(1e-8) + 1e-9
    assert max(0, (d - n + 1) / (d - 1)) - 1e-9 <= losses.i_star(z).item() <= 1 + 1e-9
    assert -1e-9 <= losses.barlow_twins(z).item() <= 5e-3 * d * (d - 1) + 1e-9
    assert losses.vicreg(z).item() >= 0


# ---- low precision, extremes ----

EXTREMES = {
    "zeros": lambda: torch.zeros(2, 4, 8),
    "one zero": lambda: torch.randn(2, 4, 8).index_fill(1, torch.tensor([1]), 0),
    "identical": lambda: torch.ones(2, 4, 8),
    "antipodal": lambda: torch.ones(2, 4, 8) * torch.tensor([1.0, -1.0, 1.0, -1.0])[None, :, None],
    "a repeated token": lambda: torch.randn(2, 4, 8)[:, [0, 1, 1, 2]],
    "two tokens": lambda: torch.randn(2, 2, 8),
    "one feature": lambda: torch.randn(2, 4, 1),
    "huge": lambda: torch.randn(2, 4, 8) * 1e4,
    "tiny": lambda: torch.randn(2, 4, 8) * 1e-6,
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("extreme", EXTREMES.values(), ids=EXTREMES.keys())
@pytest.mark.parametrize("name", NAMES)
def test_extremes_are_finite(name, extreme, dtype):
    z = extreme().to(dtype).requires_grad_()
    value = losses.RIVALS[name](z)
    assert value.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert value.isfinite()
    g = gradient(value, z)
    assert g.dtype == dtype
    if dtype == torch.float16:
        # unit vectors without ε have a slope of 1/‖z‖, and VICReg one of ‖z‖³: what float16 cannot hold is infinite,
        # which a gradient scaler notices, and nothing else is
        full = z.detach().float().requires_grad_()
        beyond = gradient(losses.RIVALS[name](full), full).abs() > 65504 * 0.999
        assert g[~beyond].isfinite().all()
        assert not g.isnan().any()
    else:
        assert g.isfinite().all()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("name", NAMES)
def test_nan_and_inf_come_out_as_nan(name, bad):
    z = torch.randn(2, 5, 4)
    z[1, 3, 2] = bad
    value = losses.RIVALS[name](z, reduction="none")
    assert value[0].isfinite()
    assert value[1].isnan()


@pytest.mark.parametrize("shape", [(2, 40, 24), (2, 24, 40)])
@pytest.mark.parametrize("name", NAMES)
def test_float32_next_to_float64(name, shape):
    """A condensed cloud with an outlier feature, as real models have them: five digits are left."""
    z = cloud(shape, cone=5.0)
    z[..., 3] *= 30
    single, double = z.float().requires_grad_(), z.float().double().requires_grad_()
    a, b = losses.RIVALS[name](single), losses.RIVALS[name](double)
    assert a.item() == pytest.approx(b.item(), rel=1e-5, abs=1e-5)
    ga, gb = gradient(a, single).double(), gradient(b, double)
    assert (ga - gb).norm() <= 1e-4 * gb.norm()


@pytest.mark.parametrize("scale", [1e25, 1e-25])
@pytest.mark.parametrize("name", ["uniformity", "koleo", "cosreg", "barlow_twins", "i_star"])
def test_float32_squares_may_overflow(name, scale):
    z = torch.randn(1, 12, 8) + 1
    value = losses.RIVALS[name](z * scale)
    torch.testing.assert_close(value, losses.RIVALS[name](z), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_autocast_changes_nothing(name):
    z = torch.randn(2, 9, 6).requires_grad_()
    plain = losses.RIVALS[name](z)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = losses.RIVALS[name](z)
    assert torch.equal(value, plain)
    assert torch.equal(gradient(value, z), gradient(plain, z))


@pytest.mark.parametrize("name", ["uniformity", "koleo"])
def test_sampled_tokens_are_those_that_count(name):
    z = torch.randn(3, 40, 8)
    mask = torch.ones(3, 40, dtype=torch.bool)
    mask[1, 20:] = False
    z[1, 20:] = torch.nan
    whole = losses.RIVALS[name](z, mask, reduction="none")
    torch.testing.assert_close(losses.RIVALS[name](z, mask, max_tokens=40, reduction="none"), whole)
    g = torch.Generator().manual_seed(3)
    few = losses.RIVALS[name](z, mask, max_tokens=16, generator=g, reduction="none")
    assert few.isfinite().all()
    assert not torch.equal(few, whole)


# ---- the interface ----


@pytest.mark.parametrize("name", NAMES)
def test_bad_tensors(name):
    with pytest.raises(ValueError, match=r"got \(4, 1, 768\): drop single-token sequences"):
        losses.RIVALS[name](torch.randn(4, 1, 768))
    with pytest.raises(TypeError, match="not token ids"):
        losses.RIVALS[name](torch.zeros(2, 5, 4, dtype=torch.long))
    with pytest.raises(ValueError, match=r"mask must be \(batch, tokens\) = \(2, 5\), got \(2, 4\)"):
        losses.RIVALS[name](torch.randn(2, 5, 4), torch.ones(2, 4))


Z = torch.randn(2, 5, 4)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: losses.uniformity(Z, t=0.0), r"t must lie in \(0, 20\], got 0.0"),
        (lambda: losses.uniformity(Z, t=21.0), "leaves float32"),
        (lambda: losses.uniformity(Z, t=math.nan), "got nan"),
        (lambda: losses.koleo(Z, eps=0.0), "eps must be a positive number"),
        (lambda: losses.koleo(Z, max_tokens=1), "max_tokens must be at least 2"),
        (lambda: losses.vicreg(Z, gamma=-1.0), "gamma must be a positive number"),
        (lambda: losses.vicreg(Z, eps=0.0), "eps must be a positive number"),
        (lambda: losses.i_star(Z, shrinkage=1.5), r"shrinkage must lie in \[0, 1\], got 1.5"),
        (lambda: losses.i_star(Z, shrinkage=0.2, target=torch.eye(5)), r"= \(4, 4\), got \(5, 5\)"),
        (lambda: losses.i_star(Z, shrinkage=0.2, target="identity"), "got str"),
        (lambda: losses.i_star(Z, target=torch.eye(4)), "target needs a shrinkage above 0"),
        (lambda: losses.cosreg(Z, reduction="sum"), "reduction must be one of"),
        (lambda: losses.get("unifromity"), "did you mean 'uniformity'"),
        (lambda: losses.get("vic_reg"), "did you mean 'vicreg'"),
        (lambda: losses.get("kolio"), "did you mean 'koleo'"),
        (lambda: losses.get("barlow"), "did you mean 'barlow_twins'"),
        (lambda: losses.get("koleo", tau=1.0), "option of koleo must be one of"),
        (lambda: losses.get("koleo", preset="paper"), "not in that source; use none"),
    ],
)
def test_bad_options(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_names():
    assert not set(losses.LOSSES) & set(losses.RIVALS)
    assert losses.get("istar").name == "i_star"
    assert losses.get("cos_reg").name == "cosreg"
    for name in NAMES:
        assert torch.equal(losses.get(name)(Z), losses.RIVALS[name](Z))


def tiny_gpt2():
    torch.manual_seed(1)
    config = GPT2Config(vocab_size=64, n_positions=32, n_embd=16, n_layer=2, n_head=2)
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
    return GPT2LMHeadModel(config).train()


@pytest.mark.parametrize("name", NAMES)
def test_training_lowers_it(name):
    """One line, a padded batch, ten steps: the penalty is the loss of the states, and it falls."""
    model = tiny_gpt2()
    ids = torch.randint(1, 64, (3, 12))
    mask = torch.ones_like(ids)
    mask[1, 7:] = 0
    labels = ids.masked_fill(mask == 0, -100)
    call = {"input_ids": ids, "attention_mask": mask}
    states = model(**call, output_hidden_states=True).hidden_states
    expected = torch.stack([losses.get(name)(z, mask.bool()) for z in states[1:]]).detach()
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-2)
    penalties = []
    with dc.regularize(model, name, weight=1.0) as handle:
        for _ in range(10):
            optimiser.zero_grad()
            out = model(**call, labels=labels)
            (out.loss - handle.last["task_loss"]).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            penalties.append(handle.last["penalty"].item())
            if len(penalties) == 1:
                torch.testing.assert_close(handle.last["per_layer"], expected)
    assert penalties[-1] < penalties[0]
