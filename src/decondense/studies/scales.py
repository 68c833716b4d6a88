"""Recipes that several studies start from, one set per scale. Data, no code.

TINY_*       smoke: seconds on one CPU core, on text that every Python carries
MIDTRAIN     gpu: SmolLM2-135M goes on training on novels; 300 steps of 32,768 tokens
LONG         gpu: the same with the paper's batch, 20M tokens: all 17.7M of the novels and 2.3M of WikiText-2
SCRATCH      gpu: a GPT2 of 12 layers and width 512 from nothing, on novels; 500 steps of 32,768 tokens

All three name both texts and are held out on both, half and half. Texts are read in order, so the two shorter ones end
inside the novels, and WikiText-2 is for them a kind of text that they were not trained on.

Studies that can share runs (`--reuse`) have the same recipe here: `benchmarks` and `counteract`; `dose` and
`estimators`; `width`, `init` and `distill`.
PUBLISHED_*  paper: the settings of Liu et al. 2026
"""

from __future__ import annotations

from typing import Any

Recipe = dict[str, Any]

SEEDS = [1, 2, 3]
STEP = 32_768  # tokens per optimiser step at gpu scale

_TINY: Recipe = {
    "data": {"text": "pydoc", "tokens": 2048, "held_out_tokens": 512, "context": 64},
    "train": {
        "batch_tokens": 256,
        "learning_rate": 2e-3,
        "warmup": 0.1,
        "checkpoints": 1,
        "log_every": 4,
        "device": "cpu",
        "precision": "fp32",
        "compile": False,
        "fused_loss": False,
    },
    "snapshots": {"count": 1, "windows": 4, "tokens": 64, "bootstrap": 20},
}
_BYTES = {"vocab_size": 384, "bos_token_id": 1, "eos_token_id": 1}
TINY_GPT2: Recipe = {
    **_TINY,
    "model": {
        "architecture": "gpt2",
        "tokenizer": "bytes",
        "config": {
            **_BYTES,
            "n_embd": 32,
            "n_layer": 6,
            "n_head": 2,
            "n_inner": 64,
            "n_positions": 64,
            "resid_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "attn_pdrop": 0.0,
        },
    },
}
TINY_LLAMA: Recipe = {
    **_TINY,
    "model": {
        "architecture": "llama",
        "tokenizer": "bytes",
        "config": {
            **_BYTES,
            "hidden_size": 32,
            "num_hidden_layers": 6,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "intermediate_size": 64,
            "max_position_embeddings": 64,
        },
    },
}

# For studies of many arms: two layers and four steps, so that many trainings take seconds.
TINY_SHORT: Recipe = {
    **TINY_LLAMA,
    "model": {
        **TINY_LLAMA["model"],
        "config": {**TINY_LLAMA["model"]["config"], "num_hidden_layers": 2},
    },
    "data": {**_TINY["data"], "tokens": 1024},
    "snapshots": {**_TINY["snapshots"], "windows": 2},
}

_TEXTS: Recipe = {
    "text": ["novels:train", "wikitext-2:train"],
    "order": "sequential",
    "held_out": ["novels:valid", "wikitext-2:valid"],
    "held_out_tokens": 262_144,
    "context": 1024,
}
MIDTRAIN: Recipe = {
    "model": {"name": "smollm2-135m"},
    "data": {**_TEXTS, "tokens": 300 * STEP},
    "train": {"batch_tokens": STEP, "learning_rate": 1e-4, "warmup": 0.2, "checkpoints": 1, "on_nan": "skip"},
    "snapshots": {"count": 1, "windows": 32, "tokens": 512, "bootstrap": 20},
}
LONG: Recipe = {
    **MIDTRAIN,
    "data": {**_TEXTS, "tokens": 20_000_000},
    # 64 blocks of 1024 take 42 GiB
    "train": {**MIDTRAIN["train"], "batch_tokens": 131_072, "micro_batch": 64, "learning_rate": 5e-5},
    "snapshots": {**MIDTRAIN["snapshots"], "count": 5},
}
SMOLLM_WORDS = {"vocab_size": 49_152, "bos_token_id": 1, "eos_token_id": 2}
SCRATCH: Recipe = {
    "model": {
        "architecture": "gpt2",
        "tokenizer": "smollm2-135m",
        "config": {
            **SMOLLM_WORDS,
            "n_embd": 512,
            "n_layer": 12,
            "n_head": 8,
            "n_inner": 1024,
            "n_positions": 1024,
            "resid_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "attn_pdrop": 0.0,
        },
    },
    "data": {**_TEXTS, "tokens": 500 * STEP},
    "train": {"batch_tokens": STEP, "learning_rate": 1e-3, "warmup": 0.1, "checkpoints": 1, "on_nan": "skip"},
    "snapshots": {"count": 7, "windows": 32, "tokens": 512, "bootstrap": 20},
}

PUBLISHED_MIDTRAIN: Recipe = {
    "model": {"name": "openai-community/gpt2"},
    "data": {
        "text": "wikitext-103:train",
        "held_out": "wikitext-103:validation",
        "tokens": 200_000_000,
        "held_out_tokens": 262_144,
        "context": 1024,
    },
    "train": {
        "batch_tokens": 131_072,
        "learning_rate": 5e-5,
        "scale_learning_rate": True,
        "warmup": 0.2,
        "precision": "bf16",
        "checkpointing": True,
        "checkpoints": 1,
    },
    "snapshots": {"count": 1, "windows": 100, "tokens": 512, "bootstrap": 20},
}
PUBLISHED_SCRATCH: Recipe = {
    "model": {
        "architecture": "gpt2",
        "tokenizer": "openai-community/gpt2",
        "config": {"n_embd": 768, "n_layer": 12, "n_head": 12, "n_inner": 3072, "n_positions": 1024},
    },
    "data": {
        "text": "fineweb-edu",
        "held_out": "wikitext-2:validation",
        "tokens": 1_000_000_000,
        "held_out_tokens": 131_072,
        "context": 1024,
    },
    "train": {"batch_tokens": 131_072, "learning_rate": 1e-5, "warmup": 0.2, "precision": "bf16", "checkpoints": 1},
    "snapshots": {"count": 1, "windows": 100, "tokens": 512, "bootstrap": 20},
}

# The loss as the paper's GPT2 runs had it, on all tokens.
DISPERSION: Recipe = {
    "loss": {"name": "dispersion", "weight": 0.1, "options": {"tau": 1.0, "clamp": 0.1, "estimator": "exact"}}
}
# The same to first order: at τ = 1 the same training (study `estimators`), at next to no cost.
FIRST_ORDER: Recipe = {
    "loss": {"name": "dispersion", "weight": 0.1, "options": {"tau": 1.0, "clamp": 0.1, "estimator": "first_order"}}
}
