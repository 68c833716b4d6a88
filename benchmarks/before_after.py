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
    start = np.array(before.mean_cosine, dtype=float)
    ends = {arm: np.array([run.snapshots[-1].mean_cosine for run in runs if run.arm == arm], float) for arm in ARMS}
    assert all(np.allclose(run.snapshots[0].mean_cosine, start) for run in runs if run.arm in ARMS)  # the same weights
    seeds, plain = len(ends["dispersion"]), ends["cross-entropy"][:, 1:].mean()  # of the blocks, as in the study
    gap = plain - ends["dispersion"][:, 1:].mean()
    depth = np.linspace(0, 1, len(start)).tolist()
    panel = {
        "title": f"the loss lowers the blocks' mean cosine by {gap:.4f}, from {plain:.3f}",
        "x": "depth: layer / number of layers (0: embedding; 1: after the final norm)",
        "y": f"after minus before ({seeds} seeds)",
        "band": True,
        "line": 0.0,
        "series": {name: (depth, (ends[arm] - start).T.tolist()) for arm, name in ARMS.items()},
    }
    heat_grid(
        [("", [("before", before), (words, after)])], path, below=[panel], floor=-0.25, note="below −0.25 is not shown"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path, nargs="?", default=ROOT / "results" / "studies" / "counteract")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "figures" / "before_after.png")
    options = parser.parse_args()
    runs = [read(folder) for folder in sorted((options.study / "runs").iterdir())]
    draw([run for run in runs if isinstance(run, Training)], options.out)


if __name__ == "__main__":
    main()
