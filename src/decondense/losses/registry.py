"""Which losses there are. A loss is one file with one registered function; the rest follows from the registration.

    @register("1 minus something", source="rival", reference="Somebody 2030, arXiv 3001.00001")
    def my_loss(z, mask=None, *, tau=1.0, reduction="mean"): ...

is enough for `losses.my_loss`, `losses.get("my_loss")`, recipes and the command line, the study of variants, and the
table in docs/method.md. Files in this folder are found by themselves; any other module registers when it is imported.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch import Tensor

from .options import check_choice

SOURCES = {"paper": "the paper", "released": "its released code", "rival": "the literature"}
Function = TypeVar("Function", bound=Callable[..., Tensor])


@dataclass(frozen=True)
class Entry:
    """A registered loss.

    function   of z (batch, tokens, width), mask (batch, tokens) and keywords, `reduction` among them: a scalar
    about      what it is, in one line, for the table of the documents
    source     "paper", "released" or "rival"
    reference  where it was published
    presets    keywords under the name of a preset (`presets.PRESETS`)
    layers     the same for many layers at once, if that is cheaper: (states, masks, **keywords) → values and mean
               cosines, each (layers, batch), the second None where unknown
    """

    function: Callable[..., Tensor]
    about: str
    source: str
    reference: str
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    layers: Callable[..., tuple[Tensor, Tensor | None]] | None = None

    @property
    def name(self) -> str:
        return self.function.__name__

    @property
    def options(self) -> list[str]:
        return [name for name in inspect.signature(self.function).parameters if name not in ("z", "mask")]


_entries: dict[str, Entry] = {}


def register(about: str, *, source: str, reference: str, **rest: Any) -> Callable[[Function], Function]:
    """Decorator: the function below is a loss. Arguments as in `Entry`."""
    check_choice("source", source, SOURCES)

    def add(function: Function) -> Function:
        entry = Entry(function, about, source, reference, **rest)
        other = _entries.get(entry.name)
        if other is not None and other.function.__module__ != function.__module__:
            raise ValueError(
                f"a loss must have a name of its own, got a second {entry.name!r} in {function.__module__} beside "
                f"{other.function.__module__}: rename the function."
            )
        _entries[entry.name] = entry
        return function

    return add


def registered(source: str | None = None) -> dict[str, Entry]:
    """The losses by name, those of the paper first; or those of one source."""
    order = list(SOURCES)
    names = sorted(_entries, key=lambda name: (order.index(_entries[name].source), name != "dispersion", name))
    return {name: _entries[name] for name in names if source in (None, _entries[name].source)}


def table() -> str:
    """The losses as a table in Markdown, for docs/method.md."""
    lines = ["| loss | what it is | from | presets |", "| --- | --- | --- | --- |"]
    for name, entry in registered().items():
        presets = ", ".join(entry.presets) or "–"
        lines.append(f"| `{name}` | {entry.about} | {SOURCES[entry.source]}: {entry.reference} | {presets} |")
    return "\n".join(lines) + "\n"
