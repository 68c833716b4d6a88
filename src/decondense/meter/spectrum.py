"""Spectral views of one hidden state Z (tokens × width): σ are its singular values, λ the eigenvalues of the
covariance of its tokens (width × width, mean removed).

======================  ========================================================================================
effective_rank          exp(−Σ p log p), p = σ/Σσ (Roy & Vetterli 2007)
top_singular_share      σ₁² / Σσ², the share of the top direction (MEV)
distance_to_rank_one    ‖Z − best rank one‖_F / ‖Z‖_F = √(1 − σ₁²/Σσ²)
high_low_ratio          ‖Z − 1mᵀ‖_F / ‖1mᵀ‖_F, m the mean token: HFC/LFC (Wang et al. 2022)
participation_ratio     (Σλ)² / Σλ²
matrix_entropy          −Σ q log q, q = σ²/Σσ²
spectral_slope          α of σ² ∝ rank^−α, by least squares of log σ² against log rank over ranks 3 … 100 (α-ReQ,
                        Agrawal et al. 2022, of the second moments: rank 1 is mostly the mean)
isoscore                Rudman et al. 2022: with n the width and λ̂ = √n λ/‖λ‖, δ = ‖λ̂ − 1‖/√(2(n − √n)),
                        φ = (n − δ²(n − √n))²/n², IsoScore = (nφ − 1)/(n − 1); 1 where n = 1
======================  ========================================================================================

The σ come from the eigenvalues of the smaller Gram matrix in float64, which cost a quarter of a singular value
decomposition; singular values under about 3e-7 σ₁ (512 tokens) count as zero, which is also the accuracy of a float32
state. ``isoscore`` is (P − 1)/(n − 1) with P the participation ratio, as
‖λ̂ − 1‖² = 2(n − √n Σλ/‖λ‖) makes nφ = P; both depend on λ through Σλ and Σλ² alone.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from ..host import sent
from ..kernels import available

SPECTRAL = ("effective_rank", "top_singular_share", "distance_to_rank_one", "high_low_ratio",
            "participation_ratio", "isoscore", "matrix_entropy", "spectral_slope")  # fmt: skip


class SecondMoments(NamedTuple):
    """What the statistics need of clouds (…, tokens, width), in float64: the smaller Gram matrix (…, k, k); ‖1mᵀ‖²,
    ‖Z − 1mᵀ‖² and the Frobenius norm of the Gram matrix of Z − 1mᵀ, each (…); the width."""

    gram: torch.Tensor
    low: torch.Tensor
    high: torch.Tensor
    frobenius: torch.Tensor
    width: int

    def on_host(self) -> SecondMoments:
        """Return a copy on the CPU. From a GPU it is complete once its stream has got that far: this does not wait."""
        gram, low, high, frobenius = map(sent, (self.gram, self.low, self.high, self.frobenius))
        return SecondMoments(gram, low, high, frobenius, self.width)


def spectral_statistics(z: torch.Tensor) -> torch.Tensor:
    """z (…, tokens, width) → (…, 8) float64 values in the order of ``SPECTRAL``, on the CPU; all clouds in one
    call of every operation."""
    return of_moments(second_moments(z)).cpu()


def second_moments(z: torch.Tensor) -> SecondMoments:
    z = z.double()
    n, width = z.shape[-2:]
    mean = z.mean(-2)
    if n <= width:
        gram = z @ z.mT
        rows = gram.mean(-1)
        centred = gram - rows[..., :, None] - rows[..., None, :] + rows.mean(-1)[..., None, None]
    else:
        gram = z.mT @ z
        centred = gram - n * mean[..., :, None] * mean[..., None, :]
    low, high = n * mean.square().sum(-1), _trace(centred).clamp_min(0)
    return SecondMoments(gram, low, high, torch.linalg.matrix_norm(centred), width)


def of_moments(moments: SecondMoments) -> torch.Tensor:
    """Return (…, 8) values in the order of ``SPECTRAL``. The eigenvalues cost more than all the rest of the meter."""
    gram, low, high, frobenius, width = moments
    power = _trace(gram)
    squared = _eigenvalues(gram)
    # Repeated tokens make exact zeros, which rounding turns into ±1e-16 σ₁²; their roots would count.
    threshold = gram.shape[-1] * torch.finfo(torch.float64).eps * squared[..., -1:]
    squared = torch.where(squared > threshold, squared, 0.0)
    singular = squared.sqrt()
    p = singular / singular.sum(-1, keepdim=True)
    rank = torch.exp(-torch.special.xlogy(p, p).sum(-1))
    share = singular[..., -1].square() / power
    participation = (high / frobenius).square()
    isoscore = (participation - 1) / (width - 1) if width > 1 else torch.ones_like(participation)
    q = squared / squared.sum(-1, keepdim=True)
    entropy = -torch.special.xlogy(q, q).sum(-1)
    values = [rank, share, (1 - share).clamp_min(0).sqrt(), (high / low).sqrt(), participation, isoscore, entropy]
    return torch.stack([*values, _slope(squared.flip(-1))], -1)


def _eigenvalues(gram: torch.Tensor) -> torch.Tensor:
    """Return the eigenvalues, ascending. On a GPU torch up to 2.11 takes one matrix after the other, our kernel all at
    once; matrices too large for the kernel are left to torch."""
    if gram.is_cuda and available(gram.device):
        from ..kernels.eigenvalues import LIMIT, eigenvalues

        if gram.shape[-1] <= LIMIT:
            return eigenvalues(gram)
    return torch.linalg.eigvalsh(gram)


def _trace(gram: torch.Tensor) -> torch.Tensor:
    return gram.diagonal(dim1=-2, dim2=-1).sum(-1)


def _slope(squared: torch.Tensor) -> torch.Tensor:
    """``squared`` (…, ranks), descending, → α (…); NaN where fewer than two ranks from 3 to 100 are above zero."""
    tail = squared[..., 2:100]
    positive = tail > 0
    count = positive.sum(-1, keepdim=True)
    x = torch.arange(3, 3 + tail.shape[-1], dtype=squared.dtype, device=squared.device).log().expand_as(tail)
    x = torch.where(positive, x - torch.where(positive, x, 0.0).sum(-1, keepdim=True) / count, 0.0)
    y = torch.where(positive, tail, 1.0).log()
    return torch.where(count[..., 0] > 1, -(x * y).sum(-1) / x.square().sum(-1), math.nan)
