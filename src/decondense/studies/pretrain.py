"""Table 4 of the paper, small: does a loss on the hidden states help a model that is trained from nothing?

Confirmed with fresh seeds: what `screen` chose, each at its own best learning rate, against cross-entropy at its own,
over budgets and models. The loss of a run is known for every held-out document of every text, so a difference has an
interval over seeds and documents both (docs/statistics.md): texts take the place of tasks, documents of items, and the
average over texts is what is judged.

Criterion, stated beforehand. The smallest effect that matters is 0.005 nats per token. At the largest budget, with 95 %
intervals corrected for all cells (Bonferroni): reproduced when for one of the losses the interval lies below −0.005 in
every model; not reproduced when for every loss it lies above −0.005 in some model; else undecided.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from ..figures.studies import curves
from ..records import Training
from ..stats.crossed import crossed_macro
from ..stats.significance import holm
from ..stats.verdicts import NOT, REPRODUCED, UNDECIDED, Decision, from_interval
from ..words import amount, signed
from .core import Conclusion, Study
from .runs import Runs, cosine
from .screen import by_document
from .settings import Settings, joined

NONE = "cross-entropy"
SMALLEST = 0.005
BETWEEN = " · "
CRITERION = (
    f"At the largest budget, for one of the losses and in every model, the 95 % interval over seeds and documents of "
    f"held-out loss minus cross-entropy's, corrected for all cells, lies below −{SMALLEST:g} nats per token; not "
    f"reproduced when for every loss it lies above −{SMALLEST:g} in some model."
)


def expanded(arms: dict[str, Any]) -> Settings:
    """Every loss for every model and budget, named "LOSS · MODEL · TOKENS"."""
    return {
        BETWEEN.join((loss, model, amount(tokens))): joined(joined(shape, change), {"data": {"tokens": tokens}})
        for (model, shape), tokens, (loss, change) in product(
            arms["models"].items(), arms["budgets"], arms["losses"].items()
        )
    }


def outcomes(base: Sequence[Training], treated: Sequence[Training]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Per text (base, treated), each (seeds, documents) of losses in nats per token. Both arms must have the same
    documents."""
    tables = [
        {
            text: np.array([[d.loss for d in run.held_out_documents or () if d.text == text] for run in arm], float)
            for text in dict.fromkeys(d.text for run in arm for d in run.held_out_documents or ())
        }
        for arm in (base, treated)
    ]
    if {text: table.shape[1] for text, table in tables[0].items()} != {t: x.shape[1] for t, x in tables[1].items()}:
        raise ValueError("the runs of two arms must have the same held-out documents, but they differ: run them again.")
    return [(tables[0][text], tables[1][text]) for text in tables[0]]


def tokens_saved(budgets: Sequence[float], losses: Sequence[float], at: float, reached: float) -> float:
    """Which share of `at` tokens the baseline would have needed on top to reach a loss: its own losses over budgets,
    linear in the logarithm of the tokens, and beyond the ends as between the two nearest. 0: as many; 0.5: the
    baseline needs twice as many."""
    x, y = np.log(np.asarray(budgets, float)), np.asarray(losses, float)
    if len(x) < 2 or not (np.diff(y) < 0).all() or not math.isfinite(reached):
        return math.nan
    i = int(np.clip(np.searchsorted(-y, -reached), 1, len(y) - 1))
    needed = math.exp(x[i - 1] + (reached - y[i - 1]) * (x[i] - x[i - 1]) / (y[i] - y[i - 1]))
    return 1 - at / needed


