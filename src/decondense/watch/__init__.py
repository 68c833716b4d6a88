"""Watch the geometry of a model while it trains, without changing anything."""

from .engines import monitor
from .monitor import Collapse, Monitor
from .reading import METRICS, Reading

__all__ = ["METRICS", "Collapse", "Monitor", "Reading", "monitor"]
