"""``measure`` with ``inputs``: batches of pixel values, features, padded token ids, whatever the model is called with.

Each sequence of a batch takes the place of a window: its tokens are those that the mask keeps, and it has its own row
of statistics. A packed row, whose position ids restart, is cut into documents, each a sequence. Sequences may differ in
length: docs/measuring.md says how each counts.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..capture import Capture
from ..files import versions
from ..geometry import counting, shape_or_type
from ..hidden_states import reader_of
from ..inputs import Named, arguments, batches_of, main_input, tell_unread, unpacked
from ..insides.transformers import is_encoder_decoder
from ..models import Source, fingerprint
from ..named_layers import ModuleReader
from ..packing import Documents, unmasked_documents
from ..stack import unwrap_peft
from ..words import several
from . import processes
from .later import Later
from .positions import position_tables, positions_of
from .result import Condensation, build
from .spectrum import SPECTRAL
from .states import Batch, StateReader, Visit, token_embedding
from .statistics import FINE_BINS, columns, trimmed
from .tally import Tally

Mask = Callable[[Batch], Tensor]


class NamedStates:
    """The outputs of named submodules, read as ``StateReader`` reads hidden states. Their order is that of the calls in
    the batch ``probe``."""

    final_norm = False

    def __init__(self, model: nn.Module, patterns: str | Sequence[str], *, probe: Batch, masked: bool) -> None:
        self.model, self.reader = model, ModuleReader(model, patterns)
        self.reader.masked = masked
        if len(set(self.reader.sides)) > 1:
            raise ValueError(
                f"modules must name layers of one stack of {type(model).__name__}, whose encoder and decoder read "
                "different tokens, got both: measure them one after the other."
            )
        found = self.reader.names
        if len(found) < 2:
            raise ValueError(f"modules must name at least 2 layers for a curve over depth, got only {found[0]!r}.")
        self.layers, self.states = len(found) - 1, len(found)
        self._captured: tuple[Batch, Capture] | None = None
        self._once(probe)
        self.names, self.reader.ordered = self.reader.names, True
        self.stack = "modules " + (patterns if isinstance(patterns, str) else ", ".join(patterns))

    def mask(self, batch: Batch) -> Tensor | None:
        return self._once(batch).attention_mask

    def read(self, batch: Batch, visit: Visit) -> None:
        with torch.inference_mode():
            for number, z in enumerate(self._once(batch).states):
                visit(number, z)

    def _once(self, batch: Batch) -> Capture:
        """Run a batch once, for states and mask: torch's own stacks may get their padding only inside of the model."""
        if self._captured is None or self._captured[0] is not batch:
            self._captured = None
            with torch.inference_mode():
                capture = self.reader.once(arguments(self.model, batch))
            capture.targets(batch.get("labels"), self.reader.sides)
            self._captured = batch, capture
        return self._captured[1]


@dataclass
class Row:
    """A sequence: its place in the batch, how many of its tokens count, and for every state that was read the
    statistics of ``columns(tokens)``."""

    place: dict[str, int]
    tokens: int = 0
    statistics: dict[int, np.ndarray] = field(default_factory=dict)

    def table(self, states: int, names: int, spectral: int) -> np.ndarray:
        """Return (states, names), NaN for distances that the sequence is too short for and for states not read. The
        last ``spectral`` columns are the spectral statistics."""
        table = np.full((states, names), np.nan)
        for number, values in self.statistics.items():
            head = len(values) - spectral
            table[number, :head], table[number, names - spectral :] = values[:head], values[head:]
        return table


@dataclass
class Gathered:
    """What a process has read: counts (states, fine bins), and rows by (batch, sequence in it)."""

    counts: np.ndarray
    rows: dict[tuple[int, int], Row] = field(default_factory=dict)
    width: int = 0


