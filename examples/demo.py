"""What condensation looks like, and what a loss against it does in the first minute of training: `make demo`.

A child process measures SmolLM2-135M with the command that anybody would type, while this one trains a GPT2 of four
layers from nothing, with the paper's loss and without, from the same three seeds. Both arms see the same text in the
same order. The learning rate is one that suits training without the loss; `--rate` tries another, `--tokens` a longer
run.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
import webbrowser
from pathlib import Path
from typing import Any

import numpy as np

from decondense.commands.terminal import out, progress_bar

OUT = Path("demo-out")
REAL = "smollm2-135m"
RECIPE: dict[str, Any] = {
    "model": {
        "architecture": "gpt2",
        "tokenizer": {"train": 512, "characters": 300_000},
        "config": {
            "n_layer": 4, "n_embd": 64, "n_head": 4, "n_positions": 64,
            "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
        },
    },
    "data": {
        "text": "wikitext-2:train", "held_out": "wikitext-2:test", "context": 64,
        "held_out_tokens": 2048, "held_out_documents": 30, "held_out_document_tokens": 256,
    },
    "train": {"batch_tokens": 1024, "warmup": 0.1, "log_every": 8, "checkpoints": 0, "device": "cpu"},
    "snapshots": {"count": 1, "windows": 16, "tokens": 64, "bootstrap": 20},
}  # fmt: skip
ARMS = {"cross-entropy": ["loss.name=none"], "dispersion": ["loss.name=dispersion", "loss.weight=0.1"]}
Runs = dict[str, list[Any]]  # arm → its runs, one per seed


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--tokens", default="49152", help="tokens that every small model is trained on [49152]")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="seeds of the small models [1 2 3]")
    parser.add_argument("--rate", default="0.002", help="learning rate [0.002]")
    parser.add_argument("--model", default=REAL, help=f"the model that is measured [{REAL}]")
    return parser.parse_args()


def begin_measuring(model: str, folder: Path) -> subprocess.Popen[str]:
    """`decondense measure`, on the cores that training one small model leaves free."""
    command = [sys.executable, "-m", "decondense.cli", "measure", model, "--windows", "10", "--tokens", "128"]
    free = str(max(1, (os.cpu_count() or 2) - 1))
    return subprocess.Popen(
        [*command, "--device", "cpu", "--out", str(folder)], env=os.environ | {"OMP_NUM_THREADS": free},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, encoding="utf-8",
    )  # fmt: skip


def train_all(chosen: argparse.Namespace) -> Runs:
    """Every arm from every seed, in run folders under demo-out."""
    runs: Runs = {arm: [] for arm in ARMS}
    done = 0
    with progress_bar("loading torch and the text", quiet=False) as move:
        import torch

        from decondense.train import recipe_from, train, with_settings

        torch.set_num_threads(1)  # for a model this small a second thread only waits for the first
        common = [f"data.tokens={chosen.tokens}", f"train.learning_rate={chosen.rate}"]
        recipes = [
            (arm, recipe_from(with_settings(RECIPE, [*common, *settings, f"name={arm}-{seed}", f"train.seed={seed}"])))
            for seed in chosen.seeds
            for arm, settings in ARMS.items()
        ]
        total = sum(recipe.steps for _, recipe in recipes)
        for arm, recipe in recipes:

            def show(step: int, figures: dict[str, float], before: int = done, recipe: Any = recipe) -> None:
                loss = figures.get("task_loss", figures.get("loss"))
                note = recipe.name + (f": loss {loss:.2f}" if loss else "")
                move(before + step, total, "training steps", note)

            runs[arm].append(train(recipe, OUT / recipe.name, command="make demo", show=show, draw=False))
            done += recipe.steps
    return runs


def finished(child: subprocess.Popen[str], folder: Path) -> Any:
    """Wait for the measurement and load it; if the command failed, exit with what it said."""
    import decondense as dc

    if child.poll() is None:
        out.print("The small models are done; the real one is still being measured …")
    said, _ = child.communicate()
    if child.returncode:
        sys.exit(said.strip())
    return dc.load(folder)


def snapshots(runs: list[Any], which: int) -> np.ndarray:
    """(seeds, hidden states): mean cosines at the start (0) or the end (-1) of training."""
    import decondense as dc

    return np.array([dc.load(run.folder / run.record["snapshots"][which]["file"]).mean_cosine for run in runs])


def picture(real: Any, runs: Runs, losses: dict[str, np.ndarray]) -> Path:
    """Left the real model; right the small one, thin lines for the seeds and a thick one for their mean."""
    from matplotlib.figure import Figure

    import decondense as dc
    from decondense.figures.chart import PALETTE

    figure = Figure(figsize=(12.5, 5), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.15, 1))
    dc.plot(real, ax=left, title=f"A real model: {real.label}\nthe deeper, the more alike its tokens: a cone")
    start = snapshots(runs["cross-entropy"], 0).mean(0)
    layers = np.arange(len(start))
    right.plot(layers, start, ":", color="#777777", label="before training")
    for (arm, made), colour, sign in zip(runs.items(), PALETTE, "so"):
        curves = snapshots(made, -1)
        right.plot(layers, curves.T, color=colour, lw=0.8, alpha=0.6)
        label = f"{'without' if arm == 'cross-entropy' else 'with'} the loss: {losses[arm].mean():.2f} nats by document"
        right.plot(layers, curves.mean(0), f"{sign}-", color=colour, lw=2.4, label=label)
    seeds = len(runs["cross-entropy"])
    right.set_title(f"A small model after {trained(runs):,} tokens, {seeds} seeds", fontsize=10, loc="left")
    right.set(xlabel="layer (0 = embedding)", ylabel="mean cosine of two tokens", ylim=(-0.05, 1.05), xticks=layers)
    right.spines[["top", "right"]].set_visible(False)
    right.legend(fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.13))  # outside: curves may run anywhere
    figure.savefig(OUT / "demo.png", dpi=110)
    return OUT / "demo.png"


def trained(runs: Runs) -> int:
    return int(runs["cross-entropy"][0].record["tokens"])


def summary(real: Any, runs: Runs, losses: dict[str, np.ndarray]) -> list[str]:
    """What was seen, in words; every quantity is explained where it first appears."""
    from decondense.stats.crossed import crossed_macro
    from decondense.stats.verdicts import decide, from_interval
    from decondense.words import several, signed

    cosine = {arm: snapshots(made, -1)[:, 1:].mean(1) for arm, made in runs.items()}
    pair = crossed_macro([(losses["cross-entropy"], losses["dispersion"])], paired=True)
    seeds, documents = losses["dispersion"].shape
    decisions = {
        "cosine": decide((cosine["dispersion"] - cosine["cross-entropy"]).tolist(), claim="less"),
        "loss": from_interval(pair.difference, *pair.interval(), n=seeds, claim="less"),
    }
    words = {"reproduced": "lower", "not reproduced": "higher", "undecided": "undecided"}

    def line(name: str, *cells: str) -> str:
        return f"     {name:<22}" + "".join(f"{cell:<24}" for cell in cells).rstrip()

    def reach(decision: Any) -> str:
        low, high = decision.low, decision.high
        bounds = "" if low is None or high is None else f" [{signed(low, 2)}, {signed(high, 2)}]"
        return f"{signed(decision.estimate, 2)}{bounds}"

    peak = int(np.argmax(real.mean_cosine))
    first, most = real.mean_cosine[0], real.mean_cosine[peak]
    return [
        f"1. A real model, {real.label}: how alike are two tokens of a text?",
        f"   Mean cosine (1: same direction, 0: unrelated) {first:.2f} at the embedding, "
        f"{most:.2f} at layer {peak} of {real.layers}.",
        "   Its tokens share one direction, a narrow cone: that is condensation.",
        f"2. A small model from nothing, {trained(runs):,} tokens of text, {several(seeds, 'seed')} (random starts):",
        line("", "mean cosine", "held-out loss by document (lower is better)"),
        line("without the loss", f"{cosine['cross-entropy'].mean():.2f}", f"{losses['cross-entropy'].mean():.2f}"),
        line("with it (dispersion)", f"{cosine['dispersion'].mean():.2f}", f"{losses['dispersion'].mean():.2f}"),
        line("difference [95 %]", *map(reach, decisions.values())),
        line("verdict", *(words[decision.verdict] for decision in decisions.values())),
        f"   Loss: nats per token, mean of {several(documents, 'document')} never trained on; [ ] for other seeds.",
        "3. Careful: this is the first minute of a training, and says nothing of a longer one. At 40M tokens",
        "   a longer warm-up did more than any loss; with it, at 80M to 320M, one loss gained 0.03 nats",
        "   in a GPT2, narrowly, and losses cost a Llama up to 0.03 (docs/results.md).",
        "   For longer: examples/demo.py --tokens 400k",
    ]


def can_open() -> bool:
    """Whether somebody is at a terminal, and a browser would open beside it and not take it over."""
    shown = sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return sys.stdout.isatty() and bool(shown)


def main() -> None:
    chosen, begun = options(), time.monotonic()
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir()
    out.print(f"Measuring {chosen.model} on one core (its weights are unpacked the first time), and training")
    out.print(f"{2 * len(chosen.seeds)} small models on the other, half of them with a loss against condensation …")
    folder = OUT / Path(chosen.model).name
    child = begin_measuring(chosen.model, folder)
    try:
        runs = train_all(chosen)
        real = finished(child, folder)
    finally:
        child.kill()
    losses = {
        arm: np.array([[row["loss"] for row in run.record["held_out_documents"]] for run in made])
        for arm, made in runs.items()
    }
    drawn = picture(real, runs, losses)
    from decondense.report.page import collect, render

    page = OUT / "report.html"
    page.write_text(render(collect([OUT]), title="decondense: what the demo saw"), encoding="utf-8")
    out.print()
    for sentence in summary(real, runs, losses):
        out.print(sentence)
    opened = can_open() and webbrowser.open(page.resolve().as_uri())
    out.print(f"Picture: {drawn}. All of it: {page}{' (opened)' if opened else ''}. {time.monotonic() - begun:.0f} s.")


if __name__ == "__main__":
    main()
