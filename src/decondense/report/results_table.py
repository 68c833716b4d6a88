"""The Markdown tables of studies, and their places in a README.

<!-- results -->    one line per study that was run, with what decided its verdict, and below the table the hardware
<!-- verdicts -->   one line per known study, with its question and verdict; "undecided: not run" without a result
"""

from __future__ import annotations

import html
import os
from collections.abc import Sequence
from pathlib import Path

from ..files import AnyPath, grouped, told_apart
from ..records import Study
from .claims import parted
from .section import Places, Skipped, Source, nothing, read_sources
from .studies import sentence_of

COLUMNS = ("study", "claim", "verdict", "what decided it")
Known = Sequence[tuple[str, str, str]]
"""Name, claim and question of every study there is."""


def results_table(places: Places, *, base: AnyPath = ".") -> tuple[str, list[Skipped]]:
    """Return a table with one line per study in and below `places`, ordered by claim and name, and what was skipped
    with the reason. Folders in or beside `base` (default the current folder) are links."""
    studies, skipped = _studies(places)
    root = Path(base).resolve()
    names = _names(studies)
    rows = []
    hardware: dict[str, list[str]] = {}
    for source in studies:
        record, name = source.record, names[source.folder]
        cells = (record.claim, record.verdict, record.headline)
        rows.append([_link(source, root, name, far=source.folder), *(_cell(word) for word in cells)])
        hardware.setdefault(record.hardware or "not known", []).append(name)
    usual_hardware, *others = sorted(hardware, key=lambda one: -len(hardware[one]))
    others_note = "".join(f" {', '.join(hardware[one])}: {one}." for one in others)
    return f"{_markdown(COLUMNS, rows)}\n*Hardware: {_cell(usual_hardware + '.' + others_note)}*\n", skipped


def results_rows(places: Places) -> tuple[list[dict[str, str | None]], list[Skipped]]:
    """The same lines as a list of dictionaries, for programs."""
    studies, skipped = _studies(places)
    names = ("study", "claim", "question", "verdict", "hardware", "headline")
    rows = [
        {name: getattr(source.record, name) for name in names}
        | {"sentence": sentence_of(source.record), "folder": source.folder}
        for source in studies
    ]
    return rows, skipped


def verdicts_table(places: Places, *, known: Known, base: AnyPath) -> tuple[str, list[Skipped]]:
    """Return a table with every known study: its question, and one line with the verdict of each result in `places`."""
    studies, skipped = _studies(places)
    root, names = Path(base).resolve(), _names(studies)
    rows = []
    for name, claim, question in known:
        results = [source for source in studies if source.record.study == name]
        for source in results:
            both_verdicts = parted(source.record)
            verdict = f"{source.record.verdict} ({both_verdicts})" if both_verdicts else source.record.verdict
            rows.append([_link(source, root, names[source.folder]), _cell(claim), _cell(question), _cell(verdict)])
        if not results:
            rows.append([name, _cell(claim), _cell(question), "undecided: not run"])
    return _markdown(("study", "claim", "question", "verdict"), rows), skipped


def _studies(places: Places) -> tuple[list[Source[Study]], list[Skipped]]:
    sources, skipped = read_sources(places)
    studies = [source for source in sources if isinstance(source.record, Study)]
    if not studies:
        raise nothing("study", places, "that `decondense study` wrote", skipped)
    studies.sort(key=lambda source: (source.record.claim, source.record.study, source.folder))
    return studies, skipped


def _names(studies: Sequence[Source[Study]]) -> dict[str, str]:
    """Name each folder by its study or, if a study has several folders, by path endings that tell them apart."""
    return {
        folder: own if len(several) > 1 else study
        for study, several in grouped((source.record.study, source.folder) for source in studies).items()
        for folder, own in zip(several, told_apart(several))
    }


def _markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


def _cell(value: object) -> str:
    """Escape a value as one line of text, in which no bar ends the cell and no tag begins."""
    return html.escape(" ".join(str(value).split()), quote=False).replace("|", "\\|")


def _link(source: Source[Study], root: Path, words: str, *, far: str | None = None) -> str:
    """Link to a folder in `root` or beside it; for one elsewhere return `far` (or the words) without a link."""
    folder = source.path.resolve().parent
    place = Path(os.path.relpath(folder, root)).as_posix()
    if place.count("..") > 1:
        return f"`{_cell(far or words)}`"
    return f"[{_cell(words)}]({place.replace(' ', '%20').replace('(', '%28').replace(')', '%29')})"


def insert_table(file: AnyPath, places: Places, *, known: Known = ()) -> tuple[str, list[Skipped]]:
    """Return the content of `file` with the tables between their markers, and what was skipped. Writes nothing. `known`
    are the studies in the table of verdicts."""
    path = Path(file)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise FileNotFoundError(f"no file at {str(file)!r}: --readme names a file that exists.") from None
    skipped: list[Skipped] = []
    tables = [name for name in ("results", "verdicts") if f"<!-- {name} -->" in text or f"<!-- end {name} -->" in text]
    for name in tables or ["results"]:
        begin, end = f"<!-- {name} -->", f"<!-- end {name} -->"
        if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
            raise ValueError(f"{str(file)!r} must hold {begin} and, after it, {end}, once each: add both lines.")
        near = path.resolve().parent
        short = name == "verdicts"
        table, skipped = verdicts_table(places, known=known, base=near) if short else results_table(places, base=near)
        head, rest = text.split(begin)
        text = f"{head}{begin}\n{table}{end}{rest.split(end)[1]}"
    return text, skipped
