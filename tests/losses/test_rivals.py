"""The rivals from the literature: bounds, closed forms, other people's implementations."""

from __future__ import annotations

import importlib
import math
import sys
import types
from pathlib import Path

import pytest
import torch
from clouds import cloud, gradient
from processes import launch

from decondense import losses
from decondense.meter.spectrum import SPECTRAL, spectral_statistics

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
        loss = getattr(losses, name)(z)
        if value is not None:
            assert loss.item() == pytest.approx(value, abs=1e-7), name
            assert gradient(loss, z).abs().max() < 1e-6, name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_i_star_takes_rounding_for_no_shape(dtype):
    """Tokens that differ in the last bit of their entries, as the same token does in two places of a batch."""
    g = torch.Generator().manual_seed(2)
    z = torch.randn(1, 1, 33, generator=g, dtype=dtype).expand(1, 11, 33)
    bits = torch.randint(0, 2, z.shape, generator=g).bool()
    z = torch.where(bits, torch.nextafter(z, 2 * z), z).requires_grad_()
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


def test_only_the_symmetric_part_of_a_target_counts():
    z = cloud((2, 9, 4)).requires_grad_()
    s = losses.pooled_covariance(cloud((3, 40, 4), seed=5))
    skewed = s + torch.triu(torch.ones(4, 4, dtype=s.dtype), 1)
    a, b = (losses.i_star(z, shrinkage=0.4, target=t) for t in (skewed, (skewed + skewed.T) / 2))
    torch.testing.assert_close(a, b)
    torch.testing.assert_close(gradient(a, z), gradient(b, z))


def test_pooled_covariance_is_that_of_the_tokens_that_count():
    z = cloud((3, 9, 4))
    mask = torch.ones(3, 9, dtype=torch.bool)
    mask[1, 4:] = False
    torch.testing.assert_close(losses.pooled_covariance(z, mask), torch.cov(z[mask].T))
    torch.testing.assert_close(losses.pooled_covariance(z), torch.cov(z.flatten(0, 1).T))
    with pytest.raises(ValueError, match="at least 2 tokens that count, got 1"):
        losses.pooled_covariance(z, torch.eye(3, 9, dtype=torch.bool) & (torch.arange(3) == 0)[:, None])


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


def test_koleo_pushes_without_bound():
    """Two tokens at an angle θ: the slope is 1/(2 tan(θ/2)) ≈ 1/θ on each, and 0 once they are the same."""

    def push(angle: float) -> float:
        z = torch.tensor([[[1.0, 0.0], [math.cos(angle), math.sin(angle)]]], dtype=torch.float64).requires_grad_()
        return gradient(losses.koleo(z), z)[0, 0].norm().item()

    for angle in (1.0, 1e-2, 1e-4):
        assert push(angle) == pytest.approx(1 / (2 * math.tan(angle / 2)), rel=1e-3)
    assert push(0.0) == 0


def test_vicreg_grows_with_the_fourth_power_of_the_scale():
    z = cloud((2, 20, 6))
    terms = [losses.vicreg(s * z, variance_weight=0.0).item() for s in (1.0, 10.0)]
    assert terms[1] == pytest.approx(1e4 * terms[0])
    assert losses.vicreg(10 * z, covariance_weight=0.0).item() == 0  # the hinge has long let go


def test_barlow_twins_is_decorrelation_of_features():
    z = cloud((2, 20, 6))
    expected = 5e-3 * losses.decorrelation(z, axis="feature") * 6 * 5
    assert losses.barlow_twins(z).item() == pytest.approx(expected.item())


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


# ---- in use ----


def test_koleo_finds_neighbours_among_nearly_equal_tokens():
    """Cosines of 0.9999999: in float32 they are all the same, the distances from the centre are not."""
    z = cloud((2, 40, 24), cone=3000.0).float()
    assert losses.cosreg(z.double()).item() > 1 - 1e-6
    assert losses.koleo(z).item() == pytest.approx(losses.koleo(z.double()).item(), rel=1e-3)


MEMORY = """
import resource, torch
from decondense import losses
torch.set_num_threads(1)
losses.koleo(torch.randn(1, 64, 16, requires_grad=True)).backward()
z = torch.randn(1, 8192, 16, requires_grad=True)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
losses.koleo(z).backward()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


def test_koleo_of_eight_thousand_tokens_without_the_matrix(tmp_path):
    """Its float32 distances would be 256 MB."""
    (tmp_path / "memory.py").write_text(MEMORY)
    run = launch(1, tmp_path / "memory.py")
    assert run.returncode == 0, run.stderr
    assert float(run.stdout) < 60
