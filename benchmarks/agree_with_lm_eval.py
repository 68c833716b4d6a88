"""lm-eval's own command line on the paper's ten tasks, and its outcomes beside those of `decondense evaluate`.

    decondense evaluate MODEL --tasks paper --bench bench --out OURS
    python benchmarks/agree_with_lm_eval.py OURS --model FOLDER --bench bench --out OURS/lm_eval.csv

lm-eval gets its own YAML files, included whole; only the data source and the splits that exist are overridden, and the
rows go through its own JSON loader. So prompts, few-shot examples, tokenisation, scoring and metrics are all its own.
Compared item by item: the hash of prompt, choices and target; what counted as right; every log-likelihood.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from lm_eval.tasks._yaml_loader import load_yaml

from decondense.evaluate import task_names, tasks
from decondense.evaluate.items import item_hash, read_items
from decondense.files import write_csv

SPLITS = ("training_split", "validation_split", "test_split", "fewshot_split")
# lm-eval reads all of its 14,000 task files at every start; here it reads those it is given.
LAUNCH = """
import sys
import lm_eval.tasks.manager as manager
plain = manager.TaskManager.__init__
def only(self, *a, **k):
    k["include_defaults"] = False
    plain(self, *a, **k)
manager.TaskManager.__init__ = only
sys.argv[0] = "lm-eval"
from lm_eval.__main__ import cli_evaluate
cli_evaluate()
"""


def write_definitions(names: list[str], bench: Path, shots: str, folder: Path) -> dict[str, str]:
    """One YAML and its rows per task into `folder`; returns lm-eval's name → the task it belongs to."""
    index = task_names.index_of(names)
    found = {}
    for name in names:
        for leaf in task_names.leaves_of(name, index):
            config = dict(load_yaml(index[leaf].yaml_path, resolve_func=True))
            changes, *_ = tasks._local(name, leaf, config, bench)
            files = {}
            for split in {changes[key] for key in SPLITS if changes[key]}:
                rows = changes["custom_dataset"]()[split]
                target = folder / f"{leaf}.{split}.jsonl"
                target.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
                files[split] = str(target)
            evaluated = changes["test_split"] or changes["validation_split"]
            # the item itself is left out of the examples only where the few-shot split is called the test split
            pool = changes["fewshot_split"] or changes["training_split"] or changes["validation_split"] or evaluated
            override = {
                "include": str(index[leaf].yaml_path),
                "task": f"local_{leaf}",
                "dataset_path": "json",
                "dataset_name": None,
                "dataset_kwargs": {"data_files": files},
                **{key: changes[key] for key in SPLITS},
                "test_split": evaluated,
                "fewshot_split": pool,
                "num_fewshot": tasks.shots_for(name, shots),
            }
            if config.get("num_fewshot") == 0:  # the prompt has its own examples
                override["num_fewshot"] = 0
            (folder / f"{leaf}.yaml").write_text(yaml.safe_dump(override), encoding="utf-8")
            found[f"local_{leaf}"] = name
    return found


def run_lm_eval(
    names: list[str], folder: Path, options: argparse.Namespace, run: Callable[..., Any] = subprocess.run
) -> float:
    """Seconds of lm-eval's command line; its samples lie under folder/out."""
    command = [sys.executable, "-c", LAUNCH, "run", "--model", "hf", "--batch_size", str(options.batch_size)]
    command += ["--model_args", f"pretrained={options.model},dtype=float32", "--device", options.device]
    command += ["--tasks", ",".join(names), "--include_path", str(folder), "--log_samples"]
    command += ["--output_path", str(folder / "out")]
    if options.limit:
        command += ["--limit", str(options.limit)]
    offline = {"HF_HOME": str(folder / "cache"), "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    begun = time.monotonic()
    done = run(command, env=os.environ | offline)
    # lm-eval writes the samples before it prints its table: what counts is whether they are all there
    if done.returncode and len(list((folder / "out").rglob("samples_*.jsonl"))) < len(names):
        raise SystemExit(f"lm-eval ended with {done.returncode} before its samples were written")
    return time.monotonic() - begun


def read_samples(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Task → what lm-eval kept of each of its items, in the order of the data."""
    samples = {}
    for file in (folder / "out").rglob("samples_*.jsonl"):
        leaf = file.name.removeprefix("samples_local_").rsplit("_2", 1)[0]
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line]
        samples[leaf] = sorted(rows, key=lambda r: r["doc_id"])
    return samples


def compare(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> dict[str, Any]:
    """One task: items whose prompt, choices or target differ; whose outcome differs; the largest gap in nats."""
    other, changed, gap = 0, 0, 0.0
    for a, b in zip(ours, theirs, strict=True):
        arguments = [tuple(b["arguments"][key].values()) for key in sorted(b["arguments"], key=_number)]
        other += a["item"] != item_hash(arguments, b["target"])
        changed += abs(a["correct"] - float(b["acc"])) > 1e-4
        values = [float(value) for value, _ in b["filtered_resps"]]
        gap = max([gap, *(abs(x - y) for x, y in zip(a["loglikelihoods"], values, strict=True))])
    return {"different_items": other, "different_outcomes": changed, "largest_gap": gap}


def _number(key: str) -> int:
    return int(key.rsplit("_", 1)[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ours", type=Path, help="a folder of `decondense evaluate`")
    parser.add_argument("--model", required=True, help="the folder of the same weights")
    parser.add_argument("--bench", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--limit", type=int)
    options = parser.parse_args()
    record = json.loads((options.ours / "result.json").read_text())
    mine: dict[str, list[dict[str, Any]]] = {}
    for item in read_items(options.ours / "items.parquet"):
        mine.setdefault(item["subtask"], []).append(item)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        found = write_definitions(record["settings"]["tasks"], options.bench, str(record["settings"]["shots"]), folder)
        seconds = run_lm_eval(list(found), folder, options)
        samples = read_samples(folder)
    rows: list[dict[str, Any]] = []
    for name in record["settings"]["tasks"]:
        leaves = [leaf.removeprefix("local_") for leaf, task in found.items() if task == name]
        parts = [compare(mine[leaf], samples[leaf]) for leaf in leaves]
        theirs = [float(r["acc"]) for leaf in leaves for r in samples[leaf]]
        row: dict[str, Any] = {"task": name, "items": len(theirs), "ours": record["tasks"][name]["acc"]}
        row |= {"lm_eval": sum(theirs) / len(theirs)}
        row |= {k: sum(p[k] for p in parts) for k in ("different_items", "different_outcomes")}
        rows.append(row | {"largest_gap": max(p["largest_gap"] for p in parts)})
        print(rows[-1], flush=True)
    write_csv(options.out, rows)
    print(f"lm-eval took {seconds:.0f} s")
    options.out.with_suffix(".json").write_text(json.dumps({"lm_eval_seconds": round(seconds, 1)}) + "\n")


if __name__ == "__main__":
    main()
