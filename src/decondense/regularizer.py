"""`regularize`: a loss on the hidden states of a model, attached in one line and added while it trains.

    handle = regularize(model, "dispersion", weight=0.1)
    out = model(input_ids=x, attention_mask=m, labels=x)     # out.loss = task loss + weight · penalty

The penalty is the mean over the chosen layers of the loss of each sequence's token states. How the sequences of a
batch are weighted decides whether gradient accumulation stays exact: with `num_items_in_batch` (what the
transformers Trainer passes, and then does not divide by the accumulation steps) a sequence counts by its share of
the step's items, else the sequences of the batch have equal weight.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from . import hidden_states as hs
from .losses.options import check_choice
from .losses.presets import Loss, get

Schedule = str | Callable[[int], float]
_attached: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def regularize(
    target: Any,
    loss: str | Loss = "dispersion",
    *,
    weight: float = 0.1,
    layers: hs.Layers = "all",
    schedule: Schedule = "constant",
    ramp_steps: int | None = None,
    segments: str | None = "auto",
    modules: Sequence[str] | None = None,
    check_every: int | None = None,
    **options: Any,
) -> Handle:
    """Attach a loss to a model, or to a transformers or TRL trainer.

    target       a transformers model (decoder, encoder, encoder–decoder, PEFT-wrapped); a trainer, whose
                 `compute_loss` and `log` are then wrapped; or any `nn.Module` together with `modules`.
    loss         a name, with `options` as in `losses.get` (preset=…, tau=…, estimator=…), or what `losses.get`
                 returned. Dispersion is estimated to first order unless told otherwise: docs/estimators.md.
    weight       λ, what the penalty is multiplied by.
    layers       "all" (every block, not the embedding layer), "last", "early_half", "late_half", a list of
                 indices into the hidden states (0 is the embedding layer), or a callable of their number.
    schedule     "constant", "linear" or "cosine": the weight rises from 0 over `ramp_steps` optimiser steps; or a
                 callable from the optimiser step to a factor of the weight.
    segments     "position_ids": a packed row is cut into documents where its position ids restart; "auto": so
                 where no attention mask came; None: a row is a sequence.
    modules      patterns of submodule names whose outputs (batch, tokens, width) are read instead.
    check_every  every so many training calls, compare the estimator's gradient with the exact one on the first
                 sequence of the batch: `handle.last["agreement"]`, a cosine per layer, kept until the next check.
    """
    if isinstance(loss, str):
        if get(loss).name == "dispersion" and "preset" not in options:
            options.setdefault("estimator", "first_order")
        loss = get(loss, **options)
    elif options:
        raise TypeError(
            f"options go with a loss by name, got {', '.join(options)} beside {loss!r}: give them to losses.get."
        )
    if isinstance(target, type) or not (isinstance(target, nn.Module) or hasattr(target, "compute_loss")):
        raise TypeError(f"target must be a model or a trainer, got {target!r}: pass the object that you train with.")
    term = Term(
        loss=loss,
        weight=weight,
        layers=layers,
        schedule=schedule,
        ramp_steps=ramp_steps,
        segments=segments,
        check_every=check_every,
    )
    if isinstance(target, nn.Module):
        return Handle(target, term, modules)
    from .integrations.trainer import TrainerHandle

    return TrainerHandle(target, term, modules)


class Term:
    """What is added: a loss over the chosen layers, and its weight at a step. Knows nothing of models."""

    def __init__(
        self,
        *,
        loss: Loss,
        weight: float,
        layers: hs.Layers = "all",
        schedule: Schedule = "constant",
        ramp_steps: int | None = None,
        segments: str | None = "auto",
        check_every: int | None = None,
    ) -> None:
        hs.check_layers(layers)
        if not isinstance(weight, (int, float)) or not math.isfinite(weight):
            raise ValueError(f"weight must be a finite number, got {weight!r}: the paper uses 0.1.")
        if not callable(schedule):
            check_choice("schedule", schedule, ("constant", "linear", "cosine"))
            if schedule != "constant" and (ramp_steps is None or ramp_steps < 1):
                raise ValueError(
                    f"schedule={schedule!r} needs ramp_steps of at least 1, got {ramp_steps}: "
                    "say over how many optimiser steps the weight rises."
                )
        if segments is not None:
            check_choice("segments", segments, ("auto", "position_ids"))
        if check_every is not None and (check_every < 1 or loss.name != "dispersion"):
            raise ValueError(
                f"check_every must be at least 1 and goes with dispersion, got {check_every} for {loss.name}: "
                "leave it out for no check."
            )
        self.loss, self.weight, self.layers = loss, weight, layers
        self.schedule, self.ramp_steps = schedule, ramp_steps
        self.segments, self.check_every = segments, check_every

    def weight_at(self, step: int) -> float:
        """The weight at an optimiser step: 0 at step 0 of a ramp, the full weight from `ramp_steps` on."""
        if callable(self.schedule):
            return self.weight * float(self.schedule(step))
        if self.schedule == "constant":
            return self.weight
        done = min(1.0, step / (self.ramp_steps or 1))
        return self.weight * (done if self.schedule == "linear" else 0.5 - 0.5 * math.cos(math.pi * done))

    def penalty(
        self,
        capture: hs.Capture,
        first: int,
        *,
        labels: Tensor | None = None,
        items: Tensor | int | None = None,
    ) -> dict[str, Tensor]:
        """The penalty of one call: {"penalty": scalar, "per_layer": (layers,), "mean_cosine": (layers,)}.

        labels (batch, tokens), as counted, and items = their number in the whole optimiser step: a sequence then
        weighs its labels' share of the items. Without items the sequences of the batch weigh the same.
        """
        states = [capture.states[i] for i in hs.select(self.layers, len(capture.states), first)]
        mask = self._mask(capture, states[0])
        cut = self._documents(capture, states[0], mask)
        if cut is not None:
            states, mask = [cut.gather(z) for z in states], cut.mask
            labels = None if labels is None else torch.where(cut.mask, cut.gather(labels), -100)
        values, cosines = self.loss.over_layers(states, mask)
        if items is None or labels is None:
            share = values.new_full((values.shape[1],), 1 / values.shape[1])
        else:
            counted = (labels != -100).reshape(len(labels), -1).sum(1)  # one label per token, or per sequence
            share = counted.to(values) / torch.as_tensor(items).to(values)
        per_layer = (values * share).sum(1)  # not a matrix product: autocast would make that bfloat16
        result = {"penalty": per_layer.mean(), "per_layer": per_layer.detach()}
        if cosines is not None:
            result["mean_cosine"] = cosines.detach().mean(1)
        return result

    def agreement(self, capture: hs.Capture, first: int) -> Tensor:
        """Cosine between the estimator's gradient and the exact one, per layer, on the first sequence."""
        exact = Loss(self.loss.name, **{**self.loss.keywords, "estimator": "exact", "max_tokens": None})
        cosines = []
        for i in hs.select(self.layers, len(capture.states), first):
            z = capture.states[i][:1].detach().float().requires_grad_()
            mask = self._mask(capture, capture.states[i])
            pair = [torch.autograd.grad(f(z, None if mask is None else mask[:1]), z)[0] for f in (self.loss, exact)]
            cosines.append(torch.cosine_similarity(pair[0].flatten(), pair[1].flatten(), dim=0))
        return torch.stack(cosines)

    def _mask(self, capture: hs.Capture, z: Tensor) -> Tensor | None:
        mask = capture.attention_mask
        if mask is None:
            return None
        if not isinstance(mask, Tensor) or mask.shape != z.shape[:2]:
            came = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
            raise ValueError(
                f"attention_mask must be (batch, tokens) = {tuple(z.shape[:2])} to tell padding from tokens, "
                f"got {came}: pass the two-dimensional mask, or none and position_ids that restart."
            )
        return mask.bool()

    def _documents(self, capture: hs.Capture, z: Tensor, mask: Tensor | None) -> hs.Documents | None:
        positions = capture.position_ids
        if self.segments is None or positions is None or positions.ndim != 2:
            return None
        if self.segments == "auto" and mask is not None:
            return None
        return hs.documents(positions.expand(z.shape[0], -1), mask)


