"""Two gloo processes under DDP, and under FSDP2: the gradients of one process on the joined batch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).with_name("distributed_worker.py")


@pytest.mark.parametrize("engine", ["ddp", pytest.param("fsdp", marks=pytest.mark.slow)])
def test_two_processes(engine):
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.run([*launch, str(WORKER), engine], capture_output=True, text=True, timeout=180, env=environment)
    assert run.returncode == 0, run.stderr[-3000:]
    assert run.stdout.count("same gradients as one process") == 2
