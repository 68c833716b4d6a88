"""A loss is one file: what follows from its registration alone."""

from __future__ import annotations

import pytest
import torch
from by_hand import script

import decondense as dc
from decondense import losses
from decondense.losses import registry
from decondense.train import recipe_from

FILE = """
from decondense.losses import register


@register("mean of the squares", source="rival", reference="Nobody 2030", presets={"paper": {"scale": 2.0}})
def toy(z, mask=None, *, scale: float = 1.0):
    if scale <= 0:
        raise ValueError(f"scale must be positive, got {scale}: leave it out.")
    return scale * z.square().mean((1, 2))
"""


@pytest.fixture
def toy(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    file = tmp_path / "toy.py"
    file.write_text(FILE)
    return script(file).toy


def test_one_file_is_enough(toy):
    z = torch.randn(2, 5, 3)
    assert losses.toy is toy
    assert torch.equal(losses.get("toy", preset="paper")(z), 2 * z.square().mean((1, 2)).mean())
    values, cosines = losses.get("toy").over_layers([z, 2 * z], None)
    assert values.shape == (2, 2)
    assert cosines is None
    assert list(losses.registered("rival")).count("toy") == 1
    assert losses.toy(z, torch.eye(2, 5), reduction="none").tolist() == [0, 0]  # no two tokens count
    assert losses.toy(z, max_tokens=2) != losses.toy(z)
    with pytest.raises(TypeError, match="unexpected keyword argument 'size'"):
        losses.toy(z, size=1)
    with pytest.raises(ValueError, match="reduction must be one of"):
        losses.toy(z, reduction="sum")
    model = {"architecture": "llama", "tokenizer": "bytes"}
    recipe = recipe_from({"name": "toy", "model": model, "loss": {"name": "toy", "options": {"scale": 3.0}}})
    assert recipe.loss.name == "toy"
    with pytest.raises(ValueError, match="scale must be positive"):
        losses.get("toy", scale=-1.0)


@pytest.mark.parametrize(
    ("body", "got"),
    [
        ("z.square().mean()", r"\(\)"),
        ("z.square().mean(-1)", r"\(4, 5\)"),
        ("z.square().mean((1, 2))[:, None]", r"\(4, 1\)"),
        ("None", "NoneType"),
    ],
)
def test_what_is_no_value_of_each_sequence_is_refused(toy, body, got):
    """With as many layers as sequences a mean would pass for the values of every layer."""

    @losses.register("another", source="rival", reference="Nobody")
    def other(z, mask=None):
        return eval(body)

    z = torch.randn(4, 5, 3)
    with pytest.raises(ValueError, match=rf"^loss 'other' must return .* of each sequence, \(batch,\), got {got} of "):
        other(z)
    with pytest.raises(ValueError, match="must return a value of each sequence"):
        losses.registered()["other"].over_layers([z] * 4, [torch.ones(4, 5)] * 4)


def test_a_name_is_taken_once(toy):
    def dispersion(z, mask=None): ...

    with pytest.raises(ValueError, match=r"a second 'dispersion' in .* beside decondense\.losses\.dispersion: rename"):
        losses.register("another", source="rival", reference="Nobody")(dispersion)
    with pytest.raises(ValueError, match="source must be one of"):
        losses.register("another", source="rivals", reference="Nobody")


def test_every_loss_of_the_package_is_registered():
    assert next(iter(losses.registered("paper"))) == "dispersion"
    assert list(losses.registered("control")) == ["placebo"]
    for name, entry in losses.registered().items():
        assert getattr(losses, name) is entry.function
        assert entry.about
        assert entry.reference
        assert {"max_tokens", "shared_sample", "generator", "reduction"} <= set(entry.options)
        with pytest.raises(TypeError, match="unexpected keyword argument 'tua'"):  # not swallowed by **common
            entry.function(torch.randn(1, 3, 2), tua=1.0)
        for preset in entry.presets:
            assert losses.get(name, preset=preset).keywords == dict(entry.presets[preset])


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("dispersion", {"estimator": "first"}, "estimator must be one of .*did you mean 'first_order'"),
        ("dispersion", {"tau": 0.0}, "tau must be a positive number"),
        ("dispersion", {"backend": "cuda"}, "backend must be one of"),
        ("orthogonalization", {"clamp": 2.0}, "clamp must lie in"),
        ("koleo", {"max_tokens": 1}, "max_tokens must be a whole number of at least 2"),
    ],
)
def test_an_impossible_value_is_refused_at_once(name, options, words):
    with pytest.raises(ValueError, match=words):
        losses.get(name, **options)
    with pytest.raises(ValueError, match=words):
        dc.regularize(torch.nn.Linear(2, 2), name, modules=["*"], **options)


def test_asking_for_a_loss_draws_no_random_number():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    losses.get("dispersion", estimator="sampled", max_tokens=2)
    assert torch.equal(torch.rand(3), expected)
