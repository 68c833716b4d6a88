"""Every claim of the paper as one command: `decondense study NAME`.

scales/NAME.yaml has the claim, the criterion (in which {margin:g} stands for a number of the settings), what a page
shows of the result, and what each scale trains or measures; NAME.py concludes from the runs. Nothing else registers a
study. See `core.Study` for what a module may define.
"""

from __future__ import annotations

import importlib
from importlib import resources

from ..words import perhaps
from .core import HOOKS, Study, check_folder, collect, conclude, run, settings_of
from .settings import SCALES, scale_file

__all__ = ["SCALES", "STUDIES", "Study", "check_folder", "collect", "conclude", "find", "run", "settings_of"]


def _study(name: str) -> Study:
    module, file = importlib.import_module(f"{__name__}.{name}"), scale_file(name)
    texts = {key: file[key] for key in ("claim", "question", "short", "shown", "timed", "toy") if key in file}
    hooks = {hook: getattr(module, hook) for hook in HOOKS if hasattr(module, hook)}
    return Study(name, **texts, **{"criterion_of": lambda settings: file["criterion"].format(**settings)} | hooks)


_FILES = [file.name for file in resources.files(__name__).joinpath("scales").iterdir()]
_NAMES = {name.removesuffix(".yaml") for name in _FILES if name.endswith(".yaml")}
# the numbered claims of the paper in their order, then the other questions
_ORDERED = sorted(map(_study, _NAMES - {"recipes"}), key=lambda s: (not s.claim[1:].isdigit(), s.claim, s.name))
STUDIES = {study.name: study for study in _ORDERED}


def find(name: str) -> Study:
    """The study with this name; an unknown name is an error that suggests the nearest one."""
    if name not in STUDIES:
        if study := next((study for study in STUDIES if name.startswith(f"{study}-")), None):
            raise ValueError(
                f"there is no study {name!r}: if it is a folder with a result of the study {study!r}, give decondense "
                f"study {study}, or the whole command, which is in the folder's result.json."
            )
        close = perhaps(name, [*STUDIES, "list"])  # the command takes "list" in place of a name
        raise ValueError(f"there is no study {name!r}, the studies are {', '.join(STUDIES)}{close}")
    return STUDIES[name]
