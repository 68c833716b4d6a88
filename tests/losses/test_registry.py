"""A loss is one file: what follows from its registration alone."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import decondense as dc
from decondense import losses
from decondense.losses import registry
from decondense.train import recipe_from

ROOT = Path(__file__).resolve().parent.parent.parent
FILE = """
from decondense.losses import register
from decondense.losses.options import finish


@register("mean of the squares", source="rival", reference="Nobody 2030", presets={"paper": {"scale": 2.0}})
def toy(z, mask=None, *, scale: float = 1.0, reduction: str = "mean"):
    if scale <= 0:
        raise ValueError(f"scale must be positive, got {scale}: leave it out.")
    return finish(scale * z.square().mean((1, 2)), mask, reduction)
"""


@pytest.fixture
def toy(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    file = tmp_path / "toy.py"
    file.write_text(FILE)
    spec = importlib.util.spec_from_file_location("toy", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.toy


def test_one_file_is_enough(toy):
    z = torch.randn(2, 5, 3)
    assert losses.toy is toy
    assert torch.equal(losses.get("toy", preset="paper")(z), 2 * z.square().mean((1, 2)).mean())
    values, cosines = losses.get("toy").over_layers([z, 2 * z], None)
    assert values.shape == (2, 2)
    assert cosines is None
    assert list(losses.registered("rival")).count("toy") == 1
    assert "| `toy` | mean of the squares | the literature: Nobody 2030 | paper |" in registry.table()
    model = {"architecture": "llama", "tokenizer": "bytes"}
    recipe = recipe_from({"name": "toy", "model": model, "loss": {"name": "toy", "options": {"scale": 3.0}}})
    assert recipe.loss.name == "toy"
    with pytest.raises(ValueError, match="scale must be positive"):
        losses.get("toy", scale=-1.0)


def test_a_name_is_taken_once(toy):
    def dispersion(z, mask=None, *, reduction="mean"): ...

    with pytest.raises(ValueError, match=r"a second 'dispersion' in .* beside decondense\.losses\.dispersion: rename"):
        losses.register("another", source="rival", reference="Nobody")(dispersion)
    with pytest.raises(ValueError, match="source must be one of"):
        losses.register("another", source="rivals", reference="Nobody")


def test_every_loss_of_the_package_is_registered():
    assert next(iter(losses.registered("paper"))) == "dispersion"
    assert {n for n, e in losses.registered().items() if e.source != "rival"} == set(losses.LOSSES)
    for name, entry in losses.registered().items():
        assert getattr(losses, name) is entry.function
        assert entry.about
        assert entry.reference
        for preset in entry.presets:
            assert losses.get(name, preset=preset).keywords == dict(entry.presets[preset])


def test_the_table_in_the_documents():
    """benchmarks/tables.py --check, which test_docs.py runs, compares the text; here: that it is asked to."""
    assert "<!-- table: losses -->" in (ROOT / "docs" / "method.md").read_text()


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("dispersion", {"estimator": "first"}, "estimator must be one of .*did you mean 'first_order'"),
        ("dispersion", {"tau": 0.0}, "tau must be a positive number"),
        ("dispersion", {"backend": "cuda"}, "backend must be one of"),
        ("orthogonalization", {"clamp": 2.0}, "clamp must lie in"),
        ("koleo", {"max_tokens": 1}, "max_tokens must be at least 2"),
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


def test_importing_the_losses_imports_no_trainer():
    code = "import sys, decondense.losses; print([m for m in ('transformers', 'triton') if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
