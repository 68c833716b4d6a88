"""Run benchmarks on a model and keep every item's outcome."""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .. import models
from ..files import versions
from ..insides import lm_eval as inside
from ..needs import need
from ..records import Evaluation
from ..text import TEXTS, available, open_text
from ..words import Tell, nobody
from .items import Item, item_hash, summarise
from .rows import right_of
from .task_names import names_of
from .tasks import Benchmark, bench_folder, build, data_files
from .unfinished import Parts

SELECTIONS = ("final", "held-out-loss")
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "spiece.model", "vocab.txt")


def evaluate(
    model: Any,
    *,
    tasks: str | Sequence[str] = "paper",
    bench: str | Path | None = None,
    shots: str | int = "gpt2",
    limit: int | None = None,
    text: str | Sequence[str] | None = None,
    text_tokens: int | None = None,
    seed: int = 1234,
    selected_by: str = "final",
    training_seed: int | None = None,
    revision: str | None = None,
    dtype: str | None = None,
    device: str | None = None,
    init: bool = False,
    batch_tokens: int | None = None,
    trust_remote_code: bool = False,
    partial: Path | None = None,
    progress: Tell | None = None,
) -> tuple[Evaluation, list[Item]]:
    """Score a model on benchmarks and texts.

    Args:
        model: anything ``decondense.models.load`` takes, or a pair (model, tokenizer) in memory.
        tasks: "paper" (the ten), or names of lm-eval tasks, as a list or with commas; "" for none.
        bench: folder with local files (see ``tasks.build``), or "hub"; default $DECONDENSE_BENCH, else the hub.
        shots: "gpt2", "qwen3", "zero" or a number.
        limit: the first N items of every task (every subtask for mmlu, as in lm-eval), not of a text; for trying out.
        text: names or files of texts for perplexity and bits per byte.
        text_tokens: length of the windows of a text; default the model's context, or, for a run of ``decondense train``
            with fresh weights, the length of the blocks that it was trained on.
        seed: draws the few-shot examples.
        selected_by: how the checkpoint was chosen: "final" or "held-out-loss". Never by these benchmarks.
        training_seed: recorded, so that significance can pair runs.
        partial: folder for unfinished work; a second call with the same arguments resumes from it.
        progress: called with (what, done, of).

    Returns:
        (record, items): the content of ``result.json`` and the rows of ``items.parquet``.
    """
    names, texts = check(**locals())
    folder = bench_folder(bench) if names or bench else None
    opened = _open_texts(texts, folder)
    progress = progress or nobody
    benchmarks = build(names, folder, shots=shots, seed=seed, limit=limit, progress=progress)
    load_kwargs = {"dtype": dtype, "device": device, "init": init, "seed": seed, "trust_remote_code": trust_remote_code}
    weights, tokenizer, model_record = _load(model, revision, load_kwargs)
    from .scorer import Scorer, score_text

    with inside.quiet():
        scorer = Scorer(weights, tokenizer, batch_tokens=batch_tokens)
    model_record["context"] = scorer.max_length
    settings: dict[str, Any] = {"tasks": names, "shots": shots, "limit": limit, "texts": texts}
    settings |= {"text_tokens": text_tokens, "seed": seed}
    settings |= {"batch_tokens": scorer.batch_tokens, "context": scorer.max_length}
    packages = versions("decondense", "lm_eval", "torch", "transformers", "datasets")
    resume_settings = {key: value for key, value in settings.items() if key != "tasks"}
    parts = Parts(partial, {"model": model_record, "settings": resume_settings, "lm_eval": packages["lm_eval"]})
    scorer.journal = parts.journal()
    items: list[Item] = []
    notes = [note for text in opened for note in text.notes]
    by_task: dict[str, Any] = {}
    for benchmark in benchmarks:
        read_from = data_files(benchmark)
        rows = parts.finished(benchmark.name, read_from)
        if rows is None:
            rows = _run(benchmark, scorer, limit, progress)
            parts.keep(benchmark.name, read_from, rows)
        items += rows
        by_task[benchmark.name] = summarise(rows) | {
            "shots": benchmark.shots,
            "fewshot_source": benchmark.fewshot_source,
            "versions": sorted({str(task.VERSION) for task in benchmark.tasks.values()}),
        }
        notes += _notes(benchmark, by_task[benchmark.name], scorer.max_length)
    trained_context, positions = model_record.get("trained_context"), scorer.max_length
    window = min(trained_context or positions, positions) if text_tokens is None else text_tokens
    if trained_context is not None and trained_context < positions:
        notes += _context_notes(trained_context, positions, tasks=bool(benchmarks), window=window if opened else None)
    by_text: dict[str, Any] = {}
    for source in opened:
        progress(f"reading {source.name}", 0, 1)
        scorer.progress = functools.partial(progress, source.name)
        rows, by_text[source.name] = score_text(source, scorer, tokens=window)
        items += rows
    step, steps = model_record.get("step"), model_record.get("steps")
    checkpoint = {"selected_by": selected_by, "step": step, "steps": steps, "training_seed": training_seed}
    checkpoint |= {key: model_record.get(f"training_{key}") for key in ("run", "place", "folder")}
    record = {
        "schema": Evaluation.reads[0],
        "model": model_record,
        "settings": settings,
        "data": "hub" if folder is None else "folder",
        "checkpoint": checkpoint | {"final": None if step is None or steps is None else step >= steps},
        "tasks": by_task,
        "macro_average": sum(entry["acc"] for entry in by_task.values()) / len(by_task) if by_task else None,
        "texts": by_text,
        "notes": notes,
        "versions": packages,
    }
    return Evaluation.model_validate(record), items


