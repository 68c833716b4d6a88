"""SmolLM2-135M mid-trained with and without the loss and with the paper's baselines, several seeds, one table.

    python benchmarks/midtrain_arms.py --seeds 1,2,3 --out results/midtrain-smollm2-135m

Every arm is `recipes/midtrain-smollm2-135m.yaml` with the settings below, trained by `decondense.train`; arms differ in
nothing else, and arms of one seed see the same blocks in the same order. Kept of each run: result.json and the first
and last snapshot; no weights. A run that is there already is not repeated, so several machines, or several evenings,
can share the work; the table and the figure are made from whatever is there.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shlex
import shutil
import statistics
from pathlib import Path
from typing import Any

from decondense.figures.training import training_figure
from decondense.files import write_csv
from decondense.meter.result import load
from decondense.train import load_recipe, train

ROOT = Path(__file__).resolve().parent.parent
ARMS = {
    "cross-entropy": ["loss.name=none", "loss.options={}"],
    "first_order": ["loss.options.estimator=first_order"],
    "exact": ["loss.options.estimator=exact"],
    "first_order-weight-1": ["loss.options.estimator=first_order", "loss.weight=1.0"],
    "noisy-embedding": ["loss.name=none", "loss.options={}", "baselines.noisy_embedding=1.0"],
    "active-forgetting": ["loss.name=none", "loss.options={}", "baselines.active_forgetting.every=100"],
}


def run(arm: str, seed: int, options: argparse.Namespace) -> None:
    kept = options.out / f"{arm}-seed{seed}"
    if (kept / "result.json").exists():
        return
    settings = [*ARMS[arm], f"train.seed={seed}", f"name={arm}", "train.checkpoints=1", *options.set]
    recipe = load_recipe(ROOT / "recipes" / "midtrain-smollm2-135m.yaml", settings)
    work = options.work / f"{arm}-seed{seed}"
    made = " ".join(f"--set {s}" for s in settings)
    command = f"decondense train recipes/midtrain-smollm2-135m.yaml {made}"
    record = train(recipe, work, command=command, cache=options.cache, say=print).record
    temporary = options.out / f".{arm}-seed{seed}"
    temporary.mkdir(parents=True)
    for snapshot in (record["snapshots"][0], record["snapshots"][-1]):
        shutil.copy(work / snapshot["file"], temporary / Path(snapshot["file"]).name)
    record["snapshots"] = [
        s | {"file": Path(s["file"]).name} for s in (record["snapshots"][0], record["snapshots"][-1])
    ]
    (temporary / "result.json").write_text(json.dumps(record, indent=1) + "\n")
    temporary.rename(kept)
    shutil.rmtree(work)
    last = record["held_out"][-1]["loss"]
    print(f"{arm:22s} seed {seed}: held-out {last:.4f}, {record['tokens_per_second']:,.0f} tokens/s", flush=True)


def summary(out: Path) -> list[dict[str, Any]]:
    """One row per arm: means over its seeds, and the spread between them."""
    rows = []
    for arm in ARMS:
        folders = sorted(out.glob(f"{arm}-seed*"))
        records = [(json.loads((f / "result.json").read_text()), f) for f in folders]
        if not records:
            continue
        held = [r["held_out"][-1]["loss"] for r, _ in records]
        ends = [load(f / r["snapshots"][-1]["file"]) for r, f in records]
        cosines = [float(c.mean_cosine[1:].mean()) for c in ends]
        rows.append(
            {
                "arm": arm,
                "seeds": len(records),
                "held_out_loss": statistics.mean(held),
                "held_out_sd": statistics.stdev(held) if len(held) > 1 else None,
                "held_out_before": records[0][0]["held_out"][0]["loss"],
                "mean_cosine": statistics.mean(cosines),
                "mean_cosine_sd": statistics.stdev(cosines) if len(cosines) > 1 else None,
                "spearman": statistics.mean(c.spearman for c in ends),
                "tokens_per_second": statistics.mean(r["tokens_per_second"] for r, _ in records),
                "hardware": records[0][0]["hardware"],
            }
        )
    before = load(next(iter(sorted(out.glob("*-seed*")))) / "step-000000.json")
    for row in rows:
        row["mean_cosine_before"] = float(before.mean_cosine[1:].mean())
        row["spearman_before"] = before.spearman
    return rows


def added(out: Path) -> list[str]:
    """The settings of the kept runs that are not this file's own, as their records tell them."""
    found: dict[str, None] = {}
    for folder in sorted(out.glob("*-seed*")):
        words = shlex.split(json.loads((folder / "result.json").read_text())["command"])
        own = [*ARMS[folder.name.rsplit("-seed", 1)[0]], "train.checkpoints=1"]
        settings = [value for flag, value in itertools.pairwise(words) if flag == "--set"]
        found |= dict.fromkeys(s for s in settings if s not in own and not s.startswith(("train.seed=", "name=")))
    return list(found)


