"""A training step with and without the loss on every layer: what the estimators cost, as ratios in one run.

Random weights (the time of a step does not depend on them), transformers' model and its own attention, bfloat16
autocast, fused AdamW. The variants take turns, so that a drift of the clock hits them all; medians.

    python benchmarks/bench_train_step.py [--losses] [--models gpt2 qwen3] [--rounds 5] [--out DIR] [--plot]

--losses takes the other losses instead of the estimators, each on all layers and on the last one alone.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable
from typing import Any

import harness
import torch
from bench_exact import algorithm_1, sampled

import decondense as dc


def gpt2() -> tuple[torch.nn.Module, int, int]:
    """GPT2-124M, 32 sequences of 1024 tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(use_cache=False)), 32, 1024


def qwen3() -> tuple[torch.nn.Module, int, int]:
    """Qwen3-0.6B's architecture, 4 sequences of 4096 tokens."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=151936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16,
        num_key_value_heads=8, head_dim=128, max_position_embeddings=4096, tie_word_embeddings=True, use_cache=False,
    )  # fmt: skip
    return Qwen3ForCausalLM(config), 4, 4096


MODELS: dict[str, Callable[[], tuple[torch.nn.Module, int, int]]] = {"gpt2": gpt2, "qwen3": qwen3}


def by_hand(loss: Callable[[torch.Tensor], torch.Tensor], weight: float = 0.1):
    """A step that takes the hidden states from the model's output and adds the loss itself."""

    def forward(model: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
        out = model(input_ids=ids, labels=ids, output_hidden_states=True)
        layers = out.hidden_states[1:]
        return out.loss + weight * torch.stack([loss(z).mean() for z in layers]).mean()

    return forward


def plain(model: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
    return model(input_ids=ids, labels=ids).loss


Variant = tuple[str, dict[str, Any] | None, Callable[..., torch.Tensor]]

VARIANTS: list[Variant] = [
    ("cross-entropy", None, plain),
    ("+ first_order", {"estimator": "first_order"}, plain),
    ("+ second_order", {"estimator": "second_order"}, plain),
    ("+ exact", {"estimator": "exact"}, plain),
    ("+ Algorithm 1, 256 sampled tokens", None, by_hand(sampled)),
    ("+ Algorithm 1, all tokens", None, by_hand(algorithm_1)),
]
OTHERS = ("decorrelation", "orthogonalization", "cosreg", "uniformity", "koleo", "vicreg", "l2_repel")
LOSSES: list[Variant] = VARIANTS[:2] + [
    (f"+ {loss}, {layers}", {"loss": loss, "layers": layers}, plain) for loss in OTHERS for layers in ("all", "last")
]


def prepared(name: str) -> tuple[Any, torch.optim.Optimizer, torch.Tensor]:
    """A model with random weights on the GPU, its optimiser, and one batch of random tokens."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        model, batch, tokens = MODELS[name]()
    model.train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    return model, optimiser, torch.randint(0, model.config.vocab_size, (batch, tokens), device="cuda")


def measure(name: str, variants: list[Variant], rounds: int) -> list[harness.Row]:
    model, optimiser, ids = prepared(name)
    batch, tokens = ids.shape

    def step(options: dict[str, Any] | None, forward: Callable[..., torch.Tensor], repeats: int) -> float:
        handle = dc.regularize(model, weight=0.1, **options) if options else None
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(repeats):
            with torch.autocast("cuda", torch.bfloat16):
                loss = forward(model, ids)
            loss.backward()
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        end.record()
        torch.cuda.synchronize()
        if handle is not None:
            handle.remove()
        return start.elapsed_time(end) / repeats

    times: dict[str, list[float]] = {}
    memory: dict[str, float] = {}
    for variant, options, forward in variants:
        try:
            step(options, forward, 2)
            torch.cuda.reset_peak_memory_stats()
            step(options, forward, 1)
            memory[variant] = torch.cuda.max_memory_allocated() / 2**30
            times[variant] = []
        except torch.OutOfMemoryError:
            print(f"{name}, {variant}: out of memory", flush=True)
            optimiser.zero_grad(set_to_none=True)
        gc.collect()
        torch.cuda.empty_cache()
    for _ in range(rounds):
        for variant, options, forward in variants:
            if variant in times:
                step(options, forward, 1)  # the allocator settles
                times[variant].append(step(options, forward, 3))
    base = statistics.median(times["cross-entropy"])
    return [
        {
            "model": name, "batch": batch, "tokens": tokens, "variant": variant,
            "ms": statistics.median(times[variant]) if variant in times else "out of memory",
            "ratio": statistics.median(times[variant]) / base if variant in times else "",
            "spread": (max(times[variant]) - min(times[variant])) / base if variant in times else "",
            "peak_GiB": memory.get(variant, ""),
        }
        for variant, _, _ in variants
    ]  # fmt: skip


def main() -> None:
    parser = harness.arguments(__doc__ or "")
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--losses", action="store_true", help="the other losses instead of the estimators")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    harness.need_cuda()
    variants, file = (LOSSES, "train_step_losses") if options.losses else (VARIANTS, "train_step")
    rows: list[harness.Row] = []
    columns = ("model", "batch", "tokens", "variant", "ms", "ratio", "spread", "peak_GiB")
    for name in options.models:
        rows += measure(name, variants, options.rounds)
        gc.collect()
        torch.cuda.empty_cache()
        print(harness.table(rows[-len(variants) :], columns), flush=True)
        path = harness.write(file, rows, options.out)  # after each model: a long run may be cut short
    if options.plot:
        harness.bars(
            [row for row in rows if row["ratio"] != ""], path.with_suffix(".png"), value="ratio", case=("model",)
        )
    print(path)


if __name__ == "__main__":
    main()
