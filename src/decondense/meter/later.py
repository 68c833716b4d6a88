"""The statistics of the hidden states of a batch, on a GPU with one wait per batch instead of one per state.

To read a number from a GPU the host waits until everything launched before is done, and meanwhile launches nothing:
with 32 states per batch that costs more than the model. So several states lie side by side, every operation is launched
once for all of them, and the results are copied to the host without waiting. The one wait per batch comes after the
next batch is launched.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..host import mark, sent
from ..losses.options import fused
from .spectrum import of_moments, second_moments
from .statistics import WindowStatistics, check_peak, on_device, peaks, state_statistics

# States side by side take at most so many bytes, and this share of a GPU's free memory: their statistics take about
# four times as much, with spectra eight times (benchmarks/results/measure_gpu.csv).
SIDE_BY_SIDE, SHARE = 256 * 2**20, 1 / 40
ROWS = 2**16 - 1  # limit of a GPU's grid, in which the kernel of the cosines has one row per window


class Sent(NamedTuple):
    """Results of several states on their way to the host: scalars of all their windows and counts of each state; the
    ``peaks`` of the states; their spectra (states, windows, 8), if wanted; the event after which all have arrived."""

    states: list[tuple[Any, str, torch.dtype]]
    statistics: WindowStatistics
    peaks: Tensor
    spectra: Tensor | None
    arrived: torch.cuda.Event | None


class Later:
    """The states of one batch. ``add`` and ``launch`` do not wait for a GPU; ``results`` does."""

    def __init__(self, *, spectral: bool) -> None:
        self.spectral = spectral
        self.stack: Tensor | None = None  # (room, windows, tokens, width)
        self.states: list[tuple[Any, str, torch.dtype]] = []
        self.sent: list[Sent] = []
        self.computed: list[tuple[list[Any], WindowStatistics]] = []

    def add(self, key: Any, z: Tensor, where: str, *, matrix: Tensor | None = None) -> None:
        """Add a state z (windows, tokens, width). ``results`` names it by ``key``, errors by ``where``. On a GPU it is
        copied, since the model may overwrite it later; elsewhere, and with a ``matrix`` as in ``window_statistics``,
        its statistics are computed at once."""
        if matrix is not None or not fused(z, "auto"):  # torch alone makes the host wait
            scalars, counts = state_statistics(z, where, spectral=self.spectral, matrix=matrix)
            self.computed.append(([key], WindowStatistics(scalars[None], counts[None])))
            return
        if self.stack is not None:
            same = (z.shape, z.device, _precision(z)) == (self.stack.shape[1:], self.stack.device, self.stack.dtype)
            if len(self.states) == len(self.stack) or not same:
                self.launch()
        if self.stack is None:
            self.stack = z.new_empty(_room(z), *z.shape, dtype=_precision(z))
        self.stack[len(self.states)].copy_(z)
        self.states.append((key, where, z.dtype))

    @torch.inference_mode()
    def launch(self) -> None:
        """Launch the statistics of all states that were added since the last launch."""
        if self.stack is None:
            return
        z, states = self.stack[: len(self.states)], self.states
        self.stack, self.states = None, []
        highest = peaks(z)
        statistics = WindowStatistics(*map(sent, on_device(z.flatten(0, 1), states=len(z))))
        spectra = None
        if self.spectral:
            bad = ~highest.isfinite()  # torch would refuse NaN here; `results` names the state
            z.masked_fill_(bad[:, None, None, None], 0)
            spectra = sent(of_moments(second_moments(z)))
        highest = sent(highest)
        self.sent.append(Sent(states, statistics, highest, spectra, mark(z.device)))

    def results(self) -> Iterator[tuple[list[Any], WindowStatistics]]:
        """Yield (keys, statistics) of several states at a time: scalars (states, windows, columns), counts (states,
        bins)."""
        yield from self.computed
        for part in self.sent:
            if part.arrived is not None:
                part.arrived.synchronize()
            for (_, where, dtype), peak in zip(part.states, part.peaks.tolist()):
                check_peak(where, peak, dtype)
            scalars = part.statistics.scalars.unflatten(0, (len(part.states), -1))
            if part.spectra is not None:
                scalars = torch.cat([scalars, part.spectra], 2)
            yield [key for key, _, _ in part.states], WindowStatistics(scalars, part.statistics.counts)


def _room(z: Tensor) -> int:
    """Return how many states like z are put side by side."""
    free = torch.cuda.mem_get_info(z.device)[0] * SHARE if z.is_cuda else SIDE_BY_SIDE
    return max(1, min(int(min(SIDE_BY_SIDE, free)) // max(1, 4 * z.numel()), ROWS // len(z)))


def _precision(z: Tensor) -> torch.dtype:
    return torch.promote_types(z.dtype, torch.float32)