def measure_batches(
    source: Source, network: nn.Module, inputs: Any, *, modules: str | Sequence[str] | None, mask: Mask | None,
    stack: str, init: bool, settings: dict[str, Any], progress: Callable[[int, int], None],
) -> Condensation:  # fmt: skip
    """Measure batches; at most ``settings["windows"]`` sequences are read. Under a launcher every process iterates over
    the same batches and measures its share of them."""
    rank, world = processes.join_group()
    main = main_input(unwrap_peft(network))
    batches = (checked(batch, network) for batch in batches_of(inputs, main))
    first = next(batches, None)
    if first is None:
        raise ValueError("inputs must hold at least one batch, got none.")
    _size(first, main)
    reader_of(network, modules)  # refuses a model without hidden states or without layers of these names
    reader: Any
    if modules is None:
        reader = StateReader(network, stack=stack, probe=first)
        if mask is None:
            tell_unread(first, main)
    else:
        reader = NamedStates(network, modules, probe=first, masked=mask is not None)
    share = Gathered(np.zeros((reader.states, FINE_BINS), dtype=np.int64))
    digest, seen, unread, packed, shifted = hashlib.sha256(), 0, False, False, False
    # A table of a class of its own (OPT), or with a row for padding (RoBERTa), is of positions that leave padding out.
    from_padding = any(type(table) is nn.Embedding and table.padding_idx is None for table in position_tables(network))
    firsts, given = [], 0  # of every batch: the number of its first row among all rows
    waiting: list[Callable[[], None]] = []  # a GPU gets the next batch before the host waits for this one
    for number, batch in enumerate(chain([first], batches)):
        rows = _size(batch, main)
        positions = batch.get("position_ids")  # packed rows are cut as in the loss and the monitor
        cut = None if positions is None else unmasked_documents(positions, reader.mask(batch), rows)
        packed, size = packed or cut is not None, rows if cut is None else len(cut.index)
        unread = seen + size > settings["windows"] or seen == settings["windows"]
        if seen == settings["windows"]:
            break
        taken = min(size, settings["windows"] - seen)
        read = taken if cut is None else cut.place(taken - 1)["row"] + 1
        _digest(digest, batch, rows, read=read, decodes=is_encoder_decoder(network))
        padding = batch.get("attention_mask") if from_padding and not shifted and positions is None else None
        if isinstance(padding, Tensor) and padding.ndim == 2:
            shifted = bool(((padding[:, :1] == 0).any(1) & padding.any(1)).any())
        firsts.append(given)
        given += rows
        if number % world == rank:
            waiting.append(_read(share, reader, batch, (number, rows, taken), mask, cut, spectral=settings["spectral"]))
            if len(waiting) > 1:
                waiting.pop(0)()
        seen += taken
        progress(seen, settings["windows"])
    for collect in waiting:
        collect()
    shares = processes.gather(share, world)
    sequences = dict(sorted((key, row) for part in shares for key, row in part.rows.items()))
    if not sequences:
        raise ValueError(
            f"inputs must hold sequences of at least 2 tokens that count, got none among {seen}: check the masks."
        )
    lengths = [one.tokens for one in sequences.values()]
    names = columns(max(lengths), spectral=settings["spectral"])
    spectral = len(SPECTRAL) if settings["spectral"] else 0
    tables = {i: one.table(reader.states, len(names), spectral) for i, one in enumerate(sequences.values())}
    name, text_source = "inputs", f"{several(len(lengths), 'sequence')} of {', '.join(sorted(first))}"
    if isinstance(inputs, Named):
        name, text_source = inputs.name, inputs.source
    return build(
        Tally(names, sum((part.counts for part in shares[1:]), shares[0].counts), tables),
        model=identity(source, network, reader, init=init, width=max(part.width for part in shares)),
        text={"name": name, "source": text_source, "documents": len(lengths), "sha256": digest.hexdigest()},
        settings=settings | {"windows": len(lengths), "tokens": max(lengths), "inputs": sorted(first)},
        origins=[
            {"batch": batch, **one.place, "input": firsts[batch] + one.place["row"], "tokens": one.tokens}
            for (batch, _), one in sequences.items()
        ],
        final_norm=reader.final_norm,
        versions=versions("decondense", "torch", "transformers", "numpy"),
        names=getattr(reader, "names", None),
        notes=_notes(network, first, lengths, seen, unread=unread, packed=packed, shifted=shifted),
    )


def identity(source: Source, network: nn.Module, reader: Any, *, init: bool, width: int) -> dict[str, Any]:
    """Return the ``model`` section of a record."""
    return {key: getattr(source, key) for key in ("name", "kind", "description", "revision")} | {
        "init": init,
        "architecture": type(reader.model).__name__,
        "stack": reader.stack,
        "layers": reader.layers,
        "width": width,
        "parameters": sum(p.numel() for p in network.parameters()),
        "dtype": str(next(network.parameters()).dtype).removeprefix("torch."),
        "weights": fingerprint(network),
    }


