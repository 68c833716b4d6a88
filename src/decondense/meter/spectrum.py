"""Spectral views of one hidden state Z (tokens × width), σ its singular values, λ the eigenvalues of the
covariance of its tokens (over the width, mean removed).

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
                        φ = (n − δ²(n − √n))²/n², IsoScore = (nφ − 1)/(n − 1)
======================  ========================================================================================

Only effective_rank and σ₁ need eigenvalues; they come from the smaller Gram matrix in float64, which costs a
quarter of a singular value decomposition; singular values under about 3e-7 σ₁ (512 tokens) are taken as zero, which is
also where those of a float32 state end. ``isoscore`` and ``participation_ratio``
depend on λ through Σλ and Σλ² alone: ‖λ̂ − 1‖² = 2(n − √n Σλ/‖λ‖).
"""

from __future__ import annotations

import math

import torch

__all__ = ["SPECTRAL", "spectral_statistics"]

SPECTRAL = ("effective_rank", "top_singular_share", "distance_to_rank_one", "high_low_ratio",
            "participation_ratio", "isoscore", "matrix_entropy", "spectral_slope")  # fmt: skip


def spectral_statistics(z: torch.Tensor) -> torch.Tensor:
    """z (tokens, width) → float64 values in the order of ``SPECTRAL``, on the CPU."""
    z = z.double()
    n, width = z.shape
    mean = z.mean(0)
    if n <= width:
        gram = z @ z.T
        rows = gram.mean(1)
        centred = gram - rows[:, None] - rows[None, :] + rows.mean()
    else:
        gram = z.T @ z
        centred = gram - n * torch.outer(mean, mean)
    power = gram.trace()
    squared = torch.linalg.eigvalsh(gram)
    # Repeated tokens make exact zeros, which rounding turns into ±1e-16 σ₁²; their roots would count.
    squared = torch.where(squared > len(gram) * torch.finfo(torch.float64).eps * squared[-1], squared, 0.0)
    singular = squared.sqrt()
    p = singular / singular.sum()
    rank = torch.exp(-torch.special.xlogy(p, p).sum())
    share = singular[-1].square() / power
    low = n * mean.square().sum()
    high = centred.trace().clamp_min(0)
    frobenius = torch.linalg.matrix_norm(centred)
    participation, isoscore = high.square() / frobenius.square(), _isoscore(high / frobenius, width)
    q = squared / squared.sum()
    entropy = -torch.special.xlogy(q, q).sum()
    values = [rank, share, (1 - share).clamp_min(0).sqrt(), (high / low).sqrt(), participation, isoscore, entropy]
    return torch.stack([*values, _slope(squared.flip(0))]).cpu()


def _slope(squared: torch.Tensor) -> torch.Tensor:
    """``squared`` descending; NaN where fewer than two of the ranks have anything."""
    tail = squared[2:100]
    tail = tail[tail > 0]
    if len(tail) < 2:
        return squared.new_tensor(math.nan)
    x = torch.arange(3, 3 + len(tail), dtype=squared.dtype, device=squared.device).log()
    x, y = x - x.mean(), tail.log()
    return -(x * y).sum() / x.square().sum()


def _isoscore(ratio: torch.Tensor, width: int) -> torch.Tensor:
    """``ratio`` is Σλ/‖λ‖, between 1 (one direction) and √n (isotropic)."""
    if width == 1:
        return torch.ones_like(ratio)
    root = math.sqrt(width)
    defect2 = (width - root * ratio) / (width - root)
    phi = (width - defect2 * (width - root)).square() / width**2
    return (width * phi - 1) / (width - 1)
