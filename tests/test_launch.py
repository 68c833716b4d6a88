"""recipes/launch: accelerate reads the configurations as meant, and the Slurm script says what it should on every node.

No Slurm here: `srun`, `scontrol` and `accelerate` are scripts that note how they were called.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LAUNCH = ROOT / "recipes" / "launch"
SCRIPT = LAUNCH / "slurm.sh"
CONFIGURATIONS = ["ddp.yaml", "fsdp2.yaml", "fsdp2-multi-node.yaml"]


def test_every_file_is_tested():
    assert sorted(p.name for p in LAUNCH.iterdir()) == sorted([*CONFIGURATIONS, SCRIPT.name])


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_accelerate_loads_it(name):
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.utils import DistributedType

    config = load_config_from_file(str(LAUNCH / name))
    assert config.distributed_type == (DistributedType.MULTI_GPU if name == "ddp.yaml" else DistributedType.FSDP)
    assert config.mixed_precision == "no"  # the recipe decides
    assert config.num_processes == 8 * config.num_machines
    assert (config.num_machines > 1) == ("multi" in name)
    assert bool(config.fsdp_config) == (name != "ddp.yaml")


def environment_of(monkeypatch, *arguments: str):
    """accelerate's own way from a command line to what it sets for the processes."""
    from accelerate.commands import launch
    from accelerate.utils.launch import prepare_multi_gpu_env

    monkeypatch.setattr("accelerate.utils.launch.is_port_in_use", lambda port: False)
    args = launch.launch_command_parser().parse_args([*arguments, "-m", "decondense.cli", "train", "recipe.yaml"])
    args, _, _ = launch._validate_launch_command(args)
    return args, prepare_multi_gpu_env(args)


@pytest.mark.parametrize("name", ["fsdp2.yaml", "fsdp2-multi-node.yaml"])
def test_processes_shard_with_fsdp2(monkeypatch, name):
    from accelerate.utils import FullyShardedDataParallelPlugin
    from torch.distributed.fsdp import StateDictType

    _, environment = environment_of(monkeypatch, "--config_file", str(LAUNCH / name), "--main_process_ip", "node-0")
    assert environment["ACCELERATE_USE_FSDP"] == "true"
    assert environment["ACCELERATE_MIXED_PRECISION"] == "no"
    for key, value in environment.items():
        if key.startswith("FSDP_"):
            monkeypatch.setenv(key, value)
    plugin = FullyShardedDataParallelPlugin()
    assert plugin.fsdp_version == 2
    assert plugin.reshard_after_forward is True
    assert plugin.state_dict_type == StateDictType.FULL_STATE_DICT  # Trainer.save_model writes nothing otherwise
    assert plugin.auto_wrap_policy is not None
    assert plugin.transformer_cls_names_to_wrap is None  # then accelerate takes what the model names
    assert not plugin.activation_checkpointing  # an error beside the recipe's checkpointing


def test_one_machine_needs_no_port(monkeypatch):
    args, _ = environment_of(monkeypatch, "--config_file", str(LAUNCH / "ddp.yaml"))
    assert args.nproc_per_node == "8"
    assert int(args.master_port) > 0


# ---- the Slurm script ----


@pytest.fixture
def cluster(tmp_path):
    """A folder whose commands stand for a cluster of four machines; calls.txt gets a line per call."""
    stubs = tmp_path / "bin"
    stubs.mkdir()
    commands = {
        "scontrol": '[[ $1 == show ]] && printf "node-%s\\n" 7 8 9 10 || true',
        "srun": 'while [[ $1 == --* ]]; do shift; done; export SLURM_NODEID=3; exec "$@"',
        "accelerate": '[[ -n ${TAKES:-} ]] && exec sleep "$TAKES"; exit "${RESULT:-0}"',
    }
    for name, body in commands.items():
        file = stubs / name
        file.write_text(f'#!/bin/bash\nprintf "%s\\t" {name} "$@" >> "$CALLS"; echo >> "$CALLS"\n{body}\n')
        file.chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{stubs}:{os.environ['PATH']}",
        "CALLS": str(tmp_path / "calls.txt"),
        "OUT": str(tmp_path / "run"),
        "SLURM_JOB_ID": "123456",
        "SLURM_JOB_NODELIST": "node-[7-10]",
        "SLURM_NNODES": "4",
        "SLURM_GPUS_ON_NODE": "8",
    }


