"""A loss attached to a transformers `Trainer` or a TRL trainer: its `compute_loss` and `log` are wrapped.

Callbacks do not see the loss, and see the logs too late; TRL's SFTTrainer computes its loss from the decoder's
output and never reads `out.loss`. But every trainer has `compute_loss`, so the term is added to what that returns,
weighted to match how the trainer then divides the loss by the accumulation steps.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import TrainerCallback

from ..capture import counted
from ..handle import Attachment, attached_to
from ..insides import replaced
from ..insides import transformers as inside
from ..insides.torch import compiled_call
from ..named_layers import naming
from ..words import warn


class TrainerEngine(TrainerCallback):
    """The engine of a trainer: the term goes into its loss, and into its logs as task_loss, penalty, mean_cosine.

    The step of the schedule is the trainer's `global_step`, so resuming keeps it. Also a callback of the trainer, for
    when train() begins and when a step is about to be made.

    sums         sums over the training calls since the last log line, for the next one
    logged_step  the step of the last log line, or at which train() began or the loss was attached
    """

    def __init__(self, trainer: Any) -> None:
        if getattr(trainer, "model_init", None) is not None:
            raise ValueError(
                "trainer must hold its model, got one with model_init, which makes a new one in train(): "
                "pass model=… to the trainer."
            )
        shards = inside.sequence_shards(trainer)
        if shards["sequence"] > 1:
            raise ValueError(
                "trainer must give whole sequences to compute_loss, got sequence parallelism over "
                f"{shards['sequence']} processes (Ulysses), whose penalty would be that of a shard: use cp_size, "
                "context parallelism, instead of sp_size."
            )
        self._group = inside.context_group(trainer) if shards["context"] > 1 else None
        self.trainer, self.model = trainer, trainer.model
        self.sums: dict[str, Tensor] = {}
        self.logged_step = self.step
        self._weights: dict[str, set[float]] = {}  # penalty → its weights since the last log line
        self._collecting = False
        self._added = False  # whether a training call has had the term since train() began
        previous = attached_to(self.model)
        of_another = previous and isinstance(previous.engine, TrainerEngine) and previous.engine.trainer is not trainer
        # DPO's trainer after SFT's, or a notebook's cell run again: nobody may hold the earlier handle any more.
        self.replaces = previous if of_another else None

    @property
    def step(self) -> int:
        return int(self.trainer.state.global_step)

    @step.setter
    def step(self, value: int) -> None:
        raise AttributeError(
            f"step is the trainer's global_step, got {value}: resume with train(resume_from_checkpoint)."
        )

    def attach(self, attachment: Attachment) -> None:
        self._attachment = attachment
        if self.replaces is not None:  # now that all options have been checked
            self.replaces.remove()
            its_model = type(self.replaces.model).__name__
            warn(f"the loss that an earlier trainer had attached to its {its_model} is taken off.")
            self.replaces = None
        if self._group is not None:
            attachment.term = attachment.term.across(self._group)
        attachment.read(lambda: self._collecting)
        self._compute_loss, self._log = self.trainer.compute_loss, self.trainer.log
        for name, wrapped in (("compute_loss", self._with_penalty), ("log", self._with_terms)):
            attachment.undo.enter_context(replaced(self.trainer, name, wrapped))
        self.trainer.add_callback(self)
        attachment.undo.callback(self.trainer.remove_callback, self)

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        """Sums of an earlier train(), which may have been interrupted, are in no log line."""
        self.sums.clear()
        self._weights.clear()
        self.logged_step, self._added = self.step, False

    def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Raise if no loss of this train() has had the term."""
        if not self._added:
            name = type(self.trainer).__name__
            raise RuntimeError(
                f"{name} must compute its loss by compute_loss, to which the penalty is added, but its first optimiser "
                "step comes without a call of it: call self.compute_loss in its training_step, or, if that uses the "
                "loss that the model returns, attach to the model, regularize(trainer.model, …)."
            )

    def _with_penalty(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> Any:
        labels, shifts = inputs.get("shift_labels"), False
        if labels is None:
            labels, shifts = inputs.get("labels"), inside.trainer_shifts_labels(self.trainer)
        labels = counted(labels, shift=shifts)
        self._attachment.captures.clear()
        self._collecting = True
        try:
            result = self._compute_loss(
                model, inputs, return_outputs=return_outputs, num_items_in_batch=num_items_in_batch, **kwargs
            )
        finally:
            self._collecting = False
        loss = result[0] if return_outputs else result
        if not self._attachment.captures:
            if model.training and torch.is_grad_enabled():
                if compiled_call(model) is not None or hasattr(model, "_orig_mod"):
                    raise RuntimeError(
                        f"{type(self.trainer).__name__} must call the attached model so that its hidden states are "
                        "seen, but a compiled model that has been called, or another one of its class, does not notice "
                        "what is attached to it: call torch.compiler.reset() before train()."
                    )
                raise RuntimeError(
                    f"{type(self.trainer).__name__}.compute_loss must call the attached model, but no hidden "
                    "states came from it: attach after the trainer has wrapped or replaced its model, or, where its "
                    f"head calls the layers by a way of its own, {naming(self.model)}."
                )
            return result
        self._added = True
        added = self._terms(labels, num_items_in_batch, loss)
        return (loss + added, result[1]) if return_outputs else loss + added

    def _terms(self, labels: Tensor | None, items: Tensor | int | None, loss: Tensor) -> Tensor:
        """weight · penalty, scaled as the trainer expects its loss; both terms are noted for the log."""
        attachment = self._attachment
        prescaled = inside.scaled_for_accumulation(self.trainer, items)  # a share of the step: not divided again
        by_items = prescaled and items is not None and labels is not None
        if by_items:
            scale = float(inside.loss_copies(self.trainer))
        else:
            scale = 1 / inside.accumulation_steps(self.trainer) if prescaled else 1.0
        weight = attachment.weight
        penalty = attachment.take(labels, items if by_items else None, scale)
        attachment.task_loss(loss)
        last = attachment.last
        logged = 1.0 if prescaled else 1 / inside.accumulation_steps(self.trainer)
        self._note("task_loss", loss.detach() * logged)
        terms = [("penalty", weight, penalty.detach())]
        terms += [
            (f"penalty_{k}", w, last[f"penalty_{k}"] * last["share"]) for k, w in enumerate(attachment.term.weights, 1)
        ]
        for name, its_weight, value in terms:
            self._note(name, value * logged)
            self._note(f"weighted_{name}", its_weight * value * logged)
            self._weights.setdefault(name, set()).add(its_weight)
        self._note("mean_cosine", last["mean_cosine"].mean())
        self._note("mean_cosine_calls", torch.ones((), device=penalty.device))
        return weight * penalty

    def _note(self, name: str, value: Tensor) -> None:
        self.sums[name] = self.sums[name] + value if name in self.sums else value

    def _with_terms(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Replaces the trainer's `log`: adds both terms beside its own loss."""
        if "loss" in logs and self.sums:
            sums = {name: self._everywhere(value) for name, value in self.sums.items()}
            steps = max(1, self.step - self.logged_step)
            logs["task_loss"] = sums["task_loss"] / steps
            for name, weights in self._weights.items():
                logs[name] = sums[name] / steps
                logs[name.replace("penalty", "penalty_weight")] = _line_weight(name, weights, sums)
            logs["mean_cosine"] = sums["mean_cosine"] / sums["mean_cosine_calls"]
            if self._attachment.agreement is not None:
                logs["penalty_agreement"] = float(self._attachment.agreement.min())
            self._attachment.warn(logs["task_loss"], sums["weighted_penalty"] / steps, self.step)
            self.sums.clear()
            self._weights.clear()
            self.logged_step = self.step
        self._log(logs, *args, **kwargs)

    def _everywhere(self, value: Tensor) -> float:
        """The mean over the processes, as in the trainer's log of its own loss."""
        accelerator = self.trainer.accelerator
        if accelerator.num_processes > 1:
            value = accelerator.gather(value.reshape(1)).mean()
        return float(value)


def _line_weight(name: str, weights: set[float], sums: dict[str, float]) -> float:
    """The weight over the steps of a log line, such that loss = task_loss + penalty_weight · penalty.

    If it changed between these steps: its mean, in which each step is weighted by its penalty.
    """
    if len(weights) == 1 or sums[name] == 0:
        return max(weights)
    return sums[f"weighted_{name}"] / sums[name]
