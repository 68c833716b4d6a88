"""Processes that cost a fork, not an import of torch and transformers: `launch` runs a script in one or several.

The first call of a session, or tests/conftest.py for all workers of a session, starts `python processes.py`, which
imports what takes seconds, but nothing of decondense, and then forks for every caller. Several processes get the
environment that torchrun would set; when one fails the others get SIGTERM, as from torchrun. Only on Linux: elsewhere
`launch` starts torchrun or a plain process. `python processes.py -u -c CODE`, xdist's worker, is a fork as well.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import socketserver
import subprocess
import sys
import tempfile
import traceback
import types
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
ADDRESS = "DECONDENSE_TESTS_PROCESSES"
LIMIT = 600  # seconds, on a machine that others use as well
IMPORTED = (
    "accelerate", "datasets", "matplotlib.pyplot", "pydantic.main", "scipy.stats", "torch.distributed.fsdp",
    "torch.distributed.tensor", "transformers.trainer", "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto", "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.llama.modeling_llama",
    "lm_eval.models.huggingface", "pytorch_lightning", "torch._dynamo.testing", "trl",  # for workers, to collect tests
)  # fmt: skip


# A process that has looked for a GPU cannot be forked into one that uses it.
FORKS_WORKERS = sys.platform == "linux" and not any(map(os.path.exists, ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")))


def launch(
    number: int, script: Path, *arguments: object, cwd: Path | None = None, torchrun=False, **environment: object
):
    """Run the script in `number` processes; return its output and exit code as `subprocess.run` does."""
    words = [str(script), *map(str, arguments)]
    settings = {**os.environ, "OMP_NUM_THREADS": "1", **{name: str(value) for name, value in environment.items()}}
    if torchrun or sys.platform != "linux":  # other systems have no fork, or none that is safe
        command = [sys.executable, *([*TORCHRUN, str(number)] if number > 1 else []), *words]
        return subprocess.run(command, capture_output=True, text=True, env=settings, cwd=cwd, timeout=LIMIT)
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as caller:
        files = [Path(folder) / name for name in ("stdout", "stderr")]
        asked = {"number": number, "words": words, "cwd": str(cwd or Path.cwd()), "files": list(map(str, files))}
        caller.connect(server())
        caller.sendall(json.dumps(asked | {"environment": settings}).encode() + b"\n")
        code = int(caller.makefile().readline())
        return subprocess.CompletedProcess(words, code, *(file.read_text() for file in files))


def start(script: Path, *arguments: object, **environment: object) -> Future[subprocess.CompletedProcess[str]]:
    """`launch` in the background, one at a time."""
    return ThreadPoolExecutor(1).submit(functools.partial(launch, 1, script, *arguments, **environment))


def worker() -> int:
    """Run Python with this process's arguments and streams in a fork; return its exit code."""
    asked = {"number": 0, "words": sys.argv[1:], "cwd": str(Path.cwd()), "files": [], "environment": {**os.environ}}
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(os.environ[ADDRESS])
        caller.sendall(json.dumps(asked).encode() + b"\n")
        socket.send_fds(caller, [b"\n"], [0, 1, 2])
        return int(caller.makefile().readline())


def server() -> str:
    """The address of the process that forks, for this process and all that it starts; the first call starts it."""
    if ADDRESS not in os.environ:
        folder = tempfile.TemporaryDirectory()  # which no other user may enter
        os.environ[ADDRESS] = str(Path(folder.name) / "door")
        settings = os.environ | {"OMP_NUM_THREADS": "1", "MPLBACKEND": "agg", "HF_HUB_OFFLINE": "1"}
        settings["HF_DATASETS_CACHE"] = str(Path(folder.name) / "datasets")  # read at the import
        pipe = subprocess.PIPE
        found = subprocess.Popen([sys.executable, __file__], stdin=pipe, stdout=pipe, text=True, env=settings)
        atexit.register(lambda: (found.kill(), found.wait(), folder.cleanup()))
        assert "ready\n" in iter(found.stdout.readline, ""), "the process that forks did not start"
    return os.environ[ADDRESS]


class Caller(socketserver.StreamRequestHandler):
    """Forks as often as one caller asks for, waits for all, and sends the exit code back."""

    rbufsize = 0  # nothing is read ahead: the byte after the line carries the streams

    def handle(self) -> None:
        asked = json.loads(self.rfile.readline())
        if not asked["number"]:
            for number, stream in enumerate(socket.recv_fds(self.connection, 1, 3)[1]):
                os.dup2(stream, number)
                os.close(stream)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        running: set[int] = set()
        for rank in range(asked["number"] or 1):
            child = os.fork()
            if child == 0:
                os._exit(run(rank, port, **asked))  # skip tearing down the imported modules, which takes a second
            running.add(child)
        failed = 0
        while running:
            child, status = os.wait()
            running.remove(child)
            if status and not failed:
                failed = os.waitstatus_to_exitcode(status)
                for other in running:
                    os.kill(other, signal.SIGTERM)
        self.wfile.write(f"{failed}\n".encode())


class Server(socketserver.ForkingMixIn, socketserver.UnixStreamServer):
    def service_actions(self) -> None:
        super().service_actions()
        if select.select([sys.stdin], [], [], 0)[0]:  # the process that started this one is gone
            os._exit(0)


def serve() -> None:
    gc.disable()  # the collector takes a sixth of the time of an import
    if FORKS_WORKERS and "TRITON_INTERPRET" not in os.environ:  # as in tests/conftest.py, which says why
        os.environ["TRITON_INTERPRET"] = "1"
        with contextlib.suppress(ImportError):
            importlib.import_module("triton.experimental.gluon")
        del os.environ["TRITON_INTERPRET"]
    for name in IMPORTED:
        with contextlib.suppress(Exception):  # a missing or broken package is reported by the tests that need it
            importlib.import_module(name)
    with contextlib.suppress(ImportError):  # an older transformers has no such table to make
        importlib.import_module("transformers.conversion_mapping").get_checkpoint_conversion_mapping("llama")
    gc.freeze()  # the forks' collectors then do not go through these objects, which would copy them
    gc.set_threshold(50_000, 20, 20)  # as in tests/conftest.py
    gc.enable()
    with Server(os.environ[ADDRESS], Caller) as door:
        print("ready", flush=True)
        door.serve_forever()


def run(rank: int, port: str, *, number: int, words: list[str], cwd: str, files: list[str], environment: dict) -> int:
    """Turn this forked process into the script, or a worker; return the exit code that Python would end with."""
    signal.alarm(LIMIT if number else 0)
    for stream, file in enumerate(files, 1):
        os.dup2(os.open(file, os.O_CREAT | os.O_WRONLY | os.O_APPEND), stream)
    os.chdir(cwd)
    os.environ.clear()
    os.environ |= environment
    if number > 1:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(number)}
        os.environ |= {"LOCAL_WORLD_SIZE": str(number), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    sys.argv = words
    sys.path[0] = str(Path(words[0]).parent)
    code: object = None
    try:
        if number:
            runpy.run_path(words[0], run_name="__main__")
        else:
            sys.modules["__main__"] = types.ModuleType("__main__")
            exec(words[-1], vars(sys.modules["__main__"]))
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        traceback.print_exc()
        code = 1
    if not isinstance(code, int | None):
        print(code, file=sys.stderr)
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return code or 0


if __name__ == "__main__":
    sys.exit(worker() if sys.argv[1:] else serve())
