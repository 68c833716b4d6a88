"""A loss attached to a model or trainer: `Handle` for users, `Attachment` for engines, and what an `Engine` must have.

`regularize` returns a `Handle`, the part of an `Attachment` that users need. An `Engine` is the place where the task
loss is computed, one file in `integrations/` for each. What is added to that loss is a `Term`.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from . import compiled
from . import hidden_states as hs
from .capture import Capture, Hook, Known
from .checks import is_whole
from .insides.transformers import collect_hidden_states, is_encoder_decoder
from .kernels import autocast_dtype
from .named_layers import ModuleReader
from .stack import unwrap_peft
from .term import Term, or_one
from .words import warn

MANY = 64  # training calls, more than most runs accumulate for one step
OVERWHELMS = 10  # times the task loss: beyond that the model learns the penalty instead
# By the model inside of PEFT's: hooks on both would act in one call.
_attached: weakref.WeakKeyDictionary[nn.Module, weakref.ref[Attachment]] = weakref.WeakKeyDictionary()


class Engine(Protocol):
    """What trains. A new engine is one file with a class like this, passed to `Attachment`, and one test."""

    model: nn.Module
    """The model whose hidden states are read."""

    step: int
    """Optimiser steps done so far: the clock of the schedule."""

    def attach(self, attachment: Attachment) -> None:
        """Add `attachment.weight * attachment.take(…)` to the loss of every training call from now on.

        Call `attachment.read(wanted)` to collect the hidden states of the calls for which wanted() is true; push
        onto `attachment.undo` a callback for everything that `remove()` must put back. An engine may have `replaces`,
        an earlier attachment to its model, which `attach` then removes.
        """


class Handle:
    """A loss attached to an engine. Also a context manager; `remove()` takes everything off again.

    While it is attached, `save_pretrained` and `state_dict` still save the model alone; a model loaded from them, or
    copied by `copy.deepcopy`, has no loss attached.
    """

    __slots__ = ("__weakref__", "_attachment")  # so that a misspelt name cannot be assigned to

    def __init__(self, attachment: Attachment) -> None:
        self._attachment = attachment

    @property
    def last(self) -> dict[str, Any]:
        """Means over the latest training call: task_loss, penalty (before the weight), share, and by layer per_layer
        and mean_cosine; penalty_1, penalty_weight_1, … of several losses; agreement from the first check on, with
        check_every. All are tensors, so only reading them waits for a GPU; weights are numbers, or a tensor where a
        compiled model computes it. Under accumulation the loss of a call is share · (task_loss + weight · penalty)."""
        return self._attachment.last

    @property
    def step(self) -> int:
        """The optimiser steps done so far, which drive the schedule. Set it when you resume a loop of your own, and
        after each step of an optimiser that is not a torch optimiser: handle.step += 1."""
        return self._attachment.step

    @step.setter
    def step(self, value: int) -> None:
        if not is_whole(value, 0):
            raise ValueError(
                f"step must be a whole number of at least 0, got {value!r}: the optimiser steps done so far."
            )
        self._attachment.engine.step = int(value)

    @property
    def weight(self) -> float:
        """The weight at the current step."""
        return self._attachment.weight

    @property
    def reads(self) -> list[str]:
        """The hidden states, or modules, that the loss is computed from. Empty before the first training call where the
        configuration does not say how many states there are, as in models that read images."""
        return self._attachment.reads

    @property
    def attached(self) -> bool:
        """Whether the loss is attached: true until `remove()`."""
        return self._attachment.attached

    def penalty(self) -> Tensor:
        """Return weight · penalty of the last training call, if that returned no loss: add it to your own loss."""
        if not self._attachment.captures:
            raise RuntimeError(
                "penalty() needs a training call without a loss just before it, got none: call the model in train() "
                "with gradients on; a loss from labels, and that of a trainer, contains the penalty already."
            )
        return self._attachment.give()

    def remove(self) -> None:
        """Take the loss off and leave the model as it was before. Calling this twice does no harm."""
        self._attachment.remove()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._attachment.term}, weight={self.weight:g}, reads {', '.join(self.reads)})"

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()


class Attachment:
    """An attached loss as engines use it: it collects the hidden states and computes the penalty from them.

    calls      training calls so far; every `check_every` of them `agreement`, a cosine per layer, is renewed
    captures   the hidden states of collected calls whose penalty has not been taken yet
    known      losses that compiled blocks have computed in the present call; None outside of a collected call
    given      penalties handed out since the last step; `reached`: whether a backward pass has reached one of them
    """

    model: nn.Module

    def __init__(self, engine: Engine, term: Term, modules: str | Sequence[str] | None = None) -> None:
        earlier = attached_to(engine.model)
        if earlier is not None and getattr(engine, "replaces", None) is not earlier:
            other = "" if earlier.model is engine.model else f" by way of its {type(earlier.model).__name__}"
            raise RuntimeError(
                f"this {type(engine.model).__name__} already has a loss attached{other}: call remove() on its handle "
                "first; several losses at once are a list, regularize(model, [dict(loss=…), dict(loss=…)])."
            )
        self.engine, self.model, self.term = engine, engine.model, term
        term.clock = lambda: self.step
        self.last: dict[str, Any] = {}
        self.calls = 0
        self.agreement: Tensor | None = None
        self.captures: list[Capture] = []
        self._autocast: torch.dtype | None = None  # of the present call, noted by hooks on `reader.parts`
        self.known: list[Known] | None = None  # a list during a call that is collected
        self.reader, states = hs.reader_of(self.model, modules)
        # An impossible choice of layers must fail now, not in the first training call.
        self._chosen = [] if states is None else term.chosen(states, self.reader.first)
        self.given, self.reached, self._gradient_seen, self._large_warned = 0, False, False, False
        self._latest_step: tuple[int, float] = (0, 0)  # the latest step seen, and `calls` when it began
        self._states = 0  # of the last call
        self._frozen: list[int] = []  # layers of the last call: with nothing trainable below,
        self._movable: list[int] = []  # and the others
        self._frozen_warned = False
        self._number = compiled.number_of(self)
        # What cannot be traced becomes a single graph break at the end of a compiled model. Wrapped here and not where
        # the method is defined, because that would import the compiler together with this package.
        self._give_untraced = torch.compiler.disable(self._give)
        self.undo = ExitStack()
        self.attached = True
        engine.attach(self)
        self._inside = unwrap_peft(self.model)  # asked once: PEFT's answer depends on its adapters
        _attached[self._inside] = weakref.ref(self)

    @property
    def step(self) -> int:
        return self.engine.step

    @property
    def weight(self) -> float:
        """The weight at the current step."""
        return self.term.weight_at(self.step)

    @property
    def reads(self) -> list[str]:
        """The names of what the last call read; before the first call, of what the configuration tells."""
        return [self.reader.name(i) for i in sorted(self._movable + self._frozen) or self._chosen]

    def remove(self) -> None:
        if self.attached:  # else the loss that is attached by now is another
            _attached.pop(self._inside, None)
        self.attached = False
        self.undo.close()
        self.captures.clear()

    def __deepcopy__(self, memo: dict[int, Any]) -> Attachment:
        return self  # the copy of a handle controls the same attachment

    def read(self, wanted: Callable[[], bool]) -> None:
        """Collect in `captures` the hidden states of the training calls for which wanted() is true."""
        stack = getattr(self.reader, "stack", None)
        prepare = torch.compiler.assume_constant_result(lambda: collect_hidden_states(stack))  # runs during tracing
        if isinstance(self.reader, ModuleReader):
            torch.compiler.assume_constant_result(self.reader.tell)

        def begin() -> bool:
            self._autocast = self.known = None
            if stack is not None and torch.compiler.is_compiling():
                prepare()
            if not wanted():
                return False
            self.known = []
            return True

        def keep(capture: Capture) -> None:  # a function, because torch 2.11 does not trace the method
            capture.autocast, capture.known, self.known = self._autocast, self.known or (), None
            self.captures.append(capture)

        def note_autocast(module: nn.Module, args: Any, out: Any) -> None:
            out = next(iter(out.values())) if isinstance(out, dict) else out[0] if isinstance(out, tuple) else out
            # No autocast here proves nothing: a reader may call the embedding layer again after the model's call.
            if isinstance(out, Tensor) and autocast_dtype(out) is not None:
                self._autocast = autocast_dtype(out)

        hooks = [Hook.hang(part.register_forward_hook, note_autocast) for part in self.reader.parts]
        for hook in hooks + self.reader.attach(begin, keep):
            self.undo.callback(hook.remove)

    def take(self, labels: Tensor | None = None, items: Tensor | int | None = None, scale: float = 1.0) -> Tensor:
        """Return the penalty of the captured calls times `scale`, to be multiplied by the weight, and fill `last`."""
        self.term.refuse_parts()
        captures = list(self.captures)
        penalty = self._penalty(labels, items, scale)
        self.refuse_frozen()
        self.last["weight"] = self.weight
        self.last |= {f"penalty_weight_{k}": weight for k, weight in enumerate(self.term.weights, 1)}
        if not self.calls:
            self.term.tell_joined(captures[0])
        if self.term.check_every and self.calls % self.term.check_every == 0:
            self.agreement = self.term.agreement(captures[0], self.reader.first)
        if self.agreement is not None:
            self.last["agreement"] = self.agreement
        self.calls += 1
        return penalty

    def _penalty(self, labels: Tensor | None, items: Tensor | int | None, scale: float = 1.0) -> Tensor:
        """The tensor computation of `take`, which torch.compile can trace."""
        captures, self.captures[:] = list(self.captures), []
        first = self.reader.first
        if labels is not None and is_encoder_decoder(self.model):
            for capture in captures:
                capture.targets(labels, getattr(self.reader, "sides", ["decoder"]))
        self._states = len(captures[0].states)
        chosen = self.term.chosen(self._states, first)
        self._movable = [i for i in chosen if any(capture.states[i].requires_grad for capture in captures)]
        self._frozen = [i for i in chosen if i not in self._movable]
        parts = []
        for capture in captures:
            with _as_called(capture):
                parts.append(self.term.penalty(capture, first, labels=labels, items=items))
        mean = {key: torch.stack([p[key] for p in parts]).mean(0) for key in parts[0]}
        penalty, share = mean["penalty"] * scale, mean["share"] * scale
        each = {key: value.detach() * scale / or_one(share) for key, value in mean.items() if key.startswith("penalty")}
        self.last = {**mean, **each, "share": share}
        return penalty

    def give(self, labels: Tensor | None = None, items: Tensor | int | None = None) -> Tensor:
        """Return weight · penalty of the captured call, counted in `given`; a backward pass sets `reached`."""
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
            self._await_step()
        return term

    def weigh(self) -> float:
        """Do the bookkeeping of `take` and `give` in every call of a compiled model, and return the weight."""
        self.term.refuse_parts()
        self.calls, self.given = self.calls + 1, self.given + 1
        self._await_step()
        return self.weight

    def _await_step(self) -> None:
        """Warn once if a schedule waits for steps in vain: only those of torch optimisers are seen."""
        if self.step != self._latest_step[0]:
            self._latest_step = (self.step, self.calls)
        elif self.term.scheduled and self.calls - self._latest_step[1] > MANY:
            self._latest_step = (self.step, math.inf)
            warn(
                f"a schedule counts the steps of torch optimisers, got none in {MANY} training calls: after each step "
                "of any other optimiser run handle.step += 1; ignore this if you accumulate more calls than that."
            )

    def reach(self, gradient: Tensor) -> None:
        """Note a backward pass of a compiled model. Its graph is differentiated as a whole, with zero gradients for
        outputs that the loop does not use; looking waits for a GPU, so it stops at the first nonzero gradient."""
        self._gradient_seen = self._gradient_seen or bool(gradient.any())
        self.reached |= self._gradient_seen

    def _reach(self, gradient: Tensor) -> None:
        self.reached = True

    def look(self) -> None:
        """Called after each optimiser step: give the losses of steps 1, 2, 4, … to `warn`. Reading them waits for a
        GPU, so no others are read, and none after a warning."""
        if not self._large_warned and self.step & (self.step - 1) == 0 and "task_loss" in self.last:
            term = self.last["weight"] * self.last["penalty"]
            task_loss, added = torch.stack([self.last["task_loss"].to(term), term]).tolist()
            self.warn(task_loss, added, self.step)

    def warn(self, task_loss: float, added: float, step: int) -> None:
        """Warn once of a penalty that outweighs the task loss: unbounded ones (ℓ2-repel) silently destroy a model."""
        if not self._large_warned and abs(added) > OVERWHELMS * max(1.0, abs(task_loss)):  # a policy's loss is about 0
            self._large_warned = True
            warn(
                f"weight · penalty should be small beside the task loss, got {added:.3g} beside {task_loss:.3g} at "
                f"step {step}: lower the weight, or the model learns the penalty and not the text."
            )

    def refuse_frozen(self) -> None:
        """Refuse layers that the loss cannot move because nothing trainable lies below them: one warning if some are
        such, an error if all are. A weight of 0 (a control, or after a release) is fine, unless it is about to rise."""
        for term in self.term.parts:
            if not self._frozen or (not term.weight_at(self.step) and (self.step or not term.weight)):
                continue
            chosen = term.chosen(self._states, self.reader.first)
            frozen, movable = ([i for i in chosen if (i in self._frozen) == its] for its in (True, False))
            if frozen and not movable:
                raise RuntimeError(
                    f"the loss must reach trainable parameters, but nothing trainable lies below layers {frozen}: "
                    "train something in the blocks (LoRA: target_modules there, not lm_head alone), read later layers, "
                    "or call handle.remove(); reentrant checkpointing hides parameters, use use_reentrant=False."
                )
            if frozen and not self._frozen_warned:
                self._frozen_warned = True
                warn(
                    f"the loss cannot move all that it reads, since nothing trainable lies below layers {frozen}: "
                    f"leave them out, layers={movable}, or part of the weight is wasted on them."
                )

    def task_loss(self, loss: Tensor) -> None:
        """Record in `last` the task loss to which the penalty just taken is added, on the same scale."""
        self.last["task_loss"] = loss.detach().reshape(()) / or_one(self.last["share"]).to(loss.device)


def attached_to(model: nn.Module) -> Attachment | None:
    """The loss that is attached to a model, to the model inside of it, or to PEFT's around it."""
    inside = unwrap_peft(model)
    return _attached[inside]() if inside in _attached else None


def _as_called(capture: Capture) -> AbstractContextManager[Any]:
    """Restore the autocast under which the model was called, which decides in what precision the losses multiply.
    accelerate's autocast, and so every Trainer's, ends when the model returns."""
    states = capture.states[-1]
    if capture.autocast is None or autocast_dtype(states) is not None:
        return nullcontext()
    return torch.autocast(states.device.type, dtype=capture.autocast)
