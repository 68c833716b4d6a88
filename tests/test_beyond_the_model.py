"""Token ids and positions that a model has no vectors for are refused in a sentence; torch would only say "index"."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
import transformers as tf
from by_hand import cli as run
from by_hand import refused

from decondense.evaluate.harness import evaluate
from decondense.meter.positions import positions_of
from decondense.meter.run import measure

WORDS = " ".join(f"{n} people walked down to the harbour and {n * n} of them came back." for n in range(200))
SIZES = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "num_hidden_layers": 2}
IDS = "token ids must be whole numbers from 0 to 99, the vocabulary of {}, got 1"


@pytest.fixture
def text(tmp_path) -> str:
    (tmp_path / "a.txt").write_text(WORDS)
    return str(tmp_path / "a.txt")


def gpt2(**changes: int) -> tf.GPT2LMHeadModel:
    torch.manual_seed(0)
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, "vocab_size": 384}
    return tf.GPT2LMHeadModel(tf.GPT2Config(**sizes | changes, bos_token_id=1, eos_token_id=1)).eval()


def roberta() -> tf.RobertaForCausalLM:
    """Its positions begin after the padding index, 1."""
    config = tf.RobertaConfig(**SIZES, vocab_size=384, max_position_embeddings=34, type_vocab_size=1, is_decoder=True)
    return tf.RobertaForCausalLM(config).eval()


def folder(model: tf.PreTrainedModel, path: Path) -> Path:
    model.save_pretrained(path)
    tf.ByT5Tokenizer().save_pretrained(path)
    return path


def test_measure_refuses_ids_of_another_tokenizer(text, tmp_path):
    for model, name in ((gpt2(vocab_size=100), "GPT2LMHeadModel"), (gpt2(vocab_size=100).transformer, "GPT2Model")):
        with pytest.raises(ValueError, match=f"^{IDS.format(name)}.*: take the tokenizer of this model"):
            measure((model, tf.ByT5Tokenizer()), text=text, windows=2, tokens=16)
    model = folder(gpt2(vocab_size=100), tmp_path / "m")
    said = refused("measure", model, "--text", text, "--windows", 2, "--tokens", 16, "--out", tmp_path / "o")
    assert IDS.format("GPT2Model") in said
    assert not (tmp_path / "o").exists()


@pytest.mark.usefixtures("unpainted")
def test_measure_counts_the_positions_that_can_be_used(text, tmp_path):
    model = folder(roberta(), tmp_path / "m")
    command = ("measure", model, "--text", text, "--windows", 2, "--out", tmp_path / "o", "--tokens")
    assert "tokens must be at most 32, what this model was built for, got 33: give" in refused(*command, 33)
    assert run(*command, 32)[0] == 0


def test_the_patches_of_an_image_are_no_positions_of_text():
    side = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    eye = tf.CLIPVisionConfig(**side, image_size=8, patch_size=4)
    model = tf.LlavaModel(tf.LlavaConfig(vision_config=eye, text_config=tf.LlamaConfig(**side, vocab_size=97)))
    assert math.isinf(positions_of(model, given=False)), "five patches"
    assert positions_of(tf.BartModel(tf.BartConfig(d_model=16, encoder_layers=1, decoder_layers=1, vocab_size=97,
                                                   max_position_embeddings=40)), given=False) == 40  # fmt: skip


@pytest.mark.parametrize("model", [gpt2(), roberta()], ids=["gpt2", "roberta"])
def test_evaluate_reads_as_many_tokens_as_the_model_has_positions_for(model, text):
    """One context for both: RoBERTa's configuration says two more than can be used."""
    record, _ = evaluate((model, tf.ByT5Tokenizer()), tasks="", text=text, device="cpu")
    assert record.settings["context"] == 32
    with pytest.raises(ValueError, match="between 2 and the model's context of 32, got 33"):
        evaluate((model, tf.ByT5Tokenizer()), tasks="", text=text, text_tokens=33)


def test_evaluate_refuses_ids_of_another_tokenizer(text, tmp_path):
    bench = tmp_path / "bench" / "piqa"
    bench.mkdir(parents=True)
    rows = [{"goal": f"open jar {n}", "sol1": "turn the lid", "sol2": "push it", "label": n % 2} for n in range(4)]
    (bench / "validation.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (bench / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    model = folder(gpt2(vocab_size=100, n_positions=256), tmp_path / "m")
    for what in (["--tasks", "none", "--text", text], ["--tasks", "piqa", "--shots", "zero", "--bench", bench.parent]):
        assert IDS.format("GPT2LMHeadModel") in refused("evaluate", model, *what, "--out", tmp_path / "o")
        assert not (tmp_path / "o").exists()
