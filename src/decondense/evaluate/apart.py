"""Read several runs: where their logs are large, in parallel, in as many processes as there are cores.

Reading takes nearly all the time of a comparison, and Python reads on one core. Each process is a new interpreter and
not a fork or a `multiprocessing` child, so that it neither runs the caller's script again nor inherits its threads.
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
from .readers import read_logs

LARGE = 50_000_000
"""Bytes of all logs together; below this, starting processes takes longer than it saves."""
CHILD = "from decondense.evaluate.apart import serve; serve()"


def read_all(runs: Sequence[str | Path], wanted: Wanted) -> list[list[Log]]:
    """``read_logs`` of every run, in order. Raises the error of the first run that cannot be read."""
    workers = min(len(runs), _cores())
    if workers < 2 or sum(_size(Path(run)) for run in runs) < LARGE:
        return [read_logs(run, wanted) for run in runs]
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(lambda run: _apart(run, wanted), runs))


def _apart(run: str | Path, wanted: Wanted) -> list[Log]:
    """Read a run in a process of its own; if that process failed, read it here, so that the error is raised here."""
    python_path = os.pathsep.join(path for path in sys.path if path)
    completed = subprocess.run(
        [sys.executable or "python", "-c", CHILD], input=pickle.dumps((run, wanted)), stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, env=os.environ | {"PYTHONPATH": python_path}, check=False,
    )  # fmt: skip
    return pickle.loads(completed.stdout) if completed.returncode == 0 else read_logs(run, wanted)


def serve() -> None:
    """The body of such a process: read a pickled run from stdin and write its pickled logs to stdout."""
    pickle.dump(read_logs(*pickle.load(sys.stdin.buffer)), sys.stdout.buffer, protocol=pickle.HIGHEST_PROTOCOL)


def _size(path: Path) -> int:
    files = [path] if path.is_file() else path.rglob("*")
    return sum(file.stat().st_size for file in files if file.is_file())


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
