"""Draw windows of exactly N tokens from a text, by seed, so that none overlap."""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from .text import Text, stretches
from .words import several

LONGEST = 30  # letters of a word, nearly always
BEFORE_A_WORD = re.compile(r"[\s\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")  # white space; kana and Chinese characters


@dataclass(frozen=True)
class Windows:
    """``ids`` (windows, tokens); ``origins``: for each window the document it begins in, and its first
    character and the one after its last in the joined text."""

    ids: np.ndarray
    origins: list[dict[str, int]]


def draw_windows(text: Text, tokenizer: Any, *, windows: int, tokens: int, seed: int = 0) -> Windows:
    """Draw ``windows`` windows of exactly ``tokens`` tokens, so that none overlap.

    The text is cut into as many equal stretches as windows, and one window is placed at random (``seed``) in
    each of them, beginning at a word. Where the stretches are too short for that, the whole text is tokenised
    and the same is done in tokens, so that a text with windows × tokens tokens is always enough. The special
    tokens the tokenizer puts around a text ([CLS], <bos>) are part of every window.
    """
    before, after = special_tokens(tokenizer)
    body = tokens - len(before) - len(after)
    if body < 1:
        raise ValueError(f"tokens must leave room for the tokenizer's {len(before) + len(after)} special tokens.")
    places = np.random.default_rng(seed).random(windows)
    drawn = _by_character(text, tokenizer, places, body, tokens) or _by_token(text, tokenizer, places, body, tokens)
    ids = np.array([[*before, *chosen, *after] for chosen, _, _ in drawn], dtype=np.int64)
    documents = np.searchsorted(text.starts, [start for _, start, _ in drawn], side="right") - 1
    origins = [{"document": int(d), "start": start, "end": end} for d, (_, start, end) in zip(documents, drawn)]
    return Windows(ids, origins)


Drawn = list[tuple[list[int], int, int]]


def special_tokens(tokenizer: Any) -> tuple[list[int], list[int]]:
    """The tokens that the tokenizer puts before a text and after it."""
    try:
        bare = list(tokenizer("word", add_special_tokens=False)["input_ids"])
        full = list(tokenizer("word")["input_ids"])
        _ = [operator.index(i) for i in (*bare, *full)]  # a batch of one sequence would pass for one token
    except (TypeError, KeyError, AttributeError, IndexError) as error:
        raise TypeError(
            "the tokenizer must be one of transformers, called with a string and returning input_ids, a list of "
            f"numbers, got {type(tokenizer).__name__}: wrap it, as PreTrainedTokenizerFast(tokenizer_object=…) does."
        ) from error
    # from the end: of a word that the tokenizer cannot read nothing is left, and what there is stands before a text
    for i in reversed(range(len(full) - len(bare) + 1)):
        if full[i : i + len(bare)] == bare:
            return full[:i], full[i + len(bare) :]
    return [], []


def _encode(tokenizer: Any, piece: str) -> tuple[list[int], list[int]]:
    """Token ids and, for each, the end of its characters in ``piece``."""
    if getattr(tokenizer, "is_fast", False):
        out = tokenizer(piece, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        return list(out["input_ids"]), [end for _, end in out["offset_mapping"]]
    ids = list(tokenizer(piece, add_special_tokens=False, verbose=False)["input_ids"])
    # Without offsets the characters are spread evenly over the tokens; only the record of origins uses them.
    return ids, [round((i + 1) * len(piece) / max(1, len(ids))) for i in range(len(ids))]


def _by_character(text: Text, tokenizer: Any, places: np.ndarray, body: int, tokens: int) -> Drawn | None:
    """One window per equal stretch of characters, or ``None`` when a stretch holds too few tokens. The places
    depend on the text alone, so two tokenizers see the same passages."""
    joined, n = text.joined, len(places)
    edges = [len(joined) * i // n for i in range(n + 1)]
    reserve = 8 * tokens  # characters; English has 4 to 5 per token of a large vocabulary
    drawn: Drawn = []
    for place, low, high in zip(places, edges[:-1], edges[1:]):
        start = _word_start(joined, low + int(place * max(0, high - low - reserve)), high)
        length = reserve
        while True:
            cut = min(high, start + length)
            ids, ends = _encode(tokenizer, joined[start:cut])
            # A few tokens to spare, so that the cut does not change the last token we keep.
            if len(ids) >= body + 8 or (cut == high and len(ids) >= body):
                break
            if cut == high:
                return None
            length *= 2
        drawn.append((ids[:body], start, start + ends[body - 1]))
    return drawn


def _word_start(joined: str, start: int, high: int) -> int:
    """The next beginning of a word from `start` on; `start` itself where none is near, or every window of a text
    without spaces would begin at a line."""
    last = min(high - 1, start + LONGEST)
    return next((at for at in range(start, last + 1) if at == 0 or BEFORE_A_WORD.match(joined[at - 1])), start)


def _by_token(text: Text, tokenizer: Any, places: np.ndarray, body: int, tokens: int) -> Drawn:
    ids: list[int] = []
    ends: list[int] = []
    for offset, piece in stretches(text.joined, 50_000):
        piece_ids, piece_ends = _encode(tokenizer, piece)
        ids += piece_ids
        ends += [offset + e for e in piece_ends]
    n, missing = len(places), len(places) * body - len(ids)
    if missing > 0:
        possible = len(ids) // body
        fewer = f"ask for at most {several(possible, 'window')}, shorter ones"
        remedy = fewer if possible else "ask for shorter windows"
        special = f" without the {several(tokens - body, 'special token')} in each" if tokens > body else ""
        raise ValueError(
            f"text {text.name!r} must hold {several(n, 'window')} of {tokens} tokens ({n * body} tokens{special}), it "
            f"has {len(ids)}, {missing} too few: {remedy}, or give more text."
        )
    drawn: Drawn = []
    for i, place in enumerate(places):
        low, high = len(ids) * i // n, len(ids) * (i + 1) // n
        start = low + int(place * (high - low - body + 1))
        begin = ends[start - 1] if start else 0
        drawn.append((ids[start : start + body], begin, ends[start + body - 1]))
    return drawn
