"""A loss attached to a model, for every loop that differentiates the loss which the model returns.

Hooks on the model add the term to the `loss` of a training call's output. A loop that does not use that loss, or
forgets to call `train()`, gets an error at its first optimiser step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..capture import Hook, after_optimisers, counted
from ..geometry import shape_or_type
from ..handle import Attachment
from ..inputs import called_with
from ..insides.torch import is_replica
from ..insides.transformers import shifts_labels
from ..stack import unwrap_peft


class OwnLoop:
    """The engine of a loop that uses the model's own loss: adds the term to the `loss` in a training call's output."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.step = 0
        self._call: tuple[Any, bool, Tensor | int | None] = (None, False, None)  # labels, whether to shift them, items
        self._inside = False
        self._went_past = False  # whether the collected call was made inside the model, past the model itself
        self._collects = False  # whether this call's states are collected; states of an earlier call may still wait
        # Modes of the calls with gradients since the last step. A call writes these and never reads them: torch.compile
        # would guard its graph with whatever a call reads.
        self._trained = self._evaluated = False
        self._bypassed = False  # whether since then a model inside PEFT's was called by itself, with gradients
        self._owner_seen = False  # whether an optimiser that holds the model's own parameters has been seen

    def attach(self, attachment: Attachment) -> None:
        self._attachment = attachment
        inner = unwrap_peft(self.model)  # asked once: torch.compile cannot trace the question
        self._shifts = hasattr(inner, "loss_type") and shifts_labels(inner)
        self._begun = any(p.grad is not None for p in self.model.parameters())  # a step had begun before
        # The pre-hook on the model must come first and the forward hook last; those of the reader lie between.
        enter = Hook.hang(self.model.register_forward_pre_hook, self._enter, with_kwargs=True)
        attachment.undo.callback(enter.remove)
        if inner is not self.model:
            attachment.undo.callback(Hook.hang(inner.register_forward_pre_hook, self._enter_inner).remove)
        attachment.read(self._wanted)
        leave = Hook.hang(self.model.register_forward_hook, self._leave, with_kwargs=True)
        attachment.undo.callback(leave.remove)
        attachment.undo.callback(after_optimisers(self))

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if is_replica(module):
            raise RuntimeError("a handle must have one model, got replicas of nn.DataParallel, side by side: use DDP.")
        if self._inside:  # the last call raised an error: its states belong to no loss
            self._attachment.captures.clear()
        self._inside, self._collects = True, False
        if torch.is_grad_enabled():
            if module.training:
                self._trained = True
            else:
                self._evaluated = True
        labels, shifts = kwargs.get("shift_labels"), False
        if labels is None:
            labels, shifts = called_with(module.forward, args, kwargs).get("labels"), self._shifts
        self._call = (labels, shifts, kwargs.get("num_items_in_batch"))

    def _enter_inner(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """PEFT calls the `forward` of the model inside, so this is the user's call, mostly of what merge_and_unload
        left; with prefix tuning it is PEFT's."""
        if not self._inside and torch.is_grad_enabled():
            self._bypassed = True

    def _wanted(self) -> bool:
        if self._attachment.captures:
            self._refuse_past()
            raise RuntimeError(
                "the penalty of a training call must be added before the next call, but the last call returned no loss "
                "to add it to: pass labels, add handle.penalty() to your own loss, or attach to the trainer with "
                "regularize(trainer, …)."
            )
        self._collects, self._went_past = True, not self._inside
        return True

    def _refuse_past(self) -> None:
        """Raise if the collected call did not go through the model, whose hooks add the penalty."""
        if self._went_past:
            raise RuntimeError(
                f"the {type(self.model).__name__} that the loss is attached to must be called itself, but the last "
                "training call went past it, as model.forward(…) does, or the model that PEFT's merge_and_unload "
                "leaves: remove() the handle and attach to what you call, with a trainer regularize(trainer, …), or "
                "add handle.penalty() to your own loss."
            )

    def _leave(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Any:
        attachment, self._inside = self._attachment, False
        (labels, shifts, items), self._call = self._call, (None, False, None)
        if not self._collects or not attachment.captures:
            return None
        task = _loss_of(out, labels is not None)
        if task is None:
            return None
        total = task + attachment.give(counted(labels, shift=shifts), items).to(task.device)
        attachment.task_loss(task)
        if isinstance(out, tuple):
            return (total, *out[1:])
        out["loss"] = total
        return out

    def stepped(self, optimiser: torch.optim.Optimizer) -> None:
        """After the step of any optimiser: count a step of the model if a backward pass has reached the penalty.

        So two optimisers over one model count once, and one over copies of its weights counts too. Once an optimiser
        holds the model's own parameters, others do not count. A penalty that nobody uses is an error at the first step.
        """
        attachment = self._attachment
        trainable = [p for p in self.model.parameters() if p.requires_grad]
        stepped_parameters = [p for group in optimiser.param_groups for p in group["params"]]
        holds_own = not {id(p) for p in self.model.parameters()}.isdisjoint(map(id, stepped_parameters))
        self._owner_seen |= holds_own
        if self._owner_seen and not holds_own:
            return
        # An optimiser over copies of the weights, flattened or not, has as many numbers as the model trains.
        copies = sum(p.numel() for p in stepped_parameters) == sum(p.numel() for p in trainable)
        if attachment.reached:
            attachment.refuse_frozen()  # compiled calls do not check this
            self.step += 1
            attachment.look()
        elif not holds_own and not (copies and any(p.grad is not None for p in trainable)):
            return
        elif attachment.given or attachment.captures:
            attachment.refuse_frozen()
            self._refuse_past()
            raise RuntimeError(
                "weight · penalty must be part of the loss that is differentiated, but no backward pass has reached it "
                'before this optimiser step: it is in the loss where the model returns it as out.loss or out["loss"]. '
                "With a trainer use dc.regularize(trainer, …); in a loop of your own use that loss, or add "
                "handle.penalty() to the loss of a call that returns none."
            )
        elif self._bypassed and not self._trained:
            self._went_past = True
            self._refuse_past()
        elif self._evaluated and not self._trained:
            raise RuntimeError(
                "the model must be in training mode for its loss to be added, but every call before this optimiser "
                "step was made in eval mode, in which from_pretrained returns a model and evaluations leave it: call "
                "model.train(), or handle.remove()."
            )
        elif not attachment.calls and not self._begun and any(p.grad is not None for p in trainable):
            part = getattr(attachment.reader, "stack", self.model)
            if self._trained and not part.training:
                raise RuntimeError(
                    f"the part read must be in training mode, got {type(part).__name__} in eval mode inside of a model "
                    "that trains: call its train(), or handle.remove()."
                )
            raise RuntimeError(
                "the hidden states of the model must be seen, but none came before this first optimiser step, which "
                "has gradients: attach before a compiled model, or another one of its class, is first called, or call "
                "torch.compiler.reset() after attaching; else check that the loop calls this very module."
            )
        attachment.given, attachment.reached, self._begun = 0, False, False
        self._trained = self._evaluated = self._bypassed = False


def _loss_of(out: Any, labels: bool) -> Tensor | None:
    """The loss in a model's output: `loss` of a ModelOutput or dict, or with labels the first entry of a tuple."""
    if isinstance(out, dict):
        loss = out.get("loss")
        if loss is not None and not (isinstance(loss, Tensor) and loss.numel() == 1):
            raise TypeError(
                f"the loss that a model returns must be a tensor of one number for the penalty to be added, got "
                f"{shape_or_type(loss)}: return one, or none, and add handle.penalty() to your own."
            )
        return loss
    if isinstance(out, tuple) and labels and isinstance(out[0], Tensor) and out[0].ndim == 0:
        return out[0]
    return None
