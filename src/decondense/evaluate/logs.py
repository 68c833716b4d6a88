"""Evaluation logs of any origin as columns: ids, scores, a hash of what was asked. ``readers.py`` reads them."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..records import Evaluation
from ..words import nearest, quoted, several
from .directions import direction
from .items import TEXT, EvaluatedRun, log_shares

USUAL = ("acc", "exact_match", "accuracy", "em", "score")
"""Where no metric is named, the first of these that a task has is compared, or else the task's first."""
ROUNDING = 1e-6
"""Sums of probabilities in single precision lie so far beyond 1."""


@dataclass
class Wanted:
    """What to take out of a log: the first of these ``metrics`` that a task has, the outcome after this ``filter``
    (lm-eval), the field that groups the items, and whether more of the metric is better, where the user says so."""

    metrics: tuple[str, ...] = ()
    filter: str | None = None
    cluster: str | None = None
    higher_is_better: bool | None = None


@dataclass
class Scores:
    """One task of one run: an entry per item in every column. ``given``: the scores as they stand in the log;
    ``likelihood``: log-likelihood of what is right, in nats; ``hashes``: way of hashing → hashes of what was asked,
    computed when needed; ``chance``: what guessing would score; ``higher_is_better``: what the log or the user says of
    the metric."""

    ids: list[str]
    given: np.ndarray | None
    likelihood: np.ndarray | None = None
    hashes: Mapping[str, Callable[[], list[str]]] = field(default_factory=dict, repr=False)
    clusters: list[str] | None = None
    metric: str = ""
    chance: float = 0.0
    higher_is_better: bool | None = None

    @property
    def better_higher(self) -> bool | None:
        """Whether more of the metric is better: where neither log nor user says so, by its name; None if not known."""
        return direction(self.metric) if self.higher_is_better is None else self.higher_is_better

    @property
    def lower(self) -> bool:
        """Whether the metric is taken as better when lower."""
        return self.better_higher is False

    @property
    def score(self) -> np.ndarray | None:
        """The scores, better when higher."""
        return -self.given if self.given is not None and self.lower else self.given


@dataclass
class Log:
    """One run: its tasks, and a ``fingerprint`` that its copies share. ``record``: of an evaluation by decondense."""

    path: str
    tool: str
    tasks: dict[str, Scores] = field(repr=False)
    fingerprint: str
    model: str = ""
    seed: str | None = None
    record: Evaluation | None = field(default=None, repr=False)
    notes: list[str] = field(default_factory=list)
    label: str = ""  # names the run among those it is compared with

    @property
    def training_seed(self) -> str | None:
        seed = self.seed if self.record is None else self.record.checkpoint.training_seed
        return None if seed is None else str(seed)


def check(log: Log) -> None:
    """Refuse a log without items, with an id that occurs twice in a task, or with scores that are not finite."""
    if not any(scores.ids for scores in log.tasks.values()):
        raise ValueError(f"{log.path!r} must hold items, got none: give a log that was finished.")
    for task, scores in log.tasks.items():
        repeated = [name for name, count in Counter(scores.ids).items() if count > 1]
        if repeated:
            raise ValueError(
                f"an item must occur once in {task!r} of {log.path!r}, but {several(len(repeated), 'item')} "
                f"{named(repeated)} occur more often: leave the copies out."
            )
        for values in (scores.score, scores.likelihood):
            # 1e100: squares of much larger values would be infinite
            wrong = [] if values is None else np.flatnonzero(~(np.abs(values) <= 1e100)).tolist()
            if wrong:
                raise ValueError(
                    f"every score must be a finite number of at most 1e100, but {len(wrong)} of the {len(scores.ids)} "
                    f"of {task!r} in {log.path!r} are not {named([scores.ids[i] for i in wrong])}: score these items, "
                    "or leave them out of all runs."
                )


def named(ids: Sequence[str], most: int = 3) -> str:
    return f"({', '.join(ids[:most])}{', …' if len(ids) > most else ''})"


# -- for all readers -----------------------------------------------------------------------------------------


def others(names: Iterable[str], chosen: str) -> str:
    return ", ".join(name for name in names if name != chosen)


def hashed(*files: Path) -> str:
    """Hash the content of the files, one after the other."""
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as content:
            hashlib.file_digest(content, lambda: digest)
    return digest.hexdigest()[:16]


def beyond_shares(scores: np.ndarray) -> str:
    """From where to where scores go that are not all between 0 and 1, in words; "" where they are."""
    if not np.any((scores < -ROUNDING) | (scores > 1 + ROUNDING)):
        return ""
    return f"from {np.nanmin(scores):g} to {np.nanmax(scores):g}".replace("-", "−")


