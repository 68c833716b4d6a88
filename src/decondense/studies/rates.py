"""Table 4 with a learning rate for each arm: does a loss do more to a model trained from nothing than another rate?

In `pretrain` a loss and cross-entropy share a rate, which may suit one of them better. Here every arm is trained at
several rates with the first seed and takes the one with the lowest held-out loss; at that rate it is compared with
cross-entropy at cross-entropy's own, over the other seeds, which had no part in the choice, and over documents, as in
`pretrain`. Arms that are not chosen need no other seed. A rate is chosen once its neighbours in the list were run; a
rate at an end of the list is reported as such, since a better one may lie beyond.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

from ..figures.studies import curves, effects
from ..files import grouped
from ..stats.verdicts import Decision
from ..words import amount, list_of
from .contrasts import BETWEEN, NONE, SMALLEST, below_everywhere, over_documents
from .runs import Conclusion, Runs, Settings, by_document, cosine
from .settings import joined

METRICS = (by_document, cosine)
Place = tuple[str, str]  # loss, model


def arms(named: Settings) -> Settings:
    """Every loss in every model at each of the model's `rates`, named "LOSS · MODEL · RATE"."""
    return {
        BETWEEN.join((loss, model, f"{rate:g}")): joined(
            joined(shape, change), {"rates": None, "train": {"learning_rate": rate}}
        )
        for (model, shape), (loss, change) in product(named["models"].items(), named["losses"].items())
        for rate in shape["rates"]
    }


def levels_of(runs: Runs, seed: int) -> dict[Place, dict[float, float]]:
    """(loss, model) → rate → held-out loss with this seed."""
    levels: dict[Place, dict[float, float]] = {}
    for arm, seeds in runs.table.items():
        loss, model, rate = arm.split(BETWEEN)
        if seed in seeds:
            levels.setdefault((loss, model), {})[float(rate)] = by_document(seeds[seed])
    return levels


def choices(runs: Runs, arms: Iterable[str], seed: int) -> dict[Place, tuple[str, bool]]:
    """(loss, model) → the arm with the lowest held-out loss in this seed, and whether its rate is an end of the list.
    Nothing is chosen where a neighbour of that rate in the list was not run with this seed."""
    listed = grouped(((loss, model), float(rate)) for loss, model, rate in (arm.split(BETWEEN) for arm in arms))
    chosen: dict[Place, tuple[str, bool]] = {}
    for place, levels in levels_of(runs, seed).items():
        rates = sorted(listed[place])
        finite = {rate: level for rate, level in levels.items() if math.isfinite(level)}
        if finite:
            best = min(finite, key=finite.__getitem__)
            at = rates.index(best)
            if all(rate in levels for rate in rates[max(0, at - 1) : at + 2]):
                chosen[place] = (BETWEEN.join((*place, f"{best:g}")), best in (rates[0], rates[-1]))
    return chosen


