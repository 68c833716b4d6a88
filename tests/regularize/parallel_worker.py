"""Run by test_distributed.py on two processes: Trainer with context and with tensor parallelism, and loops by hand.

The step of plain descent is p − lr · ∇(task loss + weight · penalty), the gradient that of one process on all rows.

Ring attention has no CPU kernels: here keys and values are gathered and attention runs as it is written. accelerate
knows parallelism on GPUs alone, so it is told that the two processes have one each. The rest (sharding of the inputs,
FSDP2, the loop) is that of accelerate and transformers.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import pytest
import torch
import torch.distributed as dist
from accelerate import ParallelismConfig
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.experimental import context_parallel
from transformers import LlamaForCausalLM, Trainer, TrainingArguments
from transformers.distributed import DistributedConfig
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import decondense as dc
from decondense.insides.torch import context_is_parallel
from regularize.models import PLAIN, llama, tokens

ROWS, TOKENS, WEIGHT = 4, 16, 5.0
LAMBDA = {"weight": WEIGHT}
WHOLE = ALL_ATTENTION_FUNCTIONS["sdpa"]


def as_on_gpus() -> None:
    begin = PartialState.__init__

    def begun(self, *args, **kwargs):
        begin(self, *args, **kwargs)
        if self.distributed_type is DistributedType.MULTI_CPU:
            self.distributed_type = DistributedType.MULTI_GPU

    PartialState.__init__ = begun


class Gathered(torch.autograd.Function):
    """The parts (batch, heads, tokens, width) of all ranks, one after the other along the tokens."""

    @staticmethod
    def forward(ctx, part):
        parts = [torch.empty_like(part) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, part)
        return torch.cat(parts, 2)

    @staticmethod
    def backward(ctx, gradient):
        dist.all_reduce(gradient := gradient.contiguous())
        return gradient.chunk(dist.get_world_size(), 2)[dist.get_rank()]


def gathered_attention(module, query, key, value, attention_mask, scaling=None, **rest):
    """Causal attention of this rank's queries: it holds chunk r from the front and chunk r from the back."""
    if not context_is_parallel():
        return WHOLE(module, query, key, value, attention_mask, scaling=scaling, **rest)
    ranks, rank = dist.get_world_size(), dist.get_rank()
    chunks = torch.arange(query.shape[2] * ranks).chunk(2 * ranks)
    place = [torch.cat([chunks[r], chunks[2 * ranks - 1 - r]]) for r in range(ranks)]
    wide = (x.repeat_interleave(query.shape[1] // x.shape[1], 1).contiguous() for x in (key, value))
    keys, values = (Gathered.apply(x) for x in wide)
    seen = place[rank][:, None] >= torch.cat(place)
    scores = (query @ keys.mT * scaling).masked_fill(~seen, -torch.inf)
    return (scores.softmax(-1) @ values).transpose(1, 2).contiguous(), None


def rows() -> torch.Tensor:
    return tokens(ROWS, TOKENS)


def masked() -> torch.Tensor:
    """Labels of which one row counts less than the others, so that shares matter."""
    labels = rows()
    labels[0, :10] = -100
    return labels


def expected(**options) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    """The gradients of one process on all rows, and the terms."""
    model = llama().train()
    ids, labels = rows(), masked()
    with dc.regularize(model, **LAMBDA, **options) as handle:
        items = (labels[:, 1:] != -100).sum()
        model(input_ids=ids, labels=labels, num_items_in_batch=items).loss.backward()
        last = {name: float(handle.last[name].mean()) for name in ("task_loss", "penalty", "mean_cosine")}
    return {name: p.grad for name, p in model.named_parameters()}, last


def trainer_for(model, folder, *, batch: int = 2, **options) -> Trainer:
    data = [{"input_ids": i, "labels": y} for i, y in zip(rows(), masked())]
    AcceleratorState._reset_state(True)
    arguments = TrainingArguments(
        folder, **PLAIN | options, report_to="none", max_steps=1, logging_steps=1, per_device_train_batch_size=batch,
        gradient_accumulation_steps=2,
    )  # fmt: skip
    return Trainer(model, arguments, train_dataset=data)


def whole(p: torch.Tensor) -> torch.Tensor:
    return (p.full_tensor() if isinstance(p, DTensor) else p).detach()


def compare(name: str, trainer: Trainer, *, whole=whole, **options) -> None:
    """One optimiser step in two micro-batches."""
    gradients, terms = expected(**options)
    before = {n: p.detach().clone() for n, p in llama().named_parameters()}
    with dc.regularize(trainer, **LAMBDA, **options):
        trainer.train()
    for n, p in trainer.model.named_parameters():
        wanted = before[n] - PLAIN["learning_rate"] * gradients[n]
        torch.testing.assert_close(whole(p), wanted, rtol=1e-4, atol=1e-6, msg=lambda m, n=n: f"{name}, {n}: {m}")
    (row,) = [row for row in trainer.state.log_history if "task_loss" in row]
    for term, value in terms.items():
        torch.testing.assert_close(row[term], value, rtol=1e-4, atol=1e-6, msg=lambda m, n=term: f"{name}, {n}: {m}")
    said(f"same as one process: {name}")


def said(words: str) -> None:
    if dist.get_rank() == 0:
        print(words, flush=True)


def refused(words: str, make) -> None:
    with pytest.raises(ValueError, match=words):
        make()
    said("refused")


def context(folder: str) -> None:
    options = {
        "parallelism_config": ParallelismConfig(cp_size=2), "fsdp": True,
        "fsdp_config": {"fsdp_version": 2, "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
                        "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]},
    }  # fmt: skip
    ALL_ATTENTION_FUNCTIONS["sdpa"] = gathered_attention
    for estimator in ("first_order", "exact"):
        trainer = trainer_for(llama(), folder, **options)
        compare(f"context, {estimator}", trainer, estimator=estimator)
    refused("under context parallelism the loss must be", lambda: dc.regularize(trainer, "koleo"))
    trainer = trainer_for(llama(), folder, **options)
    trainer.train_dataset = [{**row, "position_ids": torch.arange(TOKENS) % 8} for row in trainer.train_dataset]
    with dc.regularize(trainer):
        refused("got packed rows", trainer.train)
    trainer = trainer_for(llama(), folder, **options)
    dc.monitor(trainer, every=1)
    refused("the monitor must see whole sequences", trainer.train)
    AcceleratorState._reset_state(True)

    # A loop by hand inside torch's context_parallel.
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("cp",))
    gradients, _ = expected()
    for group in (None, mesh.get_group()):
        model, ids = llama().train(), rows()
        labels = torch.nn.functional.pad(masked()[:, 1:], (0, 1), value=-100)
        positions = torch.arange(TOKENS).repeat(ROWS, 1)
        items = (labels != -100).sum()
        split = context_parallel(mesh, buffers=[ids, labels, positions], buffer_seq_dims=[1, 1, 1])
        with split, dc.regularize(model, **LAMBDA, process_group=group):
            call = {"input_ids": ids, "labels": labels, "shift_labels": labels, "position_ids": positions}
            if group is None:
                refused("the loss must see whole sequences", lambda call=call, model=model: model(**call))
                continue
            model(**call, num_items_in_batch=items / 2).loss.backward()
        for n, p in model.named_parameters():
            dist.all_reduce(p.grad)
            torch.testing.assert_close(p.grad / 2, gradients[n], rtol=1e-4, atol=1e-6, msg=n)
    said("same as one process: by hand")


def tensor(folder: str) -> None:
    if dist.get_rank() == 0:
        llama().save_pretrained(f"{folder}/model")
    dist.barrier()
    model = LlamaForCausalLM.from_pretrained(f"{folder}/model", distributed_config=DistributedConfig(tp_size=2))
    assert any(isinstance(p, DTensor) for p in model.parameters()), "parameters are not split"
    compare("tensor", trainer_for(model, folder))


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    as_on_gpus()
    with tempfile.TemporaryDirectory() as own:
        folder = [own]
        dist.broadcast_object_list(folder)
        for way in (tensor, context):  # Trainer leaves FSDP switched on in the environment
            way(folder[0])
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
