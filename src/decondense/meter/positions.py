"""How many positions a model has: its tables of absolute positions, and the limit of its configuration."""

from __future__ import annotations

import contextlib
import math
import re

from torch import nn

from .states import token_embedding


def positions_of(network: nn.Module, *, given: bool) -> float:
    """Return how many tokens the model has positions for; no limit without a table of absolute positions, as with
    rotary or relative ones. Positions that the model numbers itself (not ``given``) may begin after the padding index,
    as in RoBERTa. The configuration's limit counts too: OPT's table has two rows to spare."""
    limit: float = getattr(getattr(network, "config", None), "max_position_embeddings", None) or math.inf
    tables = position_tables(network)
    firsts = [0 if given or table.padding_idx is None else table.padding_idx + 1 for table in tables]
    return min([limit, *(t.num_embeddings - first for t, first in zip(tables, firsts))]) if tables else math.inf


def position_tables(network: nn.Module) -> list[nn.Embedding]:
    """Return the tables of absolute positions. Only those beside the token embedding, or below that place, are looked
    at: others are of other parts, such as the patches of an image."""
    modules = dict(network.named_modules())
    embedding = None
    with contextlib.suppress(TypeError):  # a model that reads no token ids
        embedding = token_embedding(network)
    beside = next((name.rpartition(".")[0] for name, part in modules.items() if part is embedding), "")
    leaves = [(part, name.rpartition(".")[2]) for name, part in modules.items() if name.startswith(beside)]
    return [
        part
        for part, leaf in leaves
        if isinstance(part, nn.Embedding) and re.search("wpe|position", leaf) and "rel" not in leaf
    ]
