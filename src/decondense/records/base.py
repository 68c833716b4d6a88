"""What all records share: `Part`, which forbids unknown fields, `Record`, which is a whole file, and the reader."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..files import AnyPath, file_in, finite, mapping_in, pretty_json, read_json, write_text
from ..needs import need
from ..words import list_of, perhaps_beside, quoted

Number = float | None
Density = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, lt=2**53)]  # exact in a browser too
Words = Annotated[str, Field(pattern=r"\S")]  # not empty
Section = dict[str, Any]
REMEDY = "delete it and make the result again, or leave it out"
ORIGIN = ("config.yaml", "run.json")
FIGURES = ("heatmaps.png", "heatmaps.csv", "trend.png", "trend.csv", "curves.png", "curves.csv")
COMMANDS = {"measurement": "measure", "comparison": "compare", "evaluation": "evaluate"}  # as in their config.yaml
BESIDE: dict[str, tuple[str, ...]] = {
    "measurement": (
        *ORIGIN, "states.csv", "heatmap.png", "heatmap.csv", "heatmap_released.png", "heatmap_released.csv",
    ),
    "comparison": (*ORIGIN, *FIGURES),
    "evaluation": (*ORIGIN, "items.parquet", "partial"),
    "significance": ("table.md", "table.csv", "table.tex", "forest.png"),
    "training": (
        "recipe.yaml", "progress.json", "history.csv", "training.png", "model", "checkpoints/checkpoint-*",
        "snapshots/step-*.json", *(f"snapshots/{name}" for name in FIGURES),
    ),
    "study": (
        "config.yaml", "table.csv", "figure.png", "course.png", "curves.png", "budgets.png", "rates.png",
        "own-rates.png", "why-*.png",
    ),
}  # fmt: skip
"""Kind → what its command writes beside result.json: paths, or patterns of paths."""


def known(value: Number) -> float:
    """Return the number as a float, None as NaN."""
    return math.nan if value is None else float(value)


class Damaged(ValueError):
    """A file does not fit its schema. The message names the file, the field and the remedy."""


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class Open(Part):
    """A part that may have further fields beside those of its class."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())


class Record(Part):
    """A whole file. `kind` is its name for people; `reads` are the schemas that the class reads, newest first."""

    kind: ClassVar[str]
    reads: ClassVar[tuple[str, ...]]
    by_schema: ClassVar[dict[str, type[Record]]] = {}
    schema_: str = Field(alias="schema")

    def __init_subclass__(cls, reads: tuple[str, ...], **config: Any) -> None:
        super().__init_subclass__(**config)
        cls.kind, cls.reads = cls.__name__.lower(), reads
        Record.by_schema |= dict.fromkeys(reads, cls)

    def __repr__(self) -> str:
        """Show strings and numbers in full and lists and sections by length: pydantic's own repr fills screens."""
        parts = []
        for name, value in self:
            if isinstance(value, (list, dict)):
                parts += [f"{name}[{len(value)}]"] * bool(value)
            elif isinstance(value, (bool, int, float, str)) and name != "schema_":
                parts.append(f"{name}={quoted(value) if isinstance(value, str) else value}")
        return f"{type(self).__name__}({', '.join(parts)})"

    __str__ = __repr__

    def lines(self) -> list[Section]:
        """Return the result as a table, one row for each state, task, step or model."""
        raise NotImplementedError

    def to_pandas(self) -> Any:
        """Return `lines` as a pandas frame, columns named as in the file."""
        need("pandas", "a table")
        import pandas

        return pandas.DataFrame(self.lines())

    def to_json(self) -> str:
        """Return the file's content. The same numbers give the same bytes; fields that were never set are left out."""
        content = self.model_dump(mode="json", by_alias=True, exclude_unset=True)
        return pretty_json(finite(content))

    def save(self, path: AnyPath) -> Path:
        """Write `path`, or `path`/result.json if it is a folder; folders are made."""
        target = file_in(path, "result.json")
        write_text(target, self.to_json())
        return target


