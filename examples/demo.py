"""The main job on a real model, in a few minutes on two CPU cores: measure, train with the loss, measure again.

The same steps are also taken without the loss, so that what you see is the loss and not the training. The weight is
far above the paper's 0.1, and the learning rate high: a few steps are to show what the loss does, not to make a
better model.
"""

from __future__ import annotations

import copy
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import decondense as dc
from decondense.meter.compare import Comparison
from decondense.models import load
from decondense.text import open_text

MODEL, TEXT, OUT = "smollm2-135m", "wikitext-2", Path("demo-out")
STEPS, BATCH, TOKENS, WEIGHT, LEARNING_RATE = 6, 2, 128, 3.0, 3e-4
WINDOWS, LENGTH = 8, 256


def batches(tokenizer: Any) -> list[torch.Tensor]:
    """The first tokens of the training split, in order: (batch, tokens) each. The meter reads the test split."""
    needed = STEPS * BATCH * TOKENS
    ids = tokenizer(open_text(f"{TEXT}:train").joined[: needed * 8], return_tensors="pt").input_ids[0]
    return list(ids[:needed].reshape(STEPS, BATCH, TOKENS))


def train(model: torch.nn.Module, data: list[torch.Tensor], weight: float, console: Console) -> None:
    optimiser = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.1)
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


def measured(model: torch.nn.Module, tokenizer: Any, name: str, console: Console) -> dc.Condensation:
    """The meter on held-out windows."""
    with console.status(f"measuring {WINDOWS} windows of {LENGTH} tokens: {name}"):
        result = dc.measure((model, tokenizer), text=TEXT, windows=WINDOWS, tokens=LENGTH, label=name)
    console.print(f"[bold]{name}[/bold]: {result.verdict}")
    return result


def main() -> None:
    console = Console()
    torch.manual_seed(0)
    console.print(f"loading {MODEL} (dequantised Q4_1; the first time it is converted, which takes half a minute) …")
    model, tokenizer = load(MODEL)
    data = batches(tokenizer)
    results = [measured(model, tokenizer, "before", console)]
    for name, weight in (("cross-entropy", 0.0), ("+ dispersion", WEIGHT)):
        console.print(f"\n{STEPS} steps of {BATCH} × {TOKENS} tokens, {name}, weight {weight}")
        trained = copy.deepcopy(model)
        train(trained, data, weight, console)
        results.append(measured(trained, tokenizer, name, console))
    table = Table(title="mean cosine between the tokens of held-out text: higher is more condensed")
    for column in ("hidden state", *(r.label for r in results)):
        table.add_column(column, justify="right")
    for i in range(results[0].layers + 1):
        name = "embedding" if i == 0 else f"block {i}" + (", normed" if i == results[0].layers else "")
        table.add_row(name, *(f"{r.mean_cosine[i]:.3f}" for r in results))
    console.print()
    console.print(table)
    OUT.mkdir(exist_ok=True)
    files = Comparison(results, "order").plot(OUT)
    for result, name in zip(results, ("before", "cross-entropy", "dispersion")):
        files.append(result.save(OUT / f"{name}.json"))
    console.print("written: " + ", ".join(str(file) for file in files))


if __name__ == "__main__":
    main()
