"""What a run shows while it goes on: a bar, the log, held-out loss, and the meter at a few steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from .fast import eager
from .recipe import Recipe

__all__ = ["Clock", "Milestones", "Shown", "milestones"]

Show = Callable[[int, dict[str, float]], None]


def milestones(steps: int, number: int) -> list[int]:
    """`number` steps evenly over a run, the last one its end."""
    return sorted({max(1, round(steps * (i + 1) / number)) for i in range(number)})


class Milestones(TrainerCallback):
    """Checkpoints, held-out loss and snapshots at their steps; the first two are left to Trainer."""

    def __init__(self, recipe: Recipe, folder: Path, text: list[str], tokenizer: Any, label: str) -> None:
        self.recipe, self.folder, self.text, self.tokenizer, self.label = recipe, folder, text, tokenizer, label
        self.save_at = set(milestones(recipe.steps, recipe.train.checkpoints))
        self.look_at = set(milestones(recipe.steps, recipe.snapshots.count)) if recipe.snapshots.count else set()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 0:
            self._snapshot(kwargs["model"], 0)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        step = state.global_step
        control.should_save = control.should_save or step in self.save_at
        # A checkpoint does not keep half a line of the log, so a resumed run begins a new one; hence every run does.
        control.should_log = control.should_log or control.should_save
        control.should_evaluate = control.should_evaluate or step in self.look_at or step == state.max_steps
        if step in self.look_at:
            self._snapshot(kwargs["model"], step)

    def _snapshot(self, model: Any, step: int) -> None:
        """The meter on the held-out windows. It draws from generators of its own, so training does not notice."""
        if not self.recipe.snapshots.count:
            return
        from ..meter import measure

        wanted = self.recipe.snapshots
        devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
        with torch.random.fork_rng(devices), eager(model):
            found = measure(
                (model, self.tokenizer),
                text=self.text,
                windows=wanted.windows,
                tokens=wanted.tokens,
                bootstrap=wanted.bootstrap,
                label=f"{self.label}, step {step}",
            )
        if torch.distributed.is_initialized() and torch.distributed.get_rank():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        found.save(self.folder / f"step-{step:06d}.json")


class Clock(TrainerCallback):
    """Seconds spent in steps, so that evaluation, snapshots and checkpoints do not count as training.

    The first two steps of a process are left out: they compile and allocate.
    """

    def __init__(self) -> None:
        self.seen = self.steps = 0
        self.seconds = 0.0
        self._begun = 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._begun = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.seen >= 2:
            if torch.cuda.is_available():
                torch.cuda.current_stream().synchronize()
            self.steps += 1
            self.seconds += time.perf_counter() - self._begun
        self.seen += 1

    def tokens_per_second(self, batch_tokens: int) -> float | None:
        return self.steps * batch_tokens / self.seconds if self.seconds else None


class Shown(TrainerCallback):
    """Hands every step, and the latest figures, to whoever draws the bar."""

    def __init__(self, show: Show, clock: Clock, batch_tokens: int) -> None:
        self.show, self.clock, self.batch_tokens = show, clock, batch_tokens
        self.figures: dict[str, float] = {}

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        kept = ("loss", "task_loss", "penalty", "mean_cosine", "eval_loss")
        self.figures |= {k: v for k, v in (logs or {}).items() if k in kept}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.show(state.global_step, self.figures)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        speed = self.clock.tokens_per_second(self.batch_tokens)
        if speed is not None:
            self.figures["tokens_per_second"] = speed
        self.show(state.global_step, self.figures)
