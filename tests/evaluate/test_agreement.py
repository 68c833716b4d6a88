"""Item by item, the same as lm-eval: its evaluator in memory, and its own command line on the same data."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import pytest
from by_hand import script
from processes import launch

from decondense.evaluate import tasks
from decondense.evaluate.harness import evaluate
from decondense.evaluate.items import item_hash
from decondense.insides.lm_eval import quiet

LIMIT = 12


# does the same for all items on a GPU
SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "agree_with_lm_eval.py"


@pytest.fixture(scope="module")
def command_line(bench, stories, tmp_path_factory):
    """What lm-eval's command line says of piqa, arc_easy (1 shot) and lambada_openai: task → its samples."""
    folder, agree = tmp_path_factory.mktemp("lm_eval"), script(SCRIPT)
    found = agree.write_definitions(["piqa", "arc_easy", "lambada_openai"], bench, "gpt2", folder)
    options = argparse.Namespace(model=stories, device="cpu", batch_size=8, limit=LIMIT)

    def forked(command, env):
        """`python -c CODE WORD…` without importing torch and transformers once more."""
        (folder / "command.py").write_text(command[2])
        return launch(1, folder / "command.py", *command[3:], **env)

    agree.run_lm_eval(list(found), folder, options, forked)
    return agree.read_samples(folder)


def test_three_tasks_equal_lm_evals_command_line(command_line, bench, stories):
    assert set(command_line) == {"piqa", "arc_easy", "lambada_openai"}
    record, items = evaluate(stories, tasks=list(command_line), bench=bench, limit=LIMIT, device="cpu")
    for name, theirs in command_line.items():
        mine = [item for item in items if item["task"] == name]
        assert len(mine) == len(theirs) == LIMIT
        found = script(SCRIPT).compare(mine, theirs)
        assert (found["different_items"], found["different_outcomes"]) == (0, 0)
        assert found["largest_gap"] < 2e-4
        for a, b in zip(mine, theirs):
            assert a["greedy"] == [str(greedy) == "True" for _, greedy in b["filtered_resps"]]
        assert record.tasks[name].acc == pytest.approx(sum(float(b["acc"]) for b in theirs) / LIMIT)
    perplexity = [float(b["perplexity"]) for b in command_line["lambada_openai"]]
    assert record.tasks["lambada_openai"].perplexity == pytest.approx(math.exp(-sum(perplexity) / LIMIT), rel=1e-4)


@pytest.mark.slow
def test_all_ten_equal_lm_evals_command_line(bench, stories, tmp_path):
    """Two items of each, and of each of mmlu's 57 subjects."""
    agree = script(SCRIPT)
    record, items = evaluate(stories, tasks="paper", bench=bench, limit=2, device="cpu")
    found = agree.write_definitions(list(tasks.PAPER), bench, "gpt2", tmp_path)
    agree.run_lm_eval(list(found), tmp_path, argparse.Namespace(model=stories, device="cpu", batch_size=8, limit=2))
    samples = agree.read_samples(tmp_path)
    assert len(samples) == len(found) == 66
    for leaf, theirs in samples.items():
        result = agree.compare([item for item in items if item["subtask"] == leaf], theirs)
        assert (result["different_items"], result["different_outcomes"]) == (0, 0), leaf
        assert result["largest_gap"] < 2e-4
    outcomes = [item["correct"] for item in items if item["task"] == "mmlu"]
    assert record.tasks["mmlu"].acc == pytest.approx(sum(outcomes) / len(outcomes))  # weighted as lm-eval's group is


@pytest.mark.parametrize(
    ("names", "limit"),
    [(("winogrande", "openbookqa", "anli_r2", "arc_challenge", "medmcqa"), 3), (("truthfulqa_mc2",), 2)],
)
def test_the_others_equal_lm_evals_evaluator(names, limit, bench, pair):
    """The same task objects scored by lm-eval's own model class."""
    from lm_eval.evaluator import evaluate as lm_evaluate
    from lm_eval.models.huggingface import HFLM

    _, items = evaluate(pair, tasks=names, bench=bench, limit=limit)
    with quiet():
        lm = HFLM(pretrained=pair[0], tokenizer=pair[1], batch_size=8)
        for benchmark in tasks.build(names, bench, shots="gpt2"):
            theirs = lm_evaluate(lm=lm, task_dict={"tasks": benchmark.tasks}, limit=limit, bootstrap_iters=0)
            mine = [item for item in items if item["task"] == benchmark.name]
            rows = theirs["samples"][benchmark.name]
            assert len(mine) == len(rows) == limit
            for a, b in zip(mine, rows):
                assert a["item"] == item_hash(b["arguments"], b["target"])
                assert a["correct"] == pytest.approx(b["acc"], abs=1e-5)
                assert a["loglikelihoods"] == pytest.approx([v for v, _ in b["filtered_resps"]], abs=2e-4)
