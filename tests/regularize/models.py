"""Small models for many tests, random but real architectures; kinds.py has every kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import transformers
from torch import nn

from decondense.handle import Attachment, Handle
from decondense.integrations.own_loop import OwnLoop
from decondense.regularizer import term_of

VOCABULARY = 64
# Arguments of a trainer that says nothing and takes plain steps: Adam would hide a factor.
PLAIN = {"use_cpu": True, "save_strategy": "no", "disable_tqdm": True, "learning_rate": 1e-2, "optim": "sgd",
         "max_grad_norm": 0.0, "lr_scheduler_type": "constant"}  # fmt: skip
SHAPE = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", {**SHAPE, "num_hidden_layers": 3, "num_key_value_heads": 2, "pad_token_id": 0}),
    "gpt2": ("GPT2LMHeadModel", {"n_positions": 64, "n_embd": 32, "n_layer": 3, "n_head": 4, "resid_pdrop": 0.0,
                                 "embd_pdrop": 0.0, "attn_pdrop": 0.0}),
    "qwen3": ("Qwen3ForCausalLM", {**SHAPE, "num_hidden_layers": 2, "num_key_value_heads": 2, "head_dim": 8}),
    "bert": ("BertForMaskedLM", {**SHAPE, "num_hidden_layers": 2, "hidden_dropout_prob": 0.0,
                                 "attention_probs_dropout_prob": 0.0}),
    "t5": ("T5ForConditionalGeneration", {"d_model": 32, "d_ff": 48, "d_kv": 8, "num_layers": 2, "num_heads": 4,
                                          "num_decoder_layers": 3, "dropout_rate": 0.0, "decoder_start_token_id": 0}),
}  # fmt: skip


def builder(family: str) -> Callable[..., nn.Module]:
    def build(layers: int | None = None) -> nn.Module:
        name, options = CONFIGS[family]
        kind = getattr(transformers, name)
        depth = {} if layers is None else {"num_hidden_layers": layers}
        torch.manual_seed(1)
        return kind(kind.config_class(vocab_size=VOCABULARY, **options | depth))

    build.__name__ = family
    return build


llama, gpt2, qwen3, bert, t5 = map(builder, CONFIGS)


def tokens(batch: int = 4, length: int = 12, seed: int = 0) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))


def padded(batch: int = 4, length: int = 12) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """ids, mask and labels, with two, three … tokens of padding on the right."""
    ids, mask = tokens(batch, length), torch.ones(batch, length, dtype=torch.long)
    for b in range(batch):
        mask[b, length - b % 5 :] = 0
    return ids * mask, mask, torch.where(mask.bool(), ids, -100)


@contextmanager
def attachment(
    model: nn.Module, loss: str = "dispersion", *, modules: str | None = None, **options: Any
) -> Iterator[Attachment]:
    """`regularize(model, …)` with what engines are given in place of the handle, for tests of what no user sees."""
    with Handle(given := Attachment(OwnLoop(model), term_of(loss, **options), modules)):
        yield given


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor], tolerance: float = 1e-6) -> None:
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=tolerance, atol=tolerance, msg=name)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return (x + torch.tanh(self.linear(x)), "something else")


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 8)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.flat = nn.Linear(8, 8)
        self.checkpoint: bool | None = None

    def forward(self, x, attention_mask=None):
        x = self.embed(x)
        for block in self.blocks:
            if self.checkpoint is None:
                x, _ = block(x)
            else:
                x, _ = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=self.checkpoint)
        self.flat(x[:, 0])
        return x
