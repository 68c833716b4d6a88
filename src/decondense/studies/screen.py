"""Which losses on the hidden states are worth confirming when a small model is trained from nothing?

One seed, one budget, many arms, each at the learning rates, and some at the warm-ups, that its name ends with: "ARM
warm-up 20 % @ 0.003". Names of arms of a second model begin with "MODEL: "; they are compared with its own
cross-entropy. One seed decides nothing, so the verdict is always undecided: the screen chooses what `pretrain` confirms
with fresh seeds. Two weights of one loss on the same layers count as one arm, the better one. The loss of a run is the
mean over texts of the mean over held-out documents, nats per token.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from ..figures.studies import curves
from ..records import Training, known
from ..stats.verdicts import UNDECIDED
from ..words import list_of, signed
from .contrasts import NONE
from .runs import Conclusion, Runs, Settings, by_document, cosine, quantisation
from .settings import joined, loss_of

TUNED = re.compile(r"( warm-up \d+ %)? @ .*")  # the end of a name: what is tuned for every arm


def arms(named: Settings) -> Settings:
    """Every arm at each of its `rates`, named "ARM @ RATE"."""
    return {
        f"{arm} @ {rate:g}": joined(change, {"rates": None, "train": {"learning_rate": rate}})
        for arm, change in named.items()
        for rate in change["rates"]
    }


def control_of(arm: str) -> str:
    """The name of cross-entropy for the same model, without what is tuned."""
    return arm[: arm.find(": ") + 2] + NONE if ": " in arm else NONE


def conclude(runs: Runs, settings: Settings) -> Conclusion:
    losses = {arm: runs.mean(arm, by_document) for arm in runs.arms}
    ordered = sorted(runs.arms, key=lambda arm: (math.isnan(losses[arm]), losses[arm]))
    best: dict[str, str] = {}
    for arm in ordered:
        if math.isfinite(losses[arm]):
            best.setdefault(TUNED.sub("", arm), arm)
    bases = {control_of(arm): math.nan for arm in settings["arms"]}
    bases |= {control: losses[best[control]] for control in bases if control in best}
    missing = [arm for arm in settings["arms"] if arm not in runs]
    chosen: dict[str, list[str]] = {}
    words = []
    for control, base in bases.items():
        winners: dict[tuple[Any, Any], str] = {}
        for arm in (arm for arm in best.values() if control_of(arm) == control):
            loss = loss_of(settings, arm)
            if loss["name"] != "none" and losses[arm] < base:
                winners.setdefault((loss["name"], str(loss["layers"])), arm)
        chosen[control] = list(winners.values())[:2]
        winners_listed = ", ".join(f"{arm} ({signed(losses[arm] - base, 4)})" for arm in chosen[control]) or "none"
        control_loss = f"{best[control]}: {base:.4f}" if control in best else f"{control}, not run"
        words.append(f"against {control_loss}, {'ahead so far' if missing else 'go on'}: {winners_listed}")
    rates = [arm for arm in missing if TUNED.sub("", arm) in bases]
    waits = f"; nothing is chosen before all are run: {len(missing)} of {len(settings['arms'])} arms are missing"
    ahead = [f"{TUNED.sub('', arm)} {signed(losses[arm] - bases[c], 4)}" for c in bases for arm in chosen[c]]
    headline = f"held-out loss minus cross-entropy's, nats, one seed; to be confirmed: {', '.join(ahead) or 'none'}"
    if missing:
        headline = f"{len(missing)} of {len(settings['arms'])} arms are missing, and nothing is chosen before"
    sentence = (
        f"one seed; each model at the best rate and warm-up of cross-entropy: {'; '.join(words)}"
        f"{waits if missing else ''}{f', {list_of(rates)} among them' if rates else ''}."
    )
    columns = ["arm", "loss", "minus_cross_entropy", "minus_same_schedule", "mean_cosine", "mean_cosine_last_state"]
    columns += [f"{scheme}_cost" for scheme in runs.schemes]
    rows: list[list[Any]] = []
    for arm in ordered:
        control = control_of(arm)
        same_schedule = losses.get(control + arm[len(TUNED.sub("", arm)) :], math.nan)
        others = [runs.mean(arm, metric) for metric in (cosine, _last_state, *map(quantisation, runs.schemes))]
        rows.append([arm, losses[arm], losses[arm] - bases[control], losses[arm] - same_schedule, *others])
    note = "one seed each: this chooses what is confirmed, and decides nothing"
    panels = [p for c, base in bases.items() if math.isfinite(base) for p in _panels(c, losses, settings)]
    names = list(dict.fromkeys(name for panel in panels for name in panel["series"]))  # one colour in every panel
    draw = partial(curves, [panel | {"names": names} for panel in panels], note=note) if panels else None
    estimate = {"cross_entropy": bases, "chosen": {} if missing else chosen}
    return Conclusion(UNDECIDED, headline, sentence, columns, rows, estimate, draw)


def _last_state(run: Training) -> float:
    """Mean cosine of the last state, after the final norm."""
    return known(run.snapshots[-1].mean_cosine[-1]) if run.snapshots else math.nan


def _panels(control: str, losses: Mapping[str, float], settings: Settings) -> list[Settings]:
    """Panels of one model: held-out loss over learning rates at the shortest warm-up, and over warm-ups at the best
    rate of each; a loss at its best weight. Losses tried with one warm-up alone are left out, unless all were; of the
    rest, cross-entropy and the five lowest are drawn. Two rates of cross-entropy are too few for the first panel."""
    model = control.removesuffix(NONE)
    title = model or f"{settings['base']['model'].get('architecture', 'the model')}: "
    table: dict[str, dict[tuple[float, float], float]] = {}
    for arm in settings["arms"]:
        if control_of(arm) != control or not math.isfinite(losses.get(arm, math.nan)):
            continue
        recipe = joined(settings["base"], settings["arms"][arm])
        loss, place = loss_of(settings, arm), (recipe["train"]["warmup"], recipe["train"]["learning_rate"])
        name = TUNED.sub("", arm).removeprefix(model)
        if loss["name"] != "none":
            name = f"{loss['name']} {loss['layers']}".replace("_", " ")
        cells = table.setdefault(name, {})
        cells[place] = min(losses[arm], cells.get(place, math.inf))
    tuned = {name: cells for name, cells in table.items() if len({warmup for warmup, _ in cells}) > 1} or table
    lowest = sorted(tuned, key=lambda name: min(tuned[name].values()))
    shown = {name: tuned[name] for name in [NONE, *(n for n in lowest if n != NONE)][:6] if name in tuned}
    shortest = min(warmup for cells in shown.values() for warmup, _ in cells)
    rates, warmups, taken = {}, {}, set()
    for name, cells in shown.items():
        at = sorted(rate for warmup, rate in cells if warmup == shortest)
        rates[name] = (at, [[cells[shortest, rate]] for rate in at])
        tried = sorted({warmup for warmup, _ in cells})
        best = [min((loss, rate) for (warmup, rate), loss in cells.items() if warmup == each) for each in tried]
        warmups[name] = ([100 * each for each in tried], [[loss] for loss, _ in best])
        taken |= {rate for _, rate in best}
    y, ticks = "held-out loss, nats per token", sorted({rate for at, _ in rates.values() for rate in at})
    by_rate = {"title": f"{title}warm-up {100 * shortest:g} %", "x": "learning rate", "scale": "log", "ticks": ticks}
    which = " to ".join(f"{rate:g}" for rate in sorted({min(taken), max(taken)}))
    by_warmup = {"title": f"{title}each at its best rate, {which}", "x": "warm-up, % of the steps"}
    panels: list[Settings] = [{**by_rate, "y": y, "series": rates}, {**by_warmup, "y": y, "series": warmups}]
    return panels if len(rates.get(NONE, ((), ()))[0]) > 2 else panels[1:]
