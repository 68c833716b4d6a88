from __future__ import annotations

import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from decondense.stack import repeated_blocks


def test_the_blocks_are_those_of_the_stack():
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2}
    llama = LlamaForCausalLM(LlamaConfig(vocab_size=32, num_hidden_layers=3, **sizes))
    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_layer=3, n_embd=16, n_head=2))
    assert repeated_blocks(llama) == list(llama.model.layers)
    assert repeated_blocks(gpt2) == list(gpt2.transformer.h)
    assert repeated_blocks(torch.nn.Linear(2, 2)) == []


def test_more_experts_than_layers_and_blocks_of_two_kinds():
    experts = nn.Sequential(nn.ModuleList(nn.Linear(4, 4) for _ in range(8)))
    blocks = nn.ModuleList([experts, nn.Linear(4, 4)])
    assert repeated_blocks(nn.ModuleDict({"embedding": nn.Embedding(9, 4), "h": blocks})) == list(blocks)
    assert repeated_blocks(nn.ModuleList([blocks])) == [blocks]  # the outer of two that hold the same