def conclude(runs: Runs, settings: Settings) -> Conclusion:
    first = settings["seeds"][0]
    chosen, fresh = choices(runs, settings["arms"], first), runs.without(first)
    losses, models = (list(dict.fromkeys(arm.split(BETWEEN)[i] for arm in settings["arms"])) for i in (0, 1))
    compared: dict[Place, tuple[str, str]] = {}
    for loss, model in product(losses, models):
        if loss != NONE and (loss, model) in chosen and (NONE, model) in chosen:
            both = chosen[loss, model][0], chosen[NONE, model][0]
            compared |= {(loss, model): both} if fresh.paired(*both) else {}
    level = 1 - 0.05 / max(1, (len(losses) - 1) * len(models))  # of all comparisons that are planned
    decisions = {p: over_documents(fresh, *two, smallest=SMALLEST, level=level) for p, two in compared.items()}
    ends = {loss: {model: decisions.get((loss, model)) for model in models} for loss in losses if loss != NONE}
    verdict, decided, deciding = below_everywhere(ends, SMALLEST)
    headline = f"each at its own rate, {decided}"
    named = _with_tokens(settings)
    labels = {
        (loss, model): f"{loss} at {_rate(arm)}, {named[model]} ({NONE} at {_rate(base)})"
        for (loss, model), (arm, base) in compared.items()
    }
    words = [f"{labels[place]}: {decision.words(4)}" for place, decision in decisions.items()]
    edge = [f"{loss}, {model} ({_rate(arm)})" for (loss, model), (arm, end) in chosen.items() if end]
    sentence = (
        f"each at the rate that was best with seed {first}, held-out loss minus cross-entropy's, nats per token over "
        f"the other seeds and documents: {'; '.join(words) or 'not run'}."
        + (f" The best rate is an end of the list for {list_of(edge)}." if edge else "")
    )
    estimate = {
        "deciding": deciding,
        "own_rate": {BETWEEN.join(place): decision for place, decision in decisions.items()},
        "chosen": {BETWEEN.join(place): float(_rate(arm)) for place, (arm, _) in chosen.items()},
        "smallest": SMALLEST,
    }
    apart = [(labels[place], fresh.differences(*two, by_document)) for place, two in compared.items()]
    forest = partial(
        effects, apart, x="held-out loss minus cross-entropy's, nats (right of 0: worse)",
        margin=SMALLEST, losses=[loss for loss, _ in compared], level=level,
        note=f"each at its own rate; dots: seeds; bars: {100 * level:.3g} % intervals over them alone\n"
        "shaded: too small to matter",
    )  # fmt: skip
    titles = {model: f"{name} tokens" for model, name in named.items()}
    panels = _panels(levels_of(runs, first), losses, titles)
    note = f"seed {first} alone, which chooses the rates; all axes of loss have the same span"
    draw = partial(curves, panels, note=note, columns=2) if panels else None
    table = _table(runs, fresh, first, [arm for arm, _ in chosen.values()], decisions)
    return Conclusion(verdict, headline, sentence, *table, estimate, draw, {"own-rates.png": forest} if apart else {})


def _with_tokens(settings: Settings) -> dict[str, str]:
    """Model → its name with its number of training tokens, unless the name ends with that already."""
    named = {}
    for arm, changes in settings["arms"].items():
        model, size = arm.split(BETWEEN)[1], amount(joined(settings["base"], changes)["data"]["tokens"])
        named[model] = model if model.endswith(size) else f"{model} {size}"
    return named


def _rate(arm: str) -> str:
    return arm.split(BETWEEN)[2]


def _table(
    runs: Runs, fresh: Runs, first: int, chosen: Sequence[str], decisions: Mapping[Place, Decision]
) -> tuple[list[str], list[list[Any]]]:
    """One row per arm that was run: loss and mean cosine of the seed that chooses and over the others, and the
    comparison where it was chosen."""
    columns = ["loss", "model", "rate", f"seed_{first}", f"seed_{first}_mean_cosine", "other_seeds", "held_out_loss"]
    columns += ["mean_cosine", "chosen", "difference", "low", "high", "level"]
    rows: list[list[Any]] = []
    for arm in runs.arms:
        loss, model, rate = arm.split(BETWEEN)
        own = [metric(runs.table[arm][first]) for metric in METRICS] if first in runs.table[arm] else [None, None]
        rest = [fresh.mean(arm, metric) for metric in METRICS] if arm in fresh else [None, None]
        d = decisions.get((loss, model)) if arm in chosen else None
        numbers = [d.estimate, d.low, d.high, d.level] if d is not None else [None] * 4
        rows.append([loss, model, float(rate), *own, len(fresh.of(arm)), *rest, arm in chosen, *numbers])
    return columns, rows


def _panels(
    known: Mapping[Place, Mapping[float, float]], losses: Sequence[str], titles: Mapping[str, str]
) -> list[Settings]:
    """For every model held-out loss over the rates, with the seed that was run at all of them."""
    panels: list[Settings] = []
    for model, title in titles.items():
        of = {loss: known[loss, model] for loss in losses if (loss, model) in known}
        series = {loss: (sorted(each), [[each[rate]] for rate in sorted(each)]) for loss, each in of.items()}
        ticks = sorted({rate for each in of.values() for rate in each})
        axes = {"x": "learning rate", "scale": "log", "ticks": ticks, "y": "held-out loss, nats per token"}
        panels += [{"title": title, "series": series, "names": losses} | axes] if series else []
    levels = [[level for _, points in panel["series"].values() for (level,) in points] for panel in panels]
    half = 0.55 * max((max(some) - min(some) for some in levels), default=0.0)
    for panel, some in zip(panels, levels):
        middle = (max(some) + min(some)) / 2
        panel["limits"] = (middle - half, middle + half) if math.isfinite(half) and half > 0 else None
    return panels
