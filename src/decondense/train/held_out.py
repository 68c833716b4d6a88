"""The held-out loss by text and by document, and where in the vocabulary and in the block it arises.

One pass at the end of training. A document is cut into pieces of `context` tokens, each of which the model sees alone:
the first token of a piece is not predicted, all others are, including the separator that ends the document. The loss is
the plain cross-entropy in nats per predicted token, whatever loss was trained.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from ..stack import unnoticed
from ..words import Tell, nobody
from .blocks import Blocks
from .sections import Data

BLOCKS = 16  # a longer document is cut to these, unless the recipe says otherwise
TOKENS = 8192  # per forward pass: all its logits are in float32, 5 GB for 151,936 words, and some exist three times
DECILES, OCTILES = 10, 8


@dataclass(frozen=True)
class Document:
    text: str
    number: int
    tokens: np.ndarray


def documents_in(texts: list[Blocks], data: Data, begin: int | None = None) -> list[Document]:
    """The first `held_out_documents` documents of each text, each cut to `held_out_document_tokens`; `begin` as in
    `blocks.Order`, for every piece."""
    limit = data.held_out_document_tokens or BLOCKS * data.context
    documents = []
    for blocks in texts:
        ends = [*blocks.starts[1:], len(blocks.tokens)]
        for number, (low, high) in enumerate(zip(blocks.starts[: data.held_out_documents], ends)):
            ids = np.array(blocks.tokens[low : min(high, low + limit)], dtype=np.int64)
            if begin is not None:
                ids[:: data.context] = begin
            documents.append(Document(blocks.texts[0]["name"], number, ids))
    return documents


def one_document(documents: list[Document], data: Data) -> dict[str, int]:
    """Held-out .txt file that is one document, where more were asked for → how many of its tokens are used."""
    names = [document.text for document in documents]
    files = {one.text: len(one.tokens) for one in documents if names.count(one.text) == 1 and one.text.endswith(".txt")}
    return files if data.held_out_documents > 1 else {}


def token_counts(tokens: np.ndarray, vocabulary: int) -> np.ndarray:
    """(vocabulary,): how often each token occurs."""
    counts = np.zeros(vocabulary, np.int64)
    for low in range(0, len(tokens), 1 << 24):
        counts += np.bincount(tokens[low : low + (1 << 24)], minlength=vocabulary)[:vocabulary]
    return counts


def frequency_deciles(tokens: np.ndarray, vocabulary: int) -> np.ndarray:
    """(vocabulary,): token → 0 … 9. Tokens are sorted by how often they occur in `tokens`, the most frequent first,
    and split into ten groups of about a tenth of all occurrences each; tokens that never occur are in the last."""
    counts = token_counts(tokens, vocabulary)
    order = np.argsort(-counts, kind="stable")
    middle = np.cumsum(counts[order]) - counts[order] / 2
    deciles = np.empty(vocabulary, np.int64)
    deciles[order] = np.minimum(DECILES - 1, middle * DECILES // max(1, counts.sum()))
    return deciles


def document_losses(
    model: Any, documents: list[Document], context: int, deciles: np.ndarray, *, progress: Tell = nobody,
    what: str = "held-out documents",
) -> dict[str, Any]:  # fmt: skip
    """Compute what result.json keeps: `held_out_documents`, `held_out_texts` and `held_out_by`."""
    device = next(model.parameters()).device
    losses: list[np.ndarray] = []
    groups: dict[str, list[np.ndarray]] = {"document": [], "frequency": [], "position": []}  # of every predicted token
    done, in_all = 0, sum(len(document.tokens) for document in documents)
    with torch.no_grad(), unnoticed(model):
        for row_documents, ids, lengths in _batches(documents, context):
            progress(f"tokens of {what}", done, in_all)
            done += int(lengths.sum())
            input_ids = torch.from_numpy(ids).to(device)
            logits = model(input_ids=input_ids, use_cache=False)["logits"][:, :-1].float()
            loss = F.cross_entropy(logits.transpose(1, 2), input_ids[:, 1:], reduction="none")
            positions = np.arange(1, ids.shape[1])
            predicted = positions < lengths[:, None]
            losses.append(loss.double().cpu().numpy()[predicted])
            groups["document"].append(np.broadcast_to(row_documents[:, None], predicted.shape)[predicted])
            groups["frequency"].append(deciles[ids[:, 1:][predicted]])
            groups["position"].append(np.broadcast_to(positions * OCTILES // context, predicted.shape)[predicted])

    def by(name: str, size: int) -> list[tuple[float, int]]:
        """(sum of the losses, number of tokens) of each group."""
        group_of_token = np.concatenate([np.zeros(0, np.int64), *groups[name]])
        sums = np.bincount(group_of_token, weights=np.concatenate([np.zeros(0), *losses]), minlength=size)
        return list(zip(sums.tolist(), np.bincount(group_of_token, minlength=size).tolist()))

    rows: list[dict[str, Any]] = []
    totals: dict[str, tuple[float, int]] = {}
    for document, (total, count) in zip(documents, by("document", len(documents))):
        if count:
            rows.append({"text": document.text, "document": document.number, "tokens": count, "loss": total / count})
            before = totals.get(document.text, (0.0, 0))
            totals[document.text] = (before[0] + total, before[1] + count)
    return {
        "held_out_documents": rows,
        "held_out_texts": {name: total / count for name, (total, count) in totals.items()},
        "held_out_by": {
            name: [{"tokens": n, "loss": total / n if n else None} for total, n in by(name, size)]
            for name, size in (("frequency", DECILES), ("position", OCTILES))
        },
    }


def _batches(documents: list[Document], context: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """(document of each row, ids padded on the right, lengths): pieces of similar length together, since padding costs
    time. In a causal model no token sees the padding after it, so no mask is needed."""
    cut = [
        (number, document.tokens[low : low + context])
        for number, document in enumerate(documents)
        for low in range(0, len(document.tokens), context)
    ]
    pieces = sorted((p for p in cut if len(p[1]) > 1), key=lambda p: -len(p[1]))
    while pieces:
        longest = len(pieces[0][1])
        batch, pieces = pieces[: max(1, TOKENS // longest)], pieces[max(1, TOKENS // longest) :]
        ids = np.stack([np.pad(piece, (0, longest - len(piece))) for _, piece in batch])
        yield np.array([number for number, _ in batch]), ids, np.array([len(piece) for _, piece in batch])
