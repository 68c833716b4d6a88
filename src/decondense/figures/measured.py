"""The arrays of a measurement and its verdict, as figures, the page and the meter read them. numpy only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from ..checks import check_choice
from ..files import finite
from ..records import Interval, Measurement, Snapshot, State, known
from ..stats.intervals import bootstrap, student
from ..words import nearest, span

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
SMALLEST = 0.2
"""The least Spearman over depth that is called a trend: the margin within which study `text` calls two values the same.
Nearly all windows order the layers alike, so an interval that excludes 0 can be one step wide and mean nothing."""
SEEN = 0.01
"""The least change of the mean cosine over the whole depth that is called a trend: cosines are shown with two decimals.
Ranks do not see its size: cosines that all read 0.00 can rise with every layer."""


class Geometry:
    """A measurement with its numbers as arrays: one entry per hidden state, 0 (embedding layer) … L; the last entry is
    last_hidden_state, after the final norm. `before_norm` is that state before the norm."""

    def __init__(self, record: Measurement) -> None:
        self.record = record
        self.layers = record.model.layers  # L, the number of blocks
        self.states, rest = record.states[: self.layers + 1], record.states[self.layers + 1 :]
        self.before_norm: State | None = rest[0] if rest else None  # None where it could not be read
        self.first = 0 if record.model.stack.startswith("modules ") else 1  # all named modules count as blocks
        self.final_norm = record.final_norm
        self.text = record.text.name
        self.label = record.model.description + (", freshly initialised" if record.model.init else "")
        """The name of the model in tables and figures."""

    def values(self, name: str) -> np.ndarray:
        """Return any statistic of the states by name, (L+1,)."""
        if not hasattr(self.states[0], name):
            names = [key for key, value in self.states[0].model_dump().items() if isinstance(value, float)]
            remedy = nearest(name, names, "was --spectral left out?")
            raise ValueError(f"{name!r} must be one of {', '.join(names)}: {remedy}")
        return np.array([getattr(state, name) for state in self.states], dtype=np.float64)

    @property
    def mean_cosine(self) -> np.ndarray:
        return self.values("mean_cosine")

    @property
    def band(self) -> tuple[np.ndarray, np.ndarray]:
        """(L+1,) twice: the ends of the mean cosines' 95 % intervals over windows; NaN with a single window."""
        _, half = student(self.per_window)
        return self.mean_cosine - half, self.mean_cosine + half

    @property
    def blocks(self) -> float:
        """Mean cosine of the block outputs, as `Snapshot` has it."""
        return float(self.mean_cosine[self.first :].mean())

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
        """(L+1, bins) density of the cosine matrices averaged over windows before binning, diagonal counted: how the
        published figures were made."""
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
        check_choice("states", states, table)
        check_choice("name", name, [*table[states], "mean_cosine"])
        return self.over_windows(self.levels(states)) if name == "mean_cosine" else table[states][name]

    def levels(self, states: str = "blocks") -> np.ndarray:
        """Return the mean cosine over a curve's states in each window, (windows,)."""
        rows = self.record.per_window.mean_cosine
        width = min(self.layers + 2, *map(len, rows))
        table = np.array([row[:width] for row in rows], dtype=np.float64)
        return curves(table, self.layers, first=self.first)[states].mean(-1)

    def over_windows(self, values: np.ndarray) -> Interval:
        """Return the mean of `values` (windows,) with its interval, resampled as for the trends."""
        options = {"samples": self.record.settings.get("bootstrap", 2000), "seed": self.record.settings.get("seed", 0)}
        value, low, high = finite(bootstrap(values, lambda mean: mean, **options).tolist())
        return Interval(value=value, low=low, high=high)

    @cached_property
    def verdict(self) -> str:
        """The trend in a word and the level, with their intervals, in a line. It is made from the numbers and not taken
        from the record, whose words may be those of an older version."""
        return verdict(self.record.trend, self.over_windows(self.levels()))

    def trend(self, name: str, *, states: str = "all") -> float:
        """Return a statistic of mean cosine over depth. `name`: spearman, kendall, slope, last, or mean_cosine, the
        mean over the states; `states`: "all" (L+1), "blocks" (L), or either with "_before_norm"."""
        return known(self._trend(name, states).value)

    def interval(self, name: str, *, states: str = "all") -> tuple[float, float]:
        """Return the 95 % interval of a `trend`, from a bootstrap over windows; NaN where there is none."""
        entry = self._trend(name, states)
        return known(entry.low), known(entry.high)

    @property
    def spearman(self) -> float:
        return self.trend("spearman")


