"""A configuration with fewer layers than the weights: transformers drops the others without a word."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import transformers as tf

from decondense import models

SIZES = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "vocab_size": 97}


def saved(folder: Path, kind: str) -> Path:
    model = {
        "gpt2": lambda: tf.GPT2LMHeadModel(tf.GPT2Config(n_embd=16, n_layer=4, n_head=2, vocab_size=97)),
        "gpt2 without a head": lambda: tf.GPT2Model(tf.GPT2Config(n_embd=16, n_layer=4, n_head=2, vocab_size=97)),
        "bert": lambda: tf.BertForMaskedLM(tf.BertConfig(num_hidden_layers=4, **SIZES)),
        "llama": lambda: tf.LlamaForSequenceClassification(tf.LlamaConfig(num_hidden_layers=4, **SIZES)),
        "t5": lambda: tf.T5Model(tf.T5Config(d_model=16, d_kv=8, d_ff=24, num_layers=4, num_decoder_layers=4,
                                             num_heads=2, vocab_size=97)),
    }[kind]()  # fmt: skip
    model.save_pretrained(folder)
    return folder


def changed(folder: Path, **config: object) -> Path:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | config))
    return folder


@pytest.mark.parametrize("head", [True, False])
@pytest.mark.parametrize(
    ("kind", "key", "tensors", "first"),
    [  # transformers never counts the bias of GPT2's attention, whose name older releases gave a mask
        ("gpt2", "n_layer", 12 - 1, "transformer.h.3.attn.c_attn.weight"),
        ("gpt2 without a head", "n_layer", 12 - 1, "h.3.attn.c_attn.weight"),
        ("bert", "num_hidden_layers", 16, "bert.encoder.layer.3.attention.output.LayerNorm.bias"),
        ("llama", "num_hidden_layers", 9, "model.layers.3.input_layernorm.weight"),
        ("t5", "num_decoder_layers", 13, "decoder.block.3.layer.0.SelfAttention.k.weight"),
    ],
)
def test_layers_that_the_configuration_leaves_out_are_told(tmp_path, kind, key, tensors, first, head):
    folder = saved(tmp_path / "m", kind)
    models.load(folder, head=head, tokenizer=False)  # a head that the body does not take is no layer
    changed(folder, **{key: 3})
    with pytest.raises(ValueError, match="could not be loaded: ") as caught:
        models.load(folder, head=head, tokenizer=False)
    said = f"the weights hold {tensors} tensors, such as {first}, of layers that config.json leaves out: correct "
    assert said + "its number of layers, or save the shortened model with save_pretrained" in str(caught.value)


def test_layers_that_predict_more_tokens_are_no_part_of_the_model(tmp_path):
    """As DeepSeek's: the configuration counts them, and transformers leaves them out."""
    folder = changed(saved(tmp_path / "m", "llama"), num_hidden_layers=3, num_nextn_predict_layers=1)
    assert models.load(folder, tokenizer=False)[0].config.num_hidden_layers == 3


def test_so_they_are_where_the_configuration_of_the_text_counts_them(tmp_path):
    """As in GLM's models with images: the outer configuration does not say."""
    side = SIZES | {"num_hidden_layers": 4}
    eye = {"image_size": 8, "patch_size": 4, "num_hidden_layers": 2}
    config = tf.LlavaConfig(text_config=tf.LlamaConfig(**side), vision_config=tf.CLIPVisionConfig(**SIZES | eye))
    tf.LlavaModel(config).save_pretrained(tmp_path)
    text = json.loads((tmp_path / "config.json").read_text())["text_config"]
    changed(tmp_path, text_config=text | {"num_hidden_layers": 3})
    with pytest.raises(ValueError, match="hold 9 tensors, such as language_model"):
        models.load(tmp_path, tokenizer=False)
    changed(tmp_path, text_config=text | {"num_hidden_layers": 3, "num_nextn_predict_layers": 1})
    assert models.load(tmp_path, tokenizer=False)[0].config.text_config.num_hidden_layers == 3
