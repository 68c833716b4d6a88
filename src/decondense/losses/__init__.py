"""The losses: plain functions of z (batch, tokens, width), and `get`, which returns them as modules, with presets.

Every file here is imported, which registers its loss: a new loss is a new file (`registry.py`). `registered()` lists
all losses, `registered("paper")` those of the paper; other sources are "released", its released code, "rival", the
literature with the same aim, and "control", what a study compares them with.
"""

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from .algorithm_1 import algorithm_1
from .covariance import pooled_covariance
from .moments import mean_cosine
from .presets import Loss, get
from .registry import register, registered

if TYPE_CHECKING:  # for editors and type checkers, which do not run the loop below
    from .barlow_twins import barlow_twins as barlow_twins
    from .cosreg import cosreg as cosreg
    from .decorrelation import decorrelation as decorrelation
    from .dispersion import dispersion as dispersion
    from .i_star import i_star as i_star
    from .koleo import koleo as koleo
    from .l2_repel import l2_repel as l2_repel
    from .orthogonalization import orthogonalization as orthogonalization
    from .perplexity_entropy import perplexity_entropy as perplexity_entropy
    from .placebo import placebo as placebo
    from .uniformity import uniformity as uniformity
    from .vicreg import vicreg as vicreg

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
# A file and its loss have the same name: `losses.NAME` must be the function.
globals().update({name: entry.function for name, entry in registered().items()})

__all__ = ["Loss", "algorithm_1", "get", "mean_cosine", "pooled_covariance", "register", "registered", *registered()]


def __getattr__(name: str) -> Any:
    """A loss that was registered by a module outside this package."""
    if name in registered():
        return registered()[name].function
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
