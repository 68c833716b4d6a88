"""The statistics of hidden states on a GPU, without a wait for each of them.

To read a number from a GPU the host waits until everything launched before is done, and meanwhile launches nothing: at
32 states a batch that costs more than the model. So several states lie side by side, every operation is launched once
for all of them, and what comes out goes to the host unasked. One wait per batch is left, and `run` has it when the next
batch is already launched. Eigenvalues are computed in threads of the host, where several matrices go at once: torch up
to 2.11 gives a GPU one after the other.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .spectrum import SecondMoments, of_moments, second_moments, sent
from .statistics import WindowStatistics, has_kernel, not_finite, on_device

# States side by side take at most this much, and this share of a GPU's free memory: what is computed of them takes
# about fifteen times as much.
SIDE_BY_SIDE, SHARE = 256 * 2**20, 1 / 40


def can_wait(z: Tensor) -> bool:
    """Whether nothing in the statistics of this state asks the host."""
    return has_kernel(z.new_empty(0, z.shape[-1], dtype=_precision(z)))


class Threads:
    """Threads of the host for matrices, made when first asked for. One thread for each matrix: several to one of
    512 × 512 are hardly faster. Torch has one such setting for all threads, so it is put back in the end."""

    def __init__(self) -> None:
        self.pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> Threads:
        return self

    def __exit__(self, *_: object) -> None:
        if self.pool is not None:
            self.pool.shutdown(cancel_futures=True)
            torch.set_num_threads(self.before)

    def submit(self, job: Callable[..., Tensor], *arguments: Any) -> Future[Tensor]:
        if self.pool is None:
            self.before = torch.get_num_threads()
            number = max(1, (os.cpu_count() or 2) - 1)  # one is left to whoever launches
            self.pool = ThreadPoolExecutor(number, initializer=torch.set_num_threads, initargs=(1,))
        return self.pool.submit(job, *arguments)


class Sent(NamedTuple):
    """On its way to the host, of several states: rows of all their windows and counts of each; whether each is finite;
    what their spectra will be; and a function that waits until all has come."""

    states: list[tuple[int, str, torch.dtype]]
    statistics: WindowStatistics
    finite: Tensor
    spectra: list[Future[Tensor]]
    come: Callable[[], None]


class Later:
    """The states of one batch: ``add`` and ``launch`` do not wait, ``results`` does. ``threads``: with spectra."""

    def __init__(self, threads: Threads | None) -> None:
        self.threads = threads
        self.beside: Tensor | None = None  # (room, windows, tokens, width)
        self.states: list[tuple[int, str, torch.dtype]] = []
        self.sent: list[Sent] = []

    def add(self, number: int, z: Tensor, where: str) -> None:
        """z (windows, tokens, width) is copied, since a model may go on to write in it."""
        if self.beside is not None:
            same = (z.shape, z.device, _precision(z)) == (self.beside.shape[1:], self.beside.device, self.beside.dtype)
            if len(self.states) == len(self.beside) or not same:
                self.launch()
        if self.beside is None:
            self.beside = z.new_empty(_room(z), *z.shape, dtype=_precision(z))
        self.beside[len(self.states)].copy_(z)
        self.states.append((number, where, z.dtype))

    @torch.inference_mode()
    def launch(self) -> None:
        """Everything that was added."""
        if self.beside is None:
            return
        z, states = self.beside[: len(self.states)], self.states
        self.beside, self.states = None, []
        finite = sent(torch.isfinite(z).flatten(1).all(1))
        statistics = WindowStatistics(*map(sent, on_device(z.flatten(0, 1), states=len(z))))
        moments = None if self.threads is None else second_moments(z).on_host()
        come = _reached(z.device) if z.is_cuda else lambda: None
        spectra: list[Future[Tensor]] = []
        if self.threads is not None and moments is not None:
            spectra = [self.threads.submit(_spectrum, moments, finite, k, come) for k in range(len(z))]
        self.sent.append(Sent(states, statistics, finite, spectra, come))

    def results(self) -> Iterator[tuple[list[int], WindowStatistics]]:
        """(numbers, statistics) of several states each: scalars (states, windows, columns), counts (states, bins)."""
        for part in self.sent:
            part.come()
            for (_, where, dtype), good in zip(part.states, part.finite.tolist()):
                if not good:
                    raise not_finite(where, dtype)
            scalars = part.statistics.scalars.unflatten(0, (len(part.states), -1))
            if part.spectra:
                scalars = torch.cat([scalars, torch.stack([spectrum.result() for spectrum in part.spectra])], 2)
            yield [number for number, _, _ in part.states], WindowStatistics(scalars, part.statistics.counts)


def _spectrum(moments: SecondMoments, finite: Tensor, k: int, come: Callable[[], None]) -> Tensor:
    """The statistics of state k, (windows, 8)."""
    come()
    gram, low, high, frobenius, width = moments
    if not finite[k]:
        return low[k, :, None]  # no eigenvalues; `results` raises the error
    return of_moments(SecondMoments(gram[k], low[k], high[k], frobenius[k], width))


def _room(z: Tensor) -> int:
    """How many states like z lie side by side."""
    free = torch.cuda.mem_get_info(z.device)[0] * SHARE if z.is_cuda else SIDE_BY_SIDE
    return max(1, int(min(SIDE_BY_SIDE, free)) // max(1, 4 * z.numel()))


def _precision(z: Tensor) -> torch.dtype:
    return torch.promote_types(z.dtype, torch.float32)


def _reached(device: torch.device) -> Callable[[], None]:
    """A function that waits until a GPU has done what was asked of it so far."""
    event = torch.cuda.Event(blocking=True)  # many threads wait, and are not to turn round and round meanwhile
    event.record(torch.cuda.current_stream(device))
    return event.synchronize
