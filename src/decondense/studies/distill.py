"""C5: distillation does not cure condensation. The claim is that the teacher does *not* help, so the interval is the
90 % one of a one-sided test at 5 %. A condensed teacher can hardly cure anything, so there may be a second one, which
is dispersed before it teaches and counts only where that went far enough (the gate). At paper scale nothing is trained
and the unit is the pair of published models."""

from __future__ import annotations

from functools import partial
from typing import Any

from ..figures.studies import heat_grid, heat_row
from ..records import known
from ..stats.verdicts import Decision, combine, decide, not_below, trend_and_level, undecided
from .arms import teacher_of
from .runs import Conclusion, Runs, Settings, cosine, held_out, spearman

MARGIN, TREND_MARGIN = 0.05, 0.2  # of the mean cosine, which decides, and of Spearman, which is reported, as in `text`
GATE = 25.0  # percent of the mean cosine that dispersing must have taken off the second teacher
ALONE, TAUGHT = needed = ("student alone", "student with a teacher")
OTHERWISE = "student with a dispersed teacher"


def measurements(settings: Settings) -> list[dict[str, Any]]:
    pairs = enumerate(settings.get("pairs", ()))
    return [{"model": model, "pair": i, "taught": bool(k)} for i, pair in pairs for k, model in enumerate(pair)]


def refuse(settings: Settings) -> None:
    if OTHERWISE in settings.get("arms", ()) and teacher_of(settings, OTHERWISE) is None:
        raise ValueError(
            f"the teacher of the arm {OTHERWISE!r} must be an arm, so that it is measured: name one in "
            "baselines.distillation.teacher."
        )


def criterion_of(settings: Settings) -> str:
    first = (
        f"Mean cosine of the block outputs, with a teacher minus alone, is not below −{MARGIN:g}: the lower end of the "
        f"90 % interval over training seeds (pairs of models at paper scale) lies above −{MARGIN:g}."
    )
    if OTHERWISE not in settings.get("arms", ()):
        return first
    return (
        f"{first} So with the teacher as it is, and with one that was dispersed first, where that has lowered its mean "
        f"cosine by at least {GATE:g} % (95 % interval over training seeds; else undecided)."
    )


def conclude(runs: Runs, settings: Settings) -> Conclusion:
    return _pairs(runs, settings) if "pairs" in settings else _students(runs, settings)


def _students(runs: Runs, settings: Settings) -> Conclusion:
    change = not_below(runs.differences(TAUGHT, ALONE, cosine), margin=MARGIN)
    trend = not_below(runs.differences(TAUGHT, ALONE, spearman), margin=TREND_MARGIN)
    loss = runs.contrast(TAUGHT, ALONE, held_out)
    verdicts = {"trend": trend.verdict, "level": change.verdict}
    sentence = (
        f"mean cosine with a teacher minus alone {change.words()}{change.why}; it is {runs.said(ALONE, cosine)} alone, "
        f"{runs.said(TAUGHT, cosine)} with a teacher. Spearman {trend.words(2)}{trend.why}. "
        f"{trend_and_level(**verdicts)} Held-out loss {loss.words(4)}."
    )
    estimate = {"mean_cosine": change, "spearman": trend, "held_out_loss": loss, "margin": MARGIN, "verdicts": verdicts}
    verdict, headline = change.verdict, f"mean cosine minus that of the student alone (must stay above −{MARGIN:g}): "
    headline += f"with a teacher {change.short()}"
    levels = [(arm.replace(" with ", "\nwith "), runs.values(arm, cosine)) for arm in runs.arms]
    if OTHERWISE in settings["arms"]:
        teacher = str(teacher_of(settings, OTHERWISE))
        decided, words, more = _dispersed(runs, teacher)
        verdict, sentence, estimate = combine([change, decided]), f"{sentence} {words}", estimate | more
        headline += f", with a dispersed one {decided.short()}"
        if teacher in runs:
            levels.append((f"{teacher}\nbefore it was dispersed", [cosine(run, 0) for run in runs.of(teacher)]))
    draw = partial(
        heat_row, runs.last_snapshots(), points={"mean cosine of the blocks": levels},
        line=runs.mean(ALONE, cosine) - MARGIN, x=f"line: {MARGIN:g} below the student alone, the margin",
    )  # fmt: skip
    return Conclusion(verdict, headline, sentence, *runs.rows(), estimate, draw)


def _dispersed(runs: Runs, teacher: str) -> tuple[Decision, str, dict[str, Any]]:
    """(the decision on the second teacher, its words, its numbers). At step 0 the second teacher is still the first."""
    moved = decide([100 * (cosine(run) / cosine(run, 0) - 1) for run in runs.of(teacher)], claim="less")
    met = known(moved.high) < -GATE
    change = not_below(runs.differences(OTHERWISE, ALONE, cosine), margin=MARGIN)
    handed = runs.contrast(OTHERWISE, TAUGHT, cosine)
    loss, other_loss = (runs.contrast(OTHERWISE, arm, held_out) for arm in (ALONE, TAUGHT))
    words = (
        f"The dispersed teacher has a mean cosine of {runs.said(teacher, cosine)}, changed by {moved.words(1)} "
        f"percent: the gate of −{GATE:g} % is {'met' if met else 'not met'}. Its student minus alone {change.words()}"
        f"{change.why}; minus the other student {handed.words()}; held-out loss minus alone {loss.words(4)}, "
        f"minus the other student's {other_loss.words(4)}."
    )
    numbers = {"teacher_percent": moved, "gate_percent": GATE, "gate_met": met, "mean_cosine_dispersed": change}
    numbers |= {"mean_cosine_handed_on": handed, "held_out_loss_dispersed": loss}
    numbers |= {"held_out_loss_other_teacher": other_loss}
    return change if met else undecided("the gate is not met", moved.n), words, numbers


def _pairs(runs: Runs, settings: Settings) -> Conclusion:
    models = {(one.config["pair"], one.config["taught"]): one.measurement for one in runs.measured}
    whole = [i for i in range(len(settings["pairs"])) if (i, False) in models and (i, True) in models]
    change, trend = (
        not_below([metric(models[i, True]) - metric(models[i, False]) for i in whole], margin=margin, unit="pair")
        for metric, margin in ((cosine, MARGIN), (spearman, TREND_MARGIN))
    )
    rows = [
        [i, shot.model, taught, shot.parameters, shot.blocks, shot.spearman, *(shot.window_interval or (None, None))]
        for (i, taught), shot in sorted(models.items(), key=lambda pair: pair[0])
    ]
    columns = ["pair", "model", "distilled", "parameters", "mean_cosine", "spearman", "spearman_low", "spearman_high"]
    shown = [
        (words, [(str(models[i, taught].model).split("/")[-1], models[i, taught]) for i in whole])
        for words, taught in (("original", False), ("distilled", True))
    ]
    verdicts = {"trend": trend.verdict, "level": change.verdict}
    sentence = (
        f"mean cosine, distilled minus original, {change.words()}{change.why}. Spearman {trend.words(2)}{trend.why}. "
        f"{trend_and_level(**verdicts)}"
    )
    estimate = {"mean_cosine": change, "margin": MARGIN, "spearman": trend, "verdicts": verdicts}
    headline = f"mean cosine, distilled minus original (must stay above −{MARGIN:g}): {change.short()}"
    draw = partial(heat_grid, shown) if whole else None
    return Conclusion(change.verdict, headline, sentence, columns, rows, estimate, draw)
