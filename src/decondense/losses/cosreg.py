"""CosReg: the mean cosine of the pairs.

    L = 1/(n(n−1)) Σ_{i≠j} c_ij = (‖Σ u_i‖² − n) / (n(n−1)),   u_i = z_i/‖z_i‖

Source: Gao et al. 2019, arXiv 1907.12009, who apply it to the rows of the output embedding and divide by n² instead of
the number of pairs, a factor of 1 − 1/n; Rudman & Eickhoff 2023 apply it to hidden states. O(NF), no pair is visited.
First-order `dispersion` is an increasing function of the same mean, so for one sequence the gradients are parallel.
"""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from .moments import first_routine
from .registry import Common, OfMoments, register


@register(
    "mean cosine of the pairs", source="rival", reference="Gao et al. 2019, arXiv 1907.12009", aliases=("cos_reg",)
)
def cosreg(z: Tensor, mask: Tensor | None = None, *, backend: str = "auto", **common: Unpack[Common]) -> OfMoments:
    """Mean cosine of hidden states z (batch, tokens, width): a scalar in [−1, 1], or (batch,) unreduced.

    A vector of zeros has no direction and counts as orthogonal to all others; backend as in `dispersion`.
    """
    return OfMoments(lambda mean: mean, first_routine(z, 0.0, backend))
