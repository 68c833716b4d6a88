"""Table 4 of the paper, small: does a loss on the hidden states help a model that is trained from nothing?

What `screen` chose, with fresh seeds, against cross-entropy at the same learning rate, over budgets and models
(`rates` gives each its own rate). The loss of a run is known for every held-out document of every text, so a difference
has an interval over both seeds and documents (docs/statistics.md): texts take the place of tasks, documents of items,
and the average over texts is judged. The correction for all cells is Bonferroni's. Where runs measured what quantising
costs them (`train.quantised`), the table also says whether a loss lowers that cost, and where they were scored on
tasks, what it does to the scores, at the level divided by the number of scored cells; neither decides anything. Nor do
the differences of two arms that the setting `beside` names, such as of two learning rates, which are at 95 % each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from ..figures.studies import curves, effects
from ..records import Training
from ..stats.crossed import crossed_macro
from ..stats.significance import holm
from ..stats.verdicts import Decision, from_interval, interval, resolves
from ..words import amount, nearest, signed, slug
from .contrasts import BETWEEN, NONE, SMALLEST, below_everywhere, by_texts, over_documents, over_items
from .runs import MATTERS_POINTS, MATTERS_SHARE, Conclusion, Runs, Settings, by_document, cosine, quantisation
from .settings import SCALES, joined, resolved, scale_file
from .why import in_words, why

# what is reported of the tasks: column, kind of outcome, one task or all, digits and words
AVERAGE = f"Average over tasks minus cross-entropy's, points (matters from {MATTERS_POINTS:g})"
LIKELIHOOD = f"Log-likelihood of what is right, nats per item (matters from {MATTERS_SHARE:g})"
ON_TASKS = (
    ("points", "correct", None, 2, AVERAGE),
    ("nats", "log_share", None, 4, LIKELIHOOD),
    ("lambada_nats", "log_share", "lambada_openai", 4, "That of LAMBADA's last words"),
)

Cell = tuple[str, ...]  # loss, model, budget: together the name of an arm


def arms(named: Settings) -> Settings:
    """Every loss for every model and budget, named "LOSS · MODEL · TOKENS"; a model may have `budgets` of its own."""
    own = [(model, dict(shape)) for model, shape in named["models"].items()]
    placed = [(model, shape, tokens) for model, shape in own for tokens in shape.pop("budgets", named["budgets"])]
    return {
        BETWEEN.join((loss, model, amount(tokens))): joined(joined(shape, change), {"data": {"tokens": tokens}})
        for (model, shape, tokens), (loss, change) in product(placed, named["losses"].items())
    }


def tokens_saved(budgets: Sequence[float], losses: Sequence[float], at: float, reached: float) -> float:
    """The share of tokens saved against the baseline, 1 − at / needed, where `needed` is what the baseline needs to
    reach the loss `reached`: by its `losses` over `budgets`, linear in the logarithm of the tokens, and beyond the ends
    as between the two nearest. 0: it needs as many; 0.5: it needs twice as many."""
    x, y = np.log(np.asarray(budgets, float)), np.asarray(losses, float)
    if len(x) < 2 or not (np.diff(y) < 0).all() or not math.isfinite(reached):
        return math.nan
    i = int(np.clip(np.searchsorted(-y, -reached), 1, len(y) - 1))
    needed = math.exp(x[i - 1] + (reached - y[i - 1]) * (x[i] - x[i - 1]) / (y[i] - y[i - 1]))
    return 1 - at / needed


def quantised(runs: Runs, arm: str, base: str, scheme: str) -> list[float]:
    """[cost of quantising the baseline, cost for the arm minus that, low, high], with the interval over the seeds that
    measured both. Below 0, the arm's models quantise better."""
    cost = quantisation(scheme)
    costs = np.array([list(map(cost, two)) for two in runs.paired(base, arm)]).reshape(-1, 2)
    known = costs[np.isfinite(costs).all(1)]
    return [float(known[:, 0].mean()), *interval(list(known[:, 1] - known[:, 0]))] if len(known) else [math.nan] * 4