def pick(available: Iterable[str], wanted: Wanted, task: str, path: Path) -> str:
    """Which of a task's metrics is compared; "" where there is none at all."""
    names = list(available)
    for name in wanted.metrics or USUAL:
        if name in names:
            return name
    if wanted.metrics and names:
        raise ValueError(
            f"task {task!r} of {str(path)!r} must have the metric {' or '.join(wanted.metrics)}, got "
            f"{', '.join(names)}: {nearest(wanted.metrics[0], names)}"
        )
    return names[0] if names else ""


def field_of(rows: Sequence[Any], get: Callable[[Any], Any], name: str | None, path: Path) -> list[str] | None:
    """The field ``name`` of every row as text; ``None`` where no field is asked for."""
    if name is None:
        return None
    try:
        return [str(get(row)[name]) for row in rows]
    except (KeyError, TypeError) as error:
        raise unknown_field(name, get(rows[0]) or (), path) from error


def unknown_field(name: str, known: Iterable[Any], path: Path) -> ValueError:
    return ValueError(
        f"--cluster must be a field of every item, but {name!r} is not in {str(path)!r}: known are "
        f"{', '.join(map(str, known)) or 'none'}."
    )


def one_run(path: Path, files: Sequence[Path], task_of: Callable[[Path], str]) -> dict[str, Path]:
    """Task → its file; the files of several runs are refused."""
    folders = sorted({str(file.parent) for file in files})
    if len(folders) > 1:
        raise ValueError(
            f"{str(path)!r} must hold the log of one run, got {len(folders)} folders {named(folders, 2)}: name one."
        )
    by_task: dict[str, Path] = {}
    for file in files:
        other = by_task.setdefault(task := task_of(file), file)
        if other is not file:
            raise ValueError(
                f"{str(path)!r} must hold a task once, got {task!r} in {other.name} and {file.name}: name the files to "
                "compare, or move one away."
            )
    return by_task


WORDS = dict.fromkeys(("c", "correct", "y", "yes", "true"), 1.0) | {"p": 0.5, "partial": 0.5}
WORDS |= dict.fromkeys(("i", "incorrect", "n", "no", "false"), 0.0)
"""Scores that are words, in any case; the letters are those of inspect_ai (its N is no answer)."""


def numbers(values: Iterable[Any], task: str, path: Path) -> list[float]:
    """Scores as numbers: words and booleans too, NaN for what is missing; any other word is refused."""
    found = []
    for value in values:
        try:
            if isinstance(value, str):
                value = WORDS.get(value.strip().lower(), value.strip() or None)
            found.append(math.nan if value is None else float(value))
        except TypeError:
            found.append(math.nan)
        except ValueError:
            raise ValueError(
                f"a score must be a number or one of {', '.join(WORDS)}, got {quoted(value)} in {task!r} of "
                f"{str(path)!r}: write it as a number between 0 and 1."
            ) from None
    return found


# -- ours ----------------------------------------------------------------------------------------------------


def from_run(run: EvaluatedRun, wanted: Wanted) -> Log:
    tasks = {}
    for task, items in run.items.items():
        score, metric, is_text = None, "", task.startswith(TEXT)
        if not is_text:
            normed = all(item["acc_norm"] is not None for item in items)
            metric = pick(["acc", "acc_norm"] if normed else ["acc"], wanted, task, Path(run.path))
            column: Literal["correct", "acc_norm"] = "correct" if metric == "acc" else "acc_norm"
            score = np.array([item[column] for item in items], dtype=np.float64)
        has_likelihoods = all(item["loglikelihoods"] and (item["gold"] or is_text) for item in items)
        choices = [len(item["loglikelihoods"] or ()) / max(1, len(item["gold"] or ())) for item in items]
        tasks[task] = Scores(
            ids=[item_id(task, item["subtask"], item["doc_id"]) for item in items],
            given=score,
            likelihood=log_shares(items) if has_likelihoods else None,
            hashes={"prompt": partial(list, [item["item"] for item in items])},
            clusters=field_of(items, lambda item: item, wanted.cluster, Path(run.path)),
            metric=metric,
            chance=chance_of(choices),
        )
    record = run.record
    return Log(run.path, "decondense", tasks, record.model.weights, record.model.description, None, record)


def chance_of(choices: Sequence[float]) -> float:
    """What guessing scores, from each item's number of choices per right one; 0 for a task without choices."""
    return float(np.mean([1 / n for n in choices])) if choices and min(choices) > 1 else 0.0


def item_id(task: str, subtask: str, number: Any) -> str:
    return str(number) if subtask in (task, "") else f"{subtask}/{number}"
