"""Run by test_distributed.py under torchrun, where DeepSpeed is installed: Trainer with ZeRO 1, 2 and 3 on CPUs.

The step is that of one process on all rows, as in parallel_worker.py: ZeRO splits what is trained, and every process
has the whole states of its own rows.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import deepspeed
import torch
import torch.distributed as dist
from accelerate import ParallelismConfig
from accelerate.state import AcceleratorState
from deepspeed.runtime.sequence_parallel import parallel_state_sp

import decondense as dc
from regularize.models import llama, tokens
from regularize.parallel_worker import compare, refused, trainer_for


def zero(stage: int) -> dict:
    return {
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "train_batch_size": "auto",
    }


def gathered(p: torch.Tensor) -> torch.Tensor:
    with deepspeed.zero.GatheredParameters([p]):
        return p.detach().clone()


def main() -> None:
    torch.set_num_threads(1)
    deepspeed.init_distributed("gloo")
    with tempfile.TemporaryDirectory() as own:
        for stage in (1, 2, 3):
            trainer = trainer_for(llama(), own, batch=1, deepspeed=zero(stage), max_grad_norm=1e9)
            compare(f"ZeRO {stage}", trainer, whole=gathered)
            assert hasattr(next(trainer.model.parameters()), "ds_id") == (stage == 3), "ZeRO 3 splits the parameters"
        split = ParallelismConfig(sp_size=2)
        trainer = trainer_for(llama(), own, batch=1, deepspeed=zero(3), parallelism_config=split, max_grad_norm=1e9)
        refused("sequence parallelism over 2 processes", lambda: dc.regularize(trainer))
        AcceleratorState._reset_state(True)  # no accelerate, so that DeepSpeed itself is asked
        if parallel_state_sp._SEQUENCE_PARALLEL_GROUP is None:
            parallel_state_sp.initialize_sequence_parallel(2)
        model, ids = llama(layers=1).train(), tokens()
        with dc.regularize(model):
            refused("split by DeepSpeed's Ulysses over 2 processes", lambda: model(input_ids=ids, labels=ids))
        dist.barrier()
    dist.destroy_process_group()


main()
