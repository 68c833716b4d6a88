"""Read documents from files and tables: .txt, .md, .raw, .tokens, .jsonl, .json, .csv, .tsv, .parquet, each also .gz
or .xz, a folder of such files, or rows in memory."""

from __future__ import annotations

import codecs
import contextlib
import csv
import gzip
import io
import itertools
import json
import lzma
import math
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from .words import first_few, nearest

FIELDS = ("text", "content", "context", "long_answer")
NAMING = "(--column, column=; for train and evaluate call it 'text')"
TABLES = {".csv": ",", ".tsv": "\t"}
PLAIN = {"", ".txt", ".raw", ".md", ".tokens"}
ROWS = {".jsonl", ".json", ".parquet", *TABLES}
READABLE = {*PLAIN, *ROWS}
KINDS = ".txt, .md, .raw, .tokens, .jsonl, .json, .csv, .tsv or .parquet"
KIND_OF = r"[-_.][^\W_]+([-_.](\d\S*|[a-z]{2}))?"  # README.zh-CN, LICENSE-BSD-3-Clause; no further words
ABOUT = re.compile(rf"(readme|licen[cs]e|copying)({KIND_OF})?(\.\w+){{0,2}}", re.IGNORECASE)  # of a folder's texts
UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
FEW = 5  # names in a note
LARGEST = 1 << 30  # bytes of an unpacked file: a few kilobytes of .xz may unpack to more than any memory

DAMAGE = (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error, UnicodeError, json.JSONDecodeError, csv.Error)


def files_of(path: Path) -> list[Path]:
    """Return the files of a text without reading them: those in a folder, or the file itself."""
    if path.is_dir():
        files, about, unread = _in_folder(path)
        if not files:
            got = f"only {first_few([*about, *unread], FEW)}" if about or unread else "none"
            raise FileNotFoundError(
                f"the folder {str(path)!r} must hold {KINDS} files (or .gz, .xz), got {got}: put some there, or name a "
                "file."
            )
        return files
    if ending_of(path) not in READABLE:
        raise ValueError(f"a text file must be {KINDS} (also .gz, .xz), got {path.name!r}: convert it.")
    return [path]


def _in_folder(folder: Path) -> tuple[list[Path], list[str], list[str]]:
    """Return the texts in a folder, hidden files aside, and the names of two other kinds: what is about them, a README
    or a licence, and what is not read."""
    texts, about, unread = [], [], []
    for file in sorted(p for p in folder.iterdir() if p.is_file() and not p.name.startswith(".")):
        says = ABOUT.fullmatch(file.name) and ending_of(file) not in ROWS
        if ending_of(file) in READABLE - {""}:
            about.append(file.name) if says else texts.append(file)
        elif not says:
            unread.append(file.name)
    return texts, about, unread


def read_documents(path: Path, *, column: str | None = None) -> tuple[list[str], list[str]]:
    """Return (documents, notes on how they were read). ``column``: the field of a row that is the document; default the
    first of ``FIELDS`` that the row has."""
    files = files_of(path)
    if path.is_dir():
        per_file = [read_documents(file, column=column) for file in files]
        _, about, unread = _in_folder(path)
        left_out = [f"left out, as they are about the folder's texts: {', '.join(about)}."] if about else []
        left_out += [f"left out, as they are no {KINDS} files: {first_few(unread, FEW)}."] if unread else []
        return [d for documents, _ in per_file for d in documents], [n for _, some in per_file for n in some] + left_out
    ending, where = ending_of(path), repr(str(path))
    rows: Iterable[Any]
    notes: list[str] = []
    with _undamaged(path):
        blob = unpacked(path)
        if ending == ".parquet":
            rows = _parquet(blob, path, column)
        elif ending in (".jsonl", ".json"):
            content = blob.decode("utf-8-sig")
            rows = _json_lines(content, where) if ending == ".jsonl" else _rows(content)
        else:
            content, notes = decoded(blob, path.name)
            if ending not in TABLES:
                return [content], notes
            rows = _table_rows(content, TABLES[ending], where)
        documents, row_notes = complete(row_documents(rows, column, where=where), path.name)
    return [d for d in documents if d] if ending == ".parquet" else documents, notes + row_notes


