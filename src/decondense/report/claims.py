"""The head of the page: claim by claim the verdict, the effect with its interval as a small bar, and the evidence."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, FiniteFloat, ValidationError

from ..records import Study
from ..words import several, signed


class _Decision(BaseModel):
    """A `stats.verdicts.Decision` as it is written into `estimate`; a section without a verdict is not one."""

    verdict: str
    estimate: FiniteFloat
    low: FiniteFloat | None = None
    high: FiniteFloat | None = None
    n: int
    unit: str
    level: float = 0.95


@dataclass(frozen=True)
class Effect:
    """A number with its interval; `words` say what it is. `place` is in percent of the bar's width, 0 in the middle."""

    words: str
    value: float
    low: float | None
    high: float | None

    def place(self, value: float) -> float:
        reach = 1.1 * max(abs(x) for x in (self.value, self.low, self.high) if x is not None) or 1.0
        return round(50 + 50 * value / reach, 1)

    @property
    def text(self) -> str:
        ends = [] if self.low is None or self.high is None else [self.low, self.high]
        largest = max(abs(x) for x in (self.value, *ends))
        digits = 2 if largest >= 0.1 else 3 if largest >= 0.01 else 4
        digits += any(x and not round(x, digits) for x in ends)  # no end may round to 0, which hides its side
        value, *end_texts = (signed(x, digits) for x in (self.value, *ends))
        return value + (f" [{', '.join(end_texts)}]" if ends else "")


@dataclass(frozen=True)
class Claim:
    """A line of the table; `effect` is None where the study decides by something other than one number."""

    name: str
    question: str
    verdict: str
    effect: Effect | None
    evidence: str
    parts: str = ""
    """The verdicts by trend and by level, where they differ."""


def claim_of(record: Study) -> Claim:
    effect = None
    evidence = several(len(record.runs), "run") if record.runs else "calculated"
    if (found := _decision(record)) is not None:
        words, decision = found
        note = "" if decision.level == 0.95 or decision.low is None else f"; {100 * decision.level:.3g} % interval"
        effect = Effect(words + note, decision.estimate, decision.low, decision.high)
        evidence = several(decision.n, decision.unit)
    if record.scale == "smoke" and record.runs:  # a calculation is the same at every scale
        evidence += " at smoke scale, which checks the code, not the claim"
    return Claim(record.claim, record.question, record.verdict, effect, evidence, parted(record))


def parted(record: Study) -> str:
    """Return the verdicts by the trend and by the level, if a study has both and they differ; else ""."""
    match record.estimate.get("verdicts"):
        case {"trend": trend, "level": level} if trend != level:
            return f"by the trend over depth {trend}, by the level {level}"
    return ""


def _decision(record: Study) -> tuple[str, _Decision] | None:
    """Return (name, decision) of the decision at or below the path of the study's effect; None for a study that names
    no effect. Decisions with an interval come before those without, then those with the study's verdict."""
    if record.shown is None or not record.shown.path:
        return None
    value: Any = record.estimate
    for part in record.shown.path:
        value = value.get(part) if isinstance(value, dict) else None
    if not (decisions := list(_decisions(value))):
        return None
    path, one = min(decisions, key=lambda entry: (entry[1].low is None, entry[1].verdict != record.verdict))
    return ", ".join([record.shown.words, *(part.replace("_", " ") for part in path)]), one


def _decisions(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], _Decision]]:
    if not isinstance(value, dict):
        return
    try:
        yield path, _Decision.model_validate(value)
    except ValidationError:
        for key, inner in value.items():
            yield from _decisions(inner, (*path, str(key)))


def place_of(claim: str) -> tuple[int, str]:
    """Sort key of a claim: the paper's claims in their order, then the other questions, the theory last."""
    rank = 0 if re.match(r"C\d", claim) else 2 if claim.startswith("Appendix") else 1
    return rank, claim