def check(
    model: Any, *, tasks: Any, text: Any, limit: int | None, batch_tokens: int | None, selected_by: str, **how: Any
) -> tuple[list[str], list[str]]:
    """Return the names of the tasks and of the texts. Refuse wrong options of ``evaluate``, and a name that is not a
    model's, before anything is read or any folder made."""
    need("evaluate", "evaluation")
    if selected_by not in SELECTIONS:
        raise ValueError(
            f"selected_by must be one of {', '.join(SELECTIONS)}, got {selected_by!r}: a checkpoint that was chosen by "
            "the benchmark it is scored on cannot be compared."
        )
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1 item, got {limit}: leave it out to take all items.")
    if batch_tokens is not None and batch_tokens < 1:
        raise ValueError(f"batch_tokens must be at least 1, got {batch_tokens}: leave it out for the default.")
    texts = [text] if isinstance(text, str) else list(text or ())
    names = names_of(tasks) if tasks or not texts else []
    if limit is not None and not names:
        raise ValueError(f"limit counts items of tasks, a text is scored whole, got {limit}: leave it out.")
    if isinstance(model, (str, os.PathLike)):
        models.check(model, **{key: how[key] for key in ("revision", "dtype", "trust_remote_code")})
    return names, texts


def _open_texts(texts: Sequence[str], folder: Path | None) -> list[Any]:
    """--bench names the folder of the benchmarks; named texts may lie in it or beside it."""
    opened = []
    for name in texts:
        title = name.partition(":")[0]
        places = [folder, folder.parent] if folder is not None and title in TEXTS else []
        opened.append(open_text(name, data=next((p for p in places if available(p)[title] == "folder"), None)))
    return opened


# -- the model -----------------------------------------------------------------------------------------------


def _load(model: Any, revision: str | None, options: dict[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
    """Return (model, tokenizer, what the record says of them); `options`: those of `models.load`."""
    if isinstance(model, (tuple, list)):
        if len(model) != 2:
            raise TypeError(f"a model in memory must be a pair (model, tokenizer), got {len(model)} things.")
        weights, tokenizer = model
        source = models.Source("in memory", "memory", "", type(weights).__name__)
    else:
        source = models.resolve(model, revision=revision)
        if source.kind == "folder" and not any((Path(source.location) / name).exists() for name in TOKENIZERS):
            raise ValueError(
                f"the model {str(model)!r} has no tokenizer, and benchmarks are text: save one into its folder with "
                "tokenizer.save_pretrained."
            )
        weights, tokenizer = models.load(source, **options)
    if tokenizer is None:
        raise ValueError("the model has no tokenizer, and benchmarks are text: give (model, tokenizer).")
    if not getattr(weights, "get_output_embeddings", lambda: None)():
        raise ValueError(
            f"the model must be a language model with an output head, got {type(weights).__name__}: benchmarks are "
            "scored by the likelihood of text."
        )
    model_record: dict[str, Any] = {key: getattr(source, key) for key in ("name", "description", "kind", "revision")}
    model_record |= _training_run(Path(source.location)) if source.kind == "folder" else {}
    model_record |= {
        "init": bool(options["init"]),
        "architecture": type(weights).__name__,
        "parameters": sum(p.numel() for p in weights.parameters()),
        "dtype": str(weights.dtype).removeprefix("torch."),
        "device": weights.device.type,
        "weights": models.fingerprint(weights),
    }
    return weights.eval(), tokenizer, model_record


def _training_run(folder: Path) -> dict[str, Any]:
    """Which training run a folder belongs to, so that two of its checkpoints are not taken for two seeds; and step and
    total where transformers' Trainer wrote them, so that an intermediate checkpoint is noticed. The run's place is
    stored as a hash: a path of this machine does not belong in a result."""
    path = folder.resolve()
    in_run = path.name.startswith("checkpoint-") or path.name == "model"  # as `decondense train` lays them out
    run = path.parent if in_run else path
    run = run.parent if in_run and run.name == "checkpoints" and (run.parent / "recipe.yaml").exists() else run
    run_record: dict[str, Any] = {
        "training_run": run.name,
        "training_place": hashlib.sha256(os.fsencode(run)).hexdigest()[:16],
        "training_folder": path.name if in_run else "",
    }
    run_record |= {} if (context := models.trained_context(folder)) is None else {"trained_context": context}
    try:
        state = json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))
        return run_record | {"step": int(state["global_step"]), "steps": int(state["max_steps"])}
    except (OSError, KeyError, TypeError, ValueError):
        return run_record


