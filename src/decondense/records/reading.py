"""A file as its record, whichever it is, and where the files lie. Files of version 1 are read too."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ..files import read_json
from .base import Damaged, Record, Section
from .evaluation import Evaluation, Outcomes, Significance
from .measurement import Comparison, Measured, Measurement, in_short
from .study import Study
from .training import Training

KINDS: tuple[type[Record], ...] = (
    Study, Significance, Training, Comparison, Measurement, Evaluation, Outcomes, Measured,
)  # fmt: skip
BY_SCHEMA = {schema: kind for kind in KINDS for schema in kind.reads}


def parse(content: Any, name: str = "result.json", folder: Path | None = None) -> Record:
    """Content of a JSON file as its record. `name` is what the sentence calls the file; `folder` is where other files
    that it refers to lie, which version 1 of a training run needs."""
    schema = content.get("schema") if isinstance(content, dict) else None
    if not isinstance(schema, str):
        raise Damaged(f"{name} names no schema: it is not a result of decondense.")
    if schema not in BY_SCHEMA:
        raise Damaged(f"{name} has the schema {schema[:80]!r}, which this version does not read.")
    if schema in UPGRADES:
        content = UPGRADES[schema](content, folder)
    try:
        return BY_SCHEMA[schema].model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "content"
        raise Damaged(
            f"{name} is damaged: {where}: {first['msg'].lower()}, which the schema {schema!r} does not allow; make the "
            "result again, or leave it out."
        ) from None


def read(path: str | os.PathLike[str]) -> Record:
    """The record in a file, or in the result.json of a folder."""
    target = Path(path)
    if target.is_dir():
        target = target / "result.json"
    try:
        content = read_json(target)
    except FileNotFoundError:
        raise FileNotFoundError(f"no result at {str(path)!r}: give result.json or the folder that holds it.") from None
    except ValueError as error:
        raise Damaged(str(error)) from error
    return parse(content, str(target), target.parent)


def _upgrade_training(content: Section, folder: Path | None) -> Section:
    """Version 1 named the files of its snapshots and had none of their numbers."""
    root = (folder or Path()).resolve()
    entries, snapshots = content.get("snapshots"), []
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        return content  # the schema says what is wrong
    for entry in entries:
        path = (root / str(entry.get("file")).replace("\0", "")).resolve()
        if not path.is_relative_to(root) or path == root / "result.json":
            raise Damaged(f"the snapshot {entry.get('file')!r} is the run itself or lies outside the run folder.")
        whole = read(path)
        if not isinstance(whole, Measurement):
            raise Damaged(f"the snapshot {path.name} is a {whole.kind} and no measurement: put the right file there.")
        snapshots.append(in_short(whole, histogram=True).model_dump() | entry)
    text = content.get("text", [])
    return content | {"snapshots": snapshots, "text": [text] if isinstance(text, dict) else text}


def _upgrade_study(content: Section, folder: Path | None) -> Section:
    """Version 1 rested on piece files, which this version does not read: its numbers stand, its charts do not."""
    return {key: value for key, value in content.items() if key != "pieces"} | {"runs": []}


UPGRADES = {"decondense.train/1": _upgrade_training, "decondense.study/1": _upgrade_study}


def find(places: Sequence[str | os.PathLike[str]]) -> Iterator[tuple[Path, str]]:
    """(path, name to show) of every result.json in and below the folders, or of the files themselves, each once, in a
    fixed order. Hidden folders and links to folders are not entered."""
    seen: set[Path] = set()
    for place in map(Path, places):
        if not place.exists():
            raise FileNotFoundError(f"no folder at {str(place)!r}: give folders that hold results (result.json).")
        for path, name in _files(place):
            if path.resolve() not in seen:
                seen.add(path.resolve())
                yield path, name


def _files(place: Path) -> Iterator[tuple[Path, str]]:
    if place.is_file():
        yield place, place.resolve().parent.name if place.name == "result.json" else place.name
        return
    root = place.resolve().name or "results"
    for where, folders, files in os.walk(place):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if "result.json" in files:
            yield Path(where) / "result.json", (Path(root) / Path(where).relative_to(place)).as_posix()
