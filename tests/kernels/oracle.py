"""float64, a loop over the pairs: what the kernels must compute, one line per line of mathematics.

`eager` is the same formula in torch at a chosen precision: the error it makes against the loops is the measure for
the kernels' error.
"""

from __future__ import annotations

import math
from itertools import combinations, combinations_with_replacement

import numpy as np
import torch


def curve(c: float, *, curve: str, tau: float, clamp: float, hard_clamp: bool, margin: float):
    """(ℓ(c) or f(c), its derivative) for one cosine."""
    limit = 1.0 - clamp
    inside = min(max(c, -limit), limit)
    passes = not (hard_clamp and abs(c) > limit)
    if curve == "dispersion":
        return -math.acos(inside) / (math.pi * tau), passes / (math.pi * tau * math.sqrt(1 - inside**2))
    if curve == "dispersion_cosine":
        return c / tau, 1 / tau
    if curve == "orthogonalization":
        gap = max(0.0, margin - math.acos(inside) / math.pi)
        return gap**2, passes * 2 * gap / (math.pi * math.sqrt(1 - inside**2))
    if curve == "orthogonalization_cosine":
        gap = max(0.0, margin + c)
        return gap**2, 2 * gap
    return {"decorrelation": (c**2, 2 * c), "mean": (c, 1.0)}[curve]


def pairwise(
    z, mask=None, *, curve_name="dispersion", tau=1.0, clamp=0.1, hard_clamp=False, margin=0.5, eps=1e-2, diagonal=False
):
    """z (B, N, F) → values (B,), gradients (B, N, F) of each value, numpy float64."""
    z = z.detach().to(torch.float64).cpu().numpy()
    keep = np.ones(z.shape[:2], bool) if mask is None else mask.cpu().numpy()
    values, grads = np.zeros(len(z)), np.zeros(z.shape)
    options = {"curve": curve_name, "tau": tau, "clamp": clamp, "hard_clamp": hard_clamp, "margin": margin}
    for b in range(len(z)):
        tokens = [i for i in range(z.shape[1]) if keep[b, i]]
        n = len(tokens)
        if n < 2:
            continue
        kept = z[b, tokens]
        norm = np.array([math.sqrt(float(token @ token)) for token in kept])[:, None]
        u = np.array([token / (length + eps) if length > 0 else 0 * token for token, length in zip(kept, norm)])
        pair, term, slope = (np.zeros((n, n)) for _ in range(3))
        for i, j in (combinations_with_replacement if diagonal else combinations)(range(n), 2):  # c_ij is c_ji
            pair[i, j] = pair[j, i] = 1
            term[i, j], slope[i, j] = term[j, i], slope[j, i] = curve(float(u[i] @ u[j]), **options)
        if curve_name.startswith("dispersion"):
            highest = term[pair > 0].max()
            share = pair * np.exp(term - highest)
            values[b] = math.log(share.sum()) + highest - math.log(pair.sum())
            weight = share / share.sum() * slope
        else:
            values[b] = term.sum() / pair.sum()
            weight = slope / pair.sum()
        g = (weight + weight.T) @ u  # c_ij depends on u_i and on u_j
        lengths = norm + eps
        grads[b, tokens] = np.divide(g, lengths, out=np.zeros_like(g), where=lengths > 0)
        along = (g * kept).sum(1, keepdims=True)
        grads[b, tokens] -= np.divide(kept * along, norm * lengths**2, out=np.zeros_like(g), where=norm > 0)
    return values, grads


def eager(z, mask=None, *, curve_name="dispersion", tau=1.0, clamp=0.1, hard_clamp=False, margin=0.5, eps=1e-2,
          diagonal=False):  # fmt: skip
    """The formula in torch: matrix product in z's dtype, the rest in at least float32; values (B,) with autograd."""
    wide = z.to(torch.promote_types(z.dtype, torch.float32))
    u = (wide / (wide.norm(dim=-1, keepdim=True) + eps)).to(z.dtype)
    c = (u @ u.transpose(1, 2)).to(wide.dtype)
    limit = 1 - clamp
    inside = c.clamp(-limit, limit)
    if hard_clamp:
        theta = inside.acos()
    else:  # the value saturates, the slope is the one at the boundary
        slope = -(1 - inside.detach() ** 2).rsqrt()
        theta = inside.detach().acos() + slope * (c - c.detach())
    pair = torch.ones_like(c, dtype=torch.bool)
    if mask is not None:
        pair &= mask[:, :, None] & mask[:, None, :]
    if not diagonal:
        pair &= ~torch.eye(z.shape[1], dtype=torch.bool, device=z.device)
    count = pair.sum((1, 2))
    terms = {
        "dispersion": lambda: -theta / (math.pi * tau),
        "dispersion_cosine": lambda: c / tau,
        "orthogonalization": lambda: (margin - theta / math.pi).relu() ** 2,
        "orthogonalization_cosine": lambda: (margin + c).relu() ** 2,
        "decorrelation": lambda: c**2,
        "mean": lambda: c,
    }[curve_name]()
    if curve_name.startswith("dispersion"):
        return terms.masked_fill(~pair, -math.inf).flatten(1).logsumexp(1) - count.log()
    return (terms * pair).sum((1, 2)) / count
