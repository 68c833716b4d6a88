"""Measurements of one model on one text, in full and in short form, and several side by side."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field, model_validator

from .base import Count, Density, Number, Open, Part, Record, Section, known

ROUNDING = 1e-3  # by which a mean cosine may exceed 1
STATISTICS = ("spearman", "kendall", "slope", "last")  # of mean cosine over depth


class Interval(Part):
    value: Number
    low: Number
    high: Number


class MeasuredModel(Part):
    name: str
    kind: str
    description: str
    revision: str | None
    init: bool
    architecture: str
    stack: str
    layers: int = Field(ge=1)
    width: int
    parameters: int
    dtype: str
    weights: str | None = None  # a fingerprint, as in an evaluation; older files have none


class MeasuredText(Part):
    name: str
    source: str
    documents: int | None = None
    characters: int | None = None
    sha256: str


class Histogram(Part):
    """`counts` (states, bins) of cosines from `low` to `high`."""

    low: float
    high: float
    bins: int = Field(ge=1)
    counts: list[list[Annotated[int, Field(ge=0)]]]

    @model_validator(mode="after")
    def _rows(self) -> Histogram:
        if any(len(row) != self.bins for row in self.counts):
            raise ValueError(f"every row of counts must have {self.bins} bins")
        return self


class State(Open):
    """Means over the windows for one hidden state. Other statistics, spectral ones too, are further fields."""

    __pydantic_extra__: dict[str, Number]

    state: int
    name: str
    mean_cosine: Number
    std: Number
    quantiles: list[float] = Field(min_length=5, max_length=5)
    by_distance: list[Number]

    def row(self) -> dict[str, Any]:
        """Return a row of a table, with columns quantile_5 … quantile_95 and distance_1, distance_2, distance_4 …"""
        plain = self.model_dump(exclude={"quantiles", "by_distance"})
        plain |= {f"quantile_{q}": value for q, value in zip((5, 25, 50, 75, 95), self.quantiles)}
        return plain | {f"distance_{2**k}": value for k, value in enumerate(self.by_distance)}


class PerWindow(Part):
    window: list[int]
    mean_cosine: list[list[Number]]


class Measurement(Record, reads=("decondense.condensation/2", "decondense.condensation/1")):
    model: MeasuredModel
    text: MeasuredText
    settings: Section
    versions: dict[str, str]
    complete: bool
    windows_done: int
    final_norm: bool | None
    verdict: str
    notes: list[str]
    trend: dict[str, dict[str, Interval]]
    states: list[State]
    histogram: Histogram
    released_histogram: Histogram | None = None
    per_window: PerWindow
    windows: list[dict[str, int]]

    def lines(self) -> list[Section]:
        return [state.row() for state in self.states]

    @model_validator(mode="after")
    def _states(self) -> Measurement:
        least = self.model.layers + 1
        tables: list[Sequence[Any]] = [self.states, self.histogram.counts, *self.per_window.mean_cosine]
        tables += [self.released_histogram.counts] if self.released_histogram is not None else []
        if any(len(table) < least for table in tables) or not self.per_window.mean_cosine:
            raise ValueError(f"{self.model.layers} layers have {least} states: states, counts or per_window have fewer")
        if {len(table) for table in tables} != {len(self.states)} or [state.state for state in self.states] != [
            min(i, self.model.layers) for i in range(len(self.states))
        ]:
            raise ValueError("states must be in order, none left out, and as many in counts and in per_window")
        of_windows = {"windows": self.windows, **{f"per_window.{key}": value for key, value in self.per_window}}
        if wrong := [f"{name} has {len(rows)}" for name, rows in of_windows.items() if len(rows) != self.windows_done]:
            raise ValueError(f"windows_done is {self.windows_done}, but {', '.join(wrong)}")
        cosines = itertools.chain([state.mean_cosine for state in self.states], *self.per_window.mean_cosine)
        if strange := [value for value in cosines if value is not None and abs(value) > 1 + ROUNDING]:
            raise ValueError(f"a mean cosine must lie between -1 and 1, got {strange[0]:g}")
        lacking = [key for key in ("windows", "tokens", "last") if not isinstance(self.settings.get(key), int)]
        for key in dict.fromkeys(["all", *self.trend]):
            lacking += [f"{name} of {key}" for name in STATISTICS if name not in self.trend.get(key, {})]
        if lacking:
            raise ValueError(f"settings or trend lack {', '.join(lacking)}")
        return self


class Snapshot(Part):
    """A measurement in short form, as a training run or a study keeps it: `mean_cosine` (states,), the trends over
    depth, and, where a heatmap will be drawn, `histogram` (states, bins), a density over [−1, 1]."""

    step: Count | None = None
    tokens: Count | None = None
    file: str | None = None  # of the whole measurement, relative to the record's folder
    mean_cosine: list[Number] = Field(min_length=2)
    spearman: Number
    spearman_blocks: Number
    kendall: Number
    slope: Number
    last: Number
    windows: Count
    final_norm: bool
    outlier_share: list[Number] | None = None  # (states,) share of the variance in the 3 dimensions with the most
    effective_rank: list[Number] | None = None  # (states,), if the measurement is spectral
    histogram: list[list[Density]] | None = None
    window_interval: tuple[Number, Number] | None = None  # interval of spearman over windows
    model: str | None = None
    parameters: int | None = None
    text: str | None = None
    text_source: str | None = None
    text_sha256: str | None = None

    @model_validator(mode="after")
    def _states(self) -> Snapshot:
        rows = self.histogram
        if rows is not None and (len(rows) != len(self.mean_cosine) or len(set(map(len, rows))) != 1 or not rows[0]):
            raise ValueError(f"histogram must have {len(self.mean_cosine)} rows of one length, a row a state")
        return self

    @property
    def blocks(self) -> float:
        """Mean cosine over the outputs of the blocks, on which the losses act."""
        return sum(map(known, self.mean_cosine[1:])) / (len(self.mean_cosine) - 1)


def in_short(whole: Measurement, *, histogram: bool = False, **more: Any) -> Snapshot:
    """Shorten a measurement as training runs and studies keep it; `histogram`: include the density, in 64 bins."""
    states = whole.model.layers + 1
    rows = [state.model_dump() for state in whole.states[:states]]
    sources = {"outlier_share": "top3_variance_share", "effective_rank": "effective_rank"}
    per_state = {name: [row.get(of) for row in rows] for name, of in sources.items()}
    return Snapshot(
        mean_cosine=[state.mean_cosine for state in whole.states[:states]],
        **{name: values for name, values in per_state.items() if any(value is not None for value in values)},
        spearman_blocks=whole.trend["blocks"]["spearman"].value if "blocks" in whole.trend else None,
        windows=whole.windows_done,
        final_norm=bool(whole.final_norm),
        histogram=[_coarse_density(row) for row in whole.histogram.counts[:states]] if histogram else None,
        **{name: whole.trend["all"][name].value for name in STATISTICS},
        **more,
    )


def _coarse_density(counts: Sequence[float], bins: int = 64) -> list[float]:
    """Turn counts over [−1, 1] into a density in `bins` bins, two decimals."""
    size, total = len(counts) // bins, max(1.0, sum(counts))
    return [round(sum(counts[i * size : (i + 1) * size]) / total * bins / 2, 2) for i in range(bins)]


class Measured(Record, reads=("decondense.measured/1",)):
    measurement: Snapshot
    config: Section  # what the study asked for, in its own terms
    hardware: str
    versions: dict[str, str]
    seconds: Number = None

    def lines(self) -> list[Section]:
        return [{"state": i, "mean_cosine": value} for i, value in enumerate(self.measurement.mean_cosine)]


class Compared(Open):
    """One result in a comparison. The same statistics over the blocks alone are further fields, with `_blocks` in their
    names."""

    model: str
    revision: str | None
    text: str
    parameters: int
    layers: int
    windows: int
    spearman: Number
    spearman_low: Number
    spearman_high: Number
    kendall: Number
    kendall_low: Number
    kendall_high: Number
    slope: Number
    slope_low: Number
    slope_high: Number
    last: Number
    last_low: Number
    last_high: Number


class Shift(Part):
    """The second of two results minus the first, with intervals over windows; `same_windows`: both have the same
    windows of one text, resampled in pairs."""

    sentence: str
    same_windows: bool
    mean_cosine: Interval  # of the blocks
    last: Interval


class Comparison(Record, reads=("decondense.comparison/1",)):
    axis: str
    paired: bool
    verdict: str
    difference: Shift | None = None
    notes: list[str] = Field([])
    rows: list[Compared] = Field(min_length=1)

    def lines(self) -> list[Section]:
        return [row.model_dump() for row in self.rows]

    @model_validator(mode="after")
    def _pairs(self) -> Comparison:
        if self.paired and len(self.rows) % 2:
            raise ValueError(f"pairs need an even number of rows, got {len(self.rows)}")
        return self
