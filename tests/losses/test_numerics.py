"""Closed forms, extremes, low precision, NaN, memory."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from clouds import cloud
from clouds import gradient as grad
from processes import launch

from decondense import losses

ESTIMATORS = ("exact", "first_order", "second_order")
NAMES = (*losses.registered(), "first_order", "second_order")


def loss_of(name):
    return losses.get("dispersion", estimator=name) if name in ESTIMATORS else losses.get(name)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("tau", [0.5, 1.0, 2.0])
def test_orthonormal_tokens(estimator, tau):
    z = 3 * torch.eye(6, dtype=torch.float64).unsqueeze(0)
    assert losses.dispersion(z, tau=tau, estimator=estimator).item() == pytest.approx(-0.5 / tau)


def test_identical_tokens():
    z = torch.randn(1, 1, 7, dtype=torch.float64).expand(2, 5, 7)
    edge = math.acos(0.9) / math.pi
    for estimator in ESTIMATORS[:2]:
        assert losses.dispersion(z, eps=0.0, estimator=estimator).item() == pytest.approx(-edge)
    page = Path(__file__).parents[2] / "docs" / "training.md"
    assert f"(−{edge:.2f} for identical tokens, where its clamp bites)" in page.read_text(encoding="utf-8")
    assert losses.orthogonalization(z, eps=0.0).item() == pytest.approx((0.5 - edge) ** 2)
    assert losses.decorrelation(z).item() == pytest.approx(1.0)
    assert losses.l2_repel(z, norm_weight=0.0).item() == pytest.approx(0.0, abs=1e-12)
    assert losses.perplexity_entropy(z).item() == pytest.approx(math.log2(1 / 4 + 0.01))


def test_slope_beyond_the_clamp_is_the_slope_at_it():
    """Two tokens, c = cos(angle) > 1 − clamp: d(loss)/dc = 1/(π τ √(1 − (1 − clamp)²)); zero for the hard clamp."""
    angle, tau, clamp = 0.1, 0.7, 0.2
    z = torch.tensor([[[1.0, 0.0], [math.cos(angle), math.sin(angle)]]], dtype=torch.float64).requires_grad_()
    # moving token 2 by dθ along the circle changes c by −sin(angle) dθ
    tangent = torch.tensor([-math.sin(angle), math.cos(angle)], dtype=torch.float64)
    expected = -math.sin(angle) / (math.pi * tau * math.sqrt(1 - (1 - clamp) ** 2))
    for estimator in ("exact", "first_order"):
        value = losses.dispersion(z, tau=tau, clamp=clamp, eps=0.0, estimator=estimator)
        assert (grad(value, z)[0, 1] @ tangent).item() == pytest.approx(expected, rel=1e-9)
        value = losses.dispersion(z, tau=tau, clamp=clamp, eps=0.0, estimator=estimator, hard_clamp=True)
        assert grad(value, z).abs().max() == 0


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
@pytest.mark.parametrize("name", [*NAMES, "no clamp no eps"])
def test_extremes_are_finite(name, extreme, dtype):
    loss = losses.get("dispersion", clamp=0.0, eps=0.0) if name == "no clamp no eps" else loss_of(name)
    z = extreme().to(dtype).requires_grad_()
    value = loss(z)
    assert value.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert value.isfinite()
    g = grad(value, z)
    assert g.dtype == dtype
    if dtype == torch.float16 and name in losses.registered("rival"):
        # unit vectors without ε have a slope of 1/‖z‖, and VICReg one of ‖z‖³: what float16 cannot hold is infinite,
        # which a gradient scaler notices, and nothing else is
        full = z.detach().float().requires_grad_()
        beyond = grad(loss(full), full).abs() > 65504 * 0.999
        assert g[~beyond].isfinite().all()
        assert not g.isnan().any()
    else:
        assert g.isfinite().all()


@pytest.mark.parametrize("scale", [1e25, 1e-25])
@pytest.mark.parametrize("name", [*ESTIMATORS, "uniformity", "koleo", "cosreg", "barlow_twins", "i_star"])
def test_float32_squares_may_overflow(name, scale):
    """‖z‖² leaves float32, ‖z‖ does not: the direction must survive."""
    ours = name in ESTIMATORS
    loss = losses.get("dispersion", estimator=name, eps=0.0) if ours else losses.get(name)
    z = torch.randn(1, 6 if ours else 12, 8) + 1
    torch.testing.assert_close(loss(z * scale), loss(z), rtol=1e-5 if ours else 1e-4, atol=1e-6 if ours else 1e-5)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("name", NAMES)
def test_nan_and_inf_come_out_as_nan(name, bad):
    z = torch.randn(2, 5, 4)
    z[1, 3, 2] = bad
    value = loss_of(name)(z, reduction="none")
    assert value[0].isfinite()
    assert value[1].isnan()


@pytest.mark.parametrize("shape", [(2, 40, 24), (2, 24, 40)])
@pytest.mark.parametrize("name", losses.registered("rival"))
def test_float32_next_to_float64(name, shape):
    """A condensed cloud with an outlier feature, as real models have them: five digits are left."""
    z = cloud(shape, cone=5.0)
    z[..., 3] *= 30
    single, double = z.float().requires_grad_(), z.float().double().requires_grad_()
    a, b = getattr(losses, name)(single), getattr(losses, name)(double)
    assert a.item() == pytest.approx(b.item(), rel=1e-5, abs=1e-5)
    ga, gb = grad(a, single).double(), grad(b, double)
    assert (ga - gb).norm() <= 1e-4 * gb.norm()


@pytest.mark.parametrize("name", [*NAMES, "shrunk"])
def test_autocast_changes_nothing(name):
    z = torch.randn(2, 9, 6).requires_grad_()
    target = losses.pooled_covariance(torch.randn(2, 9, 6))
    loss = losses.get("i_star", shrinkage=0.5, target=target) if name == "shrunk" else loss_of(name)
    plain = loss(z)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = loss(z)
    assert torch.equal(value, plain)
    assert torch.equal(grad(value, z), grad(plain, z))


def eager(z, tau=1.0, clamp=0.1, eps=1e-2):
    """Algorithm 1 with the straight-through clamp, in the precision of z from end to end."""
    u = z / (z.norm(dim=-1, keepdim=True) + eps)
    c = u @ u.mT
    limited = c + (c.clamp(-(1 - clamp), 1 - clamp) - c).detach()
    edge = limited.detach()
    d = torch.acos(edge) / math.pi - (limited - edge) / (math.pi * torch.sqrt(1 - edge * edge))
    off = ~torch.eye(z.shape[1], dtype=torch.bool)
    n = z.shape[1]
    return (torch.logsumexp((-d / tau)[:, off], 1) - math.log(n * (n - 1))).mean()


@pytest.mark.parametrize("estimator", ["first_order", "second_order", "exact"])
def test_a_second_derivative_is_refused(estimator):
    """The gradient is computed beside the value, so the graph knows nothing of how it changes."""
    z = torch.randn(2, 5, 4, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(losses.dispersion(2 * z, estimator=estimator), z, create_graph=True)
    (plain,) = torch.autograd.grad(losses.dispersion(2 * z, estimator=estimator), z)
    torch.testing.assert_close(gradient, plain)
    with pytest.raises(RuntimeError, match="cannot be differentiated again"):
        torch.autograd.grad(gradient.square().sum(), z)


def test_torch_func_is_refused_by_torch():
    """As docs/trainers.md says, without a gradient too; the loss of single sequences is `reduction="none"`."""
    z = torch.randn(2, 5, 4)
    for transformed in (torch.func.grad(losses.dispersion), torch.vmap(lambda one: losses.dispersion(one[None]))):
        with pytest.raises(RuntimeError, match="functorch transforms"):
            transformed(z)
    with pytest.raises(RuntimeError, match="functorch transforms"):
        torch.func.jvp(losses.dispersion, (z,), (z,))
    alone = [losses.dispersion(one[None]).item() for one in z]
    assert losses.dispersion(z, reduction="none").tolist() == pytest.approx(alone)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("cone", [0.0, 1.0, 5.0])
def test_error_is_at_most_twice_that_of_the_eager_formula(dtype, cone):
    z = (torch.randn(2, 40, 24) + cone * torch.randn(2, 1, 24)).to(dtype)
    exact = z.double().requires_grad_()
    truth = losses.dispersion(exact)
    truth_grad = grad(truth, exact)
    ours, theirs = z.clone().requires_grad_(), z.clone().requires_grad_()
    a, b = losses.dispersion(ours), eager(theirs)
    floor = torch.finfo(dtype).eps  # both may be exact by luck
    assert abs(a - truth) <= 2 * abs(b - truth) + floor
    ga, gb = grad(a, ours).double(), grad(b, theirs).double()
    assert (ga - truth_grad).norm() <= 2 * (gb - truth_grad).norm() + floor * truth_grad.norm()


def test_gradient_survives_float16():
    """Unscaled gradients underflow in float16; a loss scale must find them, so they wait in float32."""
    z = (torch.randn(1, 512, 64) * 30).half().requires_grad_()
    for estimator in ESTIMATORS:
        scaled = grad(losses.dispersion(z, estimator=estimator) * 4096, z).double() / 4096
        full = z.detach().double().requires_grad_()
        truth = grad(losses.dispersion(full, estimator=estimator), full)
        assert (scaled - truth).norm() < 1e-2 * truth.norm()


@pytest.mark.parametrize("name", ["dispersion", "uniformity", "koleo"])
def test_sampling_counts_only_tokens_that_count(name):
    z, loss = torch.randn(3, 40, 8), losses.get(name)
    mask = torch.ones(3, 40, dtype=torch.bool)
    mask[1, 20:] = False
    g = torch.Generator().manual_seed(7)
    a = loss(z, mask, max_tokens=16, generator=g, reduction="none")
    g.manual_seed(7)
    z[1, 20:] = torch.nan
    assert torch.equal(a, loss(z, mask, max_tokens=16, generator=g, reduction="none"))
    whole = loss(z, mask, reduction="none")
    torch.testing.assert_close(loss(z, mask, max_tokens=40, reduction="none"), whole)
    assert not torch.equal(a, whole)


def test_sampled_is_right_on_average():
    z = torch.randn(1, 60, 8) + 0.5
    exact = losses.dispersion(z).item()
    draws = torch.stack([losses.dispersion(z, estimator="sampled", max_tokens=20) for _ in range(300)])
    assert abs(draws.mean().item() - exact) < 4 * draws.std().item() / math.sqrt(300) + 2e-3
    assert draws.std() > 0


def test_first_order_is_blind_to_antipodal_clusters():
    """Two opposite tight clusters have c̄ ≈ 0, so first order sees nothing to push apart; exact does."""
    direction = torch.randn(1, 1, 16)
    sign = torch.tensor([1.0, -1.0]).repeat(16)[None, :, None]
    z = (direction * sign + 0.01 * torch.randn(1, 32, 16)).requires_grad_()
    first = grad(losses.dispersion(z, estimator="first_order"), z)
    exact = grad(losses.dispersion(z), z)
    assert torch.cosine_similarity(first.flatten(), exact.flatten(), dim=0) < 0.5


MEMORY = """
import resource, sys, torch
from decondense import losses
tokens = int(sys.argv[1])
torch.set_num_threads(1)
warm = torch.randn(1, 64, 64, requires_grad=True)
losses.dispersion(warm).backward()
z = torch.randn(1, tokens, 64)
z = (z + 0.5).requires_grad_()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
value = losses.dispersion(z)
value.backward()
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
# the dense formula, row block by row block: its value summed in float64, and three rows of its gradient
r = z.detach().double().norm(dim=-1, keepdim=True)
u = z.detach().double() / (r + 1e-2)
total = 0.0
for rows in u.float().split(1024, dim=1):
    c = (rows @ u.float().mT).clamp(-0.9, 0.9)
    total += torch.exp(-torch.arccos(c) / torch.pi).sum(dtype=torch.float64).item()
