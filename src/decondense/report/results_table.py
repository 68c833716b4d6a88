"""The Markdown table of all studies, and its place in a README."""

from __future__ import annotations

import html
import os
from collections.abc import Sequence
from pathlib import Path

from .sections import sentence_of
from .sources import Skipped, Source, find

__all__ = ["BEGIN", "END", "insert_table", "results_table"]

BEGIN, END = "<!-- results -->", "<!-- end results -->"
COLUMNS = ("study", "claim", "verdict", "sentence", "hardware", "folder")
NEEDED = ("study", "claim", "verdict", "sentence")


def results_table(
    places: Sequence[str | os.PathLike[str]], *, base: str | os.PathLike[str] | None = None
) -> tuple[str, list[Skipped]]:
    """One line per study in and below ``places``, in the order of claim and name; folders relative to ``base``
    (default the current folder) are links.

    Returns:
        the table, and what was left out with the reason.
    """
    sources, skipped = find(places)
    studies = []
    for source in sources:
        if source.kind != "study":
            continue
        lacking = [key for key in NEEDED if key not in source.record]
        if lacking:
            skipped.append(Skipped(source.folder, f"result.json lacks {', '.join(lacking)}."))
        else:
            studies.append(source)
    if not studies:
        listed = ", ".join(repr(str(place)) for place in places)
        raise ValueError(f"no study in {listed}: give folders that `decondense study` wrote.")
    studies.sort(key=lambda s: (str(s.record["claim"]), str(s.record["study"]), s.folder))
    root = Path(base if base is not None else ".").resolve()
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    for source in studies:
        record = source.record
        words = (
            record["study"],
            record["claim"],
            record["verdict"],
            sentence_of(record),
            record.get("hardware") or "–",
        )
        cells = [*(_cell(word) for word in words), _link(source, root)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n", skipped


def _cell(value: object) -> str:
    """One line of text: no bar ends the cell, no tag begins."""
    return html.escape(" ".join(str(value).split()), quote=False).replace("|", "\\|")


def _link(source: Source, root: Path) -> str:
    folder = source.path.resolve().parent
    if not folder.is_relative_to(root):
        return f"`{_cell(source.folder)}`"
    place = folder.relative_to(root).as_posix()
    return f"[{_cell(place)}]({place.replace(' ', '%20').replace('(', '%28').replace(')', '%29')})"


def insert_table(file: str | os.PathLike[str], places: Sequence[str | os.PathLike[str]]) -> tuple[str, list[Skipped]]:
    """The content of ``file`` with the table between its two markers, and what was left out. Writes nothing."""
    path = Path(file)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise FileNotFoundError(f"no file at {str(file)!r}: --readme names a file that exists.") from None
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ValueError(f"{str(file)!r} must hold {BEGIN} and, after it, {END}, once each: add both lines.")
    table, skipped = results_table(places, base=path.resolve().parent)
    head, rest = text.split(BEGIN)
    return f"{head}{BEGIN}\n{table}{END}{rest.split(END)[1]}", skipped
