"""float64, plain loops: what the kernels must compute, one line per line of mathematics.

`eager` is the same formula in torch at a chosen precision: the error it makes against the loops is the measure for
the kernels' error.
"""

from __future__ import annotations

import math

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
        norm = {i: math.sqrt(float(z[b, i] @ z[b, i])) for i in tokens}
        u = {i: z[b, i] / (norm[i] + eps) if norm[i] > 0 else 0 * z[b, i] for i in tokens}
        pairs = [(i, j) for i in tokens for j in tokens if diagonal or i != j]
        terms = {(i, j): curve(float(u[i] @ u[j]), **options) for i, j in pairs}
        if curve_name.startswith("dispersion"):
            highest = max(t for t, _ in terms.values())
            total = sum(math.exp(t - highest) for t, _ in terms.values())
            values[b] = math.log(total) + highest - math.log(len(pairs))
            weight = {p: math.exp(t - highest) / total * s for p, (t, s) in terms.items()}
        else:
            values[b] = sum(t for t, _ in terms.values()) / len(pairs)
            weight = {p: s / len(pairs) for p, (t, s) in terms.items()}
        g = {i: np.zeros(z.shape[2]) for i in tokens}
        for (i, j), w in weight.items():  # c_ij depends on u_i and on u_j
            g[i] = g[i] + w * u[j]
            g[j] = g[j] + w * u[i]
        for i in tokens:
            if norm[i] + eps > 0:
                grads[b, i] = g[i] / (norm[i] + eps)
            if norm[i] > 0:
                grads[b, i] -= z[b, i] * float(g[i] @ z[b, i]) / (norm[i] * (norm[i] + eps) ** 2)
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
