"""C2: condensation does not depend on the text.

The unit is the text. The claim is about what happens when a given model reads something else, so what varies is the
text, and a new text is what one would generalise to; training seeds do not enter, and a bootstrap over windows would
only say how well each text is known. With several models all must agree. Outside the criterion, the level,
the mean cosine of the blocks, is judged by the same rule: within 10 % of its mean on one more text.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from ..figures.studies import heat_grid
from ..files import grouped
from ..stats.verdicts import combine, deciding, steady, trend_and_level
from ..words import signed
from .runs import MATTERS_COSINE, Conclusion, Runs, Settings, cosine, spearman
from .work import part_of

MARGIN, IN_A_ROW = 0.2, 5
needed = ("trained first",)


def measurements(settings: Settings) -> list[dict[str, Any]]:
    models = needed if "base" in settings else settings["models"]
    return [{"model": model, "text": text} for model in models for text in settings["texts"]]


def refuse(settings: Settings) -> None:
    for name in settings["texts"] if "base" in settings else ():
        part_of(name)


def conclude(runs: Runs, settings: Settings) -> Conclusion:
    measured = grouped((one.config["model"], (one.config["text"], one.measurement)) for one in runs.measured)
    table = {model: dict(measured[model]) for model in sorted(measured)}
    decisions, levels, words, agreement = {}, {}, [], {}
    for model, shots in table.items():
        values = [spearman(shot) for shot in shots.values()]
        cosines = [cosine(shot) for shot in shots.values()]
        decisions[model] = steady(values, margin=MARGIN, most=1.0)
        level = steady(cosines, margin=round(MATTERS_COSINE * abs(float(np.mean(cosines))), 4), most=1.0)
        levels[model] = level
        agreement[model] = _agreement([shot.mean_cosine for shot in shots.values()])
        listed = ", ".join(f"{t} {signed(v, 2)}" for t, v in zip(shots, values))
        words.append(
            f"{model}: Spearman {listed}; for one more text {decisions[model].words(2)}, {decisions[model].reason}; "
            f"lowest correlation of the curves of two texts {signed(agreement[model], 3)}. Mean cosine "
            f"{min(cosines):.3f} to {max(cosines):.3f}, for one more text {level.words()}, {level.reason}. "
            f"{trend_and_level(decisions[model].verdict, level.verdict)}"
        )
    columns = ["model", "text", "spearman", "spearman_low", "spearman_high", "kendall", "mean_cosine"]
    columns += ["mean_cosine_last", "windows"]
    rows = [
        [model, text, s.spearman, *(s.window_interval or (None, None)), s.kendall, s.blocks, s.last, s.windows]
        for model, shots in table.items()
        for text, s in shots.items()
    ]
    panels = [
        (model.split("/")[-1], list(shots.items())[start : start + IN_A_ROW])
        for model, shots in table.items()
        for start in range(0, len(shots), IN_A_ROW)
    ]
    draw = partial(heat_grid, panels)
    estimate = {"another_text": decisions, "lowest_correlation": agreement, "margin": MARGIN, "mean_cosine": levels}
    named = {model.split("/")[-1]: decision for model, decision in decisions.items()}
    headline = f"Spearman to expect on one more text (margin ±{MARGIN:g}): {deciding(named, 2)}"
    both = {"trend": combine(list(decisions.values())), "level": combine(list(levels.values()))}
    return Conclusion(both["trend"], headline, " ".join(words), columns, rows, estimate | {"verdicts": both}, draw)


def _agreement(curves: list[list[float | None]]) -> float:
    """The lowest Pearson correlation between two texts' curves of mean cosine over depth."""
    if len(curves) < 2:
        return math.nan
    return float(np.corrcoef(np.array(curves, dtype=float))[np.triu_indices(len(curves), 1)].min())
