"""A small random Llama written as a GGUF file, with a byte-level tokenizer."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np


def byte_symbols() -> list[str]:
    """GPT-2's printable stand-ins for the 256 bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    symbols = {b: chr(b) for b in plain}
    extra = 0
    for b in range(256):
        if b not in symbols:
            symbols[b] = chr(256 + extra)
            extra += 1
    return [symbols[b] for b in range(256)]


def write(path: Path, *, add_bos: bool = False, layers: int = 2, width: int = 32, feed: int = 64) -> Path:
    tokens = ["<unk>", "<s>", "</s>", *byte_symbols(), "th"]
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_name("tiny")
    writer.add_context_length(256)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(feed)
    writer.add_head_count(4)
    writer.add_head_count_kv(4)
    writer.add_rope_dimension_count(width // 4)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * 257)
    writer.add_token_merges(["t h"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(add_bos)
    rng = np.random.default_rng(0)

    def tensor(name: str, *shape: int) -> None:
        scale = 1.0 if len(shape) == 1 else 0.1
        value = np.ones(shape) if len(shape) == 1 else rng.normal(size=shape) * scale
        writer.add_tensor(name, value.astype(np.float32))

    tensor("token_embd.weight", len(tokens), width)
    tensor("output_norm.weight", width)
    for i in range(layers):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            tensor(f"blk.{i}.{name}.weight", width, width)
        tensor(f"blk.{i}.attn_norm.weight", width)
        tensor(f"blk.{i}.ffn_norm.weight", width)
        tensor(f"blk.{i}.ffn_gate.weight", feed, width)
        tensor(f"blk.{i}.ffn_up.weight", feed, width)
        tensor(f"blk.{i}.ffn_down.weight", width, feed)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
