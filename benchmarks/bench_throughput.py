"""Tokens per second of `decondense train` on a GPU, one option after the other, as ratios of Trainer's plain settings.

    python benchmarks/bench_throughput.py            # SmolLM2-135M's architecture, random weights, context 1024, bf16
    python benchmarks/bench_throughput.py --turns 2  # the last three rows alone, in turns: throughput_turns.csv

Every row is a run of its own through `decondense.train`, so what is timed is what a user gets: transformers' Trainer
with its data loader, clipping and logging. The time is that of the steps after the first two, without checkpoints and
evaluation. Every row adds one option to the row above; `baseline` is what transformers' Trainer does when nothing but
the batch size is said. Target: the last row without a loss at least 2.5 × the baseline. In turns the ratios are those
to the row without a loss of the same round, so that a clock that drifts does not count.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import harness
import torch

from decondense.train import recipe_from, train, with_settings

COLUMNS = ["option", "micro_batch", "tokens_per_s", "ratio", "peak_gib"]
SMOLLM2 = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}
# (name, settings on top of all the rows above it)
OPTIONS: list[tuple[str, list[str]]] = [
    ("baseline", ["train.micro_batch=32", "train.compile=false", "train.fused_loss=false"]),
    ("+ compiled blocks", ["train.compile=true"]),
    ("+ fused head and loss", ["train.fused_loss=true"]),
    ("+ micro-batch of 64", ["train.micro_batch=64"]),
    ("+ micro-batch of 128", ["train.micro_batch=128"]),
    ("with dispersion, first order", ["loss.name=dispersion", "loss.options.estimator=first_order"]),
    ("with dispersion, exact", ["loss.options.estimator=exact"]),
]


def recipe(steps: int, batch_tokens: int, settings: list[str]) -> Any:
    content = {
        "name": "throughput",
        "model": {"architecture": "llama", "tokenizer": "bytes", "config": SMOLLM2},
        "data": {"text": "pydoc", "tokens": steps * batch_tokens, "context": 1024, "held_out_tokens": 1024},
        "train": {"batch_tokens": batch_tokens, "precision": "bf16", "log_every": 50, "checkpoints": 1},
        "snapshots": {"count": 0},
    }
    return recipe_from(with_settings(content, settings))


def measure(name: str, settings: list[str], steps: int, batch_tokens: int, folder: Path) -> harness.Row:
    """One run. What the text has been turned into, and its run, lie in `folder`."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    with tempfile.TemporaryDirectory(dir=folder) as own:
        record = train(recipe(steps, batch_tokens, settings), Path(own) / "run", cache=folder / "tokens").record
    return {
        "option": name,
        "micro_batch": record["micro_batch"],
        "tokens_per_s": record["tokens_per_second"],
        "ratio": 1.0,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
    }


def main() -> None:
    parser = harness.arguments(__doc__)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--batch-tokens", type=int, default=131072)
    parser.add_argument("--turns", type=int, default=0, help="only without and with the loss, in so many rounds")
    options = parser.parse_args()
    harness.need_cuda()
    settings, runs = list[str](), list[tuple[str, list[str]]]()
    for name, added in OPTIONS:
        settings = settings + added
        runs.append((name, settings))
    rows: list[harness.Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(max(1, options.turns)):
            first: harness.Row | None = None  # what a round is compared with
            for name, settings in runs[-3:] if options.turns else runs:
                row = measure(name, settings, options.steps, options.batch_tokens, Path(folder))
                first = first or row
                row["ratio"] = row["tokens_per_s"] / first["tokens_per_s"]
                rows.append(row)
                print(
                    f"{name:32s} {row['tokens_per_s']:10,.0f} tokens/s, {1 / row['ratio']:.4f} × the time", flush=True
                )
    print(harness.table(rows, COLUMNS))
    print(harness.write("throughput_turns" if options.turns else "throughput", rows, options.out))


if __name__ == "__main__":
    main()