@contextlib.contextmanager
def _undamaged(path: Path) -> Iterator[None]:
    try:
        yield
    except DAMAGE as error:
        raise ValueError(
            f"{str(path)!r} could not be read as {ending_of(path) or 'text'} in UTF-8: {error}; the file is damaged."
        ) from error


def _table_rows(content: str, delimiter: str, where: str) -> Iterator[dict[Any, Any]]:
    """Yield the rows of a table. One with more cells than the first line has names is refused: a document with an
    unquoted comma would lose what follows it."""
    csv.field_size_limit(LARGEST)  # documents may be longer than csv's limit of 128 kB for a cell
    reader = csv.DictReader(io.StringIO(content, newline=""), delimiter=delimiter)
    begins = ends = 0  # lines before and after the last row
    for row in reader:
        begins, ends = ends, reader.line_num
        if any(row.pop(None, ())):  # None: where the reader puts cells without a name
            raise ValueError(
                f"every row of {where} must have no more cells than its first line, {len(row)}, but the one that ends "
                f"in line {reader.line_num} has more: put quotes around cells that hold {delimiter!r}."
            )
        yield row
    check_quotes(content, delimiter, where, begins)


def check_quotes(content: str, delimiter: str, where: str, begins: int = 0) -> None:
    """Refuse a table whose last row, below so many lines, has a quote that is never closed: all that follows the quote
    would be a part of its cell, without an error from the reader."""
    csv.field_size_limit(LARGEST)
    end = "end"  # a row of its own, unless a quote is open
    lines = itertools.chain(itertools.islice(io.StringIO(content, newline=""), begins, None), [end])
    *_, last = csv.reader(lines, delimiter=delimiter)
    if last != [end]:
        line = content.count("\n") - last[-1].count("\n") + 1
        raise ValueError(
            f"every quote in {where} must be closed, but the one that opens in line {line} is not: close it, or put "
            "the cell in quotes and write a quote inside it twice."
        )


def row_documents(rows: Iterable[Any], column: str | None, *, where: str) -> Iterator[str | None]:
    """Yield the document of every row, a string or a dictionary with the field ``column``; None for None and NaN."""
    for number, row in enumerate(rows, 1):
        fields = [column] if column is not None else [name for name in FIELDS if isinstance(row, dict) and name in row]
        if isinstance(row, str) and column is None:
            document = row
        elif isinstance(row, dict) and fields:
            if fields[0] not in row:
                raise ValueError(f"{where} has no column {column!r}: {nearest(column, [*map(str, row)])}")
            document = row[fields[0]]
            if not _is_document(document):
                raise ValueError(
                    f"column {fields[0]!r} of {where} must hold strings, got {type(document).__name__}: name another "
                    f"{NAMING} of {_columns(row)}."
                )
        else:
            if isinstance(row, dict):
                got = f"the columns {_columns(row)}"
                remedy = f"name the column that holds the text {NAMING}"
            elif isinstance(row, str):
                got, remedy = f"a string in row {number}", f"leave out column, {column!r}"
            else:
                got = f"{row if _is_document(row) else type(row).__name__} in row {number}"
                remedy = "leave out rows without a text"
            raise ValueError(
                f"every row of {where} must be a string or have one of the fields {', '.join(FIELDS)}, got {got}: "
                f"{remedy}."
            )
        yield document if isinstance(document, str) else None


def _columns(row: dict[Any, Any]) -> str:
    return first_few([str(name)[:80] for name in row], 20)


