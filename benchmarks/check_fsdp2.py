"""`decondense train` under FSDP2 through transformers' Trainer, beside the same run in one piece.

    python benchmarks/check_fsdp2.py --processes 1 --work RUNS --out benchmarks/results/fsdp2.csv        # GPUs only

Three runs of recipes/midtrain-smollm2-135m.yaml on 2M tokens: not sharded; sharded by `accelerate launch` with
recipes/launch/fsdp2.yaml; sharded with compiled blocks. In the first step the child process counts which parameters are
DTensors (accelerate falls back silently where it cannot shard), and notes date and commit. At the end every model
folder is loaded and its parameters counted. A run that is there already is not repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = {
    "data.tokens": "2097152",
    "train.micro_batch": "16",
    "train.batch_tokens": "65536",
    "train.checkpoints": "2",
    "snapshots.count": "1",
}
RUNS = {"plain": ("one", "false"), "sharded": ("fsdp2", "false"), "sharded and compiled": ("fsdp2", "true")}
KINDS = "DECONDENSE_CHECK_FSDP2"


def child() -> None:
    """`decondense.cli` with a look at the parameters in the first step."""
    import harness
    import transformers
    from torch.distributed.tensor import DTensor

    from decondense import cli

    own = transformers.Trainer.training_step
    target = Path(os.environ[KINDS])

    def step(self: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        if not target.exists():
            sharded = [isinstance(p, DTensor) for p in model.parameters()]
            found = {"sharded": sum(sharded), "parameters": len(sharded), "model": type(model).__name__}
            made = {key: value for key, value in harness.environment().items() if key in ("date", "commit")}
            target.write_text(json.dumps(found | made))
        return own(self, model, *args, **kwargs)

    transformers.Trainer.training_step = step  # type: ignore[method-assign]
    cli.main()


def run(name: str, work: Path, processes: int) -> None:
    folder = work / name.replace(" ", "-")
    if (folder / "result.json").exists():
        return
    kind, compiled = RUNS[name]
    launch = [sys.executable]
    if kind == "fsdp2":
        launch = ["accelerate", "launch", "--config_file", str(ROOT / "recipes" / "launch" / "fsdp2.yaml")]
        launch += ["--num_processes", str(processes)]
    command = [*launch, __file__, "train", str(ROOT / "recipes" / "midtrain-smollm2-135m.yaml"), "--out", str(folder)]
    for key, value in (SETTINGS | {"train.compile": compiled}).items():
        command += ["--set", f"{key}={value}"]
    subprocess.run(command, env=os.environ | {KINDS: str(work / f"{folder.name}.kinds.json")}, check=True)


def collect(work: Path) -> list[dict[str, Any]]:
    from transformers import AutoModelForCausalLM

    rows = []
    for name in RUNS:
        folder = work / name.replace(" ", "-")
        record = json.loads((folder / "result.json").read_text())
        kinds = json.loads((work / f"{folder.name}.kinds.json").read_text())
        rows.append(
            {
                "run": name,
                "processes": record["processes"],
                "dtensors": kinds["sharded"],
                "parameters": kinds["parameters"],
                "held_out_before": record["held_out"][0]["loss"],
                "held_out_after": record["held_out"][-1]["loss"],
                "last_task_loss": record["history"][-1]["task_loss"],
                "last_penalty": record["history"][-1]["penalty"],
                "loaded_parameters": AutoModelForCausalLM.from_pretrained(folder / "model").num_parameters(),
                "hardware": record["hardware"],
                **{key: record["versions"][key] for key in ("torch", "transformers", "accelerate")},
                "date": kinds.get("date", ""),
                "commit": kinds.get("commit", ""),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--work", type=Path, default=Path("runs/fsdp2"))
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "fsdp2.csv")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    for name in RUNS:
        run(name, options.work, options.processes)
    from decondense.files import write_csv

    rows = collect(options.work)
    write_csv(options.out, rows)
    for row in rows:
        print(row)


if __name__ == "__main__":
    child() if os.environ.get(KINDS) else main()
