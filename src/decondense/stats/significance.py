"""Compare two sets of runs on the same items: ``base`` and ``treated``, one run per training seed.

With several seeds the claim is about the way of training, and seeds and items are both samples (``crossed_macro``).
With one seed in each arm the claim is about two checkpoints, and the items are the sample (McNemar, permutation). The
record says which. docs/statistics.md has the reasons.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from ..evaluate.items import TEXT, Item, Run, load_run
from .bootstrap import hierarchical_bootstrap
from .paired_tests import (
    checkpoint_average,
    crossed,
    crossed_macro,
    holm,
    mcnemar,
    paired_interval,
    permutation,
    smallest_mcnemar_effect,
)
from .pairing import check_runs, match
from .tables import verdict

__all__ = ["SCHEMA", "analyse", "significance"]

SCHEMA = "decondense.significance/1"
Pair = tuple[np.ndarray, np.ndarray]


def significance(
    base: Sequence[str | Path | Run],
    treated: Sequence[str | Path | Run],
    *,
    paired: bool = False,
    common: bool = False,
    alpha: float = 0.05,
    power: float = 0.8,
    bootstrap: int = 2000,
    permutations: int = 10_000,
    seed: int = 0,
) -> dict[str, Any]:
    """Compare evaluations of two ways of training.

    Args:
        base, treated: folders that ``decondense evaluate`` wrote (or loaded runs), one per training seed.
        paired: the i-th base and the i-th treated run share their seed (data order, initial weights). Without it the
            seeds are independent samples, which is also right, only less powerful, when they are not.
        common: compare the items that all runs have; by default runs with different items are refused.
        alpha, power: level of the tests, and the power at which the smallest detectable effect is stated.
        bootstrap, permutations, seed: resamplings and their random stream.

    Returns:
        the content of ``result.json``.
    """
    _check_options(alpha, power, bootstrap, permutations)
    arms = [[r if isinstance(r, Run) else load_run(r) for r in arm] for arm in (base, treated)]
    if not arms[0] or not arms[1]:
        raise ValueError("significance needs at least one base and one treated run: BASE… -- TREATED….")
    if paired and len(arms[0]) != len(arms[1]):
        raise ValueError(
            f"paired seeds need as many base as treated runs, got {len(arms[0])} and {len(arms[1])}: leave "
            "--paired out."
        )
    notes = check_runs(arms)
    matched, said = match(arms, common=common)
    notes += said
    accuracy, likelihood = _outcomes(matched)
    options: dict[str, Any] = {
        "paired": paired,
        "alpha": alpha,
        "power": power,
        "permutations": permutations,
        "seed": seed,
    }
    record: dict[str, Any] = {
        "schema": SCHEMA,
        "base": [_describe(run) for run in arms[0]],
        "treated": [_describe(run) for run in arms[1]],
        "seeds": [len(arms[0]), len(arms[1])],
        "paired": paired,
        "claim": "checkpoints" if len(arms[0]) == len(arms[1]) == 1 else "training",
        "alpha": alpha,
        "power": power,
        "settings": {"common": common, "bootstrap": bootstrap, "permutations": permutations, "seed": seed},
    }
    record |= analyse(accuracy, bootstrap=bootstrap, **options)
    record["likelihood"] = analyse(likelihood, bootstrap=0, **options) if likelihood else None
    record["ranks"] = ranks(accuracy)
    record["notes"] = notes + _seed_notes(record)
    record["verdict"] = verdict(record)
    return record


# -- runs and items ------------------------------------------------------------------------------------------


def _describe(run: Run) -> dict[str, Any]:
    model, checkpoint = run.record["model"], run.record["checkpoint"]
    return {
        "run": run.label,
        "model": model["description"],
        "weights": model["weights"],
        "training_seed": checkpoint.get("training_seed"),
        "selected_by": checkpoint["selected_by"],
        "step": checkpoint.get("step"),
    }


def _outcomes(matched: dict[str, list[list[list[Item]]]]) -> tuple[dict[str, Pair], dict[str, Pair]]:
    """(seeds, items) arrays of both arms: the score of every item, and the log-likelihood of what is right."""
    accuracy: dict[str, Pair] = {}
    likelihood: dict[str, Pair] = {}
    for task, arms in matched.items():
        if not task.startswith(TEXT):
            accuracy[task] = (_table(arms[0], _correct), _table(arms[1], _correct))
        if all(
            item["loglikelihoods"] and (item["gold"] or task.startswith(TEXT))
            for arm in arms
            for r in arm
            for item in r
        ):
            likelihood[task] = (_table(arms[0], _log_share), _table(arms[1], _log_share))
    return accuracy, likelihood


def _table(runs: list[list[Item]], outcome: Any) -> np.ndarray:
    return np.array([[outcome(item) for item in run] for run in runs], dtype=np.float64)


def _correct(item: Item) -> float:
    return float(item["correct"])


def _log_share(item: Item) -> float:
    """With choices, the log of the softmax share of the right ones; with a single continuation its log-likelihood; for
    a window of text its log-likelihood per token. In nats."""
    if item["task"].startswith(TEXT):
        return float(item["loglikelihoods"][0]) / int(item["units"][0])
    values = np.array(item["loglikelihoods"], dtype=np.float64)
    if len(values) == 1:
        return float(values[0])
    right = values[item["gold"]]
    return float(np.logaddexp.reduce(right) - np.logaddexp.reduce(values))


# -- numbers -------------------------------------------------------------------------------------------------


def analyse(
    outcomes: dict[str, Pair],
    *,
    paired: bool = False,
    alpha: float = 0.05,
    power: float = 0.8,
    bootstrap: int = 2000,
    permutations: int = 10_000,
    seed: int = 0,
) -> dict[str, Any]:
    """Tests for every task and for the average over tasks. ``outcomes``: task → (base, treated), each (seeds,
    items)."""
    _check_options(alpha, power, bootstrap, permutations)
    if not outcomes:
        return {"tasks": [], "macro": None}
    tasks = []
    for name, (base, treated) in outcomes.items():
        row = {
            "task": name,
            "items": base.shape[1],
            "base": float(base.mean()),
            "treated": float(treated.mean()),
            "base_seeds": base.mean(1).tolist(),
            "treated_seeds": treated.mean(1).tolist(),
            "difference": float(treated.mean() - base.mean()),
        }
        one = len(base) == len(treated) == 1
        test = _checkpoint_test if one else _training_test
        row |= test(base, treated, paired, alpha / len(outcomes), power, permutations, seed)
        if not one and len(base) == len(treated):
            row["pairs"] = [_one_pair(b, t, permutations, seed) for b, t in zip(base, treated)]
        tasks.append(row)
    for row, adjusted in zip(tasks, holm([row["p"] for row in tasks])):
        row["p_holm"] = adjusted
        row["significant"] = adjusted <= alpha
    macro = _macro(list(outcomes.values()), paired, alpha, power, bootstrap, seed)
    if len(macro["base_seeds"]) == len(macro["treated_seeds"]) == 1:
        macro |= _checkpoint_macro(list(outcomes.values()), tasks, alpha, permutations, seed)
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


def _checkpoint_test(
    base: np.ndarray, treated: np.ndarray, paired: bool, alpha: float, power: float, permutations: int, seed: int
) -> dict[str, Any]:
    first, second = base[0], treated[0]
    low, high = paired_interval(first, second)
    estimate = crossed(base, treated)
    row: dict[str, Any] = {"low": _finite(low), "high": _finite(high), "item_se": estimate.se, "seed_sd": None}
    if _binary(first) and _binary(second):
        gained, lost = int(np.sum(second > first)), int(np.sum(second < first))
        row |= {"test": "exact McNemar", "gained": gained, "lost": lost, "p": mcnemar(gained, lost)}
        row["smallest_effect"] = smallest_mcnemar_effect(
            len(first), (gained + lost) / len(first), alpha=alpha, power=power
        )
    else:
        row |= {"test": "paired permutation", "p": permutation(second - first, samples=permutations, seed=seed)}
        row["smallest_effect"] = estimate.minimal_effect(alpha=alpha, power=power)
    return row


def _training_test(
    base: np.ndarray, treated: np.ndarray, paired: bool, alpha: float, power: float, permutations: int, seed: int
) -> dict[str, Any]:
    estimate = crossed(base, treated, paired=paired)
    low, high = estimate.interval()
    return {
        "low": _finite(low),
        "high": _finite(high),
        "test": "seeds × items",
        "p": estimate.p,
        "df": _finite(estimate.seed_df),
        "seed_sd": _finite(estimate.seed_sd),
        "seed_se": math.sqrt(max(0.0, estimate.seed_variance - estimate.noise)),
        "item_se": math.sqrt(estimate.item_variance + estimate.noise),
        "smallest_effect": estimate.minimal_effect(alpha=alpha, power=power),
    }


def _one_pair(base: np.ndarray, treated: np.ndarray, permutations: int, seed: int) -> dict[str, float]:
    """The i-th two checkpoints against each other, items only: says nothing about another seed."""
    difference = float(treated.mean() - base.mean())
    if _binary(base) and _binary(treated):
        return {"difference": difference, "p": mcnemar(int(np.sum(treated > base)), int(np.sum(treated < base)))}
    return {"difference": difference, "p": permutation(treated - base, samples=permutations, seed=seed)}


def _macro(outcomes: list[Pair], paired: bool, alpha: float, power: float, bootstrap: int, seed: int) -> dict[str, Any]:
    estimate = crossed_macro(outcomes, paired=paired)
    low, high = estimate.interval()
    base = np.mean([b.mean(1) for b, _ in outcomes], axis=0)
    treated = np.mean([t.mean(1) for _, t in outcomes], axis=0)
    row: dict[str, Any] = {
        "tasks": len(outcomes),
        "items": int(sum(b.shape[1] for b, _ in outcomes)),
        "base": float(base.mean()),
        "treated": float(treated.mean()),
        "base_seeds": base.tolist(),
        "treated_seeds": treated.tolist(),
        "difference": estimate.difference,
        "low": _finite(low),
        "high": _finite(high),
        "p": estimate.p,
        "test": "seeds × items",
        "significant": estimate.p <= alpha,
        "se": estimate.se,
        "seed_sd": _finite(estimate.seed_sd),
        "seed_se": math.sqrt(max(0.0, estimate.seed_variance - estimate.noise)),
        "item_se": math.sqrt(estimate.item_variance + estimate.noise),
        "smallest_effect": estimate.minimal_effect(alpha=alpha, power=power),
    }
    if bootstrap and estimate.se > 0:
        row["bootstrap"] = hierarchical_bootstrap(outcomes, estimate, paired=paired, samples=bootstrap, seed=seed)
    return row


def _checkpoint_macro(
    outcomes: list[Pair], tasks: list[dict[str, Any]], alpha: float, permutations: int, seed: int
) -> dict[str, Any]:
    """What differs from ``_macro`` for two checkpoints. With one task it is that task's test."""
    if len(tasks) == 1:
        return {key: tasks[0][key] for key in ("test", "p", "low", "high", "smallest_effect", "significant")}
    p, low, high = checkpoint_average(outcomes, samples=permutations, seed=seed)
    found = {"test": "paired permutation", "p": p, "low": _finite(low), "high": _finite(high)}
    return found | {"significant": p <= alpha}


