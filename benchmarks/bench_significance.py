"""Do the tests of `decondense significance` keep their level and have the power they state? Many comparisons per row.

Every row simulates runs with a known truth (simulated_runs.py) on as many items as the ten benchmarks
have. `tasks`: share of comparisons in which at least one of ten tasks is called different after Holm's correction;
`average`: share in which the average is; `pooled`: the same as `tasks` when seeds are counted as items (McNemar on
seeds × items), which is wrong; `satterthwaite`: `tasks` with one t of Satterthwaite's degrees of freedom instead
of Cochran and Cox's critical value; `coverage`: how often the 95 % interval of the average holds the truth.
`task_coverage`: the same of single tasks; `tied`: in what share of these the seeds agree by chance (A < C/2, see
`crossed_macro`), `tied_coverage` how often the interval holds the truth there, and `without_floor` how often it would
without the floor. `weighted`: coverage of the average weighted by signal to noise. `matters`, `small`, `none`,
`undecided`: what is said of the average where 0.3 points would matter.
Without an effect `tasks` and `average` should be at most 0.05 (standard error 0.010 with 500 comparisons). In the rows
with a difference on the largest task only that task is looked at, at a tenth of the level, the first step of Holm.

    python benchmarks/bench_significance.py                    # 1000 comparisons per row, half an hour on one core
    python benchmarks/bench_significance.py --pairs 100        # a quick look
    python benchmarks/bench_significance.py --only "1 seed" difference   # these rows anew, the others as they are
    python benchmarks/bench_significance.py --only "seed spread as measured" --measured FILE   # with FILE's spreads

FILE is the result.json of `decondense significance` or of `decondense study benchmarks`; by default the study's that is
committed.
"""

from __future__ import annotations

import csv
import json
import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import harness
import numpy as np
from scipy import stats
from simulated_runs import Truth, simulate

from decondense.stats.bootstrap import hierarchical_bootstrap
from decondense.stats.checkpoints import checkpoint_average, mcnemar, smallest_effect
from decondense.stats.crossed import Crossed, crossed_macro
from decondense.stats.significance import holm
from decondense.stats.verdicts import MATTERS as MATTER
from decondense.stats.verdicts import NONE, SMALL, UNDECIDED, finding

COLUMNS = ("truth", "seeds", "seed_sd", "effect", "pairs", "tasks", "average", "pooled", "satterthwaite")
COLUMNS += ("coverage", "bootstrap_coverage", "stated_power", "task_coverage", "tied", "tied_coverage", "without_floor")
COLUMNS += ("weighted", "matters", "small", "none", "undecided")
MATTERS = 0.003
FINDINGS = {MATTER: "matters", SMALL: "small", NONE: "none", UNDECIDED: "undecided"}
STUDY = Path(__file__).parents[1] / "results" / "studies" / "benchmarks" / "result.json"


def measured_truth(file: Path) -> Truth:
    """Items, accuracies and seed spreads of every task of a comparison, without a difference between the arms."""
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        found = _task_rows(record)
        items, base = [int(row["items"]) for row in found], [float(row["base"]) for row in found]
        spread = [float(row["seed_sd"]) for row in found]
        # for paired seeds the record has the spread of a pair's difference, √2 times that of independent seeds
        scale = 1 / math.sqrt(2) if record.get("paired") else 1.0
    except (OSError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            "--measured must be the result.json of `decondense significance` with several seeds or of `decondense "
            f"study benchmarks`, got {str(file)!r}: name such a file."
        ) from error
    return Truth(items=tuple(items), accuracy=tuple(base), seed_sd=tuple(scale * sd for sd in spread))


def _task_rows(record: dict[str, Any]) -> list[dict[str, Any]]:
    """A significance result lists its tasks; a study's has a table, in which the averages come last."""
    if "table" not in record:
        rows = record["tasks"]
    else:
        rows = [dict(zip(record["table"]["columns"], values)) for values in record["table"]["rows"]]
        rows = [row for row in rows if not row["task"].startswith("average")]
    if not rows:
        raise ValueError("there are no tasks in it")
    return rows