def curves(table: np.ndarray, layers: int, *, first: int) -> dict[str, np.ndarray]:
    """table (windows, states) of mean cosines, whose last column is the state before the final norm if that is known →
    curves over depth by name; the blocks are the states from `first` on."""
    by_name = {"all": table[:, : layers + 1], "blocks": table[:, first : layers + 1]}
    if table.shape[1] == layers + 2:
        before = np.delete(table, layers, axis=1)
        by_name |= {"all_before_norm": before, "blocks_before_norm": before[:, 1:]}
    return by_name


def verdict(trend: Mapping[str, Mapping[str, Interval]], level: Interval) -> str:
    """One line: "condensing: Spearman 0.81 [0.74, 0.86], mean cosine of the blocks 0.41 [0.39, 0.42]"."""
    all_states, blocks = trend["all"], trend.get("blocks", trend["all"])
    cosine = f"mean cosine of the blocks {span(level.value, level.low, level.high)}"
    line = f"{_word(all_states)}: Spearman {_interval(all_states)}, {cosine}"
    if _word(blocks) != _word(all_states):
        line += f"; without the embedding layer {_word(blocks)}, {_interval(blocks)}"
    return line


def _word(curve: Mapping[str, Interval]) -> str:
    """Name the trend: the ranks must show one, and the slope, the change over depth, one of the same sign that can be
    seen (`_side`)."""
    rank = curve["spearman"]
    if rank.value is None:
        return "no trend in a single state" if curve["slope"].value is None else "constant over depth"
    if rank.low is None or rank.high is None:
        return "undecided (one window has no interval)"
    side = _side(rank, SMALLEST)
    if not side or side != _side(curve["slope"], SEEN):
        return "no clear trend"
    return "condensing" if side > 0 else "dispersing"


def _side(entry: Interval, least: float) -> int:
    """Return 1 or −1 if the value is at least `least` in size and its interval lies on that side of 0, else 0."""
    value, low, high = known(entry.value), known(entry.low), known(entry.high)
    return (abs(value) >= least) * ((low > 0) - (high < 0))


def _interval(curve: Mapping[str, Interval]) -> str:
    rank, slope = curve["spearman"], curve["slope"]
    if rank.value is None:
        return "undefined"
    line = span(rank.value, rank.low, rank.high)
    if _side(rank, SMALLEST) and _word(curve) == "no clear trend":  # because of the slope
        line += f" with a change of {span(slope.value, slope.low, slope.high, 3, sign=True)} over depth"
    return line


Short = Snapshot | Geometry
"""What a heatmap is drawn from: a measurement, whole or in short form. `histogram` (states, bins) is a density over
cosines −1 … 1; `mean_cosine` (states,)."""


def histogram_quantiles(counts: np.ndarray) -> list[float]:
    """Return the `QUANTILES` of a histogram over [−1, 1], linear inside a bin: off by at most one bin's width."""
    edges = np.linspace(-1, 1, len(counts) + 1)
    cumulative = np.concatenate([[0], np.cumsum(counts)]).astype(np.float64)
    targets = np.asarray(QUANTILES) * cumulative[-1]
    bins = np.clip(np.searchsorted(cumulative, targets, side="left") - 1, 0, len(counts) - 1)
    inside = (targets - cumulative[bins]) / np.maximum(1.0, counts[bins])
    return (edges[bins] + np.clip(inside, 0, 1) * (edges[bins + 1] - edges[bins])).tolist()
