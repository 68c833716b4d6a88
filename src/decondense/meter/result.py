"""The result of a measurement: a view of its record, and how a tally becomes a record. No torch here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..figures.measured import Geometry, curves, histogram_quantiles
from ..files import AnyPath
from ..records import Measurement, Record, parse, read
from ..words import several
from .tally import Tally
from .trend import bootstrap_trend

BINS = 128
FEW = 10  # windows: an interval from fewer is too narrow (benchmarks/results/coverage_windows.csv)


class Condensation(Geometry):
    """How condensed a model is. Arrays have one entry per hidden state, 0 (embedding layer) … L; the last entry is
    last_hidden_state, after the final norm, and ``before_norm`` has the same numbers for that state before the norm.
    ``record`` holds everything, as in ``result.json``."""

    def __init__(self, record: Measurement | Mapping[str, Any]) -> None:
        whole = record if isinstance(record, Record) else parse(record, "the record of a measurement")
        if not isinstance(whole, Measurement):
            raise ValueError(f"a Condensation must have the record of a measurement, got that of a {whole.kind}.")
        super().__init__(whole)

    @property
    def mean_cosine_all(self) -> np.ndarray:
        return self.values("mean_cosine_all")

    @property
    def std(self) -> np.ndarray:
        return self.values("std")

    @property
    def kendall(self) -> float:
        return self.trend("kendall")

    @property
    def slope(self) -> float:
        return self.trend("slope")

    @property
    def complete(self) -> bool:
        return self.record.complete

    @property
    def notes(self) -> list[str]:
        return list(self.record.notes)

    def __repr__(self) -> str:
        size = several(self.record.windows_done, "sequence" if "inputs" in self.record.settings else "window")
        return f"Condensation({self.label}, {self.text}, {size}; {self.verdict})"

    def to_json(self) -> str:
        """The content of ``result.json``. The same numbers give the same bytes: no times, floats in their shortest
        form."""
        return self.record.to_json()

    def to_pandas(self) -> Any:
        """A row per hidden state: every statistic of ``states.csv``."""
        return self.record.to_pandas()

    def save(self, path: AnyPath) -> Path:
        """Write ``path``, or ``path/result.json`` if it is a folder; to a temporary name first, then renamed."""
        return self.record.save(path)

    def plot(
        self, path: AnyPath | None = None, *, ax: Any = None, title: str | None = None, view: str = "pooled"
    ) -> Any:
        """The heatmap, as ``decondense.plot`` draws it."""
        from ..figures.plot import plot

        return plot(self, path, ax=ax, title=title, view=view)


def load(path: AnyPath) -> Any:
    """Read a saved result: the JSON file, or the folder that holds ``result.json``. A measurement is a
    ``Condensation``; any other kind is its class in ``decondense.records``."""
    record = read(path)
    return Condensation(record) if isinstance(record, Measurement) else record


def build(
    tally: Tally, *, model: dict[str, Any], text: dict[str, Any], settings: dict[str, Any],
    origins: list[dict[str, int]], final_norm: bool | None, versions: dict[str, str],
    names: list[str] | None = None, notes: Sequence[str] = (),
) -> Condensation:  # fmt: skip
    """Make the record out of a tally. ``names``: of the modules whose outputs the states are, if they were named; then
    state 0 is no embedding layer. A statistic that a short window lacks is averaged over the other windows."""
    layers = int(model["layers"])
    state_count = min(len(tally.counts), layers + 2 if final_norm is not None else layers + 1)
    done = tally.windows
    means = {name: _mean(tally.column(name)) for name in tally.columns}
    variance = means.pop("cosine_variance") + _mean((tally.column("mean_cosine") - means["mean_cosine"]) ** 2)
    means["std"] = np.sqrt(variance)  # of the cosines of all windows: within them, and between their means
    table = tally.column("mean_cosine")[:, :state_count]
    bootstrap_options = {"samples": settings["bootstrap"], "seed": settings["seed"], "last": settings["last"]}
    by_states = curves(table, layers, first=1 if names is None else 0)
    record: dict[str, Any] = {
        "schema": Measurement.reads[0],
        "model": model,
        "text": text,
        "settings": settings,
        "versions": versions,
        "complete": len(done) == settings["windows"],
        "windows_done": len(done),
        "final_norm": final_norm,
        "verdict": "",
        "notes": [*notes, *_notes(means, model, final_norm), *_cautions(len(done), settings, layers + 1)],
        "trend": {states: bootstrap_trend(curve, **bootstrap_options) for states, curve in by_states.items()},
        "states": [_state(i, layers, final_norm, means, tally.counts[i], names) for i in range(state_count)],
        "histogram": _histogram(tally.counts[:state_count].reshape(state_count, BINS, -1).sum(-1)),
        "per_window": {"window": done, "mean_cosine": table.tolist()},
        "windows": [{"window": w, **origins[w]} for w in done],
    }
    if tally.matrices is not None:
        released = [_released_counts(total / len(done)) for total in tally.matrices[:state_count]]
        record["released_histogram"] = _histogram(np.stack(released))
    result = Condensation(record)
    result.record.verdict = result.verdict
    return result


def _mean(table: np.ndarray) -> np.ndarray:
    """table (windows, states) → (states,), the mean over the windows that have a number."""
    defined = ~np.isnan(table)
    return np.where(defined, table, 0).sum(0) / np.where(defined.any(0), defined.sum(0), np.nan)


def _state(
    i: int,
    layers: int,
    final_norm: bool | None,
    means: dict[str, np.ndarray],
    counts: np.ndarray,
    names: list[str] | None,
) -> dict[str, Any]:
    name = names[i] if names else "embedding" if i == 0 else f"block {min(i, layers)}"
    if final_norm and i >= layers:
        name += ", after the final norm" if i == layers else ", before the final norm"
    values = {column: float(mean[i]) for column, mean in means.items()}
    return {
        "state": min(i, layers),
        "name": name,
        "std": values.pop("std"),
        "quantiles": histogram_quantiles(counts),
        "by_distance": [values.pop(column) for column in means if column.startswith("apart_")],
        **values,
    }


def _notes(means: dict[str, np.ndarray], model: dict[str, Any], final_norm: bool | None) -> list[str]:
    notes, layers = [], model["layers"]
    if final_norm:
        notes.append(f"state {layers} is last_hidden_state, after the final norm; the others are before it.")
    elif final_norm is None:
        notes.append("this model's last state before the final norm could not be read.")
    cosine = means["mean_cosine"][: layers + 1]
    bare = np.minimum(means["mean_cosine_without_variance3"], means["mean_cosine_without_cosine3"])[: layers + 1]
    explained = np.flatnonzero((cosine >= 0.3) & (bare < cosine / 2)).tolist()
    if explained:
        worst = max(explained, key=lambda i: cosine[i] - bare[i])
        notes.append(
            f"outlier dimensions explain {len(explained)} of {layers + 1} states ({_ranges(explained)}): without 3 of "
            f"{model['width']} dimensions the mean cosine of state {worst} is {bare[worst]:.2f} instead of "
            f"{cosine[worst]:.2f}."
        )
    return notes


def too_few(windows: int) -> list[str]:
    """The note on intervals from fewer windows than FEW, if they are."""
    narrow = f"an interval from {several(windows, 'window')} is too narrow: measure at least {FEW}."
    return [narrow] if 1 < windows < FEW else []


def _cautions(windows: int, settings: dict[str, Any], states: int) -> list[str]:
    notes, tokens, last = [], settings["tokens"], settings["last"]
    if last > states:
        notes.append(f"the statistic last is the mean of all {states} states, as there are fewer than {last}.")
    notes += too_few(windows)
    if tokens < 16:
        pairs = several(tokens * (tokens - 1) // 2, "pair")
        notes.append(f"a window of {tokens} tokens has only {pairs}: take longer windows.")
    return notes


def _ranges(numbers: list[int]) -> str:
    starts = [n for n in numbers if n - 1 not in numbers]
    ends = [n for n in numbers if n + 1 not in numbers]
    return ", ".join(str(low) if low == high else f"{low}–{high}" for low, high in zip(starts, ends))


def _histogram(counts: np.ndarray) -> dict[str, Any]:
    return {"low": -1.0, "high": 1.0, "bins": BINS, "counts": counts.tolist()}


def _released_counts(upper: np.ndarray) -> np.ndarray:
    """upper (N, N): averaged cosines above the diagonal, 0 elsewhere. All N² entries are binned, as released."""
    n = len(upper)
    pairs = np.clip(upper[np.triu_indices(n, 1)], -1.0, 1.0)
    counts = 2 * np.histogram(pairs, bins=BINS, range=(-1, 1))[0]
    counts[-1] += n  # the diagonal
    return counts
