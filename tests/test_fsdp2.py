"""FSDP2 on two processes: torch's `fully_shard`, the losses and weights of one process, nothing left unsharded."""

from __future__ import annotations

from pathlib import Path

from processes import launch


def test_training_under_fully_shard():
    run = launch(2, Path(__file__).with_name("fsdp2_worker.py"))
    assert run.returncode == 0, run.stderr[-3000:]
    assert run.stdout.count("same as one process") == 8
    assert run.stdout.count("loss in float32") == 2
