"""What the commands in the documents presume to be there, in small: models, a folder of benchmarks and texts, run
folders. Nothing comes from a network."""

from __future__ import annotations

import functools
import json
import random
import shutil
from pathlib import Path
from typing import Any

from doc_commands import ROOT

EVALUATION = ROOT / "results" / "smollm2-135m-benchmarks"
ROWS = 6  # five of them can be examples for the sixth
LETTERS = {"text": ["red", "blue", "green", "white"], "label": ["A", "B", "C", "D"]}
ARC = {"question": "Which colour has the sky", "choices": LETTERS, "answerKey": "B"}
MMLU = {"question": "Which colour has the sky?", "choices": LETTERS["text"], "answer": 1}
BENCHMARKS: dict[str, tuple[str, dict[str, Any]]] = {
    "anli_r2": ("test", {"premise": "The sky is blue.", "hypothesis": "It has a colour.", "label": 0}),
    "lambada_openai": ("test", {"text": "they looked up, and above them was the sky"}),
    "openbookqa": ("test", {"question_stem": "The sky is", "choices": LETTERS, "answerKey": "B"}),
    "piqa": ("validation", {"goal": "boil water", "sol1": "heat it", "sol2": "freeze it", "label": 0}),
    "truthfulqa_mc2": (
        "validation",
        {
            "question": "Which colour has the sky?",
            "mc1_targets": {"choices": ["blue", "red"], "labels": [1, 0]},
            "mc2_targets": {"choices": ["blue", "red"], "labels": [1, 0]},
        },
    ),
    "winogrande": (
        "validation",
        {
            "sentence": "The sky was above the sea, and the _ was wet.",
            "option1": "sky",
            "option2": "sea",
            "answer": "2",
        },
    ),
    "arc_easy": ("test", ARC),
    "arc_challenge": ("test", ARC),
    "medmcqa": (
        "validation",
        {"question": "How many bones has a skull?", "opa": "1", "opb": "22", "opc": "206", "opd": "7", "cop": 1},
    ),
    "hellaswag": (
        "validation",
        {
            "activity_label": "Sky",
            "ctx_a": "They look up.",
            "ctx_b": "they",
            "endings": ["see a cloud", "see a fish", "hear it", "are below it"],
            "label": "0",
        },
    ),
    "boolq": ("validation", {"passage": "The sky is blue.", "question": "is the sky blue", "label": 1}),
}
"""Task → the split it is scored on, and a row in the hub's field names; mmlu, with its 57 subjects, is added below."""


def write_model(folder: Path) -> None:
    """A language model of a few thousand parameters, one token per byte, with a context for every prompt."""
    import torch
    from transformers import ByT5Tokenizer, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=384, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=2048,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    ByT5Tokenizer().save_pretrained(folder)


def write_data(folder: Path) -> None:
    """Benchmarks and texts as `--data` and $DECONDENSE_DATA take them."""
    from pydoc_data.topics import topics

    for task, (split, row) in BENCHMARKS.items():
        _write_rows(
            folder / task / f"{split}.jsonl", [row | {"number": n} for n in range(ROWS)]
        )  # equal rows are no examples
    rows = [MMLU | {"subject": subject} for subject in _mmlu_subjects()]
    _write_rows(folder / "mmlu" / "test.jsonl", rows)
    _write_rows(folder / "mmlu" / "dev.jsonl", rows * ROWS)
    (folder / "wikitext-2").mkdir()
    (folder / "wikitext-2" / "test.raw").write_text(topics["class"] + topics["objects"], encoding="utf-8")


def _mmlu_subjects() -> list[str]:
    import lm_eval.tasks
    import yaml

    place = Path(lm_eval.tasks.__file__).parent / "mmlu" / "default"
    files = [yaml.safe_load(file.read_text(encoding="utf-8")) for file in place.glob("mmlu_*.yaml")]
    return sorted(content["dataset_name"] for content in files)


def _write_rows(file: Path, rows: list[dict[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write_run(folder: Path) -> None:
    """A folder of `evaluate`: twenty items per task of the committed evaluation, a tenth of them answered otherwise."""
    from decondense.evaluate.items import write_items

    record = json.loads((EVALUATION / "result.json").read_text(encoding="utf-8"))
    record["model"] |= {"name": folder.name, "weights": folder.name}
    draw = random.Random(folder.name)
    items = [item | {"correct": 1 - item["correct"]} if draw.random() < 0.1 else item for item in _some_items()]
    folder.mkdir(parents=True)
    write_items(folder / "items.parquet", items)
    (folder / "result.json").write_text(json.dumps(record), encoding="utf-8")


@functools.cache
def _some_items() -> list[Any]:
    from decondense.evaluate.items import read_items

    by_task: dict[str, list[Any]] = {}
    for item in read_items(EVALUATION / "items.parquet"):
        by_task.setdefault(item["task"], []).append(item)
    return [item for items in by_task.values() for item in items[:20]]


def divide_runs(study: str, folders: list[Path]) -> None:
    """The committed runs of a study, as if each of these folders had been filled on a machine of its own."""
    runs = sorted((ROOT / "results" / "studies" / study / "runs").iterdir())
    for number, folder in enumerate(folders):
        for run in runs[number :: len(folders)]:
            shutil.copytree(run, folder / "runs" / run.name)
