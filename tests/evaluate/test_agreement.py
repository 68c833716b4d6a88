"""Item by item, the same as lm-eval: its evaluator in memory, and its own command line on the same data."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys

import pytest
import yaml

from decondense.evaluate import tasks
from decondense.evaluate.harness import evaluate
from decondense.evaluate.items import item_hash

LIMIT = 12


@pytest.fixture(scope="module")
def command_line(bench, stories, tmp_path_factory):
    """lm-eval's command line on piqa, arc_easy (1 shot) and lambada_openai. Its YAML files are included whole; only the
    data source and the splits that exist are named anew, and the data goes through lm-eval's own JSON loader."""
    import lm_eval.tasks

    folder = tmp_path_factory.mktemp("lm_eval")
    definitions = os.path.dirname(lm_eval.tasks.__file__)
    for name, file, split in (
        ("piqa", "piqa/piqa.yaml", "validation"),
        ("arc_easy", "arc/arc_easy.yaml", "test"),
        ("lambada_openai", "lambada/lambada_openai.yaml", "test"),
    ):
        rows = folder / f"{name}.jsonl"
        rows.write_bytes(gzip.decompress((bench / name / f"{split}.jsonl.gz").read_bytes()))
        override = {
            "include": f"{definitions}/{file}",
            "task": f"local_{name}",
            "dataset_path": "json",
            "dataset_name": None,
            "dataset_kwargs": {"data_files": {split: str(rows)}},
            "training_split": None,
            "validation_split": split if split == "validation" else None,
            "test_split": split,
            "fewshot_split": split,
            "num_fewshot": 1 if name == "arc_easy" else 0,
        }
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(override))
    command = [sys.executable, "-c", LAUNCH, str(folder), "run", "--model", "hf"]
    command += ["--model_args", f"pretrained={stories},dtype=float32", "--device", "cpu", "--batch_size", "8"]
    command += ["--tasks", "local_piqa,local_arc_easy,local_lambada_openai", "--limit", str(LIMIT)]
    command += ["--include_path", str(folder), "--log_samples", "--output_path", str(folder / "out")]
    environment = os.environ | {"HF_HOME": str(folder / "cache"), "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    samples = {}
    for file in (folder / "out").rglob("samples_*.jsonl"):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        samples[file.name.split("local_")[1].rsplit("_2", 1)[0]] = sorted(rows, key=lambda r: r["doc_id"])
    return samples


# lm-eval reads all of its 14,000 task files at every start; here it reads those it is given.
LAUNCH = """
import sys
folder = sys.argv.pop(1)
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


def test_three_tasks_equal_lm_evals_command_line(command_line, bench, stories):
    assert set(command_line) == {"piqa", "arc_easy", "lambada_openai"}
    record, items = evaluate(stories, tasks=list(command_line), data=bench, limit=LIMIT, device="cpu")
    for name, theirs in command_line.items():
        mine = [item for item in items if item["task"] == name]
        assert len(mine) == len(theirs) == LIMIT
        for a, b in zip(mine, theirs):
            arguments = [tuple(b["arguments"][key].values()) for key in sorted(b["arguments"])]
            assert a["item"] == item_hash(arguments, b["target"])
            assert a["correct"] == float(b["acc"])
            for value, greedy, (their_value, their_greedy) in zip(
                a["loglikelihoods"], a["greedy"], b["filtered_resps"]
            ):
                assert value == pytest.approx(float(their_value), abs=2e-4)
                assert greedy == (str(their_greedy) == "True")
        assert record["tasks"][name]["acc"] == pytest.approx(sum(float(b["acc"]) for b in theirs) / LIMIT)
    perplexity = [float(b["perplexity"]) for b in command_line["lambada_openai"]]
    import math

    assert record["tasks"]["lambada_openai"]["perplexity"] == pytest.approx(
        math.exp(-sum(perplexity) / LIMIT), rel=1e-4
    )


@pytest.mark.parametrize(
    ("names", "limit"),
    [(("winogrande", "openbookqa", "anli_r2", "arc_challenge", "medmcqa"), 3), (("truthfulqa_mc2",), 2)],
)
def test_the_others_equal_lm_evals_evaluator(names, limit, bench, pair):
    """The same task objects scored by lm-eval's own model class."""
    from lm_eval.evaluator import evaluate as lm_evaluate
    from lm_eval.models.huggingface import HFLM

    _, items = evaluate(pair, tasks=names, data=bench, limit=limit)
    with tasks.quiet():
        lm = HFLM(pretrained=pair[0], tokenizer=pair[1], batch_size=8)
        for benchmark in tasks.build(names, data=bench, shots="gpt2"):
            theirs = lm_evaluate(lm=lm, task_dict={"tasks": benchmark.tasks}, limit=limit, bootstrap_iters=0)
            mine = [item for item in items if item["task"] == benchmark.name]
            rows = theirs["samples"][benchmark.name]
            assert len(mine) == len(rows) == limit
            for a, b in zip(mine, rows):
                assert a["item"] == item_hash(b["arguments"], b["target"])
                assert a["correct"] == pytest.approx(b["acc"], abs=1e-5)
                assert a["loglikelihoods"] == pytest.approx([v for v, _ in b["filtered_resps"]], abs=2e-4)


@pytest.mark.slow
def test_mmlu_equals_lm_evals_group(bench, pair):
    """57 subtasks, weighted by size as lm-eval's group is."""
    from lm_eval.evaluator import evaluate as lm_evaluate
    from lm_eval.models.huggingface import HFLM

    record, items = evaluate(pair, tasks=["mmlu"], data=bench, limit=2)
    with tasks.quiet():
        lm = HFLM(pretrained=pair[0], tokenizer=pair[1], batch_size=16)
        (mmlu,) = tasks.build(["mmlu"], data=bench, shots="gpt2")
        theirs = lm_evaluate(lm=lm, task_dict={"tasks": mmlu.tasks}, limit=2, bootstrap_iters=0)
    rows = [row for name in mmlu.tasks for row in theirs["samples"][name]]
    assert [a["correct"] for a in items] == [b["acc"] for b in rows]
    assert record["tasks"]["mmlu"]["acc"] == pytest.approx(sum(b["acc"] for b in rows) / len(rows))
