"""What a loss changes in the models and in their loss, seed by seed: four panels for the figure of `pretrain`.

Runs keep the mean cosine and the share of outlier dimensions at their snapshots (the latter the newer ones), a history,
and the held-out loss by the frequency of the token and by its position. They keep no rank, direction of frequency or
noise of the gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..records import Training
from ..words import amount, several
from .settings import Settings

__all__ = ["in_words", "why"]

Runs = Mapping[int, Training]  # seed → run
Values = Callable[[Training], dict[float, float]]  # of a run: place on the x axis → number


def why(base: Runs, losses: Mapping[str, Runs], settings: Settings) -> list[Settings]:
    """Panels for `figures.studies.curves`: `base` is cross-entropy alone, `settings` the recipe of all."""
    total, context = settings["data"]["tokens"], settings["data"]["context"]
    time: dict[str, Any] = {"x": f"training tokens (warm-up ends at {amount(settings['train']['warmup'] * total)})"}
    time |= {"ticks": [total * k / 4 for k in range(5)], "labels": [amount(total * k / 4) for k in range(5)]}
    tenths = {"x": "target tokens in tenths of the text, frequent → rare", "labels": [str(k) for k in range(1, 11)]}
    eighths = {"x": "position in the block", "labels": [str(context * k // 8) for k in range(0, 9, 2)]}
    by_frequency, by_position = (_apart(_by(name), losses, base) for name in ("frequency", "position"))
    both = [*by_frequency.values(), *by_position.values()]
    ends = [0.0, *(value for _, values in both for some in values for value in some)]
    held_out = {"y": "held-out loss minus cross-entropy's", "limits": (1.05 * min(ends), 1.05 * max(ends))}
    panels: list[Settings] = [
        {"title": "Last state", "y": "mean cosine of two tokens", **time},
        {"title": "On the way", "y": "training loss minus cross-entropy's", **time},
        {"title": "At the end, by frequency", **held_out, **tenths, "ticks": [k + 0.5 for k in range(10)]},
        {"title": "At the end, by position", **held_out, **eighths, "ticks": [0, 2, 4, 6, 8]},
    ]
    geometry = _apart(_last_state, {**losses, "cross-entropy": base}, None)
    series = [geometry, _apart(_training_loss, losses, base), by_frequency, by_position]
    return [
        {**panel, "series": one, "line": 0.0, "band": True, "legend": one is geometry}
        for panel, one in zip(panels, series)
    ]


def in_words(which: str, seeds: Sequence[int]) -> str:
    """`seeds`: how many each loss has."""
    count = several(max(seeds), "seed") if min(seeds) == max(seeds) else f"{min(seeds)} to {max(seeds)} seeds"
    return (
        f"{which} tokens, {count}: means, and bands from the lowest seed to the highest.\n"
        "Losses in nats per token; below 0 is ahead of cross-entropy."
    )


def _apart(of: Values, arms: Mapping[str, Runs], base: Runs | None) -> dict[str, tuple[list[float], list[list[float]]]]:
    """Arm → (places that all seeds have, their values there), minus those of the same seed in `base`."""
    series = {}
    for name, runs in arms.items():
        rows = [of(run) for run in runs.values()]
        if base is not None:
            plain = [of(base[seed]) for seed in runs]
            rows = [{x: y - other[x] for x, y in row.items() if x in other} for row, other in zip(rows, plain)]
        places = sorted(set.intersection(*map(set, rows)))
        series[name] = (places, [[row[x] for row in rows] for x in places])
    return series


def _last_state(run: Training) -> dict[float, float]:
    return {shot.tokens or 0: value for shot in run.snapshots if (value := shot.mean_cosine[-1]) is not None}


def _training_loss(run: Training) -> dict[float, float]:
    """Without what is added."""
    losses = {line.tokens: line.loss if line.task_loss is None else line.task_loss for line in run.history}
    return {tokens: loss for tokens, loss in losses.items() if loss is not None}


def _by(name: str) -> Values:
    def losses(run: Training) -> dict[float, float]:
        groups = (run.held_out_by or {})[name]
        return {i + 0.5: group["loss"] for i, group in enumerate(groups) if group["tokens"]}

    return losses
