"""C3: models that differ in nothing but the width of their MLP. The narrower condense more.

Criterion: for each seed, Spearman (mean cosine with depth, all states, end of training) of the narrowest model minus
that of the widest; reproduced when the 95 % interval of the mean over training seeds lies above 0. Beside it, and not
part of the criterion: the same difference in mean cosine. A trend can rise from a low level, and then the two disagree.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..stats.verdicts import NOT, REPRODUCED, Decision, decide, interval, signed
from . import scales, training
from .study import Conclusion, Settings, Study
from .training import Runs, cosine, held_out, joined, last, spearman

CRITERION = (
    "Spearman at the end of training, narrowest minus widest MLP, is above 0: 95 % interval over training seeds, "
    "each seed giving one difference."
)


def arms(widths: Sequence[int]) -> dict[str, Any]:
    return {f"MLP width {w}": {"model": {"config": {"n_inner": w}}} for w in widths}


def check(settings: Settings) -> None:
    """Arms are put in order by their width, so each must say its own."""
    training.check(settings)
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


def conclude(pieces: list[dict[str, Any]], settings: Settings) -> Conclusion:
    runs = Runs(pieces, list(settings["arms"]))
    by_width = sorted(settings["arms"], key=lambda arm: _width(settings["arms"][arm]))
    narrow, wide = by_width[0], by_width[-1]
    difference = decide(runs.differences(narrow, wide, spearman), claim="greater")
    level = decide(runs.differences(narrow, wide, cosine), claim="greater")
    per_arm = {arm: interval(runs.values(arm, spearman)) for arm in runs.arms}
    columns, rows = runs.rows()
    sentence = (
        f"Spearman {signed(runs.mean(narrow, spearman), 2)} at {narrow}, {signed(runs.mean(wide, spearman), 2)} at "
        f"{wide}; difference {difference.words(2)}{difference.why}. Mean cosine of the blocks at the end "
        f"{runs.mean(narrow, cosine):.3f} and {runs.mean(wide, cosine):.3f}, difference {level.words()}"
        f"{_told_otherwise(difference, level)}; of the last three states {runs.mean(narrow, last):.3f} and "
        f"{runs.mean(wide, last):.3f}. Held-out loss {runs.mean(narrow, held_out):.2f} and "
        f"{runs.mean(wide, held_out):.2f}: equal tokens, not equal loss."
    )

    def draw(path: Path) -> Path:
        from ..figures.studies import heat_row

        panels = [(arm, runs.first(arm)["snapshots"][-1]) for arm in runs.arms]
        shown = {"Spearman": spearman, "mean cosine, all blocks": cosine, "mean cosine, last 3 states": last}
        points = {
            f"{what}\nat the end": [(arm.removeprefix("MLP width "), runs.values(arm, metric)) for arm in runs.arms]
            for what, metric in shown.items()
        }
        return heat_row(panels, path, points=points, x="MLP width")

    return Conclusion(
        difference.verdict,
        sentence,
        columns,
        rows,
        {
            "difference": difference.record(),
            "mean_cosine": level.record(),
            "spearman": {a: {"mean": m, "low": low, "high": high} for a, (m, low, high) in per_arm.items()},
        },
        draw,
    )


_WIDTHS = [64, 256, 1024, 4096]
STUDY = Study(
    name="width",
    claim="C3",
    question="Do models that differ in nothing but MLP width condense more when they are narrower?",
    criterion=CRITERION,
    scales={
        "smoke": {
            "about": "a GPT2 of 4 layers and width 32, MLP 8 and 256, 3 seeds, 8 steps",
            "cost": "15 s of a CPU core",
            "base": joined(scales.TINY_GPT2, {"model": {"config": {"n_layer": 4}}}),
            "arms": arms([8, 256]),
            "seeds": scales.SEEDS,
            "heatmaps": "last",
        },
        "gpu": {
            "about": "a GPT2 of 12 layers and width 512, MLP 64 … 4096, 3 seeds, 16M tokens of novels each",
            "cost": "3 pieces of about 5 minutes on an H200",
            "base": scales.SCRATCH,
            "arms": arms(_WIDTHS),
            "seeds": scales.SEEDS,
            "heatmaps": "all",
        },
        "paper": {
            "about": "the published four GPT2s of width 768, MLP 64 … 4096, 3 seeds, 1B tokens of fineweb-edu each",
            "cost": "12 trainings of 1B tokens, about 12 × 1 hour on an H200",
            "base": joined(scales.PUBLISHED_SCRATCH, {"snapshots": {"count": 4}}),
            "arms": arms(_WIDTHS),
            "seeds": scales.SEEDS,
            "heatmaps": "last",
            "arms_per_piece": 1,
        },
    },
    plan=training.plan,
    work=training.work,
    conclude=conclude,
    check=check,
)
