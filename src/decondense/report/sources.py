"""Result folders on disk: which there are, of which kind, and what lies beside ``result.json``."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

__all__ = ["BROKEN", "KINDS", "Skipped", "Source", "find", "read_json"]

BROKEN = (KeyError, IndexError, TypeError, ValueError, AttributeError, ZeroDivisionError, OverflowError)
"""What is raised by content that is not what its schema says."""

SCHEMAS = {
    "decondense.study/1": "study",
    "decondense.significance/1": "significance",
    "decondense.train/1": "training",
    "decondense.comparison/1": "comparison",
    "decondense.condensation/2": "measurement",
    "decondense.condensation/1": "measurement",
    "decondense.evaluation/1": "evaluation",
}
KINDS = tuple(SCHEMAS.values())
"""In the order of the page: what was concluded stands before what it was concluded from."""


@dataclass(frozen=True)
class Source:
    """A result: ``folder`` is the name to show (the folder that was asked for and the path below it)."""

    kind: str
    folder: str
    path: Path
    record: dict[str, Any]
    config: dict[str, Any] | None = None
    run: dict[str, Any] | None = None


@dataclass(frozen=True)
class Skipped:
    folder: str
    reason: str


def find(places: Sequence[str | os.PathLike[str]]) -> tuple[list[Source], list[Skipped]]:
    """Every ``result.json`` in and below the given folders (or the files themselves), in a fixed order.

    Hidden folders and links to folders are not entered. What cannot be read is returned as skipped, with the reason.
    """
    found: list[Source] = []
    skipped: list[Skipped] = []
    seen: set[Path] = set()
    for place in places:
        for path, folder in _files(Path(place)):
            real = path.resolve()
            if real in seen:
                continue
            seen.add(real)
            try:
                found.append(_recognise(path, folder))
            except (ValueError, OSError) as error:
                skipped.append(Skipped(folder, " ".join(str(error).split())))
    return found, skipped


def _files(place: Path) -> Iterator[tuple[Path, str]]:
    if place.is_file():
        yield place, f"{place.resolve().parent.name}" if place.name == "result.json" else place.name
        return
    if not place.is_dir():
        raise FileNotFoundError(f"no folder at {str(place)!r}: give folders that hold results (result.json).")
    root = place.resolve().name or "results"
    for where, folders, files in os.walk(place):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if "result.json" in files:
            yield Path(where) / "result.json", (Path(root) / Path(where).relative_to(place)).as_posix()


def _recognise(path: Path, folder: str) -> Source:
    record = read_json(path)
    if not isinstance(record, dict) or not isinstance(record.get("schema"), str):
        raise ValueError("result.json names no schema: it is not a result of decondense.")
    kind = SCHEMAS.get(record["schema"])
    if kind is None:
        raise ValueError(f"result.json has the schema {record['schema'][:80]!r}, which this version does not read.")
    return Source(kind, folder, path, record, _yaml(path.parent / "config.yaml"), _optional(path.parent / "run.json"))


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path.name} could not be read: {(error.strerror or str(error)).lower()}.") from error
    except RecursionError as error:
        raise ValueError(f"{path.name} is nested too deeply to be a result.") from error
    except ValueError as error:
        raise ValueError(f"{path.name} is not valid JSON: {error}.") from error


def _optional(path: Path) -> dict[str, Any] | None:
    """What lies beside a result helps, but a result stands without it."""
    try:
        value = read_json(path)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _yaml(path: Path) -> dict[str, Any] | None:
    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return None
    return value if isinstance(value, dict) else None
