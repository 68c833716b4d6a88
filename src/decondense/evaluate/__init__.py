"""Benchmarks with every item kept."""

from __future__ import annotations

from typing import Any

__all__ = ["evaluate", "load_run"]

_HOMES = {"evaluate": "harness", "load_run": "items"}


def __getattr__(name: str) -> Any:
    # lm-eval, datasets and scipy are heavy: nothing is imported before somebody asks for it
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