def whole_texts(out: Path) -> list[str]:
    """WikiTexts that a run took as one document: it is split into articles now."""
    records = [json.loads(file.read_text()) for file in sorted(out.glob("*-seed*/result.json"))]
    texts = [t for r in records for t in r["text"] + r["held_out_text"]]
    return list(dict.fromkeys(t["name"] for t in texts if t["name"].startswith("wikitext-") and t["documents"] == 1))


def page(rows: list[dict[str, Any]], settings: list[str], whole: list[str]) -> str:
    """The README of the result folder, its figures from the rows alone, its command from the records."""
    base = rows[0]
    command = " \\\n        ".join(["python benchmarks/midtrain_arms.py", *(f"--set {s}" for s in settings)])
    other_blocks = (
        f"""
These runs took {" and ".join(whole)} as one document each (`documents: 1` in the `result.json` files).
The text is split into its articles now, with a separator after each, so the blocks that the command makes today are not
those of these runs, and the figures need not be the same.
"""
        if whole
        else ""
    )

    def cell(mean: float, spread: float | None) -> str:
        return f"{mean:.4f}" + ("" if spread is None else f" ± {spread:.4f}")

    lines = [
        f"| {r['arm']} | {r['seeds']} | {cell(r['held_out_loss'], r['held_out_sd'])} | "
        f"{cell(r['mean_cosine'], r['mean_cosine_sd'])} | {r['spearman']:+.3f} | {r['tokens_per_second']:,.0f} | "
        f"{base['tokens_per_second'] / r['tokens_per_second']:.3f} |"
        for r in rows
    ]
    table = "\n".join(lines)
    return f"""# SmolLM2-135M, mid-trained on novels and WikiText-2: with and without the loss

    {command}
{other_blocks}
20M tokens in 153 steps of 131,072, learning rate 5e-5, λ = 0.1, τ = 1 (`recipes/midtrain-smollm2-135m.yaml`); the
weights it starts from are those of SmolLM2-135M-Instruct, dequantised from Q4_1 (the file of the bundled
`smollm2-135m`). {base["hardware"]}. Before training: held-out loss {base["held_out_before"]:.4f}, mean cosine
{base["mean_cosine_before"]:.4f}, Spearman {base["spearman_before"]:+.3f}. Of the arms and seeds that the
command makes, those in the table have been run.

| arm | seeds | held-out loss | mean cosine of the block outputs | Spearman | tokens/s | time ratio |
|---|---|---|---|---|---|---|
{table}

± is the standard deviation between seeds, where there are several. `arms.csv` has the same figures, every folder the
whole result of one run and the meter before and after; `training.png` shows one run per arm.

What this says, and what it does not:

* the loss moves the geometry in its direction, the exact form and the linear-time form alike;
* the held-out loss does not change by more than it does from seed to seed: at this budget and weight there is neither
  gain nor harm in language modelling. One seed per arm decides nothing about small differences;
* NEFTune's noise with α = 1 is too small to be seen in anything;
* active forgetting drew the embeddings anew at step 100 of 153. SmolLM2 ties its output head to them, so the head was
  forgotten too, and 53 steps do not bring it back. The method needs a longer run (the paper: every 1000 of 1526 steps);
* exact costs more here than in the table of training steps in the main README: this model is narrow and deep (30 layers
  of width 576), its steps are compiled, and the loss is read from every layer.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", default=",".join(ARMS), help="which, in this order")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "midtrain-smollm2-135m")
    parser.add_argument("--work", type=Path, default=Path("runs"), help="where the runs themselves lie while they run")
    parser.add_argument("--cache", type=Path, help="tokenised texts")
    parser.add_argument("--set", action="append", default=[], help="one more setting for every arm")
    parser.add_argument("--table-only", action="store_true")
    options = parser.parse_args()
    if not options.table_only:
        for seed in options.seeds.split(","):
            for arm in options.arms.split(","):
                run(arm, int(seed), options)
    rows = summary(options.out)
    write_csv(options.out / "arms.csv", rows)
    for row in rows:
        print({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()})
    first = [
        (f.name.rsplit("-seed", 1)[0], json.loads((f / "result.json").read_text()))
        for arm in ARMS
        for f in sorted(options.out.glob(f"{arm}-seed*"))[:1]
    ]
    training_figure(first, options.out / "training.png")
    (options.out / "README.md").write_text(page(rows, added(options.out), whole_texts(options.out)))


if __name__ == "__main__":
    main()
