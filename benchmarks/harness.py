"""What the benchmarks share: device times, peak memory, the environment, CSV files and tables.

Two clocks. `device_time` captures the calls in a CUDA graph and times its replays: the time the GPU works, without
the host's launch overhead, which a training step hides behind other work. `call_time` times plain calls one after
another: what a user sees who calls the function alone. Both rotate through several inputs, more than the L2 cache
holds, and give the median in milliseconds.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import gc
import os
import platform
import statistics
import subprocess
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from decondense.files import commit, write_csv

RESULTS = Path(__file__).parent / "results"
ENVIRONMENT = ("date", "torch", "device", "triton", "commit")  # where a figure comes from: columns of every file
Row = dict[str, Any]


class Line(dict[str, str]):
    """A row of a CSV file that `write` wrote. A column that it lacks ends the program with a sentence."""

    source: str

    def __missing__(self, column: str) -> str:
        raise SystemExit(f"{self.source} has no column {column!r}: make it again with its benchmark.")


def read(name: str, folder: Path = RESULTS) -> list[Line]:
    """The rows of folder/name.csv, each with the path of the file as its `source`."""
    path = folder / f"{name}.csv"
    if not path.exists():
        raise SystemExit(f"{path} does not exist: run its benchmark first.")
    lines = []
    with path.open(newline="", encoding="utf-8") as file:
        for number, row in enumerate(csv.DictReader(file), start=2):
            if None in row or None in row.values():
                raise SystemExit(
                    f"{path}, line {number}, must have a cell per column: make the file again with its benchmark."
                )
            lines.append(Line(row))
            lines[-1].source = str(path)
            _ = [lines[-1][column] for column in ENVIRONMENT]
    return lines


def arguments(description: str) -> argparse.ArgumentParser:
    """The options every benchmark has."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the CSV file")
    parser.add_argument("--plot", action="store_true", help="also draw a plot beside the CSV file")
    return parser


def need_cuda() -> None:
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a CUDA device and found none: run it on a machine with a GPU.")


def environment() -> Row:
    """Columns that say where a figure comes from."""
    row: Row = {"date": datetime.date.today().isoformat(), "torch": torch.__version__}
    if torch.cuda.is_available():
        import triton

        row |= {"device": torch.cuda.get_device_name(), "triton": triton.__version__}
    else:
        row |= {"device": f"{_processor()}, {os.cpu_count()} cores", "triton": ""}
    row["commit"] = commit() or "unknown"
    return {column: row[column] for column in ENVIRONMENT}


def _processor() -> str:
    """The CPU's name where the system tells it, else its architecture."""
    try:
        lines = subprocess.run(["lscpu"], capture_output=True, text=True, check=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("Model name:")]
    return names[0] if names else platform.processor() or platform.machine()


def copies(make: Callable[[int], torch.Tensor], *, at_least: int = 3, at_most: int = 16) -> list[torch.Tensor]:
    """Several inputs, together more than three times the L2 cache."""
    first = make(0)
    size = first.numel() * first.element_size()
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    number = min(at_most, max(at_least, -(-3 * cache // max(size, 1))))
    if size * number > torch.cuda.mem_get_info()[0] // 4:
        number = 1
    return [first] + [make(i) for i in range(1, number)]


def device_time(calls: Sequence[Callable[[], Any]], *, budget: float = 0.3, rounds: int = 15) -> float:
    """Milliseconds of GPU time per call, from replays of a graph of all the calls."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            for call in calls:
                call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    result = _median([graph.replay], rounds=rounds, budget=budget) / len(calls)
    del graph
    gc.collect()
    torch.cuda.empty_cache()
    return result


def call_time(calls: Sequence[Callable[[], Any]], *, budget: float = 0.3, rounds: int = 15) -> float:
    """Milliseconds per plain call, launches included."""
    for _ in range(2):
        for call in calls:
            call()
    return _median(list(calls), rounds=rounds, budget=budget)


def _median(calls: Sequence[Callable[[], Any]], *, rounds: int, budget: float) -> float:
    """Median over rounds of the mean time of a call; a round takes about budget/rounds seconds."""

    def timed(repeats: int) -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(repeats):
            for call in calls:
                call()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) / repeats / len(calls)

    timed(1)
    once = max(timed(1), 1e-3)
    repeats = max(1, int(1000 * budget / rounds / once / len(calls)))
    if once > 1000 * budget:
        rounds = 3
    return statistics.median(timed(repeats) for _ in range(rounds))


def extra_memory(call: Callable[[], Any]) -> int:
    """Bytes the call holds at its peak beyond what was there before, its result included."""
    call()
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = call()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    del result
    return peak


def error(a: torch.Tensor, reference: torch.Tensor) -> float:
    """‖a − reference‖ / ‖reference‖ in float64."""
    return float((a.double() - reference.double()).norm() / reference.double().norm())


def write(name: str, rows: Sequence[Row], out: Path) -> Path:
    """rows as out/name.csv with the environment in the last columns, written whole or not at all."""
    out.mkdir(parents=True, exist_ok=True)
    where = environment()
    path = out / f"{name}.csv"
    write_csv(path, [{key: _plain(value) for key, value in (row | where).items()} for row in rows])
    return path


def collect(name: str, parts: Iterable[Sequence[Row]], out: Path) -> tuple[list[Row], Path]:
    """The rows of all the parts. out/name.csv is written after each: a run that is cut off keeps what it had."""
    rows: list[Row] = []
    path = out / f"{name}.csv"
    for part in parts:
        rows += part
        path = write(name, rows, out)
    return rows, path


def _plain(value: Any) -> Any:
    return f"{value:.5g}" if isinstance(value, float) else value


def table(rows: Iterable[Row], columns: Sequence[str]) -> str:
    """The columns as aligned text."""
    lines = [list(columns)] + [[str(_plain(row.get(c, ""))) for c in columns] for row in rows]
    width = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    return "\n".join("  ".join(cell.rjust(w) for cell, w in zip(line, width)) for line in lines)


def bars(
    rows: Sequence[Row], path: Path, *, value: str = "ms", case: Sequence[str] = ("shape", "dtype"), log: bool = False
) -> None:
    """A panel per case, a bar per variant."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    cases = list(dict.fromkeys(tuple(row[key] for key in case) for row in rows))
    figure, axes = pyplot.subplots(1, len(cases), figsize=(4 * len(cases), 3.2), squeeze=False)
    for axis, one in zip(axes[0], cases):
        some = [row for row in rows if tuple(row[key] for key in case) == one]
        axis.barh([row["variant"] for row in some], [row[value] for row in some])
        axis.invert_yaxis()
        axis.set_title(" ".join(map(str, one)), fontsize=8)
        axis.set_xlabel(value)
        axis.tick_params(labelsize=7)
        if log:
            axis.set_xscale("log")
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
