"""A loss attached to something that trains: the term itself, the handle on it, and what an engine must provide.

`Term` is what is added, and knows nothing of models. `Handle` is what `regularize` returns. An `Engine` is the place
where a loss is computed: one file in `integrations/` for each. How the sequences of a batch are weighted decides if
gradient accumulation stays exact: where the number of items of the whole optimiser step is known (`num_items_in_batch`,
as the transformers Trainer passes it), a sequence counts by its share of them, else the sequences have equal weight.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from . import compiled
from . import hidden_states as hs
from .insides.transformers import collect_hidden_states, is_encoder_decoder
from .losses.context_parallel import mean_cosine_across
from .losses.options import check_choice
from .losses.presets import Loss, get
from .losses.registry import registered
from .packing import documents
from .split import everywhere, ranks, refuse_split

Schedule = str | Callable[[int], float]
Masks = Tensor | list[Tensor | None] | None
SCHEDULES = ("constant", "linear", "cosine", "release")
_attached: weakref.WeakSet[nn.Module] = weakref.WeakSet()


@dataclass(kw_only=True)
class Term:
    """What is added: a loss over the chosen layers, and its weight at a step.

    schedule   "constant"; "linear" or "cosine": the weight rises from 0 over `ramp_steps` optimiser steps; "release":
               it is constant until step `release_at` and then falls linearly to 0 over `ramp_steps`; or a callable
               from the optimiser step to a factor of the weight.
    """

    loss: Loss
    weight: float = 0.1
    layers: hs.Layers = "all"
    schedule: Schedule = "constant"
    ramp_steps: int | None = None
    release_at: int | None = None
    segments: str | None = "auto"
    check_every: int | None = None

    def __post_init__(self) -> None:
        hs.check_layers(self.layers)
        schedule, ramp_steps, release_at = self.schedule, self.ramp_steps, self.release_at
        if not isinstance(self.weight, (int, float)) or not math.isfinite(self.weight):
            raise ValueError(f"weight must be a finite number, got {self.weight!r}: the paper uses 0.1.")
        if not callable(schedule):
            check_choice("schedule", schedule, SCHEDULES)
            if schedule != "constant" and not (isinstance(ramp_steps, int) and ramp_steps >= 1):
                raise ValueError(
                    f"schedule={schedule!r} needs ramp_steps of at least 1, got {ramp_steps!r}: "
                    "say over how many optimiser steps the weight changes."
                )
        if (schedule == "release") != (release_at is not None) or not (
            release_at is None or (isinstance(release_at, int) and release_at >= 0)
        ):
            raise ValueError(
                f"release_at, a step from 0 on, goes with schedule='release', got {release_at!r} with {schedule!r}: "
                "say from which optimiser step on the weight falls, over ramp_steps."
            )
        if self.segments is not None:
            check_choice("segments", self.segments, ("auto", "position_ids"))
        every = self.check_every
        if every is not None and not (isinstance(every, int) and every >= 1 and self.loss.name == "dispersion"):
            raise ValueError(
                f"check_every must be at least 1 and goes with dispersion, got {every!r} for "
                f"{self.loss.name}: leave it out for no check."
            )

    def weight_at(self, step: int) -> float:
        """The weight at an optimiser step: 0 at step 0 of a rise, the full weight from `ramp_steps` on."""
        if callable(self.schedule):
            return self.weight * float(self.schedule(step))
        if self.schedule == "constant":
            return self.weight
        done = min(1.0, max(0, step - (self.release_at or 0)) / (self.ramp_steps or 1))
        factors = {"linear": done, "cosine": 0.5 - 0.5 * math.cos(math.pi * done), "release": 1 - done}
        return self.weight * factors[self.schedule]

    @property
    def group(self) -> Any:
        """The processes among which every sequence is split; None where each process has whole ones."""
        return self.loss.keywords.get("process_group")

    def across(self, group: Any) -> Term:
        """The same term where every sequence is split among the processes of a group."""
        if "process_group" not in registered()[self.loss.name].options or self.check_every:
            what = "check_every" if self.check_every else f"{self.loss.name!r}"
            raise ValueError(
                f"under context parallelism the loss must be computed over the parts of a sequence, got {what}, which "
                "needs the whole: use 'dispersion' with estimator='first_order' or 'exact', or switch cp_size off."
            )
        return replace(self, loss=Loss(self.loss.name, **{**self.loss.keywords, "process_group": group}))

    def penalty(
        self, capture: hs.Capture, first: int, *, labels: Tensor | None = None, items: Tensor | int | None = None
    ) -> dict[str, Tensor]:
        """The penalty of one call: {"penalty", "share": scalars, "per_layer", "mean_cosine": (layers,)}.

        labels (batch, tokens), as counted, and items = their number in the whole optimiser step: a sequence then
        weighs its labels' share of the items, and `penalty` is the call's part of that of the step. `share` is the sum
        of the weights, `per_layer` a mean over the call alone. Without items the sequences of the batch weigh the same.

        Where sequences are split among R processes, each has the value of the whole. Gradients will be averaged over
        them, as DDP and FSDP do, so that of this process's tokens is taken R times; the value is not.
        """
        parts = self._parts(capture)
        states, mask, labels = self.sequences(capture, first, labels)
        values, cosines = self.loss.over_layers(states, mask)
        share, part = values.new_full((values.shape[1],), parts / values.shape[1]), values.new_full((), parts)
        if items is not None and labels is not None:
            counted = (labels != -100).reshape(len(labels), -1).sum(1)  # one label per token, or per sequence
            counted = everywhere(counted, self.group)
            share = counted.to(values) / torch.as_tensor(items).to(values)
            part = share.sum()
        per_layer = (values * share).sum(1)  # not a matrix product: autocast would make that bfloat16
        penalty = per_layer.mean()
        if parts > 1:
            penalty = penalty - penalty.detach() * (1 - 1 / parts)
        result = {"penalty": penalty, "per_layer": per_layer.detach() / _or_one(part), "share": part / parts}
        if cosines is not None:
            result["mean_cosine"] = cosines.detach().mean(1)
        return result

    def refuse_parts(self) -> None:
        """Raise where the sequences are split and nobody has said among which processes."""
        if self.group is None:
            remedy = "process_group=accelerator.torch_device_mesh['cp'].get_group(), or attach to the trainer"
            refuse_split("the loss", f"name the processes, {remedy}")

    def traceable(self, capture: hs.Capture) -> bool:
        """Whether torch.compile can see all of `penalty`: no documents of packed rows, whose values decide about
        shapes, no generator and no other process."""
        return not (self.check_every or self.group or self.loss.keywords.get("generator") or self._packed(capture))

    def _packed(self, capture: hs.Capture) -> bool:
        """Whether the rows may hold several documents each."""
        positions = capture.position_ids
        auto = self.segments == "auto" and capture.attention_mask is None
        cut = self.group is None and (self.segments == "position_ids" or auto)
        return cut and capture.masks is None and positions is not None and positions.ndim == 2

    def _parts(self, capture: hs.Capture) -> int:
        """Among how many processes a sequence is split. A packed row must not be: its documents lie on several."""
        positions, rows = capture.position_ids, len(capture.states[0])
        if self.group is None:
            return 1
        starts = 0 if positions is None or positions.ndim != 2 else everywhere((positions == 0).sum(), self.group)
        if starts > rows:
            raise ValueError(
                "under context parallelism a row must be one sequence, got packed rows, whose position ids restart: "
                "documents that lie on several processes are not supported; set packing=False."
            )
        return ranks(self.group)

    def sequences(
        self, capture: hs.Capture, first: int, labels: Tensor | None = None
    ) -> tuple[list[Tensor], Masks, Tensor | None]:
        """The chosen states, each (sequences, tokens, width), their mask and labels; packed rows are cut up."""
        chosen = hs.select(self.layers, len(capture.states), first)
        states = [capture.states[i] for i in chosen]
        if capture.masks is not None:  # of two stacks: a row is a sequence of each
            return states, [self.mask(capture, i) for i in chosen], labels
        mask = self.mask(capture)
        positions = capture.position_ids
        if positions is None or not self._packed(capture):
            return states, mask, labels
        cut = documents(positions.expand(states[0].shape[0], -1), mask)
        if cut is None:
            return states, mask, labels
        labels = None if labels is None else torch.where(cut.mask, cut.gather(labels), -100)
        return [cut.gather(z) for z in states], cut.mask, labels

    @torch.no_grad()
    def mean_cosine(self, capture: hs.Capture, first: int) -> Tensor:
        """Mean cosine per layer: what dispersion gives to first order for nothing, here in one more read."""
        states, mask, _ = self.sequences(capture, first)
        if self.group is not None:
            masks = mask if isinstance(mask, list) else [mask] * len(states)
            return torch.stack([mean_cosine_across(z, m, self.group).mean() for z, m in zip(states, masks)])
        return get("cosreg").over_layers(states, mask)[0].mean(1)

    def agreement(self, capture: hs.Capture, first: int) -> Tensor:
        """Cosine between the estimator's gradient and the exact one, per layer, on the first sequence."""
        exact = Loss(self.loss.name, **{**self.loss.keywords, "estimator": "exact", "max_tokens": None})
        cosines = []
        for i in hs.select(self.layers, len(capture.states), first):
            z, mask = capture.states[i][:1].detach().float().requires_grad_(), self.mask(capture, i)
            pair = [torch.autograd.grad(f(z, None if mask is None else mask[:1]), z)[0] for f in (self.loss, exact)]
            cosines.append(torch.cosine_similarity(pair[0].flatten(), pair[1].flatten(), dim=0))
        return torch.stack(cosines)

    def mask(self, capture: hs.Capture, state: int = 0) -> Tensor | None:
        """The attention mask (batch, tokens) of a state as booleans; None where every token counts."""
        mask, shape = capture.mask_of(state), capture.states[state].shape[:2]
        if mask is None:
            return None
        if not isinstance(mask, Tensor) or mask.shape != shape:
            came = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
            raise ValueError(
                f"attention_mask must be (batch, tokens) = {tuple(shape)} to tell padding from tokens, "
                f"got {came}: pass the two-dimensional mask, or none and position_ids that restart."
            )
        return mask.bool()


