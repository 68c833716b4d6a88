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
from pathlib import Path

from .items import EvaluatedRun
from .logs import Log, Wanted
from .readers import read_logs

LARGE = 50_000_000
"""Bytes of all logs together; below, starting a process takes longer than it saves."""
CHILD = "from decondense.evaluate.apart import serve; serve()"

Run = str | Path | EvaluatedRun | Log


def read_all(runs: Sequence[Run], wanted: Wanted) -> list[list[Log]]:
    """``read_logs`` of every run, in their order. The first run that cannot be read is told, whoever has read it."""
    sizes = {i: _size(Path(run)) for i, run in enumerate(runs) if isinstance(run, (str, Path))}
    there = list(sizes)
    workers = min(len(there), _cores())
    if workers < 2 or sum(sizes.values()) < LARGE:
        return [read_logs(run, wanted) for run in runs]
    shares = [there[n::workers] for n in range(1, workers)]
    children = [_start([runs[i] for i in share], wanted) for share in shares]
    away = {i for share in shares for i in share}
    found = {i: _read(run, wanted) for i, run in enumerate(runs) if i not in away}
    for share, child in zip(shares, children):
        content, _ = child.communicate()
        found |= dict(zip(share, pickle.loads(content) if child.returncode == 0 else ()))
    logs = []
    for i, run in enumerate(runs):
        one = found[i] if i in found else _read(run, wanted)  # whose process did not come to its end
        if isinstance(one, Exception):
            raise one
        logs.append(one)
    return logs


def _read(run: Run, wanted: Wanted) -> list[Log] | Exception:
    try:
        return read_logs(run, wanted)
    except (ValueError, OSError) as error:
        return error


def _start(runs: Sequence[Run], wanted: Wanted) -> subprocess.Popen[bytes]:
    places = os.pathsep.join(path for path in sys.path if path)
    child = subprocess.Popen(
        [sys.executable or "python", "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, env=os.environ | {"PYTHONPATH": places},
    )  # fmt: skip
    assert child.stdin is not None
    with child.stdin as asked:
        pickle.dump((list(runs), wanted), asked)
    child.stdin = None  # for ``communicate``, which would close it again
    return child


def serve() -> None:
    """What such a process does: runs from its input, their logs (or what is wrong with them) to its output."""
    runs, wanted = pickle.load(sys.stdin.buffer)
    found = [_read(run, wanted) for run in runs]
    pickle.dump(found, sys.stdout.buffer, protocol=pickle.HIGHEST_PROTOCOL)


def _size(path: Path) -> int:
    files = [path] if path.is_file() else path.rglob("*") if path.is_dir() else ()
    return sum(file.stat().st_size for file in files if file.is_file())


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
