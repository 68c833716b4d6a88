"""Compare two sets of runs on the same items: ``base`` and ``treated``, one run per training seed.

With several seeds the claim is about the way of training, and seeds and items are both samples (``crossed_macro``).
With one seed in each arm the claim is about two checkpoints, and the items are the sample (McNemar, permutation). The
record says which. docs/statistics.md has the reasons.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy

from ..checks import RESAMPLINGS, TOO_FEW_RESAMPLINGS, check_flags, is_whole
from ..evaluate.apart import read_all
from ..evaluate.logs import ROUNDING, Log, Wanted
from ..files import finite, told_apart
from ..records import Significance as Record
from ..words import first_few
from . import checkpoints
from .bootstrap import hierarchical_bootstrap
from .checkpoints import Pair
from .crossed import Crossed, crossed_macro
from .pairing import check_runs, match
from .tables import NAMED, verdict
from .verdicts import finding

if TYPE_CHECKING:
    from ..figures.draw import Where


class Significance(Record, reads=()):
    """The record of a comparison: ``verdict`` in a sentence, its rows as a frame, its forest plot."""

    def plot(self, path: Where = None, **options: Any) -> Any:
        """Draw the comparison with ``decondense.plot``: a file, your axes (``ax=``), or the figure."""
        from ..figures.plot import plot

        return plot(self, path, **options)


def significance(
    base: str | Path | Sequence[str | Path],
    treated: str | Path | Sequence[str | Path],
    *,
    paired: bool = False,
    common: bool = False,
    metric: str | None = None,
    higher_is_better: bool | None = None,
    filter: str | None = None,
    cluster: str | None = None,
    matters: float | None = None,
    alpha: float = 0.05,
    power: float = 0.8,
    bootstrap: int = 2000,
    permutations: int = 10_000,
    seed: int = 0,
) -> Significance:
    """Compare evaluations of two ways of training.

    Args:
        base, treated: one run, or one per training seed: folders that ``decondense evaluate`` wrote, logs of lm-eval,
            inspect_ai or lighteval, tables with the columns item and score (docs/statistics.md, section 1).
        paired: the i-th base and the i-th treated run share their seed (data order, initial weights). Without it the
            seeds count as independent samples, which is valid for paired seeds too, only less powerful.
        common: compare the items that all runs have; by default runs with different items are refused.
        metric: names in order of preference, separated by commas; by default acc, exact_match, or what there is. For a
            table without a column metric, what its scores are: a loss is better when lower.
        higher_is_better: whether more of the metric is better: of the one named with metric, else of those of which
            neither the log nor the name says so.
        filter: the lm-eval filter that read the answers; by default the first in the log.
        cluster: the field that groups the items (a subject, a passage); groups, not items, are then independent.
        matters: the smallest difference of the average that would matter, in points, stated before looking: the
            verdict then tells an effect that matters from one that does not, and no effect from an undecided one.
        alpha, power: level of the tests, and the power at which the smallest detectable effect is stated.
        bootstrap, permutations, seed: resamplings and their random stream.

    Returns:
        the content of ``result.json``, with ``to_pandas()`` and ``plot()``.
    """
    check_flags(paired=paired, common=common)
    if higher_is_better is not None:
        check_flags(higher_is_better=higher_is_better)
    check_options(alpha, power, bootstrap, permutations, seed)
    if matters is not None and not matters > 0:
        raise ValueError(f"matters must be a difference above 0, in points, got {matters}: take 0.3, for instance.")
    bootstrap, permutations, seed = map(int, (bootstrap, permutations, seed))  # no JSON of numpy's numbers
    matters = None if matters is None else float(matters)
    names = tuple(name.strip() for name in (metric or "").split(",") if name.strip())
    wanted = Wanted(names, filter, cluster, higher_is_better)
    inputs = [_several(arm) for arm in (base, treated)]
    logs = read_all([*inputs[0], *inputs[1]], wanted)
    arms = [[log for some in part for log in some] for part in (logs[: len(inputs[0])], logs[len(inputs[0]) :])]
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
    notes = check_runs(arms, paired=paired)
    matched, left_out = match(arms, common=common)
    clusters = {task: one.clusters for task, one in matched.items()}
    accuracy = {task: one.score for task, one in matched.items() if one.score is not None}
    likelihood = {task: one.likelihood for task, one in matched.items() if one.likelihood is not None}
    chance = {task: one.chance for task, one in matched.items()}
    smallest = None if matters is None else matters / 100
    _check_ties([*accuracy.values(), *likelihood.values()])
    options: dict[str, Any] = {
        "paired": paired, "alpha": alpha, "power": power, "permutations": permutations, "seed": seed,
        "clusters": clusters,
    }  # fmt: skip
    given_options: dict[str, Any] = {
        "metric": metric, "higher_is_better": higher_is_better, "filter": filter, "cluster": cluster, "matters": matters
    }  # fmt: skip
    settings: dict[str, Any] = {"common": common, "bootstrap": bootstrap, "permutations": permutations, "seed": seed}
    settings |= {key: value for key, value in given_options.items() if value is not None}
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
        **analyse(accuracy, bootstrap=bootstrap, matters=smallest, chance=chance, **options),
        "likelihood": analyse(likelihood, bootstrap=0, **options) if likelihood else None,
        "ranks": ranks(accuracy),
    }
    content["notes"] = [
        *notes,
        *left_out,
        *_untouched(runs[0], accuracy, higher_is_better),
        *_doubts(content["macro"], seeds),
    ]
    record = Significance.model_validate(content | {"verdict": ""})
    record.verdict = verdict(record)
    return record


# -- runs and items ------------------------------------------------------------------------------------------


def _several(runs: str | Path | Sequence[str | Path]) -> Sequence[str | Path]:
    several: list[Any] = [runs] if isinstance(runs, str | Path) or hasattr(runs, "columns") else list(runs)
    for run in several:
        if not isinstance(run, str | Path):
            raise TypeError(
                f"runs must be paths of logs or tables, got {type(run).__name__}: write a frame with the columns item "
                "and score to a file, frame.to_csv(path, index=False)."
            )
    return several


def _describe(run: Log) -> dict[str, Any]:
    if run.record is None:
        named = {"run": run.label, "model": run.model, "tool": run.tool, "log": run.fingerprint}
        return named | {"training_seed": run.seed}
    model, checkpoint = run.record.model, run.record.checkpoint
    named = {"run": run.label, "model": model.description, "weights": model.weights}
    return named | {key: getattr(checkpoint, key) for key in ("training_seed", "selected_by", "step")}


def _check_ties(outcomes: Iterable[Pair]) -> None:
    """Refuse runs that agree on every single outcome: they are the same run, or were misread."""
    if all(np.ptp(np.concatenate(pair), axis=0).max() == 0 for pair in outcomes):
        raise ValueError(
            "the runs must differ on at least one item, but every outcome is the same in all of them: "
            "there is nothing to test; check that base and treated are different models."
        )


# -- numbers -------------------------------------------------------------------------------------------------


def analyse(
    outcomes: dict[str, Pair], *, paired: bool = False, alpha: float = 0.05, power: float = 0.8, bootstrap: int = 2000,
    permutations: int = 10_000, seed: int = 0, clusters: Mapping[str, np.ndarray | None] | None = None,
    matters: float | None = None, chance: Mapping[str, float] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Tests for every task and for the average over tasks, as rows of ``records.Differences``. ``outcomes``: task →
    (base, treated), each (seeds, items); ``clusters``: task → (items,) numbers of groups; ``matters``: see ``finding``;
    ``chance``: task → what guessing scores, for the signal-to-noise ratio and the average weighted by it."""
    if not outcomes:
        return {"tasks": [], "macro": None}
    pairs = list(outcomes.values())
    groups = [(clusters or {}).get(task) for task in outcomes]
    counts = {len(arm) for pair in pairs for arm in pair}
    # scores that have a chance level and lie between 0 and 1 (turned: −1 and 0) differ by 1 at most
    shares = chance is not None and all(np.abs(arm).max() <= 1 + ROUNDING for pair in pairs for arm in pair)
    test: dict[str, Any] = {"paired": paired, "power": power, "permutations": permutations, "seed": seed}
    test["most"] = 1.0 if shares else math.inf
    tasks = []
    for (name, pair), group in zip(outcomes.items(), groups):
        row, estimate = _row([pair], [group], alpha=alpha / len(outcomes), **test)
        if len(counts) == 1 and counts != {1}:
            # the i-th base against the i-th treated checkpoint, over items only: says nothing about another seed
            row["pairs"] = [
                {"difference": float(t.mean() - b.mean()), "p": _paired_test(b, t, permutations, seed)["p"]}
                for b, t in zip(*pair)
            ]
        if chance is not None:
            above = (row["base"] + row["treated"]) / 2 - chance[name]
            row["signal_to_noise"] = above / row["se"] if row["se"] > 0 else None
        tasks.append({"task": name} | row)
    for row, adjusted in zip(tasks, holm([row["p"] for row in tasks])):
        row |= {"p_holm": adjusted, "significant": adjusted <= alpha}
    if len(pairs) > 1:
        macro, estimate = _row(pairs, groups, alpha=alpha, **test)
    else:
        macro = {key: value for key, value in tasks[0].items() if key not in ("task", "pairs", "p_holm")}
    macro |= {"tasks": len(pairs), "significant": macro["p"] <= alpha}
    if bootstrap and estimate.se > 0:
        macro["bootstrap"] = hierarchical_bootstrap(
            pairs, estimate, paired=paired, samples=bootstrap, seed=seed, clusters=groups
        )
    ratios = [max(0.0, row.get("signal_to_noise") or 0.0) for row in tasks]
    if sum(ratio > 0 for ratio in ratios) > 1:
        weights = [ratio / sum(ratios) for ratio in ratios]
        weighted, _ = _row(pairs, groups, alpha=alpha, weights=weights, **test)
        macro["weighted"] = weighted | {"significant": weighted["p"] <= alpha, "weights": dict(zip(outcomes, weights))}
    for row in (*tasks, macro, *([macro["weighted"]] if "weighted" in macro else [])):
        inner = row.pop("inner")
        if matters is not None:
            row["finding"] = finding(row, inner, matters, significant=row["significant"])
    return {"tasks": tasks, "macro": macro}


