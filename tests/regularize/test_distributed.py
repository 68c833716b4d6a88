"""Two gloo processes under DDP, FSDP2, context and tensor parallelism: the gradients of one process on all rows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def two_processes(worker: str, *arguments: str) -> str:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [*launch, str(HERE / worker), *arguments]
    run = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    assert run.returncode == 0, run.stderr[-3000:]
    return run.stdout


@pytest.mark.parametrize("engine", ["ddp", pytest.param("fsdp", marks=pytest.mark.slow)])
def test_two_processes(engine):
    assert two_processes("distributed_worker.py", engine).count("same gradients as one process") == 2


def test_split_over_two_processes():
    """Tensor parallelism under Trainer, context parallelism under Trainer and by hand; and what is refused there."""
    said = two_processes("parallel_worker.py")
    assert said.count("same as one process") == 4
    assert said.count("refused") == 4
