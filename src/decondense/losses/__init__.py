"""The losses: plain functions of z (batch, tokens, width), and `get` for the same as modules with presets."""

from .decorrelation import decorrelation
from .dispersion import dispersion
from .l2_repel import l2_repel
from .moments import mean_cosine
from .orthogonalization import orthogonalization
from .perplexity_entropy import perplexity_entropy
from .presets import LOSSES, PRESETS, Loss, get

__all__ = [
    "LOSSES",
    "PRESETS",
    "Loss",
    "decorrelation",
    "dispersion",
    "get",
    "l2_repel",
    "mean_cosine",
    "orthogonalization",
    "perplexity_entropy",
]
