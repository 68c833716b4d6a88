"""Measure embedding condensation in Transformers, and train small language models that resist it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import losses
from .regularize import Handle, regularize

if TYPE_CHECKING:
    from .meter.compare import compare
    from .meter.result import Condensation, load
    from .meter.run import measure

__version__ = "0.1.0"
__all__ = ["Condensation", "Handle", "compare", "load", "losses", "measure", "regularize"]

_METER = ("Condensation", "compare", "load", "measure")


def __getattr__(name: str) -> Any:
    # The meter brings matplotlib and scipy along, which a training loop has no use for.
    if name in _METER:
        return getattr(import_module(".meter", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
