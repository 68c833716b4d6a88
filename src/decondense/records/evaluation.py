"""Benchmarks on one model, in full and in short form, and two sets of evaluations compared on the same items."""

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
    """`weights` is a fingerprint: the same for a copy, different for another training seed."""

    name: str
    description: str
    weights: str
    parameters: int
    dtype: str
    device: str | None = None


class Checkpoint(Part):
    """The training run and step that the weights are from, and how they were chosen. `place` is a hash of the run's
    path, `folder` the name inside it; a model that is in no folder has neither."""

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
    """`correct` is a string of 0 and 1, or a list of numbers if the task is graded; `log_share` is float16 in base64;
    `items` is a hash of the prompts in their order."""

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
    """treated − base on one task or on the average of tasks. `signal_to_noise`, of a task: how far its scores lie above
    chance, divided by the standard error of the difference. Further fields where they apply: `gained` and `lost` items,
    `pairs` of seeds, `se`, `seed_se`, `item_se`, `seed_sd`, `df`, `bootstrap`."""

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
    """treated − base on the average in which every task has its own weight."""

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
        """Return a row per task and, with several tasks, for their averages; scores as fractions."""
        return differences(self)

    @property
    def arms(self) -> str:
        """Say for a title what was compared."""
        base, treated = self.seeds
        return "two checkpoints" if self.claim == "checkpoints" else f"{base} base and {treated} treated seeds"


AVERAGE, WEIGHTED = "average", "average by S/N"


def differences(part: Significance | Differences) -> list[Section]:
    """Return a row for each task and, with several tasks, one for their average and, where it is known, one for their
    average weighted by signal to noise."""
    rows = [task.model_dump() for task in part.tasks]
    if part.macro is not None and len(rows) > 1:
        rows.append(part.macro.model_dump(exclude={"weighted"}) | {"task": AVERAGE})
        if part.macro.weighted is not None:
            rows.append(part.macro.weighted.model_dump(exclude={"weights"}) | {"task": WEIGHTED})
    return rows
