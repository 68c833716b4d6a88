"""What a loss cannot be attached with, or a call cannot be read: the contract, what came, the remedy."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
import transformers
from torch import nn

import decondense as dc
from decondense import losses
from regularize.models import llama, tokens


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda m: dc.regularize(m, layers=[9]), ValueError, "layers must lie in 0 … 3.*got 9"),
        (lambda m: dc.regularize(m, layers=[-5]), ValueError, "got -5"),
        (lambda m: dc.regularize(m, layers=[]), ValueError, "at least one"),
        (lambda m: dc.regularize(m, layers="every"), ValueError, "layers must be one of"),
        (lambda m: dc.regularize(m, layers=[1.5]), TypeError, "list of indices"),
        (lambda m: dc.regularize(m, layers=lambda n: "x"), TypeError, "must return a list of indices, got 'x' for 4"),
        (
            lambda m: dc.regularize(m, layers=lambda n: 3),
            TypeError,
            "must return a list of indices, got 3 for 4 hidden",
        ),
        (lambda m: dc.regularize(m, layers=3), TypeError, "list of indices.*got 3"),
        (lambda m: dc.regularize(m, layers=[m.lm_head] * 2), TypeError, "or a callable, got a list of Linear: hidden"),
        (lambda m: dc.regularize(llama(layers=1), layers="early_half"), ValueError, "at least one"),
        (lambda m: dc.regularize(m, tau="1"), ValueError, "tau must be a positive number, got '1'"),
        (
            lambda m: dc.regularize(m, schedule="linear", ramp_steps="9"),
            ValueError,
            "ramp_steps of at least 1, got '9'",
        ),
        (lambda m: dc.regularize(m, check_every="5"), ValueError, "check_every must be at least 1.*got '5'"),
        (lambda m: dc.regularize(m, "disperse"), ValueError, "did you mean"),
        (lambda m: dc.regularize(m, weight=float("nan")), ValueError, "finite"),
        (lambda m: dc.regularize(m, weight=True), ValueError, "weight must be a finite number, got True"),
        (lambda m: dc.regularize(m, tau=True), ValueError, "tau must be a positive number, got True"),
        (lambda m: dc.regularize(m, layers=[True]), TypeError, "list of indices.*got \\[True\\]"),
        (lambda m: dc.regularize(m, check_every=True), ValueError, "check_every must be at least 1.*got True"),
        (lambda m: dc.regularize(m, schedule="linear", ramp_steps=True), ValueError, "at least 1, got True"),
        (lambda m: dc.regularize(m, weigth=0.1), ValueError, "'weigth' is no option of regularize.*mean 'weight'"),
        (lambda m: dc.regularize(m, ramp_step=5), ValueError, "did you mean 'ramp_steps'"),
        (lambda m: dc.regularize(m, ramp=5), ValueError, "no option of regularize, .*did you mean 'ramp_steps'"),
        (lambda m: dc.regularize(m, temperature=1.0), ValueError, "got 'temperature': pick one of these"),
        (
            lambda m: dc.regularize(m, name="dispersion"),
            ValueError,
            r"'name' .* recipe.*regularize\(model, 'dispersion'",
        ),
        (
            lambda m: dc.regularize(m, options={"tau": 0.5}),
            ValueError,
            r"'options' .* recipe.* keywords here, tau=0\.5",
        ),
        (
            lambda m: dc.regularize(m, schedule="release", release_at=6, ramp_steps=4, release_end=0.9),
            ValueError,
            r"'release_end' .* recipe.*give release_at and ramp_steps in optimiser steps",
        ),
        *(
            (lambda m, key=key: dc.regularize(m, **{key: 0.1}), ValueError, f"'{key}' is no .*did you mean 'weight'")
            for key in ("lam", "lambda_", "lambd", "coef", "alpha", "λ")
        ),
        (lambda m: dc.regularize(m, 0.1), TypeError, "loss must be a name.*got 0.1: a number goes into weight"),
        (lambda m: dc.regularize(m, torch.relu), TypeError, "loss must be a name.*of your own into losses.register"),
        (lambda m: dc.regularize(m, dc.losses.koleo), TypeError, "give its name, 'koleo', and its options as"),
        (
            lambda m: dc.regularize(m, ["koleo", "cosreg"]),
            TypeError,
            r"a dict with `loss` for each, got 'koleo': \[dict\(",
        ),
        (
            lambda m: dc.regularize(m, {"loss": "koleo"}),
            TypeError,
            r"several at once are a list for regularize, \[dict",
        ),
        (lambda m: dc.regularize(m, [{"loss": "koleo"}]), ValueError, "two or more, got 1: give a single one by its"),
        (
            lambda m: dc.regularize(m, [{"loss": "koleo"}, {"loss": "cosreg"}], weight=0.3, tau=1.0),
            TypeError,
            "options of its own, got weight, tau beside it: ",
        ),
        (
            lambda m: dc.regularize(m, [{"loss": "dispersion", "check_every": 5}, {"loss": "cosreg"}]),
            TypeError,
            "check_every is for all losses of a list or none, got it for 'dispersion': leave it out",
        ),
        (
            lambda m: dc.regularize(m, [{"loss": "koleo", "modules": "h.*"}, {"loss": "cosreg"}]),
            TypeError,
            "modules is for all .* got it for 'koleo': give it beside the list",
        ),
        (
            lambda m: dc.regularize(m, [{"loss": [{"loss": "koleo"}]}] * 2),
            TypeError,
            "a dict with `loss` for each, got",
        ),
        (
            lambda m: dc.regularize(m, [{"loss": "koleo"}, {"loss": "cosreg"}], layers=torch.arange(2)),
            TypeError,
            "options of its own, got layers beside it: ",
        ),
        (lambda m: dc.regularize(m, [{"loss": "koleo", "wieght": 1}, {"loss": "cosreg"}]), ValueError, "mean 'weight'"),
        (lambda m: dc.regularize(torch.optim.SGD(m.parameters())), TypeError, "an object of <class 'torch.*SGD'>:"),
        (lambda m: dc.regularize(m, schedule="linear"), ValueError, "ramp_steps"),
        (
            lambda m: dc.regularize(m, schedule="release", ramp_steps=2),
            ValueError,
            "release_at must be an optimiser step.*got None",
        ),
        (lambda m: dc.regularize(m, release_at=2), ValueError, "goes with schedule='release'"),
        (
            lambda m: dc.regularize(m, schedule="release", ramp_steps=2, release_at=0.6),
            ValueError,
            r"release_at must be an optimiser step, a whole number from 0 on, got 0\.6: .*share of the run",
        ),
        (lambda m: dc.regularize(m, ramp_steps=100), ValueError, "ramp_steps goes with .*, got 100 with 'constant'"),
        (lambda m: dc.regularize(m, ramp_steps=9, schedule=float), ValueError, "ramp_steps goes .* 9 with a function"),
        (lambda m: dc.regularize(m, schedule="step"), ValueError, "schedule must be one of"),
        (lambda m: dc.regularize(m, segments="documents"), ValueError, "segments must be one of"),
        (lambda m: dc.regularize(m, "l2_repel", check_every=5), ValueError, "check_every"),
        (lambda m: dc.regularize(m, losses.get("dispersion"), tau=2.0), TypeError, "losses.get"),
        (lambda m: dc.regularize("gpt2"), TypeError, "model or a trainer, got 'gpt2'"),
        (
            lambda m: dc.regularize(m, weight=1e300),
            ValueError,
            r"weight must be a finite number, got 1e\+300: .*1e\+30 ",
        ),
        (lambda m: dc.regularize(m, tau=None), ValueError, "tau must be a positive number, got None: leave it out"),
        (lambda m: dc.regularize(m, eps=-1), ValueError, "eps must be a number of at least 0, got -1: leave it out"),
        (lambda m: dc.monitor(m, collapse=2), ValueError, "collapse must be a cosine, from -1 to 1, got 2: "),
        (lambda m: dc.measure(m, inputs=tokens()[:0]), ValueError, r"at least 1 sequence, got input_ids of \(0, 12\)"),
        (lambda m: dc.regularize(nn.Linear(2, 2)), TypeError, "modules="),
    ],
)
def test_bad_input(call, error, words):
    model = llama()
    with pytest.raises(error, match=words):
        call(model)
    dc.regularize(model).remove()  # nothing half-attached


@pytest.mark.parametrize(
    "factor",
    [None, float("nan"), float("inf"), "1", [1.0], torch.ones(2), np.ones(2), pytest.param(10**400, id="huge")],
)
def test_a_schedule_must_return_a_number(factor):
    model, ids = llama(layers=1).train(), tokens()
    words = f"finite number, by which the weight is multiplied, got {factor!r} for step 0: return 1 for the full weight"
    with dc.regularize(model, schedule=lambda step: factor), pytest.raises(ValueError, match=re.escape(words)):
        model(input_ids=ids, labels=ids)
    for one in (0.5, torch.tensor(0.5), np.float32(0.5)):
        with dc.regularize(model, schedule=lambda step, one=one: one) as handle:
            assert handle.weight == 0.05


def test_numbers_of_numpy_are_numbers():
    model, ids = llama().train(), tokens()
    with dc.regularize(model, weight=0.5, layers=[1, 2]):
        expected = model(input_ids=ids, labels=ids).loss
    with dc.regularize(model, weight=np.float32(0.5), layers=lambda states: np.arange(1, 3)) as handle:
        assert torch.equal(model(input_ids=ids, labels=ids).loss, expected)
        assert handle.weight == 0.5


def test_a_mask_of_what_the_model_shortens():
    """That of audio is as long as its samples: an encoder inside is called with that of its states."""
    config = transformers.Wav2Vec2Config(
        hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8, conv_dim=(4, 4), layerdrop=0.0,
        conv_stride=(5, 2), conv_kernel=(10, 3), num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2,
        mask_time_prob=0.0,
    )  # fmt: skip
    model = transformers.Wav2Vec2Model(config).train()
    given = {"input_values": torch.randn(2, 400), "attention_mask": torch.ones(2, 400, dtype=torch.long)}
    given["attention_mask"][1, 200:] = 0
    words = r"= \(2, 39\) .* got \(2, 400\), of what it shortens first: attach to .*'layers.*'\)"
    for modules in (None, "encoder.layers.*"):
        with dc.regularize(model, modules=modules) as handle:
            model(**given)
            with pytest.raises(ValueError, match=words):
                handle.penalty()
    with pytest.raises(ValueError, match=r"a mask of \(2, 400\): .* leave the mask out"):
        dc.measure(model, inputs=given)
    with dc.regularize(model.encoder, modules="layers.*") as handle:
        z = model(**given, output_hidden_states=True).hidden_states[1]
        handle.penalty()
        mask = model._get_feature_vector_attention_mask(39, given["attention_mask"])
        expected = losses.dispersion(z, mask, estimator="first_order").detach()
        torch.testing.assert_close(handle.last["per_layer"][0], expected)


def test_a_mask_of_another_shape():
    model, ids = llama().train(), tokens()
    mask = torch.zeros(4, 1, 12, 12)
    with dc.regularize(model), pytest.raises(ValueError, match="two-dimensional mask"):
        model(input_ids=ids, attention_mask=mask, labels=ids)


def test_a_mask_that_attention_adds():
    model, ids = llama().train(), tokens()
    mask = torch.zeros(4, 12)
    mask[:, 8:] = -torch.inf
    words = r"a mask of floats must be 1 .*, got -inf: pass mask >= 0"
    with dc.regularize(model), pytest.raises(ValueError, match=words):
        model(input_ids=ids, attention_mask=mask, labels=ids)
    given = {"input_ids": ids, "attention_mask": (mask >= 0).float()}
    for narrowed in (None, lambda batch: mask):
        with pytest.raises(ValueError, match=words):
            dc.measure(model, inputs=given if narrowed else given | {"attention_mask": mask}, mask=narrowed)
    dc.measure(model, inputs=given, bootstrap=20)
