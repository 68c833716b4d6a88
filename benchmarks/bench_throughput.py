"""Tokens per second of `decondense train` on a GPU, one option after the other, as ratios of Trainer's plain settings.

    python benchmarks/bench_throughput.py            # SmolLM2-135M's architecture, random weights, context 1024, bf16
    python benchmarks/bench_throughput.py --turns 2  # the last three rows alone, in turns: throughput_turns.csv
                                                     # [--streams float32 bfloat16]

Every row is a run of its own through `decondense.train`, so what is timed is what a user gets: transformers' Trainer
with its data loader, clipping and logging. The time is that of the steps after the first two, without checkpoints and
evaluation. Every row adds one option to the row above; `baseline` is what transformers' Trainer does when nothing but
the batch size is set. Target: the last row without a loss at least 2.5 × the baseline. With --turns, ratios are to the
row without a loss of the same round, so that a drift of the clock does not count, and each loss has two rows: computed
in the graphs of the blocks, as `train` does with float32 states, and afterwards, as in any other loop.

Under autocast the hidden states between the blocks are float32, as the weights are. Under FSDP2's mixed precision
(param_dtype=bfloat16) they are bfloat16: the rows `in a bfloat16 stream` have that on one GPU, see `bfloat16_stream`.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import harness
import torch

from decondense.train import fast, recipe_from, run, train, with_settings

CONTEXT = 1024
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


def runs() -> list[tuple[str, list[str]]]:
    """Every row's name and all its settings; the last three are without and with the loss."""
    return [(name, [s for _, added in OPTIONS[: i + 1] for s in added]) for i, (name, _) in enumerate(OPTIONS)]


def recipe(steps: int, batch_tokens: int, settings: list[str]) -> Any:
    content = {
        "name": "throughput",
        "model": {"architecture": "llama", "tokenizer": "bytes", "config": SMOLLM2},
        "data": {"text": "pydoc", "tokens": steps * batch_tokens, "context": CONTEXT, "held_out_tokens": CONTEXT},
        "train": {"batch_tokens": batch_tokens, "precision": "bf16", "log_every": 50, "checkpoints": 1},
        "snapshots": {"count": 0},
    }
    return recipe_from(with_settings(content, settings))


@contextlib.contextmanager
def bfloat16_stream() -> Iterator[None]:
    """Make `train` round the outputs of a Llama's embedding and final norm to bfloat16. Autocast leaves both in
    float32, like the weights; everything between them is a product in bfloat16 or is added to the embedding."""
    prepare = run.prepare

    def rounding(*args: Any) -> Any:
        prepared = prepare(*args)
        for part in (prepared.model.base_model.embed_tokens, prepared.model.base_model.norm):
            part.register_forward_hook(lambda module, given, out: out.bfloat16())
        return prepared

    with mock.patch.object(run, "prepare", rounding):
        yield


STREAMS: dict[str, tuple[str, Callable[[], contextlib.AbstractContextManager[None]]]] = {
    "float32": ("", contextlib.nullcontext),
    "bfloat16": (", in a bfloat16 stream", bfloat16_stream),
}


def place(*dtypes: torch.dtype) -> Callable[[], contextlib.AbstractContextManager[Any]]:
    """Make `train` compute the loss of states of these dtypes in the graphs of the blocks, and of others after the
    model has returned them. Its own default is float32."""
    return lambda: mock.patch.object(fast, "TAPPED", dtypes)


PLACES = {", in the blocks": place(torch.float32, torch.bfloat16), ", afterwards": place()}


def measure(name: str, settings: list[str], steps: int, batch_tokens: int, folder: Path) -> harness.Row:
    """One run. `folder` keeps the tokenised text for the next, and holds the run while it lasts."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    with tempfile.TemporaryDirectory(dir=folder) as own:
        record = train(
            recipe(steps, batch_tokens, settings), Path(own) / "run", cache=folder / "tokens", draw=False
        ).record
    return {
        "option": name,
        "micro_batch": record["micro_batch"],
        "tokens_per_s": record["tokens_per_second"],
        "ratio": 1.0,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
    }


def one_round(
    chosen: list[tuple[str, list[str]]], stream: str, steps: int, batch_tokens: int, folder: Path, both: bool
) -> Iterator[harness.Row]:
    """A row for each of the runs, as ratios of the first; with `both` another for each loss."""
    first = None
    suffix, context = STREAMS[stream]
    for name, settings in chosen:
        places = PLACES if both and name.startswith("with") else {"": contextlib.nullcontext}
        for where, entered in places.items():
            with context(), entered():
                row = measure(name + where + suffix, settings, steps, batch_tokens, folder)
            first = first or row["tokens_per_s"]
            row["ratio"] = row["tokens_per_s"] / first
            speed, longer = f"{row['tokens_per_s']:10,.0f} tokens/s", f"{1 / row['ratio']:.4f} × the time"
            print(f"{row['option']:70s} {speed}, {longer}", flush=True)
            yield row


def main() -> None:
    parser = harness.arguments(__doc__)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--batch-tokens", type=int, default=131072)
    parser.add_argument("--turns", type=int, default=0, help="only without and with the loss, in so many rounds")
    parser.add_argument("--streams", nargs="+", choices=list(STREAMS), default=list(STREAMS), help="of the turns")
    options = parser.parse_args()
    harness.need_cuda()
    chosen = runs()[-3:] if options.turns else runs()

    def rows_in(folder: Path) -> Iterator[list[harness.Row]]:
        for stream in options.streams if options.turns else ["float32"]:
            torch.compiler.reset()  # torch keeps eight versions of a block, and one stream needs three or more
            for _ in range(max(1, options.turns)):
                asked = (options.steps, options.batch_tokens, folder, options.turns > 0)
                yield from ([row] for row in one_round(chosen, stream, *asked))

    with tempfile.TemporaryDirectory() as folder:
        name = "throughput_turns" if options.turns else "throughput"
        rows, path = harness.collect(name, rows_in(Path(folder)), options.out)
    print(harness.table(rows, COLUMNS))
    print(path)


if __name__ == "__main__":
    main()
