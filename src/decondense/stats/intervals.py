"""Student's interval of a mean, m ± t · s/√n: the one place that computes it. numpy and scipy.special only."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

__all__ = ["student", "t_quantile"]


def t_quantile(level: float, df: Any) -> Any:
    """t such that a Student variable with `df` degrees of freedom lies in ±t with probability `level`. (scipy.stats has
    it too, a hundred times slower.)"""
    return special.stdtrit(df, (1 + level) / 2)


def student(values: ArrayLike, level: float = 0.95) -> tuple[Any, Any]:
    """The mean over the first axis of `values` (n, …) and half the width of its interval; NaN where n < 2."""
    a = np.asarray(values, dtype=np.float64)
    if len(a) < 2:
        return a.mean(0), np.full(a.shape[1:], np.nan)[()]
    return a.mean(0), t_quantile(level, len(a) - 1) * a.std(0, ddof=1) / np.sqrt(len(a))
