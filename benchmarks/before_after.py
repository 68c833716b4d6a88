"""The picture at the top of the README: a model before and after mid-training with the loss, from the study counteract.

python benchmarks/before_after.py results/studies/counteract --out docs/figures/before_after.png
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from decondense.report import study_figures as figures

ROOT = Path(__file__).resolve().parent.parent
ARMS = {"cross-entropy": "cross-entropy alone", "dispersion": "with the dispersion loss"}


def draw(pieces: list[dict[str, Any]], settings: dict[str, Any], path: Path) -> None:
    """Heatmaps of the first seed before and after, and how far the mean cosine of every state moved in all of them."""
    shots = pieces[0]["runs"]["dispersion"]["snapshots"]
    before, after = shots[0], shots[-1]
    figure = Figure(figsize=(12, 3.7), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=[1.55, 1])
    axes = left.subplots(1, 2, sharey=True)
    drawn = figures._densities([before, after])
    floor, top = figures.floor_of(drawn), figures.top_of(drawn)
    image = None
    weight = settings["arms"]["dispersion"]["loss"]["weight"]
    words = f"after {after['tokens'] / 1e6:.0f}M tokens, λ = {weight:g}"
    for axis, shot, title in zip(axes, (before, after), ("before", words)):
        image = figures._heat(axis, shot, floor, top)
        axis.set_title(title, fontsize=10, loc="left")
        axis.set_xlabel("depth: hidden state / layers", fontsize=9)
    axes[0].set_ylabel("cosine of two tokens of a sequence", fontsize=9)
    figures._bar(left, image, list(axes), figures.cut_at(drawn, top))
    axis = right.subplots()
    axis.axhline(0, color=figures.GREY, lw=0.9)
    for colour, (arm, name) in zip(figures.PALETTE, ARMS.items()):
        moved = np.array([_moved(piece["runs"][arm]) for piece in pieces])
        axis.plot(moved.T, color=colour, lw=0.8, alpha=0.5)
        axis.plot(moved.mean(0), color=colour, lw=2, label=name)
    axis.set_title(f"mean cosine, after minus before ({len(pieces)} seeds)", fontsize=10, loc="left")
    axis.set_xlabel("hidden state (0: embedding; the last after the final norm)", fontsize=9)
    axis.legend(frameon=False, fontsize=8)
    figures._tidy(axis)
    figures._save(figure, path)


def _moved(run: dict[str, Any]) -> np.ndarray:
    shots = run["snapshots"]
    return np.subtract(shots[-1]["mean_cosine"], shots[0]["mean_cosine"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path, nargs="?", default=ROOT / "results" / "studies" / "counteract")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "figures" / "before_after.png")
    options = parser.parse_args()
    pieces = [json.loads(file.read_text()) for file in sorted((options.study / "pieces").glob("*.json"))]
    draw(pieces, pieces[0]["settings"], options.out)


if __name__ == "__main__":
    main()
