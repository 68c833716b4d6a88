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

from .items import EvaluatedRun
from .logs import Log, Wanted
from .readers import read_logs

LARGE = 50_000_000
"""Bytes of all logs together; below, starting a process takes longer than it saves."""
CHILD = "from decondense.evaluate.apart import serve; serve()"

Run = str | Path | EvaluatedRun | Log
Read = list[Log] | Exception


def read_all(runs: Sequence[Run], wanted: Wanted) -> list[list[Log]]:
    """``read_logs`` of every run, in their order. The first run that cannot be read is told, whoever has read it."""
    sizes = {i: _size(Path(run)) for i, run in enumerate(runs) if isinstance(run, (str, Path))}
    workers = min(len(sizes), _cores())
    found: dict[int, Read] = {}
    if workers > 1 and sum(sizes.values()) >= LARGE:
        shares = [list(sizes)[n::workers] for n in range(workers)]
        with ThreadPoolExecutor(workers) as pool:
            for share, read in zip(shares, pool.map(lambda share: _apart([runs[i] for i in share], wanted), shares)):
                found |= dict(zip(share, read))
    logs = []
    for i, run in enumerate(runs):
        one = found[i] if i in found else read_logs(run, wanted)  # also where a process did not come to its end
        if isinstance(one, Exception):
            raise one
        logs.append(one)
    return logs


def _apart(runs: Sequence[Run], wanted: Wanted) -> list[Read]:
    """What `serve` says of them in a process of its own; nothing where that did not come to its end."""
    places = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable or "python", "-c", CHILD], input=pickle.dumps((runs, wanted)), stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, env=os.environ | {"PYTHONPATH": places}, check=False,
    )  # fmt: skip
    return pickle.loads(done.stdout) if done.returncode == 0 else []


def serve() -> None:
    """What such a process does: runs from its input, their logs (or what is wrong with them) to its output."""

    def read(run: Run) -> Read:
        try:
            return read_logs(run, wanted)
        except (ValueError, OSError) as error:
            return error

    runs, wanted = pickle.load(sys.stdin.buffer)
    pickle.dump([read(run) for run in runs], sys.stdout.buffer, protocol=pickle.HIGHEST_PROTOCOL)


def _size(path: Path) -> int:
    files = [path] if path.is_file() else path.rglob("*") if path.is_dir() else ()
    return sum(file.stat().st_size for file in files if file.is_file())


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
