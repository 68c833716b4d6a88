"""What the page is made of: sections with panels of charts, tables, pictures, and how each was made. Plain data."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

_FIGURES = re.compile(r"(?:[\d\s.,+\-−–\[\]%→±<e]|to|[kMB])*")

__all__ = [
    "Chart",
    "Frame",
    "Origin",
    "Panel",
    "Picture",
    "Section",
    "Table",
    "amount",
    "cell",
    "short",
    "slug",
    "span",
]


@dataclass
class Table:
    """``rows`` go into the CSV; ``shown`` is the same in words for people (by default made from ``rows``)."""

    title: str
    columns: list[str]
    rows: list[list[Any]]
    shown: list[list[str]] | None = None
    heads: list[str] | None = None
    folded: bool = False
    note: str = ""

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
class Frame:
    """One state of a chart: the traces for a view (pooled, released) at a step."""

    data: list[dict[str, Any]]
    view: str = ""
    step: int | None = None
    caption: str = ""


@dataclass
class Chart:
    title: str
    layout: dict[str, Any]
    frames: list[Frame]
    height: int = 380
    note: str = ""
    table: Table | None = None
    columns: dict[str, str] | None = None
    """Where the numbers of the CSV come from: ``table``, or fields of the traces and the names of their ``columns``;
    a heatmap is its own table."""


@dataclass
class Panel:
    """Charts that are looked at together, with the controls they share: ``views`` (radio buttons) and ``steps``
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


# -- numbers and words ---------------------------------------------------------------------------------------


def short(value: Any, digits: int = 6) -> float | int | None:
    """A number with ``digits`` significant digits; what is not finite becomes ``None``, which JSON can say."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value
    number = float(value)
    if not math.isfinite(number):
        return None
    number = float(f"{number:.{digits}g}")
    return int(number) if number == int(number) and abs(number) < 1e15 else number


def shorts(values: Iterable[Any], digits: int = 6) -> list[Any]:
    return [short(value, digits) for value in values]


def cell(value: Any) -> str:
    """A value in a table for people: four significant digits, a true minus sign."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}".replace("-", "−")
    if isinstance(value, float):
        if not math.isfinite(value):
            return "–"
        text = f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
        return text.replace("-", "−")
    if isinstance(value, (list, tuple)):
        return ", ".join(cell(v) for v in value)
    return str(value)


def span(value: Any, low: Any, high: Any, digits: int = 2) -> str:
    """ "0.82 [0.80, 0.83]"."""
    if value is None:
        return "–"
    text = f"{value:.{digits}f}"
    if low is not None and high is not None:
        text += f" [{low:.{digits}f}, {high:.{digits}f}]"
    return text.replace("-", "−")


def amount(number: float) -> str:
    """135M, 1.5B, 32.8k."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.0f}"


def slug(*words: str) -> str:
    """A file name out of words: letters, digits and dashes only."""
    name = "-".join(re.sub(r"[^A-Za-z0-9]+", "-", word).strip("-") for word in words)
    return re.sub(r"-+", "-", name).strip("-")[:80].lower() or "result"


def same(values: Sequence[Any]) -> bool:
    return all(value == values[0] for value in values)
