"""The losses written as the equations read: float64, one pair at a time, no trick. Slow on purpose.

Each function takes one sequence as a list of vectors (n, width) and returns a 0-dim tensor that autograd can
differentiate, so the gradients come from here as well.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def units(z: Tensor, eps: float) -> list[Tensor]:
    return [v / (torch.sqrt(torch.dot(v, v)) + eps) for v in z]


def distance(c: Tensor, clamp: float, hard: bool) -> Tensor:
    """arccos(c)/π with c limited to ±(1 − clamp): flat beyond it, or with the slope of the boundary."""
    bound = 1 - clamp
    if abs(c.item()) <= bound:
        return torch.arccos(c) / math.pi
    edge = math.copysign(bound, c.item())
    slope = 0.0 if hard else -1 / (math.pi * math.sqrt(1 - edge**2))
    return torch.tensor(math.acos(edge) / math.pi, dtype=c.dtype) + slope * (c - c.detach())


def pairs(n: int, diagonal: bool = False) -> list[tuple[int, int]]:
    return [(i, j) for i in range(n) for j in range(n) if diagonal or i != j]


def dispersion(z: Tensor, tau=1.0, clamp=0.1, eps=1e-2, hard=False, diagonal=False, kind="angular") -> Tensor:
    total = torch.zeros((), dtype=z.dtype)
    u, chosen = units(z, eps), pairs(len(z), diagonal)
    for i, j in chosen:
        c = torch.dot(u[i], u[j])
        d = distance(c, clamp, hard) if kind == "angular" else -c
        total = total + torch.exp(-d / tau)
    return torch.log(total / len(chosen))


def mean_cosine(z: Tensor, eps=1e-2) -> Tensor:
    u, chosen = units(z, eps), pairs(len(z))
    return sum((torch.dot(u[i], u[j]) for i, j in chosen), torch.zeros((), dtype=z.dtype)) / len(chosen)


def first_order(z: Tensor, tau=1.0, clamp=0.1, eps=1e-2, hard=False) -> Tensor:
    return -distance(mean_cosine(z, eps), clamp, hard) / tau


def second_order(z: Tensor, tau=1.0, clamp=0.1, eps=1e-2) -> Tensor:
    """log f(c̄) + ½ (f″/f)(c̄) Var, f″ by differentiating f = exp(−arccos(c)/(πτ)) twice with autograd."""
    u, chosen = units(z, eps), pairs(len(z))
    mean = mean_cosine(z, eps)
    square = sum((torch.dot(u[i], u[j]) ** 2 for i, j in chosen), torch.zeros((), dtype=z.dtype)) / len(chosen)
    bound = 1 - clamp
    at = mean.detach().clamp(-bound, bound).requires_grad_()
    f = torch.exp(-torch.arccos(at) / (math.pi * tau))
    (f1,) = torch.autograd.grad(f, at, create_graph=True)
    (f2,) = torch.autograd.grad(f1, at, create_graph=True)
    bend = f2 / f
    (bend_slope,) = torch.autograd.grad(bend, at)
    bend = bend.detach() + bend_slope * (mean - mean.detach())
    return first_order(z, tau, clamp, eps) + 0.5 * bend * (square - mean**2)


def orthogonalization(z: Tensor, margin=0.5, clamp=0.1, eps=1e-2, hard=False, diagonal=False, kind="angular") -> Tensor:
    u, chosen = units(z, eps), pairs(len(z), diagonal)
    total = torch.zeros((), dtype=z.dtype)
    for i, j in chosen:
        c = torch.dot(u[i], u[j])
        d = distance(c, clamp, hard) if kind == "angular" else -c
        total = total + torch.clamp(margin - d, min=0) ** 2
    return total / len(chosen)


def decorrelation(z: Tensor, axis="token", total="mean", diagonal=False) -> Tensor:
    rows = z if axis == "token" else z.T
    standard = [(r - r.mean()) / r.std() for r in rows]  # torch's std is the unbiased one
    chosen = pairs(len(rows), diagonal)
    square = torch.zeros((), dtype=z.dtype)
    for i, j in chosen:
        square = square + (torch.dot(standard[i], standard[j]) / (len(rows[0]) - 1)) ** 2
    return square if total == "sum" else square / len(chosen)


def squared_distance(a: Tensor, b: Tensor) -> Tensor:
    return torch.dot(a - b, a - b)


def l2_repel(z: Tensor, tau=1.0, norm_weight=0.1, norm="mean", total="mean", diagonal=False) -> Tensor:
    v, chosen = list(z), pairs(len(z), diagonal)
    logits = torch.stack([-squared_distance(v[i], v[j]) / tau for i, j in chosen])
    value = torch.logsumexp(logits, 0) - (math.log(len(chosen)) if total == "mean" else 0.0)
    square = (z**2).sum()
    return value + norm_weight * (square / z.numel() if norm == "mean" else square)


def perplexity_entropy(z: Tensor, tau=1.0, eps=1e-2) -> Tensor:
    v, total = list(z), torch.zeros((), dtype=z.dtype)
    for i in range(len(v)):
        others = [j for j in range(len(v)) if j != i]
        p = torch.softmax(torch.stack([-squared_distance(v[i], v[j]) / tau for j in others]), 0)
        total = total + sum((x * torch.log2(x + eps) for x in p), torch.zeros((), dtype=z.dtype))
    return total / len(z)


def over_batch(loss, z: Tensor, mask: Tensor | None = None, **options) -> Tensor:
    """The mean over the sequences of a batch with at least two unmasked tokens, which alone count; 0 without any."""
    clouds = [z[b] if mask is None else z[b][mask[b]] for b in range(len(z))]
    values = [loss(cloud, **options) for cloud in clouds if len(cloud) >= 2]
    return torch.stack(values).mean() if values else torch.zeros((), dtype=z.dtype)
