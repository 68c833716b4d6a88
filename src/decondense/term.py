"""What is added to a task loss: a `Term`, one loss over the chosen layers with a scheduled weight, or several, `Terms`.

A term knows nothing about models. How it weights the sequences of a batch decides whether gradient accumulation stays
exact: where the number of items of the whole optimiser step is known (`num_items_in_batch`, as the transformers Trainer
passes it), a sequence is weighted by its share of them; otherwise all sequences with a pair of tokens weigh the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from . import geometry
from . import hidden_states as hs
from .capture import Capture, Known
from .checks import check_choice, is_whole
from .losses.context_parallel import sum_across, tokens_across
from .losses.presets import Loss
from .losses.registry import registered
from .packing import documents, restarts
from .split import refuse_split
from .words import warn

Schedule = str | Callable[[int], float]
Masks = Tensor | list[Tensor | None] | None
MOST = 1e30  # the largest weight allowed: float32 overflows near 3e38
SCHEDULES = ("constant", "linear", "cosine", "release")


@dataclass(kw_only=True)
class Term:
    """A loss over the chosen layers with a scheduled weight. Options as in `regularize`."""

    loss: Loss
    weight: float = 0.1
    layers: hs.Layers = "all"
    schedule: Schedule = "constant"
    ramp_steps: int | None = None
    release_at: int | None = None
    segments: str | None = "auto"
    check_every: int | None = None

    def __post_init__(self) -> None:
        self.layers = hs.checked_layers(self.layers)
        schedule, ramp_steps, release_at = self.schedule, self.ramp_steps, self.release_at
        if not isinstance(self.loss, Loss):
            remedy = "a number goes into weight=…, a function of your own into losses.register"
            if isinstance(self.loss, (list, tuple, dict)):
                remedy = "several at once are a list for regularize, [dict(loss='dispersion', weight=0.1), …]"
            elif (name := getattr(self.loss, "__name__", None)) in registered():
                remedy = f"give its name, {name!r}, and its options as keywords"
            raise TypeError(
                f"loss must be a name, like 'dispersion', or what losses.get returned, got {self.loss!r}: {remedy}."
            )
        number = isinstance(self.weight, Real) and not isinstance(self.weight, bool)
        if not number or not abs(self.weight) <= MOST:
            raise ValueError(
                f"weight must be a finite number, got {self.weight!r}: the paper uses 0.1, and {MOST:g} is the most."
            )
        if not isinstance(self.weight, (int, float)):
            self.weight = float(self.weight)  # a NumPy scalar would multiply tensors by NumPy's rules
        if not callable(schedule):
            check_choice("schedule", schedule, SCHEDULES)
        kind = "a function" if callable(schedule) else repr(schedule)
        ramps = schedule in ("linear", "cosine", "release")
        if ramps and not is_whole(ramp_steps, 1):
            raise ValueError(
                f"schedule={schedule!r} needs ramp_steps of at least 1, got {ramp_steps!r}: "
                "say over how many optimiser steps the weight changes."
            )
        if ramp_steps is not None and not ramps:
            raise ValueError(
                f"ramp_steps goes with schedule='linear', 'cosine' or 'release', got {ramp_steps!r} with {kind}: "
                "choose one of those, or leave it out."
            )
        if schedule == "release" and not is_whole(release_at, 0):
            raise ValueError(
                f"release_at must be an optimiser step, a whole number from 0 on, got {release_at!r}: give the "
                "step at which the weight begins to fall, over ramp_steps; only a recipe takes a share of the run."
            )
        if schedule != "release" and release_at is not None:
            raise ValueError(
                f"release_at goes with schedule='release', got {release_at!r} with {kind}: choose that schedule, or "
                "leave release_at out."
            )
        if self.segments is not None:
            check_choice("segments", self.segments, ("auto", "position_ids"))
        every = self.check_every
        if every is not None and not (is_whole(every, 1) and self.loss.name == "dispersion"):
            raise ValueError(
                f"check_every must be at least 1 and goes with dispersion, got {every!r} for "
                f"{self.loss.name}: leave it out for no check."
            )
        self.clock: Callable[[], int] = int  # of the optimiser's steps: an attachment sets its own
        # The loss whose values are the mean cosines of the unit vectors z/(‖z‖ + ε): log f(c̄) with log f(c) = c.
        same = {key: self.loss.keywords[key] for key in ("backend", "process_group") if key in self.loss.keywords}
        eps = registered()[self.loss.name].eps(self.loss.keywords)
        self.cosines = Loss("dispersion", estimator="first_order", distance="cosine", eps=eps, **same)

    def weight_at(self, step: int) -> float:
        """The weight at an optimiser step; a rising one is 0 at step 0 and complete from step `ramp_steps` on."""
        if callable(self.schedule):
            factor = self.schedule(step)
            try:
                number = float(factor) if hasattr(factor, "__float__") else math.nan  # it would parse a string
            except (TypeError, ValueError, RuntimeError, OverflowError):  # not one number, or too large for a float
                number = math.nan
            if not math.isfinite(number):
                raise ValueError(
                    f"schedule must return a finite number, by which the weight is multiplied, got {factor!r} for step "
                    f"{step}: return 1 for the full weight."
                )
            return self.weight * number
        if self.schedule == "constant":
            return self.weight
        done = min(1.0, max(0, step - (self.release_at or 0)) / (self.ramp_steps or 1))
        factors = {"linear": done, "cosine": 0.5 - 0.5 * math.cos(math.pi * done), "release": 1 - done}
        return self.weight * factors[self.schedule]

    @property
    def parts(self) -> list[Term]:
        """The losses of a sum (`Terms`), or this one alone."""
        return [self]

    @property
    def scheduled(self) -> bool:
        return any(term.schedule != "constant" for term in self.parts)

    def __str__(self) -> str:
        return str(self.loss)

    @property
    def weights(self) -> list[float]:
        """The weights of the losses of a sum (`Terms`) at the current step; empty for a single loss."""
        return []

    def chosen(self, states: int, first: int) -> list[int]:
        return hs.select(self.layers, states, first)

    @property
    def group(self) -> Any:
        """The process group over which every sequence is split; None where each process has whole sequences."""
        return self.loss.keywords.get("process_group")

    def across(self, group: Any) -> Term:
        """The same term for sequences that are split over the processes of a group."""
        if "process_group" not in registered()[self.loss.name].options or self.check_every:
            got = "check_every" if self.check_every else f"{self.loss.name!r}"
            raise ValueError(
                f"under context parallelism the loss must be computed over the parts of a sequence, got {got}, which "
                "needs the whole: use 'dispersion' with estimator='first_order' or 'exact', or switch cp_size off."
            )
        return replace(self, loss=Loss(self.loss.name, **{**self.loss.keywords, "process_group": group}))

    def penalty(
        self, capture: Capture, first: int, *, labels: Tensor | None = None, items: Tensor | int | None = None
    ) -> dict[str, Tensor]:
        """The penalty of one call: {"penalty", "share": scalars, "per_layer", "mean_cosine": (layers,)}.

        labels (batch, tokens) are shifted as the task loss counts them, items is their number in the whole optimiser
        step. Given both, a sequence is weighted by its labels' share of the items: `penalty` is this call's part of the
        step's penalty, `share` the sum of the weights, `per_layer` a mean over this call alone. Where labels and
        sequences are not as many (the choices of a question have one label, R-Drop reads each sequence twice), the
        sequences of the call have equal parts of its share. Without items all sequences with at least two tokens that
        count weigh the same (others have no pair), as always in `mean_cosine`.

        Where sequences are split over R processes, each process computes the loss of the whole sequence. Gradients will
        be averaged over the processes, as DDP and FSDP do, so the gradient here is R times that of the value.
        """
        parts = self._parts(capture)
        states, mask, labels = self.sequences(capture, first, labels)
        values, cosines = self._values(states, mask, capture.known)
        factor = self._pair_factor(mask, values)
        share, part = values.new_full((values.shape[1],), parts / values.shape[1]) * factor, values.new_full((), parts)
        if items is not None and labels is not None:
            labelled = (labels != -100).reshape(len(labels), -1).sum(1)  # one label per token, or per sequence
            if len(labelled) != values.shape[1]:
                labelled = labelled.sum() / values.shape[1]
            counted = sum_across(labelled, self.group).expand(values.shape[1])
            share = counted.to(values) / or_one(torch.as_tensor(items).to(values))  # a step may have no label at all
            part = share.sum()
        per_layer = (values * share).sum(1)  # not a matrix product: autocast would make that bfloat16
        penalty = per_layer.mean()
        if parts > 1:
            penalty = penalty - penalty.detach() * (1 - 1 / parts)
        result = {"penalty": penalty, "per_layer": per_layer.detach() / or_one(part), "share": part / parts}
        if cosines is None:  # one more read of the states: all their tokens, whatever the loss takes of them
            with torch.no_grad():
                cosines, _ = self.cosines.over_layers(states, mask)
        return result | {"mean_cosine": cosines.detach().mean(1) * factor.squeeze(1)}

    def _pair_factor(self, mask: Masks, like: Tensor) -> Tensor:
        """The factor from a mean over all sequences to one over those with a pair of tokens: (layers, 1) or (1, 1)."""
        ones = like.new_ones(1)
        each = [
            ones if one is None else geometry.over_enough(tokens_across(one, self.group), like.dtype).to(ones).view(1)
            for one in (mask if isinstance(mask, list) else [mask])
        ]
        return torch.stack(each)

    def _values(self, states: Sequence[Tensor], mask: Masks, known: Sequence[Known]) -> tuple[Tensor, Tensor | None]:
        """Loss values (layers, batch) and mean cosines; without a mask `known` ones, of whole rows, are reused."""
        if mask is not None or not known:
            return self.loss.over_layers(states, mask)
        by_id = {id(z): rest for z, *rest in known}
        of_states = [by_id.get(id(z)) or self.loss.over_layers([z], None) for z in states]
        values, cosines = ([part for part in parts if part is not None] for parts in zip(*of_states))
        return torch.cat(values), torch.cat(cosines) if cosines else None

    def refuse_parts(self) -> None:
        """Raise if sequences are split over processes and no process group was given."""
        if self.group is None:
            remedy = "process_group=accelerator.torch_device_mesh['cp'].get_group(), or attach to the trainer"
            refuse_split("the loss", f"name the processes, {remedy}")

    def traceable(self, capture: Capture) -> bool:
        """Whether torch.compile can trace all of `penalty`: no packed rows, whose position ids decide shapes, no
        generator, no process group and no `check_every`."""
        return not (self.check_every or self.group or self.loss.keywords.get("generator") or self._packed(capture))

    def _packed(self, capture: Capture) -> bool:
        """Whether the rows may hold several documents each."""
        positions = capture.position_ids
        auto = self.segments == "auto" and capture.attention_mask is None
        may_cut = self.group is None and (self.segments == "position_ids" or auto)
        return may_cut and capture.masks is None and positions is not None and positions.ndim == 2

    def tell_joined(self, capture: Capture) -> None:
        """Warn of rows that look packed, whose documents a mask that came too joins to one sequence. Waits for a GPU:
        for the first call alone."""
        positions = capture.position_ids
        if self.segments != "auto" or self.group is not None or capture.masks is not None:
            return
        if not isinstance(positions, Tensor) or positions.ndim != 2 or (mask := self.mask(capture)) is None:
            return
        if positions.shape[1] == mask.shape[1] and len(positions) in (1, len(mask)) and restarts(positions, mask):
            warn(
                "position_ids restart in a row, and a mask came too: rows are taken as one document; name "
                "segments='position_ids' to cut them, or segments=None to leave them whole."
            )

    def _parts(self, capture: Capture) -> int:
        """The number of processes that share a sequence. If several, packed rows are refused: documents would cross."""
        positions, rows = capture.position_ids, len(capture.states[0])
        if self.group is None:
            return 1
        starts = 0 if positions is None or positions.ndim != 2 else sum_across((positions == 0).sum(), self.group)
        if starts > rows:
            raise ValueError(
                "under context parallelism a row must be one sequence, got packed rows, whose position ids restart: "
                "documents that lie on several processes are not supported; set packing=False."
            )
        return dist.get_world_size(self.group)

    def sequences(
        self, capture: Capture, first: int, labels: Tensor | None = None
    ) -> tuple[list[Tensor], Masks, Tensor | None]:
        """The chosen states, each (sequences, tokens, width), their masks and labels; packed rows become documents."""
        chosen = self.chosen(len(capture.states), first)
        states = [capture.states[i] for i in chosen]
        if capture.masks is not None:  # states of two stacks, with a mask each
            return states, [self.mask(capture, i) for i in chosen], labels
        mask = self.mask(capture)
        positions = capture.position_ids
        if positions is None or not self._packed(capture):
            return states, mask, labels
        cut = documents(positions, mask, len(states[0]))
        if cut is None:
            return states, mask, labels
        if labels is not None and labels.shape[:2] == cut.shape:  # else one label for a row, or for several
            labels = torch.where(cut.mask, cut.gather(labels), -100)
        return [cut.gather(z) for z in states], cut.mask, labels

    def agreement(self, capture: Capture, first: int) -> Tensor:
        """Cosine per layer between the estimator's gradient and the exact one, on the first sequence, or document of a
        packed row, that has a pair of tokens; on the very first if none has."""
        exact = Loss(self.loss.name, **{**self.loss.keywords, "estimator": "exact", "max_tokens": None})
        cosines = []
        states, masks, _ = self.sequences(capture, first)
        for state, mask in zip(states, masks if isinstance(masks, list) else [masks] * len(states)):
            i = 0 if mask is None else int((mask.sum(1) >= 2).to(torch.uint8).argmax())
            z, own_mask = state[i : i + 1].detach().float().requires_grad_(), None if mask is None else mask[i : i + 1]
            pair = [torch.autograd.grad(f(z, own_mask), z)[0] for f in (self.loss, exact)]
            cosines.append(torch.cosine_similarity(pair[0].flatten(), pair[1].flatten(), dim=0))
        return torch.stack(cosines)

    def mask(self, capture: Capture, state: int = 0) -> Tensor | None:
        """The attention mask (batch, tokens) of a state as booleans; None where every token counts."""
        mask, shape = capture.mask_of(state), capture.states[state].shape[:2]
        if mask is None:
            return None
        if not isinstance(mask, Tensor) or mask.shape != shape:
            got = geometry.shape_or_type(mask)
            remedy = "pass the two-dimensional mask, or none and position_ids that restart"
            if isinstance(mask, Tensor) and mask.ndim == 2 and len(mask) == shape[0]:  # audio: a mask of samples
                got += ", of what it shortens first" if mask.shape[1] > shape[1] else ""
                remedy = "attach to a part that is called with the mask of its states, regularize(model.encoder, "
                remedy += "modules='layers.*'), and add handle.penalty(), or leave the mask out"
            raise ValueError(
                f"attention_mask must be (batch, tokens) = {tuple(shape)} to tell padding from tokens, got {got}: "
                f"{remedy}."
            )
        return geometry.counting(mask)


class Terms(Term):
    """Several losses at once, each over its own layers and with its own schedule: Σ_k weight_k(step) · penalty_k.

    The sum itself has weight 1, so loss = task_loss + penalty; the logs also have `penalty_k` and `penalty_weight_k`,
    k from 1. The schedules act inside the sum, by its clock.
    """

    def __init__(self, terms: Sequence[Term]) -> None:
        super().__init__(loss=terms[0].loss, weight=1.0)
        self.terms = list(terms)

    def __str__(self) -> str:
        return " + ".join(f"{term.weight:g} · {term}" for term in self.terms)

    @property
    def parts(self) -> list[Term]:
        return self.terms

    @property
    def weights(self) -> list[float]:
        step = self.clock()
        return [term.weight_at(step) for term in self.terms]

    def chosen(self, states: int, first: int) -> list[int]:
        return sorted({i for term in self.terms for i in term.chosen(states, first)})

    def across(self, group: Any) -> Terms:
        summed = Terms([term.across(group) for term in self.terms])
        summed.clock = self.clock
        return summed

    def refuse_parts(self) -> None:
        for term in self.terms:
            term.refuse_parts()

    def traceable(self, capture: Capture) -> bool:
        return False  # the weights of the current step would become constants of the graph

    def penalty(
        self, capture: Capture, first: int, *, labels: Tensor | None = None, items: Tensor | int | None = None
    ) -> dict[str, Tensor]:
        """As `Term.penalty`; `per_layer` has the layers of the first loss, then of the second, and so on, `mean_cosine`
        every layer once, as the first loss that reads it gives it."""
        parts = [term.penalty(capture, first, labels=labels, items=items) for term in self.terms]
        home = parts[0]["penalty"].device
        weighted = [weight * part["penalty"].to(home) for weight, part in zip(self.weights, parts)]
        result = {"penalty": torch.stack(weighted).sum(), "share": parts[0]["share"]}
        result |= {f"penalty_{k}": part["penalty"].detach().to(home) for k, part in enumerate(parts, 1)}
        cosines: dict[int, Tensor] = {}
        for term, part in zip(self.terms, parts):
            for layer, cosine in zip(term.chosen(len(capture.states), first), part["mean_cosine"]):
                cosines.setdefault(layer, cosine.to(home))
        result["per_layer"] = torch.cat([part["per_layer"].to(home) for part in parts])
        return result | {"mean_cosine": torch.stack([cosines[layer] for layer in sorted(cosines)])}

    def tell_joined(self, capture: Capture) -> None:
        for term in [term for term in self.terms if term.segments == "auto"][:1]:
            term.tell_joined(capture)


def or_one(share: Tensor) -> Tensor:
    """The share as a divisor, with 1 for 0: a call without labels has share 0, and its losses are 0 too."""
    return torch.where(share == 0, 1, share)
