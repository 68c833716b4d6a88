"""Names, presets, and bad input: the contract, what came, and the remedy, in one sentence."""

from __future__ import annotations

import inspect
import math
import re
from functools import partial

import pytest
import torch

from decondense import geometry, losses

Z = torch.randn(2, 5, 4)


@pytest.mark.parametrize("name", losses.registered())
@pytest.mark.parametrize(
    ("z", "mask", "error", "words"),
    [
        (torch.randn(5, 4), None, ValueError, r"z must be \(batch, tokens, width\).*got \(5, 4\)"),
        (torch.randn(4, 1, 768), None, ValueError, r"got \(4, 1, 768\): drop single-token sequences"),
        (torch.randn(0, 5, 4), None, ValueError, r"at least 1 sequence, got \(0, 5, 4\): skip empty batches"),
        (
            torch.randn(2, 3, 0),
            None,
            ValueError,
            r"width of at least 1, got \(2, 3, 0\): pass states that have a width",
        ),
        (torch.zeros(2, 5, 4, dtype=torch.long), None, TypeError, "floating-point.*int64.*not token ids"),
        ([[[1.0]]], None, TypeError, "tensor.*got list"),
        (Z, torch.ones(2, 4), ValueError, r"mask must be \(batch, tokens\) = \(2, 5\), got \(2, 4\)"),
        (Z, torch.ones(2, 1, 5, 5), ValueError, r"got \(2, 1, 5, 5\).*two-dimensional attention mask"),
        (Z, [True], ValueError, "got list"),
        (Z, torch.ones(2, 5).numpy(), ValueError, r"\(2, 5\), got ndarray"),
    ],
)
def test_bad_tensors(name, z, mask, error, words):
    with pytest.raises(error, match=words):
        losses.registered()[name].function(z, mask)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: losses.dispersion(Z, tau=0.0), "tau must be a positive number, got 0.0"),
        (lambda: losses.dispersion(Z, tau=float("nan")), "tau must be a positive number, got nan"),
        (lambda: losses.l2_repel(Z, tau=-1.0), "tau must be a positive number, got -1.0"),
        (lambda: losses.perplexity_entropy(Z, tau=-1.0), "tau must be"),
        (lambda: losses.dispersion(Z, clamp=1.0), r"clamp must lie in \[0, 1\), got 1.0"),
        (lambda: losses.orthogonalization(Z, clamp=-0.1), r"clamp must lie in \[0, 1\), got -0.1"),
        (lambda: losses.dispersion(Z, clamp="a"), r"clamp must lie in \[0, 1\), got 'a': cosines are limited"),
        (lambda: losses.placebo(Z, clamp=None), r"clamp must lie in \[0, 1\), got None"),
        (lambda: losses.dispersion(Z, estimator="first-order"), "did you mean 'first_order'"),
        (lambda: losses.dispersion(Z, distance="euclid"), "distance must be one of"),
        (lambda: losses.dispersion(Z, reduction="sum"), "reduction must be one of"),
        (
            lambda: losses.dispersion(Z, estimator="sampled", max_tokens=1),
            "max_tokens must be .* of at least 2, got 1: a pair",
        ),
        (lambda: losses.dispersion(Z, estimator="first_order", diagonal=True), "use estimator='exact'"),
        (lambda: losses.decorrelation(Z, axis="tokens"), "did you mean 'token'"),
        (lambda: losses.get("disperson"), "did you mean 'dispersion'"),
        (lambda: losses.get("dispersion", preset="relased"), "did you mean 'released'"),
        (lambda: losses.get("dispersion", temperature=1.0), "option of dispersion must be one of"),
        (lambda: losses.get("decorrelation", tau=1.0), "option of decorrelation must be one of"),
        (lambda: losses.get("perplexity_entropy", preset="paper"), "which that source does not have"),
        (lambda: losses.uniformity(Z, t=0.0), r"t must lie in \(0, 20\], got 0.0"),
        (lambda: losses.uniformity(Z, t=21.0), "leaves float32"),
        (lambda: losses.uniformity(Z, t=math.nan), "got nan"),
        (lambda: losses.koleo(Z, eps=0.0), "eps must be a positive number"),
        (lambda: losses.koleo(Z, max_tokens=1), "max_tokens must be a whole number of at least 2"),
        *(
            (lambda most=most: losses.cosreg(Z, max_tokens=most), f"whole number of at least 2, got {most!r}: a pair")
            for most in ("3", 2.5, math.nan, True)
        ),
        *(
            (lambda loss=loss, key=key, bad=bad: losses.get(loss)(Z, **{key: bad}), f"^{key} must .*, got {bad!r}: ")
            for loss, entry in losses.registered().items()
            for key, option in inspect.signature(entry.function).parameters.items()
            if isinstance(option.default, float)
            for bad in ("x", None, True, math.nan)
        ),
        *(
            (partial(call, Z, **{key: bad}), f"^{key} must be True or False, got {bad!r}: give one of the two")
            for entry in losses.registered().values()
            for key, option in inspect.signature(entry.function).parameters.items()
            if isinstance(option.default, bool)
            for bad in ("no", None, 1)
            for call in (entry.function, lambda z, name=entry.name, **options: losses.get(name, **options)(z))
        ),
        *(
            (lambda loss=loss: losses.get(loss)(Z, backend="cuda"), "backend must be one of .*, got 'cuda': pick one")
            for loss in ("koleo", "l2_repel", "vicreg")
        ),
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
        (lambda: losses.get("koleo", preset="paper"), "got 'koleo', which that source does not have: use no preset"),
    ],
)
def test_bad_options(call, words):
    with pytest.raises(ValueError, match=words):
        call()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"generator": 1}, r"^generator must be a torch\.Generator, got int: for a seed pass torch\.Generator"),
        ({"process_group": 3}, r"^process_group must be a torch\.distributed\.ProcessGroup, got int: .*get_group\(\)"),
    ],
)
def test_objects_of_another_kind(options, words):
    for call in (lambda: losses.dispersion(Z, **options), lambda: losses.get("dispersion", **options)):
        with pytest.raises(TypeError, match=words):
            call()


