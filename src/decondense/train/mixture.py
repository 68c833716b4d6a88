"""Which blocks of which texts a run sees, and what is held out of them."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from .. import text
from ..hub import hub_reachable
from ..words import Tell
from .blocks import Blocks, join
from .recipe import Recipe
from .sections import Data, shares_of
from .token_files import TokenFiles, look_writable_cache, text_identity

# A local text of a mixture is tokenised beyond what the run needs, so that longer runs find the file: as far as a run
# AHEAD times as long could need it, but no further than WHOLE tokens.
AHEAD, WHOLE = 8, 1 << 27


def blocks_of(recipe: Recipe, tokenizer: Any, cache: Path, progress: Tell) -> tuple[Blocks, Blocks, list[Blocks]]:
    """(training blocks, held-out blocks, the held-out texts one by one).

    Without a held-out text the end of every text is held out, and the list is empty.
    """
    data = recipe.data
    training_files, held_out_files = _token_files(recipe, tokenizer, cache)
    parts = [files.blocks(data.context, progress) for files in training_files]
    needed, held_out_count = _block_counts(recipe)
    shares = [1.0]
    if len(parts) > 1:
        shares = list(_training_shares(data).values())
        counts = allot(needed, shares, [len(blocks) for blocks in parts])
        parts = [_cut(blocks, 0, count) for blocks, count in zip(parts, counts)]
    if data.held_out is not None:
        portions = _portions(shares_of(data.held_out).values(), held_out_count)
        texts = [files.blocks(data.context) for files in held_out_files]
        held_out = [t.part(0, min(len(t), portion)) for t, portion in zip(texts, portions)]
        return join(parts), join(held_out), texts
    portions = _portions(shares, held_out_count)
    if data.held_out_tokens == Data.model_fields["held_out_tokens"].default and sum(map(len, parts)) < needed:
        portions = [min(portion, _end_of(len(part), recipe)) for part, portion in zip(parts, portions)]
    for part, portion in zip(parts, portions):
        if len(part) < portion + 1:
            named = "the text" if len(parts) == 1 else part.texts[0]["name"]
            raise ValueError(
                f"{named} must fill {portion + 1} blocks of {data.context} tokens, {portion} of them held out, it "
                f"fills {len(part)}: give more text, name data.held_out, or lower data.held_out_tokens."
            )
    ends = [len(part) - portion for part, portion in zip(parts, portions)]
    training = [_cut(part, 0, end) for part, end in zip(parts, ends)]
    return join(training), join([_cut(part, end, len(part)) for part, end in zip(parts, ends)]), []


def contents(recipe: Recipe, cache: Path) -> dict[str, str]:
    """Every text of a run, held-out ones too → a digest of its content. Texts that are missing, or come over the
    network, are left out: nothing is known of their content."""
    data = recipe.data
    names = [*_training_shares(data), *([] if data.held_out is None else shares_of(data.held_out))]
    prints = {name: text_identity([name], cache, data.folder) for name in names}
    known = {name: made for name, made in prints.items() if made not in ([[]], [[name, None]])}
    return {name: hashlib.sha256(json.dumps(made).encode()).hexdigest() for name, made in known.items()}


def check_texts(recipe: Recipe, tokenizer: Any, cache: Path) -> None:
    """Refuse a text that is missing, or a cache that cannot be written, as `blocks_of` does, without reading.
    A text that is already tokenised need not be there; without a tokenizer that is not known."""
    for files in itertools.chain(*_token_files(recipe, tokenizer, cache)):
        try:
            for name in files.texts:
                text.check_text(name, data=recipe.data.folder)
            look_writable_cache(cache)
        except (OSError, ValueError):
            if tokenizer is None or files.opened() is None:
                raise


def _token_files(recipe: Recipe, tokenizer: Any, cache: Path) -> tuple[list[TokenFiles], list[TokenFiles]]:
    """(for the training blocks, for the held-out texts, if there are any)."""
    data = recipe.data
    needed, held_out_count = _block_counts(recipe)
    needed_tokens, names = needed * data.context, list(_training_shares(data))
    files = functools.partial(TokenFiles, tokenizer=tokenizer, cache=cache, data=data.folder)
    training = [files(names, tokens=needed_tokens)]
    if len(names) > 1 and data.order != "sequential":
        ahead = max(needed_tokens, min(AHEAD * needed_tokens, WHOLE))
        tokens = {name: ahead if _on_disk(name, data.folder) else needed_tokens for name in names}
        training = [files([name], tokens=n, whole=True) for name, n in tokens.items()]
    held_out_shares = {} if data.held_out is None else shares_of(data.held_out)
    portions = _portions(held_out_shares.values(), held_out_count)
    held_out = [
        files([name], tokens=portion * data.context, documents=data.held_out_documents)
        for name, portion in zip(held_out_shares, portions)
    ]
    return training, held_out


def _training_shares(data: Data) -> dict[str, float]:
    return {_training_split(name, data.folder): share for name, share in shares_of(data.text).items()}


def _block_counts(recipe: Recipe) -> tuple[int, int]:
    """(blocks to take from the training texts, blocks to hold out, of the same texts or of others)."""
    aside = recipe.held_out_blocks
    return recipe.steps * recipe.batch_blocks + (aside if recipe.data.held_out is None else 0), aside


def allot(total: int, shares: Sequence[float], limits: Sequence[int]) -> list[int]:
    """Whole numbers near total · share that add up to `total`, none above its limit: what a limit leaves out is filled
    up by the others, by their shares. Where all limits together are less than `total`, the limits."""
    counts, left, open_ = list(limits), min(total, sum(limits)), list(range(len(limits)))
    while True:
        open_shares = sum(shares[i] for i in open_)
        quotas = {i: left * shares[i] / open_shares for i in open_}
        full = [i for i in open_ if quotas[i] >= limits[i]]
        left -= sum(limits[i] for i in full)
        open_ = [i for i in open_ if i not in full]
        if not full or not open_:
            break
    by_remainder = sorted(open_, key=lambda i: math.floor(quotas[i]) - quotas[i])
    over = left - sum(math.floor(quotas[i]) for i in open_)
    for rank, i in enumerate(by_remainder):
        counts[i] = math.floor(quotas[i]) + (rank < over)
    return counts


def _portions(shares: Any, blocks: int) -> list[int]:
    """Blocks for each share, rounded up, so that no text is left out."""
    return [math.ceil(round(share * blocks, 6)) for share in shares]


def _end_of(blocks: int, recipe: Recipe) -> int:
    """Blocks to hold out of a text smaller than the budget, unless the recipe says how many: a tenth, or more if the
    windows of the snapshots need it, but never more than half."""
    wanted = recipe.snapshots
    windows = 1 + wanted.windows * wanted.tokens // recipe.data.context if wanted.count else 1
    return min(max(blocks // 10, windows), blocks // 2)


def _cut(blocks: Blocks, first: int, last: int) -> Blocks:
    """Blocks first … last − 1, with their documents and tokens counted, unless several texts were read in a row."""
    part = blocks.part(first, last)
    if len(part.texts) > 1:
        return part
    size = {"documents": int(np.unique(part.starts).size), "tokens": len(part) * part.context}
    return replace(part, texts=[entry | size for entry in part.texts])


def _training_split(name: str, folder: str | None) -> str:
    """The train split of a named text given without a split, which elsewhere stands for a split to measure on."""
    entry = text.TEXTS.get(name)
    if entry is None or name == "pydoc" or entry.split == "train":
        return name
    if not _on_disk(f"{name}:train", folder) and not (entry.hub is not None and hub_reachable()):
        other = f"{name}:{entry.split}"
        or_that = f", or name a split to train on, like {other}" if _on_disk(other, folder) else ""
        raise ValueError(
            f"text {name!r} has no train split here: {text.how_to_have(name, 'train')}, or give a file of your own"
            f"{or_that}."
        )
    return f"{name}:train"


def _on_disk(name: str, folder: str | None) -> bool:
    """Whether a text is on this machine; otherwise it comes over the network as it is read."""
    title = name.partition(":")[0]
    return title not in text.TEXTS or title == "pydoc" or text.file_of(name, folder) is not None
