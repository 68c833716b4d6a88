"""Benchmarks on one model, the same in the small, and two sets of evaluations on the same items."""

from __future__ import annotations

import base64
import binascii
from typing import Literal

from pydantic import Field, model_validator

from .base import Number, Open, Part, Record, Section


class EvaluatedTask(Open):
    items: int
    acc: float
    stderr: Number
    graded: bool = False
    perplexity: Number = None
    acc_norm: Number = None
    ece: Number = None


class EvaluatedModel(Open):
    """`weights` is a fingerprint: a copy has the same, another training seed has not."""

    name: str
    description: str
    weights: str
    parameters: int
    dtype: str
    device: str | None = None


class Checkpoint(Part):
    """Of which training run and step the weights are, and how they were chosen. `place` is a hash of the run's path,
    `folder` the name inside it; a model that lies in no folder has neither."""

    selected_by: str
    step: int | None = None
    steps: int | None = None
    final: bool | None = None
    run: str | None = None
    place: str | None = None
    folder: str | None = None
    training_seed: int | None = None


class Evaluation(Record, reads=("decondense.evaluation/1",)):
    model: EvaluatedModel
    settings: Section
    data: str
    checkpoint: Checkpoint
    tasks: dict[str, EvaluatedTask]
    macro_average: Number
    texts: dict[str, Section]
    notes: list[str]
    versions: dict[str, str]

    def lines(self) -> list[Section]:
        return [{"task": name} | task.model_dump() for name, task in self.tasks.items()]


class TaskOutcomes(Part):
    """`correct` is a string of 0 and 1, or numbers where the task is graded; `log_share` float16 in base64; `items` a
    hash over the prompts in their order."""

    n: int
    items: str
    correct: str | list[float]
    log_share: str | None = None

    @model_validator(mode="after")
    def _one_of_each_item(self) -> TaskOutcomes:
        if len(self.correct) != self.n:
            raise ValueError(f"{len(self.correct)} outcomes of {self.n} items")
        if not all(c in ("0", "1") if isinstance(c, str) else 0 <= c <= 1 for c in self.correct):
            raise ValueError("an outcome is neither 0 nor 1 nor between them")
        try:
            shares = None if self.log_share is None else len(base64.b64decode(self.log_share, validate=True)) / 2
        except binascii.Error as error:
            raise ValueError("log_share is no base64") from error
        if shares not in (None, self.n):
            raise ValueError(f"{shares:g} log-likelihoods of {self.n} items")
        return self


class Outcomes(Record, reads=("decondense.outcomes/1",)):
    scores: dict[str, float]
    outcomes: dict[str, TaskOutcomes]
    weights: str
    dtype: str
    settings: Section = Field({})

    def lines(self) -> list[Section]:
        return [{"task": name, "acc": self.scores.get(name), "items": t.n} for name, t in self.outcomes.items()]


class Difference(Open):
    """treated − base on one task, or on their average. `signal_to_noise`: of a task, how far its scores lie above
    chance over the standard error of the difference. More where it applies: `gained` and `lost` items, the `pairs` of
    seeds, `se`, `seed_se`, `item_se`, `seed_sd`, `df`, `bootstrap`."""

    items: int = Field(gt=0)
    base: float
    treated: float
    base_seeds: list[float]
    treated_seeds: list[float]
    difference: float
    low: Number
    high: Number
    p: float
    test: str
    significant: bool
    smallest_effect: Number = None
    p_holm: Number = None
    seed_sd: Number = None
    signal_to_noise: Number = None


class TaskDifference(Difference):
    task: str


class WeightedDifference(Difference):
    """Of the average in which every task has its own weight."""

    weights: dict[str, float]


class AverageDifference(Difference):
    tasks: int
    weighted: WeightedDifference | None = None


class Differences(Part):
    tasks: list[TaskDifference]
    macro: AverageDifference | None


class Significance(Record, reads=("decondense.significance/1",)):
    base: list[Section]
    treated: list[Section]
    seeds: tuple[int, int]
    paired: bool
    claim: Literal["checkpoints", "training"]
    alpha: float
    power: float
    settings: Section = Field({})
    tasks: list[TaskDifference]
    macro: AverageDifference | None
    likelihood: Differences | None
    ranks: Section | None = None
    notes: list[str]
    verdict: str

    def lines(self) -> list[Section]:
        """A row per task and, where there are several, for their averages; scores as fractions."""
        return differences(self)

    @property
    def arms(self) -> str:
        """What was compared, for a title."""
        base, treated = self.seeds
        return "two checkpoints" if self.claim == "checkpoints" else f"{base} base and {treated} treated seeds"


AVERAGE, WEIGHTED = "average", "average by S/N"


def differences(part: Significance | Differences) -> list[Section]:
    """A row for each task and, where there are several, one for their average, and one for that weighted by signal to
    noise where it is known."""
    rows = [task.model_dump() for task in part.tasks]
    if part.macro is not None and len(rows) > 1:
        rows.append(part.macro.model_dump(exclude={"weighted"}) | {"task": AVERAGE})
        if part.macro.weighted is not None:
            rows.append(part.macro.weighted.model_dump(exclude={"weights"}) | {"task": WEIGHTED})
    return rows
