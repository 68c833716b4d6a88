"""A claim: verdict, table, and the runs it rests on."""

from __future__ import annotations

from typing import Any

from pydantic import model_validator

from .base import Part, Record, Section, Words


class Table(Part):
    columns: list[str]
    rows: list[list[Any]]

    @model_validator(mode="after")
    def _width(self) -> Table:
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError(f"every row must have {len(self.columns)} values, as there are columns")
        return self


class Shown(Part):
    """Where a page shows a study: the path in `estimate` to the number that it is about, empty where that is not one
    number, with words for it, and the title of the panel that is open, "picture" for the study's own figure."""

    words: str = ""
    path: tuple[str, ...] = ()
    panel: str = "picture"


class Study(Record, reads=("decondense.study/2",)):
    """`runs` are the folders below runs/ that the result rests on; `headline` says what decided the verdict."""

    study: Words
    claim: Words
    question: str
    criterion: str
    scale: str
    verdict: Words
    headline: Words
    sentence: Words
    command: str
    hardware: str
    table: Table
    figures: list[str]
    config: Section
    runs: list[str]
    estimate: Section
    versions: dict[str, str]
    shown: Shown | None = None

    @model_validator(mode="after")
    def _shown_is_there(self) -> Study:
        """An arm that was not run may be missing, but not the number itself, where there are any."""
        if self.estimate and self.shown is not None and not self.estimate.keys() >= {*self.shown.path[:1]}:
            raise ValueError(f"shown names {self.shown.path[0]!r}, which is not in estimate")
        return self

    def lines(self) -> list[Section]:
        return [dict(zip(self.table.columns, row)) for row in self.table.rows]
