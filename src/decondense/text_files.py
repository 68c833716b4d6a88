"""Documents out of files: .txt, .jsonl, .json, .parquet, each also .gz or .xz, or a folder of them."""

from __future__ import annotations

import gzip
import io
import json
import lzma
from pathlib import Path
from typing import Any

__all__ = ["read_documents"]

FIELDS = ("text", "content", "context", "long_answer")
READABLE = {"", ".txt", ".raw", ".md", ".tokens", ".jsonl", ".json", ".parquet"}


def read_documents(path: Path) -> list[str]:
    if path.is_dir():
        files = sorted(p for p in path.iterdir() if p.is_file() and _ending(p) in READABLE - {""})
        if not files:
            raise FileNotFoundError(f"the folder {str(path)!r} must hold .txt, .jsonl or .parquet files: it has none.")
        return [document for file in files for document in read_documents(file)]
    ending = _ending(path)
    if ending not in READABLE:
        raise ValueError(
            f"a text file must be .txt, .jsonl, .json or .parquet (also .gz, .xz), got {path.name!r}: convert it."
        )
    try:
        blob = _decompress(path)
        if ending == ".parquet":
            return _parquet(blob, path)
        content = blob.decode("utf-8")
        if ending == ".jsonl":
            return [_pick(json.loads(line), path) for line in content.split("\n") if line.strip()]
        if ending == ".json":
            return _json_documents(json.loads(content), path)
    except (EOFError, gzip.BadGzipFile, lzma.LZMAError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(
            f"{str(path)!r} could not be read as {ending or 'text'} in UTF-8: {error}; the file is damaged."
        ) from error
    return [content]


def _ending(path: Path) -> str:
    return Path(path.stem).suffix.lower() if path.suffix.lower() in (".gz", ".xz") else path.suffix.lower()


def _decompress(path: Path) -> bytes:
    raw = path.read_bytes()
    if path.suffix.lower() == ".gz":
        return gzip.decompress(raw)
    return lzma.decompress(raw) if path.suffix.lower() == ".xz" else raw


def _pick(row: Any, path: Path) -> str:
    if isinstance(row, str):
        return row
    for name in FIELDS:
        if isinstance(row, dict) and isinstance(row.get(name), str):
            return row[name]
    raise ValueError(f"every line of {str(path)!r} must be a string or have one of the fields {', '.join(FIELDS)}.")


def _json_documents(content: Any, path: Path) -> list[str]:
    if isinstance(content, dict) and isinstance(content.get("data"), list):  # SQuAD's own layout
        return [p["context"] for article in content["data"] for p in article.get("paragraphs", [])]
    return [_pick(row, path) for row in (content if isinstance(content, list) else [content])]


def _parquet(blob: bytes, path: Path) -> list[str]:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(io.BytesIO(blob))
    except pyarrow.ArrowException as error:
        raise ValueError(f"{str(path)!r} could not be read as parquet: the file is damaged.") from error
    for name in FIELDS:
        if name in table.column_names:
            return [d for d in table.column(name).to_pylist() if d]
    raise ValueError(f"{str(path)!r} must have one of the columns {', '.join(FIELDS)}, got {table.column_names}.")
