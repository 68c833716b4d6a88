"""The picture at the top of the README: one model before, and after a short training with and without the loss.

    python benchmarks/before_after.py --out results/before-after-smollm2-135m          half an hour on two CPU cores

Both runs take the same steps on the same text. The weight is far above the paper's 0.1, so that something can be seen
after a few dozen steps; what the paper's weight does is in results/studies/counteract. Kept: result.json and the two
snapshots of each run; no weights. Runs that are there are not repeated.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from decondense.meter.result import Condensation, load
from decondense.report import figures
from decondense.train import recipe_from, train, with_settings

ROOT = Path(__file__).resolve().parent.parent
RECIPE = {
    "model": {"name": "smollm2-135m"},
    "data": {
        "text": "wikitext-2:train",
        "held_out": "wikitext-2:valid",
        "tokens": 40_960,
        "held_out_tokens": 8192,
        "context": 256,
    },
    "train": {"batch_tokens": 1024, "learning_rate": 2e-4, "warmup": 0.1, "log_every": 1, "checkpoints": 2},
    "snapshots": {"count": 1, "windows": 16, "tokens": 256},
}
ARMS = {"cross-entropy": ["loss.name=none"], "dispersion": ["loss.name=dispersion", "loss.weight=2.0"]}


def run(arm: str, out: Path, work: Path) -> None:
    kept = out / arm
    if (kept / "result.json").exists():
        return
    recipe = recipe_from(with_settings({**RECIPE, "name": arm}, ARMS[arm]))
    command = "python benchmarks/before_after.py"

    def show(step: int, now: dict[str, float]) -> None:
        print(arm, step, {k: round(v, 4) for k, v in now.items()}, flush=True)

    record = train(recipe, work / arm, command=command, resume=True, show=show, say=print, draw=False).record
    kept.mkdir(parents=True, exist_ok=True)
    for snapshot in record["snapshots"]:
        shutil.copy(work / arm / snapshot["file"], kept / Path(snapshot["file"]).name)
        snapshot["file"] = Path(snapshot["file"]).name
    (kept / "result.json").write_text(json.dumps(record, indent=1) + "\n")


def draw(found: dict[str, Condensation], path: Path) -> None:
    """Heatmaps before and after, and the mean cosine of every state for all three."""
    figure = Figure(figsize=(11.5, 3.6), layout="constrained")
    axes: Any = figure.subplots(1, 3, width_ratios=[1, 1, 1.15])
    shown = [found["before"], found["dispersion"]]
    floor, top = figures._floor(shown, "pooled"), figures._top(shown, "pooled")
    image = None
    for axis, result, title in zip(axes, shown, ("before", "after training with the dispersion loss")):
        image = figures._draw(axis, result, "pooled", floor=floor, top=top)
        axis.set_title(title, fontsize=10, loc="left")
        axis.set_xlabel("depth: hidden state / layers", fontsize=9)
    axes[0].set_ylabel("cosine of two tokens", fontsize=9)
    figures._colour_bar(figure, image, list(axes[:2]), top)
    for colour, (name, result) in zip(("#666666", *figures.PALETTE), found.items()):
        states = range(len(result.mean_cosine))
        axes[2].plot(states, result.mean_cosine, color=colour, lw=1.8, label=name)
    axes[2].set_title("mean cosine of each hidden state", fontsize=10, loc="left")
    axes[2].set_xlabel("hidden state (0: embedding; the last one after the final norm)", fontsize=9)
    axes[2].legend(frameon=False, fontsize=8)
    axes[2].grid(axis="y", color="#dddddd", lw=0.7)
    axes[2].spines[["top", "right"]].set_visible(False)
    figures._save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "before-after-smollm2-135m")
    parser.add_argument("--work", type=Path, default=Path("runs/before-after"))
    options = parser.parse_args()
    for arm in ARMS:
        run(arm, options.out, options.work)
    records = {arm: json.loads((options.out / arm / "result.json").read_text()) for arm in ARMS}
    last = {arm: load(options.out / arm / r["snapshots"][-1]["file"]) for arm, r in records.items()}
    first = load(options.out / "dispersion" / records["dispersion"]["snapshots"][0]["file"])
    draw({"before": first, **last}, options.out / "before_after.png")


if __name__ == "__main__":
    main()
