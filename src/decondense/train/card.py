"""The model card of a trained model: how it was made, from its result alone."""

from __future__ import annotations

from typing import Any

__all__ = ["model_card"]


def model_card(record: dict[str, Any]) -> str:
    """Markdown with the front matter that model hubs read."""
    recipe, model = record["recipe"], record["model"]
    loss, baselines = recipe["loss"], {k: v for k, v in recipe["baselines"].items() if v}
    added = (
        "no regulariser" if loss["name"] == "none" else f"{loss['name']}, weight {loss['weight']:g}, {loss['layers']}"
    )
    options = "".join(f", {k} = {v}" for k, v in loss["options"].items())
    first, last = record["held_out"][0], record["held_out"][-1]
    rows = [
        ("started from", f"{model['source']} ({model['parameters']:,} parameters)"),
        ("text", ", ".join(f"{t['name']} ({t['source']})" for t in record["text"])),
        ("tokens", f"{record['tokens']:,} in {record['steps']:,} steps"),
        ("context", f"{recipe['data']['context']} tokens"),
        ("loss on the hidden states", added + options),
        ("other methods", ", ".join(f"{k.replace('_', ' ')}: {v}" for k, v in baselines.items()) or "none"),
        ("held-out loss", f"{first['loss']:.4f} before, {last['loss']:.4f} after"),
        ("seed", str(recipe["train"]["seed"])),
        ("hardware", record["hardware"]),
        ("versions", ", ".join(f"{k} {v}" for k, v in record["versions"].items())),
    ]
    table = "\n".join(f"| {name} | {value} |" for name, value in rows)
    return f"""---
library_name: transformers
tags: [decondense]
---
# {recipe["name"]}

Trained with [decondense](https://arxiv.org/abs/2602.00217), a package that measures embedding condensation and trains
against it. The whole recipe, the losses and the measurements lie beside this model in its run folder.

| | |
|---|---|
{table}

The held-out loss is cross-entropy in nats per token, without the added loss.
"""
