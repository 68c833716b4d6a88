"""The geometry apart from the disturbance: a strong dose that is taken away before the end.

docs/studies.md ("Geometry and disturbance") has the reasons. (A weight that falls until the end would fall with the
learning rate, and hardly a step would be undisturbed.) A dose of 3 was added when 1 had not met the gate; the lowest
dose that meets it decides. Two arms are reported beside it: the dose of 1 kept to the end, and the opposite dose
released in the same way, which disturbs as much, towards the cone.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from ..figures.studies import curves
from ..records import known
from ..stats.verdicts import UNDECIDED, Decision, decide, judged
from ..words import amount
from .contrasts import losses_drawn, over_documents, over_items
from .runs import MATTERS_NATS, MATTERS_SHARE, Conclusion, Runs, Settings, by_document, cosine, spearman

PLAIN, RELEASED, KEPT, OPPOSITE = needed = (
    "cross-entropy", "λ 1, then released", "λ 1 to the end", "λ −1, then released"
)  # fmt: skip
STRONGER = "λ 3, then released"  # where it was run
GATE = 15.0  # percent of the mean cosine


def conclude(runs: Runs, settings: Settings) -> Conclusion:
    doses = [arm for arm in (RELEASED, STRONGER) if arm == RELEASED or arm in runs.table]
    treated = [*doses, KEPT, OPPOSITE]
    moved = {
        arm: decide([100 * (cosine(run) / cosine(plain) - 1) for run, plain in runs.paired(arm, PLAIN)], claim="less")
        for arm in treated
    }
    met = [arm for arm in doses if known(moved[arm].high) < -GATE]
    losses = {arm: over_documents(runs, arm, PLAIN) for arm in treated}
    sides = over_documents(runs, RELEASED, OPPOSITE)
    spared = over_documents(runs, RELEASED, KEPT)
    likelihood = {arm: over_items(runs, arm, PLAIN, kind="log_share") for arm in treated}
    scores = {arm: over_items(runs, arm, PLAIN, kind="correct") for arm in treated}
    deciding = met[0] if met else RELEASED
    trend = runs.contrast(deciding, PLAIN, spearman)
    diffs = {arm: runs.differences(arm, PLAIN, by_document) for arm in treated}
    sentence = " ".join(_of_dose(arm, moved[arm], losses[arm], diffs[arm], arm in met) for arm in doses) + (
        f" {KEPT}: cosine in percent {moved[KEPT].words(1)}, loss {losses[KEPT].words(4)}; released minus kept "
        f"{spared.words(4)}. {OPPOSITE}: cosine in percent {moved[OPPOSITE].words(1)}, loss "
        f"{losses[OPPOSITE].words(4)}; dispersed minus condensed, both released, {sides.words(4)}. "
        f"{deciding}: {_likely(likelihood[deciding])}Spearman {trend.words(2)}."
    )
    headline = (
        f"{deciding}: held-out loss minus cross-entropy's {losses[deciding].short(4)} nats, mean cosine changed by "
        f"{moved[deciding].short(1)} %{'' if met else f': the gate of −{GATE:g} % is not met'}"
    )
    columns, rows = runs.rows(runs.tasks, loss_by_document=by_document)
    draw = losses_drawn(
        runs, settings, diffs, PLAIN, x="held-out loss minus cross-entropy's, nats per token (right of 0: worse)",
        note="dots: training seeds; bars: 95 % intervals over them; shaded: too small to matter",
    )  # fmt: skip
    course = partial(curves, [_course(runs, settings)], note="dots: training seeds; bars: 95 % intervals over them")
    estimate: dict[str, Any] = {"mean_cosine_percent": moved, "gate_percent": GATE, "gate_met_by": met}
    estimate |= {"deciding": losses[deciding]}
    estimate |= {"held_out_loss": losses, "released_minus_kept": spared, "released_minus_opposite": sides}
    estimate |= {"log_likelihood": likelihood, "points": scores, "spearman": trend}
    verdict = losses[met[0]].verdict if met else UNDECIDED
    return Conclusion(verdict, headline, sentence, columns, rows, estimate, draw, {"course.png": course})


def _of_dose(arm: str, moved: Decision, loss: Decision, apart: list[float], met: bool) -> str:
    return (
        f"Mean cosine at the end, {arm}, in percent of cross-entropy's {moved.words(1)}: the gate of −{GATE:g} % is "
        f"{'met' if met else 'not met, so the geometry was not apart and nothing follows'}. Held-out loss minus "
        f"cross-entropy's, nats per token over seeds and documents, {loss.words(4)}{loss.why}; "
        f"{judged(apart, MATTERS_NATS)} (of {MATTERS_NATS:g} or more, over seeds)."
    )


def _likely(decision: Decision | None) -> str:
    if decision is None:
        return ""
    return (
        f"log-likelihood of what is right, average over tasks, {decision.words(4)} nats per item{decision.why} "
        f"(matters from {MATTERS_SHARE:g}); "
    )


def _course(runs: Runs, settings: Settings) -> dict[str, Any]:
    """The mean cosine of the blocks at every snapshot, a line for each arm."""
    loss = settings["arms"][RELEASED]["loss"]
    falls = f"released from {loss['release_at']:.0%} to {loss['release_end']:.0%}; line: the gate"
    series = {}
    for arm in runs.arms:
        trained = runs.of(arm)
        at = [shot.tokens or 0 for shot in trained[0].snapshots]
        # the name of their one loss gives the others its colour, with a dash for each
        name = arm if arm == PLAIN else f"{loss['name']} {arm}"
        series[name] = (at, [[cosine(run, i) for run in trained] for i in range(len(at))])
    ticks = sorted({x for at, _ in series.values() for x in at})
    values = [value for _, points in series.values() for point in points for value in point]
    low, high = min(values), max(values)
    room = (low - 0.1 * (high - low), high + 0.7 * (high - low))  # for the legend
    return {
        "title": falls.replace("%", " %"), "x": "training tokens", "y": "mean cosine of the blocks",
        "series": series, "ticks": ticks, "labels": list(map(amount, ticks)), "limits": room,
        "line": (1 - GATE / 100) * runs.mean(PLAIN, cosine),
    }  # fmt: skip
