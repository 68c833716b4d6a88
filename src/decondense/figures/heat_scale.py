"""Where the axis and the colours of a heatmap end: the same in figures and on the page, for measurements and studies.

A density is (states, bins) over cosines −1 … 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

__all__ = ["cut_at", "floor_of", "top_of"]

CLIP = 10.0  # the density at which the published figures cut the colour scale


def floor_of(densities: Iterable[np.ndarray]) -> float:
    """Leave out the lower part of the axis where no state has 0.1 % of its mass."""
    lowest = 1.0
    for density in densities:
        share = np.cumsum(density, axis=1) / np.maximum(1e-9, density.sum(1, keepdims=True))
        lowest = min(lowest, 2 * float((share > 1e-3).argmax(1).min()) / density.shape[1] - 1)
    return max(-1.0, math.floor(lowest / 0.25) * 0.25)


def top_of(densities: Iterable[np.ndarray]) -> float:
    """The end of the colour scale: the largest density, but never more than where the published figures cut it, and
    not so much that one narrow picture (a model before training) leaves the others dark: 1.5 × the usual largest."""
    peaks = [float(density.max()) for density in densities]
    return min(CLIP, float(math.ceil(min(max(peaks), 1.5 * float(np.median(peaks))))))


def cut_at(densities: Iterable[np.ndarray], top: float) -> str:
    """For the label of the colour bar; empty where nothing is cut."""
    return f" (cut at {top:g})" if any(float(density.max()) > top for density in densities) else ""
