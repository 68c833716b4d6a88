"""The pieces of a study as lines to draw: runs, and models that were measured.

Every number is checked when it is read. What a piece lacks is not there, a damaged number is left out, and a file that
cannot be read is named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from ..figures.measured import QUANTILES, histogram_quantiles
from .section import short
from .sources import BROKEN, Source, read_json

__all__ = ["Kept", "Line", "list_of", "read_lines", "table_of"]

T = TypeVar("T")


class Kept:
    """A measurement as ``studies.training.snapshot`` keeps it: mean cosine (states,) and, where it is to be drawn,
    ``histogram`` (states, bins), a density over [−1, 1]."""

    before_norm = None

    def __init__(self, content: Any) -> None:
        self.mean_cosine = np.array(content["mean_cosine"], dtype=np.float64)  # null is NaN, a gap in the curve
        if self.mean_cosine.ndim != 1 or len(self.mean_cosine) < 2:
            raise ValueError("mean_cosine must be one number for every state.")
        self.record = {"final_norm": bool(content.get("final_norm"))}
        self.layers = len(self.mean_cosine) - 1
        self.step = _whole(content.get("step"))
        self.tokens = _whole(content.get("tokens"))
        self.windows = _whole(content.get("windows"))
        (self.spearman,) = _floats([content.get("spearman")])
        self.name = ""
        drawn = content.get("histogram")
        self.histogram = np.zeros((0, 0)) if drawn is None else np.array(drawn, dtype=np.float64)

    @property
    def drawable(self) -> bool:
        values = self.histogram
        shaped = values.ndim == 2 and len(values) == self.layers + 1 and values.shape[1] > 0
        return bool(shaped and np.isfinite(values).all() and (values >= 0).all() and (values.sum(1) > 0).all())

    @property
    def quantiles(self) -> np.ndarray:
        counts = np.rint(1000 * self.histogram)  # linear inside a bin of 1/32: good enough for a dotted line
        return np.array([histogram_quantiles(row, QUANTILES) for row in counts])

    @property
    def cosine(self) -> float | None:
        """Mean cosine over all blocks: what the losses act on."""
        return short(self.mean_cosine[1:].mean())

    @property
    def words(self) -> str:
        return self.name or f"step {self.step:,}"


@dataclass
class Line:
    """One run, or one model that was measured. ``arm`` is shared with other seeds; ``key`` is how the settings call it;
    ``text`` is what it was measured on, where that differs."""

    arm: str
    key: str
    seed: int | None = None
    kept: list[Kept] = field(default_factory=list)
    curves: dict[str, tuple[list[Any], list[Any]]] = field(default_factory=dict)
    text: str = ""

    @property
    def label(self) -> str:
        return self.arm if self.seed is None else f"{self.arm}, seed {self.seed}"


def read_lines(source: Source) -> tuple[list[Line], list[str]]:
    """The runs and measurements of all pieces, in the order in which the settings name them, then by seed."""
    root = source.path.parent.resolve()
    given = source.record.get("pieces")
    names = given if isinstance(given, list) else []
    lines: list[Line] = []
    notes: list[str] = []
    missing = 0
    for name in names:
        try:
            path = (root / "pieces" / f"{name}.json").resolve()
            if not path.is_relative_to(root):
                raise ValueError("it lies outside the result folder.")
            if not path.is_file():
                missing += 1
                continue
            piece = read_json(path)
            lines += [*_trained(piece), *_measured(piece)]
        except (ValueError, OSError) as error:
            notes.append(f"the piece {name} could not be read and is not in the charts: {error}")
    if missing and lines:
        notes.append(f"{missing} of {len(names)} pieces are not there: the charts are without them.")
    order: dict[str, int] = {}
    for word in _strings(source.record.get("config")):
        order.setdefault(word, len(order))
    lines = _rows_of_checkpoints(lines)
    lines.sort(key=lambda line: (order.get(line.key, len(order)), line.seed or 0))
    several = len({line.arm for line in lines}) > 1
    for line in lines:
        if line.text:
            line.arm = f"{line.arm} on {line.text}" if several else line.text
    return lines, notes


def _trained(piece: dict[str, Any]) -> list[Line]:
    seed = _whole(table_of(piece, "what").get("seed"))
    lines = []
    for arm, run in table_of(piece, "runs").items():
        line = Line(arm, arm, seed)
        line.kept = [kept for kept in _those(Kept, list_of(run, "snapshots")) if kept.step is not None]
        line.kept.sort(key=lambda kept: kept.step or 0)
        curves = table_of(run, "curves")
        given = {name: [curves.get("step"), curves.get(name)] for name in ("task_loss", "penalty", "mean_cosine")}
        pairs = [pair for pair in list_of(run, "held_out") if isinstance(pair, list) and len(pair) == 2]
        given["held_out"] = [[pair[i] for pair in pairs] for i in (0, 1)]
        for name, columns in given.items():
            for curve in _those(_curve, [columns]):
                line.curves[name] = curve
        lines.append(line)
    return lines


def _measured(piece: dict[str, Any]) -> list[Line]:
    what = table_of(piece, "what")
    model = str(what.get("model", ""))
    lines = []
    for text, content in table_of(piece, "measurements").items():
        for kept in _those(Kept, [content]):
            lines.append(Line(model, text, kept=[kept], text=text))
    content = table_of(piece, "measurement")
    for kept in _those(Kept, [content]):
        name = str(content.get("model", model)) + (", distilled" if what.get("taught") is True else "")
        if what.get("revision") is not None:  # one of a row of checkpoints
            kept.name, kept.step, name = str(what["revision"]), _whole(what.get("place")), model
        lines.append(Line(name, model, kept=[kept]))
    return lines


def _rows_of_checkpoints(lines: Sequence[Line]) -> list[Line]:
    """The checkpoints of one model, each a piece of its own, as one line."""
    rows: dict[str, Line] = {}
    others = []
    for line in lines:
        if line.kept and line.kept[0].name and line.kept[0].step is not None:
            rows.setdefault(line.key, Line(line.arm, line.key)).kept += line.kept
        else:
            others.append(line)
    for row in rows.values():
        row.kept.sort(key=lambda kept: kept.step or 0)
    return [*rows.values(), *others]


def _those(make: Callable[[Any], T], contents: list[Any]) -> Iterator[T]:
    """What can be made of the contents; the rest is left out."""
    for content in contents:
        try:
            yield make(content)
        except BROKEN:
            continue


def table_of(content: Any, key: str) -> dict[str, Any]:
    value = content.get(key) if isinstance(content, dict) else None
    return value if isinstance(value, dict) else {}


def list_of(content: Any, key: str) -> list[Any]:
    value = content.get(key) if isinstance(content, dict) else None
    return value if isinstance(value, list) else []


def _curve(columns: list[Any]) -> tuple[list[Any], list[Any]]:
    steps, values = columns
    if len(steps) != len(values) or any(_whole(step) is None for step in steps):
        raise ValueError("a curve needs a whole step for every value.")
    return list(steps), _floats(values)


def _floats(values: list[Any]) -> list[Any]:
    return [None if value is None else short(float(value)) for value in values]


def _whole(value: Any) -> int | None:
    """Step, tokens, seed: a whole number that a browser can hold too."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else None


def _strings(value: Any) -> Iterator[str]:
    """Every name in the settings, in order."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield str(key)
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)
