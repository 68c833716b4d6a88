"""The run folder: one run at a time, one recipe for its whole life.

RUN/recipe.yaml        the recipe in full, written when training begins
RUN/checkpoints/       Trainer's checkpoints; those with complete.json are whole, and can be resumed from
RUN/snapshots/         the meter at step 0 and at the steps of the recipe (`decondense.load` reads them)
RUN/model/             the trained model, with a card that says how it was made
RUN/progress.json      the log so far, as result.json has it, while the run trains
RUN/result.json        what came out: losses, held-out loss, snapshots, speed; written last
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from ..files import (
    AnyPath,
    first_process,
    flat,
    look_writable,
    mapping_in,
    output_folder,
    sole_writer,
    writable,
    write_text,
)
from ..records import Training, check_folder, check_foreign, read
from .recipe import Recipe, read_yaml, recipe_from

# A resumed run may change these: they decide how fast and where it runs and what it reports, not what it computes.
FREE = ("micro_batch", "device", "report_to", "on_nan", "keep", "compile", "fused_loss", "checkpointing", "quantised")

LITTLE = 1 << 20  # bytes: a disk with less than this left is full
MARKER = "complete.json"
RUN_FOLDER = "run folder"


def process_count() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def sharded() -> bool:
    """Whether `accelerate launch` splits the weights over the processes (FSDP)."""
    return os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"


@contextlib.contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Make the folder and lock it against other processes; at the end remove subfolders that stayed empty."""
    if not first_process():
        yield
        return
    with output_folder(folder, RUN_FOLDER), sole_writer(folder, RUN_FOLDER):
        try:
            yield
        finally:
            for name in ("checkpoints", "snapshots"):
                with contextlib.suppress(OSError):
                    (folder / name).rmdir()


def finished(folder: Path) -> dict[str, Any] | None:
    """The record of a finished run; None where there is none."""
    check_folder(folder, "training")
    if not (folder / "result.json").is_file():
        return None
    return json.loads(read(folder).to_json())


def check_recipe(folder: Path, recipe: Recipe, *, resume: bool) -> bool:
    """Whether the folder holds a run to go on with. Another recipe, a run where none is expected, or, where there is
    none, what is not of a run, is an error."""
    file = folder / "recipe.yaml"
    if first_process() and not _of_a_run(folder):  # the others may see what the first has just written
        check_foreign(folder, "training")
    if not resume:
        # Only the first process checks: the others may see what it has just written.
        if first_process() and (file.is_file() or (folder / "result.json").is_file()):
            raise ValueError(
                f"{str(folder)!r} already holds a run: add --resume to go on, or choose another with --out."
            )
        return False
    if not file.is_file():
        return False
    content = read_yaml(file)
    with contextlib.suppress(ValueError):  # fills in keys newer than the version that wrote it
        content = recipe_from(content).model_dump(mode="json")
    before, now = flat(content), flat(recipe.model_dump(mode="json"))
    for key in sorted(before.keys() | now.keys()):
        if before.get(key) != now.get(key) and key.removeprefix("train.") not in FREE:
            raise ValueError(
                f"a run must be resumed with the recipe it was started with, but {key} was {before.get(key)!r} and is "
                f"{now.get(key)!r}: use {str(file)!r}, or start in another folder."
            )
    return True


def _of_a_run(folder: Path) -> bool:
    """Whether recipe.yaml is that of a run and not somebody's own. Beside a run's lies what only a run writes, or,
    before it has written anything else, no model; and it has every section."""
    file = folder / "recipe.yaml"
    if not file.is_file():
        return False
    written = (folder / "result.json").is_file() or any(folder.glob(f"checkpoints/checkpoint-*/{MARKER}"))
    if written or mapping_in(folder / "progress.json").get("schema") in Training.reads:
        return True
    try:
        whole = set(Recipe.model_fields) <= read_yaml(file).keys()
    except ValueError:
        return False
    return whole and ((folder / "history.csv").is_file() or not (folder / "model").exists())


def check_contents(checkpoint: Path | None, recipe: Recipe, cache: AnyPath | None) -> None:
    """Refuse to resume from a checkpoint with a text whose content has changed: the recipe knows only its path.
    Checkpoints of older versions do not know the content either, and are accepted."""
    if checkpoint is None:
        return
    from .mixture import contents  # imports torch, which a list of studies need not wait for
    from .token_files import token_folder

    before = kept_in(checkpoint).get("texts", {})
    for name, content in contents(recipe, token_folder(cache)).items():
        if before.get(name, content) != content:
            raise ValueError(
                f"a run must be resumed with the texts it was started with, but {name!r} has changed since "
                f"{checkpoint.name}: restore the old text, or start in another folder."
            )