def refuse(settings: Settings) -> None:
    # a scale's own pairs may name arms that --set has left out
    scales = (resolved(scale_file("pretrain")[scale]) for scale in SCALES)
    known = {*settings["arms"], *(arm for scale in scales for arm in arms(scale["arms"]))}
    for arm in (arm for two in settings.get("beside", ()) for arm in two):
        if arm not in known:
            raise ValueError(f"beside must name pairs of arms, got {arm!r}: {nearest(arm, settings['arms'])}")


def conclude(runs: Runs, settings: Settings) -> Conclusion:
    tokens: dict[Cell, int] = {
        tuple(arm.split(BETWEEN)): joined(settings["base"], change)["data"]["tokens"]
        for arm, change in settings["arms"].items()
    }
    table = {}
    for cell in sorted(tokens, key=tokens.__getitem__, reverse=True):  # the largest budget, which decides, comes first
        arm, control = BETWEEN.join(cell), BETWEEN.join((NONE, *cell[1:]))
        both = runs.paired(control, arm)
        if cell[0] != NONE and len(both) > 1:
            pairs, diffs = by_texts(*zip(*both)), runs.differences(arm, control, by_document)
            table[cell] = (crossed_macro(pairs, paired=True), float(np.mean([b.mean() for b, _ in pairs])), diffs)
    corrected = dict(zip(table, holm([crossed.p for crossed, *_ in table.values()])))
    decisions: dict[Cell, Decision] = {}
    tasks = on_tasks(runs, table)
    columns = ["loss", "model", "tokens", "seeds", "cross_entropy", "difference", "low", "high", "level", "p", "p_holm"]
    columns += ["smallest_effect", "tokens_saved", "mean_cosine_change"]
    columns += [f"{s}_{what}" for s in runs.schemes for what in ("cross_entropy", "difference", "low", "high")]
    columns += [f"{name}_{what}" for name, *_ in ON_TASKS for what in ("difference", "low", "high") if tasks]
    columns += ["tasks_level"] if tasks else []  # of the intervals on tasks; all others are of `level`
    rows: list[list[Any]] = []
    for cell, (crossed, level, diffs) in table.items():
        (loss, model, _), difference, strict = cell, crossed.difference, 1 - 0.05 / len(table)
        decisions[cell] = from_interval(
            difference, *crossed.interval(strict), n=len(diffs), claim="less", smallest=SMALLEST, level=strict
        )
        plain_cells = [c for c in tokens if c[:2] == (NONE, model) and BETWEEN.join(c) in runs]
        plain_losses = [runs.mean(BETWEEN.join(c), by_document) for c in plain_cells]
        control = BETWEEN.join((NONE, *cell[1:]))
        saved = tokens_saved(
            [tokens[c] for c in plain_cells], plain_losses, tokens[cell], runs.mean(control, by_document) + difference
        )
        moved = float(np.mean(runs.differences(BETWEEN.join(cell), control, cosine)))
        row = [loss, model, tokens[cell], len(diffs), level, difference, *crossed.interval(0.95), 0.95]
        row += [crossed.p, corrected[cell], crossed.minimal_effect(), saved, moved]
        for scheme in runs.schemes:
            row += quantised(runs, BETWEEN.join(cell), control, scheme)
        for name, *_ in ON_TASKS if tasks else ():
            decision = tasks.get(cell, {}).get(name)
            row += [None] * 3 if decision is None else [decision.estimate, decision.low, decision.high]
        row += [next((decision.level for decision in tasks.get(cell, {}).values()), None)] if tasks else []
        rows.append(row)
    listed = "; ".join(
        f"{loss}, {model}, {amount(count)}: {signed(difference, 4)} [{signed(low, 4)}, {signed(high, 4)}]"
        f"{resolves(least)}"
        for loss, model, count, _, _, difference, low, high, _, _, _, least, *_ in rows
    )
    sentence = f"held-out loss minus cross-entropy's, nats per token over seeds and documents: {listed or 'not run'}."
    sentence += _tasks_in_words(tasks)
    beside = {(arm, other): over_documents(runs, arm, other, smallest=SMALLEST)
              for arm, other in settings.get("beside", ()) if runs.paired(arm, other)}  # fmt: skip
    told = "; ".join(f"{_minus(*two)}: {decision.words(4)}" for two, decision in beside.items())
    sentence += f" Beside the criterion, at 95 %: {told}." if told else ""
    apart = "; ".join(_minus(*two) for two in settings.get("beside", ()) if tuple(two) not in beside)
    sentence += f" Not compared, without a seed that both have: {apart}." if apart else ""
    verdict, headline, deciding = _decided(decisions, tokens)
    cells = {BETWEEN.join(cell): d for cell, d in decisions.items()}
    estimate = {"deciding": deciding, "cells": cells, "smallest": SMALLEST}
    if beside:
        # without the verdict, as no claim is about them
        parts = ("estimate", "low", "high", "n", "level")
        estimate["beside"] = {_minus(*two): {part: getattr(d, part) for part in parts} for two, d in beside.items()}
    if tasks:
        estimate["tasks"] = {BETWEEN.join(cell): decision for cell, decision in tasks.items()}
    losses, models = (list(dict.fromkeys(cell[i] for cell in tokens)) for i in (0, 1))
    # an interval over two seeds would hide everything else
    shown = [cell for cell, (*_, diffs) in table.items() if len(diffs) > 2]
    shown.sort(key=lambda cell: (models.index(cell[1]), losses.index(cell[0]), tokens[cell]))
    labels = [size if above[:2] == (loss, model) else f"{loss}, {size}"
              for above, (loss, model, size) in zip([(), *shown], shown)]  # fmt: skip
    draw = partial(
        effects, [(label, table[cell][2]) for label, cell in zip(labels, shown)],
        x="held-out loss minus cross-entropy's at the same rate, nats (right of 0: worse)", margin=SMALLEST,
        strong=[corrected[cell] < 0.05 for cell in shown], losses=[loss for loss, *_ in shown],
        groups=[_with_rate(cell, settings) for cell in shown],
        note="filled: significant over seeds and documents, after correction for all comparisons; pale: not\n"
        "dots: seeds, at least three; bars: 95 % intervals over them alone; shaded: too small to matter",
    ) if shown else None  # fmt: skip
    more = _over_budgets(runs, tokens, settings) | _over_rates(runs, tokens, settings)
    more |= _why(runs, tokens, settings, losses)
    return Conclusion(verdict, headline, sentence, columns, rows, estimate, draw, more)


