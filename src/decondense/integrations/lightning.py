"""Lightning: a callback that adds the loss, and one that watches the geometry.

    Trainer(callbacks=[RegularizeCallback(weight=0.1), MonitorCallback(every=100)])

Lightning calls the module's `training_step`, so the penalty is added to what that returns (Lightning then divides the
sum by `accumulate_grad_batches`), or with manual optimisation to what is passed to `manual_backward`. The hidden states
are those of the model inside the module.
"""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..capture import Hook
from ..handle import Attachment, Handle
from ..insides import replaced
from ..losses.presets import Loss
from ..regularizer import term_of
from ..watch.engines import PICTURE, UNSEEN
from ..watch.monitor import Monitor
from ..watch.reading import Reading
from ..words import nobody, warn

try:  # one package under two names: use the one that the script has imported
    if "pytorch_lightning" in sys.modules and "lightning" not in sys.modules:
        raise ImportError
    from lightning.pytorch import Callback
except ImportError:
    try:
        from pytorch_lightning import Callback
    except ImportError as error:
        raise ImportError("decondense.integrations.lightning needs Lightning: pip install lightning.") from error


class Clock(Callback):
    """Counts training steps, the batches in which an optimiser stepped: with two optimisers Lightning's `global_step`
    counts both. Saved in Lightning's checkpoints."""

    step = 0
    _stepped = 0  # `global_step` after the last training batch

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._stepped = trainer.global_step  # a checkpoint has been loaded by now
        if not self._stepped:  # a new training run, though this callback may have seen another
            self.step = 0

    def on_train_batch_end(self, trainer: Any, *args: Any, **kwargs: Any) -> None:
        if trainer.global_step != self._stepped:
            self.step, self._stepped = self.step + 1, trainer.global_step
            self.on_step()

    def on_step(self) -> None:
        """Called after each step."""

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.step = state_dict["step"]


