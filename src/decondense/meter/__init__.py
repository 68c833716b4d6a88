"""The condensation meter: how similar the directions of a sequence's tokens are, at every depth of a model."""

from typing import TYPE_CHECKING, Any

from .compare import Comparison, compare
from .result import Condensation, load

if TYPE_CHECKING:
    from .run import Interrupted, measure

__all__ = ["Comparison", "Condensation", "Interrupted", "compare", "load", "measure"]


def __getattr__(name: str) -> Any:
    if name not in ("Interrupted", "measure"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import run  # on first use only: it imports torch, which reading a saved result does not need

    return getattr(run, name)