def conditions(measured: Path) -> list[tuple[str, Truth, bool]]:
    """(name, truth, paired test)."""
    return [
        ("no seed variance", Truth(seed_sd=0.0), False),
        ("seed spread 0.1 points", Truth(seed_sd=0.001), False),
        ("seed spread 0.5 points", Truth(), False),
        ("seed spread 1 point", Truth(seed_sd=0.01), False),
        ("one task spreads by 2 points", Truth(seed_sd=(0.003,) * 9 + (0.02,)), False),
        ("seeds move all tasks together", Truth(seed_correlation=0.9), False),
        ("items changed by the training", Truth(persistent=0.1), False),
        ("2 seeds", Truth(seeds=(2, 2)), False),
        ("5 seeds", Truth(seeds=(5, 5)), False),
        ("1 against 3 seeds", Truth(seeds=(1, 3)), False),
        ("paired seeds, paired test", Truth(paired_correlation=0.8), True),
        ("paired seeds, unpaired test", Truth(paired_correlation=0.8), False),
        ("1 seed, items as the sample", Truth(seeds=(1, 1), seed_sd=0.0), False),
        ("1 seed, claim about training", Truth(seeds=(1, 1)), False),
        ("seed spread as measured", measured_truth(measured), False),
        ("items in clusters of 20, named", Truth(cluster=20), False),
        ("items in clusters of 20, not named", Truth(cluster=20), False),
        ("as measured, half of what matters", replace(measured_truth(measured), effect=MATTERS / 2), False),
        ("as measured, just what matters", replace(measured_truth(measured), effect=MATTERS), False),
        ("as measured, four times that", replace(measured_truth(measured), effect=4 * MATTERS), False),
    ]


def run(
    name: str, truth: Truth, paired: bool, pairs: int, seed: int, bootstrap: int = 0, level: float = 0.05
) -> harness.Row:
    """``level``: of the tests; the interval is the 95 % one."""
    rng = np.random.default_rng(seed)
    hits = dict.fromkeys(("tasks", "average", "pooled", "satterthwaite", "coverage", "boot", "weighted"), 0)
    hits |= dict.fromkeys((*FINDINGS.values(), "task_coverage", "tied", "tied_coverage", "without_floor"), 0)
    effect = float(np.mean(truth.effect))
    one = truth.seeds == (1, 1)
    for number in range(pairs):
        outcomes = simulate(truth, rng)
        counts = (
            [(int(np.sum(b > a)), int(np.sum(b < a))) for a, b in outcomes] if truth.seeds[0] == truth.seeds[1] else []
        )
        pooled = [mcnemar(gained, lost) for gained, lost in counts]
        groups = [None] * len(outcomes) if name.endswith("not named") else truth.clusters()
        estimates = [crossed_macro([pair], paired=paired, clusters=[g]) for pair, g in zip(outcomes, groups)]
        tests = pooled if one else [estimate.p for estimate in estimates]
        single = [2 * stats.t.sf(abs(e.difference) / e.se, satterthwaite(e)) for e in estimates]
        macro = crossed_macro(outcomes, paired=paired, clusters=groups)
        p, (low, high), _ = checkpoint_average(outcomes, samples=1000) if one else (macro.p, macro.interval(), None)
        hits["tasks"] += min(holm(tests)) <= level
        hits["satterthwaite"] += min(holm(single)) <= level
        hits["average"] += p <= level
        hits["pooled"] += bool(pooled) and min(holm(pooled)) <= level
        hits["coverage"] += low <= effect <= high
        if not one and len(outcomes) > 1:
            _new_rules(hits, truth, outcomes, estimates, macro, groups, paired, p <= level)
        if number < bootstrap:
            found = hierarchical_bootstrap(outcomes, macro, paired=paired, samples=300, seed=0)
            hits["boot"] += found["low"] <= effect <= found["high"]
    row: harness.Row = {
        "truth": name,
        "seeds": f"{truth.seeds[0]}+{truth.seeds[1]}",
        "seed_sd": float(np.mean(truth.seed_sd)),
        "effect": effect,
        "pairs": pairs,
        "tasks": hits["tasks"] / pairs,
        "average": hits["average"] / pairs,
        "pooled": hits["pooled"] / pairs if truth.seeds[0] == truth.seeds[1] else math.nan,
        "satterthwaite": math.nan if one else hits["satterthwaite"] / pairs,
        "coverage": hits["coverage"] / pairs,
        "standard_error": math.sqrt(0.05 * 0.95 / pairs),
        "stated_power": "",
    }
    if not one and len(truth.items) > 1:
        row |= {key: hits[key] / pairs for key in ("weighted", *FINDINGS.values())}
        row |= {key: hits[key] / pairs / len(truth.items) for key in ("task_coverage", "tied")}
        row |= {
            key: hits[key] / hits["tied"] if hits["tied"] else math.nan for key in ("tied_coverage", "without_floor")
        }
    if bootstrap:
        row["bootstrap_coverage"] = hits["boot"] / min(pairs, bootstrap)
    return row


