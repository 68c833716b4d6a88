"""Controls: dropout, z-loss, label smoothing, a centred last state, and a weight that is released."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from regularize.models import gpt2, tokens
from torch.nn import functional as F

from decondense.train import run as running
from decondense.train import train
from decondense.train.controls import Centre, final_norm, logit_terms
from decondense.train.fast import fuse_head
from decondense.train.trainer import Trainer
from train.runs import fail_in_step_five, tiny, weights

NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


def small(*settings: str):
    return tiny(*settings, architecture="gpt2", config=NO_DROPOUT)


def test_logit_terms_against_torch():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(7, 5, generator=generator, dtype=torch.float64) * 3
    labels = torch.tensor([0, 4, -100, 2, 2, -100, 1])
    counted = labels != -100
    terms = logit_terms(logits, labels, 5)
    assert float(terms["z_loss"]) == pytest.approx(float(logits[counted].exp().sum(1).log().square().mean()))
    plain = F.cross_entropy(logits, labels, ignore_index=-100)
    smooth = F.cross_entropy(logits, labels, ignore_index=-100, label_smoothing=0.1)
    assert float(plain + 0.1 * terms["label_smoothing"]) == pytest.approx(float(smooth))


def test_the_fused_head_returns_the_same_terms():
    own, fused = gpt2().train(), gpt2().train()
    assert fuse_head(fused, compiled=False, terms=logit_terms)
    ids = tokens(4)
    labels = ids.clone()
    labels[0, :3] = -100
    items = torch.tensor(50)
    found = fused(input_ids=ids, labels=labels, num_items_in_batch=items, use_cache=False)
    logits = own(input_ids=ids, use_cache=False).logits[:, :-1].flatten(0, 1)
    expected = logit_terms(logits, labels[:, 1:].flatten(), items)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(
        found["loss"], own(input_ids=ids, labels=labels, num_items_in_batch=items).loss, rtol=1e-5, atol=1e-6
    )


CONTROLS = "baselines={z_loss: 0.01, label_smoothing: 0.1}"
DISPERSION = "loss={name: dispersion, weight: 0.5}"


@pytest.mark.parametrize("loss", [DISPERSION, "loss={name: none}"])
def test_terms_are_trained_on_and_logged_beside_the_plain_loss(loss, tmp_path, cache):
    """The same for the model's own head in one pass of 8 blocks and for the fused one in 4 passes of 2."""
    settings = [CONTROLS, loss, "data.tokens=1024"]
    ways = {"own": [], "fused": ["train.fused_loss=true", "train.micro_batch=2"]}
    runs = {name: train(small(*settings, *way), tmp_path / name, cache=cache) for name, way in ways.items()}
    own = runs["own"].record
    for entry in own["history"]:
        total = entry["task_loss"] + 0.01 * entry["z_loss"] + 0.1 * entry["label_smoothing"]
        total += 0.5 * entry.get("penalty", 0.0)
        assert entry["loss"] == pytest.approx(total, rel=1e-6)
    for run in runs.values():
        for entry, expected in zip(run.record["history"], own["history"]):
            assert {k: pytest.approx(v, rel=2e-3, abs=1e-6) for k, v in expected.items()} == entry
        assert run.held_out_loss == pytest.approx(runs["own"].held_out_loss, rel=1e-4)
    without = train(small("data.tokens=1024", loss), tmp_path / "without", cache=cache).record
    assert without["history"][0].get("task_loss", without["history"][0]["loss"]) == pytest.approx(
        own["history"][0]["task_loss"], rel=1e-6
    )  # before the first step the plain losses are the same
    assert without["held_out"][0] == own["held_out"][0]
    assert without["held_out"][-1]["loss"] != own["held_out"][-1]["loss"]


def test_a_skipped_step_leaves_no_trace_in_the_logged_terms(tmp_path, cache, monkeypatch):
    own = Trainer._look_at_logits

    def broken(self, *args):
        own(self, *args)
        if self.state.global_step == 2:
            self._added = self._added * float("nan")

    monkeypatch.setattr(Trainer, "_look_at_logits", broken)
    record = train(small(CONTROLS, "train.on_nan=skip"), tmp_path / "run", cache=cache).record
    assert record["skipped_steps"] == [3]
    for entry in record["history"]:
        total = entry["task_loss"] + 0.01 * entry["z_loss"] + 0.1 * entry["label_smoothing"]
        assert entry["loss"] == pytest.approx(total, rel=1e-6)


