"""How often the meter's 95 % intervals hold the truth, with few windows and with many.

The windows of a finished measurement serve as the population: windows are drawn from them with replacement, the meter's
bootstrap makes its intervals from the draw, and the truth is the statistic of all of them. `plain` counts the 2.5 and
97.5 % percentiles of the same resamplings, `expanded` the meter's own interval (`stats.intervals.bootstrap`).

    decondense measure stories260K --windows 800 --tokens 256 --out stories
    python benchmarks/coverage_of_windows.py stories results/smollm2-135m-wikitext2        # minutes on a CPU
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import harness
import numpy as np

from decondense import load
from decondense.meter.result import Condensation
from decondense.meter.trend import curve_statistics
from decondense.stats.intervals import bootstrap

STATISTICS = ("mean cosine of the blocks", "Spearman")
WINDOWS = (4, 6, 10, 15, 20, 50, 100)


def both(curves: np.ndarray) -> np.ndarray:
    """curves (…, L+1) → (…, 2), in the order of `STATISTICS`."""
    return np.stack([curves[..., 1:].mean(-1), curve_statistics(curves)[..., 0]], axis=-1)


def coverage(population: np.ndarray, windows: int, simulations: int) -> np.ndarray:
    """(2, statistics): how often plain and expanded percentiles hold the truth."""
    rng, truth = np.random.default_rng(windows), both(population.mean(0))
    hits, last = np.zeros((2, len(STATISTICS))), [truth]

    def kept(curves: np.ndarray) -> np.ndarray:
        last[0] = both(curves)  # the last call is with all resamplings
        return last[0]

    for seed in range(simulations):
        _, *ends = bootstrap(population[rng.integers(len(population), size=windows)], kept, seed=seed)
        plain = np.quantile(np.nan_to_num(last[0]), [0.025, 0.975], axis=0)
        hits += [(low <= truth) & (truth <= high) for low, high in (plain, ends)]
    return hits / simulations


def rows(result: Condensation, simulations: int) -> Iterator[list[harness.Row]]:
    what = {"model": result.label, "text": result.text, "drawn_from": len(result.per_window)}
    for windows in WINDOWS:
        found = coverage(result.per_window, windows, simulations).T
        yield [
            what | {"statistic": name, "windows": windows, "nominal": 0.95, "plain": plain, "expanded": expanded}
            | {"simulations": simulations}
            for name, (plain, expanded) in zip(STATISTICS, found)
        ]  # fmt: skip


def main() -> None:
    parser = harness.arguments(__doc__)
    parser.add_argument("results", nargs="+", type=Path, help="measurements to draw windows from")
    parser.add_argument("--simulations", type=int, default=1000)
    o = parser.parse_args()
    parts = (part for path in o.results for part in rows(load(path), o.simulations))
    found, path = harness.collect("coverage_windows", parts, o.out)
    print(harness.table(found, [key for key in found[0] if key not in ("text", "drawn_from")]))
    print(path)


if __name__ == "__main__":
    main()
