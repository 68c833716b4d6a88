"""Equation 2 and Algorithm 1 of Liu et al. 2026, arXiv 2602.00217, as written: the loss that this package is about.

`losses.get("dispersion", preset="paper")` gives the same value and gradient without the N × N matrix, and takes masks;
the bare `dispersion` has another clamp (straight-through, 0.1) and no ε in the sum: docs/differences.md.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def algorithm_1(z: Tensor, *, tau: float = 1.0, eps: float = 1e-2) -> Tensor:
    """Equation 2, L = log Σ_{i≠j} exp(−D_ij/τ), by Algorithm 1, for z (batch, tokens, width): a scalar.

    D_ij = arccos(c_ij)/π is the angular distance. ε, which the paper does not state, bounds the norms, limits the
    cosines and stands in the sum; Algorithm 1 also subtracts log N(N − 1), which makes the value a mean over the pairs.
    """
    n = z.shape[1]
    u = z / (torch.linalg.vector_norm(z, dim=-1, keepdim=True) + eps)
    cosine = (u @ u.mT).clamp(-1 + eps, 1 - eps)  # a hard clamp: no gradient where it bites
    distance = torch.arccos(cosine) / math.pi
    off_diagonal = ~torch.eye(n, dtype=torch.bool, device=z.device)
    logits = eps - distance[:, off_diagonal] / tau  # (batch, N(N − 1))
    return (torch.logsumexp(logits, -1) - math.log(n * (n - 1))).mean()