def _size(batch: Batch, name: str) -> int:
    """Return the number of sequences in a batch; ``name`` is the model's main input."""
    tensors = [v for v in (batch.get(name), *batch.values()) if isinstance(v, Tensor) and v.ndim]
    if not tensors:
        raise ValueError(f"a batch must hold tensors (sequences, …), got {', '.join(batch) or 'nothing'}.")
    if not len(tensors[0]):
        which = next(key for key, value in batch.items() if value is tensors[0])
        raise ValueError(
            f"a batch must hold at least 1 sequence, got {which} of {tuple(tensors[0].shape)}: leave empty ones out."
        )
    return len(tensors[0])


def checked(batch: Batch, network: nn.Module) -> Batch:
    """Refuse token ids and positions that the model has no vectors for: a GPU would only report some failed assertion,
    and later. Not checked beside pixels and the like, as ids may then stand for those."""
    ids = batch.get("input_ids")
    if isinstance(ids, Tensor) and ids.ndim == 1:
        raise ValueError(f"inputs must be (batch, tokens), got {tuple(ids.shape)}: give ids[None].")
    only_ids = not any(isinstance(v, Tensor) and v.is_floating_point() for k, v in batch.items() if k != "input_ids")
    with contextlib.suppress(TypeError):  # a model that reads no token ids
        size = getattr(token_embedding(network), "num_embeddings", None)
        if size is None or not isinstance(ids, Tensor) or not ids.numel() or not only_ids:
            return batch
        low, high = ids.min().item(), ids.max().item()
        if ids.is_floating_point() or low < 0 or high >= size:
            got = str(ids.dtype) if ids.is_floating_point() else f"{high if high >= size else low}"
            raise ValueError(
                f"token ids must be whole numbers from 0 to {size - 1}, the vocabulary of {type(network).__name__}, "
                f"got {got}: take the tokenizer of this model."
            )
        positions = batch.get("position_ids")
        longest = int(positions.max()) + 1 if isinstance(positions, Tensor) else ids.shape[-1]
        limit = positions_of(network, given=isinstance(positions, Tensor))
        if longest > limit:
            raise ValueError(
                f"inputs must have at most {limit} tokens, the positions of {type(network).__name__}, got {longest}: "
                "cut them."
            )
    return batch


def _digest(digest: Any, batch: Batch, rows: int, *, read: int, decodes: bool) -> None:
    """Add the first ``read`` of the ``rows`` sequences, one by one: how they were put into batches, and padded to one
    length there, is no part of them. A tensor with a single row holds for all. ``decodes``: labels are a decoder's."""
    given = sorted(unpacked(batch).items())
    tensors = {key: value.detach().cpu() for key, value in given if isinstance(value, Tensor)}
    masks = {side: tensors.get(f"{side}attention_mask") for side in ("", "decoder_")}
    labels = tensors.get("labels")
    if decodes and labels is not None and labels.ndim > 1:
        counts = labels != -100 if masks["decoder_"] is None else masks["decoder_"] != 0
        masks["labels"] = counts.flip(1).cumsum(1).flip(1)  # all that stands before a label is read
        masks["decoder_"] = masks["labels"] if masks["decoder_"] is None else masks["decoder_"]
    shared = [key for key, value in tensors.items() if not value.ndim or len(value) not in (1, rows)]
    whole = [_bytes(key, tensors.pop(key)) for key in shared]
    for row in range(read):
        for key, value in tensors.items():
            own = value[row if len(value) == rows else 0]
            mask = masks.get(key, masks["decoder_" if key.startswith("decoder_") else ""])
            if mask is not None and mask.ndim == 2 and len(mask) == rows and own.shape[:1] == mask.shape[1:]:
                kept = mask[row].nonzero().flatten().tolist() or [0, -1]
                own = own[kept[0] : kept[-1] + 1]  # with what is left out between them: it takes up positions
            digest.update(_bytes(key, own))
        for content in whole:
            digest.update(content)


def _bytes(key: str, value: Tensor) -> bytes:
    own = value.clone(memory_format=torch.contiguous_format)  # numpy fixes the size of a storage: of a copy's
    content = own.reshape(-1).view(torch.uint8).numpy().tobytes()
    return f"{key} {value.dtype} {tuple(value.shape)}".encode() + content


