"""Texts to files of token ids: tokenised once, by one process, and found there by every other.

KEY.tokens    the ids of all documents, one after the other, each followed by the separator (uint16 or uint32)
KEY.starts    where each document begins (int64)
KEY.json      how long both are and what went in; written last, so what has it is whole

KEY stands for the texts, the tokenizer and the budget. Whoever comes first holds a lock on the key and does the work;
the other processes of a run, and other runs on the same text, wait for the lock and find the files.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import platform
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..text import TEXTS, iterate_documents
from .blocks import Blocks

__all__ = ["articles", "prepare", "separator_of"]

VERSION = 2  # of the files' content
PIECE = 1 << 20  # characters; a longer document is tokenised in pieces of whole lines, or it would fill the memory
BATCH = 4 << 20  # characters of documents tokenised in one call, so that all cores have something to do
HEADING = re.compile(r" = [^=\s].* = \s*")

Progress = Callable[[int, int], None]


def prepare(
    texts: str | list[str],
    tokenizer: Any,
    *,
    context: int,
    tokens: int,
    cache: Path,
    data: str | None = None,
    progress: Progress | None = None,
) -> Blocks:
    """Blocks of `context` tokens of as much of the texts as `tokens` asks for (all of it, when there is less)."""
    names = [texts] if isinstance(texts, str) else list(texts)
    kind = np.dtype(np.uint16 if len(tokenizer) <= 2**16 else np.uint32)
    key = _key(names, tokenizer, tokens, data)
    found = _open(cache, key, kind)
    if found is None:
        with _writable(cache):
            cache.mkdir(parents=True, exist_ok=True)
        with _alone(cache, key) as prefix:
            found = _open(cache, key, kind)  # another process may have been here before us
            if found is None:
                _tokenise(names, tokenizer, tokens, cache, key, kind, data, progress, prefix)
                found = _open(cache, key, kind)
    assert found is not None
    ids, starts, used = found
    if len(ids) < context:
        raise ValueError(
            f"the text must fill one block of {context} tokens, {', '.join(names)} has {len(ids)} in all: "
            "give more text or a shorter data.context."
        )
    return Blocks(ids, starts, context, used)


def separator_of(tokenizer: Any) -> int:
    """The token between documents."""
    for name in ("eos_token_id", "sep_token_id", "bos_token_id"):
        found = getattr(tokenizer, name, None)
        if found is not None:
            return int(found)
    raise ValueError("the tokenizer must have an end-of-text token to put between documents: set its eos_token.")


def articles(pieces: Iterable[str]) -> Iterator[str]:
    """The articles of WikiText, which comes as one long file or line by line: each begins with " = Title = " between
    blank lines (a section has " = = Title = = ")."""
    article: list[str] = []
    candidate, blank = "", True
    for line in (line for piece in pieces for line in (piece.splitlines(keepends=True) or [""])):
        if candidate:
            if not line.strip() and any(map(str.strip, article)):
                yield "".join(article)
                article = []
            article.append(candidate)
            candidate = ""
        if blank and HEADING.fullmatch(line):
            candidate = line
        else:
            article.append(line)
        blank = not line.strip()
    yield "".join([*article, candidate])


# ---- the work ----------------------------------------------------------------------------------------------------


def _tokenise(
    names: list[str],
    tokenizer: Any,
    tokens: int,
    cache: Path,
    key: str,
    kind: np.dtype[Any],
    data: str | None,
    progress: Progress | None,
    prefix: str,
) -> None:
    separator = separator_of(tokenizer)
    begun = {ending: cache / f"{prefix}.{ending}" for ending in ("tokens", "starts", "json")}
    used, written, number = [], 0, 0
    try:
        with begun["tokens"].open("wb") as ids_file, begun["starts"].open("wb") as starts_file:
            for name in names:
                if written >= tokens:
                    break
                digest, documents = hashlib.sha256(), 0
                source, stream = iterate_documents(name, data=data)
                if name.startswith("wikitext-"):
                    stream = articles(stream)
                for ids, document in _tokenised(stream, tokenizer):
                    if written >= tokens:
                        break
                    digest.update(document.encode("utf-8", "surrogatepass"))
                    with _writable(cache):
                        starts_file.write(np.int64(written).tobytes())
                        ids_file.write(np.asarray([*ids, separator], dtype=kind).tobytes())
                    documents += 1
                    written += len(ids) + 1
                    if progress is not None:
                        progress(min(written, tokens), tokens)
                if documents:
                    used.append({"name": name, "source": source, "documents": documents, "sha256": digest.hexdigest()})
                    number += documents
            with _writable(cache):
                for file in (ids_file, starts_file):
                    file.flush()
                    os.fsync(file.fileno())
        with _writable(cache):
            begun["json"].write_text(json.dumps({"length": written, "documents": number, "texts": used}))
            for ending, path in begun.items():  # the record comes last
                path.replace(cache / f"{key}.{ending}")
    except BaseException:
        for path in begun.values():
            path.unlink(missing_ok=True)
        raise


def _open(cache: Path, key: str, kind: np.dtype[Any]) -> tuple[np.ndarray, np.ndarray, list[dict[str, Any]]] | None:
    """What lies there, or None when it is missing or damaged (it is made again then)."""
    try:
        record = json.loads((cache / f"{key}.json").read_text())
        sizes = [(cache / f"{key}.{ending}").stat().st_size for ending in ("tokens", "starts")]
        if sizes != [record["length"] * kind.itemsize, record["documents"] * 8]:
            return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not record["length"]:
        return np.zeros(0, kind), np.zeros(0, np.int64), record["texts"]
    ids = np.memmap(cache / f"{key}.tokens", dtype=kind, mode="r")
    starts = np.memmap(cache / f"{key}.starts", dtype=np.int64, mode="r")
    return ids, starts, record["texts"]


def _tokenised(documents: Iterable[str], tokenizer: Any) -> Iterator[tuple[list[int], str]]:
    """Token ids of each document; a few at a time, so that a fast tokenizer has something to share out."""

    def ids_of(texts: list[str]) -> list[list[int]]:
        return tokenizer(texts, add_special_tokens=False, return_attention_mask=False, verbose=False)["input_ids"]

    batch: list[str] = []
    size = 0
    for document in documents:
        if not document.strip():
            continue
        if len(document) > PIECE:
            yield from zip(ids_of(batch) if batch else [], batch)
            batch, size = [], 0
            yield [i for piece in _pieces(document) for i in ids_of([piece])[0]], document
            continue
        batch.append(document)
        size += len(document)
        if size >= BATCH:
            yield from zip(ids_of(batch), batch)
            batch, size = [], 0
    if batch:
        yield from zip(ids_of(batch), batch)


def _pieces(document: str) -> Iterator[str]:
    start = 0
    while start < len(document):
        end = document.find("\n", start + PIECE)
        end = len(document) if end < 0 else end + 1
        yield document[start:end]
        start = end


def _key(names: list[str], tokenizer: Any, tokens: int, data: str | None) -> str:
    """A name for the content: texts by name, files by their size and time of change, the tokenizer by what it does."""
    folder = data if data is not None else os.environ.get("DECONDENSE_DATA", "")
    files = [[str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns] for file in _files(names, folder)]
    probe = tokenizer("The key, 1234: naïve — \n\n def f(x):", add_special_tokens=False)["input_ids"]
    backend = getattr(tokenizer, "backend_tokenizer", None)
    rules = "" if backend is None else hashlib.sha256(backend.to_str().encode()).hexdigest()
    what = [VERSION, names, files, folder, tokens, len(tokenizer), probe, rules, separator_of(tokenizer)]
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:20]


def _files(names: list[str], folder: str) -> Iterator[Path]:
    """The local files behind the texts."""
    for name in names:
        entry = TEXTS.get(name.partition(":")[0])
        if entry is not None:
            roots = [Path(folder).expanduser() / pattern for pattern in entry.local] if folder else []
            candidates = [p for root in roots for p in root.parent.glob(root.name.replace("{split}", "*") + "*")]
        else:
            path = Path(name).expanduser()
            candidates = list(path.iterdir()) if path.is_dir() else [path]
        yield from sorted(p for p in candidates if p.is_file())


@contextlib.contextmanager
def _alone(cache: Path, key: str) -> Iterator[str]:
    """One process at a time; gives the name under which to begin, which a killed process's successor takes over.

    On a file system without locks everyone works under a name of their own, and the last one's files stay.
    """
    with _writable(cache):
        handle = (cache / f".{key}.lock").open("w")
    with handle:
        prefix = f".{key}"
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError:
            prefix = f".{key}.{platform.node()}.{os.getpid()}"
        yield prefix


@contextlib.contextmanager
def _writable(cache: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = "the disk is full" if error.errno == errno.ENOSPC else (error.strerror or str(error)).lower()
        raise OSError(
            f"the tokenised text could not be written into {str(cache)!r}: {reason}; free some space, or set "
            "DECONDENSE_CACHE to another folder."
        ) from None
