"""The losses: plain functions of z (batch, tokens, width), and `get` for the same as modules with presets.

`LOSSES` are the paper's, `RIVALS` those of the literature with the same aim, `FUNCTIONS` all of them by name.
"""

from .barlow_twins import barlow_twins
from .cosreg import cosreg
from .covariance import pooled_covariance
from .decorrelation import decorrelation
from .dispersion import dispersion
from .i_star import i_star
from .koleo import koleo
from .l2_repel import l2_repel
from .moments import mean_cosine
from .orthogonalization import orthogonalization
from .perplexity_entropy import perplexity_entropy
from .presets import FUNCTIONS, LOSSES, PRESETS, RIVALS, Loss, get
from .uniformity import uniformity
from .vicreg import vicreg

__all__ = [
    "FUNCTIONS",
    "LOSSES",
    "PRESETS",
    "RIVALS",
    "Loss",
    "barlow_twins",
    "cosreg",
    "decorrelation",
    "dispersion",
    "get",
    "i_star",
    "koleo",
    "l2_repel",
    "mean_cosine",
    "orthogonalization",
    "perplexity_entropy",
    "pooled_covariance",
    "uniformity",
    "vicreg",
]
