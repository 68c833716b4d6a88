"""What all records share: parts that forbid unknown fields, the record, which is a whole file, and its reader."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..files import AnyPath, file_in, finite, pretty_json, read_json, write_text
from ..needs import need
from ..words import perhaps_beside, quoted

Number = float | None
Density = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, lt=2**53)]  # what a browser can hold too
Words = Annotated[str, Field(pattern=r"\S")]  # not empty
Section = dict[str, Any]
REMEDY = "delete it and make the result again, or leave it out"


def known(value: Number) -> float:
    """NaN where there is none."""
    return math.nan if value is None else float(value)


class Damaged(ValueError):
    """A file is not what its schema says. The sentence names the file, the field and the remedy."""


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class Open(Part):
    """A part beside whose fields others may stand, under their own names."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())


class Record(Part):
    """A whole file. `kind` is its name for people, `reads` the schemas that this class reads, the newest first."""

    kind: ClassVar[str]
    reads: ClassVar[tuple[str, ...]]
    by_schema: ClassVar[dict[str, type[Record]]] = {}
    schema_: str = Field(alias="schema")

    def __init_subclass__(cls, reads: tuple[str, ...], **config: Any) -> None:
        super().__init_subclass__(**config)
        cls.kind, cls.reads = cls.__name__.lower(), reads
        Record.by_schema |= dict.fromkeys(reads, cls)

    def __repr__(self) -> str:
        """In short: words and numbers in full, of lists and sections the length; those of pydantic fill screens."""
        parts = []
        for name, value in self:
            if isinstance(value, (list, dict)):
                parts += [f"{name}[{len(value)}]"] * bool(value)
            elif isinstance(value, (bool, int, float, str)) and name != "schema_":
                parts.append(f"{name}={quoted(value) if isinstance(value, str) else value}")
        return f"{type(self).__name__}({', '.join(parts)})"

    __str__ = __repr__

    def lines(self) -> list[Section]:
        """The result as a table: a row for each state, task, step or model that it is about."""
        raise NotImplementedError

    def to_pandas(self) -> Any:
        """`lines` as a pandas frame, every number a column under the name it has in the file."""
        need("pandas", "a table")
        import pandas

        return pandas.DataFrame(self.lines())

    def to_json(self) -> str:
        """The same numbers give the same bytes; fields that were never set are left out."""
        content = self.model_dump(mode="json", by_alias=True, exclude_unset=True)
        return pretty_json(finite(content))

    def save(self, path: AnyPath) -> Path:
        """Write `path`, or `path`/result.json if it is a folder; folders are made."""
        target = file_in(path, "result.json")
        write_text(target, self.to_json())
        return target


def parse(content: Any, name: str = "result.json") -> Record:
    """Content of a JSON file as its record. `name` is what the sentence calls the file."""
    schema = content.get("schema") if isinstance(content, dict) else None
    if not isinstance(schema, str):
        raise Damaged(f"{name} names no schema: it is not a result of decondense.")
    if schema not in Record.by_schema:
        raise Damaged(
            f"{name} has the schema {schema[:80]!r}, which this version does not read: make it again, or take the "
            "version that wrote it."
        )
    try:
        return Record.by_schema[schema].model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "content"
        raise Damaged(
            f"{name} is damaged: {where}: {first['msg'].lower()}, which the schema {schema!r} does not allow; {REMEDY}."
        ) from None


def read(path: AnyPath) -> Record:
    """The record in a file, or in the result.json of a folder."""
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"path must be that of a result, got {path!r}: give result.json or the folder that holds it.")
    target = Path(path)
    if os.path.isdir(target):  # which Path.is_dir does not answer for a name that is too long
        target = target / "result.json"
    try:
        content = read_json(target)
    except FileNotFoundError:
        raise FileNotFoundError(f"no result at {str(path)!r}: give result.json or the folder that holds it.") from None
    except ValueError as error:
        # what cannot be opened may be whole
        remedy = "" if isinstance(error.__cause__, OSError) else f"; {REMEDY}"
        raise Damaged(f"{str(error).removesuffix('.')}{remedy}.") from error
    return parse(content, str(target))


def check_folder(folder: Path, kind: str) -> None:
    """A folder that holds a result of another kind is left alone: files of the same names would be replaced."""
    there, config = kind, folder / "config.yaml"
    if (folder / "recipe.yaml").is_file():  # a training or a study that is not finished, too
        there = "training"
    elif config.is_file() and config.read_bytes().startswith(b"command: study\n"):
        there = "study"
    if there == kind and (folder / "result.json").is_file():
        there = read(folder).kind
    if there != kind:
        raise ValueError(
            f"{str(folder)!r} holds a{'n' * (there[0] in 'aeiou')} {there}: choose another folder with --out."
        )


def find(places: Sequence[AnyPath]) -> Iterator[tuple[Path, str]]:
    """(path, name to show) of every result.json in and below the folders, or of the files themselves, each once, in a
    fixed order. Hidden folders and links to folders are not entered."""
    seen: set[Path] = set()
    for place in map(Path, places):
        if not place.exists():
            close = perhaps_beside(place)
            raise FileNotFoundError(f"no folder at {str(place)!r}: give folders that hold results (result.json){close}")
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
