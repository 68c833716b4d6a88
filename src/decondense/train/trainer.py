"""transformers' Trainer with the four things it has no option for. The training loop is Trainer's own.

* a loss or gradient that is not finite stops the run (or skips the step) before the optimiser sees it;
* input embeddings may have a learning rate of their own (active forgetting);
* a teacher's predictions may be part of the loss (distillation);
* checkpoints get a completion marker, and only a marked one is resumed from: Trainer writes them in place, so a run
  killed while writing leaves half of one.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import TrainerCallback

from .active_forgetting import embedding_learning_rate
from .blocks import Order
from .distillation import share_loss
from .recipe import Recipe

__all__ = ["MARKER", "NotFinite", "Trainer", "last_complete_checkpoint"]

MARKER = "complete.json"


class NotFinite(ValueError):
    """The loss or the gradient became NaN or infinite."""


class Trainer(transformers.Trainer):
    def __init__(self, *, recipe: Recipe, teacher: nn.Module | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.recipe, self.teacher = recipe, teacher
        self._bad: Tensor | None = None
        self._norm: Tensor | None = None
        self.skipped: list[int] = []
        clip = self.accelerator.clip_grad_norm_

        def remember(*args: Any, **kwargs: Any) -> Any:
            self._norm = clip(*args, **kwargs)
            return self._norm

        self.accelerator.clip_grad_norm_ = remember
        self.add_callback(_Guard(self))
        self.add_callback(_Marker())

    # ---- the learning rate of the embeddings ----

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        optimiser = super().create_optimizer(model)
        forgetting = self.recipe.baselines.active_forgetting
        if forgetting is not None and not any(g.get("embeddings") for g in optimiser.param_groups):
            weight = (self.model if model is None else model).get_input_embeddings().weight
            for group in optimiser.param_groups:
                if any(p is weight for p in group["params"]):
                    group["params"] = [p for p in group["params"] if p is not weight]
                    own = {k: v for k, v in group.items() if k != "params"}
                    break
            optimiser.add_param_group(own | {"params": [weight], "lr": forgetting.learning_rate, "embeddings": True})
        return optimiser

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        forgetting = self.recipe.baselines.active_forgetting
        if forgetting is None or self.lr_scheduler is not None:
            return super().create_scheduler(num_training_steps, optimizer)
        optimiser = optimizer or self.optimizer
        usual = super().create_scheduler(num_training_steps, optimizer).lr_lambdas[0]

        def cycle(step: int) -> float:
            return embedding_learning_rate(
                step, steps=num_training_steps, every=forgetting.every, warmup=forgetting.warmup
            )

        inner = getattr(optimiser, "optimizer", optimiser)
        factors = [cycle if group.get("embeddings") else usual for group in inner.param_groups]
        for group in inner.param_groups:  # undo what the first scheduler set
            group["lr"] = group["initial_lr"]
        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(inner, factors)
        return self.lr_scheduler

    # ---- the loss ----

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        distillation = self.recipe.baselines.distillation
        if self.teacher is None or distillation is None or not model.training:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        items = num_items_in_batch
        if items is not None and self.args.average_tokens_across_devices:
            items = items / self.accelerator.num_processes  # as Trainer multiplies the task loss
        loss = share_loss(
            loss, outputs["logits"], self.teacher, inputs, items,
            temperature=distillation.temperature, share=distillation.share,
        )  # fmt: skip
        return (loss, outputs) if return_outputs else loss

    # ---- what is not finite ----

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        loss = super().training_step(*args, **kwargs)
        bad = ~torch.isfinite(loss.detach())
        self._bad = bad if self._bad is None else self._bad | bad
        # A NaN in the running sum would hide all later losses until the next line of the log.
        return torch.where(bad, torch.zeros_like(loss), loss) if self.recipe.train.on_nan == "skip" else loss

    def _look(self) -> None:
        """Before the optimiser's step: is everything finite? The answer is the same on every process."""
        bad, self._bad = self._bad, None
        norm, self._norm = self._norm, None
        if norm is not None:
            wrong = ~torch.isfinite(torch.as_tensor(norm, device=self.args.device))
            bad = wrong if bad is None else bad | wrong
        if bad is None:
            return
        flag = bad.to(torch.float32).reshape(1)
        if self.accelerator.num_processes > 1:
            flag = self.accelerator.reduce(flag, "sum")
        if not bool(flag.any()):
            return
        step = self.state.global_step
        if self.recipe.train.on_nan == "skip":
            self.skipped.append(step)
            for p in self.model_wrapped.parameters():
                p.grad = None  # AdamW leaves a parameter without gradient as it is
            return
        raise NotFinite(self._where(step))

    def _where(self, step: int) -> str:
        order: Any = self.train_dataset
        assert isinstance(order, Order)
        size = self.recipe.batch_blocks
        seen = [int(b) for b in order.order[step * size : (step + 1) * size]]
        first = order.blocks.place(seen[0])
        checkpoint = last_complete_checkpoint(Path(self.args.output_dir))
        remedy = (
            f"the last good checkpoint is {checkpoint.name}: lower train.learning_rate and start again, or add "
            "--resume --on-nan skip."
            if checkpoint is not None
            else "there is no checkpoint yet: lower train.learning_rate, or add --on-nan skip."
        )
        return (
            f"the loss must stay finite, but loss or gradient is NaN or infinite at step {step + 1} of "
            f"{self.state.max_steps} ({len(seen)} blocks, the first {first}); {remedy}"
        )


class _Guard(TrainerCallback):
    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer._look()


class _Marker(TrainerCallback):
    """Written last, and on disk before the run goes on."""

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if torch.distributed.is_initialized():
            torch.distributed.barrier()  # every process has written its part
        if not state.is_world_process_zero:
            return
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        for file in folder.iterdir():
            if file.is_file():
                _sync(file)
        temporary = folder / f".{MARKER}"
        temporary.write_text(json.dumps({"step": state.global_step}) + "\n")
        _sync(temporary)
        temporary.replace(folder / MARKER)
        _sync(folder)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def last_complete_checkpoint(folder: Path, *, remove_incomplete: bool = False) -> Path | None:
    """The latest checkpoint with a completion marker. Half-written ones are of no use to anybody."""
    found = sorted(folder.glob("checkpoint-*"), key=lambda p: int(p.name.split("-")[1]))
    complete = [p for p in found if (p / MARKER).is_file()]
    if remove_incomplete:
        for path in set(found) - set(complete):
            shutil.rmtree(path, ignore_errors=True)
    return complete[-1] if complete else None
