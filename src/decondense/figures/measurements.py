"""Pictures of measurements. Each is written to a temporary name and renamed, with a CSV of its numbers beside it.

Colours: viridis and the Okabe–Ito palette, both legible without red–green vision.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
import matplotlib.patheffects
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ..files import write_csv
from .heat_scale import cut_at, floor_of, top_of
from .palette import PALETTE

if TYPE_CHECKING:
    from ..meter.compare import Comparison
    from ..meter.result import Condensation

__all__ = ["heatmap", "heatmaps", "trend_plot"]

MAP = "viridis"
INK = "#D55E00"


def heatmap(result: Condensation, path: str | os.PathLike[str], *, view: str = "pooled") -> Path:
    """Density of cosines (colour) against depth, with the mean and the 5–95 % band. ``view``: pooled, released."""
    figure = Figure(figsize=(7.2, 4.8), layout="constrained")
    axis = figure.add_subplot()
    drawn = [_density(result, view)]
    top = top_of(drawn)
    image = _draw(axis, result, view, floor=floor_of(drawn), top=top)
    axis.set_xlabel("depth: layer / number of layers (0 = embedding layer)")
    axis.set_ylabel("cosine similarity of two tokens of a window")
    axis.set_title(f"{result.label} on {result.text}\n{result.verdict}", fontsize=11, loc="left")
    axis.legend(loc="lower right", fontsize=8, framealpha=0.9)
    _colour_bar(figure, image, [axis], cut_at(drawn, top))
    figure.supxlabel(_footnote(result, view), fontsize=8, color="#444444", x=0.02, ha="left")
    target = Path(path)
    write_csv(target.with_suffix(".csv"), _heatmap_rows([result], view))
    return _save(figure, target)


def heatmaps(results: Sequence[Condensation], path: str | os.PathLike[str], *, view: str = "pooled") -> Path:
    """Several heatmaps side by side on one scale."""
    columns = min(4, len(results))
    rows = math.ceil(len(results) / columns)
    figure = Figure(figsize=(3.1 * columns + 1.4, 3.1 * rows + 0.9), layout="constrained")
    axes = figure.subplots(rows, columns, sharey=True, squeeze=False)
    drawn = [_density(result, view) for result in results]
    floor, top = floor_of(drawn), top_of(drawn)
    texts = {r.text for r in results}
    image = None
    for axis, result in zip(axes.flat, results):
        image = _draw(axis, result, view, floor=floor, top=top)
        title = result.label if len(texts) == 1 else f"{result.label}\n{result.text}"
        axis.set_title(f"{_wrap(title)}\nSpearman {_interval(result)}", fontsize=9)
    for axis in list(axes.flat)[len(results) :]:
        axis.set_visible(False)
    figure.supxlabel("depth: layer / number of layers (right of a white line: after the final norm)", fontsize=10)
    figure.supylabel("cosine similarity", fontsize=10)
    axes.flat[0].legend(loc="lower right", fontsize=7, framealpha=0.9)
    _colour_bar(figure, image, list(axes.flat), cut_at(drawn, top))
    target = Path(path)
    write_csv(target.with_suffix(".csv"), _heatmap_rows(results, view))
    return _save(figure, target)


def trend_plot(comparison: Comparison, path: str | os.PathLike[str]) -> Path:
    """Spearman and mean cosine of the last states against size, checkpoint order or text, with 95 % intervals."""
    rows = comparison.rows()
    figure = Figure(figsize=(8.4, 4.2), layout="constrained")
    axes = figure.subplots(1, 2)
    panels = (("spearman", "Spearman of mean cosine with depth"), ("last", "mean cosine of the last states"))
    x, labels, title = comparison.positions()
    for axis, (name, label) in zip(axes, panels):
        _intervals(axis, comparison, rows, x, name)
        axis.set_ylabel(label)
        axis.set_xlabel(title)
        axis.grid(axis="y", color="#dddddd", linewidth=0.8)
        axis.spines[["top", "right"]].set_visible(False)
        if comparison.axis == "size" and all(r["parameters"] for r in rows):
            axis.set_xscale("log")
            axis.minorticks_off()
        slanted = max(map(len, labels)) > 11 or len(labels) > 6
        axis.set_xticks(x, labels, rotation=30 if slanted else 0, ha="right" if slanted else "center")
        axis.margins(x=0.12)
    axes[0].axhline(0, color="#888888", linewidth=0.8)
    axes[0].set_ylim(-1.05, 1.05)
    for words, shift, side in (("condensing ↑", 3, "bottom"), ("dispersing ↓", -3, "top")):
        axes[0].annotate(
            words, (0.01, 0), xycoords=("axes fraction", "data"), xytext=(0, shift), textcoords="offset points",
            va=side, fontsize=8, color="#666666",
        )  # fmt: skip
    if comparison.paired:
        axes[1].legend(fontsize=8, frameon=False)
    figure.supxlabel("bars: 95 % intervals from a bootstrap over windows", fontsize=8, color="#444444")
    target = Path(path)
    write_csv(target.with_suffix(".csv"), rows)
    return _save(figure, target)


def _intervals(axis: Any, comparison: Comparison, rows: list[dict[str, Any]], x: list[float], name: str) -> None:
    value = np.array([np.nan if r[name] is None else r[name] for r in rows], dtype=float)
    low = np.array([v if r[f"{name}_low"] is None else r[f"{name}_low"] for r, v in zip(rows, value)], dtype=float)
    high = np.array([v if r[f"{name}_high"] is None else r[f"{name}_high"] for r, v in zip(rows, value)], dtype=float)
    error = np.stack([np.maximum(0, value - low), np.maximum(0, high - value)])
    style = {"fmt": "o", "markersize": 6, "capsize": 3, "linewidth": 1.4}
    if not comparison.paired:
        axis.errorbar(x, value, error, color=PALETTE[0], **style)
        if comparison.axis in ("size", "checkpoint"):
            order = np.argsort(x)
            axis.plot(np.array(x)[order], value[order], color=PALETTE[0], linewidth=1, alpha=0.5)
        return
    first, second = np.arange(0, len(rows), 2), np.arange(1, len(rows), 2)
    at = np.array(x)
    for a, b in zip(first, second):
        axis.plot([at[a], at[b]], [value[a], value[b]], color="#999999", linewidth=1.2, zorder=1)
    for chosen, colour, label in ((first, PALETTE[0], "first of the pair"), (second, PALETTE[1], "second of the pair")):
        axis.errorbar(at[chosen], value[chosen], error[:, chosen], color=colour, label=label, **style)


def density_image(axis: Any, density: np.ndarray, *, top: float) -> Any:
    """density (states, bins) over cosines −1 … 1, a column per state, at 0 … 1 of the depth; colours end at ``top``."""
    width = 1 / (len(density) - 1)
    return axis.imshow(
        np.minimum(density, top).T,
        origin="lower",
        aspect="auto",
        extent=(-width / 2, 1 + width / 2, -1, 1),
        cmap=MAP,
        vmin=0,
        vmax=top,
        interpolation="nearest",
    )


def _draw(axis: Any, result: Condensation, view: str, *, floor: float, top: float) -> Any:
    density = _density(result, view)
    layers = result.layers
    width = 1 / layers
    image = density_image(axis, density, top=top)
    x = np.arange(layers + 1) / layers
    quantiles = result.quantiles
    mean = result.mean_cosine
    halo = [matplotlib.patheffects.withStroke(linewidth=3.2, foreground="white")]
    # The last state has another normalisation, so the curve stops before it and it stands by itself.
    split = layers if result.record["final_norm"] else layers + 1
    axis.plot(x[:split], mean[:split], color=INK, linewidth=1.8, path_effects=halo, label="mean")
    for k, name in ((0, "5 % and 95 %"), (4, None)) if view == "pooled" else ():
        axis.plot(x[:split], quantiles[:split, k], color=INK, linewidth=0.9, linestyle="--", label=name)
    if result.record["final_norm"]:
        axis.axvline(1 - width / 2, color="white", linewidth=1.2)
        axis.plot(1, mean[-1], "o", color=INK, markeredgecolor="white", markersize=6, label="after the final norm")
        before = result.before_norm
        if before is not None:
            axis.plot(
                1, before["mean_cosine"], "o", markerfacecolor="white", markeredgecolor=INK, markersize=6,
                label="the same before it",
            )  # fmt: skip
    axis.set_facecolor(matplotlib.colormaps[MAP](0.0))
    axis.set_ylim(floor, 1)
    axis.set_xlim(-width / 2, 1 + width / 2)
    return image


def _density(result: Condensation, view: str) -> np.ndarray:
    if view not in ("pooled", "released"):
        raise ValueError(f"view must be pooled or released, got {view!r}.")
    return result.histogram if view == "pooled" else result.released_histogram


def _colour_bar(figure: Figure, image: Any, axes: list[Any], cut: str) -> None:
    bar = figure.colorbar(image, ax=axes, extend="max" if cut else "neither", pad=0.02, shrink=0.95)
    bar.set_label(f"density of cosines{cut}", fontsize=9)


def _footnote(result: Condensation, view: str) -> str:
    settings = result.record["settings"]
    done = result.record["windows_done"]
    words = f"{done} windows × {settings['tokens']} tokens, "
    words += "all pairs of all windows" if view == "pooled" else "matrices averaged over windows, diagonal counted"
    if not result.complete:
        words += f"; INCOMPLETE, {settings['windows']} asked"
    if result.record["final_norm"]:
        words += "\nright of the white line: after the final norm, as the model returns it; the others are not"
    return words


def _heatmap_rows(results: Sequence[Condensation], view: str) -> list[dict[str, Any]]:
    rows = []
    for result in results:
        density = _density(result, view)
        for layer, row in enumerate(density):
            base = {
                "model": result.label,
                "text": result.text,
                "state": layer,
                "depth": layer / result.layers,
                "mean_cosine": result.mean_cosine[layer],
            }
            rows.append(base | {f"{-1 + (2 * b + 1) / len(row):.6f}": round(float(v), 6) for b, v in enumerate(row)})
    return rows


def _interval(result: Condensation) -> str:
    low, high = result.interval("spearman")
    return f"{result.spearman:.2f}" + ("" if math.isnan(low) else f" [{low:.2f}, {high:.2f}]")


def _wrap(title: str, width: int = 34) -> str:
    parts = [p for line in title.split("\n") for p in (line.split(", ", 1) if len(line) > width else [line])]
    return "\n".join(part if len(part) <= width else part[: width - 1] + "…" for part in parts)


def _save(figure: Figure, target: Path) -> Path:
    """The kind of file follows the name's ending; no date inside, so the same numbers give the same file."""
    kind = target.suffix.lstrip(".").lower() or "png"
    handle, name = tempfile.mkstemp(prefix=f".{target.stem}-", suffix=f".{kind}", dir=target.parent)
    os.close(handle)
    try:
        FigureCanvasAgg(figure)
        metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind, {"Software": None})
        with matplotlib.rc_context({"svg.hashsalt": "decondense"}):  # names inside an SVG are random without it
            figure.savefig(name, dpi=160, format=kind, metadata=metadata)
        os.chmod(name, 0o644)
        os.replace(name, target)
    except ValueError as error:
        Path(name).unlink(missing_ok=True)
        raise ValueError(f"a figure must be .png, .svg or .pdf, got {target.name!r}.") from error
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return target
