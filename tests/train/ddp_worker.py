"""Run by test_distributed.py on two gloo processes.

python ddp_worker.py train RECIPE OUT     a snapshot of a sharded model, then the command
python ddp_worker.py die RECIPE OUT       the command; the second process kills itself in step 6, where the first one is
                                          busy and does not notice
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import torch.distributed as dist
import transformers
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from decondense import cli
from decondense.train import trainer
from decondense.train.watch import snapshot
from train.runs import CONFIGS


def main(what: str, recipe: str, out: str) -> None:
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    if what == "die":
        own = trainer.Trainer.on_pre_optimizer_step

        def look(self, *args, **kwargs) -> None:
            if self.state.global_step == 5:
                os.kill(os.getpid(), signal.SIGKILL) if rank else time.sleep(60)
            own(self, *args, **kwargs)

        trainer.Trainer.on_pre_optimizer_step = look
    if what == "train":
        sharded_snapshot(rank)
    cli.main(["train", recipe, "--out", out])


def llama() -> transformers.LlamaForCausalLM:
    torch.manual_seed(3)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIGS["llama"])).train()


def sharded_snapshot(rank: int) -> None:
    """Before the first step, on weights that are sharded over both processes: the numbers of the whole model, and the
    model can still be trained."""
    dist.init_process_group("gloo")
    words = "".join(chr(97 + (7 * i * i + 3 * i) % 26) for i in range(400))
    options = {"label": "x", "windows": 6, "tokens": 16, "bootstrap": 20}
    tokenizer = transformers.ByT5Tokenizer()
    expected = snapshot(llama(), tokenizer, words, **options)
    model = llama()
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    assert all(isinstance(p, DTensor) for p in model.parameters())
    found = snapshot(model, tokenizer, words, **options)
    torch.testing.assert_close(
        torch.tensor(found.mean_cosine), torch.tensor(expected.mean_cosine), rtol=1e-6, atol=1e-6
    )
    assert found.record.model.architecture == "LlamaForCausalLM"
    ids = torch.arange(40).view(2, 20) + rank
    model(input_ids=ids, labels=ids).loss.backward()
    assert all(isinstance(p.grad, DTensor) for p in model.parameters())
    if rank == 0:
        print("a sharded model is measured and trained")


main(*sys.argv[1:])