def would_go_on(folder: Path, recipe: Recipe, *, resume: bool, cache: AnyPath | None = None) -> str | None:
    """What training would do with the run in the folder, in words; None where it would begin a new one. A folder that
    training would refuse is refused with the same sentence, and nothing is written."""
    with writable(folder, RUN_FOLDER):
        look_writable(folder)
    record = finished(folder)
    begun = check_recipe(folder, recipe, resume=resume)
    if record is not None and resume:
        return f"{folder} is finished already"
    check_contents(last_complete_checkpoint(folder) if begun else None, recipe, cache)
    return f"it would go on in {folder} (--resume {where_it_goes_on(folder)})" if begun else None


@contextlib.contextmanager
def begin(folder: Path, recipe: Recipe, untrained: Callable[[], bool]) -> Iterator[None]:
    """Write the recipe as training begins, and report a full disk in one sentence. A run that ends while `untrained()`
    is true leaves nothing: there is nothing to resume, and the folder is free for a better recipe."""
    try:
        if first_process():
            write_text(folder / "recipe.yaml", recipe.to_yaml())
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        # safetensors and torch.save raise other errors when the disk is full, so the disk itself is asked
        full = isinstance(error, OSError) and error.errno == errno.ENOSPC
        if not full and shutil.disk_usage(folder).free > LITTLE:
            raise
        raise OSError(
            f"the disk became full while writing into {str(folder)!r}: free some space and repeat with --resume."
        ) from error
    finally:
        if first_process() and untrained():
            for name in ("recipe.yaml", "progress.json", "snapshots/step-000000.json"):
                with contextlib.suppress(OSError):  # an open file must not hide the error that ended the run
                    (folder / name).unlink()


# ---- checkpoints -------------------------------------------------------------------------------------------------


def mark(checkpoint: Path, **content: Any) -> None:
    """Mark a checkpoint as complete once everything is on disk, with what Trainer does not keep and a digest of it all.
    Trainer writes in place, so a run that is killed while writing leaves half a checkpoint, without a marker."""
    for file in checkpoint.rglob("*"):
        if file.is_file():
            _sync(file)
    write_text(checkpoint / MARKER, json.dumps(content | {"digest": _digest(checkpoint, content)}) + "\n")
    for path in (checkpoint / MARKER, checkpoint, checkpoint.parent):
        _sync(path)


def kept_in(checkpoint: Path) -> dict[str, Any]:
    """What `mark` was given, and the digest."""
    return json.loads((checkpoint / MARKER).read_text(encoding="utf-8"))


def complete(checkpoint: Path) -> bool:
    """Whether a checkpoint was marked, and has not changed since."""
    try:
        content = kept_in(checkpoint)
        return content.pop("digest") == _digest(checkpoint, content)
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        return False


def _digest(checkpoint: Path, content: dict[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(content).encode())
    for file in sorted(p for p in checkpoint.rglob("*") if p.is_file() and p.name != MARKER):
        with file.open("rb") as handle:
            own = hashlib.file_digest(handle, "sha256").hexdigest()
        digest.update(f"{file.relative_to(checkpoint)} {own}".encode())
    return digest.hexdigest()


def last_complete_checkpoint(run: Path) -> Path | None:
    """The latest complete checkpoint of a run, or None."""
    return next(filter(complete, _checkpoints(run)), None)


def remove_other_checkpoints(run: Path, last: Path | None) -> None:
    """Delete all checkpoints but `last`, once nothing can refuse the resumed run any more: half-written ones are of no
    use, and an older one may be half deleted, its marker still there, if the run was killed while Trainer made room."""
    for path in _checkpoints(run):
        if path != last:
            shutil.rmtree(path, ignore_errors=True)


def _checkpoints(run: Path) -> list[Path]:
    """The folders of checkpoints, the latest first."""
    folders = [p for p in (run / "checkpoints").glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", p.name)]
    return sorted(folders, key=lambda p: -int(p.name.partition("-")[2]))


def where_it_goes_on(run: Path) -> str:
    """What `--resume` would do, for a sentence that proposes it."""
    last = last_complete_checkpoint(run)
    return "starts from step 0: there is no checkpoint yet" if last is None else f"continues from {last.name}"


def _sync(path: Path) -> None:
    """Flush a file or folder to disk. Windows cannot open folders, and flushes only files open for writing."""
    windows = os.name == "nt"
    if windows and path.is_dir():
        return
    handle = os.open(path, os.O_RDWR if windows else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
