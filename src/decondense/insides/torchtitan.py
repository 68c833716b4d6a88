"""Insides of torchtitan."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from . import member


def configurations(name: str) -> Iterator[Callable[[], Any]]:
    """The functions called `name` in the registries of torchtitan's model families, which no public function lists."""
    why = "its configurations are looked up by the family of the model"
    families = member("torchtitan.models", "_supported_models", why=why)
    for family in sorted(families):
        if name.startswith(family):
            function = getattr(import_module(f"torchtitan.models.{family}.config_registry"), name, None)
            if callable(function):
                yield function
