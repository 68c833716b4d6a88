"""`Monitor`: readings of a model's geometry every so many steps, as a table and as pictures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .. import hidden_states as hs
from ..capture import Capture, Hook
from ..checks import is_whole
from ..geometry import NO_NUMBER, counting, shape_or_type
from ..inputs import arguments, batches_of, called_with, main_input, tell_unread
from ..insides.transformers import is_encoder_decoder
from ..meter.batches import checked
from ..meter.result import BINS
from ..meter.statistics import trimmed
from ..meter.trend import curve_statistics
from ..named_layers import ModuleReader
from ..needs import need
from ..packing import Documents, unmasked_documents
from ..split import refuse_split
from ..stack import unnoticed, unwrap_peft
from ..words import nearest, nobody, several, warn
from . import background
from .reading import METRICS, Reading, begun

Log = Callable[[Reading], None]


class Collapse(UserWarning):
    """The tokens of a layer have become nearly parallel."""


class Monitor:
    """What `monitor` returns: the `readings` so far, also as a table and a picture. `remove()` ends the monitoring."""

    def __init__(
        self,
        model: nn.Module,
        *,
        step: Callable[[], int],
        epoch: Callable[[], float | None] = lambda: None,
        every: int = 100,
        inputs: Any = None,
        sequences: int = 4,
        metrics: str | Sequence[str] = METRICS,
        modules: str | Sequence[str] | None = None,
        collapse: float = 0.95,
        log: Log | None = None,
        pictured: Callable[[], bool] = lambda: False,
    ) -> None:
        metrics = list(metrics) if isinstance(metrics, Iterable) and not isinstance(metrics, str) else [metrics]
        unknown = [name for name in metrics if name not in METRICS]
        if unknown or not metrics:
            wrong = unknown[0] if unknown else "none"
            remedy = nearest(wrong, METRICS, "pick some of these, or leave it out for all.")
            raise ValueError(
                f"metrics must be of {', '.join(METRICS)}, got {repr(wrong) if unknown else wrong}: {remedy}"
            )
        for name, value in (("every", every), ("sequences", sequences)):
            if not is_whole(value, 1):
                raise ValueError(
                    f"{name} must be a whole number of at least 1, got {value!r}: leave it out for the recommended one."
                )
        if isinstance(collapse, NO_NUMBER) or not -1 <= collapse <= 1:
            raise ValueError(f"collapse must be a cosine, from -1 to 1, got {collapse!r}: 1 for no warning.")
        self.model, self.every, self.sequences, self.collapse = model, every, sequences, collapse
        self.metrics = tuple(dict.fromkeys(("mean_cosine", *metrics)))
        self.reader, _ = hs.reader_of(model, modules)
        if isinstance(self.reader, ModuleReader):
            self.reader.differentiated = False
        self.modules, self.step, self.epoch, self._log, self._pictured = modules, step, epoch, log or nobody, pictured
        self._readings: list[Reading] = []
        self._waiting: Future[Reading] | None = None  # a reading whose eigenvalues are being computed
        self.undo = ExitStack()
        self._collapsed: set[str] = set()
        self._mask_warned = False
        self.seen: int | None = None  # the step of the last reading
        self.batches: list[dict[str, Any]] | None = None
        if inputs is None:
            self._labels: Tensor | None = None  # of the present call of an encoder–decoder
            note = torch.compiler.disable(self._note_call)  # not worth compiling: it runs rarely
            hooks = self.reader.attach(self._due, lambda capture: note(capture))
            if is_encoder_decoder(unwrap_peft(model)):
                hooks.append(Hook.hang(model.register_forward_pre_hook, self._enter, with_kwargs=True))
                hooks.append(Hook.hang(model.register_forward_hook, self._leave))
            for hook in hooks:
                self.undo.callback(hook.remove)
            return
        if modules is None:
            hs.refuse_prompts(model)
        main = main_input(unwrap_peft(model))
        self.batches = [checked(batch, model) for batch in batches_of(inputs, main)]
        if not self.batches:
            raise ValueError("inputs must hold at least one batch, got none: leave them out to read training batches.")
        if modules is None:
            tell_unread(self.batches[0], main)
        if any(hasattr(p, "device_mesh") for p in model.parameters()):
            raise ValueError(
                "inputs need a pass of their own, which a model sharded by FSDP cannot make in between: leave inputs "
                "out, and the training batches are read."
            )

    def __repr__(self) -> str:
        last = f", the last at step {self._readings[-1].step}" if self._readings else ""
        count = several(len(self._readings), "reading")
        return f"Monitor({type(self.model).__name__}, every={self.every}, {count}{last})"

    # ---- reading ----

    def _due(self) -> bool:
        self.settle(wait=False)
        step = self.step()
        return step % self.every == 0 and step != self.seen

    def look(self) -> None:
        """Called by engines between two steps: read `inputs` if a reading is due, and report one that is ready."""
        if not self._due() or self.batches is None:
            return
        inner = unwrap_peft(self.model)
        with unnoticed(self.model), torch.no_grad():
            self._note([self.reader.once(arguments(inner, batch)) for batch in self.batches])

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._labels = called_with(module.forward, args, kwargs).get("labels")

    def _leave(self, *call: Any) -> None:
        self._labels = None

    def _note_call(self, capture: Capture) -> None:
        if self._labels is not None:
            capture.targets(self._labels, getattr(self.reader, "sides", ["decoder"]))
        self._note([capture])

    @torch.no_grad()
    def _note(self, captures: list[Capture]) -> None:
        refuse_split("the monitor", "watch without context or sequence parallelism")
        self.settle()  # one at a time, so that the matrices of only one reading are held
        step = self.seen = self.step()
        epoch = self.epoch()
        cuts = [_documents(capture) for capture in captures]
        layers = [begun(self._sequences(captures, cuts, i), self.metrics) for i in range(len(captures[0].states))]
        state = captures[0].states[0]
        if background.in_background(state):
            self._waiting = background.beside_training(partial(self._reading, step, epoch, layers), state.device)
        else:
            self._report(self._reading(step, epoch, layers))

    def _reading(self, step: int, epoch: float | None, layers: list[Callable[[], tuple[Tensor, Tensor]]]) -> Reading:
        rows, counts = zip(*(finish() for finish in layers))
        table = dict(zip(self.metrics, torch.stack(rows, 1).numpy()))
        share = torch.stack([bins.reshape(BINS, -1).sum(1) for bins in counts]).double()
        density = (share / share.sum(1, keepdim=True).clamp_min(1) * BINS / 2).numpy()
        blocks = table["mean_cosine"][self.reader.first :]
        trend = float(curve_statistics(blocks)[0]) if len(blocks) > 2 else math.nan
        name = "{:02d}".format if self.modules is None else self.reader.name
        names = tuple(name(i) for i in range(len(layers)))
        reading = Reading(step, names, table, trend, density, epoch)
        if self._pictured():
            _ = reading.picture  # drawn here, possibly in the background
        return reading

    def settle(self, *, wait: bool = True) -> None:
        """Report the reading that is still being computed; without `wait` only if it is ready."""
        if self._waiting is not None and (wait or self._waiting.done()):
            ready, self._waiting = self._waiting, None
            self._report(ready.result())

    def _report(self, reading: Reading) -> None:
        self._readings.append(reading)
        self._warn(reading)
        self._log(reading)

    def _sequences(self, captures: list[Capture], cuts: list[Documents | None], state: int) -> list[Tensor]:
        """One hidden state of the first `self.sequences` sequences, or documents of packed rows, without padding."""
        parts: list[Tensor] = []
        room = self.sequences
        for capture, cut in zip(captures, cuts):
            z, mask = capture.states[state], capture.mask_of(state)
            if cut is None and mask is not None:
                mask = self._counting(mask, z.shape[:2])
            if cut is not None:
                chosen = _with_pairs(cut.mask)[:room]
                z, mask = cut.flat(z)[cut.index[chosen]], cut.mask[chosen]
            elif mask is not None:
                chosen = _with_pairs(mask)[:room]
                z, mask = z[chosen.to(z.device)], mask[chosen]
            parts += [part for _, part in trimmed(z[:room], mask)]
            room -= len(z)
            if room <= 0:
                break
        return parts

    def _counting(self, mask: Any, shape: torch.Size) -> Tensor | None:
        """Which tokens count. For a mask that does not tell, return None and warn once: the loss would refuse it, but
        watching is no reason to end a training."""
        try:
            if isinstance(mask, Tensor) and mask.shape == shape:
                return counting(mask.cpu())  # a reading waits for the GPU anyway
            wrong = f"attention_mask must be (batch, tokens) = {tuple(shape)} to tell padding from tokens, got "
            wrong += f"{shape_or_type(mask)}: every token counts; pass the two-dimensional mask where there is padding."
        except ValueError as error:
            wrong = f"{error} Until then every token counts."
        if not self._mask_warned:
            self._mask_warned = True
            warn(wrong)
        return None

    def _warn(self, reading: Reading) -> None:
        collapsed = [i for i, c in enumerate(reading.table["mean_cosine"]) if c > self.collapse]
        new = [i for i in collapsed if reading.layers[i] not in self._collapsed]
        self._collapsed = {reading.layers[i] for i in collapsed}  # a layer that recovers may collapse again
        if new:
            worst = max(new, key=lambda i: reading.table["mean_cosine"][i])
            cosine = reading.table["mean_cosine"][worst]
            rank = reading.table.get("effective_rank")
            rank_note = "" if rank is None else f" and an effective rank of {rank[worst]:.1f}"
            layer = f"layer {reading.layers[worst]}" + (f" and {len(new) - 1} more" if len(new) > 1 else "")
            parallel = f"the tokens of {layer} are nearly parallel, with a mean cosine of {cosine:.2f}{rank_note}"
            warn(f"step {reading.step}: {parallel}.", Collapse)

    # ---- what comes out ----

    @property
    def readings(self) -> list[Reading]:
        self.settle()
        return self._readings

    def to_pandas(self) -> Any:
        """One row for every reading and layer: step, layer (its number, or the module's name), the metrics."""
        need("pandas", "a table")
        import pandas

        return pandas.DataFrame(self._rows(self.metrics), columns=["step", "layer", *self.metrics])

    def _rows(self, metrics: Sequence[str]) -> list[dict[str, Any]]:
        return [
            {"step": r.step, "layer": int(layer) if layer.isdigit() else layer}  # "03" is a name that sorts in a log
            | {name: float(r.table[name][i]) for name in metrics}
            for r in self.readings
            for i, layer in enumerate(r.layers)
        ]

    def plot(self, path: Any = None, *, ax: Any = None, title: str | None = None) -> Any:
        """mean_cosine of every layer over the steps; see ``decondense.plot``."""
        from ..figures.chart import Axis, Chart, Frame, Series, look
        from ..figures.draw import Strip, draw

        if not self.readings:
            raise ValueError("a picture needs a reading, and there is none yet: train first.")
        steps = [r.step for r in self.readings]
        cosines = np.stack([r.table["mean_cosine"] for r in self.readings], 1)
        layers = self.readings[0].layers
        marks: list[Any] = [
            Series(steps, y, f"layer {int(name)}" if name.isdigit() else name, **look(i) | {"symbol": None})
            for i, (name, y) in enumerate(zip(layers, cosines))
        ]
        title = title or "Mean cosine of two tokens of a sequence, by layer"
        chart = Chart(title, Axis("step", whole=True), Axis("mean cosine"), [Frame(marks)], legend="best")
        rows = self._rows(["mean_cosine"])
        return draw([Strip([[chart]], (7.2, 4.8))], path, name="geometry.png", ax=ax, rows=rows)

    def remove(self) -> None:
        """Take all hooks off again; the readings stay."""
        self.undo.close()
        self.settle()

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()


def _with_pairs(mask: Tensor) -> Tensor:
    """The indices of the sequences with at least two tokens that count; of all sequences if none has."""
    enough = mask.sum(1) >= 2
    return (enough | ~enough.any()).nonzero().squeeze(1)


def _documents(capture: Capture) -> Documents | None:
    """The documents of packed rows, cut as the loss cuts them; None for states of two stacks, with a mask each."""
    if capture.masks is not None:
        return None
    return unmasked_documents(capture.position_ids, capture.attention_mask, len(capture.states[0]))