class RegularizeCallback(Clock):
    """loss = task_loss + weight · penalty, in training; task_loss, penalty, penalty_weight, mean_cosine are logged.

    loss, options  as in `regularize`: weight, layers, schedule, tau, …
    model          the attribute of the module that is the model to read, like "student" or "net.encoder"; "" is the
                   module itself. By default its only transformers model, else its only submodule with parameters; if
                   there are several of these and `modules` is given, the module itself
    modules        patterns of the model's submodules to read, as in `regularize`
    accumulate     with manual optimisation: the number of `manual_backward` calls in a step. The penalty is divided
                   by it, as you divide your own loss.

    step           the batches in which an optimiser stepped: the clock of the schedule. Two optimisers in one batch
                   count once; saved in Lightning's checkpoints.
    """

    model: nn.Module

    def __init__(
        self,
        loss: str | Loss = "dispersion",
        *,
        model: str | None = None,
        modules: str | Sequence[str] | None = None,
        accumulate: int = 1,
        **options: Any,
    ) -> None:
        if accumulate < 1:
            raise ValueError(f"accumulate must be at least 1, got {accumulate}: give the backward calls of a step.")
        self.term = term_of(loss, **options)
        self.name, self.modules, self.accumulate = model, modules, accumulate
        self._attachment: Attachment | None = None
        self._collecting = self._evaluated = self._backwards = self._detached_warned = False

    @property
    def handle(self) -> Handle | None:
        """The handle, as `regularize` returns it, from the start of training on; None before."""
        return None if self._attachment is None else Handle(self._attachment)

    # ---- what Lightning calls ----

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        self.model = model_of(pl_module, self.name, self.modules)
        self._module = pl_module
        self._attachment = Attachment(self, self.term, self.modules)

    def on_step(self) -> None:
        if self._attachment is not None:
            self._attachment.look()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if self._attachment is not None:
            self._attachment.remove()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self.teardown(trainer, pl_module, "fit")

    # ---- the engine ----

    def attach(self, attachment: Attachment) -> None:
        enter = Hook.hang(self.model.register_forward_pre_hook, self._enter)
        attachment.undo.callback(enter.remove)
        attachment.read(lambda: self._collecting)
        for name, wrap in (("training_step", self._around_step), ("manual_backward", self._around_backward)):
            method = getattr(self._module, name)
            # Lightning reads the signature to know what to pass: functools.wraps keeps it.
            wrapped = functools.wraps(method)(Around(wrap, attachment, method))
            attachment.undo.enter_context(replaced(self._module, name, wrapped))

    def _enter(self, module: nn.Module, args: Any) -> None:
        if torch.is_grad_enabled() and not module.training:
            self._evaluated = True

    def _around_step(self, attachment: Attachment, method: Any, *args: Any, **kwargs: Any) -> Any:
        attachment.captures.clear()
        self._collecting, self._evaluated, self._backwards = True, False, False
        try:
            out = method(*args, **kwargs)
        finally:
            self._collecting = False
        automatic = self._module.automatic_optimization
        # with manual optimisation a step may skip the model, as in a GAN, if an earlier step has trained it
        unseen = not attachment.captures and (automatic or not attachment.calls)
        if unseen and self._evaluated and not (automatic and out is None):
            raise RuntimeError(
                "the model must be in training mode for its loss to be added, got eval mode, in which from_pretrained "
                "returns a model and Lightning leaves it: call model.train() where the module makes its model."
            )
        if automatic and out is not None and not attachment.captures:
            raise RuntimeError(
                f"training_step must call {type(self.model).__name__}, whose hidden states are read, but none came: "
                "name the attribute of the module that it is, RegularizeCallback(model='…'), or, if it is the module "
                "itself, call self(…), not self.forward(…)."
            )
        if not automatic and attachment.captures and not self._backwards:
            raise RuntimeError(
                "the penalty belongs to the loss of manual_backward, but that was not called after the model: call "
                "self.manual_backward(loss) in training_step."
            )
        if not automatic and attachment.captures and not attachment.calls and not self._detached_warned:
            self._detached_warned = True
            warn(
                f"the penalty goes with a loss that comes from the states of {type(self.model).__name__}, but no "
                "manual_backward has got one yet: do not detach them, unless another step of yours trains the model."
            )
        if not automatic or out is None:  # None: Lightning skips the batch
            return out
        if isinstance(out, Mapping):
            return {**out, "loss": self._with_penalty(attachment, out["loss"])}
        return self._with_penalty(attachment, out)

    def _around_backward(self, attachment: Attachment, method: Any, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Add the penalty of the states that this loss comes from; a critic's loss, from detached states, gets none."""
        captures = attachment.captures
        reached = [capture.leads_to(loss) for capture in captures]
        if any(reached):
            others = [capture for capture, its in zip(captures, reached) if not its]
            captures[:] = [capture for capture, its in zip(captures, reached) if its]
            loss = self._with_penalty(attachment, loss, self.accumulate)
            captures[:] = others
        self._backwards = True
        method(loss, *args, **kwargs)

    def _with_penalty(self, attachment: Attachment, loss: Tensor, parts: int = 1) -> Tensor:
        capture = attachment.captures[0]
        weight = attachment.weight
        penalty = attachment.take(scale=1 / parts)
        attachment.task_loss(loss)
        last = attachment.last
        logs = {"task_loss": last["task_loss"], "penalty": last["penalty"], "penalty_weight": weight}
        logs |= {key: value for key, value in last.items() if key.startswith("penalty_")}  # of each of several
        logs["mean_cosine"] = last["mean_cosine"].mean()
        self._module.log_dict(logs, batch_size=len(capture.states[0]))
        return loss + weight * penalty.to(loss.device)


class Around(functools.partial):
    """Stands in for a method of the module; a copy of the module gets the method itself."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self.args[-1], memo)


class MonitorCallback(Clock):
    """`monitor` for Lightning: readings go to every logger of the trainer, and as a heatmap to TensorBoard.

    Options as in `monitor`; `model` and the meaning of a step as in `RegularizeCallback`. The `Monitor` is in the
    attribute `monitor` from the start of training on: `callback.monitor.to_pandas()`.
    """

    monitor: Monitor

    def __init__(self, *, model: str | None = None, log: Any = None, **options: Any) -> None:
        self.name, self.log_reading, self.options = model, log or nobody, options

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        loggers = trainer.loggers if trainer.is_global_zero else []
        pictured = [logger.experiment for logger in loggers if hasattr(logger.experiment, "add_image")]

        def report(reading: Reading) -> None:
            self.log_reading(reading)
            for logger in loggers:
                logger.log_metrics(reading.figures(), step=reading.step)
            for writer in pictured:
                writer.add_image(PICTURE, reading.picture, reading.step, dataformats="HWC")

        self.monitor = Monitor(
            model_of(pl_module, self.name, self.options.get("modules")), step=lambda: self.step,
            log=report, pictured=lambda: bool(pictured), **self.options,
        )  # fmt: skip

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        super().on_train_start(trainer, pl_module)
        self.step = self.step or trainer.global_step  # resumed from a run that was not watched

    def on_step(self) -> None:
        if self.step == 1 and self.monitor.seen is None:
            warn(UNSEEN)  # no error: watching is no reason to end a training

    def on_train_batch_start(self, *args: Any, **kwargs: Any) -> None:
        self.monitor.look()

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        self.monitor.look()
        self.monitor.remove()

    def on_exception(self, *args: Any, **kwargs: Any) -> None:
        if hasattr(self, "monitor"):
            self.monitor.remove()


def model_of(module: nn.Module, name: str | None, modules: str | Sequence[str] | None) -> nn.Module:
    """The submodule of that name; by default the only transformers model, else the only submodule with parameters. If
    there are several such parts, or a list of them, and layers are named, the module itself."""
    if name is not None:
        return module.get_submodule(name)
    children = {key: child for key, child in module.named_children() if any(True for _ in child.parameters())}
    transformers_models = {key: child for key, child in children.items() if hasattr(child, "config")}
    models = transformers_models or children
    if len(models) == 1 and not isinstance(only := next(iter(models.values())), nn.ModuleList | nn.ModuleDict):
        return only
    if modules is not None and not transformers_models:
        return module
    raise ValueError(
        f"{type(module).__name__} must have one model whose hidden states are read, got "
        f"{', '.join(models) or 'none'}: name it with model='…', or, if the module itself is the network, its layers "
        "with modules='…'."
    )
