"""The result of a measurement: a view on the dictionary that ``result.json`` holds. No torch here."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from ..files import write_text
from .tally import Tally
from .trend import bootstrap_trend, verdict

__all__ = ["BINS", "QUANTILES", "SCHEMA", "Condensation", "build", "load"]

SCHEMA = "decondense.condensation/1"
BINS = 128
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
CURVES = ("all", "blocks", "all_before_norm", "blocks_before_norm")


class Condensation:
    """How condensed a model is. Arrays have one entry per hidden state, 0 (embedding layer) … L; the last one is
    after the final norm, as the model returns it. ``before_norm`` has the same numbers for it before the norm."""

    def __init__(self, record: dict[str, Any]) -> None:
        if record.get("schema") != SCHEMA:
            raise ValueError(f"a result must have the schema {SCHEMA!r}, got {record.get('schema')!r}.")
        self.record = record

    # -- numbers ---------------------------------------------------------------------------------------------

    @property
    def layers(self) -> int:
        """L, the number of blocks."""
        return int(self.record["model"]["layers"])

    def values(self, name: str) -> np.ndarray:
        """(L+1,) of any statistic in ``result.json``'s states, by name."""
        states = self.record["states"][: self.layers + 1]
        if name not in states[0]:
            known = [k for k, v in states[0].items() if isinstance(v, float)]
            raise ValueError(f"{name!r} must be one of {', '.join(known)}: was --spectral left out?")
        return np.array([s[name] for s in states], dtype=np.float64)

    @property
    def mean_cosine(self) -> np.ndarray:
        return self.values("mean_cosine")

    @property
    def mean_cosine_all(self) -> np.ndarray:
        return self.values("mean_cosine_all")

    @property
    def std(self) -> np.ndarray:
        return self.values("std")

    @property
    def quantiles(self) -> np.ndarray:
        """(L+1, 5): 5, 25, 50, 75 and 95 % of the pooled cosines."""
        return np.array([s["quantiles"] for s in self.record["states"][: self.layers + 1]])

    @property
    def before_norm(self) -> dict[str, Any] | None:
        """The last block's output before the final norm; ``None`` where the model does not give it away."""
        states = self.record["states"]
        return states[self.layers + 1] if len(states) > self.layers + 1 else None

    @property
    def histogram(self) -> np.ndarray:
        """(L+1, 128) density over [−1, 1] of the cosines of all windows together: each row integrates to 1."""
        return _density(np.array(self.record["histogram"]["counts"][: self.layers + 1]))

    @property
    def released_histogram(self) -> np.ndarray:
        """(L+1, 128), matrices averaged over windows first and binned then, diagonal counted: how the published
        figures were made."""
        if "released_histogram" not in self.record:
            raise ValueError("the released view was not measured: ask for it with released=True (--released).")
        return _density(np.array(self.record["released_histogram"]["counts"][: self.layers + 1]))

    @property
    def per_window(self) -> np.ndarray:
        """(windows, L+1) mean cosine of each window: what the intervals are resampled from."""
        return np.array(self.record["per_window"]["mean_cosine"])[:, : self.layers + 1]

    def trend(self, name: str, *, states: str = "all") -> float:
        """``name``: spearman, kendall, slope or last; ``states``: "all" (L+1), "blocks" (L), or either with
        "_before_norm"."""
        value = self._trend(name, states)["value"]
        return float("nan") if value is None else float(value)

    def interval(self, name: str, *, states: str = "all") -> tuple[float, float]:
        """The 95 % interval of a trend statistic, from a bootstrap over windows."""
        entry = self._trend(name, states)
        if entry["low"] is None or entry["high"] is None:
            return (float("nan"), float("nan"))
        return float(entry["low"]), float(entry["high"])

    def _trend(self, name: str, states: str) -> dict[str, float | None]:
        table = self.record["trend"]
        if states not in table:
            raise ValueError(f"states must be one of {', '.join(table)}, got {states!r}.")
        if name not in table[states]:
            raise ValueError(f"name must be one of {', '.join(table[states])}, got {name!r}.")
        return table[states][name]

    @property
    def spearman(self) -> float:
        return self.trend("spearman")

    @property
    def kendall(self) -> float:
        return self.trend("kendall")

    @property
    def slope(self) -> float:
        return self.trend("slope")

    # -- words and files -------------------------------------------------------------------------------------

    @property
    def label(self) -> str:
        """What tables and figures call it."""
        model = self.record["model"]
        return str(model["description"]) + (", freshly initialised" if model["init"] else "")

    @property
    def text(self) -> str:
        return str(self.record["text"]["name"])

    @property
    def complete(self) -> bool:
        return bool(self.record["complete"])

    @property
    def verdict(self) -> str:
        return str(self.record["verdict"])

    @property
    def notes(self) -> list[str]:
        return list(self.record["notes"])

    def __repr__(self) -> str:
        done = self.record["windows_done"]
        return f"Condensation({self.label}, {self.text}, {done} windows; {self.verdict})"

    def to_json(self) -> str:
        """The same numbers give the same bytes: sorted by the order of insertion, shortest floats, no times."""
        return _dump(self.record)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write ``path``, or ``path/result.json`` if it is a folder; to a temporary name first, then renamed."""
        target = Path(path)
        if target.is_dir():
            target = target / "result.json"
        write_text(target, self.to_json())
        return target

    def plot(self, path: str | os.PathLike[str], *, view: str = "pooled") -> Path:
        """Draw the heatmap; a CSV with its numbers is written beside it."""
        from ..figures.measurements import heatmap

        return heatmap(self, path, view=view)


def load(path: str | os.PathLike[str]) -> Condensation:
    """Read a saved result: the JSON file, or the folder that holds ``result.json``."""
    target = Path(path)
    if target.is_dir():
        target = target / "result.json"
    try:
        record = json.loads(target.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(f"no result at {str(path)!r}: give result.json or the folder that holds it.") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{str(target)!r} must be a saved result in JSON, but cannot be read: {error}.") from error
    if not isinstance(record, dict):
        raise ValueError(f"{str(target)!r} must be a saved result with the schema {SCHEMA!r}.")
    return Condensation(record)


def build(
    tally: Tally,
    *,
    model: dict[str, Any],
    text: dict[str, Any],
    settings: dict[str, Any],
    origins: list[dict[str, int]],
    final_norm: bool | None,
    versions: dict[str, str],
) -> Condensation:
    """Make the record out of a tally."""
    layers = int(model["layers"])
    known = layers + 2 if final_norm is not None else layers + 1
    means = {name: tally.column(name).mean(0) for name in tally.columns}
    table = tally.column("mean_cosine")
    trend = _trends(table, layers, known, settings)
    states = [_state(i, layers, final_norm, means, tally) for i in range(known)]
    record: dict[str, Any] = {
        "schema": SCHEMA,
        "model": model,
        "text": text,
        "settings": settings,
        "versions": versions,
        "complete": len(tally.windows) == settings["windows"],
        "windows_done": len(tally.windows),
        "final_norm": final_norm,
        "verdict": verdict(trend),
        "notes": _notes(means, layers, final_norm, int(model["width"])),
        "trend": trend,
        "states": states,
        "histogram": {"low": -1.0, "high": 1.0, "bins": BINS, "counts": _coarse(tally.counts[:known]).tolist()},
    }
    if tally.matrices is not None:
        averaged = tally.matrices[:known] / len(tally.windows)
        record["released_histogram"] = {
            "low": -1.0,
            "high": 1.0,
            "bins": BINS,
            "counts": [_released_counts(m).tolist() for m in averaged],
        }
    record["per_window"] = {"window": tally.windows, "mean_cosine": table[:, :known].tolist()}
    record["windows"] = [{"window": w, **origins[w]} for w in tally.windows]
    return Condensation(record)


def _trends(table: np.ndarray, layers: int, known: int, settings: dict[str, Any]) -> dict[str, Any]:
    curves = {"all": table[:, : layers + 1], "blocks": table[:, 1 : layers + 1]}
    if known == layers + 2:
        before = np.concatenate([table[:, :layers], table[:, layers + 1 : layers + 2]], axis=1)
        curves |= {"all_before_norm": before, "blocks_before_norm": before[:, 1:]}
    options = {"samples": settings["bootstrap"], "seed": settings["seed"], "last": settings["last"]}
    return {name: bootstrap_trend(curve, **options) for name, curve in curves.items() if curve.shape[1] > 1}


def _state(i: int, layers: int, final_norm: bool | None, means: dict[str, np.ndarray], tally: Tally) -> dict[str, Any]:
    after = ", after the final norm" if final_norm else ""
    name = "embedding" if i == 0 else f"block {i}" + (after if i == layers else "")
    if i == layers + 1:
        name = f"block {layers}" + (", before the final norm" if final_norm else "")
    state: dict[str, Any] = {"state": min(i, layers), "name": name}
    for column in tally.columns:
        if column == "mean_square_cosine":
            variance = means[column][i] - means["mean_cosine"][i] ** 2
            state["std"] = float(np.sqrt(max(0.0, variance)))
        elif not column.startswith("apart_"):
            state[column] = float(means[column][i])
    state["quantiles"] = histogram_quantiles(tally.counts[i], QUANTILES)
    state["by_distance"] = [float(means[c][i]) for c in tally.columns if c.startswith("apart_")]
    return state


def histogram_quantiles(counts: np.ndarray, levels: tuple[float, ...]) -> list[float]:
    """Quantiles of a histogram over [−1, 1], linear inside a bin: off by at most the width of one bin."""
    edges = np.linspace(-1, 1, len(counts) + 1)
    cumulative = np.concatenate([[0], np.cumsum(counts)]).astype(np.float64)
    total = cumulative[-1]
    result = []
    for level in levels:
        at = int(np.clip(np.searchsorted(cumulative, level * total, side="left") - 1, 0, len(counts) - 1))
        inside = (level * total - cumulative[at]) / max(1.0, float(counts[at]))
        result.append(float(edges[at] + np.clip(inside, 0, 1) * (edges[at + 1] - edges[at])))
    return result


def _notes(means: dict[str, np.ndarray], layers: int, final_norm: bool | None, width: int) -> list[str]:
    notes = []
    if final_norm:
        notes.append(f"state {layers} is after the final norm, as the model returns it; the others are not.")
    elif final_norm is None:
        notes.append("this model's last state before the final norm could not be read.")
    cosine = means["mean_cosine"][: layers + 1]
    bare = np.minimum(means["mean_cosine_without_variance3"], means["mean_cosine_without_cosine3"])[: layers + 1]
    explained = [i for i in range(layers + 1) if cosine[i] >= 0.3 and bare[i] < cosine[i] / 2]
    if explained:
        worst = max(explained, key=lambda i: cosine[i] - bare[i])
        notes.append(
            f"outlier dimensions explain {len(explained)} of {layers + 1} states ({_ranges(explained)}): without 3 of "
            f"{width} dimensions the mean cosine of state {worst} is {bare[worst]:.2f} instead of {cosine[worst]:.2f}."
        )
    return notes


def _ranges(numbers: list[int]) -> str:
    parts: list[list[int]] = []
    for n in numbers:
        if parts and n == parts[-1][-1] + 1:
            parts[-1].append(n)
        else:
            parts.append([n])
    return ", ".join(str(p[0]) if len(p) == 1 else f"{p[0]}–{p[-1]}" for p in parts)


def _coarse(counts: np.ndarray) -> np.ndarray:
    return counts.reshape(len(counts), BINS, -1).sum(-1)


def _released_counts(upper: np.ndarray) -> np.ndarray:
    """upper (N, N): averaged cosines above the diagonal, 0 elsewhere. All N² entries are binned, as released."""
    n = len(upper)
    pairs = np.clip(upper[np.triu_indices(n, 1)], -1.0, 1.0)
    counts = 2 * np.histogram(pairs, bins=BINS, range=(-1, 1))[0]
    counts[-1] += n  # the diagonal
    return counts


def _density(counts: np.ndarray) -> np.ndarray:
    total = counts.sum(-1, keepdims=True)
    return counts / np.maximum(1, total) * (counts.shape[-1] / 2)


def _dump(record: dict[str, Any]) -> str:
    """JSON with one key per line at the top two levels and numbers of a list on one line: small and diffable."""
    lines = []
    for key, value in record.items():
        if isinstance(value, list) and value and isinstance(value[0], (dict, list)):
            body = "[\n  " + ",\n  ".join(json.dumps(v, ensure_ascii=False) for v in value) + "\n ]"
        else:
            body = json.dumps(value, ensure_ascii=False)
        lines.append(f" {json.dumps(key)}: {body}")
    return "{\n" + ",\n".join(lines) + "\n}\n"
