"""The arrays of a measurement, as figures, the page and the meter read them. numpy only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..records import Interval, Measurement, Snapshot, State, known
from ..words import nearest, perhaps

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


class Geometry:
    """A measurement with its numbers as arrays: one entry per hidden state, 0 (embedding layer) … L; the last one is
    after the final norm, as the model returns it. `before_norm` is the same state before it."""

    def __init__(self, record: Measurement) -> None:
        self.record = record
        self.layers = record.model.layers  # L, the number of blocks
        self.states, rest = record.states[: self.layers + 1], record.states[self.layers + 1 :]
        self.before_norm: State | None = rest[0] if rest else None  # None where the model does not give it away
        self.final_norm = record.final_norm
        self.text = record.text.name
        self.label = record.model.description + (", freshly initialised" if record.model.init else "")
        """What tables and figures call it."""

    def values(self, name: str) -> np.ndarray:
        """(L+1,) of any statistic of the states, by name."""
        if not hasattr(self.states[0], name):
            names = [key for key, value in self.states[0].model_dump().items() if isinstance(value, float)]
            remedy = nearest(name, names, "was --spectral left out?")
            raise ValueError(f"{name!r} must be one of {', '.join(names)}: {remedy}")
        return np.array([getattr(state, name) for state in self.states], dtype=np.float64)

    @property
    def mean_cosine(self) -> np.ndarray:
        return self.values("mean_cosine")

    @property
    def quantiles(self) -> np.ndarray:
        """(L+1, 5): 5, 25, 50, 75 and 95 % of the pooled cosines."""
        return np.array([state.quantiles for state in self.states])

    @property
    def histogram(self) -> np.ndarray:
        """(L+1, bins) density over [−1, 1] of the cosines of all windows together: each row integrates to 1."""
        return self._density(self.record.histogram.counts)

    @property
    def released_histogram(self) -> np.ndarray:
        """(L+1, bins), matrices averaged over windows first and binned then, diagonal counted: how the published
        figures were made."""
        if self.record.released_histogram is None:
            raise ValueError("the released view was not measured: ask for it with released=True (--released).")
        return self._density(self.record.released_histogram.counts)

    def _density(self, counts: Sequence[Sequence[float]]) -> np.ndarray:
        table = np.array(counts[: self.layers + 1], dtype=np.float64)
        return table / np.maximum(1, table.sum(-1, keepdims=True)) * (table.shape[-1] / 2)

    @property
    def per_window(self) -> np.ndarray:
        """(windows, L+1) mean cosine of each window: what the intervals are resampled from."""
        rows = [row[: self.layers + 1] for row in self.record.per_window.mean_cosine]
        return np.array(rows, dtype=np.float64)

    def _trend(self, name: str, states: str) -> Interval:
        table = self.record.trend
        if states not in table:
            raise ValueError(f"states must be one of {', '.join(table)}, got {states!r}{perhaps(states, table)}")
        if name not in table[states]:
            raise ValueError(
                f"name must be one of {', '.join(table[states])}, got {name!r}{perhaps(name, table[states])}"
            )
        return table[states][name]

    def trend(self, name: str, *, states: str = "all") -> float:
        """`name`: spearman, kendall, slope or last; `states`: "all" (L+1), "blocks" (L), or either with
        "_before_norm"."""
        return known(self._trend(name, states).value)

    def interval(self, name: str, *, states: str = "all") -> tuple[float, float]:
        """The 95 % interval of a trend statistic, from a bootstrap over windows; NaN where there is none."""
        entry = self._trend(name, states)
        return known(entry.low), known(entry.high)

    @property
    def spearman(self) -> float:
        return self.trend("spearman")


Short = Snapshot | Geometry
"""What a heatmap is drawn of: a measurement, or what a run keeps of it. `histogram` (states, bins) is a density over
cosines −1 … 1; `mean_cosine` (states,)."""


def histogram_quantiles(counts: np.ndarray) -> list[float]:
    """`QUANTILES` of a histogram over [−1, 1], linear inside a bin: off by at most the width of one bin."""
    edges = np.linspace(-1, 1, len(counts) + 1)
    cumulative = np.concatenate([[0], np.cumsum(counts)]).astype(np.float64)
    wanted = np.asarray(QUANTILES) * cumulative[-1]
    at = np.clip(np.searchsorted(cumulative, wanted, side="left") - 1, 0, len(counts) - 1)
    inside = (wanted - cumulative[at]) / np.maximum(1.0, counts[at])
    return (edges[at] + np.clip(inside, 0, 1) * (edges[at + 1] - edges[at])).tolist()
