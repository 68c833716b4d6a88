"""The rivals from the literature: any cloud, any precision, bad input, and a model to train."""

from __future__ import annotations

import math
import subprocess
import sys

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GPT2Config, GPT2LMHeadModel

import decondense as dc
from decondense import losses

NAMES = tuple(losses.RIVALS)


def cloud(shape: tuple[int, ...], cone: float = 0.7, seed: int = 0) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(shape, generator=g, dtype=torch.float64)
    return z + cone * torch.randn(shape[0], 1, shape[2], generator=g, dtype=torch.float64)


def gradient(value: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(value, z, allow_unused=True, materialize_grads=True)[0]


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


def test_koleo_finds_neighbours_among_nearly_equal_tokens():
    """Cosines of 0.9999999: in float32 they are all the same, the distances from the centre are not."""
    z = cloud((2, 40, 24), cone=3000.0).float()
    assert losses.cosreg(z.double()).item() > 1 - 1e-6
    assert losses.koleo(z).item() == pytest.approx(losses.koleo(z.double()).item(), rel=1e-3)


@pytest.mark.parametrize("scale", [1e25, 1e-25])
@pytest.mark.parametrize("name", ["uniformity", "koleo", "cosreg", "barlow_twins", "i_star"])
def test_float32_squares_may_overflow(name, scale):
    z = torch.randn(1, 12, 8) + 1
    value = losses.RIVALS[name](z * scale)
    torch.testing.assert_close(value, losses.RIVALS[name](z), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [*NAMES, "shrunk"])
def test_autocast_changes_nothing(name):
    z = torch.randn(2, 9, 6).requires_grad_()
    options = {"shrinkage": 0.5, "target": losses.pooled_covariance(torch.randn(2, 9, 6))} if name == "shrunk" else {}
    loss = losses.get("i_star" if name == "shrunk" else name, **options)
    plain = loss(z)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = loss(z)
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


def test_koleo_of_eight_thousand_tokens_without_the_matrix():
    """Its float32 distances would be 256 MB."""
    run = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    assert float(run.stdout) < 60
