"""C5: distillation does not cure condensation. The claim is that the teacher does *not* help, so the interval is that
of one test at 5 %. At paper scale nothing is trained and the unit is the pair of published models."""

from __future__ import annotations

from functools import partial
from typing import Any

from ..figures.studies import heat_grid, heat_row
from ..stats.verdicts import not_below, trend_and_level
from .runs import Conclusion, Runs, Settings, cosine, held_out, spearman

MARGIN, TREND_MARGIN = 0.05, 0.2  # of the mean cosine, which decides; of Spearman, beside it, as in `text`
ALONE, TAUGHT = needed = ("student alone", "student with a teacher")


def measurements(settings: Settings) -> list[dict[str, Any]]:
    pairs = enumerate(settings.get("pairs", ()))
    return [{"model": model, "pair": i, "taught": bool(k)} for i, pair in pairs for k, model in enumerate(pair)]


def conclude(runs: Runs, settings: Settings) -> Conclusion:
    return _pairs(runs, settings) if "pairs" in settings else _students(runs)


def _students(runs: Runs) -> Conclusion:
    change = not_below(runs.differences(TAUGHT, ALONE, cosine), margin=MARGIN)
    trend = not_below(runs.differences(TAUGHT, ALONE, spearman), margin=TREND_MARGIN)
    loss = runs.contrast(TAUGHT, ALONE, held_out)
    sentence = (
        f"mean cosine {runs.mean(ALONE, cosine):.3f} alone, {runs.mean(TAUGHT, cosine):.3f} with a teacher; difference "
        f"{change.words()}{change.why}. Spearman {trend.words(2)}{trend.why}. {trend_and_level(trend, change)} "
        f"Held-out loss {loss.words(4)}."
    )
    points = {"mean cosine of the blocks": [(arm, runs.values(arm, cosine)) for arm in runs.arms]}
    draw = partial(heat_row, runs.last_snapshots(), points=points, x="")
    estimate = {"mean_cosine": change, "spearman": trend, "held_out_loss": loss, "margin": MARGIN}
    return Conclusion(change.verdict, sentence, *runs.rows(), estimate, draw)


def _pairs(runs: Runs, settings: Settings) -> Conclusion:
    models = {(one.config["pair"], one.config["taught"]): one.measurement for one in runs.measured}
    whole = [i for i in range(len(settings["pairs"])) if (i, False) in models and (i, True) in models]
    change = not_below([models[i, True].blocks - models[i, False].blocks for i in whole], margin=MARGIN, unit="pair")
    rows = [
        [i, shot.model, taught, shot.parameters, shot.blocks, shot.spearman, *(shot.window_interval or (None, None))]
        for (i, taught), shot in sorted(models.items(), key=lambda pair: pair[0])
    ]
    columns = ["pair", "model", "distilled", "parameters", "mean_cosine", "spearman", "spearman_low", "spearman_high"]
    shown = [
        (words, [(str(models[i, taught].model).split("/")[-1], models[i, taught]) for i in whole])
        for words, taught in (("original", False), ("distilled", True))
    ]
    moved = [float(models[i, True].spearman or 0) - float(models[i, False].spearman or 0) for i in whole]
    trend = not_below(moved, margin=TREND_MARGIN, unit="pair")
    sentence = (
        f"mean cosine, distilled minus original, {change.words()}{change.why}. Spearman {trend.words(2)}{trend.why}. "
        f"{trend_and_level(trend, change)}"
    )
    estimate = {"mean_cosine": change, "margin": MARGIN, "spearman": trend}
    return Conclusion(change.verdict, sentence, columns, rows, estimate, partial(heat_grid, shown) if whole else None)
