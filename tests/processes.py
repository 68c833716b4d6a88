"""python processes.py NUMBER SCRIPT ARGUMENTS…: the script on so many processes, in the environment torchrun makes.

torchrun imports torch for itself and then everything for each process. Here what the script imports is imported once
and the processes are forked, which costs a third. As with torchrun, when one of them fails the others get SIGTERM.
"""

from __future__ import annotations

import ast
import os
import runpy
import signal
import socket
import subprocess
import sys
from pathlib import Path

TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
FORKED = [__file__]


def launch(
    number: int, script: Path, *arguments: object, launcher=FORKED, cwd: Path | None = None, **environment: object
) -> subprocess.CompletedProcess[str]:
    """Run to the end, or for ten minutes, on a machine that others use as well."""
    command = [sys.executable, *launcher, str(number), str(script), *map(str, arguments)]
    settings = {**os.environ, "OMP_NUM_THREADS": "1", **{name: str(value) for name, value in environment.items()}}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, env=settings, cwd=cwd, start_new_session=True, **pipes)
    try:
        stdout, stderr = process.communicate(timeout=600)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def main(number: str, script: str, *arguments: str) -> int:
    sys.path[0] = str(Path(script).parent)
    sys.path.insert(1, str(Path(__file__).parent))
    statements = [s for s in ast.parse(Path(script).read_text()).body if isinstance(s, ast.Import | ast.ImportFrom)]
    exec(compile(ast.Module(statements, []), script, "exec"), {})
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    running: set[int] = set()
    for rank in map(str, range(int(number))):
        child = os.fork()
        if child == 0:
            os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": number, "LOCAL_WORLD_SIZE": number}
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            sys.argv = [script, *arguments]
            runpy.run_path(script, run_name="__main__")
            return 0
        running.add(child)
    failed = 0
    while running:
        child, status = os.wait()
        running.remove(child)
        if status and not failed:
            failed = 1
            for other in running:
                os.kill(other, signal.SIGTERM)
    return failed


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
