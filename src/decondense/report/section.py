"""What the page is made of: sections with panels of charts, tables, pictures, and how each was made. Plain data."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

import yaml

from ..figures.chart import Chart
from ..files import read_json
from ..records import Damaged, Record, find, read
from ..words import cell, round_to

__all__ = ["Origin", "Panel", "Picture", "Section", "Skipped", "Source", "Table", "inside", "nothing", "read_sources"]

_FIGURES = re.compile(r"(?:[\d\s.,+\-−–\[\]%→±<e]|to|[kMB])*")
R = TypeVar("R", bound=Record, covariant=True)


@dataclass(frozen=True)
class Source(Generic[R]):
    """A result on disk: `folder` is the name to show (the folder that was asked for and the path below it); `config`
    and `run` are what config.yaml and run.json beside it say, if they are there."""

    folder: str
    path: Path
    record: R
    config: dict[str, Any] | None = None
    run: dict[str, Any] | None = None


@dataclass(frozen=True)
class Skipped:
    folder: str
    reason: str


def read_sources(places: Sequence[str | os.PathLike[str]]) -> tuple[list[Source[Any]], list[Skipped]]:
    """Every result in and below the places, and what could not be read, with the reason."""
    sources, skipped = [], []
    for path, folder in find(places):
        try:
            record = read(path)
        except (Damaged, OSError) as error:
            skipped.append(Skipped(folder, " ".join(str(error).replace(str(path), path.name).split())))
            continue
        config, run = _beside(path.parent / "config.yaml"), _beside(path.parent / "run.json")
        sources.append(Source(folder, path, record, config, run))
    return sources, skipped


def inside(folder: Path, name: str, folder_of: str) -> Path:
    """The file of that name in the folder; nothing from elsewhere is taken in."""
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise Damaged(f"it lies outside the {folder_of} folder.")
    return path


def _beside(path: Path) -> dict[str, Any] | None:
    """What lies beside a result helps, but a result stands without it."""
    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8")) if path.suffix == ".yaml" else read_json(path)
    except (OSError, ValueError, yaml.YAMLError):
        return None
    return value if isinstance(value, dict) else None


def nothing(what: str, places: Sequence[str | os.PathLike[str]], remedy: str, skipped: Sequence[Skipped]) -> ValueError:
    """There is nothing of that sort in the places; with the first reasons why."""
    listed = ", ".join(repr(str(place)) for place in places)
    why = "".join(f" Skipped {s.folder}: {s.reason}" for s in skipped[:3])
    return ValueError(f"no {what} in {listed}: give folders {remedy}.{why}")


@dataclass
class Table:
    """`rows` go into the CSV; `shown` is the same in words for people (by default made from `rows`)."""

    title: str
    columns: list[str]
    rows: list[list[Any]]
    shown: list[list[str]] | None = None
    heads: list[str] | None = None
    folded: bool = False
    note: str = ""

    @classmethod
    def of(cls, title: str, rows: Sequence[Mapping[str, Any]], **more: Any) -> Table:
        """Rows by name; the names of the first are the columns."""
        columns = list(rows[0]) if rows else []
        return cls(title, columns, [[round_to(row.get(name)) for name in columns] for row in rows], **more)

    @cached_property
    def cells(self) -> list[list[str]]:
        return self.shown if self.shown is not None else [[cell(value) for value in row] for row in self.rows]

    @property
    def header(self) -> list[str]:
        return self.heads if self.heads is not None else self.columns

    @cached_property
    def numeric(self) -> list[bool]:
        """Which of the shown columns are numbers, and so stand to the right."""
        cells = self.cells
        return [all(_FIGURES.fullmatch(row[i]) for row in cells if i < len(row)) for i in range(len(self.header))]


@dataclass
class Panel:
    """Charts that are looked at together, with the controls they share: `views` (radio buttons) and `steps`
    (a slider of that name; pairs of step and label)."""

    charts: list[Chart]
    title: str = ""
    note: str = ""
    views: list[tuple[str, str]] = field(default_factory=list)
    steps: list[tuple[int, str]] = field(default_factory=list)
    small: bool = False
    slider: str = "Training step"


@dataclass
class Picture:
    """An image file, in base64."""

    name: str
    alt: str
    data: str


@dataclass
class Origin:
    """How one result came about: folder, command, whole configuration, and the machine."""

    folder: str
    config: dict[str, Any]
    command: str | None = None
    remark: str = ""
    hardware: str | None = None
    title: str = ""
    facts: list[tuple[str, str]] = field(default_factory=list)


@dataclass
class Section:
    kind: str
    title: str
    verdict: str
    origins: list[Origin]
    badge: str = ""
    gloss: str = ""
    notes: list[str] = field(default_factory=list)
    panels: list[Panel] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    id: str = ""

    @property
    def lines(self) -> list[str]:
        """The verdict, a line for each arm of a training, and the first sentence of a long one by itself."""
        if self.kind == "training":
            return self.verdict.split("; ")
        head, dot, rest = self.verdict.partition(". ")
        return [head + ".", rest] if dot else [self.verdict]