def calls(cluster: dict[str, str]) -> dict[str, list[str]]:
    """The arguments of the last call of each command; of scontrol's two, requeue has its own entry."""
    file = Path(cluster["CALLS"])
    lines = [line.rstrip("\t").split("\t") for line in file.read_text().splitlines()] if file.exists() else []
    return {" ".join(line[:2]) if line[1:2] == ["requeue"] else line[0]: line[1:] for line in lines}


def submit(cluster: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(SCRIPT), "recipes/pretrain-qwen3-0.6b-c4.yaml", *arguments]
    return subprocess.run(command, env=cluster, cwd=ROOT, capture_output=True, text=True, timeout=60)


def test_script_is_bash():
    assert subprocess.run(["bash", "-n", str(SCRIPT)], capture_output=True).returncode == 0
    assert os.access(SCRIPT, os.X_OK)


def test_command_on_every_machine(cluster, monkeypatch):
    done = submit(cluster, "--set", "train.seed=2")
    assert done.returncode == 0, done.stderr
    command = calls(cluster)["accelerate"]
    start = command.index("-m")
    assert command[start:] == [
        "-m", "decondense.cli", "train", "recipes/pretrain-qwen3-0.6b-c4.yaml", "--out", cluster["OUT"],
        "--set", "train.seed=2",
    ]  # fmt: skip
    # accelerate understands it, and makes 32 processes that meet at the first machine
    assert command[0] == "launch"
    monkeypatch.chdir(ROOT)
    args, _ = environment_of(monkeypatch, *command[1:start])
    assert (args.nnodes, args.nproc_per_node, args.node_rank) == ("4", "8", 3)
    assert (args.rdzv_backend, args.rdzv_endpoint) == ("static", f"node-7:{20000 + 123456 % 20000}")


def test_a_task_has_the_cores_of_the_job(cluster):
    submit({**cluster, "SLURM_CPUS_PER_TASK": "64"})
    assert calls(cluster)["srun"][:3] == ["--kill-on-bad-exit=1", "--cpus-per-task=64", "bash"]
    submit({k: v for k, v in cluster.items() if k != "SLURM_CPUS_PER_TASK"})  # a job that asked for none
    assert calls(cluster)["srun"][:2] == ["--kill-on-bad-exit=1", "bash"]


def test_resumes_what_has_begun(cluster):
    Path(cluster["OUT"]).mkdir()
    submit(cluster)
    assert "--resume" not in calls(cluster)["accelerate"]  # an empty folder is no run
    (Path(cluster["OUT"]) / "recipe.yaml").write_text("name: x\n")
    submit(cluster)
    assert calls(cluster)["accelerate"][-1] == "--resume"


def test_setup_runs_first(cluster, tmp_path):
    submit({**cluster, "SETUP": f"touch {tmp_path}/ready"})
    assert (tmp_path / "ready").exists()


def test_failure_is_not_requeued(cluster):
    assert submit({**cluster, "RESULT": "3"}).returncode == 3
    assert "scontrol requeue" not in calls(cluster)


def test_requeued_before_the_time_is_up(cluster):
    command = ["bash", str(SCRIPT), "recipes/pretrain-qwen3-0.6b-c4.yaml"]
    job = subprocess.Popen(command, env={**cluster, "TAKES": "60"}, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 30
    while "accelerate" not in calls(cluster):
        assert time.monotonic() < deadline, "the job does not start"
        time.sleep(0.05)
    job.send_signal(signal.SIGUSR1)
    said, _ = job.communicate(timeout=30)
    assert job.returncode == 0
    assert "back into the queue" in said
    assert calls(cluster)["scontrol requeue"] == ["requeue", "123456"]


def test_usage(cluster):
    done = subprocess.run(["bash", str(SCRIPT)], env=cluster, capture_output=True, text=True)
    assert done.returncode != 0
    assert "usage: sbatch" in done.stderr
