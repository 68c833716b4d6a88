"""The logs beside this file, made by the tools themselves with models that answer by chance.

    python make.py lm-eval      lm-eval 0.4.13, its command line
    python make.py inspect      inspect_ai 0.3.285
    python make.py lighteval    lighteval 0.13.0

lm-eval's results file also says where it ran: only the fields that are read are kept. The rest is as the tool wrote it.
The tests read what lies here and need none of the tools.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
PLANTS = [{"question": f"Plant {n}?", "choices": ["tree", "herb", "moss"], "answer": n % 3, "passage": n // 4} for n in range(12)]  # noqa: E501  # fmt: skip
STARS = [{"question": f"Star {n}?", "choices": ["near", "far"], "answer": n % 2, "passage": n // 4} for n in range(8)]
SUMS = [{"question": f"{n} + {n} =", "answer": str(2 * n), "passage": n // 4} for n in range(8)]
WORDS = [{"text": f"one two three {word}"} for word in ("four", "five", "six", "seven", "eight", "nine")]

CHOICE = """
output_type: multiple_choice
doc_to_text: "{{question}}\\nAnswer:"
doc_to_choice: "{{choices}}"
doc_to_target: answer
metric_list: [{metric: acc}, {metric: acc_norm}]
"""
SUM = """
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["\\n"]}
filter_list:
  - {name: strict-match, filter: [{function: regex, regex_pattern: "^(\\\\d+)$"}, {function: take_first}]}
  - {name: flexible-extract, filter: [{function: regex, regex_pattern: "(\\\\d+)"}, {function: take_first}]}
metric_list: [{metric: exact_match}]
"""
WORD = """
output_type: loglikelihood
doc_to_text: "{{text.split(' ')[:-1]|join(' ')}}"
doc_to_target: "{{' ' + text.split(' ')[-1]}}"
metric_list: [{metric: perplexity, aggregation: perplexity, higher_is_better: false}, {metric: acc}]
"""
PAGE = """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: word_perplexity}, {metric: byte_perplexity}, {metric: bits_per_byte}]
"""
ANSWERS = """
import random
import lm_eval.models.dummy as dummy

def answers(self, requests, disable_tqdm=False):
    return [random.choice(["4", "it is 8", "12"]) for _ in requests]