diagonal = (u * u).sum(-1).clamp(-0.9, 0.9)
total -= torch.exp(-torch.arccos(diagonal) / torch.pi).sum().item()
expected = torch.log(torch.tensor(total / (tokens * (tokens - 1)), dtype=torch.float64)).item()
worst = 0.0
for i in (0, tokens // 2, tokens - 1):
    c = (u[0, i] @ u[0].T).clamp(-0.9, 0.9)
    w = torch.exp(-torch.arccos(c) / torch.pi) / (torch.pi * torch.sqrt(1 - c * c))
    w[i] = 0
    g = 2 * (w @ u[0]) / total
    direction = z.detach().double()[0, i] / r[0, i]
    g = (g - u[0, i] * (g @ direction)) / (r[0, i] + 1e-2)
    worst = max(worst, ((z.grad[0, i].double() - g).norm() / g.norm()).item())
print((after - before) / 1024, abs(value.item() - expected), worst)
"""


@pytest.mark.parametrize("tokens", [8192, pytest.param(16384, marks=pytest.mark.slow)])
def test_thousands_of_tokens_without_the_matrix(tokens, tmp_path):
    """F = 64, float32: at N = 16384 the dense matrix alone is 1 GiB; here the whole thing stays under 400 MB, and under
    as large a part of the matrix at N = 8192."""
    (tmp_path / "memory.py").write_text(MEMORY)
    run = launch(1, tmp_path / "memory.py", tokens)
    assert run.returncode == 0, run.stderr
    megabytes, value_error, gradient_error = map(float, run.stdout.split())
    assert megabytes < 400 * (tokens / 16384) ** 2
    assert value_error < 1e-5
    assert gradient_error < 1e-5
