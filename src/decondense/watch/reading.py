"""One look at the hidden states of a batch: the meter's statistics of every layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..geometry import inverse
from ..meter.spectrum import SPECTRAL, of_moments, second_moments
from ..meter.statistics import FINE_BINS, SCALARS, measurable, peaks, window_statistics

METRICS = (
    "mean_cosine", "mean_cosine_across", "mean_cosine_without_first", "effective_rank", "matrix_entropy",
    "spectral_slope", "outlier_share", "first_token_share",
)  # fmt: skip


@dataclass(frozen=True)
class Reading:
    """`table`: metric → (layers,), in the order of the names in `layers`; `density` (layers, bins): distribution of the
    cosines within sequences over −1 … 1; `epoch`: when the reading was taken, if the engine knows epochs."""

    step: int
    layers: tuple[str, ...]
    table: dict[str, np.ndarray]
    trend: float
    density: np.ndarray
    epoch: float | None = None

    def __repr__(self) -> str:  # a dataclass's own fills the screen with densities
        layers = f"{self.layers[0]} … {self.layers[-1]}"
        cosines = ", ".join(f"{value:.3f}" for value in self.table["mean_cosine"])
        return f"Reading(step={self.step}, layers={layers}, mean_cosine={cosines}, trend={self.trend:.2f})"

    def figures(self) -> dict[str, float]:
        """One number for every metric and layer, and the trend, as loggers want them; only finite ones."""
        flat = {
            f"geometry/{metric}/{layer}": float(value)
            for metric, values in self.table.items()
            for layer, value in zip(self.layers, values)
            if math.isfinite(value)
        }
        return flat | ({"geometry/trend": self.trend} if math.isfinite(self.trend) else {})

    def plot(self, path: Any = None, *, ax: Any = None, title: str | None = None) -> Any:
        """The heatmap of this reading; see ``decondense.plot``."""
        from ..figures.draw import Strip, draw
        from ..figures.measurements import floor_of, heat_chart, heat_frame, top_of

        result: Any = SimpleNamespace(histogram=self.density, mean_cosine=self.table["mean_cosine"], final_norm=False)
        frame = heat_frame(result, top=top_of([self.density]))
        y_title = "cosine of two tokens of a sequence"
        chart = heat_chart(f"step {self.step}", [frame], [result], floor=floor_of([self.density]), y=y_title)
        if not self.layers[0].isdigit():
            chart.x.title = f"{self.layers[0]} … {self.layers[-1]}"
        return draw([Strip([[chart]], (6.4, 4.2))], path, name=f"step-{self.step:06d}.png", ax=ax, title=title)

    @cached_property
    def picture(self) -> np.ndarray:
        """The heatmap as pixels (height, width, 3), drawn once for all that take pictures."""
        canvas = self.plot().canvas
        canvas.draw()
        return np.ascontiguousarray(np.asarray(canvas.buffer_rgba())[..., :3])


@torch.no_grad()
def begun(parts: Sequence[Tensor], metrics: Sequence[str]) -> Callable[[], tuple[Tensor, Tensor]]:
    """Begin the measurement of sequences without padding, each of `parts` (sequences, tokens, width). Return a function
    that finishes it: → the metrics, float64, each a mean over the sequences that have it, and the counts of cosines
    within sequences in fine bins. All metrics are NaN if a state is not `measurable`.

    The function finds the eigenvalues on the CPU, since a GPU would take several steps' time. Call it in any thread
    once the GPU's stream has reached this point; the states may change meanwhile."""
    parts = [part.detach() for part in parts if part.shape[1] > 1 and len(part)]
    if not parts or not all(measurable(float(peaks(part[None])), part.dtype) for part in parts):
        all_nan = torch.full((len(metrics),), math.nan, dtype=torch.float64), torch.zeros(FINE_BINS, dtype=torch.int64)
        return lambda: all_nan
    spectral = any(name in metrics for name in SPECTRAL)
    measured = [window_statistics(part) for part in parts]
    moments = [second_moments(part).on_host() for part in parts] if spectral else []
    values = dict(zip(SCALARS, torch.cat([m.scalars[:, : len(SCALARS)] for m in measured]).nanmean(0)))
    values["outlier_share"] = values["top3_variance_share"]
    squares = [part.double().square().sum(2) for part in parts]
    values["first_token_share"] = torch.cat([s[:, 0] / s.sum(1).clamp_min(1e-300) for s in squares]).mean().cpu()
    values["mean_cosine_across"] = _across(parts)
    counts = sum((m.counts for m in measured[1:]), measured[0].counts)

    def finish() -> tuple[Tensor, Tensor]:
        spectra = dict(zip(SPECTRAL, torch.cat([of_moments(m) for m in moments]).nanmean(0))) if spectral else {}
        return torch.stack([(values | spectra)[name] for name in metrics]), counts

    return finish


def _across(parts: list[Tensor]) -> Tensor:
    """Mean cosine of two tokens of different sequences: (‖Σ_s S_s‖² − Σ_s ‖S_s‖²) / (N² − Σ n_s²), S_s = Σ_i u_i."""
    sums, counts = [], []
    for part in parts:
        norms = part.double().norm(dim=2)
        sums.append((part.double() * inverse(norms)[..., None]).sum(1))
        counts += [part.shape[1]] * len(part)
    stacked, n = torch.cat(sums), torch.tensor(counts, dtype=torch.float64)
    pairs = n.sum().square() - n.square().sum()
    if pairs == 0:
        return torch.tensor(math.nan, dtype=torch.float64)
    return ((stacked.sum(0).square().sum() - stacked.square().sum()).cpu() / pairs).clamp(-1, 1)
