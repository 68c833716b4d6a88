"""Small random models of every kind of stack, built from configurations, a padded batch, and a small measurement."""

from __future__ import annotations

from typing import Any

import torch
import transformers as tf

LLAMA = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 97}
SMALL = {"windows": 5, "tokens": 40, "seed": 3, "bootstrap": 200}
LENGTHS = (9, 4, 1, 6, 7)


def configurations() -> dict[str, Any]:
    return {
        "llama": tf.LlamaConfig(**LLAMA, num_key_value_heads=2),
        "gpt2": tf.GPT2Config(n_embd=32, n_layer=3, n_head=4, vocab_size=97),
        "bert": tf.BertConfig(**LLAMA),
        "t5": tf.T5Config(d_model=32, d_kv=8, d_ff=48, num_layers=2, num_decoder_layers=3, num_heads=4, vocab_size=97),
    }


def build(name: str) -> Any:
    config = configurations()[name]
    for token in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"):
        if getattr(config, token, None) is not None and getattr(config, token) >= 97:
            setattr(config, token, 1)
    torch.manual_seed(0)
    return tf.AutoModel.from_config(config).eval()


def padded() -> dict[str, torch.Tensor]:
    ids = torch.randint(3, 97, (5, 9), generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(9) < torch.tensor(LENGTHS)[:, None]).long()
    return {"input_ids": ids * mask, "attention_mask": mask}
