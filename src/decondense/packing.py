"""Packed rows, which hold several documents one after the other: where each document lies."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass
class Documents:
    """Packed rows cut into documents where the position ids restart: gather(x) is (documents, longest, …)."""

    index: Tensor  # (documents, longest) into the flattened rows
    mask: Tensor  # (documents, longest)
    shape: tuple[int, int]  # (rows, tokens) of the packed rows

    def flat(self, x: Tensor) -> Tensor:
        """The tokens of all rows in one sequence, in which `index` counts."""
        if x.shape[:2] != self.shape:
            raise ValueError(
                "position_ids that restart, as in packed rows, must have the rows and tokens of the states, "
                f"{tuple(x.shape[:2])}, or one row for all, got {self.shape}: name layers that return a state for "
                "every position, or leave position_ids out."
            )
        return x.flatten(0, 1)

    def gather(self, x: Tensor) -> Tensor:
        return self.flat(x)[self.index]

    def place(self, number: int) -> dict[str, int]:
        """The row of a document, and the position in this row at which it starts."""
        row, start = divmod(int(self.index[number, 0]), self.shape[1])
        return {"row": row, "start": start}


def documents(position_ids: Tensor, mask: Tensor | None, rows: int) -> Documents | None:
    """Find the documents of packed rows; None when every row is one document. `position_ids` may be a single row that
    stands for all `rows`.

    A document starts where a position is not its predecessor plus one. The longest one decides the shape of the
    result, so this waits once per step for a GPU that holds the position ids.
    """
    position_ids = position_ids.expand(rows, -1) if len(position_ids) == 1 else position_ids
    batch, tokens = position_ids.shape
    start = torch.ones_like(position_ids, dtype=torch.bool)
    start[:, 1:] = position_ids[:, 1:] != position_ids[:, :-1] + 1
    first = start.flatten().nonzero().squeeze(1)
    if len(first) == batch:
        return None
    last = torch.cat([first[1:], first.new_tensor([batch * tokens])])
    if mask is not None:  # padding whose positions are all 0 is a document a token, each as long as the longest
        counted = nn.functional.pad(mask.flatten().cumsum(0), (1, 0))
        kept = counted[last] > counted[first]
        kept[:1] = True  # of a batch without any token, one document is left
        first, last = first[kept], last[kept]
    offset = torch.arange(int((last - first).max()), device=first.device)
    inside = offset < (last - first).unsqueeze(1)
    index = torch.where(inside, first.unsqueeze(1) + offset, first.unsqueeze(1))
    cut = Documents(index, inside, (batch, tokens))
    if mask is not None:
        cut.mask = inside & cut.gather(mask)
    return cut


def restarts(position_ids: Tensor, mask: Tensor) -> bool:
    """Whether a position is below its predecessor's between two tokens that count: padding may have any positions, and
    a model may give all tokens the same. Waits for a GPU."""
    mask = mask.to(position_ids.device)
    return bool(((position_ids[:, 1:] < position_ids[:, :-1]) & mask[:, 1:] & mask[:, :-1]).any())


def unmasked_documents(position_ids: object, mask: object, rows: int) -> Documents | None:
    """`documents` for a call without a mask, with position ids (rows, tokens) or one row for all; else None: with a
    mask a row is one sequence, and its padding may have any positions."""
    if mask is not None or not isinstance(position_ids, Tensor) or position_ids.ndim != 2:
        return None
    return documents(position_ids, None, rows)
