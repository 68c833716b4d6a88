"""Small models of every kind that `regularize` must work with, random but real architectures."""

from __future__ import annotations

import torch
from torch import nn
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForMaskedLM,
    BloomConfig,
    BloomForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

VOCABULARY = 64


def llama(layers: int = 3) -> nn.Module:
    torch.manual_seed(1)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            pad_token_id=0,
        )
    )


def gpt2(layers: int = 3) -> nn.Module:
    torch.manual_seed(1)
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY,
            n_positions=64,
            n_embd=32,
            n_layer=layers,
            n_head=4,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
        )
    )


def qwen3() -> nn.Module:
    torch.manual_seed(1)
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
        )
    )


def bloom() -> nn.Module:
    torch.manual_seed(1)
    return BloomForCausalLM(BloomConfig(vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=4))


def bert() -> nn.Module:
    torch.manual_seed(1)
    return BertForMaskedLM(
        BertConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )


def t5() -> nn.Module:
    torch.manual_seed(1)
    return T5ForConditionalGeneration(
        T5Config(
            vocab_size=VOCABULARY,
            d_model=32,
            d_ff=48,
            d_kv=8,
            num_layers=2,
            num_decoder_layers=3,
            num_heads=4,
            dropout_rate=0.0,
            decoder_start_token_id=0,
        )
    )


def bart() -> nn.Module:
    torch.manual_seed(1)
    return BartForConditionalGeneration(
        BartConfig(
            vocab_size=VOCABULARY,
            d_model=32,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=48,
            decoder_ffn_dim=48,
            dropout=0.0,
            max_position_embeddings=64,
        )
    )


FAMILIES = {
    "llama": llama,
    "gpt2": gpt2,
    "qwen3": qwen3,
    "bloom": bloom,
    "bert": bert,
    "t5": t5,
    "bart": bart,
}


def tokens(batch: int = 4, length: int = 12, seed: int = 0) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))


def padded(batch: int = 4, length: int = 12) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """ids, mask and labels, with two, three … tokens of padding on the right."""
    ids, mask = tokens(batch, length), torch.ones(batch, length, dtype=torch.long)
    for b in range(batch):
        mask[b, length - b % 5 :] = 0
    return ids * mask, mask, torch.where(mask.bool(), ids, -100)


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor], tolerance: float = 1e-6) -> None:
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=tolerance, atol=tolerance, msg=name)
