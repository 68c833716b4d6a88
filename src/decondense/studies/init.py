"""C4: condensation is there at initialisation, and training relieves it. At paper scale a row of published checkpoints
is one training run. The change of the mean cosine itself is reported beside: a trend can flatten while that rises."""

from __future__ import annotations

from functools import partial
from typing import Any

from ..figures.studies import heat_row
from ..files import grouped
from ..records import Snapshot
from ..stats.verdicts import combine, decide, trend_and_level, trend_and_level_short
from ..words import signed
from .runs import Conclusion, Metric, Runs, Settings, cosine, last, spearman

ARM = "from scratch"
METRICS: dict[str, Metric] = {
    "Spearman": spearman, "mean cosine of the blocks": cosine, "mean cosine of the last 3 states": last,
}  # fmt: skip


def measurements(settings: Settings) -> list[dict[str, Any]]:
    return [
        {"model": model, "revision": revision, "place": place}
        for model, revisions in settings.get("checkpoints", {}).items()
        for place, revision in enumerate(revisions)
    ]


def refuse(settings: Settings) -> None:
    if list(settings.get("arms", [ARM])) != [ARM]:
        given = ", ".join(map(repr, settings["arms"]))
        raise ValueError(f"the study must have one arm, {ARM!r}, got {given}: change that arm, or base.")


def courses(runs: Runs, settings: Settings) -> dict[str, list[tuple[str, Snapshot]]]:
    """training run → its checkpoints in order: (label, snapshot)."""
    if "checkpoints" not in settings:
        trained = runs.table.get(ARM, {}).items()
        return {f"seed {seed}": [(f"step {shot.step}", shot) for shot in run.snapshots] for seed, run in trained}
    rows = grouped((one.config["model"], (one.config["revision"], one.measurement)) for one in runs.measured)
    ends = {model: {revisions[0], revisions[-1]} for model, revisions in settings["checkpoints"].items()}
    # a run counts when its first and its last checkpoint are there
    return {model: row for model, row in rows.items() if ends[model] <= {revision for revision, _ in row}}


def conclude(runs: Runs, settings: Settings) -> Conclusion:
    rows = courses(runs, settings)
    unit = "training seed" if "checkpoints" not in settings else "training run"
    ends = [(row[0][1], row[-1][1]) for row in rows.values()]
    start = decide([spearman(first) for first, _ in ends], claim="greater", unit=unit, bound=1.0)
    fall, level, late = (
        decide([metric(end) - metric(first) for first, end in ends], claim="less", unit=unit)
        for metric in METRICS.values()
    )
    table = [
        [run, label, shot.step, shot.spearman, shot.kendall, shot.last, shot.blocks]
        for run, row in rows.items()
        for label, shot in row
    ]
    verdicts = {"trend": fall.verdict, "level": level.verdict}
    sentence = (
        f"Spearman at step 0 {start.words(2)}; end minus step 0 {fall.words(2)}. Mean cosine of the blocks, end minus "
        f"step 0, {level.words()}; of the last three states {late.words()}. {trend_and_level(**verdicts)}"
    )
    headline = f"Spearman at step 0 {start.short(2)}; end minus step 0: {trend_and_level_short(fall, level)}"
    first = next(iter(rows.values()), [])
    at = {label: [shot for row in rows.values() for other, shot in row if other == label] for label, _ in first}
    points = {
        what: [(label.removeprefix("step "), [metric(shot) for shot in shots]) for label, shots in at.items()]
        for what, metric in METRICS.items()
    }
    draw = partial(heat_row, first, points=points, x="optimiser step (heatmaps: the first run)") if rows else None
    columns = ["run", "checkpoint", "step", "spearman", "kendall", "mean_cosine_last", "mean_cosine"]
    estimate: dict[str, Any] = {"start": start, "change": fall, "mean_cosine": level, "last": late}
    estimate |= {"ends": [signed(spearman(end), 3) for _, end in ends], "verdicts": verdicts}
    return Conclusion(combine([start, fall]), headline, sentence, columns, table, estimate, draw)
