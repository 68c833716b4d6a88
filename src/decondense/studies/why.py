"""What a loss changes in the models and in their losses, seed by seed: panels for the figures of `pretrain`.

Over training: the training loss; of the last state the mean cosine and, where the runs keep them, the effective rank
and the shares of the outlier dimensions and of the direction of frequency; the noise of the gradient. At the end: the
held-out loss by the frequency of the token and by its position.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..records import Training
from ..words import amount, several
from .settings import Settings

Runs = Mapping[int, Training]  # seed → run
Values = Callable[[Training], dict[float, float]]  # of a run: place on the x axis → number


def why(base: Runs, losses: Mapping[str, Runs], settings: Settings, names: Sequence[str]) -> list[Settings]:
    """Panels for `figures.studies.curves`: `base` is cross-entropy alone, `settings` the recipe of all; `names` gives
    every arm its colour."""
    total, context = settings["data"]["tokens"], settings["data"]["context"]
    time: dict[str, Any] = {"x": f"training tokens (warm-up ends at {amount(settings['train']['warmup'] * total)})"}
    time |= {"ticks": [total * k / 4 for k in range(5)], "labels": [amount(total * k / 4) for k in range(5)]}
    tenths = {"x": "target tokens in tenths of the text, frequent → rare", "labels": [str(k) for k in range(1, 11)]}
    eighths = {"x": "position in the block", "labels": [str(context * k // 8) for k in range(0, 9, 2)]}
    by_frequency, by_position = (_lines(_by(name), losses, base) for name in ("frequency", "position"))
    both = [*by_frequency.values(), *by_position.values()]
    ends = [0.0, *(value for _, values in both for some in values for value in some)]
    held_out = {"y": "held-out loss minus cross-entropy's", "limits": (1.05 * min(ends), 1.05 * max(ends))}
    all_arms = {**losses, "cross-entropy": base}
    tried = [{"title": title, "y": y, **time, "series": _lines(of, all_arms, None)} for title, y, of in _OVER_TIME]
    over_time = [panel for panel in tried if all(places for places, _ in panel["series"].values())]
    minus_base: list[Settings] = [
        {"title": "On the way", "y": "training loss minus cross-entropy's", **time},
        {"title": "At the end, by frequency", **held_out, **tenths, "ticks": [k + 0.5 for k in range(10)]},
        {"title": "At the end, by position", **held_out, **eighths, "ticks": [0, 2, 4, 6, 8]},
    ]
    series = [_lines(_training_loss, losses, base), by_frequency, by_position]
    way, *ends_of = ({**panel, "series": one, "line": 0.0} for panel, one in zip(minus_base, series))
    for panel in over_time[:1]:  # which has the legend, on the right above its curves
        points = [(x, max(some), min(some)) for xs, values in panel["series"].values() for x, some in zip(xs, values)]
        low, high = min(point[2] for point in points), max(point[1] for point in points)
        right = max((most for x, most, _ in points if x > 0.4 * total), default=high)
        tenth = 0.1 * (high - low)
        panel["limits"] = (low - tenth / 2, max(high + tenth / 2, right + (len(all_arms) + 1) * tenth))
    panels = [way, *over_time, *ends_of]
    return [{**panel, "names": names, "band": True, "legend": panel is panels[1]} for panel in panels]


def in_words(which: str, seeds: Sequence[int]) -> str:
    """The note below a figure; `seeds`: how many each loss has."""
    count = several(max(seeds), "seed") if min(seeds) == max(seeds) else f"{min(seeds)} to {max(seeds)} seeds"
    return (
        f"{which} tokens, {count}: means, and bands from the lowest seed to the highest.\n"
        "Losses in nats per token; below 0 is ahead of cross-entropy."
    )


def _lines(of: Values, arms: Mapping[str, Runs], base: Runs | None) -> dict[str, tuple[list[float], list[list[float]]]]:
    """Arm → (places, the values of its seeds at each place), minus the value of the same seed in `base`, if given."""
    series = {}
    for name, runs in arms.items():
        rows = [of(run) for run in runs.values()]
        if base is not None:
            plain = [of(base[seed]) for seed in runs]
            rows = [{x: y - other[x] for x, y in row.items() if x in other} for row, other in zip(rows, plain)]
        places = sorted(set().union(*rows))
        series[name] = (places, [[row[x] for row in rows if x in row] for x in places])
    return series


def _shown(name: str) -> Values:
    """A number of the last state, at the snapshots that have it."""

    def values(run: Training) -> dict[float, float]:
        shots = ((shot.tokens or 0, getattr(shot, name)) for shot in run.snapshots)
        return {tokens: states[-1] for tokens, states in shots if states and states[-1] is not None}

    return values


def _probed(name: str, unit: float = 1.0) -> Values:
    def values(run: Training) -> dict[float, float]:
        found = ((probe.tokens, getattr(probe, name)) for probe in run.probes or ())
        return {tokens: value / unit for tokens, value in found if value is not None}

    return values


_OVER_TIME: list[tuple[str, str, Values]] = [
    ("Last state", "mean cosine of two tokens", _shown("mean_cosine")),
    ("Last state: rank", "effective rank", _shown("effective_rank")),
    ("Last state: outliers", "share of 3 dimensions in the variance", _shown("outlier_share")),
    ("Last state: frequency", "share along the direction of frequency", _probed("frequency_share")),
    ("Gradient", "noise scale, thousands of tokens", _probed("gradient_noise", 1000)),
]


def _training_loss(run: Training) -> dict[float, float]:
    """Tokens → training loss without the added loss."""
    losses = {line.tokens: line.loss if line.task_loss is None else line.task_loss for line in run.history}
    return {tokens: loss for tokens, loss in losses.items() if loss is not None}


def _by(name: str) -> Values:
    def losses(run: Training) -> dict[float, float]:
        groups = (run.held_out_by or {})[name]
        return {i + 0.5: group["loss"] for i, group in enumerate(groups) if group["tokens"]}

    return losses
