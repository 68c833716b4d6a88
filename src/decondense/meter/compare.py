"""Several measurements side by side: a family by size, a row of checkpoints, texts, or pairs."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from .result import Condensation, load
from .run import measure
from .trend import STATISTICS, curve_statistics

__all__ = ["Comparison", "compare", "families"]

Item = str | os.PathLike[str] | Condensation | tuple[Any, Any]


@dataclass(frozen=True)
class Comparison:
    """``axis`` is what the results differ in: "size", "checkpoint", "text" or "order"; with ``paired``, results
    2k and 2k+1 belong together."""

    results: list[Condensation]
    axis: str
    paired: bool = False

    def rows(self) -> list[dict[str, Any]]:
        """One row per result: what it is, and every trend statistic with its interval."""
        rows = []
        for number, r in enumerate(self.results):
            model = r.record["model"]
            row: dict[str, Any] = {
                "model": r.label,
                "revision": model["revision"],
                "text": r.text,
                "parameters": model["parameters"],
                "layers": r.layers,
                "windows": r.record["windows_done"],
                "complete": r.complete,
            }
            if self.paired:
                row["pair"] = number // 2
            for states in ("all", "blocks"):
                for name in STATISTICS:
                    entry = r.record["trend"][states][name]
                    prefix = name if states == "all" else f"{name}_blocks"
                    row |= {prefix: entry["value"], f"{prefix}_low": entry["low"], f"{prefix}_high": entry["high"]}
            rows.append(row | {"verdict": r.verdict})
        return rows

    def positions(self) -> tuple[list[float], list[str], str]:
        """x, tick labels and axis title for the trend figure."""
        if self.axis == "size":
            sizes = [float(r.record["model"]["parameters"]) for r in self.results]
            return sizes, [_count(s) for s in sizes], "parameters"
        names = {
            "checkpoint": ([str(r.record["model"]["revision"]) for r in self.results], "checkpoint"),
            "text": ([r.text.split(":")[0] for r in self.results], "text"),
            "order": ([_short(r.label) for r in self.results], "model"),
        }
        labels, title = names[self.axis]
        places = [float(i // 2 if self.paired else i) for i in range(len(labels))]
        if self.paired:
            labels = [labels[i - i % 2] for i in range(len(labels))]
        return places, labels, title

    @property
    def verdict(self) -> str:
        """One line: does condensation fall with size (or along the row)?"""
        values = np.array([r.spearman for r in self.results])
        if self.paired:
            higher = int((values[1::2] > values[::2]).sum())
            return f"the second of the pair has the higher Spearman in {higher} of {len(values) // 2} pairs"
        if self.axis in ("size", "checkpoint") and len(values) >= 3:
            order = np.argsort(self.positions()[0], kind="stable")
            rho, tau = curve_statistics(values[order])[:2]
            what = "size" if self.axis == "size" else "checkpoint order"
            if math.isnan(rho):
                return f"Spearman does not change with {what}"
            return f"condensation against {what}: Spearman {rho:.2f}, Kendall {tau:.2f} over {len(values)} results"
        return f"Spearman from {values.min():.2f} to {values.max():.2f} over {len(values)} results"

    def to_json(self) -> str:
        record = {
            "schema": "decondense.comparison/1",
            "axis": self.axis,
            "paired": self.paired,
            "verdict": self.verdict,
            "rows": self.rows(),
        }
        return json.dumps(record, indent=1, ensure_ascii=False) + "\n"

    def plot(self, folder: str | os.PathLike[str], *, view: str = "pooled") -> list[Path]:
        """``heatmaps.png`` and ``trend.png`` in a folder, each with its CSV."""
        from ..figures.measurements import heatmaps, trend_plot

        where = Path(folder)
        return [heatmaps(self.results, where / "heatmaps.png", view=view), trend_plot(self, where / "trend.png")]


def compare(
    items: Sequence[Item],
    *,
    texts: Sequence[Any] | None = None,
    revisions: Sequence[str] | None = None,
    paired: bool = False,
    started: Callable[[str, int, int], None] | None = None,
    finished: Callable[[Condensation], None] | None = None,
    **options: Any,
) -> Comparison:
    """Measure what is not measured yet, and put everything side by side.

    Args:
        items: models (any name ``measure`` takes), saved results (file or folder) or ``Condensation`` objects.
        texts: measure every model on each of these.
        revisions: measure the one model at each of these revisions: a row of checkpoints.
        paired: items come in pairs, (a, b), (c, d) …
        started, finished: called before and after each measurement.
        options: handed on to ``measure``.
    """
    jobs = _jobs(list(items), texts, revisions, options)
    if paired and len(jobs) % 2:
        raise ValueError(f"paired needs an even number of results, got {len(jobs)}: give them as a b, c d, …")
    if len(jobs) < 2:
        raise ValueError("compare needs at least two results: give more models, texts or revisions.")
    results = []
    for number, job in enumerate(jobs):
        if isinstance(job, Condensation):
            results.append(job)
            continue
        name, extra = job
        if started is not None:
            started(str(name), number, len(jobs))
        result = measure(name, **(options | extra))
        if finished is not None:
            finished(result)
        results.append(result)
    return Comparison(results, _axis(results, paired), paired)


def _jobs(
    items: list[Item], texts: Sequence[Any] | None, revisions: Sequence[str] | None, options: dict[str, Any]
) -> list[Any]:
    jobs: list[Any] = []
    for item in items:
        ready = item if isinstance(item, Condensation) else _saved(item)
        if ready is not None:
            jobs.append(ready)
        else:
            variants: list[dict[str, Any]] = [{}]
            if revisions:
                variants = [v | {"revision": r} for v in variants for r in revisions]
            if texts:
                variants = [v | {"text": t} for v in variants for t in texts]
            jobs += [(item, v) for v in variants]
    return jobs


def _saved(item: Any) -> Condensation | None:
    """A result file or folder, told from a model folder by what is in it."""
    if not isinstance(item, (str, os.PathLike)):
        return None
    path = Path(item)
    if path.is_file() and path.suffix == ".json":
        return load(path)
    return load(path) if path.is_dir() and (path / "result.json").is_file() else None


def _axis(results: list[Condensation], paired: bool) -> str:
    models = [r.record["model"] for r in results]
    if len({r.text for r in results}) > 1 and len({r.label for r in results}) == 1:
        return "text"
    if len({m["name"] for m in models}) == 1 and len({m["revision"] for m in models}) > 1:
        return "checkpoint"
    return "size" if len({m["parameters"] for m in models}) > (len(models) // 2 - 1 if paired else 1) else "order"


def families() -> dict[str, dict[str, Any]]:
    """``families.yaml``: the model families, rows of checkpoints and distilled pairs of the paper."""
    path = Path(__file__).resolve().parent.parent / "families.yaml"
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def _count(number: float) -> str:
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.0f}"


def _short(label: str, width: int = 18) -> str:
    label = label.split("/")[-1]
    return label if len(label) <= width else label[: width - 1] + "…"
