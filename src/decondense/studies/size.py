"""C1: inside a family, smaller models condense more.

Two kinds of families: published models, measured (any list of ids), and one trained here from nothing, whose members
differ in depth and width. The unit is the model: a family member is one number (Spearman; of a model trained with
several seeds, their mean), and windows only make that number more precise. All families share one slope, whose
interval has n − families − 1 degrees of freedom. A family of one adds nothing to it: it has a heatmap, but no dot.
The slopes of the mean cosine and of Spearman over the blocks alone are reported beside it and decide nothing. Spearman
over all states cannot be as low in a model of few layers as in one of many, once the embedding is its lowest state.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from ..figures.studies import heat_row
from ..records import Snapshot
from ..stats.verdicts import slope, trend_and_level, trend_and_level_short
from ..words import signed
from .runs import Conclusion, Runs, Settings, cosine, spearman, spearman_blocks

SCRATCH = "trained from scratch"


def measurements(settings: Settings) -> list[dict[str, Any]]:
    families = (settings.get("families") or {}).items()
    return [{"model": model, "family": family} for family, models in families for model in models]


def refuse(settings: Settings) -> None:
    if not settings.get("arms") and not settings.get("families"):
        raise ValueError("the study needs models, got no arms and no families: name some with --set families.NAME=[…].")


class Member(NamedTuple):
    """A model of a family; `snapshot` is what to draw of it."""

    family: str
    model: str
    parameters: int
    seeds: int
    spearman: float
    mean_cosine: float
    spearman_blocks: float
    snapshot: Snapshot


def members(runs: Runs) -> list[Member]:
    models = []
    for arm, trained in runs.table.items():
        trend, level, blocks = (runs.mean(arm, number) for number in (spearman, cosine, spearman_blocks))
        first = runs.of(arm)[0]
        size = first.model.parameters
        models.append(Member(SCRATCH, arm, size, len(trained), trend, level, blocks, first.snapshots[-1]))
    for one in runs.measured:
        shot, family = one.measurement, one.config["family"]
        numbers = (spearman(shot), cosine(shot), spearman_blocks(shot))
        models.append(Member(family, str(shot.model), shot.parameters or 1, 1, *numbers, shot))
    return models


def floor(states: int) -> float:
    """The least that Spearman over all states can be where the first is the lowest, as embeddings are: the others may
    fall in order, 1 − 6 Σ d² / (n (n² − 1)) with d_1 = 0 and d_i = n + 2 − 2 i, which is 1 − 2 (n − 2)/(n + 1)."""
    return 1 - 2 * (states - 2) / (states + 1)


def _name(member: Member) -> str:
    """The name of a model; of a measured one without the details that its record adds."""
    return member.model if member.family == SCRATCH else re.split(r", | \(", member.model.split("/")[-1])[0]


def _seeds(runs: Runs, member: Member, number: Callable[[Any], float]) -> list[float]:
    return runs.values(member.model, number) if member.family == SCRATCH else [number(member.snapshot)]


def conclude(runs: Runs, settings: Settings) -> Conclusion:
    models = members(runs)
    families = [m.family for m in models]
    sizes = [math.log10(m.parameters) for m in models]
    trend = slope(sizes, [m.spearman for m in models], families, claim="less")
    blocks = slope(sizes, [m.spearman_blocks for m in models], families, claim="less")
    level = slope(sizes, [m.mean_cosine for m in models], families, claim="less")
    singles = {f for f in families if families.count(f) == 1}
    several = [f for f in dict.fromkeys(families) if f not in singles]
    listed = ", ".join(several) or "no family of two"
    sentence = (
        f"for tenfold parameters ({listed}) the mean cosine changes by {level.words()}, Spearman by {trend.words(2)}"
    )
    sentence += trend.why
    for family in several:
        ends = sorted((m for m in models if m.family == family), key=lambda m: m.parameters)
        sentence += f"; {family}: {signed(ends[0].spearman, 2)} smallest, {signed(ends[-1].spearman, 2)} largest"
    if singles:
        sentence += f"; shown only: {', '.join(_name(m) for m in models if m.family in singles)}"
    verdicts = {"trend": trend.verdict, "level": level.verdict}
    sentence += f". Over the blocks alone Spearman changes by {blocks.words(2)}. {trend_and_level(**verdicts)}"
    headline = f"for tenfold parameters: {trend_and_level_short(trend, level)}"
    ordered = sorted(models, key=lambda m: (families.index(m.family), m.parameters))
    panels = [(_name(m), m.snapshot) for m in ordered]
    compared = [m for m in ordered if m.family not in singles] or ordered
    points = {
        words: [(str(m.parameters), _seeds(runs, m, number)) for m in compared]
        for words, number in (("Spearman", spearman), ("mean cosine of the blocks", cosine))
    }
    least = ("lowest, where the embedding is lowest", [floor(len(m.snapshot.mean_cosine)) for m in compared])
    limits = {"Spearman": least} if len({m.family for m in compared}) == 1 else {}  # families differ in depth
    draw = partial(heat_row, panels, points=points, x="parameters", numbers=True, limits=limits)
    estimate = {"slope": trend, "spearman_blocks": blocks, "mean_cosine": level, "verdicts": verdicts}
    columns, rows = list(Member._fields[:-1]), [list(m[:-1]) for m in models]
    return Conclusion(trend.verdict, headline, sentence, columns, rows, estimate, draw)