def on_tasks(runs: Runs, cells: Iterable[Cell]) -> dict[Cell, dict[str, Decision]]:
    """Cell → column → the loss minus cross-entropy, for the cells in which both were scored on tasks."""
    both = {cell: (BETWEEN.join(cell), BETWEEN.join((NONE, *cell[1:]))) for cell in cells}
    seeds = {arm: runs.outcomes.get(arm, {}).keys() for arms in both.values() for arm in arms}
    scored = {cell: (arm, plain) for cell, (arm, plain) in both.items() if seeds[arm] & seeds[plain]}
    level = 1 - 0.05 / max(1, len(scored))
    found = {
        cell: {name: over_items(runs, *arms, kind=kind, level=level, only=only) for name, kind, only, *_ in ON_TASKS}
        for cell, arms in scored.items()
    }
    return {cell: {name: d for name, d in told.items() if d is not None} for cell, told in found.items()}


def _minus(arm: str, other: str) -> str:
    """A name for the difference of two arms."""
    return f"{', '.join(arm.split(BETWEEN))} minus {', '.join(other.split(BETWEEN))}"


def _tasks_in_words(tasks: Mapping[Cell, Mapping[str, Decision]]) -> str:
    """One sentence for each kind of outcome on the tasks."""
    sentences = ""
    for name, _, _, digits, words in ON_TASKS:
        cells = [f"{', '.join(cell)}: {told[name].words(digits)}" for cell, told in tasks.items() if name in told]
        sentences += f" {words}: {'; '.join(cells)}." if cells else ""
    return sentences


