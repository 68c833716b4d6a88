"""Studies that measure models which exist already: one piece per model, revision or text.

Settings: `windows`, `tokens`, and whatever names the models. What is kept of a measurement is what
`training.snapshot` keeps.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
from collections.abc import Sequence
from typing import Any

from .study import Settings, Workshop, rounded
from .training import snapshot

__all__ = ["measured"]


def measured(
    model: Any, settings: Settings, shop: Workshop, *, text: str | Sequence[str], revision: str | None = None
) -> dict[str, Any]:
    """The meter on one model and one text: {"measurement": …, "hardware": …, "versions": …}."""
    from ..meter.run import measure
    from ..models import hardware, pick_device

    found = measure(
        model,
        text=text,
        windows=settings["windows"],
        tokens=settings["tokens"],
        bootstrap=settings.get("bootstrap", 2000),
        revision=revision,
        device=shop.device,
        data=shop.data,
    )
    record = found.record
    low, high = found.interval("spearman")
    kept = snapshot(found, histogram=True) | {
        "model": found.label,
        "parameters": record["model"]["parameters"],
        "text": found.text,
        "text_source": record["text"]["source"],
        "text_sha256": record["text"]["sha256"],
        # over windows: says how well this model on this text is known, and decides nothing
        "window_interval": [low, high],
    }
    versions = {}
    for name in ("torch", "transformers"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return {"measurement": rounded(kept), "hardware": hardware(pick_device(shop.device)), "versions": versions}