dummy.DummyLM.generate_until = answers
"""


def lm_eval() -> None:
    tasks = {"plants": (PLANTS, CHOICE), "stars": (STARS, CHOICE), "sums": (SUMS, SUM)}
    tasks |= {"words": (WORDS, WORD), "pages": (WORDS, PAGE)}
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        for task, (rows, config) in tasks.items():
            (work / f"{task}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            head = f"task: {task}\ntest_split: test\ndataset_path: json\n"
            (work / f"{task}.yaml").write_text(
                f"{head}dataset_kwargs: {{data_files: {{test: {work}/{task}.jsonl}}}}{config}"
            )
        (work / "nature.yaml").write_text(
            "group: nature\ntask: [plants, stars]\naggregate_metric_list: [{metric: acc, weight_by_size: true}]\n"
        )
        (work / "run.py").write_text(
            f"{ANSWERS}\nimport sys\nrandom.seed(int(sys.argv.pop(1)))\n"
            "from lm_eval.__main__ import cli_evaluate\ncli_evaluate()\n"
        )
        for run, seed in (("base", 1), ("treated", 2)):
            out = HERE / "lm-eval" / run
            shutil.rmtree(out, ignore_errors=True)
            subprocess.run(
                [sys.executable, work / "run.py", str(seed), "run", "--model", "dummy", "--tasks",
                 "nature,sums,words,pages", "--include_path", work, "--log_samples", "--seed", str(seed),
                 "--output_path", out / "results.json"],
                check=True, cwd=work,
            )  # fmt: skip
            for file in out.glob("results_*.json"):
                whole = json.loads(file.read_text())
                kept = {key: whole[key] for key in ("group_subtasks", "higher_is_better", "results", "groups")}
                file.write_text(json.dumps(kept, indent=1) + "\n")


def inspect() -> None:
    from inspect_ai import Task, eval
    from inspect_ai.dataset import MemoryDataset, Sample
    from inspect_ai.model import ModelOutput, get_model
    from inspect_ai.scorer import choice, includes, match
    from inspect_ai.solver import generate, multiple_choice

    async def count(*_: object, **__: object) -> int:
        return 1  # mockllm would fetch a tokenizer to count

    sums = [Sample(id=n, input=r["question"], target=r["answer"], metadata={"passage": r["passage"]}) for n, r in enumerate(SUMS)]  # noqa: E501  # fmt: skip
    stars = [Sample(id=f"star-{n}", input=r["question"], choices=r["choices"], target="AB"[r["answer"]]) for n, r in enumerate(STARS)]  # noqa: E501  # fmt: skip
    for run, seed in (("base", 1), ("treated", 2)):
        out = HERE / "inspect" / run
        shutil.rmtree(out, ignore_errors=True)
        rng = random.Random(seed)

        def answer(*_: object, rng: random.Random = rng) -> ModelOutput:
            return ModelOutput.from_content(
                "mockllm/model", rng.choice(["ANSWER: A", "ANSWER: B", "4", "it is 8", "12"])
            )

        model = get_model("mockllm/model", custom_outputs=answer, memoize=False)
        type(model.api).count_tokens = type(model.api).count_text_tokens = count
        tasks = [
            Task(dataset=MemoryDataset(sums), solver=generate(), scorer=[match(), includes()], name="sums"),
            Task(dataset=MemoryDataset(stars), solver=multiple_choice(), scorer=choice(), name="stars", epochs=2),
        ]
        eval(tasks, model=model, log_dir=str(out), display="none", max_samples=1)


def lighteval() -> None:
    import datasets
    from lighteval.logging.evaluation_tracker import EvaluationTracker
    from lighteval.metrics.metrics import Metrics
    from lighteval.models.dummy.dummy_model import DummyModel, DummyModelConfig
    from lighteval.models.model_output import ModelResponse
    from lighteval.pipeline import ParallelismManager, Pipeline, PipelineParameters
    from lighteval.tasks.lighteval_task import LightevalTask, LightevalTaskConfig
    from lighteval.tasks.registry import Registry
    from lighteval.tasks.requests import Doc

    def star(line: dict, task_name: str) -> Doc:
        return Doc(query=line["question"], choices=line["choices"], gold_index=line["answer"], task_name=task_name,
                   specific={"passage": line["passage"]})  # fmt: skip

    def added(line: dict, task_name: str) -> Doc:
        return Doc(query=line["question"], choices=[line["answer"]], gold_index=0, task_name=task_name)

    rows = {"stars": STARS, "sums": SUMS}
    LightevalTask.download_dataset_worker = staticmethod(
        lambda task: datasets.DatasetDict(test=datasets.Dataset.from_list(rows[task.config.name]))
    )
    configs = [
        LightevalTaskConfig(name=name, prompt_function=prompt, hf_repo="local", hf_subset="default", metrics=[metric],
                            hf_avail_splits=["test"], evaluation_splits=["test"], generation_size=4,
                            stop_sequence=["\n"])
        for name, prompt, metric in (
            ("stars", star, Metrics.loglikelihood_acc), ("sums", added, Metrics.exact_match),
        )
    ]  # fmt: skip
    # the registry would load every task it knows, and one of them fetches a file
    Registry.load_all_task_configs = staticmethod(lambda **_: {config.name: config for config in configs})
    for run, seed in (("base", 1), ("treated", 2)):
        out = HERE / "lighteval" / run
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        rng = random.Random(seed)
        DummyModel.greedy_until = lambda self, docs, rng=rng: [
            ModelResponse(text=[rng.choice(["4", "8", "12"])]) for _ in docs
        ]
        with tempfile.TemporaryDirectory() as name:
            settings = DummyModelConfig(model_name="dummy", seed=seed, cache_dir=f"{name}/cache")
            pipeline = Pipeline(
                tasks="stars|0,sums|0",
                evaluation_tracker=EvaluationTracker(output_dir=name, save_details=True),
                pipeline_parameters=PipelineParameters(launcher_type=ParallelismManager.NONE),
                model_config=settings,
            )
            pipeline.evaluate()
            pipeline.save_and_push_results()
            for file in Path(name).rglob("details_*.parquet"):
                shutil.copy(file, out / file.name.replace("|", "-"))  # no such sign in a name on Windows


if __name__ == "__main__":
    {"lm-eval": lm_eval, "inspect": inspect, "lighteval": lighteval}[sys.argv[1]]()
