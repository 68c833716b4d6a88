"""Do the tests of `decondense significance` keep their level and have the power they state? 1000 comparisons per row.

Every row simulates runs with a known truth (src/decondense/evaluate/simulate.py) on as many items as the ten benchmarks
have. `tasks`: share of comparisons in which at least one of ten tasks is called different after Holm's correction;
`average`: share in which the average is; `pooled`: the same as `tasks` when seeds are counted as items (McNemar on
seeds × items), which is wrong; `satterthwaite`: `tasks` with one t of Satterthwaite's degrees of freedom instead
of Cochran and Cox's critical value; `coverage`: how often the 95 % interval of the average holds the truth.
Without an effect `tasks` and `average` should be at most 0.05 (standard error 0.007 with 1000 comparisons).

    python benchmarks/bench_significance.py                    # 1000 comparisons per row, half an hour on one core
    python benchmarks/bench_significance.py --pairs 100        # a quick look
    python benchmarks/bench_significance.py --measured significance/result.json   # seed spreads as measured there
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import harness
import numpy as np
from scipy import stats

from decondense.evaluate.bootstrap import hierarchical_bootstrap
from decondense.evaluate.paired_tests import Crossed, crossed, crossed_macro, holm, mcnemar
from decondense.evaluate.simulate import Truth, simulate

COLUMNS = ("truth", "seeds", "seed_sd", "effect", "pairs", "tasks", "average", "pooled", "satterthwaite")
COLUMNS += ("coverage", "bootstrap_coverage", "stated_power")


def conditions(measured: Path | None) -> list[tuple[str, Truth, bool]]:
    """(name, truth, paired test)."""
    rows = [
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
    ]
    if measured is not None:
        found = json.loads(measured.read_text())["tasks"]
        spread = tuple(row["seed_sd"] or 0.0 for row in found)
        truth = Truth(
            items=tuple(row["items"] for row in found), accuracy=tuple(row["base"] for row in found), seed_sd=spread
        )
        rows.insert(0, ("seed spread as measured", truth, False))
    return rows


def run(name: str, truth: Truth, paired: bool, pairs: int, seed: int, bootstrap: int = 0) -> harness.Row:
    rng = np.random.default_rng(seed)
    hits = {"tasks": 0, "average": 0, "pooled": 0, "satterthwaite": 0, "coverage": 0, "boot": 0}
    effect = float(np.mean(truth.effect))
    one = truth.seeds == (1, 1)
    for number in range(pairs):
        outcomes = simulate(truth, rng)
        counts = (
            [(int(np.sum(b > a)), int(np.sum(b < a))) for a, b in outcomes] if truth.seeds[0] == truth.seeds[1] else []
        )
        pooled = [mcnemar(gained, lost) for gained, lost in counts]
        estimates = [crossed(a, b, paired=paired) for a, b in outcomes]
        tests = pooled if one else [estimate.p for estimate in estimates]
        single = [2 * stats.t.sf(abs(e.difference) / e.se, e.df) for e in estimates]
        macro = crossed_macro(outcomes, paired=paired)
        hits["tasks"] += min(holm(tests)) <= 0.05
        hits["satterthwaite"] += min(holm(single)) <= 0.05
        hits["average"] += macro.p <= 0.05
        hits["pooled"] += bool(pooled) and min(holm(pooled)) <= 0.05
        low, high = macro.interval()
        hits["coverage"] += low <= effect <= high
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
    if bootstrap:
        row["bootstrap_coverage"] = hits["boot"] / min(pairs, bootstrap)
    return row


def true_design(estimates: list[Crossed]) -> Crossed:
    """One comparison with the true variances of the design: the mean of many unbiased estimates."""
    return replace(
        estimates[0],
        seed_variance=float(np.mean([e.seed_variance for e in estimates])),
        item_variance=float(np.mean([e.item_variance for e in estimates])),
    )


def powered(truth: Truth, pairs: int, seed: int) -> list[harness.Row]:
    """The effect that the design should find 4 times in 5, from the true variances, and how often it is found."""
    rng = np.random.default_rng(seed)
    designs = [simulate(truth, rng) for _ in range(300)]
    rows = []
    effect = true_design([crossed_macro(d) for d in designs]).minimal_effect()
    row = run("difference, average", replace(truth, effect=effect), False, pairs, seed + 1)
    rows.append(row | {"stated_power": 0.8})
    largest = int(np.argmax(truth.items))
    effect = true_design([crossed(*d[largest]) for d in designs]).minimal_effect(alpha=0.05 / len(truth.items))
    effects = np.zeros(len(truth.items))
    effects[largest] = effect
    row = run("difference on the largest task", replace(truth, effect=tuple(effects)), False, pairs, seed + 2)
    rows.append(row | {"effect": effect, "stated_power": 0.8, "coverage": math.nan, "average": math.nan})
    return rows


def main() -> None:
    parser = harness.arguments(__doc__)
    parser.add_argument("--pairs", type=int, default=1000, help="comparisons per row")
    parser.add_argument("--bootstrap", type=int, default=300, help="comparisons that are also bootstrapped")
    parser.add_argument("--measured", type=Path, help="result.json of a comparison with several seeds")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rows: list[harness.Row] = []
    begun = time.monotonic()
    # rows that are done survive an interruption; the same command goes on with the next
    options.out.mkdir(parents=True, exist_ok=True)
    unfinished = options.out / f".significance-{options.pairs}-{options.seed}.jsonl"
    done = {}
    if unfinished.exists():
        done = {entry["key"]: entry["rows"] for entry in map(json.loads, unfinished.read_text().splitlines())}

    def keep(key: str, make: Callable[[], list[harness.Row]]) -> None:
        if key not in done:
            done[key] = make()
            with unfinished.open("a") as file:
                file.write(json.dumps({"key": key, "rows": done[key]}) + "\n")
            print(f"{time.monotonic() - begun:6.0f} s  {key}", flush=True)
        rows.extend(done[key])

    for number, (name, truth, paired) in enumerate(conditions(options.measured)):
        bootstrap = options.bootstrap if name in ("seed spread 0.5 points", "5 seeds") else 0
        seed = options.seed + 100 * number
        keep(name, lambda n=name, t=truth, p=paired, s=seed, b=bootstrap: [run(n, t, p, options.pairs, s, b)])
    for number, truth in enumerate((Truth(), Truth(seeds=(5, 5)))):
        seed = options.seed + 5000 + 100 * number
        keep(f"power {truth.seeds}", lambda t=truth, s=seed: powered(t, options.pairs, s))
    print(harness.table(rows, COLUMNS))
    print(harness.write("significance", rows, options.out))
    unfinished.unlink()
    limit = stats.binom.ppf(0.999, options.pairs, 0.05) / options.pairs
    nulls = [r for r in rows if r["effect"] == 0 and r["truth"] != "1 seed, claim about training"]
    print(
        f"largest false rejection rate: {max(max(r['tasks'], r['average']) for r in nulls):.3f} (allowed {limit:.3f})"
    )


if __name__ == "__main__":
    main()
