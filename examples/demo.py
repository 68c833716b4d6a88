"""The main job on a real model, in a few minutes on two CPU cores: measure, train with the loss, measure again.

Without the loss the same steps are taken a second time, so that what you see is the loss and not the training.
"""

from __future__ import annotations

import copy
import time

import torch
from rich.console import Console
from rich.table import Table

import decondense as dc
from decondense.models import load
from decondense.text import open_text

MODEL, TEXT, STEPS, WEIGHT, TOKENS, BATCH = "smollm2-135m", "wikitext-2", 6, 1.0, 256, 4


def batches(tokenizer, steps: int) -> list[torch.Tensor]:
    """The first tokens of the training split, in order: (batch, tokens) each."""
    needed = (steps + 1) * BATCH * TOKENS
    ids = tokenizer(open_text(f"{TEXT}:train").joined[: needed * 8], return_tensors="pt").input_ids[0]
    return list(ids[:needed].reshape(steps + 1, BATCH, TOKENS))


def mean_cosines(model: torch.nn.Module, ids: torch.Tensor) -> list[float]:
    """Mean cosine between the tokens of a text, per hidden state, on a batch that is never trained on."""
    model.eval()
    with torch.no_grad():
        states = model(input_ids=ids, output_hidden_states=True).hidden_states
    return [dc.losses.mean_cosine(z).mean().item() for z in states]


def train(model: torch.nn.Module, data: list[torch.Tensor], weight: float, console: Console) -> None:
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1)
    model.train()
    with dc.regularize(model, "dispersion", weight=weight) as handle:
        for step, ids in enumerate(data, 1):
            started = time.perf_counter()
            model(input_ids=ids, labels=ids).loss.backward()
            optimiser.step()
            optimiser.zero_grad()
            last = handle.last
            console.print(
                f"  step {step}: task loss {last['task_loss']:.3f}   penalty {last['penalty']:+.4f}   "
                f"mean cosine {last['mean_cosine'].mean():.3f}   ({time.perf_counter() - started:.1f} s)"
            )


def main() -> None:
    console = Console()
    torch.manual_seed(0)
    console.print(f"loading {MODEL} (dequantised Q4_1; the first time it is converted, half a minute) …")
    model, tokenizer = load(MODEL)
    *data, held_out = batches(tokenizer, STEPS)
    before = mean_cosines(model, held_out)
    results = {}
    for name, weight in (("cross-entropy", 0.0), ("+ dispersion", WEIGHT)):
        console.print(f"\n[bold]{STEPS} steps of {BATCH} × {TOKENS} tokens, {name}, weight {weight}[/bold]")
        trained = copy.deepcopy(model)
        train(trained, data, weight, console)
        results[name] = mean_cosines(trained, held_out)
    table = Table(title="mean cosine between tokens of a held-out text: higher is more condensed")
    for column in ("hidden state", "before", *results):
        table.add_column(column, justify="right")
    names = ["embedding", *(f"block {i}" for i in range(1, len(before)))]
    names[-1] += " (after norm)"
    for i, name in enumerate(names):
        table.add_row(name, f"{before[i]:.3f}", *(f"{values[i]:.3f}" for values in results.values()))
    console.print()
    console.print(table)


if __name__ == "__main__":
    main()
