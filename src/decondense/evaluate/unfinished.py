"""What an evaluation has done so far, so that it can go on after an interruption."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

from ..files import write_text
from .items import Item, read_items, write_items

__all__ = ["Parts"]


class Parts:
    """``partial/``: finished benchmarks as parquet, the batches of the current one as JSON lines, and the settings
    they belong to. Anything that belongs to other settings is thrown away. Which benchmarks are wanted is no such
    setting, so that one that cannot be scored may be left out; a benchmark on other data is another one."""

    def __init__(self, folder: Path | None, settings: dict[str, Any]) -> None:
        self.folder = folder
        if folder is None:
            return
        stamp = json.dumps(settings, sort_keys=True, default=str)
        if folder.exists():
            file = folder / "settings.json"
            if not file.exists() or file.read_text(encoding="utf-8") != stamp:
                shutil.rmtree(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / "settings.json", stamp)

    def journal(self) -> Any:
        from .scorer import Journal

        return None if self.folder is None else Journal(self.folder / "batches.jsonl")

    def finished(self, name: str, data: Any) -> list[Item] | None:
        """The items of a benchmark that was scored on ``data``, the files and times it was read from."""
        file = self._file(name, data)
        return read_items(file) if file is not None and file.exists() else None

    def keep(self, name: str, data: Any, items: list[Item]) -> None:
        file = self._file(name, data)
        if file is not None:
            write_items(file, items)

    def _file(self, name: str, data: Any) -> Path | None:
        digest = hashlib.sha256(json.dumps(data, default=str).encode()).hexdigest()[:12]
        return None if self.folder is None else self.folder / f"{name}-{digest}.parquet"
