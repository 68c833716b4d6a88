"""Every claim of the paper as one command: `decondense study NAME`. One file per claim, and its scales in scales/.

A module of this package that defines STUDY is a study; nothing else registers it.
"""

from __future__ import annotations

import importlib
import pkgutil

from ..words import nearest
from .core import Study, collect, conclude, run, settings_of
from .settings import SCALES

__all__ = ["SCALES", "STUDIES", "Study", "collect", "conclude", "find", "run", "settings_of"]

_MODULES = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
_STUDIES: list[Study] = [module.STUDY for module in _MODULES if hasattr(module, "STUDY")]
# the numbered claims of the paper in their order, then the other questions
STUDIES = {s.name: s for s in sorted(_STUDIES, key=lambda s: (not s.claim[1:].isdigit(), s.claim, s.name))}


def find(name: str) -> Study:
    """The study of a name; for a name that does not exist an error with the nearest one."""
    if name not in STUDIES:
        close = nearest(name, STUDIES)
        hint = f"{close} The studies" if close.startswith("did") else "the studies"
        raise ValueError(f"there is no study {name!r}: {hint} are {', '.join(STUDIES)}.")
    return STUDIES[name]
