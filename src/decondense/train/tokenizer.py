"""The tokenizer of a run: that of a model, bytes, or one that is learnt from the recipe's own texts.

A learnt one is a byte-level BPE (the `tokenizers` library) with ``<|endoftext|>`` as its only special token. It sees
the beginning of every text, as many characters of each as its share says, and lies in the cache of the token files
under the sha256 of what it was learnt from, so that all runs on the same texts share it.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, pre_tokenizers, trainers
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from .. import models
from ..files import write_text
from ..words import nearest
from .sections import Data, TrainedTokenizer, shares_of
from .token_files import cached, documents_of, text_identity

END = "<|endoftext|>"
VERSION = 1


def open_tokenizer(wanted: str | TrainedTokenizer, data: Data, cache: Path) -> Any:
    """Open the tokenizer that `model.tokenizer` names."""
    if isinstance(wanted, TrainedTokenizer):
        return _learnt(wanted, data, cache)
    if wanted == "bytes":
        return _bytes()
    try:
        return models.load_tokenizer(models.resolve(wanted))
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(
            f"model.tokenizer must be bytes, {{train: 8192}} or a model whose tokenizer can be had here, got "
            f"{wanted!r}: {nearest(wanted, ['bytes'], ' '.join(str(error).split()).rstrip('.') + '.')}"
        ) from None


@functools.cache  # naming its 128 special tokens takes longer than building a small model
def _bytes() -> Any:
    return ByT5Tokenizer()


def train_bpe(documents: Iterator[str], size: int) -> Any:
    """A byte-level BPE of at most `size` tokens; less where the text has no more pairs to merge."""
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=[END], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    bpe.train_from_iterator(documents, trainer)
    return bpe


def _learnt(wanted: TrainedTokenizer, data: Data, cache: Path) -> Any:
    shares = shares_of(data.text)
    what = [VERSION, text_identity(list(shares), cache, data.folder), list(shares.values()), wanted.model_dump()]
    key = f"bpe-{hashlib.sha256(json.dumps(what).encode()).hexdigest()[:20]}"
    file = cache / f"{key}.json"

    def opened() -> Any:
        return tokenizers.Tokenizer.from_file(str(file)) if file.is_file() else None

    def learn() -> None:
        write_text(file, train_bpe(_beginnings(shares, wanted.characters, data.folder), wanted.train).to_str())

    bpe = cached(cache, key, opened, learn)
    return PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=END, bos_token=END)


def _beginnings(shares: dict[str, float], characters: int, folder: str | None) -> Iterator[str]:
    """The first documents of every text, the last one cut where the text's share of the characters ends."""
    for name, share in shares.items():
        left = round(share * characters)
        for document in documents_of(name, folder)[1]:
            yield document[:left]
            left -= len(document)
            if left <= 0:
                break
