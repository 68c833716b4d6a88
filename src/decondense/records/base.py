"""What all records share: parts that forbid unknown fields, and the record, which is a whole file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from ..files import file_in, finite, pretty_json, write_text

Number = float | None
Density = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, lt=2**53)]  # what a browser can hold too
Words = Annotated[str, Field(pattern=r"\S")]  # not empty
Section = dict[str, Any]


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
    schema_: str = Field(alias="schema")

    def __init_subclass__(cls, reads: tuple[str, ...], **config: Any) -> None:
        super().__init_subclass__(**config)
        cls.kind, cls.reads = cls.__name__.lower(), reads

    def to_json(self) -> str:
        """The same numbers give the same bytes; fields that were never set are left out."""
        content = self.model_dump(mode="json", by_alias=True, exclude_unset=True)
        return pretty_json(finite(content))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write `path`, or `path`/result.json if it is a folder; folders are made."""
        target = file_in(path, "result.json")
        write_text(target, self.to_json())
        return target