def test_dropout_sets_the_keys_of_the_architecture(tmp_path, cache):
    run = train(small("baselines.dropout=0.25", "data.tokens=512"), tmp_path / "run", cache=cache)
    config = json.loads((run.folder / "model" / "config.json").read_text())
    assert {config[key] for key in NO_DROPOUT} == {0.25}
    plain = train(small("data.tokens=512"), tmp_path / "plain", cache=cache)
    zero = train(small("baselines.dropout=0", "data.tokens=512"), tmp_path / "zero", cache=cache)
    assert all(np.array_equal(a, b) for a, b in zip(weights(plain.folder).values(), weights(zero.folder).values()))
    assert run.record["history"][0]["loss"] != plain.record["history"][0]["loss"]
    with pytest.raises(ValueError, match=r"baselines.dropout needs an architecture with dropout, and rwkv has none"):
        train(
            tiny("baselines.dropout=0.1", "model={architecture: rwkv, tokenizer: bytes}"), tmp_path / "no", cache=cache
        )


# ---- the centred last state --------------------------------------------------------------------------------------


def test_the_running_mean_is_causal_and_becomes_part_of_the_bias():
    model, plain = gpt2().train(), gpt2().train()
    centre = Centre(model)
    state = transformers.TrainerState(global_step=1)
    ids = tokens(4)
    with torch.no_grad():
        raw = plain.base_model(input_ids=ids).last_hidden_state
    first = model.base_model(input_ids=ids).last_hidden_state
    torch.testing.assert_close(first, raw)  # nothing is known of this batch yet
    centre.on_step_end(None, state, None)
    torch.testing.assert_close(centre.norm.running_mean, raw.flatten(0, 1).mean(0))
    second = model.base_model(input_ids=ids).last_hidden_state
    torch.testing.assert_close(second.flatten(0, 1).mean(0), torch.zeros(raw.shape[-1]), atol=1e-6, rtol=0)
    other = tokens(4, seed=5)
    model.base_model(input_ids=other)
    centre.on_step_end(None, transformers.TrainerState(global_step=2), None)
    with torch.no_grad():
        both = plain.base_model(input_ids=ids).last_hidden_state, plain.base_model(input_ids=other).last_hidden_state
    means = [z.flatten(0, 1).mean(0) for z in both]
    expected = 0.99 * means[0] + 0.01 * (means[0] + means[1]) / 2
    torch.testing.assert_close(centre.norm.running_mean, expected)
    model.eval()
    with torch.no_grad():
        before = model(input_ids=ids).logits
        centre.fold()
        torch.testing.assert_close(model(input_ids=ids).logits, before, atol=1e-5, rtol=1e-5)
    assert set(model.state_dict()) == set(plain.state_dict())


def test_a_centred_run_saves_what_it_measured_and_can_be_resumed(tmp_path, cache, monkeypatch):
    held_out = "data={text: pydoc, held_out: pydoc, tokens: 2048, held_out_tokens: 512, context: 32}"
    recipe = small("baselines.centre_last=true", held_out, "train.checkpoints=2")
    run = train(recipe, tmp_path / "run", cache=cache)
    model = transformers.AutoModelForCausalLM.from_pretrained(run.folder / "model").eval()
    assert "transformer.ln_f.running_mean" not in weights(run.folder)
    with monkeypatch.context() as patched:
        fail_in_step_five(patched, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            train(recipe, tmp_path / "killed", cache=cache)
    seen: list[Any] = []  # what the last pass was asked for: the same of the saved model
    own = running.document_losses
    monkeypatch.setattr(
        running, "document_losses", lambda *asked, **told: seen.extend(asked[1:]) or own(*asked, **told)
    )
    resumed = train(recipe, tmp_path / "killed", cache=cache, resume=True)
    expected, found = weights(run.folder), weights(resumed.folder)
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert own(model, *seen)["held_out_texts"] == pytest.approx(run.record["held_out_texts"], rel=1e-5)


def test_a_norm_without_bias_is_refused(tmp_path, cache):
    with pytest.raises(ValueError, match=r"needs a final norm with a bias .* LlamaForCausalLM \(LlamaRMSNorm\)"):
        train(tiny("baselines.centre_last=true"), tmp_path / "run", cache=cache)
    with pytest.raises(ValueError, match="needs a final norm, "):
        final_norm(SimpleNamespace(base_model=torch.nn.Linear(2, 2), modules=torch.nn.Linear(2, 2).modules))


# ---- the weight that is released ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shares", "factors"),
    [
        ("release_at: 0.5", [1, 1, 1, 1, 1, 0.75, 0.5, 0.25, 0]),
        ("release_at: 0.25, release_end: 0.5", [1, 1, 1, 0.5, 0, 0, 0, 0, 0]),
    ],
)
def test_the_weight_is_released(tmp_path, cache, shares, factors):
    recipe = small(f"loss={{name: dispersion, weight: 0.5, schedule: release, {shares}}}", "train.log_every=1")
    history = train(recipe, tmp_path / "run", cache=cache).record["history"]
    assert len(history) == 8
    for entry in history:
        assert entry["penalty_weight"] == pytest.approx(0.5 * factors[entry["step"] - 1])
        total = entry["task_loss"] + entry["penalty_weight"] * entry["penalty"]
        assert entry["loss"] == pytest.approx(total, rel=1e-6)