def test_modules_are_the_functions_with_keywords():
    module = losses.get("dispersion", tau=0.5, clamp=0.2)
    assert torch.equal(module(Z), losses.dispersion(Z, tau=0.5, clamp=0.2))
    assert "tau=0.5" in repr(module)
    assert not list(module.parameters())
    assert not module.state_dict()
    assert losses.get("istar").name == "i_star"
    assert losses.get("cos_reg").name == "cosreg"
    for name, entry in losses.registered().items():
        assert torch.equal(losses.get(name)(Z), entry.function(Z))


def test_paper_preset():
    loss = losses.get("dispersion", preset="paper")
    torch.testing.assert_close(loss(Z), losses.dispersion(Z, clamp=0.01, hard_clamp=True) + 0.01)
    torch.testing.assert_close(
        losses.get("decorrelation", preset="paper")(Z), losses.decorrelation(Z, axis="feature") * 4 * 3
    )


def test_disperse_preset_is_wang_and_he():
    """D = −cosine, the diagonal counted, a free margin, no norm term: written out."""
    z = Z.double()
    u = torch.nn.functional.normalize(z, dim=-1)
    c = u @ u.mT
    close = torch.testing.assert_close
    close(losses.get("dispersion", preset="disperse", tau=0.5)(z), torch.log(torch.exp(c / 0.5).mean((1, 2))).mean())
    close(
        losses.get("orthogonalization", preset="disperse", margin=0.3)(z), torch.clamp(0.3 + c, min=0).square().mean()
    )
    d = torch.cdist(z, z).square()
    close(losses.get("l2_repel", preset="disperse", tau=2.0)(z), torch.log(torch.exp(-d / 2).mean((1, 2))).mean())
    r = torch.stack([torch.corrcoef(x.T) for x in z])
    close(losses.get("decorrelation", preset="disperse")(z), r.square().sum((1, 2)).mean())


def test_the_hard_clamp_loses_the_gradient_that_matters():
    """At a mean cosine of 0.99 the paper's hard clamp (ε = 0.01) and the straight-through one disagree."""
    g = torch.Generator().manual_seed(0)
    z = torch.randn(1, 64, 256, generator=g) + 10 * torch.randn(1, 1, 256, generator=g)
    z = z.double().requires_grad_()
    assert losses.mean_cosine(z).item() == pytest.approx(0.99, abs=0.002)
    soft, hard = (
        torch.autograd.grad(losses.dispersion(z, clamp=0.01, hard_clamp=flag), z)[0].flatten() for flag in (False, True)
    )
    assert torch.cosine_similarity(soft, hard, dim=0) < 0.8


@pytest.mark.parametrize("dtype", [torch.long, torch.uint8, torch.float32, torch.bool])
def test_masks_of_any_type(dtype):
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    for entry in losses.registered().values():
        function = entry.function
        assert torch.equal(function(Z, mask.to(dtype)), function(Z, mask.bool()))
    assert torch.equal(losses.mean_cosine(Z, mask.to(dtype)), losses.mean_cosine(Z, mask.bool()))


@pytest.mark.parametrize("padding", [-1e9, -math.inf, 0.5])
def test_a_mask_that_attention_adds_is_refused(padding):
    """It would be read as its opposite: the loss of the padding alone."""
    added = torch.tensor([[0.0, 0, 0, padding, padding], [0, 0, 0, 0, 0]])
    words = f"a mask of floats must be 1 where a token counts and 0 at padding, got {padding:g}: "
    for function in (losses.mean_cosine, *(entry.function for entry in losses.registered().values())):
        with pytest.raises(ValueError, match=re.escape(words)):
            function(Z, added)
    unseen = torch.compile(geometry.counting, fullgraph=True, backend="eager")  # nothing is looked at, as on a GPU
    assert not unseen(added.clamp_max(0)).any()
    assert torch.equal(unseen(torch.eye(2)), torch.eye(2).bool())


def test_a_mask_that_leaves_every_sequence_a_pair_changes_no_bit():
    """The mean over the sequences that have one is that over all, in the value and in the gradient."""
    for sequences in (3, 7, 41):
        z = torch.randn(sequences, 5, 4, requires_grad=True)
        mask = torch.ones(sequences, 5, dtype=torch.bool)
        mask[0, 3:] = False
        each = losses.dispersion(z, mask, reduction="none")
        mean = losses.dispersion(z, mask)
        assert torch.equal(mean, each.mean())
        assert torch.equal(*(torch.autograd.grad(value, z)[0] for value in (mean, each.mean())))


def test_many_layers_are_each_layer():
    """Whatever the keywords, also those that only make sense layer by layer."""
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]).bool()
    for keywords in ({"estimator": "first_order"}, {"estimator": "first_order", "max_tokens": 5}, {"tau": 0.3}):
        loss = losses.get("dispersion", **keywords)
        values, _ = loss.over_layers([Z, 2 * Z], mask)
        torch.testing.assert_close(values, torch.stack([loss(z, mask, reduction="none") for z in (Z, 2 * Z)]))
    with pytest.raises(ValueError, match="use estimator='exact'"):
        losses.get("dispersion", estimator="first_order", diagonal=True).over_layers([Z], None)
