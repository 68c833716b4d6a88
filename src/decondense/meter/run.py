"""``measure``: run windows of text through a model and collect statistics of every hidden state."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .. import models
from ..checks import RESAMPLINGS, TOO_FEW_RESAMPLINGS, check_choice, check_flags, is_whole
from ..files import AnyPath, versions
from ..geometry import shape_or_type
from ..insides.torch import unwrapped
from ..stack import evaluating
from ..text import open_text
from ..windows import draw_windows
from ..words import nobody, several
from . import processes
from .batches import Mask, checked, identity, measure_batches
from .later import Later
from .positions import positions_of
from .result import Condensation, build
from .states import STACKS, StateReader, token_embedding
from .statistics import FINE_BINS, columns
from .tally import Tally

TEXT, TOKENS = "wikitext-2", 512
Stage = Callable[[str], None]


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a measurement; ``result`` holds what was measured until then, or ``None``."""

    def __init__(self, result: Condensation | None) -> None:
        super().__init__("measurement interrupted")
        self.result = result


def measure(
    model: AnyPath | tuple[Any, Any] | torch.nn.Module,
    *,
    text: AnyPath | Iterable[Any] = TEXT,
    inputs: Any = None,
    modules: str | Sequence[str] | None = None,
    mask: Mask | None = None,
    windows: int = 100,
    tokens: int = TOKENS,
    seed: int = 0,
    spectral: bool = False,
    released: bool = False,
    stack: str = "decoder",
    init: bool = False,
    revision: str | None = None,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    trust_remote_code: bool = False,
    data: AnyPath | None = None,
    column: str | None = None,
    batch: int | None = None,
    last: int = 3,
    bootstrap: int = 2000,
    label: str | None = None,
    progress: Callable[[int, int], None] | None = None,
    stage: Stage | None = None,
    partial: AnyPath | None = None,
    resume: bool = False,
) -> Condensation:
    """Measure how condensed the hidden states of a model are.

    Args:
        model: hub id, folder, GGUF file, bundled name, or ``(model, tokenizer)`` in memory; with ``inputs`` a model
            alone is enough.
        text: a named text, a file, ``"-"`` for stdin, strings, or a table; see ``decondense.text``.
        inputs: instead of a text, batches of what the model reads: a tensor (token ids, pixel values, features), a
            mapping of its arguments, which may have a mask, or an iterable of either, such as a DataLoader. The first
            ``windows`` sequences take the place of windows, each with the tokens that its mask keeps; see
            docs/measuring.md.
        modules: with ``inputs``: patterns of submodules whose outputs (batch, tokens, width) are measured instead of
            the model's hidden states, for any ``nn.Module``; as in ``regularize``. Their order is that of the calls.
        mask: with ``inputs``: a function of a batch that returns (batch, tokens), true where a token counts, like
            ``lambda batch: batch["input_ids"] == image_token``; tokens that the attention mask leaves out stay out.
        windows, tokens, seed: the number of windows (with ``inputs``: at most so many sequences), their exact length
            (not with ``inputs``), and the seed of their places, of the bootstrap and, with ``init``, of the weights.
        spectral: also effective rank, share of the top singular value, distance to rank one, HFC/LFC ratio,
            participation ratio, IsoScore, matrix entropy and spectral slope.
        released: also the histogram of the matrices averaged over windows, as the published figures were made;
            holds one N×N sum per hidden state.
        stack: "decoder" or "encoder" of an encoder–decoder.
        init: measure the same architecture, freshly initialised.
        dtype, device, revision, trust_remote_code: see ``decondense.models.load``. A model in memory keeps its dtype
            and device.
        data: folder of named texts; default ``$DECONDENSE_DATA``.
        column: the column of a table, or field of JSON lines, that holds the documents; default "text" and the like.
        batch: windows per forward pass; default 4, on a GPU 16 (fewer if they are longer than 512 tokens, or if each
            process has fewer). Changes nothing but rounding. ``inputs`` keep their own batches.
        last: how many last states the ``last`` statistic averages.
        bootstrap: resamplings of the windows for the 95 % intervals.
        label: what tables and figures call a model in memory; default its class.
        progress: called with (windows done, windows in all).
        stage: called with a few words on the current step: loading, or which state of which windows.
        partial: a folder in which progress is saved; ``resume`` continues from there.

    Started by torchrun or ``accelerate launch``, the windows are split over the processes and every process
    returns the whole result.
    """
    check(**locals())
    windows, tokens, seed, last, bootstrap = map(int, (windows, tokens, seed, last, bootstrap))  # no JSON of numpy's
    batch = None if batch is None else int(batch)
    progress = progress or nobody
    loading = {"dtype": dtype, "device": device, "init": init, "seed": seed, "trust_remote_code": trust_remote_code}
    if inputs is not None:
        other = not isinstance(text, str) or text != TEXT
        given = {"text": other, "tokens": tokens != TOKENS, "released": released, "partial": partial is not None}
        given |= {"data": data is not None, "column": column is not None}
        for name, is_given in given.items():
            if is_given:
                raise ValueError(
                    f"{name} has no meaning beside inputs, which take the place of a text: leave out {name} or inputs."
                )
        source, network, _ = _open_model(model, label, revision, loading, reads_text=False)
        settings = {"windows": windows, "seed": seed, "spectral": spectral, "last": last, "bootstrap": bootstrap}
        with evaluating(network):
            return measure_batches(
                source, network, inputs, modules=modules, mask=mask, stack=stack, init=init, settings=settings,
                progress=progress,
            )  # fmt: skip
    if modules is not None or mask is not None:
        raise ValueError("modules and mask need inputs, batches of what the model reads: give inputs too.")
    rank, world = processes.join_group()
    stage = stage or nobody
    if not isinstance(model, (str, os.PathLike)):
        _open_model(model, label, revision, loading)  # a model that cannot be measured is refused before a text is read
    stage("reading the text")
    opened = open_text(text, data=data, column=column)
    stage("loading the model")
    source, network, tokenizer = _open_model(model, label, revision, loading)
    _check_length(network, tokens)
    trained = None if init or source.kind != "folder" else models.trained_context(Path(source.location))
    notes = list(opened.notes)
    if trained is not None and tokens > trained:
        notes.append(f"windows of {tokens} tokens are longer than any text this model was trained on: take {trained}.")
    stage("drawing windows")
    drawn = draw_windows(opened, tokenizer, windows=windows, tokens=tokens, seed=seed)
    checked({"input_ids": torch.from_numpy(drawn.ids)}, network)
    unknown = float(np.mean(drawn.ids == getattr(tokenizer, "unk_token_id", None)))
    if unknown > 0.5:
        notes.append(f"{100 * unknown:.0f} % of the tokens are the unknown token: the tokenizer cannot read this text.")
    about_text: dict[str, Any] = {key: getattr(opened, key) for key in ("name", "source", "sha256")}
    about_text |= {"documents": len(opened.documents), "characters": len(opened.joined)}
    if batch is None:
        device_type = next(network.parameters()).device.type
        batch = windows_at_once(device_type, windows=windows, tokens=tokens, world=world)
        batch = min(processes.gather(batch, world))  # all processes must cut the same groups, with or without a GPU
    settings = {
        "windows": windows, "tokens": tokens, "seed": seed, "batch": batch, "spectral": spectral, "released": released,
        "last": last, "bootstrap": bootstrap,
    }  # fmt: skip
    with evaluating(network):
        reader = StateReader(network, stack=stack)
        about_model = identity(source, network, reader, init=init, width=reader.width)
        same_model = {name: value for name, value in about_model.items() if name != "name"}  # the model may have moved
        keyed = {name: value for name, value in settings.items() if name != "batch"}  # another device may be used
        read_ids = hashlib.sha256(drawn.ids.tobytes()).hexdigest()  # the tokenizer may have changed
        parts_of_key = [same_model, opened.sha256, read_ids, keyed, columns(tokens, spectral=spectral)]
        key = hashlib.sha256(json.dumps(parts_of_key).encode()).hexdigest()
        finish = functools.partial(
            build, model=about_model, text=about_text, settings=settings, origins=drawn.origins, notes=notes,
            final_norm=reader.final_norm, versions=versions("decondense", "torch", "transformers", "numpy"),
        )  # fmt: skip
        parts = _resume(partial, key) if resume else {}
        seen = {window for part in parts.values() for window in part.rows}
        tally = parts.get(rank, _empty(reader, settings))
        # Tallies of ranks that this run no longer has: merged at the end only, never saved into another rank's file.
        orphaned = [part for number, part in parts.items() if number >= world and rank == 0]
        groups = [[w for w in range(i, min(i + batch, windows)) if w not in seen] for i in range(0, windows, batch)]
        own_groups = [group for group in groups[rank::world] if group]
        done, total = len(seen), len(seen) + sum(map(len, own_groups))
        store = None if partial is None else Path(partial) / f"partial-{rank}.npz"
        interval, saved = float(os.environ.get("DECONDENSE_CHECKPOINT_SECONDS", "20")), time.monotonic()
        try:
            progress(done, total)
            for group, of_batch in _tallies(reader, torch.from_numpy(drawn.ids), own_groups, settings, stage):
                tally.merge(of_batch)  # a batch counts only once all of its states have been seen
                done += len(group)
                progress(done, total)
                if store is not None and time.monotonic() - saved >= interval:
                    tally.save(store, key)
                    saved = time.monotonic()
        except KeyboardInterrupt:
            if store is not None and tally.rows:
                tally.save(store, key)
            others = [part for number, part in parts.items() if number != rank]  # as saved: they may run on
            merged = functools.reduce(Tally.merge, others, tally)
            raise Interrupted(finish(merged) if merged.rows else None) from None
        stage("computing the intervals")
        return finish(
            functools.reduce(Tally.merge, processes.gather(functools.reduce(Tally.merge, orphaned, tally), world))
        )