def _why(
    runs: Runs, tokens: Mapping[Cell, int], settings: Settings, names: Sequence[str]
) -> dict[str, Callable[[Path], object]]:
    """Figures of what a loss changes, for each model at the largest budget at which a loss has three seeds, or as many
    as any has; and at smaller budgets for losses that are in no figure yet."""
    places = sorted({cell[1:]: None for cell in tokens}, key=lambda place: -tokens[(NONE, *place)])
    runs_at = {place: _paired(runs, {c[0]: BETWEEN.join(c) for c in tokens if c[1:] == place}) for place in places}
    drawn: set[tuple[str, str]] = set()
    figures: dict[str, Callable[[Path], object]] = {}
    for place, (base, losses) in runs_at.items():
        seeds = [len(arm) for other, (_, arms) in runs_at.items() if other[0] == place[0] for arm in arms.values()]
        enough = {(place[0], loss) for loss, arm in losses.items() if len(arm) >= min(max(seeds), 3)}
        if not enough <= drawn:
            recipe, _ = _recipe((NONE, *place), settings)
            said = in_words(", ".join(place), [len(arm) for arm in losses.values()])
            figures[f"why-{slug(*place)}.png"] = partial(curves, why(base, losses, recipe, names), note=said, columns=2)
        drawn |= enough
    return figures


def _recipe(cell: Cell, settings: Settings) -> tuple[Settings, float | None]:
    """The recipe of an arm and its learning rate, where that is known."""
    recipe = joined(settings["base"], settings["arms"][BETWEEN.join(cell)])
    return recipe, recipe.get("train", {}).get("learning_rate")


def _with_rate(cell: Cell, settings: Settings) -> str:
    """The model of an arm with its learning rate, which the model's name may have."""
    _, rate = _recipe(cell, settings)
    return cell[1] if rate is None else f"{cell[1].replace(f' at {rate:g}', '')}, learning rate {rate:g}"


def _shapes(
    tokens: Mapping[Cell, int], settings: Settings, *, without: Settings
) -> dict[str, list[tuple[Cell, float]]]:
    """Arms that differ in nothing but their loss, their learning rate and `without`, each with its rate."""
    shapes: dict[str, list[tuple[Cell, float]]] = {}
    for cell in tokens:
        recipe, rate = _recipe(cell, settings)
        if rate is not None:
            shape = str(joined(recipe, joined({"loss": None, "train": {"learning_rate": None}}, without)))
            shapes.setdefault(shape, []).append((cell, rate))
    return shapes


def _over_rates(runs: Runs, tokens: Mapping[Cell, int], settings: Settings) -> dict[str, Callable[[Path], object]]:
    """A figure of where each loss ends over its learning rates, where one of them was trained at three or more."""
    panels: list[Settings] = []
    for cells in _shapes({c: n for c, n in tokens.items() if BETWEEN.join(c) in runs}, settings, without={}).values():
        losses: dict[str, dict[float, list[float]]] = {}
        for cell, rate in cells:
            losses.setdefault(cell[0], {})[rate] = runs.values(BETWEEN.join(cell), by_document)
        lines = {loss: dict(sorted(ends.items())) for loss, ends in losses.items() if len(ends) > 1}
        if max(map(len, lines.values()), default=0) > 2:
            series = {
                f"{loss} ({', '.join(str(len(some)) for some in ends.values())})": (
                    _side_by_side(list(ends), i, len(lines)), list(ends.values())
                )
                for i, (loss, ends) in enumerate(lines.items())
            }  # fmt: skip
            ticks = sorted({rate for ends in lines.values() for rate in ends})
            x = {"x": "learning rate", "scale": "log", "ticks": ticks}
            y = {"y": "held-out loss, nats per token", "series": series, "legend": "upper left"}
            panels.append({"title": f"{', '.join(cells[0][0][1:])} tokens", **x, **y})
    note = "dots: seeds, as many as the brackets say and not the same at every rate\n"
    note += "lines: means of two or more; bars: 95 % intervals over them, unpaired"
    return {"rates.png": partial(curves, panels, note=note, columns=min(2, len(panels)))} if panels else {}


