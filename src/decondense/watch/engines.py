"""`monitor`: the geometry of a model's hidden states while it trains. Nothing is added to the loss, and neither weights
nor random numbers change: the run is bit for bit the same as without it.

    watch = monitor(trainer)                 # or a model in a loop of your own
    trainer.train()
    watch.to_pandas()                        # one row for every reading and layer

Every `every` steps the states of a training batch are read during its forward pass (or those of `inputs`, fixed ones,
in a separate pass); the meter's statistics are computed from some of its sequences, per layer: docs/monitoring.md.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from .. import hidden_states as hs
from ..capture import Hook, after_optimisers
from ..insides.torch import unwrapped
from ..words import nobody, warn
from .monitor import Log, Monitor
from .reading import METRICS, Reading

PICTURE = "geometry/cosines"
UNSEEN = (
    "the watched model must be called in training mode, but an optimiser has stepped and no training call has passed: "
    "watch a model before it is compiled and called, call its train(), or call remove() on the monitor."
)


def monitor(
    target: Any,
    *,
    every: int = 100,
    inputs: Any = None,
    sequences: int = 4,
    metrics: str | Sequence[str] = METRICS,
    modules: str | Sequence[str] | None = None,
    collapse: float = 0.95,
    log: Log | None = None,
) -> Monitor:
    """Watch the geometry of a model, or of a transformers or TRL trainer's model, while it trains.

    target     a model, whose steps are those of the torch optimiser that holds its parameters; or a trainer, which also
               logs the readings, to `log_history` and wherever it reports to (TensorBoard, wandb, trackio, mlflow): one
               number per metric and layer, and a heatmap where pictures are supported.
    every      steps between two readings; the first is at step 0
    inputs     fixed batches to read instead of the training batches: token ids, a mapping of the model's arguments, or
               several of either. They cost an extra forward pass for each reading.
    sequences  how many sequences of the batch to read
    metrics    which metrics to compute; docs/monitoring.md explains each
    modules    patterns of submodules to read instead of a transformers model's own states, as in `regularize`; a
               reading has them in the order in which they are called
    collapse   warn (`Collapse`) when a layer's mean cosine rises above it
    log        called with every `Reading`, to send it elsewhere
    """
    options = {name: value for name, value in locals().items() if name not in ("target", "log")}
    hs.refuse_lightning(target, "MonitorCallback")
    if isinstance(target, nn.Module):
        watch = Steps(unwrapped(target), log, options).watch
        watch.look()
        return watch
    if not isinstance(target, type) and hasattr(target, "callback_handler"):
        return _of_trainer(target, log or nobody, options)
    raise hs.no_target(target)


class Steps:
    """Counts the steps of a user's own loop: the first optimiser step after a training call counts, by any optimiser
    that holds parameters of the model; further ones before the next call do not."""

    def __init__(self, model: nn.Module, log: Log | None, options: dict[str, Any]) -> None:
        self.model, self.count = model, 0
        self._called = self._unseen_warned = False
        self.watch = Monitor(model, step=lambda: self.count, log=log, **options)
        self.watch.undo.callback(Hook.hang(model.register_forward_pre_hook, self._calls).remove)
        self.watch.undo.callback(after_optimisers(self))

    def _calls(self, module: nn.Module, args: Any) -> None:
        self._called = self._called or (module.training and torch.is_grad_enabled())

    def stepped(self, optimiser: torch.optim.Optimizer) -> None:
        ids = {id(p) for p in self.model.parameters()}  # read each time: FSDP2 replaces parameters, LoRA adds some
        if not any(id(p) in ids for group in optimiser.param_groups for p in group["params"]):
            return
        if self._called:
            self.count, self._called = self.count + 1, False
            self.watch.look()
        elif self.count == 0 and not self._unseen_warned:
            self._unseen_warned = True
            warn(UNSEEN)  # no error: watching is no reason to end a training


def _of_trainer(trainer: Any, log: Log, options: dict[str, Any]) -> Monitor:
    """A monitor whose readings go into the trainer's log, and as heatmaps to callbacks that take pictures."""
    from transformers import TrainerCallback

    def report(reading: Reading) -> None:
        log(reading)
        if trainer.is_world_process_zero():
            _log_reading(trainer, reading)

    class Watch(TrainerCallback):
        """Reads fixed inputs between two steps; training batches are read in their own forward pass."""

        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            watch.look()

        def on_train_end(self, *args: Any, **kwargs: Any) -> None:
            watch.look()
            watch.settle()

    def pictured() -> bool:
        return trainer.is_world_process_zero() and any(map(_takes_pictures, trainer.callback_handler.callbacks))

    watch = Monitor(
        trainer.model, step=lambda: int(trainer.state.global_step), epoch=lambda: trainer.state.epoch, log=report,
        pictured=pictured, **options,
    )  # fmt: skip
    callback = Watch()
    trainer.add_callback(callback)
    listed = trainer.callback_handler.callbacks
    listed.insert(0, listed.pop())  # first, so that the last reading comes before reporters end their run
    watch.undo.callback(trainer.remove_callback, callback)
    return watch


def _log_reading(trainer: Any, reading: Reading) -> None:
    """Log to `log_history` and to every callback, except those that print: they would fill the screen."""
    from transformers.trainer_callback import PrinterCallback, ProgressCallback

    logs = reading.figures()
    state = copy.copy(trainer.state)
    state.global_step, state.epoch = reading.step, reading.epoch  # the trainer may be some steps ahead
    if reading.epoch is not None:
        logs["epoch"] = reading.epoch
    state.log_history.append({**logs, "step": reading.step})
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, (PrinterCallback, ProgressCallback)):
            continue
        callback.on_log(trainer.args, state, trainer.control, logs=dict(logs), model=trainer.model)
        if _takes_pictures(callback):
            _show(callback, reading)


# The attributes in which transformers' callbacks keep TensorBoard, mlflow, trackio and wandb.
PLACES = ("tb_writer", "_ml_flow", "_trackio", "_wandb")


def _takes_pictures(callback: Any) -> bool:
    return any(getattr(callback, place, None) is not None for place in PLACES)


def _show(callback: Any, reading: Reading) -> None:
    """Send the heatmap to whichever of these a callback reports to, if a run is open."""
    writer, mlflow, trackio, wandb = (getattr(callback, place, None) for place in PLACES)
    if writer is not None:
        writer.add_image(PICTURE, reading.picture, reading.step, dataformats="HWC")
    if mlflow is not None and mlflow.active_run() is not None:
        mlflow.log_image(reading.picture, artifact_file=f"{PICTURE}-{reading.step:06d}.png")
    for library in (trackio, wandb if getattr(wandb, "run", None) is not None else None):
        if library is not None:
            library.log({PICTURE: library.Image(reading.picture), "train/global_step": reading.step})
