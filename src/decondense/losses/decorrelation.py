"""Decorrelation: the squared correlations off the diagonal.

    axis="token"    each token standardised over its features, R = token × token correlations
    axis="feature"  each feature standardised over the tokens, R = feature × feature correlations
    L = mean_{i≠j} R_ij²   (or the sum, `pairs="sum"`)

R_ij is the cosine of two centred vectors, so the loss is their `moments.mean_square`, which never needs R:
‖VVᵀ‖²_F − Σ ‖v_i‖⁴ over the smaller of the two Gram matrices.

The paper writes Σ_{m≠n} Cov²_mn with Cov = Z_cᵀZ_c/(d − 1) and Z_c standardised, which we read as the feature
axis with d the number of observations, the tokens; its released code uses the token axis and the mean, with
the features as observations. The bare function follows the released form: its value does not grow with the
square of the width.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from .. import geometry
from ..checks import check_choice
from .moments import mean_square
from .registry import Common, register
from .sampling import RELEASED_SAMPLE


@register(
    "squared correlations off the diagonal, of tokens or of features",
    source="paper",
    reference="Liu et al. 2026",
    presets={
        "paper": {"axis": "feature", "pairs": "sum"},
        "released": {"axis": "token", **RELEASED_SAMPLE},
        "disperse": {"axis": "feature", "pairs": "sum", "diagonal": True},
    },
)
def decorrelation(
    z: Tensor,
    mask: Tensor | None = None,
    *,
    axis: str = "token",
    pairs: str = "mean",
    diagonal: bool = False,
    backend: str = "auto",
    **common: Unpack[Common],
) -> Tensor:
    """Decorrelation loss of hidden states z (batch, tokens, width): a scalar, or (batch,) unreduced.

    `diagonal=True` adds the correlations of each vector with itself, which are all 1. A vector without
    variance has no correlation and counts as 0. backend as in `dispersion`.
    """
    check_choice("axis", axis, ("token", "feature"))
    check_choice("pairs", pairs, ("mean", "sum"))
    number: Tensor | int = z.shape[1] if mask is None else mask.sum(1)
    if axis == "token":
        value = mean_square(z, mask, centred=True, backend=backend)
    else:
        number = z.shape[2]
        z = geometry.centred(*geometry.keep(z, mask))
        value = mean_square(z.mT, None, backend=backend)
    if pairs == "mean" and not diagonal:
        return value
    items = number + torch.zeros_like(value)
    total = value * geometry.pair_count(items)
    if diagonal:
        total = total + items
    return total if pairs == "sum" else total / geometry.pair_count(items, diagonal=diagonal).clamp_min(1)
