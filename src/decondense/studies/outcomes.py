"""Benchmarks inside a study: the outcome of every item, packed small enough to keep, and paired afterwards.

Runs are compared only where the hash over the prompts is the same, so the i-th outcome is about the same prompt in all
of them.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from ..evaluate.items import Item, log_shares
from ..files import grouped
from ..records import Outcomes, TaskOutcomes
from .settings import Settings

OF_TASKS = ("tasks", "shots", "limit", "dtype")  # settings that outcomes depend on


def evaluate_folder(
    model: Path, settings: Settings, seed: int, *, bench: str, device: str | None, progress: Callable[..., None]
) -> Outcomes:
    """Score the model in a folder on the tasks of the settings; `progress` is that of `evaluate`."""
    from ..evaluate.harness import evaluate
    from ..models import pick_device

    on_gpu = pick_device(device).type == "cuda"  # a CPU without bfloat16 takes minutes for a sentence
    dtype, shots = settings.get("dtype") if on_gpu else None, settings.get("shots", "gpt2")
    record, items = evaluate(
        str(model), tasks=settings["tasks"], bench=bench, shots=shots, limit=settings.get("limit"), dtype=dtype,
        device=device, training_seed=seed, progress=progress,
    )  # fmt: skip
    scores = {task: round(entry.acc, 6) for task, entry in record.tasks.items()}
    perplexities = {task: entry.perplexity for task, entry in record.tasks.items() if entry.perplexity is not None}
    return Outcomes(
        schema=Outcomes.reads[0],
        scores=scores | {f"{task} perplexity": round(value, 4) for task, value in perplexities.items()},
        outcomes={task: pack(rows) for task, rows in grouped((item["task"], item) for item in items).items()},
        weights=record.model.weights,
        dtype=record.model.dtype,
        settings={key: settings.get(key) for key in OF_TASKS},
    )


def pack(items: Sequence[Item]) -> TaskOutcomes:
    """The items of one task, in the order of the evaluation."""
    order = hashlib.sha256("\n".join(f"{i['subtask']} {i['item']}" for i in items).encode()).hexdigest()[:16]
    correct = [float(i["correct"]) for i in items]
    zero_or_one = all(c in (0.0, 1.0) for c in correct)
    packed_correct = "".join(str(int(c)) for c in correct) if zero_or_one else [round(c, 5) for c in correct]
    packed = TaskOutcomes(n=len(items), items=order, correct=packed_correct)
    if all(i["loglikelihoods"] and i["gold"] for i in items):
        shares = log_shares(items).astype("<f2")
        packed.log_share = base64.b64encode(shares.tobytes()).decode("ascii")
    return packed


def unpack(packed: TaskOutcomes, kind: str = "correct") -> np.ndarray:
    """(items,) of what counted as right, or of the log-likelihood of what is right ("log_share")."""
    if kind == "log_share":
        return np.frombuffer(base64.b64decode(packed.log_share or ""), dtype="<f2").astype(np.float64)
    return np.array([float(c) for c in packed.correct])


def paired_outcomes(
    base: Sequence[Outcomes], treated: Sequence[Outcomes], *, kind: str = "correct"
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """task → (base, treated), each (seeds, items), as `stats.significance.analyse` takes them.

    `kind`: "correct", or "log_share" for the tasks that have it. Copies of one model are refused, and so are different
    items.
    """
    for arm in (base, treated):
        if len({run.weights for run in arm}) < len(arm):
            raise ValueError("two seeds of one arm have the same weights: a copy is not another seed; leave it out.")
    runs = [*base, *treated]
    result = {}
    for task in runs[0].outcomes:
        packed = [run.outcomes.get(task) for run in runs]
        if any(one is None or getattr(one, kind) is None for one in packed):
            continue
        if len({one.items for one in packed if one is not None}) > 1:
            raise ValueError(
                f"the runs must have the same items of {task!r}, but they differ: evaluate all runs with the same "
                "benchmark files."
            )
        arms = [np.array([unpack(run.outcomes[task], kind) for run in arm]) for arm in (base, treated)]
        result[task] = (arms[0], arms[1])
    return result
