"""C3: models that differ in nothing but the width of their MLP. The narrower condense more. Beside the trend over
depth, and not part of the criterion: the same difference in mean cosine. A trend can rise from a low level, and then
the two disagree."""

from __future__ import annotations

from functools import partial
from typing import Any

from ..figures.studies import heat_row
from ..stats.verdicts import NOT, REPRODUCED, interval, trend_and_level, trend_and_level_short
from ..words import signed
from .runs import Conclusion, Runs, Settings, cosine, held_out, last, spearman


def refuse(settings: Settings) -> None:
    """Arms are put in order by their width, so each must say its own."""
    widths = {arm: _width(content) for arm, content in settings["arms"].items()}
    for arm, width in widths.items():
        if not isinstance(width, int):
            raise ValueError(
                f"every arm must give its MLP width as a whole number, got {width!r} in {arm!r}: set "
                f"arms.{arm}.model.config.n_inner."
            )
    if len(set(widths.values())) < 2:
        given = ", ".join(map(str, widths.values()))
        raise ValueError(f"the arms must differ in MLP width, got {given}: give another.")


def _width(arm: dict[str, Any]) -> Any:
    return arm.get("model", {}).get("config", {}).get("n_inner")


def conclude(runs: Runs, settings: Settings) -> Conclusion:
    narrow, *_, wide = sorted(settings["arms"], key=lambda arm: _width(settings["arms"][arm]))
    difference, level = (runs.contrast(narrow, wide, metric, claim="greater") for metric in (spearman, cosine))
    otherwise = ""
    if (difference.verdict, level.verdict) == (REPRODUCED, NOT):
        otherwise = ": by the mean over all blocks it is the wider that are condensed"
    verdicts = {"trend": difference.verdict, "level": level.verdict}
    sentence = (
        f"Spearman {signed(runs.mean(narrow, spearman), 2)} at {narrow}, {signed(runs.mean(wide, spearman), 2)} at "
        f"{wide}; difference {difference.words(2)}{difference.why}. Mean cosine of the blocks at the end "
        f"{runs.said(narrow, cosine)} and {runs.said(wide, cosine)}, difference {level.words()}{otherwise}; of "
        f"the last three states {runs.said(narrow, last)} and {runs.said(wide, last)}. Held-out loss "
        f"{runs.said(narrow, held_out, 2)} and {runs.said(wide, held_out, 2)}: equal tokens, not equal loss. "
        f"{trend_and_level(**verdicts)}"
    )
    shown = {"Spearman": spearman, "mean cosine, all blocks": cosine, "mean cosine, last 3 states": last}
    points = {
        f"{what}\nat the end": [(arm.removeprefix("MLP width "), runs.values(arm, metric)) for arm in runs.arms]
        for what, metric in shown.items()
    }
    draw = partial(heat_row, runs.last_snapshots(), points=points, x="MLP width")
    per_arm = {arm: interval(runs.values(arm, spearman)) for arm in runs.arms}
    estimate = {"difference": difference, "mean_cosine": level, "spearman": per_arm, "verdicts": verdicts}
    headline = f"{narrow} minus {wide}: {trend_and_level_short(difference, level)}"
    return Conclusion(difference.verdict, headline, sentence, *runs.rows(), estimate, draw)