def ranks(outcomes: dict[str, Pair]) -> dict[str, Any]:
    """Every run's mean rank over tasks (1 is best, ties share), in the order of the runs, and on how many tasks the
    treated arm is ahead. The sign test takes the tasks as the sample; it is shown, not used for the verdict."""
    table = []
    size = 0
    ahead = behind = 0
    for first, second in outcomes.values():
        size = len(first)
        scores = np.concatenate([first.mean(1), second.mean(1)])
        table.append(stats.rankdata(-scores.round(12)))
        gap = round(float(second.mean() - first.mean()), 12)
        ahead += gap > 0
        behind += gap < 0
    means = np.mean(table, axis=0).tolist() if table else []
    return {
        "base": means[:size],
        "treated": means[size:],
        "ahead": int(ahead),
        "behind": int(behind),
        "tied": len(table) - int(ahead) - int(behind),
        "sign_test_p": mcnemar(int(ahead), int(behind)),
    }


def _seed_notes(record: dict[str, Any]) -> list[str]:
    seeds = record["seeds"]
    wide = (record["macro"] or {}).get("bootstrap")
    if wide and record["macro"]["significant"] and wide["low"] <= 0 <= wide["high"]:
        doubt = ["the hierarchical bootstrap of the average, which errs on the wide side, includes 0: take more seeds."]
    else:
        doubt = []
    if record["claim"] == "checkpoints":
        return [
            *doubt,
            "there is one seed in each arm: the tests compare these two checkpoints and say nothing about another "
            "training seed; for a claim about the training, evaluate at least 3 seeds of each.",
        ]
    if min(seeds) == 1:
        return [
            *doubt,
            "one arm has a single seed: it is given the other arm's seed variance, which cannot be checked.",
        ]
    if min(seeds) < 3:
        return [
            *doubt,
            "there are only 2 seeds in an arm: their variance is hardly known, and the intervals are wide for it.",
        ]
    return doubt


def _binary(values: np.ndarray) -> bool:
    return bool(np.all((values == 0) | (values == 1)))


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