def _new_rules(
    hits: dict[str, int], truth: Truth, outcomes: list[Any], estimates: list[Crossed], macro: Crossed,
    groups: list[np.ndarray | None], paired: bool, significant: bool,
) -> None:  # fmt: skip
    effects = np.broadcast_to(np.asarray(truth.effect, dtype=np.float64), (len(outcomes),))
    ratios = []
    for (base, treated), estimate, effect in zip(outcomes, estimates, effects):
        low, high = estimate.interval()
        inside = low <= effect <= high or (math.isnan(low) and estimate.difference == effect)
        hits["task_coverage"] += inside
        arms = [treated.mean(1) - base.mean(1)] if paired else [base.mean(1), treated.mean(1)]
        raw = tuple((float(np.var(m, ddof=1)) / len(m), len(m) - 1.0) for m in arms if len(m) > 1)
        if len(raw) < len(arms):
            raw = ((raw[0][0] * (1 + max(map(len, arms))), raw[0][1]),)
        if sum(variance for variance, _ in raw) < estimate.noise / 2:
            low, high = replace(estimate, seeds=raw).interval()
            hits["tied"] += 1
            hits["tied_coverage"] += inside
            hits["without_floor"] += low <= effect <= high
        # the simulated tasks have no choices: guessing scores nothing
        ratios.append((base.mean() + treated.mean()) / 2 / estimate.se if estimate.se else 0.0)
    weights = np.array(ratios) / sum(ratios)
    low, high = crossed_macro(outcomes, paired=paired, clusters=groups, weights=weights).interval()
    hits["weighted"] += low <= weights @ effects <= high
    low, high = macro.interval()
    hits[FINDINGS[finding({"low": low, "high": high}, macro.interval(0.9), MATTERS, significant=significant)]] += 1


def satterthwaite(estimate: Crossed) -> float:
    """Satterthwaite's degrees of freedom of the sum of both variances, over seeds and items; the test uses others."""
    parts = ((estimate.seed_variance, estimate.seed_df), (estimate.item_variance, estimate.item_df))
    bottom = sum(variance**2 / df for variance, df in parts)
    return estimate.se**4 / bottom if bottom > 0 else math.inf


def true_design(estimates: list[Crossed]) -> Crossed:
    """One comparison with the true variances of the design: the mean of many unbiased estimates."""
    arms = range(len(estimates[0].seeds))
    return replace(
        estimates[0],
        seeds=tuple((float(np.mean([e.seeds[arm][0] for e in estimates])), estimates[0].seeds[arm][1]) for arm in arms),
        item_variance=float(np.mean([e.item_variance for e in estimates])),
    )


def stated(design: Crossed, *, alpha: float = 0.05) -> float:
    effect = design.minimal_effect(alpha=alpha)
    assert effect is not None  # simulated outcomes vary
    return effect


def powered(truth: Truth, pairs: int, seed: int) -> list[harness.Row]:
    """The effect that the design should find 4 times in 5, from the true variances, and how often it is found."""
    rng = np.random.default_rng(seed)
    designs = [simulate(truth, rng) for _ in range(300)]
    rows = []
    effect = stated(true_design([crossed_macro(d) for d in designs]))
    row = run("difference, average", replace(truth, effect=effect), False, pairs, seed + 1)
    rows.append(row | {"stated_power": 0.8})
    largest, level = int(np.argmax(truth.items)), 0.05 / len(truth.items)
    effect = stated(true_design([crossed_macro([d[largest]]) for d in designs]), alpha=level)
    alone = replace(truth, items=(truth.items[largest],), accuracy=(truth.accuracy[largest],), effect=effect)
    row = run("difference on the largest task", alone, False, pairs, seed + 2, level=level)
    rows.append(row | {"stated_power": 0.8, "coverage": math.nan, "average": math.nan})
    return rows