# -- one benchmark -------------------------------------------------------------------------------------------


@inside.templates_compiled_once()
def _run(benchmark: Benchmark, scorer: Any, limit: int | None, progress: Tell) -> list[Item]:
    from lm_eval.evaluator import evaluate as lm_evaluate

    progress(f"preparing {benchmark.name}", 0, 1)
    scorer.progress = functools.partial(progress, benchmark.name)
    with inside.quiet():
        task_dict = {"tasks": benchmark.tasks, "groups": {}}
        results = lm_evaluate(lm=scorer, task_dict=task_dict, limit=limit, bootstrap_iters=0, log_samples=True)
    items = []
    for subtask, task in benchmark.tasks.items():
        first_filter = results["samples"][subtask][0]["filter"]
        for sample in results["samples"][subtask]:
            if sample["filter"] == first_filter:
                cut = scorer.cut.get((subtask, sample["doc_id"]), 0)
                items.append(_item(benchmark.name, subtask, task, sample, cut))
        inside.forget_prompts(task)
    return items


def _item(name: str, subtask: str, task: Any, sample: dict[str, Any], cut: int) -> Item:
    answers, kind = sample["filtered_resps"], task.OUTPUT_TYPE
    scored = kind in ("multiple_choice", "loglikelihood")
    prediction, gold = str(answers[0]), None
    if kind == "multiple_choice":
        right = (task.doc_to_text if task.multiple_input else task.doc_to_target)(sample["doc"])
        gold = right_of(task, sample["doc"], right, len(answers))
        prediction = str(max(range(len(answers)), key=lambda i: answers[i][0]))
    elif kind == "loglikelihood":
        prediction, gold = str(int(answers[0][1])), [0]
    return {
        "task": name,
        "subtask": subtask,
        "doc_id": sample["doc_id"],
        "item": item_hash(sample["arguments"], sample["target"]),
        "prediction": prediction,
        "target": str(sample["target"]),
        "gold": gold,
        "correct": _score(task, sample),
        "acc_norm": None if sample.get("acc_norm") is None else float(sample["acc_norm"]),
        "loglikelihoods": [float(value) for value, _ in answers] if scored else None,
        "greedy": [bool(greedy) for _, greedy in answers] if scored else None,
        "units": [len(pair[1].encode()) for pair in sample["arguments"]] if scored else None,
        "cut": cut,
    }


def _score(task: Any, sample: dict[str, Any]) -> float:
    """``acc`` where the task has it, else its first metric that is one number per item."""
    for metric in ("acc", "exact_match", *sample["metrics"]):
        value = sample.get(metric)
        if value is not None and not isinstance(value, (tuple, list, dict, str)):
            return float(value)
    raise ValueError(
        f"task {task.config.task!r} must have a metric that is one number per item, but has "
        f"{', '.join(sample['metrics'])}: choose another task."
    )


def _notes(benchmark: Benchmark, scores: dict[str, Any], context: int) -> list[str]:
    notes = []
    if benchmark.shots and "evaluated split" in benchmark.fewshot_source:
        notes.append(
            f"{benchmark.name}: its examples ({benchmark.shots} for each item) come from {benchmark.fewshot_source}, "
            "because the data has no other split."
        )
    if "cut" in scores:
        notes.append(
            f"{benchmark.name}: {scores['cut']['items']} of {scores['items']} prompts were longer than the context of "
            f"{context} tokens and lost their beginning, up to {scores['cut']['most_tokens']} tokens; the "
            "end of the prompt and the answer are whole."
        )
    return notes


def _context_notes(trained_on: int, positions: int, *, tasks: bool, window: int | None) -> list[str]:
    """Notes on the scores of a model that was trained on blocks shorter than the context it has positions for."""
    trained = f"the model was trained on blocks of {trained_on} tokens and has positions for {positions}"
    notes = []
    if window is not None:
        longer = "longer than any it has seen: leave --text-tokens out" if window > trained_on else "as it was trained"
        notes.append(f"texts are scored in windows of {window} tokens, {longer}; {trained}.")
    if tasks:
        notes.append(f"{trained}: a prompt of more than {trained_on} tokens is longer than any it has seen.")
    return notes
