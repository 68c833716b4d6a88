"""Run by test_fsdp2.py on two processes: training under torch's `fully_shard` against one process on the joined batch.

Each rank also trains the unsharded model on all rows, so that every rank can compare; losses, weights after three
steps of AdamW, and that what is trained is sharded: parameters, gradients, moments.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from types import SimpleNamespace

import torch
import torch.distributed as dist
from accelerate.utils import FullyShardedDataParallelPlugin
from regularize.models import llama, padded
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

import decondense as dc
from decondense.insides.accelerate import keep_float32

STEPS, ROWS = 3, 8


def sharded(model: torch.nn.Module) -> None:
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    assert all(isinstance(p, DTensor) for p in model.parameters()), "parameters are not sharded"
    local, whole = (sum(f(p) for p in model.parameters()) for f in (lambda p: p.to_local().numel(), torch.numel))
    assert local <= whole / dist.get_world_size() * 1.1, f"{local} of {whole} numbers are on this rank"


def train(model, *, rows: slice, estimator: str, accumulation: int = 1, late: bool = False, share: bool = False):
    """Losses of the steps. `share`: under FSDP2, whose gradients are means over the ranks."""
    ids, mask, labels = padded(ROWS)
    options = {"weight": 5.0, "estimator": estimator}
    handle = None if late else dc.regularize(model, **options)
    if share:
        sharded(model)
    if handle is None:
        handle = dc.regularize(model, **options)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    items, ranks = (labels[:, 1:] != -100).sum(), dist.get_world_size() if share else 1
    losses = []
    for _ in range(STEPS):
        total = torch.zeros(())
        for part in torch.arange(ROWS)[rows].chunk(accumulation):
            out = model(
                input_ids=ids[part], attention_mask=mask[part], labels=labels[part], num_items_in_batch=items / ranks
            )
            out.loss.backward()
            total += out.loss.detach()
        if share:
            assert all(isinstance(p.grad, DTensor) for p in model.parameters()), "gradients are not sharded"
            dist.all_reduce(total)
            total /= ranks
        optimiser.step()
        optimiser.zero_grad()
        losses.append(total)
    if share:
        assert all(isinstance(s["exp_avg"], DTensor) for s in optimiser.state.values()), "moments are not sharded"
    handle.remove()
    return torch.stack(losses)


def policies() -> dict[str, MixedPrecisionPolicy]:
    """accelerate's policy for bf16, and what `decondense train` makes of it."""
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2)
    plugin.set_mixed_precision("bf16")
    found = {"accelerate": plugin.mixed_precision_policy}
    keep_float32(SimpleNamespace(is_fsdp2=True, state=SimpleNamespace(fsdp_plugin=plugin)))
    return found | {"ours": plugin.mixed_precision_policy}


def check_precision() -> None:
    """In bf16 the weights of the blocks are rounded, the loss and the gradients are not."""
    ids, mask, labels = padded(ROWS)
    with torch.no_grad():
        expected = llama()(input_ids=ids, attention_mask=mask, labels=labels).loss
    for name, policy in policies().items():
        model = llama().train()
        handle = dc.regularize(model, weight=0.1)
        for layer in model.model.layers:
            fully_shard(layer, mp_policy=policy)
        fully_shard(model, mp_policy=policy)
        out = model(input_ids=ids, attention_mask=mask, labels=labels)
        out.loss.backward()
        task = float(handle.last["task_loss"])
        handle.remove()
        assert out.loss.dtype == (torch.bfloat16 if name == "accelerate" else torch.float32), name
        assert abs(task - float(expected)) < 0.02, f"{name}: {task}, {float(expected)}"
        assert all(p.grad.dtype == torch.float32 for p in model.parameters()), name
        assert policy.reduce_dtype == (torch.bfloat16 if name == "accelerate" else torch.float32), name
    print("loss in float32")


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mine = slice(rank * ROWS // ranks, (rank + 1) * ROWS // ranks)
    for estimator in ("first_order", "exact"):
        one = llama().train()
        expected = train(one, rows=slice(None), estimator=estimator)
        ways = {
            "": {},
            "attached after sharding": {"late": True},
            "checkpointed": {},
            "accumulated": {"accumulation": 2},
        }
        for way, options in ways.items():
            model = llama().train()
            if way == "checkpointed":
                model.gradient_checkpointing_enable({"use_reentrant": False})
            found = train(model, rows=mine, estimator=estimator, share=True, **options)
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6, msg=lambda m, w=way: f"{w}, losses: {m}")
            for (name, p), q in zip(model.named_parameters(), one.parameters()):
                torch.testing.assert_close(
                    p.full_tensor(), q, rtol=1e-3, atol=1e-4, msg=lambda m, w=way, n=name: f"{w}, {n}: {m}"
                )
            if rank == 0:
                print(f"same as one process: {estimator} {way}")
    check_precision()
    dist.destroy_process_group()


main()
