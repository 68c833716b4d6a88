"""C3: models that differ in nothing but the width of their MLP. The narrower condense more.

Criterion: for each seed, Spearman (mean cosine with depth, all states, end of training) of the narrowest model minus
that of the widest; reproduced when the 95 % interval of the mean over training seeds lies above 0. Beside it, and not
part of the criterion: the same difference in mean cosine. A trend can rise from a low level, and then the two disagree.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from ..figures.studies import heat_row
from ..stats.verdicts import NOT, REPRODUCED, Decision, decide, interval, signed
from .arms import check as check_arms
from .core import Conclusion, Study
from .runs import Runs, cosine, held_out, last, spearman
from .settings import Settings

CRITERION = (
    "Spearman at the end of training, narrowest minus widest MLP, is above 0: 95 % interval over training seeds, "
    "each seed giving one difference."
)


def check(settings: Settings) -> None:
    """Arms are put in order by their width, so each must say its own."""
    check_arms(settings)
    widths = {arm: _width(content) for arm, content in settings["arms"].items()}
    for arm, width in widths.items():
        if not isinstance(width, int):
            raise ValueError(
                f"every arm must give its MLP width as a whole number, got {width!r} in {arm!r}: set "
                f"arms.{arm}.model.config.n_inner."
            )
    if len(set(widths.values())) < 2:
        raise ValueError(
            f"the arms must differ in MLP width, got {', '.join(map(str, widths.values()))}: give another."
        )


def _width(arm: dict[str, Any]) -> Any:
    return arm.get("model", {}).get("config", {}).get("n_inner")


def _told_otherwise(trend: Decision, level: Decision) -> str:
    if trend.verdict == REPRODUCED and level.verdict == NOT:
        return ": by the mean over all blocks it is the wider that are condensed"
    return ""


def conclude(runs: Runs, settings: Settings) -> Conclusion:
    by_width = sorted(settings["arms"], key=lambda arm: _width(settings["arms"][arm]))
    narrow, wide = by_width[0], by_width[-1]
    difference = decide(runs.differences(narrow, wide, spearman), claim="greater")
    level = decide(runs.differences(narrow, wide, cosine), claim="greater")
    per_arm = {arm: interval(runs.values(arm, spearman)) for arm in runs.arms}
    sentence = (
        f"Spearman {signed(runs.mean(narrow, spearman), 2)} at {narrow}, {signed(runs.mean(wide, spearman), 2)} at "
        f"{wide}; difference {difference.words(2)}{difference.why}. Mean cosine of the blocks at the end "
        f"{runs.mean(narrow, cosine):.3f} and {runs.mean(wide, cosine):.3f}, difference {level.words()}"
        f"{_told_otherwise(difference, level)}; of the last three states {runs.mean(narrow, last):.3f} and "
        f"{runs.mean(wide, last):.3f}. Held-out loss {runs.mean(narrow, held_out):.2f} and "
        f"{runs.mean(wide, held_out):.2f}: equal tokens, not equal loss."
    )
    shown = {"Spearman": spearman, "mean cosine, all blocks": cosine, "mean cosine, last 3 states": last}
    points = {
        f"{what}\nat the end": [(arm.removeprefix("MLP width "), runs.values(arm, metric)) for arm in runs.arms]
        for what, metric in shown.items()
    }
    draw = partial(heat_row, runs.last_snapshots(), points=points, x="MLP width")
    estimate = {"difference": difference, "mean_cosine": level, "spearman": per_arm}
    return Conclusion(difference.verdict, sentence, *runs.rows(), estimate, draw)


STUDY = Study(
    "width", "C3", "Do models that differ in nothing but MLP width condense more when they are narrower?",
    CRITERION, conclude, check=check,
)  # fmt: skip
