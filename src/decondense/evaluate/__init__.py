"""Benchmarks with every item kept, and tests that compare two sets of runs on the same items."""

from __future__ import annotations

from typing import Any

__all__ = ["evaluate", "load_run", "significance"]

_HOMES = {"evaluate": "harness", "load_run": "items", "significance": "significance"}


def __getattr__(name: str) -> Any:
    # lm-eval, datasets and scipy are heavy: nothing is imported before somebody asks for it
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
