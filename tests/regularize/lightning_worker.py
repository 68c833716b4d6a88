"""Run by test_distributed.py under torchrun: Lightning with DDP, the gradients of one process on all rows."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import pytorch_lightning as pl
import torch

import decondense as dc
from decondense.integrations.lightning import MonitorCallback, RegularizeCallback
from regularize.models import assert_same, gradients, tokens
from regularize.test_lightning import Module


def main() -> None:
    torch.set_num_threads(1)
    rows = tokens(4)
    one = Module().train()
    with dc.regularize(one.model, weight=5.0):
        one.model(input_ids=rows, labels=rows, use_cache=False).loss.backward()
    expected = gradients(one.model)

    module, watch = Module(), MonitorCallback(every=1)
    with tempfile.TemporaryDirectory() as folder:
        trainer = pl.Trainer(
            accelerator="cpu", devices=2, strategy="ddp", max_steps=1, accumulate_grad_batches=2, logger=False,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder,
            callbacks=[RegularizeCallback(weight=5.0), watch],
        )  # fmt: skip
        trainer.fit(module, torch.utils.data.DataLoader(rows, batch_size=1))
    assert trainer.world_size == 2
    (found,) = module.before_steps
    assert_same(found, expected, 1e-5)
    assert [reading.step for reading in watch.monitor.readings] == [0]
    if trainer.is_global_zero:
        print("same gradients as one process", flush=True)


main()
