"""A loss attached to a transformers `Trainer` or a TRL trainer: its `compute_loss` and `log` are wrapped.

Callbacks see neither the loss nor, in time, the logs; and TRL's SFTTrainer computes its loss from the decoder's
output and never reads `out.loss`. What every trainer has is `compute_loss`, so the term is added to what that
returns, with the weights that match how this trainer divides it by the accumulation steps afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .. import hidden_states as hs
from ..losses import mean_cosine
from ..regularizer import Handle, Term, shifts_labels

LOGGED = ("task_loss", "penalty", "mean_cosine")


class TrainerHandle(Handle):
    """A `Handle` whose term goes into the trainer's loss, and into its logs as task_loss, penalty, mean_cosine.

    The step of the schedule is the trainer's `global_step`, so it survives resumption.
    """

    def __init__(self, trainer: Any, term: Term, modules: Sequence[str] | None = None) -> None:
        if getattr(trainer, "model_init", None) is not None:
            raise ValueError(
                "trainer must hold its model, got one with model_init, which makes a new one in train(): "
                "pass model=… to the trainer."
            )
        self.trainer = trainer
        self._sums: dict[str, Tensor] = {}
        self._logged_step = -1
        self._wants_cosine = True
        super().__init__(trainer.model, term, modules)

    def _attach(self) -> None:
        self._captures: list[hs.Capture] = []
        self._collecting = False
        self._hooks += self._reader.attach(self._may_start, self._captured)
        self._compute_loss, self._log = self.trainer.compute_loss, self.trainer.log
        self._own = {name: self.trainer.__dict__.get(name) for name in ("compute_loss", "log")}
        self.trainer.compute_loss, self.trainer.log = self._with_penalty, self._with_terms

    def remove(self) -> None:
        super().remove()
        for name, own in self.__dict__.pop("_own", {}).items():
            if own is None:
                self.trainer.__dict__.pop(name, None)
            else:
                setattr(self.trainer, name, own)

    def _may_start(self) -> bool:
        return self._collecting

    def _captured(self, capture: hs.Capture) -> None:
        self._captures.append(capture)

    @property
    def weight(self) -> float:
        return self.term.weight_at(self.trainer.state.global_step)

    def penalty(self) -> Tensor:
        raise RuntimeError("a trainer's loss contains the penalty already: there is nothing to add by hand.")

    def _with_penalty(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> Any:
        labels = inputs.get("shift_labels")
        if labels is None and inputs.get("labels") is not None:
            labels = inputs["labels"]
            if getattr(self.trainer, "_loss_shifts_labels", shifts_labels(self.model)):
                labels = nn.functional.pad(labels[..., 1:], (0, 1), value=-100)
        self._captures.clear()
        self._collecting = True
        try:
            result = self._compute_loss(
                model, inputs, return_outputs=return_outputs, num_items_in_batch=num_items_in_batch, **kwargs
            )
        finally:
            self._collecting = False
        captures, self._captures[:] = list(self._captures), []
        loss = result[0] if return_outputs else result
        if not captures:
            if model.training and torch.is_grad_enabled():
                raise RuntimeError(
                    f"{type(self.trainer).__name__}.compute_loss must call the attached model, but no hidden "
                    "states came from it: attach after the trainer has wrapped or replaced its model."
                )
            return result
        added = self._terms(captures, labels, num_items_in_batch, loss)
        return (loss + added, result[1]) if return_outputs else loss + added

    def _terms(
        self, captures: list[hs.Capture], labels: Tensor | None, items: Tensor | int | None, loss: Tensor
    ) -> Tensor:
        """weight · penalty, scaled the way the trainer expects its loss; the parts go into the log."""
        divided_later = not self._scaled_for_accumulation(items)
        accumulation = self._accumulation_steps()
        by_items = not divided_later and items is not None and labels is not None
        scale = 1.0
        if by_items and self.trainer.args.average_tokens_across_devices:
            scale = self.trainer.accelerator.num_processes // self._replicas()
        elif not divided_later and not by_items:
            scale = 1 / accumulation
        parts = [
            self.term.penalty(c, self._reader.first, labels=labels, items=items if by_items else None) for c in captures
        ]
        penalty = torch.stack([p["penalty"] for p in parts]).mean() * scale
        weight = self.weight
        self.last = {
            "task_loss": loss.detach(),
            "penalty": penalty.detach(),
            "weight": weight,
            "per_layer": torch.stack([p["per_layer"] for p in parts]).mean(0) * scale,
        }
        cosine = self._cosine(captures, parts)
        if cosine is not None:
            self.last["mean_cosine"] = cosine
        self._check(captures[0])
        share = 1 / accumulation if divided_later else 1.0
        self._note("task_loss", loss.detach() * share)
        self._note("penalty", penalty.detach() * share)
        if cosine is not None:
            self._note("mean_cosine", cosine.mean())
            self._note("mean_cosine_calls", torch.ones((), device=cosine.device))
        return weight * penalty

    def _cosine(self, captures: list[hs.Capture], parts: list[dict[str, Tensor]]) -> Tensor | None:
        """Mean cosine per layer: free to first order, else one more read of the states, once per log."""
        if "mean_cosine" in parts[0]:
            return torch.stack([p["mean_cosine"] for p in parts]).mean(0)
        if not self._wants_cosine:
            return None
        self._wants_cosine = False
        with torch.no_grad():
            capture = captures[0]
            states = [capture.states[i] for i in hs.select(self.term.layers, len(capture.states), self._reader.first)]
            mask = self.term._mask(capture, states[0])
            return torch.stack([mean_cosine(z, mask).mean() for z in states])

    def _note(self, name: str, value: Tensor) -> None:
        if self._logged_step < 0:
            self._logged_step = self.trainer.state.global_step  # a resumed run does not begin at 0
        self._sums[name] = self._sums[name] + value if name in self._sums else value

    def _with_terms(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """The trainer's log, with both terms beside its own loss."""
        step = self.trainer.state.global_step
        if "loss" in logs and self._sums:
            sums = {name: self._everywhere(value) for name, value in self._sums.items()}
            steps = max(1, step - self._logged_step)
            calls = sums.pop("mean_cosine_calls", 1.0)
            logs["task_loss"], logs["penalty"] = sums["task_loss"] / steps, sums["penalty"] / steps
            if "mean_cosine" in sums:
                logs["mean_cosine"] = sums["mean_cosine"] / calls
            logs["penalty_weight"] = self.weight
            if "agreement" in self.last:
                logs["penalty_agreement"] = float(self.last["agreement"].min())
            self._sums.clear()
            self._logged_step = step
            self._wants_cosine = True
        self._log(logs, *args, **kwargs)

    def _everywhere(self, value: Tensor) -> float:
        """The mean over the processes, as the trainer does with its own loss."""
        accelerator = self.trainer.accelerator
        if accelerator.num_processes > 1:
            value = accelerator.gather(value.reshape(1)).mean()
        return float(value)

    def _scaled_for_accumulation(self, items: Tensor | int | None) -> bool:
        """Whether the loss is already a share of the whole step, so that the trainer will not divide it."""
        said = getattr(self.trainer, "loss_is_scaled_for_ga", None)
        if said is not None:
            return bool(said)
        by_model = bool(self.trainer.model_accepts_loss_kwargs) and items is not None
        return by_model or self.trainer.compute_loss_func is not None

    def _accumulation_steps(self) -> int:
        steps = getattr(self.trainer, "current_gradient_accumulation_steps", None)
        return int(steps or self.trainer.args.gradient_accumulation_steps)

    def _replicas(self) -> int:
        return self.trainer.get_tp_size() if hasattr(self.trainer, "get_tp_size") else 1
