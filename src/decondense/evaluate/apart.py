"""Several runs to be read at once: where their logs are large, in as many processes as there are cores.

Nearly all the time of a comparison is reading, and Python reads with one core. A process of its own is started by its
command and not forked, so that it neither runs the caller's script again nor inherits its threads.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .logs import Log, Wanted
from .readers import Run, read_logs

LARGE = 50_000_000
"""Bytes of all logs together; below, starting a process takes longer than it saves."""
CHILD = "from decondense.evaluate.apart import serve; serve()"


def read_all(runs: Sequence[Run], wanted: Wanted) -> list[list[Log]]:
    """``read_logs`` of every run, in their order. The first run that cannot be read is told."""
    files = [Path(run) for run in runs if isinstance(run, (str, Path))]
    workers = min(len(files), _cores())
    if workers < 2 or sum(map(_size, files)) < LARGE:
        return [read_logs(run, wanted) for run in runs]
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(lambda run: _apart(run, wanted), runs))


def _apart(run: Run, wanted: Wanted) -> list[Log]:
    """In a process of its own, or here where it is in memory or that did not come to its end: what is wrong is told."""
    if not isinstance(run, (str, Path)):
        return read_logs(run, wanted)
    places = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable or "python", "-c", CHILD], input=pickle.dumps((run, wanted)), stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, env=os.environ | {"PYTHONPATH": places}, check=False,
    )  # fmt: skip
    return pickle.loads(done.stdout) if done.returncode == 0 else read_logs(run, wanted)


def serve() -> None:
    """What such a process does: a run from its input, its logs to its output."""
    pickle.dump(read_logs(*pickle.load(sys.stdin.buffer)), sys.stdout.buffer, protocol=pickle.HIGHEST_PROTOCOL)


def _size(path: Path) -> int:
    files = [path] if path.is_file() else path.rglob("*")
    return sum(file.stat().st_size for file in files if file.is_file())


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
