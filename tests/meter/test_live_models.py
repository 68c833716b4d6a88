"""Models in memory side by side: those of one class, which have one name, stay as many as they are."""

from __future__ import annotations

import pytest
import torch
from transformers import GPT2Config, GPT2Model

import decondense as dc

IDS = torch.randint(3, 97, (12, 10), generator=torch.Generator().manual_seed(0))


def gpt2(layers: int = 3, width: int = 32, *, seed: int = 0) -> GPT2Model:
    torch.manual_seed(seed)
    config = GPT2Config(n_embd=width, n_layer=layers, n_head=2, n_positions=16, vocab_size=97, eos_token_id=1)
    config.bos_token_id = 1
    return GPT2Model(config).eval()


def compared(*models: GPT2Model, inputs: torch.Tensor = IDS, **options) -> dc.meter.compare.Comparison:
    return dc.compare([dc.measure(one, inputs=inputs, bootstrap=20, **options) for one in models])


def test_models_of_one_class_and_size_are_not_one_model():
    """Three of other weights: they were the results of one size, whose mean was the trend."""
    models = [gpt2(width=width, seed=seed) for width, seed in ((16, 0), (32, 0), (32, 1), (64, 0))]
    comparison = compared(*models)
    assert len(comparison._models) == 4
    assert comparison.axis == "size"
    assert "each the mean of its results" not in comparison.verdict
    assert comparison.verdict.startswith("over 3 sizes: ")
    assert len(set(comparison.labels)) == 4
    assert compared(*models[1:3]).axis == "order"


@pytest.mark.parametrize(
    ("models", "labels"),
    [
        ((gpt2(2), gpt2(3)), ["GPT2Model (layers 2)", "GPT2Model (layers 3)"]),
        ((gpt2(), gpt2()), ["GPT2Model", "GPT2Model"]),
    ],
)
def test_what_tells_two_models_apart(models, labels):
    assert compared(*models).labels == labels


def test_settings_that_change_no_number_tell_results_apart_only_where_nothing_else_does():
    once, more = ({"bootstrap": 20}, {"bootstrap": 20, "spectral": True})
    results = [dc.measure(gpt2(), inputs=IDS, label="m", **options) for options in (once, more)]
    assert dc.compare(results).labels == ["m (spectral False)", "m (spectral True)"]
    other = dc.measure(gpt2(), inputs=IDS[:, :8], label="m", **more)
    assert dc.compare([results[0], other]).labels != dc.compare(results).labels


def test_weights_tell_models_apart_where_nothing_else_does():
    models = [gpt2(), gpt2(seed=1), gpt2(4)]
    results = compared(*models).results
    names = [one.record.model.weights[:6] for one in results]
    assert compared(*models[:2]).labels == [f"GPT2Model (weights {name})" for name in names[:2]]
    assert [f"weights {name}" in label for name, label in zip(names, compared(*models).labels)] == [True, True, False]
    named = [dc.measure(one, inputs=IDS, label=label, bootstrap=20) for one, label in zip(models, "ab")]
    assert dc.compare(named).labels == ["a", "b"]


def test_two_models_on_a_text_each_are_no_axis_of_texts():
    first, second = gpt2(), gpt2(seed=1)
    one, two = (dc.measure(m, inputs=ids, bootstrap=20) for m, ids in ((first, IDS), (second, IDS.flip(0))))
    two.record.text.name = two.text = "other"
    assert dc.compare([one, two]).axis == "order"
    again = dc.measure(first, inputs=IDS.flip(0), bootstrap=20)
    again.record.text.name = again.text = "other"
    comparison = dc.compare([one, again])
    assert (comparison.axis, len(comparison._models)) == ("text", 1)
