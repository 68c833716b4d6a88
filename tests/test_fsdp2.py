"""FSDP2 on two processes: torch's `fully_shard`, the losses and weights of one process, nothing left unsharded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).with_name("fsdp2_worker.py")


@pytest.mark.slow
def test_training_under_fully_shard():
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.run([*launch, str(WORKER)], capture_output=True, text=True, timeout=180, env=environment)
    assert run.returncode == 0, run.stderr[-3000:]
    assert run.stdout.count("same as one process") == 8
    assert run.stdout.count("loss in float32") == 2
