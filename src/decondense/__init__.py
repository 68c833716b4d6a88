"""Measure embedding condensation in Transformers, and train small language models that resist it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import losses
    from .figures.plot import plot
    from .handle import Handle
    from .integrations.callback import DecondenseCallback
    from .meter.compare import compare
    from .meter.result import Condensation, load
    from .meter.run import measure
    from .regularizer import regularize
    from .stats.significance import significance
    from .watch.engines import monitor
    from .watch.monitor import Monitor

__version__ = "0.2.0"
__all__ = [
    "Condensation", "DecondenseCallback", "Handle", "Monitor", "compare", "load", "losses", "measure", "monitor",
    "plot", "regularize", "significance",
]  # fmt: skip

# Imported on first use: torch takes seconds, which `decondense --help` should not, and the meter brings matplotlib and
# scipy along, which a training loop has no use for.
_HOMES = {
    ".figures.plot": ("plot",),
    ".handle": ("Handle",),
    ".integrations.callback": ("DecondenseCallback",),
    ".meter.compare": ("compare",),
    ".meter.result": ("Condensation", "load"),
    ".meter.run": ("measure",),
    ".regularizer": ("regularize",),
    ".stats.significance": ("significance",),
    ".watch.engines": ("monitor",),
    ".watch.monitor": ("Monitor",),
}


def __getattr__(name: str) -> Any:
    if name == "losses":
        return import_module(".losses", __name__)
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home, __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