def conclude(runs: Runs, settings: Settings) -> Conclusion:
    cells = [tuple(arm.split(BETWEEN)) for arm in settings["arms"]]
    tokens = {arm: joined(settings["base"], settings["arms"][arm])["data"]["tokens"] for arm in settings["arms"]}
    table = {}
    for loss, model, budget in cells:
        base = runs.table.get(BETWEEN.join((NONE, model, budget)), {})
        treated = runs.table.get(BETWEEN.join((loss, model, budget)), {})
        seeds = [seed for seed in treated if seed in base]
        if loss != NONE and len(seeds) > 1:
            pairs = outcomes([base[s] for s in seeds], [treated[s] for s in seeds])
            table[loss, model, budget] = (crossed_macro(pairs, paired=True), pairs, len(seeds))
    corrected = dict(zip(table, holm([crossed.p for crossed, *_ in table.values()])))
    baseline = _baseline(runs, cells, tokens)
    decisions: dict[tuple[str, str, str], Decision] = {}
    columns = ["loss", "model", "tokens", "seeds", "cross_entropy", "difference", "low", "high", "p", "p_holm"]
    columns += ["smallest_effect", "tokens_saved", "mean_cosine_change"]
    rows: list[list[Any]] = []
    for cell, (crossed, pairs, n) in table.items():
        loss, model, budget = cell
        low, high = crossed.interval(1 - 0.05 / len(table))
        decisions[cell] = from_interval(
            crossed.difference, low, high, n=n, claim="less", smallest=SMALLEST, level=1 - 0.05 / len(table)
        )
        level = float(np.mean([b.mean() for b, _ in pairs]))
        arm, plain = (BETWEEN.join((name, model, budget)) for name in (loss, NONE))
        saved = tokens_saved(*baseline[model], tokens[arm], level + crossed.difference)
        moved = runs.mean(arm, cosine) - runs.mean(plain, cosine)
        inner = crossed.interval()
        rows.append([loss, model, tokens[arm], n, level, crossed.difference, *inner, crossed.p, corrected[cell],
                     crossed.minimal_effect(), saved, moved])  # fmt: skip
    verdict = _verdict(decisions, cells, tokens)
    words = "; ".join(
        f"{loss}, {model}, {amount(count)}: {signed(difference, 4)} [{signed(low, 4)}, {signed(high, 4)}]"
        for loss, model, count, _, _, difference, low, high, *_ in rows
    )
    sentence = f"held-out loss minus cross-entropy's, nats per token over seeds and documents: {words or 'not run'}."
    estimate = {"cells": {BETWEEN.join(cell): d for cell, d in decisions.items()}, "smallest": SMALLEST}
    draw = partial(curves, _panels(rows), note="means over seeds and documents; intervals in the table")
    return Conclusion(verdict, sentence, columns, rows, estimate, draw if rows else None)


def _baseline(
    runs: Runs, cells: Sequence[tuple[str, ...]], tokens: dict[str, int]
) -> dict[str, tuple[list[float], list[float]]]:
    """model → (budgets, cross-entropy's mean loss at each)."""
    table: dict[str, tuple[list[float], list[float]]] = {}
    for loss, model, budget in cells:
        arm = BETWEEN.join((loss, model, budget))
        x, y = table.setdefault(model, ([], []))
        if loss == NONE and arm in runs:
            x.append(tokens[arm])
            y.append(runs.mean(arm, by_document))
    return table


def _verdict(
    decisions: dict[tuple[str, str, str], Decision], cells: Sequence[tuple[str, ...]], tokens: dict[str, int]
) -> str:
    """At the largest budget of each model; see the criterion."""
    largest = {
        model: max((t, b) for (_, m, b), t in zip(cells, tokens.values()) if m == model)[1] for _, model, _ in cells
    }
    losses = {loss for loss, *_ in cells if loss != NONE}
    ends = {loss: [decisions.get((loss, model, budget)) for model, budget in largest.items()] for loss in losses}
    below = [all(d and d.high is not None and d.high < -SMALLEST for d in row) for row in ends.values()]
    above = [any(d and d.low is not None and d.low > -SMALLEST for d in row) for row in ends.values()]
    return REPRODUCED if any(below) else NOT if above and all(above) else UNDECIDED


def _panels(rows: Sequence[list[Any]]) -> list[dict[str, Any]]:
    """One per model: a loss is a line over budgets."""
    series: dict[str, dict[str, tuple[list[int], list[list[float]]]]] = {}
    for loss, model, count, _, _, difference, *_ in rows:
        x, y = series.setdefault(model, {}).setdefault(loss, ([], []))
        x.append(count)
        y.append([difference])
    common = {"x": "training tokens", "y": "held-out loss minus cross-entropy's", "scale": "log", "line": 0.0}
    return [{"title": model, "series": lines, **common} for model, lines in series.items()]


STUDY = Study(
    "pretrain", "Table 4", "Trained from nothing, does a loss on the hidden states lower the held-out loss?",
    CRITERION, conclude, arms=expanded,
)  # fmt: skip