def check_options(alpha: float, power: float, bootstrap: int, permutations: int, seed: int) -> None:
    if not 0 < alpha < 1 or not 0 < power < 1:
        raise ValueError(f"alpha and power must lie between 0 and 1, got {alpha} and {power}: take 0.05 and 0.8.")
    if power <= alpha:
        raise ValueError(
            f"power must be above alpha, got {power} and {alpha}: even without a difference a test rejects with "
            "probability alpha; take 0.8."
        )
    if not is_whole(bootstrap, 0) or 0 < bootstrap < RESAMPLINGS:
        raise ValueError(
            f"bootstrap must be a number of resamplings, at least {RESAMPLINGS}, as {TOO_FEW_RESAMPLINGS}, got "
            f"{bootstrap!r}: take 2000, or 0 to leave it out."
        )
    if not is_whole(permutations, 1):
        raise ValueError(f"permutations must be a whole number of at least 1, got {permutations!r}: take 10000.")
    if not is_whole(seed, 0):
        raise ValueError(f"seed must be a whole number of at least 0, got {seed!r}: leave it out for 0.")


def _row(
    pairs: list[Pair], clusters: list[np.ndarray | None], *, paired: bool, alpha: float, power: float,
    permutations: int, seed: int, most: float, weights: Sequence[float] | None = None,
) -> tuple[dict[str, Any], Crossed]:  # fmt: skip
    """treated − base on one task, or on the average over several. ``inner``: the 90 % interval; ``most``: the largest
    difference there can be."""
    estimate = crossed_macro(pairs, paired=paired, clusters=clusters, weights=weights)
    seeds = [np.average([pair[arm].mean(1) for pair in pairs], axis=0, weights=weights) for arm in (0, 1)]
    base, treated = (float(arm.mean()) for arm in seeds)
    ends = estimate.interval(), estimate.interval(0.9)
    grouped = any(group is not None for group in clusters)
    row: dict[str, Any] = {
        "items": int(sum(b.shape[1] for b, _ in pairs)),
        "base": base,
        "treated": treated,
        "base_seeds": seeds[0].tolist(),
        "treated_seeds": seeds[1].tolist(),
        "difference": treated - base,
        "test": "seeds × items",
        "p": estimate.p,
        "df": finite(estimate.seed_df),
        "se": estimate.se,
        "seed_sd": finite(estimate.seed_sd),
        "seed_se": math.sqrt(max(0.0, estimate.seed_variance - estimate.noise)),
        "item_se": math.sqrt(estimate.item_variance + estimate.noise),
        "smallest_effect": estimate.minimal_effect(alpha=alpha, power=power),
    }
    if grouped:
        row |= {"clusters": int(sum(g.max() + 1 for g in clusters if g is not None)), "effective": estimate.effective}
    if len(seeds[0]) == len(seeds[1]) == 1:
        if len(pairs) == 1 and not grouped:
            first, second = pairs[0][0][0], pairs[0][1][0]
            row |= _paired_test(first, second, permutations, seed)
            ends = checkpoints.paired_interval(first, second), checkpoints.paired_interval(first, second, level=0.9)
        else:
            p, *averages = checkpoints.checkpoint_average(pairs, weights, clusters, samples=permutations, seed=seed)
            row |= {"p": p, "test": "paired permutation" + (" of clusters" if grouped else "")}
            if not grouped:
                ends = averages[0], averages[1]
        if not grouped and weights is None:
            # graded outcomes keep the effect from their spread, unless too few items differ for the test to reject
            binary, spreads = all(checkpoints.is_binary(*pair) for pair in pairs), row["smallest_effect"] is not None
            if binary or (spreads and checkpoints.few_differ(pairs, alpha=alpha, power=power)):
                row["smallest_effect"] = checkpoints.smallest_effect(pairs, alpha=alpha, power=power)
    if (row["smallest_effect"] or 0.0) > most:
        row["smallest_effect"] = None
    (low, high), inner = ends
    return row | {"low": finite(low), "high": finite(high), "inner": inner}, estimate


