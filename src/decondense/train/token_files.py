"""Texts to files of token ids: tokenised once, by one process, and found there by every other.

KEY.tokens    the ids of all documents, one after the other, each followed by the separator (uint16 or uint32)
KEY.starts    where each document begins (int64)
KEY.json      how long both are and what went in; written last, so files that have it are complete

KEY stands for the content: texts by their names and the sha256 of their files, the tokenizer by its rules, and the
budget. Neither folders nor times are part of it, so a cache that is copied to another machine together with its texts
is found there. The first process locks the key and does the work; the other processes of a run, and other runs on the
same text, wait for the lock and find the files.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .. import text, text_files
from ..files import AnyPath, locked, look_writable, os_sentence, remembered_sha256
from ..weights_cache import cache_dir
from ..words import Tell, nobody
from .blocks import Blocks

VERSION = 4  # of the files' content
PIECE = 1 << 20  # characters; a longer document is tokenised in pieces of whole lines, or it would fill the memory
BATCH = 4 << 20  # characters of documents tokenised in one call, so that all cores have something to do
HEADING = re.compile(r" = [^=\s].* = \s*")

Opened = tuple[np.ndarray, np.ndarray, list[dict[str, Any]]]  # tokens, starts, about the texts
Tokenised = tuple[int, list[int], str, str]  # number of the text, token ids with the separator, document, source


def token_folder(cache: AnyPath | None) -> Path:
    """Where tokenised texts lie."""
    return Path(cache) if cache is not None else cache_dir() / "tokens"


@dataclass(frozen=True)
class TokenFiles:
    """The tokens of texts, one text after the other, as far as a budget reaches, and the files that hold them.

    tokens     how many to read, in whole documents (all, when there are less)
    documents  least number of documents to read
    whole      file texts that end within the budget under a key without it, so that runs with other budgets find them
    data       folder of named texts
    """

    texts: list[str]
    tokenizer: Any
    tokens: int
    cache: Path
    documents: int = 0
    whole: bool = False
    data: str | None = None

    def blocks(self, context: int, progress: Tell = nobody) -> Blocks:
        """The tokens in blocks of `context`; where the files are not there yet, the texts are tokenised first."""
        ids, starts, entries = cached(self.cache, self.keys[0], self.opened, lambda: self._tokenise(progress))
        if len(ids) < context:
            raise ValueError(
                f"the text must fill one block of {context} tokens, {', '.join(self.texts)} has {len(ids)} in all: "
                "give more text or a shorter data.context."
            )
        # The files may have been made from the same text under another path.
        return Blocks(ids, starts, context, [{"name": self.texts[entry.pop("number")], **entry} for entry in entries])

    def opened(self) -> Opened | None:
        """What is filed under the first usable key; None when all are missing or damaged (then it is made again)."""
        for key in self.keys:
            try:
                record = json.loads((self.cache / f"{key}.json").read_text(encoding="utf-8"))
                sizes = [(self.cache / f"{key}.{ending}").stat().st_size for ending in ("tokens", "starts")]
                if sizes != [record["length"] * self.dtype.itemsize, record["documents"] * 8]:
                    continue
            except (OSError, ValueError, KeyError, TypeError):
                continue
            if not record["length"]:
                return np.zeros(0, self.dtype), np.zeros(0, np.int64), record["texts"]
            ids = np.memmap(self.cache / f"{key}.tokens", dtype=self.dtype, mode="r")
            return ids, np.memmap(self.cache / f"{key}.starts", dtype=np.int64, mode="r"), record["texts"]
        return None

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.uint16 if len(self.tokenizer) <= 2**16 else np.uint32)

    @functools.cached_property
    def keys(self) -> list[str]:
        """Names for the content of the files, which may lie under any of them."""
        probe = self.tokenizer("The key, 1234: naïve — \n\n def f(x):", add_special_tokens=False)["input_ids"]
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        rules = "" if backend is None else hashlib.sha256(backend.to_str().encode()).hexdigest()
        content = text_identity(self.texts, self.cache, self.data)
        budget = (self.tokens, self.documents)
        what = [
            [VERSION, content, wanted, len(self.tokenizer), probe, rules, separator_of(self.tokenizer)]
            for wanted in ([None, budget] if self.whole else [budget])
        ]
        return [hashlib.sha256(json.dumps(one).encode()).hexdigest()[:20] for one in what]

    def _tokenise(self, progress: Tell) -> None:
        """Write documents until the budget is reached (filed under the last key) or they end (under the first)."""
        progress("tokenising", 0, self.tokens)  # reading the text may take a while
        temporary_files = {ending: self.cache / f".{self.keys[0]}.{ending}" for ending in ("tokens", "starts", "json")}
        entries: list[dict[str, Any]] = []
        digest, token_count, document_count, ended = hashlib.sha256(), 0, 0, True
        try:
            with temporary_files["tokens"].open("wb") as ids_file, temporary_files["starts"].open("wb") as starts_file:
                for index, ids, document, source in _stream(self.texts, self.tokenizer, self.data):
                    if not entries or entries[-1]["number"] != index:
                        entries.append({"number": index, "source": source, "documents": 0, "tokens": 0})
                        digest = hashlib.sha256()
                    with _writable(self.cache):
                        starts_file.write(np.int64(token_count).tobytes())
                        ids_file.write(np.asarray(ids, dtype=self.dtype).tobytes())
                    digest.update(document.encode("utf-8", "surrogatepass"))
                    entry = entries[-1]
                    entry |= {"documents": entry["documents"] + 1, "tokens": entry["tokens"] + len(ids)}
                    entry["sha256"] = digest.hexdigest()
                    document_count, token_count = document_count + 1, token_count + len(ids)
                    # with `whole` the text mostly ends before the budget, at a place not known in advance
                    known = (token_count, None) if self.whole else (min(token_count, self.tokens), self.tokens)
                    progress("tokenising", *known)
                    if token_count >= self.tokens and document_count >= self.documents:
                        ended = False
                        break
                with _writable(self.cache):
                    for file in (ids_file, starts_file):
                        file.flush()
                        os.fsync(file.fileno())
            with _writable(self.cache):
                record = {"length": token_count, "documents": document_count, "texts": entries}
                temporary_files["json"].write_text(json.dumps(record), encoding="utf-8")
                for ending, path in temporary_files.items():  # the record comes last
                    path.replace(self.cache / f"{self.keys[0 if ended else -1]}.{ending}")
        finally:
            for path in temporary_files.values():
                path.unlink(missing_ok=True)


def cached(cache: Path, key: str, opened: Callable[[], Any], make: Callable[[], None]) -> Any:
    """Return `opened()`. Where that is None, one process calls `make` first while the others wait."""
    result = opened()
    if result is None:
        with contextlib.ExitStack() as held:
            with _writable(cache):
                cache.mkdir(parents=True, exist_ok=True)
                held.enter_context(locked(cache / f".{key}.lock"))
            if opened() is None:
                make()
        result = opened()
    return result


def separator_of(tokenizer: Any) -> int:
    """The token between documents."""
    for name in ("eos_token_id", "sep_token_id", "bos_token_id"):
        token = getattr(tokenizer, name, None)
        if token is not None:
            return int(token)
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


def documents_of(name: str, data: str | None) -> tuple[str, Iterator[str]]:
    """(where a text comes from, its documents one by one)."""
    source, stream = text.iterate_documents(name, data=data)
    return source, articles(stream) if name.startswith("wikitext-") else stream


def _stream(names: list[str], tokenizer: Any, data: str | None) -> Iterator[Tokenised]:
    """Tokenise every document of the texts, one text after the other: in batches, so that a fast tokenizer can use all
    cores, and a long document in pieces."""
    end = separator_of(tokenizer)
    bytewise = type(tokenizer).__name__ == "ByT5Tokenizer"
    spelt_out = re.compile("|".join(map(re.escape, tokenizer.added_tokens_encoder)) if bytewise else "")

    def ids_of(texts: list[str]) -> list[list[int]]:
        if bytewise and not any(map(spelt_out.search, texts)):
            # where no special token is spelt out: the tokenizer's ids, thirty times as fast as its look-up of bytes
            return [[byte + tokenizer.offset for byte in document.encode()] for document in texts]
        options = {"add_special_tokens": False, "return_attention_mask": False, "verbose": False}
        return tokenizer(texts, **options)["input_ids"] if texts else []

    for index, name in enumerate(names):
        source, documents = documents_of(name, data)
        for batch in _batches(documents):
            if len(batch[0]) > PIECE:
                whole = [i for _, piece in text.stretches(batch[0], PIECE) for i in ids_of([piece])[0]]
                yield index, [*whole, end], batch[0], source
            else:
                yield from ((index, [*ids, end], document, source) for ids, document in zip(ids_of(batch), batch))


def _batches(documents: Iterable[str]) -> Iterator[list[str]]:
    """Documents that are not blank, in lists of about BATCH characters; one longer than PIECE is alone in its list."""
    batch: list[str] = []
    size = 0
    for document in filter(str.strip, documents):
        if batch and (size >= BATCH or len(document) > PIECE):
            yield batch
            batch, size = [], 0
        if len(document) > PIECE:
            yield [document]
        else:
            batch.append(document)
            size += len(document)
    if batch:
        yield batch


def text_identity(names: list[str], cache: Path, data: str | None) -> list[Any]:
    """What identifies the content of texts: the name of a named text (of pydoc, with the version of Python), and the
    sha256 of its file where it is here; name and sha256 of local files."""
    prints: list[Any] = []
    for name in names:
        title = name.partition(":")[0]
        if title == "pydoc":
            prints.append([name, *sys.version_info[:2]])
        elif title in text.TEXTS:
            named = text.file_of(name, data)
            prints.append([name, None if named is None else remembered_sha256(named, cache)])
        else:
            path = Path(name).expanduser()
            files = text_files.files_of(path) if path.is_dir() else [path]
            prints.append([[file.name, remembered_sha256(file, cache)] for file in files if file.is_file()])
    return prints


def look_writable_cache(cache: Path) -> None:
    """Refuse a cache that `TokenFiles` could not write into, without writing."""
    with _writable(cache):
        look_writable(cache)


def _writable(cache: Path) -> contextlib.AbstractContextManager[None]:
    what = f"the tokenised text could not be written into {str(cache)!r}"
    return os_sentence(what, "set DECONDENSE_CACHE to another folder")
