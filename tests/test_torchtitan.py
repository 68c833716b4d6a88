"""torchtitan's trainer with the loss in it, on a CPU (tests/titan/cpu_device.py says with what stand-ins)."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest
from processes import launch

WORKERS = Path(__file__).parent / "titan"
NEEDED = ("torchtitan", "spmd_types", "tyro", "torchdata", "torch_checkpointing")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(
    bool(MISSING),
    reason=f"SKIPPED WITHOUT TORCHTITAN ({', '.join(MISSING)} missing): "
    "make test installs it; with pip: pip install --no-deps --constraint constraints.txt torchtitan spmd_types tyro "
    "docstring-parser typeguard torchdata torch_checkpointing einops",
)


def run(number: int, worker: str, *arguments: object) -> str:
    done = launch(number, WORKERS / worker, *arguments, MASTER_PORT=0)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict:
    out = run(1, "one_process.py", tmp_path_factory.mktemp("titan"))
    (line,) = [line for line in out.splitlines() if line.startswith("FOUND ")]
    return json.loads(line.removeprefix("FOUND "))


def test_ten_steps_without_the_loss_are_torchtitans_own(found):
    assert len(found["bare"]) == 10
    assert found["zero"] == found["bare"]
    assert found["zero_distance"] == 0


def test_ten_steps_with_the_loss(found):
    assert found["sharded"], "FSDP2 did not shard"
    assert len(found["task"]) == 10
    assert found["task"][0] == found["bare"][0]
    for total, task, penalty in zip(found["total"], found["task"], found["penalty"]):
        assert total == pytest.approx(task + 10 * penalty, abs=1e-4)
    assert found["penalty"][0] == pytest.approx(found["penalty_without"][0], abs=1e-6)
    assert found["penalty"][-1] < found["penalty_without"][-1] - 1e-3, "training does not disperse"
    assert found["task"][-1] < found["task"][0], "training does not learn"


def test_a_penalty_that_overwhelms_the_task_is_told(found):
    """Of the last of the ten steps: not with the weight that it had, but with a hundred thousand times as much."""
    (told,) = found["told"]
    assert re.search(r"beside the task loss, got -\S+ beside \S+ at step 10: lower the weight", told), told


def test_schedule_counts_optimiser_steps(found):
    assert found["ramp"] == [0.0, 0.5, 1.0, 1.5, 2.0, 2.0]


@pytest.mark.parametrize("way", ["accumulation", "full checkpointing", "no checkpointing", "compiled", "plain loss"])
def test_same_gradients(found, way):
    """Against selective checkpointing, one batch, no compilation and the chunked loss: torchtitan's defaults."""
    assert found["matters"] > 1e-4, "the loss makes no difference, so there is nothing to compare"
    assert found[way] < 1e-6


def test_documents(found):
    assert found["documents matter"] > 1e-5


def test_same_as_transformers(found):
    """The same weights in a LlamaForCausalLM with `regularize`: every state, the last after the norm, every share."""
    ours, theirs = found["transformers"]
    assert ours == pytest.approx(theirs, rel=1e-6)
    assert found["transformers_shared"] >= 15
    assert found["transformers_gradients"] < 1e-5


def test_command_line(found):
    assert found["command line"] == ["decondense.integrations.torchtitan", 0.1, False]


def test_refused(found):
    said = {
        "pipeline": "pipeline_parallel_degree must be 1",
        "backend": "set --parallelism.spmd-backend partial_dtensor",
        "two axes": "set --parallelism.no-enable-sequence-parallel",
        "graphs": "set --training.disable_cuda_graphs",
        "sampled": "draw the same tokens",
        "layer": "got 99",
    }
    for name, words in said.items():
        assert words in found["refused"][name], name
    assert found["refused"]["nothing"] == ""
    assert found["removed"], "the trainer did not get its own loss back"


@pytest.mark.slow
def test_two_processes(tmp_path):
    """FSDP2, replicas, context, tensor and sequence parallelism: the gradients and logged terms of one process."""
    file = tmp_path / "one.safetensors"
    run(1, "two_processes.py", tmp_path, file)
    out = run(2, "two_processes.py", tmp_path, file)
    assert out.count("same as one process") == 7