def few_differing(pairs: int, seed: int) -> list[harness.Row]:
    """Two checkpoints that differ on a few items: the difference that is stated from them, and how often it is found
    where so many items differ, or as many as the difference needs."""
    rows = []
    for items, differing in (((120,), (3,)), ((60, 60), (2, 1)), ((20, 40, 60, 500), (1, 0, 2, 8))):
        rng = np.random.default_rng(seed)
        seen = [_two_checkpoints(n, k - k // 2, k // 2) for n, k in zip(items, differing)]
        effect = smallest_effect(seen)
        assert effect is not None  # the items are enough
        hits = covered = 0
        for _ in range(pairs):
            tasks = []
            for n, k in zip(items, differing):
                share = max(k / n, effect)
                gained, lost, _same = rng.multinomial(n, [(share + effect) / 2, (share - effect) / 2, 1 - share])
                tasks.append(_two_checkpoints(n, gained, lost))
            p, (low, high), _ = checkpoint_average(tasks, samples=1000)
            hits += p <= 0.05
            covered += low <= effect <= high
        name = f"difference, {sum(differing)} of {sum(items)} items of {len(items)} task{'s' * (len(items) > 1)} differ"
        row: harness.Row = {"truth": name, "seeds": "1+1", "seed_sd": 0.0, "effect": effect, "pairs": pairs}
        row |= dict.fromkeys(("tasks", "pooled", "satterthwaite"), math.nan)
        row |= {"average": hits / pairs, "coverage": covered / pairs, "stated_power": 0.8}
        rows.append(row | {"standard_error": math.sqrt(0.05 * 0.95 / pairs)})
    return rows


def _two_checkpoints(items: int, gained: int, lost: int) -> tuple[np.ndarray, np.ndarray]:
    base, treated = np.zeros((2, 1, items))
    treated[0, :gained] = base[0, gained : gained + lost] = 1
    return base, treated


def renewed(rows: list[harness.Row], out: Path) -> Path:
    """Put these rows in the place of those with the same truth and seeds in out/significance.csv, new ones last."""

    def read(path: Path) -> list[dict[str, str]]:
        with path.open(newline="") as file:
            return list(csv.DictReader(file))

    with tempfile.TemporaryDirectory() as folder:
        fresh = {(r["truth"], r["seeds"]): r for r in read(harness.write("significance", rows, Path(folder)))}
    path = out / "significance.csv"
    lines = [fresh.pop((r["truth"], r["seeds"]), r) for r in read(path)] + list(fresh.values())
    part = path.with_suffix(".part")
    with part.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(key for line in lines for key in line)))
        writer.writeheader()
        writer.writerows(lines)
    part.replace(path)
    return path


def main() -> None:
    parser = harness.arguments(__doc__)
    parser.add_argument("--pairs", type=int, default=1000, help="comparisons per row")
    parser.add_argument("--bootstrap", type=int, default=300, help="comparisons that are also bootstrapped")
    parser.add_argument("--measured", type=Path, default=STUDY, help="result.json of a comparison with several seeds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", metavar="WORDS", help="only the rows whose truth begins with these words")
    options = parser.parse_args()
    try:
        rows_wanted = conditions(options.measured)
    except ValueError as error:
        parser.error(str(error))
    rows: list[harness.Row] = []
    begun = time.monotonic()
    # rows that are done survive an interruption; the same command goes on with the next
    options.out.mkdir(parents=True, exist_ok=True)
    unfinished = options.out / f".significance-{options.pairs}-{options.seed}.jsonl"
    done = {}
    if unfinished.exists():
        done = {entry["key"]: entry["rows"] for entry in map(json.loads, unfinished.read_text().splitlines())}

    def keep(key: str, make: Callable[[], list[harness.Row]]) -> None:
        if options.only and not key.startswith(tuple(options.only)):
            return
        if key not in done:
            done[key] = make()
            with unfinished.open("a") as file:
                file.write(json.dumps({"key": key, "rows": done[key]}) + "\n")
            print(f"{time.monotonic() - begun:6.0f} s  {key}", flush=True)
        rows.extend(done[key])

    for number, (name, truth, paired) in enumerate(rows_wanted):
        bootstrap = options.bootstrap if name in ("seed spread 0.5 points", "5 seeds", "1 against 3 seeds") else 0
        seed = options.seed + 100 * number
        keep(name, lambda n=name, t=truth, p=paired, s=seed, b=bootstrap: [run(n, t, p, options.pairs, s, b)])
    for number, truth in enumerate((Truth(), Truth(seeds=(5, 5)))):
        seed = options.seed + 5000 + 100 * number
        keep(f"difference {truth.seeds}", lambda t=truth, s=seed: powered(t, options.pairs, s))
    keep("difference, few items differ", lambda: few_differing(options.pairs, options.seed + 6000))
    if not rows:
        parser.error(f"no row begins with {' or '.join(options.only)}: see the column truth of significance.csv.")
    print(harness.table(rows, COLUMNS))
    print(renewed(rows, options.out) if options.only else harness.write("significance", rows, options.out))
    unfinished.unlink()
    limit = stats.binom.ppf(0.999, options.pairs, 0.05) / options.pairs
    nulls = [r for r in rows if r["effect"] == 0 and r["truth"] != "1 seed, claim about training"]
    worst = max((max(r["tasks"], r["average"]) for r in nulls), default=math.nan)
    print(f"largest false rejection rate: {worst:.3f} (allowed {limit:.3f})")


if __name__ == "__main__":
    main()
