"""Compare two sets of runs on the same items: ``base`` and ``treated``, one run per training seed.

With several seeds the claim is about the way of training, and seeds and items are both samples (``crossed_macro``).
With one seed in each arm the claim is about two checkpoints, and the items are the sample (McNemar, permutation). The
record says which. docs/statistics.md has the reasons.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

from ..evaluate.items import EvaluatedRun
from ..evaluate.logs import Log, Wanted
from ..evaluate.readers import read_logs
from ..files import told_apart
from ..records import Significance as Record
from ..records import differences
from .bootstrap import hierarchical_bootstrap
from .checkpoints import checkpoint_average, is_binary, mcnemar, paired_interval, permutation, smallest_effect
from .crossed import Crossed, crossed_macro
from .pairing import check_runs, match
from .tables import verdict

if TYPE_CHECKING:
    from ..figures.draw import Where

__all__ = ["Significance", "analyse", "holm", "ranks", "significance"]

Pair = tuple[np.ndarray, np.ndarray]
Runs = str | Path | EvaluatedRun | Log


class Significance(Record, reads=()):
    """The record of a comparison: ``verdict`` in a sentence, its rows as a frame, its forest plot."""

    def to_pandas(self) -> Any:
        """A row per task and one for the average; scores as fractions."""
        import pandas

        return pandas.DataFrame(differences(self)).set_index("task")

    def plot(self, path: Where = None, **options: Any) -> Any:
        """``decondense.plot`` of it: a file, your axes (``ax=``), or the figure."""
        from ..figures.plot import plot

        return plot(self, path, **options)


def significance(
    base: Runs | Sequence[Runs],
    treated: Runs | Sequence[Runs],
    *,
    paired: bool = False,
    common: bool = False,
    metric: str | None = None,
    filter: str | None = None,
    alpha: float = 0.05,
    power: float = 0.8,
    bootstrap: int = 2000,
    permutations: int = 10_000,
    seed: int = 0,
) -> Significance:
    """Compare evaluations of two ways of training.

    Args:
        base, treated: one run per training seed, or several: folders that ``decondense evaluate`` wrote, logs of
            lm-eval, inspect_ai or lighteval, tables with the columns item and score (docs/statistics.md, section 1).
        paired: the i-th base and the i-th treated run share their seed (data order, initial weights). Without it the
            seeds are independent samples, which is also right, only less powerful, when they are not.
        common: compare the items that all runs have; by default runs with different items are refused.
        metric: names in the order of preference, with commas; by default acc, exact_match, or what there is.
        filter: of lm-eval, by which an answer was read; by default the first in the log.
        alpha, power: level of the tests, and the power at which the smallest detectable effect is stated.
        bootstrap, permutations, seed: resamplings and their random stream.

    Returns:
        the content of ``result.json``, with ``to_pandas()`` and ``plot()``.
    """
    _check_options(alpha, power, bootstrap, permutations)
    wanted = Wanted(tuple(name.strip() for name in (metric or "").split(",") if name.strip()), filter)
    arms = [[log for run in _several(arm) for log in read_logs(run, wanted)] for arm in (base, treated)]
    if not arms[0] or not arms[1]:
        raise ValueError("significance needs at least one base and one treated run: BASE… -- TREATED….")
    if paired and (len(arms[0]) != len(arms[1]) or len(arms[0]) == 1):
        raise ValueError(
            f"paired seeds need as many base as treated runs, at least 2, got {len(arms[0])} and {len(arms[1])}: leave "
            "--paired out."
        )
    runs = [run for arm in arms for run in arm]
    for run, label in zip(runs, told_apart([run.path for run in runs])):
        run.label = label
    notes = check_runs(arms)
    matched, left_out = match(arms, common=common)
    accuracy = {task: found.score for task, found in matched.items() if found.score is not None}
    likelihood = {task: found.likelihood for task, found in matched.items() if found.likelihood is not None}
    _check_ties([*accuracy.values(), *likelihood.values()])
    options: dict[str, Any] = {
        "paired": paired, "alpha": alpha, "power": power, "permutations": permutations, "seed": seed,
    }  # fmt: skip
    settings: dict[str, Any] = {"common": common, "bootstrap": bootstrap, "permutations": permutations, "seed": seed}
    settings |= {key: value for key, value in (("metric", metric), ("filter", filter)) if value is not None}
    seeds = (len(arms[0]), len(arms[1]))
    content: dict[str, Any] = {
        "schema": Record.reads[0],
        "base": [_describe(run) for run in arms[0]],
        "treated": [_describe(run) for run in arms[1]],
        "seeds": seeds,
        "paired": paired,
        "claim": "checkpoints" if seeds == (1, 1) else "training",
        "alpha": alpha,
        "power": power,
        "settings": settings,
        **analyse(accuracy, bootstrap=bootstrap, **options),
        "likelihood": analyse(likelihood, bootstrap=0, **options) if likelihood else None,
        "ranks": ranks(accuracy),
    }
    content["notes"] = [*notes, *left_out, *_doubts(content["macro"], seeds)]
    record = Significance.model_validate(content | {"verdict": ""})
    record.verdict = verdict(record)
    return record


# -- runs and items ------------------------------------------------------------------------------------------


def _several(runs: Runs | Sequence[Runs]) -> Iterable[Runs]:
    return [runs] if isinstance(runs, Runs) else runs


def _describe(run: Log) -> dict[str, Any]:
    if run.record is None:
        return {
            "run": run.label,
            "model": run.model,
            "tool": run.tool,
            "log": run.fingerprint,
            "training_seed": run.seed,
        }
    model, checkpoint = run.record.model, run.record.checkpoint
    named = {"run": run.label, "model": model.description, "weights": model.weights}
    return named | {key: getattr(checkpoint, key) for key in ("training_seed", "selected_by", "step")}


def _check_ties(outcomes: Iterable[Pair]) -> None:
    """Runs that agree on every single outcome are one and the same, or were not read as what they are."""
    if all(np.ptp(np.concatenate(pair), axis=0).max() == 0 for pair in outcomes):
        raise ValueError(
            "the runs must differ on at least one item, but every outcome is the same in all of them: "
            "there is nothing to test; look whether base and treated are different models."
        )


# -- numbers -------------------------------------------------------------------------------------------------


def analyse(
    outcomes: dict[str, Pair], *, paired: bool = False, alpha: float = 0.05, power: float = 0.8, bootstrap: int = 2000,
    permutations: int = 10_000, seed: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """Tests for every task and for the average over tasks, as rows of ``records.Differences``. ``outcomes``: task →
    (base, treated), each (seeds, items)."""
    _check_options(alpha, power, bootstrap, permutations)
    if not outcomes:
        return {"tasks": [], "macro": None}
    pairs = list(outcomes.values())
    counts = {len(arm) for pair in pairs for arm in pair}
    tasks = []
    for name, pair in outcomes.items():
        row, estimate = _row([pair], paired, alpha / len(outcomes), power, permutations, seed)
        if len(counts) == 1 and counts != {1}:
            # the i-th two checkpoints against each other, items only: says nothing about another seed
            row["pairs"] = [
                {"difference": float(t.mean() - b.mean()), "p": _paired_test(b, t, permutations, seed)["p"]}
                for b, t in zip(*pair)
            ]
        tasks.append({"task": name} | row)
    for row, adjusted in zip(tasks, holm([row["p"] for row in tasks])):
        row |= {"p_holm": adjusted, "significant": adjusted <= alpha}
    if len(pairs) > 1:
        macro, estimate = _row(pairs, paired, alpha, power, permutations, seed)
    else:
        macro = {key: value for key, value in tasks[0].items() if key not in ("task", "pairs", "p_holm")}
    macro |= {"tasks": len(pairs), "significant": macro["p"] <= alpha}
    if bootstrap and estimate.se > 0:
        macro["bootstrap"] = hierarchical_bootstrap(pairs, estimate, paired=paired, samples=bootstrap, seed=seed)
    return {"tasks": tasks, "macro": macro}


def _check_options(alpha: float, power: float, bootstrap: int, permutations: int) -> None:
    if not 0 < alpha < 1 or not 0 < power < 1:
        raise ValueError(f"alpha and power must lie between 0 and 1, got {alpha} and {power}.")
    if power <= alpha:
        raise ValueError(
            f"power must be above alpha, got {power} and {alpha}: a test finds no difference at all that often; take "
            "0.8."
        )
    if bootstrap < 0:
        raise ValueError(f"bootstrap must be a number of resamplings, got {bootstrap}: take 0 to leave it out.")
    if permutations < 1:
        raise ValueError(f"permutations must be at least 1, got {permutations}: take 10000.")


def _row(
    pairs: list[Pair], paired: bool, alpha: float, power: float, permutations: int, seed: int
) -> tuple[dict[str, Any], Crossed]:
    """treated − base on one task, or on the average over several."""
    estimate = crossed_macro(pairs, paired=paired)
    seeds = [np.mean([pair[arm].mean(1) for pair in pairs], axis=0) for arm in (0, 1)]
    base, treated = (float(np.mean([pair[arm].mean() for pair in pairs])) for arm in (0, 1))
    low, high = estimate.interval()
    row: dict[str, Any] = {
        "items": int(sum(b.shape[1] for b, _ in pairs)),
        "base": base,
        "treated": treated,
        "base_seeds": seeds[0].tolist(),
        "treated_seeds": seeds[1].tolist(),
        "difference": treated - base,
        "test": "seeds × items",
        "p": estimate.p,
        "df": _finite(estimate.seed_df),
        "se": estimate.se,
        "seed_sd": _finite(estimate.seed_sd),
        "seed_se": math.sqrt(max(0.0, estimate.seed_variance - estimate.noise)),
        "item_se": math.sqrt(estimate.item_variance + estimate.noise),
        "smallest_effect": estimate.minimal_effect(alpha=alpha, power=power),
    }
    if len(seeds[0]) == len(seeds[1]) == 1:
        if len(pairs) == 1:
            first, second = pairs[0][0][0], pairs[0][1][0]
            row |= _paired_test(first, second, permutations, seed)
            low, high = paired_interval(first, second)
        else:
            row["p"], low, high = checkpoint_average(pairs, samples=permutations, seed=seed)
            row["test"] = "paired permutation"
        # of graded outcomes the spread says what their few differing items alone cannot
        exact = smallest_effect(pairs, alpha=alpha, power=power)
        graded = not all(is_binary(*pair) for pair in pairs)
        known = [effect for effect in ([exact, row["smallest_effect"]] if graded else [exact]) if effect is not None]
        row["smallest_effect"] = max(known) if len(known) == 1 + graded else None
    return row | {"low": _finite(low), "high": _finite(high)}, estimate


def _paired_test(base: np.ndarray, treated: np.ndarray, permutations: int, seed: int) -> dict[str, Any]:
    """Of two checkpoints on the items of one task."""
    if is_binary(base, treated):
        gained, lost = int(np.sum(treated > base)), int(np.sum(treated < base))
        return {"test": "exact McNemar", "gained": gained, "lost": lost, "p": mcnemar(gained, lost)}
    return {"test": "paired permutation", "p": permutation(treated - base, samples=permutations, seed=seed)}


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values: the i-th smallest of m is multiplied by m − i + 1, then made non-decreasing."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    adjusted = np.empty_like(p)
    adjusted[order] = np.maximum.accumulate(np.minimum(1.0, p[order] * np.arange(len(p), 0, -1)))
    return [float(value) for value in adjusted]


def ranks(outcomes: dict[str, Pair]) -> dict[str, Any]:
    """Every run's mean rank over tasks (1 is best, ties share), in the order of the runs, and on how many tasks the
    treated arm is ahead. The sign test takes the tasks as the sample; it is shown, not used for the verdict."""
    table = [stats.rankdata(-np.concatenate([b.mean(1), t.mean(1)]).round(12)) for b, t in outcomes.values()]
    gaps = np.array([round(float(t.mean() - b.mean()), 12) for b, t in outcomes.values()])
    means = np.mean(table, axis=0).tolist() if table else []
    size = len(next(iter(outcomes.values()))[0]) if outcomes else 0
    ahead, behind = int(np.sum(gaps > 0)), int(np.sum(gaps < 0))
    arms = {"base": means[:size], "treated": means[size:]}
    counts = {"ahead": ahead, "behind": behind, "tied": len(table) - ahead - behind}
    return arms | counts | {"sign_test_p": mcnemar(ahead, behind)}


def _doubts(macro: dict[str, Any] | None, seeds: tuple[int, int]) -> list[str]:
    notes = []
    wide = (macro or {}).get("bootstrap")
    if macro and wide and macro["significant"] and wide["low"] <= 0 <= wide["high"]:
        notes.append(
            "the hierarchical bootstrap of the average, which errs on the wide side, includes 0: take more seeds."
        )
    if seeds == (1, 1):
        notes.append(
            "there is one seed in each arm: the tests compare these two checkpoints and say nothing about another "
            "training seed; for a claim about the training, evaluate at least 3 seeds of each."
        )
    elif min(seeds) == 1:
        notes.append("one arm has a single seed: it is given the other arm's seed variance, which cannot be checked.")
    elif min(seeds) < 3:
        notes.append(
            "there are only 2 seeds in an arm: their variance is hardly known, and the intervals are wide for it."
        )
    return notes


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
