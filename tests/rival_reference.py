"""The rival losses written as their papers' equations read: float64, loops, no trick.

As in reference.py, each takes one sequence (n, width) and returns a 0-dim tensor that autograd can differentiate.
"""

from __future__ import annotations

import math

import torch
from reference import mean_cosine, pairs, squared_distance, units
from torch import Tensor


def zero(z: Tensor) -> Tensor:
    return torch.zeros((), dtype=z.dtype)


def uniformity(z: Tensor, t=2.0) -> Tensor:
    """log of the mean over the pairs of exp(−t ‖u_i − u_j‖²)."""
    u, total = units(z, 0.0), zero(z)
    for i, j in pairs(len(z)):
        total = total + torch.exp(-t * squared_distance(u[i], u[j]))
    return torch.log(total / len(pairs(len(z))))


def cosreg(z: Tensor) -> Tensor:
    return mean_cosine(z, 0.0)


def koleo(z: Tensor, eps=1e-8) -> Tensor:
    """−mean log of the distance to the nearest other point."""
    u, total = units(z, 0.0), zero(z)
    for i in range(len(z)):
        squares = [squared_distance(u[i], u[j]) for j in range(len(z)) if j != i]
        total = total - torch.log(torch.sqrt(min(squares, key=lambda x: x.item())) + eps)
    return total / len(z)


def covariances(z: Tensor) -> list[list[Tensor]]:
    """The unbiased covariances of all pairs of features over the tokens."""
    centred = [x - x.sum() / len(z) for x in z.T]
    return [[torch.dot(x, y) / (len(z) - 1) for y in centred] for x in centred]


def vicreg(z: Tensor, mu=25.0, nu=1.0, gamma=1.0, eps=1e-4) -> Tensor:
    """μ v(Z) + ν c(Z) with v and c as Bardes et al. define them."""
    d, c = z.shape[1], covariances(z)
    hinge = zero(z)
    for f in range(d):
        hinge = hinge + torch.clamp(gamma - torch.sqrt(c[f][f] + eps), min=0)
    square = zero(z)
    for f, g in pairs(d):
        square = square + c[f][g] ** 2
    return mu * hinge / d + nu * square / d


def barlow_twins(z: Tensor, weight=5e-3) -> Tensor:
    """Σ_f (1 − R_ff)² + λ Σ_f≠g R_fg² with both views the same: the first sum is written out, though it is zero."""
    d, c = z.shape[1], covariances(z)

    def correlation(f: int, g: int) -> Tensor:
        return c[f][g] / torch.sqrt(c[f][f] * c[g][g])

    invariance = sum(((1 - correlation(f, f)) ** 2 for f in range(d)), zero(z))
    redundancy = sum((correlation(f, g) ** 2 for f, g in pairs(d)), zero(z))
    return invariance + weight * redundancy


def i_star(z: Tensor, zeta=0.0, target: Tensor | None = None) -> Tensor:
    """1 − IsoScore*, in the seven steps of its authors, eigenvalues and all."""
    d = z.shape[1]
    c = torch.stack([torch.stack(row) for row in covariances(z)])
    s = torch.eye(d, dtype=z.dtype) if target is None else target
    eigenvalues = torch.linalg.eigvalsh((1 - zeta) * c + zeta * s)
    scaled = math.sqrt(d) * eigenvalues / torch.linalg.vector_norm(eigenvalues)
    defect = torch.linalg.vector_norm(scaled - 1) / math.sqrt(2 * (d - math.sqrt(d)))
    phi = (d - defect**2 * (d - math.sqrt(d))) ** 2 / d**2
    return 1 - (d * phi - 1) / (d - 1)
