"""Every statistic of the meter in float64, with plain loops over tokens and pairs, to be read beside its formula."""

from __future__ import annotations

import math

import numpy as np


def unit(z: np.ndarray) -> np.ndarray:
    z = np.asarray(z, dtype=np.float64)
    out = np.zeros_like(z)
    for i, row in enumerate(z):
        norm = math.sqrt(float((row * row).sum()))
        if norm > 0:
            out[i] = row / norm
    return out


def cosine_matrix(z: np.ndarray) -> np.ndarray:
    u = unit(z)
    n = len(u)
    c = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            c[i, j] = float((u[i] * u[j]).sum())
    return c


def pairs(c: np.ndarray) -> np.ndarray:
    n = len(c)
    return np.array([c[i, j] for i in range(n) for j in range(i + 1, n)])


def scalars(z: np.ndarray) -> dict[str, float]:
    z = np.asarray(z, dtype=np.float64)
    c = cosine_matrix(z)
    n, width = z.shape
    mean_direction = unit(z).mean(0)
    result = {
        "mean_cosine": pairs(c).mean(),
        "mean_cosine_all": c.mean(),
        "cosine_variance": ((pairs(c) - pairs(c).mean()) ** 2).mean(),
        "mean_direction_norm": math.sqrt(float((mean_direction**2).sum())),
        "token_norm": float(np.mean([math.sqrt(float((row * row).sum())) for row in z])),
        "mean_cosine_without_first": pairs(c[1:, 1:]).mean() if n > 2 else math.nan,
    }
    variance = [float(((z[:, d] - z[:, d].mean()) ** 2).mean()) for d in range(width)]
    contribution = [float(mean_direction[d] ** 2) for d in range(width)]
    for values, share, without in (
        (variance, "top3_variance_share", "mean_cosine_without_variance3"),
        (contribution, "top3_cosine_share", "mean_cosine_without_cosine3"),
    ):
        top = sorted(range(width), key=lambda d: -values[d])[:3]
        result[share] = sum(values[d] for d in top) / sum(values)
        kept = [d for d in range(width) if d not in top]
        result[without] = pairs(cosine_matrix(z[:, kept])).mean()
    low, k = 1, 0
    while low < n:
        apart = [c[i, j] for i in range(n) for j in range(i + 1, n) if low <= j - i < 2 * low]
        result[f"apart_{k}"] = float(np.mean(apart))
        low, k = 2 * low, k + 1
    return {name: float(value) for name, value in result.items()}


def spectral(z: np.ndarray) -> dict[str, float]:
    z = np.asarray(z, dtype=np.float64)
    n, width = z.shape
    u, s, v = np.linalg.svd(z, full_matrices=False)
    p = [x / s.sum() for x in s]
    entropy = -sum(x * math.log(x) for x in p if x > 0)
    rank_one = s[0] * np.outer(u[:, 0], v[0])
    low = np.ones((n, n)) @ z / n
    covariance = np.cov(z, rowvar=False)
    lam = np.clip(np.linalg.eigvalsh(covariance), 0, None)
    hat = math.sqrt(width) * lam / np.linalg.norm(lam)
    defect = np.linalg.norm(hat - 1) / math.sqrt(2 * (width - math.sqrt(width)))
    phi = (width - defect**2 * (width - math.sqrt(width))) ** 2 / width**2
    return {
        "effective_rank": math.exp(entropy),
        "top_singular_share": float(s[0] ** 2 / (s**2).sum()),
        "distance_to_rank_one": float(np.linalg.norm(z - rank_one) / np.linalg.norm(z)),
        "high_low_ratio": float(np.linalg.norm(z - low) / np.linalg.norm(low)),
        "participation_ratio": float(lam.sum() ** 2 / (lam**2).sum()),
        "isoscore": float((width * phi - 1) / (width - 1)),
        "matrix_entropy": -sum(q * math.log(q) for q in s**2 / (s**2).sum() if q > 0),
        "spectral_slope": slope_of([float(x) ** 2 for x in s]),
    }


def slope_of(squares: list[float]) -> float:
    """α of σ² ∝ rank^−α over ranks 3 … 100, by least squares of the logarithms."""
    points = [(math.log(r), math.log(x)) for r, x in enumerate(squares, 1) if 3 <= r <= 100 and x > 1e-13 * squares[0]]
    if len(points) < 2:
        return math.nan
    return -float(np.polyfit(*zip(*points), 1)[0])


def bin_counts(cosines: np.ndarray, bins: int) -> np.ndarray:
    counts = np.zeros(bins, dtype=np.int64)
    for c in cosines:
        counts[min(bins - 1, max(0, math.floor((c + 1) * bins / 2)))] += 1
    return counts
