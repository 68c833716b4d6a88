"""The run folder: one run at a time, one recipe for its whole life.

RUN/recipe.yaml        the recipe in full, written when training begins
RUN/checkpoints/       Trainer's checkpoints; those with complete.json can be resumed from
RUN/snapshots/         the meter at step 0 and at the steps of the recipe (`decondense.load` reads them)
RUN/model/             the trained model, with a card that says how it was made
RUN/result.json        what came out: losses, held-out loss, snapshots, speed; written last
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from ..files import write_text
from .recipe import Recipe, recipe_from

__all__ = ["begin", "check_recipe", "finished", "first_process", "owned", "process_count"]

# A resumed run may change these: they say how fast and where, or how much is told, not what is computed.
FREE = ("micro_batch", "device", "report_to", "on_nan", "keep", "compile", "fused_loss", "checkpointing")


def first_process() -> bool:
    """Under torchrun or accelerate only the first process writes."""
    return os.environ.get("RANK", "0") == "0"


def process_count() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


@contextlib.contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Nobody else works in the folder meanwhile. The system drops the lock when the process ends, however it ends.

    Folders that were made for this and stayed empty are removed again.
    """
    if not first_process():
        yield
        return
    made = [p for p in (folder, *folder.parents) if not p.exists()]
    lock = folder / ".lock"
    try:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            handle = _locked(lock)
        except OSError as error:
            raise OSError(
                f"the run folder {str(folder)!r} must be writable: {(error.strerror or str(error)).lower()}; "
                "choose another with --out."
            ) from None
        if handle is None:
            raise ValueError(
                f"the run folder {str(folder)!r} is in use by another process: wait for it, or choose another with "
                "--out."
            )
        with handle:
            try:
                yield
            finally:
                lock.unlink(missing_ok=True)
    finally:
        for path in (folder / "checkpoints", *made):  # nothing came of it
            with contextlib.suppress(OSError):
                path.rmdir()


def _locked(lock: Path) -> Any:
    """The open lock file, or None when another process holds it."""
    while True:
        handle = lock.open("w")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.close()
            return None
        except OSError:
            return handle  # a file system without locks
        # The last owner may have removed the file between our opening and our locking it.
        with contextlib.suppress(FileNotFoundError):
            if os.fstat(handle.fileno()).st_ino == lock.stat().st_ino:
                return handle
        handle.close()


def finished(folder: Path) -> dict[str, Any] | None:
    """The record of a run that came to its end."""
    file = folder / "result.json"
    return json.loads(file.read_text()) if file.is_file() else None


def check_recipe(folder: Path, recipe: Recipe, *, resume: bool) -> bool:
    """Whether the folder holds a run to go on with. Another recipe, or a run where none is expected, is an error."""
    file = folder / "recipe.yaml"
    if not resume:
        # Only the first process: the others may see what that one has written just now.
        if first_process() and (file.is_file() or (folder / "result.json").is_file()):
            raise ValueError(
                f"{str(folder)!r} already holds a run: add --resume to continue it, or choose another folder with "
                "--out."
            )
        return False
    if not file.is_file():
        return False
    content = yaml.safe_load(file.read_text())
    with contextlib.suppress(ValueError):  # written by an older version, it lacks what has come since
        content = recipe_from(content).model_dump(mode="json")
    before, now = _flat(content), _flat(recipe.model_dump(mode="json"))
    for key in sorted(before.keys() | now.keys()):
        if before.get(key) != now.get(key) and key.removeprefix("train.") not in FREE:
            raise ValueError(
                f"a run must be resumed with the recipe it was started with, but {key} was {before.get(key)!r} and is "
                f"{now.get(key)!r}: use {str(file)!r}, or start in another folder."
            )
    return True


def _flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(tree, dict) or not tree:
        return {prefix.rstrip("."): tree}
    return {k: v for key, value in tree.items() for k, v in _flat(value, f"{prefix}{key}.").items()}


@contextlib.contextmanager
def begin(folder: Path, recipe: Recipe) -> Iterator[None]:
    """The recipe is written when training begins, and a disk that becomes full is one sentence."""
    try:
        if first_process():
            write_text(folder / "recipe.yaml", recipe.to_yaml())
        yield
    except Exception as error:
        if not _disk_full(error):
            raise
        raise OSError(
            f"the disk became full while writing into {str(folder)!r}: free some space and repeat with --resume."
        ) from None


def _disk_full(error: BaseException) -> bool:
    """safetensors and torch.save have their own words for it."""
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return True
    words = ("No space left", "os error 28", "code: 28", "PytorchStreamWriter failed", "inline_container.cc")
    return any(word in str(error) for word in words)
