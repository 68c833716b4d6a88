"""Perplexity of a text: per token, per word, and bits per byte."""

from __future__ import annotations

import hashlib
import math
import re
from typing import Any

from .items import TEXT, Item


def score_text(text: Any, scorer: Any, *, tokens: int) -> tuple[list[Item], dict[str, Any]]:
    """Score every token of a text once, in disjoint windows as lm-eval cuts them.

    With ℓ the sum of log-likelihoods over all windows:

        token perplexity = exp(−ℓ / tokens)        word perplexity = exp(−ℓ / words)
        bits per byte    = −ℓ / (bytes · ln 2)

    Words are what white space divides (as in lm-eval), bytes those of UTF-8; the last two do not depend on the
    tokenizer. Windows are kept as items, with the window's log-likelihood, so that two runs can be paired.

    Args:
        text: a ``decondense.text.Text``; its documents are joined.
        tokens: length of a window.

    Returns:
        (items, figures)
    """
    whole = text.joined
    name = f"{TEXT}{text.name}"
    if not 2 <= tokens <= scorer.max_length:
        raise ValueError(f"text_tokens must be between 2 and the model's context of {scorer.max_length}, got {tokens}.")
    windows = scorer.rolling_windows(whole, tokens)
    answers = scorer._loglikelihood_tokens([(None, context, scored) for context, scored in windows])
    total = sum(value for value, _ in answers)
    count = sum(len(scored) for _, scored in windows)
    words = len(re.split(r"\s+", whole))
    size = len(whole.encode("utf-8"))
    items = [
        Item(
            task=name, subtask=name, doc_id=number, item=hashlib.sha256(repr(window).encode()).hexdigest()[:16],
            prediction=None, target=None, gold=None, correct=value / len(window[1]), acc_norm=None,
            loglikelihoods=[value], greedy=None, units=[len(window[1])], cut=0,
        )
        for number, (window, (value, _)) in enumerate(zip(windows, answers))
    ]  # fmt: skip
    figures: dict[str, Any] = {"source": text.source, "sha256": text.sha256}
    figures |= {"window_tokens": tokens, "windows": len(windows)}
    figures |= {"tokens": count, "words": words, "bytes": size, "loglikelihood": total}
    figures |= {
        "token_perplexity": math.exp(-total / count),
        "word_perplexity": math.exp(min(700.0, -total / words)),
        "bits_per_byte": -total / (size * math.log(2)),
    }
    return items, figures
