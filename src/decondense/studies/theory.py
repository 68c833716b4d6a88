"""Appendix E: the propositions, numerically and by simulation. docs/theory.md has the proofs.

This is mathematics: nothing is trained, and no seed or interval is behind the verdict. Criterion: E.1, E.2 and both
of its published bounds hold on the whole grid of lengths r and paddings m. The corrected upper bounds are checked on
the same grid.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from .. import theory
from ..figures.theory import theory_figure
from ..stats.verdicts import NOT, REPRODUCED
from .core import Conclusion, Study
from .runs import Runs
from .settings import Settings

CRITERION = (
    "E.1 holds, E.2 holds, and both of its published bounds hold on the whole grid of lengths and paddings. This "
    "is mathematics: there is no seed and no interval."
)


def on_grid(settings: Settings) -> dict[str, Any]:
    """Every proposition on the grid of the settings, and E.2 by simulation."""
    rng = np.random.default_rng(0)
    worst = 0.0
    for times in (2, 3, 7):  # E.1
        x, y = rng.standard_normal((2, 64))
        stretched = theory.cosine(np.repeat(x, times), np.repeat(y, times))
        worst = max(worst, abs(stretched - theory.cosine(x, y)))
    simulated = []
    for m in settings["simulated"]:  # E.2 from its definition: pad, measure, average
        x, y = rng.standard_normal((2, 16))
        x, y = x / np.linalg.norm(x), (x + y) / np.linalg.norm(x + y)
        found = theory.simulate_cosine(x, y, m, draws=settings["draws"], seed=m)
        simulated.append({"m": m, "mean": found.mean, "error": found.error, "formula": theory.expected_cosine(x, y, m)})
    rows = []
    for m in settings["paddings"]:
        for r in [*np.geomspace(0.01, 100 * np.sqrt(m), settings["lengths"]).tolist(), 1.0]:
            bounds = {name: bound(r, m) for name, bound in theory.BOUNDS.items()}
            rows.append({"m": m, "r": r, "alpha": theory.alpha(r, m), **bounds})
    crossings = {str(m): theory.crossing(m) for m in settings["paddings"]}
    return {"repetition_error": worst, "simulated": simulated, "grid": rows, "crossings": crossings}


def conclude(runs: Runs, settings: Settings) -> Conclusion:
    numbers = on_grid(settings)
    grid = numbers["grid"]
    slack = 1 + 2 * theory.ACCURACY  # what the quadrature promises
    fails = {
        "lower": sum(row["alpha"] * slack < row["lower"] for row in grid),
        **{name: sum(row["alpha"] > row[name] * slack for row in grid) for name in ("published", "simple", "sharp")},
    }
    off = max(abs(s["mean"] - s["formula"]) / s["error"] for s in numbers["simulated"])
    repetition, product = numbers["repetition_error"] < 1e-12, off < 4
    verdict = REPRODUCED if repetition and product and not fails["lower"] and not fails["published"] else NOT
    held = {name: len(grid) - count for name, count in fails.items()}
    sentence = (
        f"E.1 {'holds' if repetition else 'fails'}; E.2 {'holds' if product else 'fails'} in simulation (largest "
        f"deviation {off:.1f} standard errors); of {len(grid)} cases the lower bound holds in {held['lower']}, the "
        f"published upper bound in {held['published']}, the corrected ones in {held['simple']} (m − 2) and "
        f"{held['sharp']} (κ){_example(grid)}."
    )
    columns = ["m", "r", "alpha", "lower", "published", "simple", "sharp", "published_holds"]
    rows = [[row[c] for c in columns[:-1]] + [bool(row["alpha"] <= row["published"] * slack)] for row in grid]

    def draw(path: Path) -> None:
        theory_figure(path, points=settings["points"])
        path.with_suffix(".csv").unlink()  # table.csv has the numbers

    estimate = {"cases": len(grid), "fails": fails, "crossings": numbers["crossings"], "simulation_deviation": off}
    return Conclusion(verdict, sentence, columns, rows, estimate, draw)


def _example(grid: list[dict[str, Any]]) -> str:
    """GPT2's padding at r = 1, where it is on the grid."""
    for row in grid:
        if row["m"] == theory.GPT2_PADDING and row["r"] == 1.0:
            return (
                f"; at m = {row['m']}, r = 1, α is {row['alpha']:.6f} and the published upper bound "
                f"{row['published']:.6f}"
            )
    return ""


def check(settings: Settings) -> None:
    """What the bounds, the standard error and the figure need."""
    for key, least in (("paddings", 3), ("draws", 2), ("points", 2)):
        lowest = min(settings[key]) if isinstance(settings[key], list) else settings[key]
        if lowest < least:
            raise ValueError(f"{key} must be at least {least}, got {lowest}: choose a larger number.")


STUDY = Study(
    "theory", "Appendix E", "Do E.1, E.2 and the bounds given with it hold?",
    CRITERION, conclude, check=check, toy=False,
)  # fmt: skip
