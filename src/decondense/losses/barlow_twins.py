"""Barlow Twins on token states: the features of a cloud should not be correlated.

    R = correlation of the features over the n tokens,   L = λ Σ_f≠g R_fg²,   λ = 0.005

Source: Zbontar et al. 2021, arXiv 2103.03230. There R is the *cross*-correlation of two augmented views of a batch, and
Σ_f (1 − R_ff)² pulls its diagonal to one. A token sequence has one view: the cloud is correlated with itself, the
diagonal is one by definition, and only the redundancy-reduction term is left, which is `decorrelation` with
axis="feature" and pairs="sum", times λ.
"""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from .. import geometry
from .decorrelation import decorrelation
from .registry import Common, register


@register("squared correlations of the features", source="rival", reference="Zbontar et al. 2021, arXiv 2103.03230")
def barlow_twins(
    z: Tensor, mask: Tensor | None = None, *, redundancy_weight: float = 5e-3, **common: Unpack[Common]
) -> Tensor:
    """Redundancy of the features of hidden states z (batch, tokens, width): a scalar, or (batch,) unreduced.

    redundancy_weight is λ. A feature without variance has no correlations; they count as 0.
    """
    geometry.check_finite(redundancy_weight=redundancy_weight)
    return redundancy_weight * decorrelation(z, mask, axis="feature", pairs="sum", reduction="none")