def windows_at_once(device: str, *, windows: int, tokens: int, world: int) -> int:
    """Return the default number of windows per forward pass. With 4 a GPU waits for the host; more tokens than 16 · 512
    might not fit in its memory; and every process should get its share of the windows."""
    return 4 if device != "cuda" else max(1, min(16, 16 * 512 // tokens, -(-windows // world)))


def check(model: Any, *, inputs: Any = None, **options: Any) -> None:
    """Refuse bad options of ``measure``, and the name of a model that is not there, before any other work."""
    least_of = {"windows": 1, "tokens": 2, "batch": 1, "last": 1, "bootstrap": RESAMPLINGS, "seed": 0}
    for name, least in least_of.items():
        value = options.get(name, least)
        if name == "batch" and value is None:
            continue
        most = 2**63 - 1 if name == "seed" else 10**9
        if not is_whole(value, least) or value > most:
            limit = f" and at most {most}" if isinstance(value, int) and value > most else ""
            reason = f": {TOO_FEW_RESAMPLINGS}" if name == "bootstrap" and not limit else ""
            raise ValueError(f"{name} must be an integer of at least {least}{limit}, got {value!r}{reason}.")
    mask = options.get("mask")
    if mask is not None and not callable(mask):
        raise TypeError(
            f"mask must be a function of a batch that returns (batch, tokens), got {shape_or_type(mask)}: a tensor "
            "goes into the batch, as its attention_mask."
        )
    check_choice("stack", options.get("stack", STACKS[0]), STACKS)
    flags = ("spectral", "released", "init", "trust_remote_code", "resume")
    check_flags(**{name: options[name] for name in flags if name in options})
    if inputs is None and isinstance(model, (str, os.PathLike)):
        models.check(model, **{k: options[k] for k in ("revision", "dtype", "trust_remote_code") if k in options})


def _open_model(
    model: Any, label: str | None, revision: str | None, loading: dict[str, Any], *, reads_text: bool = True
) -> tuple[models.Source, Any, Any]:
    """Return (source, model, tokenizer)."""
    if isinstance(model, (str, os.PathLike)):
        source = models.resolve(model, revision=revision)
        if loading["device"] is None:
            loading = loading | {"device": processes.local_device()}
        return source, *models.load(source, head=False, tokenizer=reads_text, **loading)
    if not reads_text and isinstance(model, torch.nn.Module):
        model = (model, None)
    if isinstance(model, torch.nn.Module):
        token_embedding(unwrapped(model))  # without token ids, asking for a tokenizer would be no help
    pair = model if isinstance(model, (tuple, list)) else ()
    if len(pair) != 2 or not isinstance(pair[0], torch.nn.Module):
        got = ", ".join(type(one).__name__ for one in pair)
        got = f"({got})" if len(pair) == 2 else f"{len(pair)} items" if pair else type(model).__name__
        raise TypeError(
            f"model must be a name, a path or a pair (model, tokenizer), got {got}: call measure((model, tokenizer)), "
            "or measure(model, inputs=…) with batches of what it reads."
        )
    for name, value in {"revision": revision, **loading}.items():
        if value and name != "seed":  # it would have no effect, and the record would still say `init`
            raise ValueError(
                f"{name} is for a model that measure loads by its name, got {value!r} with a model in memory: leave it "
                "out, and change the model itself."
            )
    network, tokenizer = unwrapped(pair[0]), pair[1]
    return models.Source(type(network).__name__, "memory", "", label or type(network).__name__), network, tokenizer


def _tallies(
    reader: StateReader, ids: torch.Tensor, groups: Iterable[list[int]], settings: dict[str, Any], stage: Stage
) -> Iterator[tuple[list[int], Tally]]:
    """Yield (windows, their tally) of every batch. A GPU gets the next batch before the host waits for this one."""
    waiting: list[tuple[list[int], Callable[[], Tally]]] = []
    for group in groups:
        waits, finish = _batch(reader, ids[group], group, settings, stage)
        waiting.append((group, finish))
        while len(waiting) > waits:
            windows, finish = waiting.pop(0)
            yield windows, finish()
    for windows, finish in waiting:
        yield windows, finish()


def _batch(
    reader: StateReader, ids: torch.Tensor, windows: list[int], settings: dict[str, Any], stage: Stage
) -> tuple[bool, Callable[[], Tally]]:
    """Run a batch through the model → (whether a GPU is still working on it, a function that returns its tally)."""
    tally = _empty(reader, settings)
    rows = np.full((reader.states, len(windows), len(tally.columns)), np.nan)
    last = reader.layers
    later = Later(spectral=settings["spectral"])

    def visit(number: int, z: torch.Tensor) -> None:
        stage(f"state {min(number, last)} of {last} of the next {several(len(windows), 'window')}")
        where = f"hidden state {min(number, last)} of windows {windows[0]}–{windows[-1]}"
        later.add(number, z, where, matrix=None if tally.matrices is None else torch.from_numpy(tally.matrices[number]))

    def finish() -> Tally:
        for numbers, of_states in later.results():
            tally.counts[numbers] += of_states.counts.numpy()
            rows[numbers] = of_states.scalars.numpy()
        tally.rows.update(zip(windows, rows.swapaxes(0, 1)))
        return tally

    reader.read(ids, visit)
    later.launch()
    return bool(later.sent), finish


def _empty(reader: StateReader, settings: dict[str, Any]) -> Tally:
    names = columns(settings["tokens"], spectral=settings["spectral"])
    released = settings["tokens"] if settings["released"] else None
    return Tally.empty(reader.states, names, FINE_BINS, released_tokens=released)


def _check_length(network: Any, tokens: int) -> None:
    configured = getattr(getattr(network, "config", None), "max_position_embeddings", None) or math.inf
    limit = min(configured, positions_of(network, given=False))
    if tokens > limit:
        raise ValueError(
            f"tokens must be at most {limit}, what this model was built for, got {tokens}: give tokens={limit}, or "
            f"--tokens {limit}."
        )


def _resume(folder: AnyPath | None, key: str) -> dict[int, Tally]:
    """Read the partial tallies in a folder, by the rank of the process that saved them."""
    if folder is None:
        raise ValueError("resume needs the folder of the partial measurement, got none: give it as partial=….")
    parts: dict[int, Tally] = {}
    file_of_window: dict[int, str] = {}
    for path in sorted(Path(folder).glob("partial-*.npz")):
        if not (match := re.fullmatch(r"partial-(0|[1-9][0-9]*)\.npz", path.name)):
            raise ValueError(f"{path} is no partial measurement: delete it and start again.")
        parts[int(match[1])] = part = Tally.open(path, key)
        if duplicates := file_of_window.keys() & part.rows.keys():
            raise ValueError(
                f"each window must be in only one partial measurement, but window {min(duplicates)} is in "
                f"{file_of_window[min(duplicates)]} and in {path.name}: delete one of these files, and resume."
            )
        file_of_window |= dict.fromkeys(part.rows, path.name)
    return parts
