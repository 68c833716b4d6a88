"""C7: ten benchmarks improve.

Both arms are trained from the same model on the same tokens, evaluated at their final checkpoint on the same items,
and compared as `decondense significance` compares: seeds and items are both samples, seeds unpaired (its default, and
the better choice with three). The published gain is that of GPT2: 35.5 against 34.95.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from ..figures.tasks import forest
from ..records import AVERAGE, WEIGHTED, Differences, differences, known
from ..stats.significance import analyse
from ..stats.verdicts import Decision, from_interval, judged, resolves, undecided
from ..words import nats, points, several, signed
from .contrasts import perplexities
from .outcomes import paired_outcomes
from .runs import MATTERS_COSINE, MATTERS_NATS, MATTERS_POINTS, Conclusion, Runs, Settings, cosine, held_out

PLAIN, TREATED = needed = ("cross-entropy", "dispersion")
PUBLISHED_GAIN = 0.55  # points
GUESSING = {
    "anli_r2": 1 / 3, "lambada_openai": 0.0, "openbookqa": 1 / 4, "piqa": 1 / 2, "truthfulqa_mc2": 0.464058,
    "winogrande": 1 / 2, "arc_easy": 1 / 4, "arc_challenge": 1 / 4, "medmcqa": 1 / 4, "mmlu": 1 / 4,
}  # fmt: skip
"""What guessing scores on a task, for its signal-to-noise ratio; for truthfulqa_mc2 the mean share of right choices."""
NATS = {
    "nats": "difference", "nats_low": "low", "nats_high": "high", "nats_p_holm": "p_holm",
    "nats_resolved": "smallest_effect",
}  # fmt: skip
"""Columns beside those of the accuracy: column → its key in the analysis of the log-likelihood of what is right."""


def refuse(settings: Settings) -> None:
    if not settings["tasks"]:
        raise ValueError("the study is about benchmarks, got an empty list of tasks: name one, like tasks=[piqa].")


def conclude(runs: Runs, settings: Settings) -> Conclusion:
    base, treated = (list(runs.outcomes.get(arm, {}).values()) for arm in needed)
    seeds = min(len(base), len(treated))
    # With one seed in each arm this is about items alone; the rule below needs three seeds.
    correct, shares = (paired_outcomes(base, treated, kind=kind) if seeds else {} for kind in ("correct", "log_share"))
    chance = GUESSING if GUESSING.keys() >= correct.keys() else None
    tasks = analyse(correct, bootstrap=0, matters=MATTERS_POINTS / 100, chance=chance)
    likelihood = analyse(shares, bootstrap=0)
    macro = tasks["macro"]
    decision, average = _decided(macro, seeds)
    perplexity = {}
    if count := len(tasks["tasks"]):  # the level is divided by the number of tasks, one of which has the perplexity
        perplexity = perplexities(runs, TREATED, PLAIN, level=1 - 0.05 / count)
    perplexity_words = "".join(f"{name} {decision.words(2)}. " for name, decision in perplexity.items())
    loss, geometry = (runs.contrast(TREATED, PLAIN, metric) for metric in (held_out, cosine))
    share, moved = _manipulated(runs)
    shown = [f"{row['task']} {signed(100 * row['difference'], 2)}" for row in tasks["tasks"] if row["significant"]]
    sentence = (
        f"average of {len(tasks['tasks'])} tasks {average}, {several(seeds, 'training seed')} in each arm"
        f"{decision.why}; {_weighted(macro)}single tasks after Holm's correction: {', '.join(shown) or 'none'}. "
        f"{_likelihood(likelihood['macro'])}{perplexity_words}"
        f"Held-out loss {loss.words(5)}: {judged(runs.differences(TREATED, PLAIN, held_out), MATTERS_NATS)} (of "
        f"{MATTERS_NATS:g} nats or more); mean cosine {geometry.words(4)}. {moved}"
    )
    headline = (
        f"average of {len(tasks['tasks'])} tasks, {TREATED} minus {PLAIN}, points: {decision.short(2)} (published "
        f"{signed(PUBLISHED_GAIN, 2)}); the loss moved the mean cosine by {signed(share, 1)} %"
    )
    columns = ["task", "items", "base", "treated", "difference", "low", "high", "p", "p_holm", "seed_sd"]
    columns += ["smallest_effect", "signal_to_noise", *NATS]
    listed = [*tasks["tasks"]] + ([{"task": AVERAGE, **macro}] if macro else [])
    if macro and "weighted" in macro:
        listed.append({"task": WEIGHTED, **macro["weighted"]})
    likelihood_rows = {row["task"]: row for row in likelihood["tasks"]} | {AVERAGE: likelihood["macro"] or {}}
    for row in listed:
        row |= {column: likelihood_rows.get(row["task"], {}).get(key) for column, key in NATS.items()}
    drawn, title = differences(Differences.model_validate(tasks)), f"{TREATED} − {PLAIN}, {seeds} seeds each"
    draw = partial(forest, drawn, title=title, power=0.8, published=PUBLISHED_GAIN) if macro else None
    numbers = {
        arm: {
            str(seed): {"held_out_loss": held_out(run), "mean_cosine": cosine(run)} | runs.scores(arm).get(seed, {})
            for seed, run in trained.items()
        }
        for arm, trained in runs.table.items()
    }
    estimate = {"macro": macro, "likelihood": likelihood["macro"], "decision": decision, "held_out_loss": loss}
    estimate |= {"perplexity": perplexity, "mean_cosine": geometry, "cosine_moved_percent": share}
    estimate |= {"published_gain": PUBLISHED_GAIN, "runs": numbers}
    rows = [[row.get(column) for column in columns] for row in listed]
    return Conclusion(decision.verdict, headline, sentence, columns, rows, estimate, draw)


def _decided(macro: dict[str, Any] | None, seeds: int) -> tuple[Decision, str]:
    """The decision in points, as the published gain is, and the average in words."""
    if macro is None:
        return undecided("one arm is missing", seeds), "unknown"
    ends = [macro[key] for key in ("difference", "low", "high")]
    middle, low, high = (points(end, sign=True) for end in ends)
    in_points = [100 * known(end) for end in ends]
    resolution = None if macro["smallest_effect"] is None else 100 * macro["smallest_effect"]
    decision = from_interval(*in_points, n=seeds, claim="greater", smallest=PUBLISHED_GAIN, resolution=resolution)
    words = f"{middle} points [{low}, {high}]{resolves(resolution)}, {macro['finding']}"
    return decision, f"{words} (of {MATTERS_POINTS:g} points or more)"


def _weighted(macro: dict[str, Any] | None) -> str:
    if macro is None or "weighted" not in macro:
        return ""
    middle, low, high = (points(macro["weighted"][key], sign=True) for key in ("difference", "low", "high"))
    effect = macro["weighted"]["smallest_effect"]
    return f"weighted by signal to noise {middle} [{low}, {high}]{resolves(100 * effect if effect else None)}; "


def _likelihood(macro: dict[str, Any] | None) -> str:
    if macro is None:
        return ""
    middle, low, high = (nats(macro[key], sign=True) for key in ("difference", "low", "high"))
    reach = f"[{low}, {high}]{resolves(macro['smallest_effect'])}"
    return f"Log-likelihood of what is right, average {middle} nats per item {reach}. "


def _manipulated(runs: Runs) -> tuple[float, str]:
    """By how many percent the loss moved the mean cosine, and what follows for the scores: below the least change that
    matters there was no treatment, and unchanged scores say nothing about its worth."""
    plain = runs.mean(PLAIN, cosine)
    share = 100 * (runs.mean(TREATED, cosine) - plain) / plain
    if not math.isfinite(share):
        return share, "Whether the geometry was moved is unknown."
    moved = f"The loss moved the mean cosine by {signed(share, 1)} %"
    if abs(share) < 100 * MATTERS_COSINE:
        return share, (
            f"{moved}, less than the {100 * MATTERS_COSINE:g} % that would matter: the verdict is about this recipe, "
            "and whether dispersing helps is undecided."
        )
    return share, f"{moved}."
