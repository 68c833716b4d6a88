"""Rows that hold several documents one after the other: where each of them lies."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Documents:
    """Rows cut into documents where the position ids restart: gather(x) is (documents, longest, …)."""

    index: Tensor  # (documents, longest) into the flattened rows
    mask: Tensor  # (documents, longest)
    shape: tuple[int, int]  # of the rows: how many, and their tokens

    def flat(self, x: Tensor) -> Tensor:
        """The tokens of all rows, one after the other, as `index` counts them."""
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
        """The row in which a document lies, and its first token there."""
        row, start = divmod(int(self.index[number, 0]), self.shape[1])
        return {"row": row, "start": start}


def documents(position_ids: Tensor, mask: Tensor | None, rows: int) -> Documents | None:
    """Where each document of packed rows lies; None when every row is one document. Position ids may have one row for
    all of so many.

    A document starts where a position is not its predecessor plus one. Its length decides the shape of the
    result, so this waits once per step for a GPU that holds the position ids.
    """
    position_ids = position_ids.expand(rows, -1) if len(position_ids) == 1 else position_ids
    batch, tokens = position_ids.shape
    if tokens < 2:
        return None
    start = torch.ones_like(position_ids, dtype=torch.bool)
    start[:, 1:] = position_ids[:, 1:] != position_ids[:, :-1] + 1
    first = start.flatten().nonzero().squeeze(1)
    if len(first) == batch:
        return None
    last = torch.cat([first[1:], first.new_tensor([batch * tokens])])
    offset = torch.arange(int((last - first).max()), device=first.device)
    inside = offset < (last - first).unsqueeze(1)
    index = torch.where(inside, first.unsqueeze(1) + offset, first.unsqueeze(1))
    cut = Documents(index, inside, (batch, tokens))
    if mask is not None:
        cut.mask = inside & cut.gather(mask)
    return cut


def unmasked_documents(position_ids: object, mask: object, rows: int) -> Documents | None:
    """The documents of a call without a mask, whose position ids (rows, tokens), or one row for all, may restart. With
    a mask a row is one sequence, and its padding may have any positions."""
    if mask is not None or not isinstance(position_ids, Tensor) or position_ids.ndim != 2:
        return None
    return documents(position_ids, None, rows)