class Engine(Protocol):
    """What trains. A new engine is one file with such a class, handed to `Handle`, and one test."""

    model: nn.Module
    """Whose hidden states are read."""

    step: int
    """Optimiser steps done so far: the clock of the schedule."""

    def attach(self, handle: Handle) -> None:
        """Arrange that the loss of every training call grows by `handle.weight * handle.take(…)`.

        `handle.read(wanted)` begins to collect hidden states, in calls for which wanted() is true; `handle.undo`
        takes callbacks for everything that `remove()` must put back.
        """


class Handle:
    """A loss attached to an engine. Also a context manager; `remove()` takes everything off again.

    The model can be pickled and saved while it is attached; what is loaded has no loss attached.

    last       the latest training call, as means over it: task_loss, penalty (before the weight), weight, per_layer
               and, where the estimator gives it for nothing, mean_cosine; tensors, so that reading them is what waits
               for a GPU. Under accumulation the loss of a call is share · (task_loss + weight · penalty)
    step       the optimiser steps done so far, which drive the schedule; set it when a loop of your own is resumed
    reads      the hidden states, or modules, that the loss is computed from
    agreement  the latest result of check_every, a cosine per layer; `calls` counts the calls between two checks
    """

    def __init__(self, engine: Engine, term: Term, modules: str | Sequence[str] | None = None) -> None:
        if engine.model in _attached:
            raise RuntimeError(
                f"this {type(engine.model).__name__} already has a loss attached: call remove() on its handle first."
            )
        self.engine, self.model, self.term = engine, engine.model, term
        self.last: dict[str, Any] = {}
        self.calls = 0
        self.agreement: Tensor | None = None
        self.captures: list[hs.Capture] = []
        self.reader, states = hs.reader_of(self.model, modules)
        # An impossible choice of layers is refused here and now.
        chosen = [] if states is None else hs.select(term.layers, states, self.reader.first)
        self.reads = [self.reader.name(i) for i in chosen]
        self.given, self.reached, self._used = 0, False, False
        self._number = compiled.name(self)
        # What cannot be traced is one graph break at the end of a compiled model. Wrapped here and not where it is
        # defined, because that would import the compiler together with this package.
        self._give_untraced = torch.compiler.disable(self._give)
        self.undo = ExitStack()
        self.attached = True
        engine.attach(self)
        _attached.add(self.model)

    @property
    def step(self) -> int:
        return self.engine.step

    @step.setter
    def step(self, value: int) -> None:
        self.engine.step = value

    @property
    def weight(self) -> float:
        """The weight at the current step."""
        return self.term.weight_at(self.step)

    def penalty(self) -> Tensor:
        """weight · penalty of the last training call that had no loss of its own, to be added to yours."""
        if not self.captures:
            raise RuntimeError(
                "penalty() needs a training call without a loss just before it, got none: call the model in train() "
                "with gradients on; a loss from labels, and that of a trainer, contains the penalty already."
            )
        return self.give()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.term.loss}, weight={self.weight:g}, reads {', '.join(self.reads)})"

    def remove(self) -> None:
        """Take the loss off. The model is as it was before; calling this twice does no harm."""
        self.attached = False
        self.undo.close()
        self.captures.clear()
        _attached.discard(self.model)

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()

    def __deepcopy__(self, memo: dict[int, Any]) -> Handle:
        # A copy of the model (an average of its weights, say) has copies of the hooks: they stay those of this handle.
        return self

    # ---- for engines ----

    def read(self, wanted: Callable[[], bool]) -> None:
        """Collect the hidden states of the training calls for which wanted() is true, in `captures`."""
        stack = getattr(self.reader, "stack", None)
        prepare = torch.compiler.assume_constant_result(lambda: collect_hidden_states(stack))  # run while it traces

        def begin() -> bool:
            if stack is not None and torch.compiler.is_compiling():
                prepare()
            return self.attached and wanted()  # a copy of the model keeps its hooks when the loss has been removed

        for hook in self.reader.attach(begin, self.captures.append):
            self.undo.callback(hook.remove)

    def take(self, labels: Tensor | None = None, items: Tensor | int | None = None, scale: float = 1.0) -> Tensor:
        """The penalty of the captured calls, times `scale`, ready to be weighted and added; `last` tells of it."""
        self.term.refuse_parts()
        captures = list(self.captures)
        penalty = self._penalty(labels, items, scale)
        self.last["weight"] = self.weight
        if self.term.check_every and self.calls % self.term.check_every == 0:
            self.agreement = self.term.agreement(captures[0], self.reader.first)
        if self.agreement is not None:
            self.last["agreement"] = self.agreement
        self.calls += 1
        return penalty

    def _penalty(self, labels: Tensor | None, items: Tensor | int | None, scale: float = 1.0) -> Tensor:
        """The tensors of `take`."""
        captures, self.captures[:] = list(self.captures), []
        first = self.reader.first
        if labels is not None and is_encoder_decoder(self.model):
            for capture in captures:
                capture.targets(labels, getattr(self.reader, "sides", ["decoder"]))
        parts = [self.term.penalty(c, first, labels=labels, items=items) for c in captures]
        mean = {key: torch.stack([p[key] for p in parts]).mean(0) for key in parts[0]}
        penalty, share = mean["penalty"] * scale, mean["share"] * scale
        self.last = {**mean, "penalty": penalty.detach() / _or_one(share), "share": share}
        return penalty

    def give(self, labels: Tensor | None = None, items: Tensor | int | None = None) -> Tensor:
        """weight · penalty of the captured call. `given` counts those, `reached` says that a backward pass came by."""
        if not torch.compiler.is_compiling():
            return self._give(labels, items)
        if not all(self.term.traceable(capture) for capture in self.captures):
            return self._give_untraced(labels, items)
        term, weight = compiled.weighted(self._penalty(labels, items), self._number)
        self.last["weight"] = weight.detach()
        return term

    def _give(self, labels: Tensor | None, items: Tensor | int | None) -> Tensor:
        term = self.weight * self.take(labels, items)
        if term.requires_grad:
            self.given += 1
            term.register_hook(self._reach)
        return term

    def weigh(self) -> float:
        """The Python of `take` and `give`, in every call of a compiled model."""
        self.term.refuse_parts()
        self.calls, self.given = self.calls + 1, self.given + 1
        return self.weight

    def reach(self, gradient: Tensor) -> None:
        """A backward pass has come by, in a compiled model. Its graph is differentiated as a whole, with zeros for what
        the loop does not use; looking waits for a GPU, so once a gradient was there this looks no more."""
        self._used = self._used or bool(gradient.any())
        self.reached |= self._used

    def _reach(self, gradient: Tensor) -> None:
        self.reached = True

    def task_loss(self, loss: Tensor) -> None:
        """Note the loss to which the penalty that was just taken is added, on the same scale."""
        self.last["task_loss"] = loss.detach() / _or_one(self.last["share"]).to(loss.device)


def _or_one(share: Tensor) -> Tensor:
    """A divisor: a call without a label has a share of 0, and losses of 0."""
    return torch.where(share == 0, 1, share)