def parse(content: Any, name: str = "result.json") -> Record:
    """Turn the content of a JSON file into its record. `name` is what an error calls the file."""
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
        field = ".".join(map(str, first["loc"])) or "content"
        raise Damaged(
            f"{name} is damaged: {field}: {first['msg'].lower()}, which the schema {schema!r} does not allow; {REMEDY}."
        ) from None


def read(path: AnyPath) -> Record:
    """Read the record in a file, or in the result.json of a folder."""
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"path must be that of a result, got {path!r}: give result.json or the folder that holds it.")
    target = Path(path)
    if os.path.isdir(target):  # unlike Path.is_dir, False for a name that is too long
        target = target / "result.json"
    try:
        content = read_json(target, strict=True)
    except FileNotFoundError:
        raise FileNotFoundError(f"no result at {str(path)!r}: give result.json or the folder that holds it.") from None
    except ValueError as error:
        # A file that cannot be opened may be intact: do not advise to delete it.
        remedy = "" if isinstance(error.__cause__, OSError) else f"; {REMEDY}"
        raise Damaged(f"{str(error).removesuffix('.')}{remedy}.") from error
    return parse(content, str(target))


def check_folder(folder: Path, kind: str) -> None:
    """Refuse a folder that holds a result of another kind, whose files of the same names would be replaced."""
    found_kind, config = kind, folder / "config.yaml"
    if (folder / "recipe.yaml").is_file():  # unfinished trainings and studies count too
        found_kind = "training"
    elif config.is_file() and config.read_bytes().startswith(b"command: study\n"):
        found_kind = "study"
    if found_kind == kind and (folder / "result.json").is_file():
        found_kind = read(folder).kind
    if found_kind != kind:
        raise ValueError(
            f"{str(folder)!r} holds a{'n' * (found_kind[0] in 'aeiou')} {found_kind}: choose another folder with --out."
        )


def check_foreign(folder: Path, kind: str, remedy: str = "") -> None:
    """Refuse a folder without a result that has something by a name in `BESIDE`: it is somebody's, and a result of this
    `kind` would replace it. A config.yaml of its command says that it is not: the result was interrupted as it was
    written, or deleted. `remedy`: what helps apart from another folder."""
    unfinished = kind == "comparison" and any(folder.glob("results/*/result.json"))
    if unfinished or (folder / "result.json").exists():
        return
    if kind in COMMANDS and mapping_in(folder / "config.yaml").get("command") == COMMANDS[kind]:
        return
    paths = (path for pattern in BESIDE[kind] for path in folder.glob(pattern))
    if names := sorted(path.relative_to(folder).as_posix() for path in paths if not _may_be_replaced(path)):
        belong, them = ("belongs", "it") if len(names) == 1 else ("belong", "them")
        raise ValueError(
            f"{str(folder)!r} holds {list_of(names)}, which {belong} to no result and would be replaced: choose "
            f"another folder with --out{remedy and f', or replace {them} {remedy}'}."
        )


def _may_be_replaced(path: Path) -> bool:
    """Whether a path is an empty folder, or what an unfinished evaluation has left."""
    ours = path.name == "partial" and (path / "settings.json").is_file()
    return path.is_dir() and (ours or not any(path.iterdir()))


def find(places: Sequence[AnyPath]) -> Iterator[tuple[Path, str]]:
    """Yield (path, name to show) of every result.json in and below the folders, or of the files themselves, each once
    and in a fixed order. Hidden folders and links to folders are not entered."""
    seen: set[Path] = set()
    for place in map(Path, places):
        if not place.exists():
            hint = perhaps_beside(place)
            raise FileNotFoundError(f"no folder at {str(place)!r}: give folders that hold results (result.json){hint}")
        for path, name in _files(place):
            if path.resolve() not in seen:
                seen.add(path.resolve())
                yield path, name


def _files(place: Path) -> Iterator[tuple[Path, str]]:
    if place.is_file():
        yield place, place.resolve().parent.name if place.name == "result.json" else place.name
        return
    root = place.resolve().name or "results"
    for folder, folders, files in os.walk(place):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if "result.json" in files:
            yield Path(folder) / "result.json", (Path(root) / Path(folder).relative_to(place)).as_posix()
