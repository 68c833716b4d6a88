"""Every claim of the paper as one command: `decondense study NAME`. One file per claim."""

from __future__ import annotations

import difflib

from . import (
    arch,
    benchmarks,
    counteract,
    distill,
    dose,
    estimators,
    hyper,
    init,
    size,
    text,
    theory,
    variants,
    width,
)
from .merging import collect, merge
from .pieces import run
from .study import SCALES, Study, settings_of

__all__ = ["SCALES", "STUDIES", "Study", "collect", "find", "merge", "run", "settings_of"]

_FILES = (size, text, width, arch, init, distill, counteract, benchmarks, variants, hyper, dose, estimators, theory)
STUDIES: dict[str, Study] = {file.STUDY.name: file.STUDY for file in _FILES}


def find(name: str) -> Study:
    """The study of a name; for a name that does not exist an error with the nearest one."""
    if name not in STUDIES:
        close = difflib.get_close_matches(name, STUDIES, n=1, cutoff=0.4)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise ValueError(f"there is no study {name!r}: {hint}The studies are {', '.join(STUDIES)}.")
    return STUDIES[name]
