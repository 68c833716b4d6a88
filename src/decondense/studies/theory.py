"""Appendix E: the propositions, numerically and by simulation, on a grid of lengths r and paddings m; docs/theory.md
has the proofs. This is mathematics: nothing is trained, and no seed or interval is behind the verdict. The corrected
upper bounds are checked on the same grid."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from .. import theory
from ..figures.theory import theory_figure
from ..stats.verdicts import NOT, REPRODUCED
from .runs import Conclusion, Runs, Settings


def refuse(settings: Settings) -> None:
    """What the bounds, the standard error and the figure need."""
    for key, least in (("paddings", 3), ("draws", 2), ("points", 2)):
        lowest = min(settings[key]) if isinstance(settings[key], list) else settings[key]
        if lowest < least:
            raise ValueError(f"{key} must be at least {least}, got {lowest}: choose a larger number.")


def conclude(runs: Runs, settings: Settings) -> Conclusion:
    rng = np.random.default_rng(0)
    repetition = True
    for times in (2, 3, 7):  # E.1
        x, y = rng.standard_normal((2, 64))
        stretched = theory.cosine(np.repeat(x, times), np.repeat(y, times))
        repetition &= abs(stretched - theory.cosine(x, y)) < 1e-12
    worst = 0.0  # standard errors between E.2 and its definition: pad, measure, average
    for m in settings["simulated"]:
        x, y = rng.standard_normal((2, 16))
        x, y = x / np.linalg.norm(x), (x + y) / np.linalg.norm(x + y)
        mean, error = theory.simulate_cosine(x, y, m, draws=settings["draws"], seed=m)
        worst = max(worst, abs(mean - theory.expected_cosine(x, y, m)) / error)
    columns = ["m", "r", "alpha", *theory.BOUNDS, "published_holds"]
    rows, example = [], ""
    fails = dict.fromkeys(theory.BOUNDS, 0)
    slack = 1 + 2 * theory.ACCURACY  # what the quadrature promises
    for m in settings["paddings"]:
        for r in [*np.geomspace(0.01, 100 * np.sqrt(m), settings["lengths"]).tolist(), 1.0]:
            a, bounds = theory.alpha(r, m), {name: bound(r, m) for name, bound in theory.BOUNDS.items()}
            for name, bound in bounds.items():
                fails[name] += a * slack < bound if name == "lower" else a > bound * slack
            rows.append([m, r, a, *bounds.values(), a <= bounds["published"] * slack])
            if (m, r) == (theory.GPT2_PADDING, 1.0):
                example = f"; at m = {m}, r = 1, α is {a:.6f} and the published upper bound {bounds['published']:.6f}"
    holds = repetition and worst < 4 and not fails["lower"] and not fails["published"]
    held = {name: len(rows) - count for name, count in fails.items()}
    sentence = (
        f"E.1 {_holds(repetition)}; E.2 {_holds(worst < 4)} in simulation (largest "
        f"deviation {worst:.1f} standard errors); of {len(rows)} cases the lower bound holds in {held['lower']}, the "
        f"published upper bound in {held['published']}, the corrected ones in {held['simple']} (m − 2) and "
        f"{held['sharp']} (κ){example}."
    )
    headline = (
        f"E.1 {_holds(repetition)}, E.2 {_holds(worst < 4)}; of {len(rows)} cases the lower bound fails in "
        f"{fails['lower']}, the published upper bound in {fails['published']}"
    )

    def draw(path: Path) -> None:
        theory_figure(path, points=settings["points"])
        path.with_suffix(".csv").unlink()  # table.csv has the numbers

    crossings = {str(m): theory.crossing(m) for m in settings["paddings"]}
    estimate = {"cases": len(rows), "fails": fails, "crossings": crossings, "simulation_deviation": worst}
    return Conclusion(REPRODUCED if holds else NOT, headline, sentence, columns, rows, estimate, draw)


def _holds(proposition: bool) -> str:
    return "holds" if proposition else "fails"
