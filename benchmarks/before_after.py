"""The picture at the top of the README: a model before and after mid-training with the loss, from the study counteract.

python benchmarks/before_after.py results/studies/counteract --out docs/figures/before_after.png
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from decondense.figures.studies import heat_grid
from decondense.records import Training, read

ROOT = Path(__file__).resolve().parent.parent
ARMS = {"cross-entropy": "cross-entropy alone", "dispersion": "with the dispersion loss"}


def draw(runs: Sequence[Training], path: Path) -> None:
    """Heatmaps of the first seed before and after, and how far the mean cosine of every state moved in all of them."""
    treated = next(run for run in runs if run.arm == "dispersion")
    before, after = treated.snapshots[0], treated.snapshots[-1]
    words = f"after {(after.tokens or 0) / 1e6:.0f}M tokens, λ = {treated.recipe['loss']['weight']:g}"
    moved = {name: np.array([_moved(run) for run in runs if run.arm == arm]) for arm, name in ARMS.items()}
    panel = {
        "title": f"mean cosine, after minus before ({len(moved[ARMS['dispersion']])} seeds)",
        "x": "hidden state (0: embedding; the last after the final norm)",
        "y": "mean cosine",
        "line": 0.0,
        "series": {name: (range(values.shape[1]), values.T.tolist()) for name, values in moved.items()},
    }
    heat_grid([("", [("before", before), (words, after)])], path, below=[panel])


def _moved(run: Training) -> np.ndarray:
    return np.subtract(*(np.array(run.snapshots[at].mean_cosine, dtype=float) for at in (-1, 0)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path, nargs="?", default=ROOT / "results" / "studies" / "counteract")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "figures" / "before_after.png")
    options = parser.parse_args()
    runs = [read(folder) for folder in sorted((options.study / "runs").iterdir())]
    draw([run for run in runs if isinstance(run, Training)], options.out)


if __name__ == "__main__":
    main()
