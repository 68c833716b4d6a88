"""Two gloo processes: DDP, FSDP2, context and tensor parallelism, Lightning, DeepSpeed: gradients of one process."""

from __future__ import annotations

from pathlib import Path

import pytest
from processes import launch


def two_processes(worker: str) -> str:
    run = launch(2, Path(__file__).with_name(worker))
    assert run.returncode == 0, run.stderr[-3000:]
    return run.stdout


def test_two_processes():
    said = two_processes("distributed_worker.py")
    for engine in ("ddp", "given ddp", "fsdp"):
        assert said.count(f"same gradients as one process: {engine}") == 2
    assert said.count("watched and measured as without") == 1


@pytest.mark.slow
def test_lightning_ddp():
    """Slow: what DDP does to the gradients is in test_two_processes."""
    pytest.importorskip("pytorch_lightning")
    assert two_processes("lightning_worker.py").count("same gradients as one process") == 1


@pytest.mark.slow
def test_zero():
    """ZeRO 1, 2 and 3 through Trainer; Ulysses is refused. Slow: DeepSpeed compiles an operator when it starts."""
    pytest.importorskip("deepspeed")
    said = two_processes("deepspeed_worker.py")
    assert said.count("same as one process") == 3
    assert said.count("refused") == 2


def test_split_over_two_processes():
    """Tensor parallelism under Trainer, context parallelism under Trainer and by hand; and what is refused there."""
    said = two_processes("parallel_worker.py")
    assert said.count("same as one process") == 4
    assert said.count("refused") == 4
