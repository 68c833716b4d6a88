"""What the page is made of: sections with panels of charts, tables, pictures, and how each was made. Plain data."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

from ..figures.chart import Chart
from ..files import AnyPath, mapping_in
from ..records import Damaged, Record, find, read
from ..words import cell, round_to
from .claims import Claim

_FIGURES = re.compile(r"(?:[\d\s.,+\-−–\[\]%→±<e]|to|[kMB])*")
R = TypeVar("R", bound=Record, covariant=True)
Places = Sequence[AnyPath]


@dataclass(frozen=True)
class Source(Generic[R]):
    """A result on disk: `folder` is the name to show (the folder that was asked for and the path below it); `config`
    and `run` are what config.yaml and run.json beside it say, if they are there."""

    folder: str
    path: Path
    record: R
    config: dict[str, Any] = field(default_factory=dict)
    run: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Skipped:
    folder: str
    reason: str


def read_sources(places: Places) -> tuple[list[Source[Any]], list[Skipped]]:
    """Read every result in and below the places; also return what could not be read, with the reason."""
    sources, skipped = [], []
    for path, folder in find(places):
        try:
            record = read(path)
        except (Damaged, OSError) as error:
            skipped.append(Skipped(folder, reason(error, path.parent)))
            continue
        beside = (mapping_in(path.parent / name) for name in ("config.yaml", "run.json"))
        sources.append(Source(folder, path, record, *beside))
    return sources, skipped


def reason(error: Exception, folder: Path) -> str:
    """Return an error's message on one line, without the path to the folder: pages are read on other machines."""
    return " ".join(str(error).replace(f"{folder}{os.sep}", "").split())


def inside(folder: Path, name: str, folder_of: str) -> Path:
    """Return the path of the named file in the folder; refuse a name that leads out of the folder."""
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise Damaged(f"it lies outside the {folder_of} folder.")
    return path


def brief(words: str, most: int = 110) -> tuple[str, str]:
    """Split words into (one line, the rest, behind "more"): after the first sentence or clause if they are too long."""
    clause = re.match(r"(.{12,}?)(; |\. )(.+)", words, re.DOTALL)
    return (clause[1] + ".", clause[3]) if clause and len(words) > most else (words, "")


def nothing(what: str, places: Places, remedy: str, skipped: Sequence[Skipped]) -> ValueError:
    """Return the error for places without `what`, with the first reasons why results were skipped."""
    listed = ", ".join(repr(str(place)) for place in places)
    why = "".join(f" Skipped {s.folder}: {s.reason}" for s in skipped[:3])
    return ValueError(f"no {what} in {listed}: give folders {remedy}.{why}")


@dataclass
class Table:
    """`rows` go into the CSV; `shown` are the same rows as text for people (by default made from `rows`)."""

    title: str
    columns: list[str]
    rows: list[list[Any]]
    shown: list[list[str]] | None = None
    heads: list[str] | None = None
    note: str = ""

    @classmethod
    def of(cls, title: str, rows: Sequence[Mapping[str, Any]], **more: Any) -> Table:
        """Make a table from rows by name; the names in the first row are the columns."""
        columns = list(rows[0]) if rows else []
        return cls(title, columns, [[round_to(row.get(name)) for name in columns] for row in rows], **more)

    @cached_property
    def cells(self) -> list[list[str]]:
        return self.shown if self.shown is not None else [[cell(value) for value in row] for row in self.rows]

    @cached_property
    def numeric(self) -> list[bool]:
        """Which of the shown columns hold only numbers, and so are right-aligned."""
        places = range(len(self.heads or self.columns))
        return [all(_FIGURES.fullmatch(row[i]) for row in self.cells) for i in places]


@dataclass
class Panel:
    """Charts that belong together, with the controls they share: `views` (radio buttons) and `steps`
    (a slider of that name; pairs of step and label)."""

    charts: list[Chart]
    title: str = ""
    note: str = ""
    views: list[tuple[str, str]] = field(default_factory=list)
    steps: list[tuple[int, str]] = field(default_factory=list)
    slider: str = "Training step"


@dataclass
class Picture:
    """An image file, in base64."""

    name: str
    alt: str
    data: str


@dataclass
class Depth:
    """A curve that can be compared with any other: the mean cosine of every state; `normed`: whether the last state
    is after a final norm."""

    name: str
    cosine: list[Any]
    normed: bool


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
    headline: str = ""
    clauses: Sequence[str] = ()
    """The parts of a verdict that is not to be split at its first sentence."""
    gloss: str = ""
    notes: list[str] = field(default_factory=list)
    panels: list[Panel] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    id: str = ""
    opened: Sequence[int] = (0,)
    """The panels that are open, while the others are folded; if there are none, the pictures are open."""
    claim: Claim | None = None
    depths: list[Depth] = field(default_factory=list)

    @property
    def word(self) -> str | None:
        """The verdict in a word, for studies and measurements; else None."""
        return self.badge or (self.verdict.partition(":")[0] if self.kind == "measurement" else None)

    @property
    def lines(self) -> tuple[str, list[str]]:
        """The verdict in one line, and the lines behind "more": the whole verdict if the one line is a headline, else
        the rest of it."""
        if self.clauses:
            return self.clauses[0], list(self.clauses[1:])
        head, rest = (self.headline, self.verdict) if self.headline else brief(self.verdict)
        return head, [rest] if rest else []
