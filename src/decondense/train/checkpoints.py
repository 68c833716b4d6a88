"""Which checkpoints are whole.

Trainer writes a checkpoint in place, so a run that is killed while writing leaves half of one. A marker is written
when everything else is on disk, and a run is resumed only from a checkpoint that has it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

__all__ = ["MARKER", "last_complete_checkpoint", "mark", "marked", "where_it_goes_on"]

MARKER = "complete.json"


def mark(folder: Path, **content: Any) -> None:
    """The checkpoint is whole: say so, with what Trainer does not keep."""
    for file in folder.rglob("*"):
        if file.is_file():
            _sync(file)
    temporary = folder / f".{MARKER}"
    temporary.write_text(json.dumps(content) + "\n", encoding="utf-8")
    _sync(temporary)
    temporary.replace(folder / MARKER)
    _sync(folder)
    _sync(folder.parent)


def marked(folder: Path) -> dict[str, Any]:
    """What the marker says."""
    return json.loads((folder / MARKER).read_text(encoding="utf-8"))


def last_complete_checkpoint(folder: Path, *, remove_others: bool = False) -> Path | None:
    """The latest checkpoint with a marker.

    A resumed run removes the others: half-written ones are of no use, and an older one may be half deleted with its
    marker still there, if the run was killed while Trainer made room.
    """
    folders = {int(m[1]): p for p in folder.glob("checkpoint-*") if (m := re.fullmatch(r"checkpoint-(\d+)", p.name))}
    complete = [step for step, path in folders.items() if (path / MARKER).is_file()]
    last = folders[max(complete)] if complete else None
    if remove_others:
        for path in folders.values():
            if path != last:
                shutil.rmtree(path, ignore_errors=True)
    return last


def where_it_goes_on(folder: Path) -> str:
    """What `--resume` would do, for a sentence that proposes it."""
    last = last_complete_checkpoint(folder)
    return "starts from step 0: there is no checkpoint yet" if last is None else f"continues from {last.name}"


def _sync(path: Path) -> None:
    """On disk before the run goes on. Windows opens no folder, and flushes only what is open for writing."""
    windows = os.name == "nt"
    if windows and path.is_dir():
        return
    handle = os.open(path, os.O_RDWR if windows else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
