"""Run by test_distributed.py on two processes: one's share of a batch, its gradients compared with those of one process
on all of it."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import decondense as dc
from regularize.models import gradients, llama, padded, tokens


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for engine in ("ddp", "given ddp", "fsdp"):
        for estimator in ("exact", "first_order"):
            compare(engine, estimator)
    watch_and_measure()
    dist.destroy_process_group()


def compare(engine: str, estimator: str) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    ids = tokens(4)
    _, mask, _ = padded(4)

    joined = llama().train()
    with dc.regularize(joined, weight=5.0, estimator=estimator):
        joined(input_ids=ids, attention_mask=mask, labels=ids).loss.backward()
    expected = gradients(joined)

    model = llama().train()
    rows = slice(rank * 4 // world, (rank + 1) * 4 // world)
    options = {"weight": 5.0, "estimator": estimator}
    handle = dc.regularize(model, **options) if engine != "given ddp" else None
    if engine != "fsdp":
        wrapped = DistributedDataParallel(model)
        handle = handle or dc.regularize(wrapped, **options)
    else:
        for layer in model.model.layers:
            fully_shard(layer)
        wrapped = fully_shard(model)
        assert all(isinstance(p, DTensor) for p in model.parameters()), "parameters are not sharded"
    # labels without padding: every process has as many of them, so the mean of the means is the mean
    out = wrapped(input_ids=ids[rows], attention_mask=mask[rows], labels=ids[rows])
    last = handle.last
    torch.testing.assert_close(out.loss.detach(), last["task_loss"] + 5.0 * last["penalty"])
    out.loss.backward()
    found = {
        name: (p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad) for name, p in model.named_parameters()
    }
    handle.remove()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")
    if rank == 0:
        print(f"same gradients as one process: {engine} {estimator}")


def watch_and_measure() -> None:
    """A model that DDP holds is watched and measured as it is without."""
    model, ids = llama().train(), tokens(4)
    wrapped = DistributedDataParallel(model)
    plain = dc.measure(model, inputs=ids)
    assert (dc.measure(wrapped, inputs=ids).mean_cosine == plain.mean_cosine).all()
    for inputs in (None, ids):
        optimiser = torch.optim.SGD(wrapped.parameters(), lr=1e-9)
        with dc.monitor(wrapped, every=1, inputs=inputs) as watch:
            wrapped(input_ids=ids, labels=ids).loss.backward()
            optimiser.step()
        found = watch.readings[0].table["mean_cosine"]
        torch.testing.assert_close(torch.tensor(found), torch.tensor(plain.mean_cosine), rtol=1e-6, atol=1e-6)
    if dist.get_rank() == 0:
        print("watched and measured as without")


main()
