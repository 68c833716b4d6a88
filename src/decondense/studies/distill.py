"""C5: distillation does not cure condensation.

Criterion: mean cosine of the block outputs, student from a teacher minus student alone, is not below −0.05: the claim
is that the teacher does *not* help, so the lower end of the 90 % interval over training seeds (one test at 5 %) must
lie above −0.05. At paper scale nothing is trained and the unit is the pair of published models.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from ..figures.studies import heat_grid, heat_row
from ..stats.verdicts import decide, not_below
from .arms import checking
from .core import Conclusion, Study
from .runs import Runs, cosine, held_out, spearman
from .settings import Settings

MARGIN = 0.05
CRITERION = (
    "Mean cosine of the block outputs, with a teacher minus alone, is not below −0.05: the lower end of the 90 % "
    "interval over training seeds (pairs of models at paper scale) lies above −0.05."
)
ALONE, TAUGHT = "student alone", "student with a teacher"


def measurements(settings: Settings) -> list[dict[str, Any]]:
    pairs = enumerate(settings.get("pairs", ()))
    return [{"model": model, "pair": i, "taught": bool(k)} for i, pair in pairs for k, model in enumerate(pair)]


def check(settings: Settings) -> None:
    if "pairs" not in settings:
        checking(ALONE, TAUGHT)(settings)


def conclude(runs: Runs, settings: Settings) -> Conclusion:
    return _pairs(runs, settings) if "pairs" in settings else _students(runs)


def _students(runs: Runs) -> Conclusion:
    change = not_below(runs.differences(TAUGHT, ALONE, cosine), margin=MARGIN)
    trend = decide(runs.differences(TAUGHT, ALONE, spearman), claim="less")
    loss = decide(runs.differences(TAUGHT, ALONE, held_out), claim="less")
    sentence = (
        f"mean cosine {runs.mean(ALONE, cosine):.3f} alone, {runs.mean(TAUGHT, cosine):.3f} with a teacher; difference "
        f"{change.words()}{change.why}. Spearman {trend.words(2)}, held-out loss {loss.words(4)}."
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
    sentence = f"distilled minus original {change.words()}{change.why}."
    estimate = {"mean_cosine": change, "margin": MARGIN}
    return Conclusion(change.verdict, sentence, columns, rows, estimate, partial(heat_grid, shown) if whole else None)


STUDY = Study(
    "distill", "C5", "Does learning from a larger teacher cure condensation?",
    CRITERION, conclude, measurements=measurements, check=check,
)  # fmt: skip