def complete(of_rows: Iterable[str | None], name: str) -> tuple[list[str], list[str]]:
    """Return (documents, notes): the rows that have a document, and a note on how many have none."""
    rows = list(of_rows)
    documents = [document for document in rows if document is not None]
    missing = len(rows) - len(documents)
    left_out = "has no text and was left out" if missing == 1 else "have no text and were left out"
    return documents, [f"{missing} of {len(rows)} rows of {name} {left_out}."] if missing else []


def _is_document(value: Any) -> bool:
    return value is None or isinstance(value, str) or (isinstance(value, float) and math.isnan(value))


def ending_of(path: Path) -> str:
    """Return a file's suffix in lower case, without a .gz or .xz behind it."""
    return Path(path.stem).suffix.lower() if path.suffix.lower() in (".gz", ".xz") else path.suffix.lower()


def unpacked(path: Path) -> bytearray:
    opener: Any = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix.lower(), open)
    limit = LARGEST if opener is open else min(LARGEST, max(1 << 26, 200 * path.stat().st_size))
    blob = bytearray()  # grows in place: a single read() would hold everything twice
    with opener(path, "rb") as file:
        while block := file.read(1 << 22):
            blob += block
            if len(blob) > limit:
                raise ValueError(
                    "a text file must hold at most 1 GiB, packed at most 64 MiB or 200 times its size: "
                    f"{str(path)!r} holds more; split it into a folder."
                )
    return blob


def decoded(blob: bytes | bytearray, name: str) -> tuple[str, list[str]]:
    """Decode UTF-8, UTF-16 with a byte order mark, or else Windows-1252, with plain line ends in place of those of
    Windows, so that a text is the same wherever it was saved; return (text, notes), one for Windows-1252."""
    encoding, notes = "utf-16" if blob.startswith(UTF_16) else "utf-8-sig", []
    try:
        text = blob.decode(encoding)
    except UnicodeDecodeError:
        if encoding == "utf-16" or b"\0" in blob:  # damaged, or binary
            raise
        text, notes = blob.decode("cp1252"), [f"{name} is not UTF-8: read as Latin-1 (Windows-1252)."]
    return text.replace("\r\n", "\n"), notes


def _json(text: str, start: int = 0, end: int | None = None) -> Any:
    """Parse a part of the text; an error gives the position in the whole text."""
    try:
        return json.loads(text[start:end])
    except json.JSONDecodeError as error:
        raise json.JSONDecodeError(error.msg, text, start + error.pos) from None
    except (RecursionError, ValueError) as error:  # too deeply nested, or a number with thousands of digits
        raise json.JSONDecodeError(str(error), text, start) from error


def _json_lines(content: str, where: str) -> Iterator[Any]:
    if content.lstrip().startswith("["):  # no row is a list: is the whole file one array?
        with contextlib.suppress(json.JSONDecodeError):
            _json(content)
            raise ValueError(f"{where} must have a JSON value in every line, but is one array: rename it to .json.")
    start = 0
    for line in content.split("\n"):
        if line.strip():
            yield _json(content, start, start + len(line))
        start += len(line) + 1


def _rows(content: str) -> list[Any]:
    """Return the rows of a .json file: a list, a single row, or SQuAD's own layout."""
    whole = _json(content) if content.strip() else []
    if isinstance(whole, dict) and isinstance(whole.get("data"), list):
        paragraphs = [row.get("paragraphs") if isinstance(row, dict) else None for row in whole["data"]]
        return [row for rows in paragraphs if isinstance(rows, list) for row in rows]
    return whole if isinstance(whole, list) else [whole]


def _parquet(blob: bytearray, path: Path, column: str | None) -> list[Any]:
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(io.BytesIO(blob))
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{str(path)!r} could not be read as parquet: the file is damaged.") from error
    chosen = [name for name in ([column] if column else FIELDS) if name in table.column_names][:1]
    return table.select(chosen).to_pylist() if chosen else table.slice(0, 1).to_pylist()