def _paired_test(base: np.ndarray, treated: np.ndarray, permutations: int, seed: int) -> dict[str, Any]:
    """The test of two checkpoints on the items of one task."""
    if checkpoints.is_binary(base, treated):
        gained, lost = int(np.sum(treated > base)), int(np.sum(treated < base))
        return {"test": "exact McNemar", "gained": gained, "lost": lost, "p": checkpoints.mcnemar(gained, lost)}
    return {"test": "paired permutation", "p": checkpoints.permutation(treated - base, samples=permutations, seed=seed)}


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
    table = [scipy.stats.rankdata(-np.concatenate([b.mean(1), t.mean(1)]).round(12)) for b, t in outcomes.values()]
    gaps = np.array([round(float(t.mean() - b.mean()), 12) for b, t in outcomes.values()])
    means = np.mean(table, axis=0).tolist() if table else []
    size = len(next(iter(outcomes.values()))[0]) if outcomes else 0
    ahead, behind = int(np.sum(gaps > 0)), int(np.sum(gaps < 0))
    arms = {"base": means[:size], "treated": means[size:]}
    counts = {"ahead": ahead, "behind": behind, "tied": len(table) - ahead - behind}
    return arms | counts | {"sign_test_p": checkpoints.mcnemar(ahead, behind)}


def _untouched(run: Log, tasks: Iterable[str], higher_is_better: bool | None) -> list[str]:
    """Say for which tasks the user's word on the direction does not count."""
    opposite = [task for task in tasks if run.tasks[task].lower == higher_is_better]
    if not opposite:
        return []
    return [
        f"{first_few(opposite, NAMED)}: the log or the metric's name says the opposite of "
        f"--{'higher' if higher_is_better else 'lower'}-is-better, which does not hold here: name it with --metric."
    ]


def _doubts(macro: dict[str, Any] | None, seeds: tuple[int, int]) -> list[str]:
    notes = []
    wide = (macro or {}).get("bootstrap")
    if macro and wide and macro["significant"] and wide["low"] <= 0 <= wide["high"]:
        notes.append(
            "the average differs by the test, but its hierarchical bootstrap interval, which errs on the wide side, "
            "includes 0: take more seeds."
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
            "an arm has only 2 seeds: their variance is hardly known, which makes the intervals wide; take 3 or more."
        )
    return notes
