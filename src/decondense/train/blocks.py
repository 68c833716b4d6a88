"""Text as blocks of exactly `context` tokens, on disk once and read by position.

Every document is tokenised by itself and followed by the separator (the tokenizer's end-of-text token); the stream
of tokens is cut into blocks. The tokens lie in a memory-mapped file, so a run needs no more memory for a large text
than for a small one, and block number i is the same tokens in every run, on every process, after every resumption.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..text import iterate_documents

__all__ = ["Blocks", "Order", "join", "prepare", "separator_of"]


@dataclass(frozen=True)
class Blocks:
    """`tokens` (length,), `starts`: where each document begins in it; `texts`: name, source and sha256 of what went in."""

    tokens: np.ndarray
    starts: np.ndarray
    context: int
    texts: list[dict[str, Any]]

    def __len__(self) -> int:
        return len(self.tokens) // self.context

    def ids(self, block: int) -> np.ndarray:
        return np.asarray(self.tokens[block * self.context : (block + 1) * self.context], dtype=np.int64)

    def positions(self, block: int) -> np.ndarray:
        """Position ids that restart where a document begins inside the block."""
        low = block * self.context
        at = np.arange(low, low + self.context)
        begins = self.starts[np.searchsorted(self.starts, at, side="right") - 1]
        return at - np.maximum(begins, low)

    def place(self, block: int) -> str:
        """Where a block comes from, in words."""
        at = block * self.context
        document = int(np.searchsorted(self.starts, at, side="right")) - 1
        return f"block {block}: document {document}, from its token {at - int(self.starts[document])}"

    def part(self, first: int, last: int) -> Blocks:
        """Blocks first … last − 1 as blocks of their own."""
        low, high = first * self.context, last * self.context
        inside = self.starts[(self.starts > low) & (self.starts < high)] - low
        return Blocks(self.tokens[low:high], np.concatenate([[0], inside]), self.context, self.texts)


def join(parts: list[Blocks]) -> Blocks:
    """Several texts as one, each cut to whole blocks."""
    lengths = [len(p) * p.context for p in parts]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    starts = [p.starts[p.starts < n] + at for p, n, at in zip(parts, lengths, offsets)]
    tokens = [p.tokens[:n] for p, n in zip(parts, lengths)]
    texts = [text for p in parts for text in p.texts]
    return Blocks(np.concatenate(tokens), np.concatenate(starts), parts[0].context, texts)


class Order(torch.utils.data.Dataset):
    """The blocks in the order in which a run sees them: one permutation per pass over the text, drawn from the seed.

    The position in the data is the number of the step and nothing else, so it resumes by itself, and the blocks of a
    step are the same however many processes share them.
    """

    def __init__(self, blocks: Blocks, length: int, *, seed: int | None, isolated: bool = False) -> None:
        self.blocks, self.isolated = blocks, isolated
        n = len(blocks)
        passes = -(-length // n)
        orders = [
            np.arange(n) if seed is None else np.random.default_rng([seed, k]).permutation(n) for k in range(passes)
        ]
        self.order = np.concatenate(orders)[:length]

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        block = int(self.order[i])
        ids = torch.from_numpy(self.blocks.ids(block))
        item = {"input_ids": ids, "labels": ids.clone()}
        if self.isolated:
            positions = torch.from_numpy(self.blocks.positions(block))
            item["position_ids"] = positions
            item["labels"] = torch.where(positions == 0, -100, ids)  # nothing foretells the first token of a document
        return item


def prepare(
    texts: str | list[str],
    tokenizer: Any,
    *,
    context: int,
    tokens: int,
    cache: Path,
    data: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Blocks:
    """Tokenise as much of the texts as `tokens` asks for (all of it, when there is less) into a file under `cache`.

    The file is named after the texts, the tokenizer and the budget, written under another name and renamed, so that
    what exists is whole; a second run, or the next process, finds it there.
    """
    names = [texts] if isinstance(texts, str) else list(texts)
    separator = separator_of(tokenizer)
    kind = np.dtype(np.uint16 if len(tokenizer) <= 2**16 else np.uint32)
    key = _key(names, tokenizer, tokens, data)
    record, file = cache / f"{key}.json", cache / f"{key}.tokens"
    if not record.exists():
        cache.mkdir(parents=True, exist_ok=True)
        partial = cache / f".{key}.{os.getpid()}"
        starts, used, written = [], [], 0
        with partial.open("wb") as sink:
            for name in names:
                digest, documents = hashlib.sha256(), 0
                source, stream = iterate_documents(name, data=data)
                for ids, document in _tokenised(stream, tokenizer):
                    if written >= tokens:
                        break
                    digest.update(document.encode("utf-8", "surrogatepass"))
                    documents += 1
                    starts.append(written)
                    np.asarray([*ids, separator], dtype=kind).tofile(sink)
                    written += len(ids) + 1
                    if progress is not None:
                        progress(min(written, tokens), tokens)
                if documents:
                    used.append({"name": name, "source": source, "documents": documents, "sha256": digest.hexdigest()})
            sink.flush()
            os.fsync(sink.fileno())
        if written < context:
            partial.unlink()
            raise ValueError(
                f"the text must fill one block of {context} tokens, {', '.join(names)} has {written} in all: "
                "give more text or a shorter data.context."
            )
        partial.replace(file)
        content = {"starts": starts, "texts": used, "length": written}
        temporary = cache / f".{key}.{os.getpid()}.json"
        temporary.write_text(json.dumps(content))
        temporary.replace(record)
    content = json.loads(record.read_text())
    if file.stat().st_size != content["length"] * kind.itemsize:
        raise OSError(f"the token file {file.name} is damaged: delete {str(cache)!r} and start again.")
    mapped = np.memmap(file, dtype=kind, mode="r")
    return Blocks(mapped, np.asarray(content["starts"], dtype=np.int64), context, content["texts"])


def separator_of(tokenizer: Any) -> int:
    """The token between documents."""
    for name in ("eos_token_id", "sep_token_id", "bos_token_id"):
        found = getattr(tokenizer, name, None)
        if found is not None:
            return int(found)
    raise ValueError("the tokenizer must have an end-of-text token to put between documents: set its eos_token.")


def _tokenised(documents: Iterable[str], tokenizer: Any) -> Iterator[tuple[list[int], str]]:
    """Token ids of each document; a few at a time, so that a fast tokenizer has something to share out."""
    batch: list[str] = []
    size = 0

    def flush() -> Iterator[tuple[list[int], str]]:
        if batch:
            found = tokenizer(batch, add_special_tokens=False, return_attention_mask=False, verbose=False)
            yield from zip(found["input_ids"], batch)

    for document in documents:
        if not document.strip():
            continue
        batch.append(document)
        size += len(document)
        if size >= 1 << 20:
            yield from flush()
            batch, size = [], 0
    yield from flush()


def _key(names: list[str], tokenizer: Any, tokens: int, data: str | None) -> str:
    """Texts are known by name, and files by their size and time of change too."""
    folder = data if data is not None else os.environ.get("DECONDENSE_DATA", "")
    files = []
    for name in names:
        path = Path(name).expanduser()
        if path.exists():
            stat = path.stat()
            files.append([str(path.resolve()), stat.st_size, stat.st_mtime_ns])
    probe = tokenizer("The key, 1234: naïve — \n\n def f(x):", add_special_tokens=False)["input_ids"]
    what = [names, files, folder, tokens, len(tokenizer), probe, separator_of(tokenizer)]
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:20]
