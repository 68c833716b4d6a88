"""What an evaluation has done so far, so that it can resume after an interruption. Damaged parts are done again."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..files import write_text
from ..records import Damaged
from .items import Item, read_items, write_items


class Journal:
    """Finished batches in a file, a line each: a checksum and [stage, batch, answers] in JSON. A line that a crash cut
    short, or that is damaged, is ignored. Without a path nothing is kept."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.done: dict[tuple[str, int], list[tuple[float, bool]]] = {}
        lines = path.read_bytes().split(b"\n") if path is not None and path.exists() else []
        for checksum, _, line in (line.partition(b" ") for line in lines):
            if line and checksum == b"%08x" % zlib.crc32(line):
                stage, batch, answers = json.loads(line)
                self.done[stage, batch] = [(value, bool(greedy)) for value, greedy in answers]

    def add(self, stage: str, batch: int, answers: Sequence[tuple[float, bool]]) -> None:
        if self.path is None:
            return
        self.done[stage, batch] = list(answers)
        line = json.dumps([stage, batch, [[value, int(greedy)] for value, greedy in answers]]).encode()
        with self.path.open("ab") as file:
            # a leading newline ends whatever a crash left on the last line
            file.write(b"\n%08x %b" % (zlib.crc32(line), line))
            file.flush()
            os.fsync(file.fileno())


class Parts:
    """``partial/``: finished benchmarks as parquet, the batches of the current one as JSON lines, and the settings
    they belong to. The folder is emptied if it belongs to other settings. The list of benchmarks is not among these, so
    that one that cannot be scored may be left out; a benchmark on other data counts as another one."""

    def __init__(self, folder: Path | None, settings: dict[str, Any]) -> None:
        self.folder = folder
        if folder is None:
            return
        stamp = json.dumps(settings, sort_keys=True, default=str)
        file = folder / "settings.json"
        if folder.exists() and (not file.exists() or file.read_bytes() != stamp.encode()):
            shutil.rmtree(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_text(file, stamp)

    def journal(self) -> Journal:
        return Journal(None if self.folder is None else self.folder / "batches.jsonl")

    def finished(self, name: str, data: Any) -> list[Item] | None:
        """The items of a benchmark that was scored on ``data``, the files and times it was read from."""
        file = self._file(name, data)
        try:
            return read_items(file) if file is not None else None
        except (FileNotFoundError, Damaged):
            return None

    def keep(self, name: str, data: Any, items: list[Item]) -> None:
        file = self._file(name, data)
        if file is not None:
            write_items(file, items)

    def _file(self, name: str, data: Any) -> Path | None:
        digest = hashlib.sha256(json.dumps(data, default=str).encode()).hexdigest()[:12]
        return None if self.folder is None else self.folder / f"{name}-{digest}.parquet"
