"""What a run shows while it trains: a bar, the log, held-out loss, and the meter at a few steps."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import TrainerCallback
from transformers.modeling_outputs import BaseModelOutput

from ..files import first_process, write_text
from ..records import Record
from ..stack import stack_of, unnoticed
from ..words import Tell
from .fast import matmul_precision
from .folder import process_count
from .recipe import Recipe

Show = Callable[[int, dict[str, float]], None]


def milestones(steps: int, number: int) -> list[int]:
    """`number` steps, evenly spaced over a run, the last one its end."""
    return sorted({max(1, round(steps * (i + 1) / number)) for i in range(number)})


class Milestones(TrainerCallback):
    """Checkpoints, held-out loss and snapshots at their steps; the first two are left to Trainer."""

    def __init__(self, recipe: Recipe, folder: Path, text: str, tokenizer: Any, progress: Tell) -> None:
        self.progress = functools.partial(progress, "windows of the snapshot")
        self.recipe, self.folder, self.text, self.tokenizer = recipe, folder, text, tokenizer
        self.save_at = milestones(recipe.steps, recipe.train.checkpoints)
        self.look_at = set(milestones(recipe.steps, recipe.snapshots.count))
        self.size = recipe.snapshots.model_dump(exclude={"count", "probes"})
        self.mean_cosine: float | None = None  # of the block outputs, in the last snapshot

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 0 and self.look_at:
            self._look(kwargs["model"], 0)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        step = state.global_step
        control.should_save = control.should_save or step in self.save_at
        # A checkpoint does not keep half a line of the log, so a line ends there in every run, resumed or not.
        control.should_log = control.should_log or control.should_save
        control.should_evaluate = control.should_evaluate or step in self.look_at or step == state.max_steps
        if step in self.look_at:
            self._look(kwargs["model"], step)

    def _look(self, model: Any, step: int) -> None:
        label = f"{self.recipe.name}, step {step}"
        try:
            measured = snapshot(model, self.tokenizer, self.text, label=label, progress=self.progress, **self.size)
        except (ValueError, TypeError) as error:  # a model that returns no hidden states, say
            raise ValueError(f"{str(error).rstrip('.')}; set snapshots.count=0 for a run without snapshots.") from error
        if not first_process():
            return
        self.mean_cosine = float(measured.mean_cosine[1:].mean())
        self.folder.mkdir(parents=True, exist_ok=True)
        measured.save(self.folder / f"step-{step:06d}.json")


def snapshot(model: Any, tokenizer: Any, text: str, *, label: str, **size: Any) -> Any:
    """Measure a model during its training and leave that unchanged: random numbers, precision and compiled blocks are
    restored. `size`: windows, tokens, bootstrap and spectral of `measure`, and `progress`."""
    from ..meter.run import measure

    batch = 4
    if any(hasattr(p, "device_mesh") for p in model.parameters()):  # FSDP: only calls of the whole model gather it
        # All processes gather the weights together, so all must run the same number of passes.
        batch = max(b for b in range(1, 5) if size["windows"] // process_count() % b == 0)
        name = type(model).__name__.removeprefix("FSDP")  # what fully_shard prepends to the class
        model = type(name, (_Whole,), {})(model)
    with unnoticed(model), matmul_precision("highest"):
        return measure((model, tokenizer), text=[text], batch=batch, label=label, **size)


class _Whole(nn.Module):
    """A sharded model for the meter: when its stack is called, the whole model runs, and the stack's output is
    returned."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.inner, self.config = model, model.config

    @property
    def base_model(self) -> _Whole:
        return self

    def get_input_embeddings(self) -> nn.Module:
        return self.inner.get_input_embeddings()

    def forward(self, input_ids: torch.Tensor, use_cache: bool = False, **options: Any) -> Any:
        outputs: list[Any] = []
        hook = stack_of(self.inner).register_forward_hook(lambda module, args, out: outputs.append(out))
        try:
            # Weights that are gathered for the first time in inference mode could never be trained.
            with torch.inference_mode(False), torch.no_grad():
                self.inner(input_ids=input_ids.clone(), use_cache=use_cache, **options)
        finally:
            hook.remove()
        (stack,) = outputs
        return BaseModelOutput(last_hidden_state=stack.last_hidden_state, hidden_states=stack.hidden_states)


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
    """Pass every step and the latest figures to `show`, which draws the bar; to be added after `Milestones`.

    On a CPU a step of many micro-batches takes minutes, so each micro-batch is shown too: `part` is the share done.
    """

    def __init__(self, show: Show, clock: Clock, batch_tokens: int, milestones: Milestones, progress: Tell) -> None:
        self.progress = progress
        self.show, self.clock, self.batch_tokens, self.milestones = show, clock, batch_tokens, milestones
        self.figures: dict[str, float] = {}
        self._passes = self._batches = 0

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._passes += 1
        self.show(state.global_step, self.figures | {"part": self._passes / args.gradient_accumulation_steps})

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._batches += 1
        self.progress("batches of held-out text", self._batches, len(kwargs["eval_dataloader"]))

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        shown = ("loss", "task_loss", "penalty", "mean_cosine", "eval_loss")
        self.figures |= {k: v for k, v in (logs or {}).items() if k in shown}
        self.show(state.global_step, self.figures)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._passes = self._batches = 0
        latest = {
            "tokens_per_second": self.clock.tokens_per_second(self.batch_tokens),
            "snapshot_cosine": self.milestones.mean_cosine,
        }
        self.figures |= {k: v for k, v in latest.items() if v is not None}
        self.show(state.global_step, self.figures)

    on_train_begin = on_step_end


class Progress(TrainerCallback):
    """Keep the record of the run so far in a file, which `decondense report --serve` follows."""

    EVERY = 3.0  # seconds

    def __init__(self, record: Callable[[], Record], file: Path) -> None:
        self.record, self.file, self._written = record, file, -math.inf

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if time.monotonic() - self._written >= self.EVERY:
            write_text(self.file, self.record().to_json())
            self._written = time.monotonic()


def in_words(figures: dict[str, float], room: float) -> str:
    """The latest figures of a run in at most `room` characters, the most important first."""
    parts = [f"{figures['part']:.0%} of the next"] if "part" in figures else []
    speed = figures.get("tokens_per_second")
    if speed is not None:
        parts.append(f"{speed / 1000:,.0f}k tok/s" if speed >= 10_000 else f"{speed:,.0f} tok/s")
    names = {"task_loss": "task loss", "penalty": "penalty", "mean_cosine": "cosine", "eval_loss": "held-out"}
    if "task_loss" not in figures:  # without a loss on the states, the last snapshot has the cosine
        names = {"loss": "loss", "snapshot_cosine": "cosine", "eval_loss": "held-out"}
    parts += [f"{name} {figures[key]:.3f}" for key, name in names.items() if key in figures]
    while parts and len("  ".join(parts)) > room:
        parts.pop()
    return "  ".join(parts)
