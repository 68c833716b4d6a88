"""Small random models of many architectures, built from configurations."""

from __future__ import annotations

from typing import Any

import torch
import transformers as tf

LLAMA = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 97}


def configurations() -> dict[str, Any]:
    grouped = LLAMA | {"num_key_value_heads": 2}
    wide = grouped | {"head_dim": 8}
    return {
        "llama": tf.LlamaConfig(**grouped),
        "qwen2": tf.Qwen2Config(**grouped),
        "qwen3": tf.Qwen3Config(**wide),
        "gemma3": tf.Gemma3TextConfig(**wide),
        "olmo3": tf.Olmo3Config(**grouped),
        "gpt2": tf.GPT2Config(n_embd=32, n_layer=3, n_head=4, vocab_size=97),
        "bloom": tf.BloomConfig(hidden_size=32, n_layer=3, n_head=4, vocab_size=97),
        "gpt_neox": tf.GPTNeoXConfig(**LLAMA),
        "bert": tf.BertConfig(**LLAMA),
        "t5": tf.T5Config(d_model=32, d_kv=8, d_ff=48, num_layers=2, num_decoder_layers=3, num_heads=4, vocab_size=97),
        "bart": tf.BartConfig(
            d_model=32, encoder_layers=2, decoder_layers=3, encoder_attention_heads=4, decoder_attention_heads=4,
            encoder_ffn_dim=48, decoder_ffn_dim=48, vocab_size=97,
        ),
    }  # fmt: skip


def build(name: str) -> Any:
    config = configurations()[name]
    for token in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"):
        if getattr(config, token, None) is not None and getattr(config, token) >= 97:
            setattr(config, token, 1)
    torch.manual_seed(0)
    return tf.AutoModel.from_config(config).eval()
