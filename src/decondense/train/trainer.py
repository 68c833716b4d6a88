"""transformers' Trainer with the five things it has no option for. The training loop is Trainer's own.

* a loss or gradient that is not finite stops the run (or skips the step) before the optimiser sees it;
* input embeddings may have a learning rate of their own (active forgetting);
* a teacher's predictions may be part of the loss (distillation);
* terms on the logits may be added to the loss (`controls.py`), and are logged beside it;
* checkpoints get a completion marker, and only a marked one is resumed from (`folder.py`).
"""

from __future__ import annotations

import functools
import math
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import TrainerCallback

from ..insides.accelerate import keep_float32, watch_gradient_norm
from ..insides.transformers import loss_copies, loss_sum, scaled_for_accumulation
from .active_forgetting import embedding_learning_rate
from .blocks import Order
from .controls import logit_terms
from .distillation import predictions, share_loss
from .folder import kept_in, last_complete_checkpoint, mark
from .recipe import Recipe

LISTED = 32  # blocks of a bad step that are named; the others follow from the seed


class NotFinite(ValueError):
    """The loss or the gradient became NaN or infinite."""


class Trainer(transformers.Trainer, TrainerCallback):
    """Also its own callback, for when a step begins, when its gradient is ready, and when a checkpoint is written.

    `attachment`: the loss on the hidden states, if there is one. `skipped`: the numbers of skipped steps, from 1."""

    def __init__(
        self, *, recipe: Recipe, clock: Any, contents: dict[str, str], teacher: nn.Module | None = None, **options: Any
    ) -> None:
        super().__init__(**options)
        self.contents = contents
        self.recipe, self.teacher, self.clock = recipe, teacher, clock
        self.folder = Path(str(self.args.output_dir))
        self.attachment: Any = None
        self.skipped: list[int] = []
        self._begun, self._seconds_before = time.monotonic(), 0.0
        self._bad: Tensor | bool = False  # whether a loss of this step is not finite
        self._norm: Any = None
        self._sums: dict[str, Tensor] = {}  # of the terms on the logits, since the last line of the log
        self._added: Tensor | None = None
        self._logged_step = self._skipped_since = 0
        watch_gradient_norm(self.accelerator, lambda norm: setattr(self, "_norm", norm))
        keep_float32(self.accelerator)
        self.add_callback(self)

    # ---- what a checkpoint keeps beside Trainer's own state ----

    @property
    def seconds(self) -> float:
        """Time spent on this run, including that before it was resumed."""
        return self._seconds_before + time.monotonic() - self._begun

    def begin(self, checkpoint: Path | None) -> None:
        """Start the clock and restore what the checkpoint's marker keeps; called when everything else is ready."""
        self._begun = time.monotonic()
        if checkpoint is None:
            return
        kept = kept_in(checkpoint)
        self._logged_step, self._seconds_before, self.skipped = kept["step"], kept["seconds"], kept["skipped_steps"]
        if self.attachment is not None:
            self.attachment.calls = kept["step"] * self.args.gradient_accumulation_steps
            if kept["agreement"] is not None:
                self.attachment.agreement = torch.tensor(kept["agreement"], device=self.args.device)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if torch.distributed.is_initialized():
            torch.distributed.barrier()  # every process has written its part
        if not state.is_world_process_zero:
            return
        agreement = getattr(self.attachment, "agreement", None)
        mark(
            self.folder / f"checkpoint-{state.global_step}",
            step=state.global_step,
            seconds=round(self.seconds, 2),
            skipped_steps=self.skipped,
            texts=self.contents,
            agreement=None if agreement is None else agreement.tolist(),
        )

    # ---- the learning rate of the embeddings ----

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        optimiser = super().create_optimizer(model)
        forgetting = self.recipe.baselines.active_forgetting
        if forgetting is not None and not any(g.get("embeddings") for g in optimiser.param_groups):
            trained: Any = self.model if model is None else model
            weight = trained.get_input_embeddings().weight
            group = next(g for g in optimiser.param_groups if any(p is weight for p in g["params"]))
            group["params"] = [p for p in group["params"] if p is not weight]
            own = {"params": [weight], "lr": forgetting.learning_rate, "embeddings": True}
            optimiser.add_param_group({k: v for k, v in group.items() if k != "params"} | own)
        return optimiser

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        scheduler: Any = super().create_scheduler(num_training_steps, optimizer)
        forgetting = self.recipe.baselines.active_forgetting
        for number, group in enumerate(scheduler.optimizer.param_groups):
            if forgetting is not None and group.get("embeddings"):
                scheduler.lr_lambdas[number] = functools.partial(
                    embedding_learning_rate, steps=num_training_steps, every=forgetting.every, warmup=forgetting.warmup
                )
                group["lr"] = 0.0  # a cycle begins at 0, but the schedule of the others has set a rate already
        return scheduler

    # ---- the loss ----

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        baselines, items = self.recipe.baselines, num_items_in_batch
        if not model.training or (self.teacher is None and not baselines.on_logits):
            return super().compute_loss(model, inputs, return_outputs, items)
        loss, outputs = super().compute_loss(model, inputs, True, items)
        if baselines.on_logits:
            self._look_at_logits(loss.detach(), outputs, inputs["labels"], items)
        if self.teacher is not None and baselines.distillation is not None:
            items = None if items is None else items / loss_copies(self)  # as Trainer multiplies the task loss
            mixture = baselines.distillation.model_dump(include={"temperature", "share"})
            with self.accelerator.autocast():  # accelerate puts it around the student's `forward` alone
                target = predictions(self.teacher, inputs)
            loss = share_loss(loss, outputs["logits"], target, inputs["labels"], items, **mixture)
        return (loss, outputs) if return_outputs else loss

    def attach(self, attachment: Any) -> None:
        """Keep the loss attached to this trainer, or None, and add the terms on the logits outside of it, so that the
        task loss that the attachment sees and logs is the plain cross-entropy."""
        self.attachment = attachment
        inner: Any = self.compute_loss

        def with_terms(*args: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
            loss, outputs = inner(*args, return_outputs=True, **kwargs)
            added, self._added = self._added, None
            loss = loss if added is None else loss + added
            return (loss, outputs) if return_outputs else loss

        if self.recipe.baselines.on_logits:
            self.compute_loss = with_terms  # type: ignore[method-assign]

    def _look_at_logits(self, loss: Tensor, outputs: Any, labels: Tensor, items: Tensor | int | None) -> None:
        """Compute what is to be added to the loss, divided as the loss is, and sum up the parts for the log."""
        by_items = items is not None and scaled_for_accumulation(self, items)
        if "logits" in outputs:
            logits, target = outputs["logits"][:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten()
            count: Any = items if by_items else (target != -100).sum()
            terms = logit_terms(logits, target, count)
        else:
            terms = outputs  # the fused head computed them
        weights = self.recipe.baselines.on_logits
        scale = loss_copies(self) if by_items else 1
        chosen = {name: terms[name] * scale for name in weights}
        self._added = torch.stack([weight * chosen[name] for name, weight in weights.items()]).sum()
        share = 1.0 if by_items else 1 / self.args.gradient_accumulation_steps  # else Trainer divides later
        for name, value in {"task_loss": loss, **chosen}.items():
            self._sums[name] = self._sums.get(name, torch.zeros_like(loss)) + value.detach() * share

    def prediction_step(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Make the held-out loss a mean over tokens. Trainer averages the means of batches over blocks, which is
        the same only where every block predicts the same number of tokens: not where documents are isolated."""
        held_out: Any = self.eval_dataset
        labels = inputs["labels"]
        loss, *rest = super().prediction_step(model, inputs, *args, **kwargs)
        if held_out.isolated and loss is not None:
            loss = loss * ((labels[:, 1:] != -100).sum() / (len(labels) * held_out.labels_per_block)).to(loss.device)
        return (loss, *rest)

    # ---- what is not finite ----

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        loss = super().training_step(*args, **kwargs)
        self._bad = self._bad | ~torch.isfinite(loss.detach())
        return loss

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Save the sums of the log, to restore them if the step is skipped."""
        if self.recipe.train.on_nan == "skip":
            sums = dict(self.attachment.engine.sums) if self.attachment is not None else {}
            self._before_step = (loss_sum(self).clone(), sums, dict(self._sums))

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop or skip the step where a loss or the gradient is not finite; all processes decide the same."""
        not_finite, self._bad = self._bad, False
        norm, self._norm = self._norm, None
        if norm is not None:
            norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
            not_finite = not_finite | ~torch.isfinite(torch.as_tensor(norm, device=self.args.device))
        flag = torch.as_tensor(not_finite, dtype=torch.float32, device=self.args.device).reshape(1)
        if self.accelerator.num_processes > 1:
            flag = self.accelerator.reduce(flag, "sum")
        if not bool(flag.any()):
            return
        step = self.state.global_step
        if self.recipe.train.on_nan != "skip":
            raise NotFinite(self._where(step))
        self.skipped.append(step + 1)
        self._skipped_since += 1
        for p in self.model_wrapped.parameters():
            p.grad = None  # AdamW leaves a parameter without gradient as it is
        loss, sums, self._sums = self._before_step  # else the NaN would hide the other losses of the line
        loss_sum(self).copy_(loss)
        if self.attachment is not None:
            self.attachment.engine.sums = sums

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log losses as means over the steps since the last line, without those that were skipped."""
        if "loss" in logs:
            steps = self.state.global_step - self._logged_step
            counted = steps - self._skipped_since
            for name, value in self._sums.items():
                logs.setdefault(name, float(self.accelerator.gather(value.reshape(1)).mean()) / max(1, steps))
            self._sums = {}
            several = [name for name, _ in self.recipe.several]
            for name in ("loss", "task_loss", "penalty", *several, *self.recipe.baselines.on_logits):
                if name in logs and self._skipped_since:
                    logs[name] = logs[name] * steps / counted if counted else math.nan
            self._logged_step, self._skipped_since = self.state.global_step, 0
        super().log(logs, *args, **kwargs)

    def _where(self, step: int) -> str:
        order: Any = self.train_dataset
        assert isinstance(order, Order)
        size = self.recipe.batch_blocks
        batch = [int(b) for b in order.order[step * size : (step + 1) * size]]
        numbers = ", ".join(map(str, batch[:LISTED])) + (f" and {len(batch) - LISTED} more" if batch[LISTED:] else "")
        checkpoint = last_complete_checkpoint(self.folder.parent)
        last = "there is no checkpoint yet" if checkpoint is None else f"the last good checkpoint is {checkpoint.name}"
        remedy = f"{last}: lower train.learning_rate and start in another folder, or add --resume --on-nan skip."
        if step == 0:  # no step has been made yet
            remedy = "nothing was kept: look at the model's weights and at loss.weight, or add --on-nan skip."
        return (
            f"the loss must stay finite, but loss or gradient is NaN or infinite at step {step + 1} of "
            f"{self.state.max_steps} ({len(batch)} blocks of the text, numbers {numbers}; the first is "
            f"{order.blocks.origin(batch[0])}); {remedy}"
        )