def _over_budgets(runs: Runs, tokens: Mapping[Cell, int], settings: Settings) -> dict[str, Callable[[Path], object]]:
    """A figure of what each loss does over its budgets, three seeds or more, in every model that has two of them; of
    several learning rates at a budget, at the one where cross-entropy ends lowest."""
    panels: list[Settings] = []
    for cells in _shapes(tokens, settings, without={"data": {"tokens": None}}).values():
        plain = [cell for cell, _ in cells if cell[0] == NONE and len(runs.values(BETWEEN.join(cell), by_document)) > 2]
        plain.sort(key=lambda cell: runs.mean(BETWEEN.join(cell), by_document), reverse=True)
        best = {tokens[cell]: cell[1] for cell in plain}
        found: dict[str, dict[int, list[float]]] = {}
        for cell, _ in cells:
            gaps = runs.differences(BETWEEN.join(cell), BETWEEN.join((NONE, *cell[1:])), by_document)
            if cell[0] != NONE and cell[1] == best.get(tokens[cell]) and len(gaps) > 2:
                found.setdefault(cell[0], {})[tokens[cell]] = gaps
        lines = {loss: dict(sorted(ends.items())) for loss, ends in found.items() if len(ends) > 1}
        if lines:
            series = {
                loss: (_side_by_side(list(ends), i, len(lines)), list(ends.values()))
                for i, (loss, ends) in enumerate(lines.items())
            }
            ticks = sorted({budget for ends in lines.values() for budget in ends})
            x = {"x": "training tokens", "scale": "log", "ticks": ticks, "labels": list(map(amount, ticks))}
            (_, model, _), rate = cells[0]
            line = {"series": series, "line": 0.0, "legend": "upper center"}
            panels.append({"title": model.replace(f" at {rate:g}", ""), **x, **line})
    if not panels:
        return {}
    dots = [gap for panel in panels for _, values in panel["series"].values() for some in values for gap in some]
    room = 0.15 * (max(dots) - min(dots))
    shared = {"y": "held-out loss minus cross-entropy's, nats", "limits": (min(dots) - room, max(dots) + 2 * room)}
    note = "below 0 the loss helps; dots: seeds, bars: 95 % intervals over them, not corrected, cut at the edge\n"
    note += "of several learning rates the one at which cross-entropy is best"
    drawn = [{**panel, **shared} for panel in panels]
    return {"budgets.png": partial(curves, drawn, note=note, columns=min(2, len(panels)))}


def _side_by_side(places: Sequence[float], i: int, count: int) -> list[float]:
    """Places on a logarithmic axis for the i-th of several lines, so that none covers another."""
    return [place * 1.03 ** (i - (count - 1) / 2) for place in places]


def _paired(runs: Runs, arms: Mapping[str, str]) -> tuple[dict[int, Training], dict[str, dict[int, Training]]]:
    """(seed → run of cross-entropy, loss → seed → run with the same seeds), of the runs that kept what is drawn."""
    whole = {
        loss: {seed: run for seed, run in runs.table.get(arm, {}).items() if run.held_out_by and run.snapshots}
        for loss, arm in arms.items()
    }
    base = whole.pop(NONE, {})
    paired = {loss: {seed: run for seed, run in arm.items() if seed in base} for loss, arm in whole.items()}
    return base, {loss: arm for loss, arm in paired.items() if arm}


def _decided(decisions: Mapping[Cell, Decision], tokens: Mapping[Cell, int]) -> tuple[str, str, dict[str, Decision]]:
    """Judge each loss in each model at the largest budget at which it was compared; see the criterion."""
    ends = {cell[:2]: cell for cell in sorted(decisions, key=tokens.__getitem__)}
    losses: dict[str, dict[str, Decision | None]] = {loss: {} for loss, *_ in tokens if loss != NONE}
    for loss, model in product(losses, dict.fromkeys(model for _, model, _ in tokens)):
        cell = ends.get((loss, model))
        losses[loss] |= {model: None} if cell is None else {", ".join(cell[1:]): decisions[cell]}
    return below_everywhere(losses, SMALLEST)
