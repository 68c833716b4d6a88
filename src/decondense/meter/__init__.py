"""The condensation meter: how similar the directions of a sequence's tokens are, at every depth of a model."""

from .compare import Comparison, compare
from .result import Condensation, load
from .run import Interrupted, measure

__all__ = ["Comparison", "Condensation", "Interrupted", "compare", "load", "measure"]