class Handle:
    """A loss attached to a model. Also a context manager; `remove()` takes everything off again.

    last     the latest training call: task_loss, penalty (before the weight), weight, per_layer and, where the
             estimator gives it for nothing, mean_cosine; tensors, so that reading them is what waits for a GPU
    step     the optimiser steps seen so far, which drive the schedule; set it when a run is resumed
    """

    def __init__(self, model: nn.Module, term: Term, modules: Sequence[str] | None = None) -> None:
        if model in _attached:
            raise RuntimeError(
                f"this {type(model).__name__} already has a loss attached: call remove() on its handle first."
            )
        self.model, self.term = model, term
        self.last: dict[str, Any] = {}
        self.step = 0
        self._reader, states = hs.reader_of(model, modules)
        if states is not None:
            hs.select(term.layers, states, self._reader.first)  # an impossible choice is refused here and now
        self._capture: hs.Capture | None = None
        self._call: tuple[Tensor | None, Tensor | int | None] = (None, None)
        self._inside = False
        self._calls = 0
        self._agreement: Tensor | None = None
        self._hooks: list[Any] = []
        self._attach()
        _attached.add(model)

    def _attach(self) -> None:
        # One graph break at the end of a compiled model, instead of several in the losses. Wrapped here and not where
        # it is defined, because that would import the compiler together with this package.
        self._added = torch.compiler.disable(self._added)  # type: ignore[method-assign]
        # The model's own pre-hook comes first and its own forward hook last, whatever the reader hangs between.
        self._hooks.append(self.model.register_forward_pre_hook(self._enter, with_kwargs=True))
        self._hooks += self._reader.attach(self._may_start, self._captured)
        self._hooks.append(self.model.register_forward_hook(self._leave, with_kwargs=True))
        self._hooks.append(_count_steps(self))

    def remove(self) -> None:
        """Take the loss off. The model is as it was before; calling this twice does no harm."""
        if not self._hooks:
            return
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._capture = None
        _attached.discard(self.model)

    def __enter__(self) -> Handle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def __deepcopy__(self, memo: dict[int, Any]) -> Handle:
        # A copy of the model (an average of its weights, say) has copies of the hooks: they stay those of this handle.
        return self

    @property
    def weight(self) -> float:
        """The weight at the current step."""
        return self.term.weight_at(self.step)

    def penalty(self) -> Tensor:
        """weight · penalty of the last training call that had no loss of its own, to be added to yours."""
        if self._capture is None:
            raise RuntimeError(
                "penalty() needs a training call without a loss just before it, got none: call the model in "
                "train() with gradients on; where labels are given, the term is in out.loss already."
            )
        capture, self._capture = self._capture, None
        return self._added(capture, None, None)

    # ---- the hooks, in the order in which they run ----

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if getattr(module, "_is_replica", False):
            raise RuntimeError("nn.DataParallel runs its replicas side by side, which a handle cannot: use DDP.")
        if self._inside:  # the last call ended in an exception, which has said enough
            self._capture = None
        self._inside = True
        labels = hs.argument(module.forward, args, kwargs, "labels")
        shifted = kwargs.get("shift_labels")
        if shifted is not None:
            labels = shifted
        elif labels is not None and shifts_labels(module):
            labels = nn.functional.pad(labels[..., 1:], (0, 1), value=-100)
        self._call = (labels, kwargs.get("num_items_in_batch"))

    def _may_start(self) -> bool:
        if not self._hooks:  # removed, but a copy of the model still has its hooks
            return False
        if self._capture is not None:
            raise RuntimeError(
                "the penalty of the last training call was never added: that call returned no loss. Pass labels, "
                "or add handle.penalty() to your own loss before the next call, or attach to the trainer with "
                "regularize(trainer, …)."
            )
        return True

    def _captured(self, capture: hs.Capture) -> None:
        self._capture = capture

    def _leave(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Any:
        self._inside = False
        (labels, items), self._call = self._call, (None, None)
        if self._capture is None:
            return None
        if self._capture.attention_mask is None and labels is not None and _is_encoder_decoder(module):
            # Targets are padded with −100, and the decoder sees them shifted: no label, no token.
            self._capture.attention_mask = labels != -100
        task = _loss_of(out, labels is not None)
        if task is None:
            return None
        capture, self._capture = self._capture, None
        total = task + self._added(capture, labels, items).to(task.device)
        self.last["task_loss"] = task.detach()
        if isinstance(out, tuple):
            return (total, *out[1:])
        out["loss"] = total
        return out

    def _added(self, capture: hs.Capture, labels: Tensor | None, items: Tensor | int | None) -> Tensor:
        result = self.term.penalty(capture, self._reader.first, labels=labels, items=items)
        weight = self.weight
        self.last = {**result, "penalty": result["penalty"].detach(), "weight": weight}
        self._check(capture)
        return weight * result["penalty"]

    def _check(self, capture: hs.Capture) -> None:
        if self.term.check_every and self._calls % self.term.check_every == 0:
            self._agreement = self.term.agreement(capture, self._reader.first)
        if self._agreement is not None:
            self.last["agreement"] = self._agreement
        self._calls += 1


def _count_steps(handle: Handle) -> Any:
    """Count the steps of any optimiser that holds the handle's model: the clock of the schedule.

    Forward passes are not steps (gradient accumulation), so the optimiser itself is listened to. The hook is
    global and must not keep the model alive, hence the weak reference.
    """
    reference = weakref.ref(handle)

    def stepped(optimiser: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        handle = reference()
        if handle is None:
            return
        mine = {id(p) for p in handle.model.parameters()}
        if any(id(p) in mine for group in optimiser.param_groups for p in group["params"]):
            handle.step += 1

    return register_optimizer_step_post_hook(stepped)


def shifts_labels(model: nn.Module) -> bool:
    """Whether the model's loss compares position i with label i + 1: the rule by which Trainer counts items."""
    from transformers.loss.loss_utils import LOSS_MAPPING, ForCausalLMLoss

    inner = hs.unwrap_peft(model)
    causal = LOSS_MAPPING.get(getattr(inner, "loss_type", "")) is ForCausalLMLoss
    return causal and not _is_encoder_decoder(inner)


def _is_encoder_decoder(model: nn.Module) -> bool:
    return bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))


def _loss_of(out: Any, labels: bool) -> Tensor | None:
    """The loss in a model's output: a key of a ModelOutput or dict, or the first of a tuple when labels were given."""
    if isinstance(out, dict):
        return out.get("loss")
    if isinstance(out, tuple) and labels and isinstance(out[0], Tensor) and out[0].ndim == 0:
        return out[0]
    return None
