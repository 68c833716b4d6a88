"""Run by test_torchtitan.py under torchrun: torchtitan's parallelisms against one process, gradients and logged terms.

python two_processes.py FOLDER FILE      one process writes FILE, two compare with it
"""

from __future__ import annotations

import sys
from pathlib import Path

import cpu_device
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor

from decondense.integrations import torchtitan as ours

FOLDER, FILE = sys.argv[1:]
WAYS = {
    "fully sharded": {},
    "replicated": {"data_parallel_replicate_degree": 2, "data_parallel_shard_degree": 1},
    "context": {"context_parallel_degree": 2},
    "tensor, sequence": {"tensor_parallel_degree": 2},
    "tensor": {"tensor_parallel_degree": 2, "enable_sequence_parallel": False},
}
SPLIT = ("context", "tensor, sequence")  # where a sequence lies on two ranks, the estimators communicate


def _set_weights(model: torch.nn.Module) -> None:
    """The same weights however they are sharded: torchtitan's draws depend on that on a CPU."""
    for name, p in model.named_parameters():
        name = name.replace("_checkpoint_wrapped_module.", "")
        drawn = torch.randn(p.shape, generator=torch.Generator().manual_seed(sum(map(ord, name))))
        whole = 1 + 0.1 * drawn if "norm" in name else 0.05 * drawn
        with torch.no_grad():
            p.copy_(distribute_tensor(whole, p.device_mesh, p.placements) if isinstance(p, DTensor) else whole)


def step(estimator: str, way: dict) -> dict[str, torch.Tensor]:
    """Gradients of one optimiser step on four rows, 10 labels of the first ignored, and the two logged terms."""
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    split = 1 if "context_parallel_degree" in way or "tensor_parallel_degree" in way else ranks
    config = cpu_device.debug_model(FOLDER, batch=4 // split, layers=2, ignored=10)
    config = ours.regularized(config, weight=5.0, estimator=estimator)
    config.training.max_norm = 1e9
    config.parallelism.spmd_backend = "partial_dtensor"  # torch 2.13 cannot do the default on more than one rank
    for key, value in way.items():
        setattr(config.parallelism, key, value)
    trainer = config.build()
    for module in trainer.model_parts[0].modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)  # gloo has no scaled sum
    _set_weights(trainer.model_parts[0])
    found, logged = {}, {}
    trainer.metrics_processor.logger.log = lambda metrics, step: logged.update(metrics)

    def note(*args, **kwargs):
        for name, p in trainer.model_parts[0].named_parameters():
            gradient = p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad
            found[name.replace("_checkpoint_wrapped_module.", "")] = gradient.detach().clone()

    trainer.optimizers.step = note
    trainer.step = 1
    trainer.train_step(trainer.batch_generator(trainer.dataloader))
    for name in ("loss_metrics/global_avg_loss", "regularizer/task_loss", "regularizer/penalty"):
        found[name] = torch.tensor(logged[name])
    return found


def main() -> None:
    first = step("first_order", {})
    if dist.get_world_size() == 1:
        save_file({**first, **{f"exact {k}": v for k, v in step("exact", {}).items()}}, FILE)
    else:
        expected = load_file(FILE)
        for name, way in WAYS.items():
            for estimator in ("first_order", "exact") if name in SPLIT else ("first_order",):
                found = step(estimator, way)
                for key, value in found.items():
                    same = expected[key if estimator == "first_order" else f"exact {key}"]
                    torch.testing.assert_close(
                        value, same, rtol=1e-4, atol=1e-6, msg=lambda m, n=f"{name}, {estimator}, {key}": f"{n}: {m}"
                    )
                if dist.get_rank() == 0:
                    print(f"same as one process: {name}, {estimator}", flush=True)
    dist.destroy_process_group()
    Path(FILE).touch()


main()
