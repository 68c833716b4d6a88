"""Tokens per second of `decondense train` on a GPU, one option after the other, as ratios of Trainer's plain settings.

    python benchmarks/bench_throughput.py            # SmolLM2-135M's architecture, random weights, context 1024, bf16

Every row is a run of its own through `decondense.train`, so what is timed is what a user gets: transformers' Trainer
with its data loader, clipping and logging. The time is that of the steps after the first two, without checkpoints and
evaluation. Every row adds one option to the row above; `baseline` is what transformers' Trainer does when nothing but
the batch size is said. Target: the last row without a loss at least 2.5 × the baseline.
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


def main() -> None:
    parser = harness.arguments(__doc__)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--batch-tokens", type=int, default=131072)
    options = parser.parse_args()
    harness.need_cuda()
    rows: list[harness.Row] = []
    settings: list[str] = []
    for name, added in OPTIONS:
        settings = settings + added
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        with tempfile.TemporaryDirectory() as folder:
            built = recipe(options.steps, options.batch_tokens, settings)
            record = train(built, Path(folder) / "run", cache=Path(folder) / "tokens").record
        row = {
            "option": name,
            "micro_batch": record["micro_batch"],
            "tokens_per_s": record["tokens_per_second"],
            "ratio": record["tokens_per_second"] / (rows[0]["tokens_per_s"] if rows else record["tokens_per_second"]),
            "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
        }
        rows.append(row | harness.environment())
        print(f"{name:32s} {row['tokens_per_s']:10,.0f} tokens/s  {row['ratio']:.2f}", flush=True)
    print(harness.table(rows, COLUMNS))
    print(harness.write("throughput", rows, options.out))


if __name__ == "__main__":
    main()
