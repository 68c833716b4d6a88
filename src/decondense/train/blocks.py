"""Text as blocks of exactly `context` tokens, on disk once and read by position.

Every document is tokenised by itself and followed by the separator (the tokenizer's end-of-text token); the stream
of tokens is cut into blocks. The tokens lie in a memory-mapped file (`token_files.py`), so a run needs no more memory
for a large text than for a small one, and block number i holds the same tokens in every run, on every process, and
after resuming.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True)
class Blocks:
    """`tokens` (length,); `starts`: where each document begins in it; `texts`: name, source and sha256 of each text."""

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

    def origin(self, block: int) -> str:
        """Where a block comes from, in words."""
        at = block * self.context
        document = int(np.searchsorted(self.starts, at, side="right")) - 1
        return f"block {block}: document {document}, from its token {at - int(self.starts[document])}"

    def part(self, first: int, last: int) -> Blocks:
        """Blocks first … last − 1 as blocks of their own."""
        low, high = first * self.context, last * self.context
        inside = slice(*np.searchsorted(self.starts, [low + 1, high]))
        return Blocks(self.tokens[low:high], np.concatenate([[0], self.starts[inside] - low]), self.context, self.texts)


def join(parts: list[Blocks]) -> Blocks:
    """Several texts as one, each cut to whole blocks. A single text is returned unchanged."""
    if len(parts) == 1:
        return parts[0]
    lengths = [len(p) * p.context for p in parts]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    starts = [p.starts[p.starts < n] + at for p, n, at in zip(parts, lengths, offsets)]
    tokens = [p.tokens[:n] for p, n in zip(parts, lengths)]
    texts = [text for p in parts for text in p.texts]
    return Blocks(np.concatenate(tokens), np.concatenate(starts), parts[0].context, texts)


class Order(torch.utils.data.Dataset):
    """The blocks in the order in which a run sees them: one permutation per pass over the text, drawn from the seed.

    The position in the data follows from the step number alone, so resuming needs no state, and a step has the same
    blocks however many processes share them. `begin` replaces the first token of every block, which is not predicted;
    None keeps it. Without a seed the blocks come in the order of the text.
    """

    def __init__(
        self, blocks: Blocks, length: int, *, seed: int | None, isolated: bool = False, begin: int | None = None
    ) -> None:
        self.blocks, self.isolated, self.begin = blocks, isolated, begin
        n = len(blocks)
        passes = range(-(-length // n))
        orders = [np.arange(n) if seed is None else np.random.default_rng([seed, k]).permutation(n) for k in passes]
        self.order = np.concatenate(orders)[:length]

    def __len__(self) -> int:
        return len(self.order)

    @functools.cached_property
    def labels_per_block(self) -> float:
        """How many tokens of a block are predicted, on average, where documents are isolated."""
        first = [int((self.blocks.positions(int(b)) == 0).sum()) for b in self.order]
        return self.blocks.context - sum(first) / len(first)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        block = int(self.order[i])
        ids = torch.from_numpy(self.blocks.ids(block))
        if self.begin is not None:
            ids = torch.cat([torch.tensor([self.begin]), ids[1:]])
        positions = torch.from_numpy(self.blocks.positions(block)) if self.isolated else torch.arange(len(ids))
        # The first token of a sequence is never predicted. Trainer counts all labels of a model that does not name its
        # loss (GPT2), so the label is taken out here.
        item = {"input_ids": ids, "labels": torch.where(positions == 0, -100, ids)}
        return item | {"position_ids": positions} if self.isolated else item