def _read(
    into: Gathered, reader: Any, batch: Batch, taken: tuple[int, int, int], mask: Mask | None, cut: Documents | None,
    *, spectral: bool,
) -> Callable[[], None]:  # fmt: skip
    """Run a batch through the model → a function that adds its statistics to ``into``. ``taken``: (number of the batch,
    its rows, how many of its sequences are read)."""
    number, rows, most = taken
    masks = [reader.mask(batch), None if mask is None else _chosen(mask, batch)]
    masks = [counting(one) for one in masks if one is not None]
    counts = masks[0] if masks else None
    if len(masks) == 2:
        counts = masks[0] & masks[1].to(masks[0].device)
    places = _places(counts, cut, most)  # once and not for every state: on a GPU each call waits
    later = Later(spectral=spectral)

    def visit(at: int, z: Tensor) -> None:
        if len(z) != rows or (counts is not None and counts.shape != z.shape[:2]):
            got, remedy = f"{tuple(z.shape)}", ""
            if counts is not None:
                got += f" and a mask of {tuple(counts.shape)}"
                remedy = ": if the model shortens its sequences, leave the mask out and give sequences of one length"
            raise ValueError(
                f"state {at} of a batch of {several(rows, 'sequence')} must be (sequences, tokens, width) and its mask "
                f"(sequences, tokens), got {got}{remedy}."
            )
        into.width = max(into.width, z.shape[2])
        parts = [(range(min(rows, most)), z[:most])]
        if places is not None:
            tokens = z.flatten(0, 1) if cut is None else cut.flat(z)
            places[:] = [(which, index.to(z.device)) for which, index in places]
            parts = [(which, tokens[index]) for which, index in places]
        for which, part in parts:
            if part.shape[1] < 2:
                continue  # a single token makes no pair
            later.add((at, which, part.shape[1]), part, f"hidden state {min(at, reader.layers)} of batch {number}")

    def collect() -> None:
        for keys, of_states in later.results():
            for (at, which, tokens), scalars, counted in zip(keys, of_states.scalars.numpy(), of_states.counts.numpy()):
                into.counts[at] += counted
                for i, row in zip(which, scalars):
                    if (number, i) not in into.rows:
                        into.rows[number, i] = Row({"row": i} if cut is None else cut.place(i))
                    entry = into.rows[number, i]
                    entry.tokens = max(entry.tokens, tokens)
                    entry.statistics[at] = row

    reader.read(batch, visit)
    later.launch()
    return collect


def _chosen(mask: Mask, batch: Batch) -> Tensor:
    value: Any = mask(batch)
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"mask must return (batch, tokens), true where a token counts, got {shape_or_type(value)}: it is given a "
            "batch as a mapping of the model's arguments."
        ) from error


def _places(counts: Tensor | None, cut: Documents | None, most: int) -> list[tuple[range, Tensor]] | None:
    """Return the first ``most`` sequences as ``trimmed`` does, each as the indices of its tokens in the flattened rows;
    None where every token of every row counts."""
    if cut is not None:
        inside = cut.mask if counts is None else cut.mask & cut.gather(counts.to(cut.mask.device))
        return trimmed(cut.index[:most], inside[:most])
    if counts is None or bool(counts.all()):
        return None
    return trimmed(torch.arange(counts.numel(), device=counts.device).view(counts.shape)[:most], counts[:most])


def _notes(
    network: nn.Module, batch: Batch, lengths: list[int], seen: int, *, unread: bool, packed: bool, shifted: bool
) -> list[str]:
    notes, low, high = [], min(lengths), max(lengths)
    if shifted:
        notes.append(
            f"sequences begin with padding, from which {type(network).__name__} counts its positions: the numbers "
            "depend on how much there is; give position_ids, or pad at the end."
        )
    if packed:
        notes.append("packed rows are cut into documents where position ids restart: each is a sequence.")
    if unread:
        notes.append(f"these are the first {several(seen, 'sequence')} of the inputs: windows=… says how many.")
    if seen > len(lengths):
        left = several(seen - len(lengths), "sequence")
        notes.append(f"left out: {left} with fewer than 2 tokens that count.")
    if low < high:
        notes.append(
            f"the sequences have {low} to {high} tokens: in every mean each sequence counts the same, in the histogram "
            "and the quantiles each pair of tokens."
        )
    tokens = ("cls_token", "class_embedding")
    if "pixel_values" in batch and any(name.endswith(tokens) for name, _ in network.named_parameters()):
        notes.append("the first token is the class token: mean_cosine_without_first leaves it out.")
    return notes
