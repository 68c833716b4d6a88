"""`get`: a loss by name and preset, as a module that stores nothing but keywords.

(none)      what we recommend: the defaults of the bare functions
"paper"     the formulas of Liu et al. 2026: Algorithm 1 with its hard clamp, the feature-axis covariance, bare
            sums where the paper writes sums, no diagonal. Its ε is not stated; 0.01 is the released code's
"released"  what the paper's released code computes, to the last digit
"disperse"  the ancestors, Wang & He 2025: D = −cosine or squared distance, diagonal counted, no norm term
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .barlow_twins import barlow_twins
from .cosreg import cosreg
from .decorrelation import decorrelation
from .dispersion import TOGETHER, dispersion, dispersion_layers
from .i_star import i_star
from .koleo import koleo
from .l2_repel import l2_repel
from .options import check_choice
from .orthogonalization import orthogonalization
from .perplexity_entropy import perplexity_entropy
from .uniformity import uniformity
from .vicreg import vicreg

# The paper's losses and the variants of its released code.
LOSSES: dict[str, Callable[..., Tensor]] = {
    "dispersion": dispersion,
    "decorrelation": decorrelation,
    "l2_repel": l2_repel,
    "orthogonalization": orthogonalization,
    "perplexity_entropy": perplexity_entropy,
}
# Regularisers from the literature with the same aim, on token states. No preset has them: each has one form.
RIVALS: dict[str, Callable[..., Tensor]] = {
    "uniformity": uniformity,
    "vicreg": vicreg,
    "barlow_twins": barlow_twins,
    "koleo": koleo,
    "cosreg": cosreg,
    "i_star": i_star,
}
FUNCTIONS = {**LOSSES, **RIVALS}
ALIASES = {"angular_spread": "dispersion", "angular": "dispersion", "istar": "i_star", "cos_reg": "cosreg"}

# The released code takes 256 tokens, one permutation for the whole batch, in every variant.
_SAMPLED = {"max_tokens": 256, "shared_sample": True}

PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "paper": {
        "dispersion": {"hard_clamp": True, "clamp": 0.01, "eps": 0.01, "constant": 0.01},
        "decorrelation": {"axis": "feature", "pairs": "sum"},
        "l2_repel": {"pairs": "sum", "norm": "sum", "norm_weight": 0.1},
        "orthogonalization": {"hard_clamp": True, "clamp": 0.01, "eps": 0.01},
    },
    "released": {
        "dispersion": {"clamp": 0.25, "eps": 0.01, "constant": 0.01, **_SAMPLED},
        "decorrelation": {"axis": "token", **_SAMPLED},
        "l2_repel": {"diagonal": True, "constant": 0.01, "norm_weight": 0.1, **_SAMPLED},
        "orthogonalization": {"clamp": 0.25, "eps": 0.01, **_SAMPLED},
        "perplexity_entropy": {"eps": 0.01, **_SAMPLED},
    },
    "disperse": {
        "dispersion": {"distance": "cosine", "diagonal": True, "eps": 0.0},
        "decorrelation": {"axis": "feature", "pairs": "sum", "diagonal": True},
        "l2_repel": {"diagonal": True, "norm_weight": 0.0},
        "orthogonalization": {"distance": "cosine", "diagonal": True, "eps": 0.0},
    },
}


_TOGETHER = set(inspect.signature(dispersion_layers).parameters)


class Loss(nn.Module):
    """A loss function with its keywords: `loss(z, mask)`. No parameters, no state."""

    def __init__(self, name: str, **keywords: Any) -> None:
        super().__init__()
        self.name = name
        self.function = FUNCTIONS[name]
        self.keywords = keywords

    def forward(self, z: Tensor, mask: Tensor | None = None, **keywords: Any) -> Tensor:
        return self.function(z, mask, **{**self.keywords, **keywords})

    def over_layers(self, states: Sequence[Tensor], mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The values (layers, batch) of several layers, and their mean cosines where they come for nothing.

        A row of single tokens has no pair and counts as 0.
        """
        device = states[0].device
        if states[0].shape[1] < 2:
            zeros = torch.zeros(len(states), states[0].shape[0], device=device)
            return zeros, None
        masks = [None if mask is None else mask.to(z.device) for z in states]
        together = self.name == "dispersion" and self.keywords.get("estimator", "exact") in TOGETHER
        if together and self.keywords.keys() <= _TOGETHER:
            return dispersion_layers(states, masks, **self.keywords)
        values = torch.stack([self(z, m, reduction="none").to(device) for z, m in zip(states, masks)])
        return values, None

    def extra_repr(self) -> str:
        return ", ".join([repr(self.name), *(f"{key}={value!r}" for key, value in self.keywords.items())])


def get(name: str, *, preset: str | None = None, **keywords: Any) -> Loss:
    """The loss `name` with the keywords of a preset, each of which can be overridden.

    `get("dispersion", preset="released", tau=1.0, clamp=0.1)` is what the paper's GPT2 runs trained with. The
    released code is one class with one set of arguments, so that preset takes `tau` and `clamp` for every loss,
    also for those that have no use for them.
    """
    name = ALIASES.get(name, name)
    check_choice("loss", name, FUNCTIONS)
    settings: dict[str, Any] = {}
    if preset is not None:
        check_choice("preset", preset, PRESETS)
        if name not in PRESETS[preset]:
            others = [f"preset={p!r}" for p in PRESETS if name in PRESETS[p]]
            raise ValueError(
                f"preset={preset!r} has {', '.join(PRESETS[preset])}, got {name!r}: "
                f"it is not in that source; use {' or '.join([*others, 'none'])}."
            )
        settings.update(PRESETS[preset][name])
    known = [p for p in inspect.signature(FUNCTIONS[name]).parameters if p not in ("z", "mask")]
    for key, value in keywords.items():
        if key in ("tau", "clamp") and key not in known and preset == "released":
            continue
        if key not in known:
            check_choice(f"option of {name}", key, known)
        settings[key] = value
    return Loss(name, **settings)
