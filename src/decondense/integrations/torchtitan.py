"""The loss inside torchtitan's trainer (PyPI `torchtitan` 0.3): a subclass and a section of its configuration, no fork.

    torchrun --nproc-per-node 8 -m torchtitan.train --module decondense.integrations.torchtitan \
        --config qwen3_0_6b --regularizer.weight 0.1

This module has every configuration of torchtitan's models under the same name, with a section `regularizer` added; in
Python, `regularized(config, weight=0.1)` makes one from any `torchtitan.trainer.Trainer.Config`.

torchtitan prepares a model in this order: pipeline split, tensor and context parallelism, activation checkpointing,
compilation of each block, FSDP2. The hooks are registered after all that, on the finished blocks and outside their
checkpoints; they compute nothing and only record the outputs. The penalty is computed from these after torchtitan's own
loss, and added to it. It is scaled like that loss, which is a sum over the tokens of the rank divided by the number of
tokens of the whole optimiser step, with gradients summed over the ranks: the penalty of a sequence is multiplied by the
sequence's share of these tokens. The hidden states are those of a transformers model: state 0 is the embedding, the
last state is after the final norm.

docs/scale.md says which features work together, which of them have been run, and where.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial

from .. import hidden_states as hs
from ..capture import Capture
from ..handle import Attachment, Handle
from ..insides import replaced
from ..insides.torchtitan import configurations
from ..losses.context_parallel import sum_across
from ..losses.presets import get
from ..term import Term

try:
    import spmd_types as spmd
    import torchtitan.trainer as titan
    from torchtitan.distributed.utils import dist_sum_tensor
    from torchtitan.tools.logging import logger
except ImportError as error:
    raise ImportError(
        f"decondense.integrations.torchtitan needs torchtitan 0.3, and importing it failed ({error}): "
        "pip install torchtitan."
    ) from error


@dataclass(kw_only=True, slots=True)
class Regularizer:
    """The section `regularizer` of the configuration; the same names as in `regularize`."""

    loss: str = "dispersion"
    """Name of a loss of this package."""

    weight: float = 0.1
    """The factor of the penalty; with a constant schedule 0 switches it off."""

    estimator: str | None = "first_order"
    """Estimator of the dispersion loss: first_order, exact, second_order, sampled. None for the other losses."""

    tau: float | None = 1.0
    """Temperature. None for losses without one."""

    preset: str | None = None
    """Preset of the loss, e.g. "paper"."""

    layers: str = "all"
    """all, last, early_half, late_half, or indices of hidden states as in "1,14,28"; 0 is the embedding layer."""

    schedule: str = "constant"
    """constant, linear or cosine: the weight rises over ramp_steps optimiser steps."""

    ramp_steps: int | None = None
    """The optimiser steps over which the weight rises."""

    documents: bool = True
    """Cut a packed row into documents where its positions restart; False: a row is one sequence."""


def regularized(config: titan.Trainer.Config, **settings: Any) -> Trainer.Config:
    """A torchtitan configuration with the section `regularizer`; settings as in `Regularizer`."""
    if type(config) is Trainer.Config:
        return replace(config, regularizer=replace(config.regularizer, **settings))
    if type(config) is not titan.Trainer.Config:
        raise TypeError(
            f"config must be a torchtitan.trainer.Trainer.Config, got {type(config).__qualname__}: a trainer of its "
            "own needs its own subclass; call Penalty(trainer, Regularizer(…)) in it."
        )
    values = {f.name: getattr(config, f.name) for f in fields(config)}
    return Trainer.Config(**values, regularizer=Regularizer(**settings))


class Trainer(titan.Trainer):
    """torchtitan's trainer with weight · penalty in its loss, and the penalty in its metrics."""

    @dataclass(kw_only=True, slots=True)
    class Config(titan.Trainer.Config):
        regularizer: Regularizer = field(default_factory=Regularizer)

    penalty: Penalty | None

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        settings = config.regularizer
        self.penalty = Penalty(self, settings) if settings.weight or settings.schedule != "constant" else None

    def train_step(self, data_iterator: Iterator[Any]) -> None:
        if self.penalty is not None:
            self.penalty.begin(self.step)
        super().train_step(data_iterator)
        if self.penalty is not None and self.metrics_processor.should_log(self.step):
            self.penalty.log(self.step)


class Penalty:
    """A loss on the model of a finished trainer, whose `loss_fn` it wraps; the validator keeps the bare loss.

    `last` has task_loss, penalty and weight of the latest step on this rank; `handle.remove()` takes everything off.
    Whatever changes from step to step is kept in tensors that are written in place, because under a CUDA graph the
    Python code in the loss runs only once.
    """

    def __init__(self, trainer: titan.Trainer, settings: Regularizer) -> None:
        self.trainer, self.model, self.step = trainer, _model_of(trainer), 0
        sequence = _sequence_axis(trainer)
        self._split = None if sequence is None else trainer.parallel_dims.get_mesh(sequence).get_group()
        self._labels_split = self._split if sequence == "cp" else None
        self._check(settings)
        options = {"estimator": settings.estimator, "tau": settings.tau, "process_group": self._split}
        loss = get(settings.loss, preset=settings.preset, **{k: v for k, v in options.items() if v is not None})
        self._weight = torch.zeros((), device=trainer.device)
        self._sums = torch.zeros(2, device=trainer.device)  # of task loss and penalty over the calls of a step
        term = Term(
            loss=loss,
            weight=settings.weight,
            schedule=settings.schedule,
            ramp_steps=settings.ramp_steps,
            segments="position_ids" if settings.documents and self._split is None else None,
        )
        names = _state_names(self.model)
        chosen = hs.select(_layers(settings.layers), len(names), first=1)  # only these are read: all of the term's
        self._attachment = Attachment(self, term, [names[i] for i in chosen])

    @property
    def handle(self) -> Handle:
        return Handle(self._attachment)

    def attach(self, attachment: Attachment) -> None:
        attachment.read(lambda: True)
        attachment.undo.enter_context(replaced(self.trainer, "loss_fn", self._with_penalty(self.trainer.loss_fn)))

    @property
    def last(self) -> dict[str, Tensor]:
        return {"task_loss": self._sums[0].clone(), "penalty": self._sums[1].clone(), "weight": self._weight.clone()}

    def begin(self, step: int) -> None:
        """Called before each optimiser step; torchtitan counts steps from 1."""
        self.step = step - 1
        self._weight.fill_(self._attachment.weight)
        self._sums.zero_()

    def log(self, step: int) -> None:
        """Log both terms, summed over the ranks like torchtitan's loss, to its console and loggers."""
        mesh = self.trainer.parallel_dims.get_optional_mesh("loss")
        task, penalty = (float(x) for x in dist_sum_tensor(self._sums, mesh))
        weight = float(self._weight)
        logger.info(f"step: {step:2}  task loss: {task:8.5f}  penalty: {penalty:8.5f}  weight: {weight:g}")
        values = {"task_loss": task, "penalty": penalty, "penalty_weight": weight}
        self.trainer.metrics_processor.logger.log({f"regularizer/{k}": v for k, v in values.items()}, step)
        self.step = step
        self._attachment.warn(task, weight * penalty, step)

    def _with_penalty(self, loss_fn: Any) -> Any:
        """Wrap a loss function of torchtitan: its loss plus the penalty term of the call just made."""

        def with_penalty(
            pred: Tensor, labels: Tensor, global_valid_tokens: Tensor | None = None, **rest: Any
        ) -> tuple[Tensor, dict[str, Tensor]]:
            loss, metrics = loss_fn(pred, labels, global_valid_tokens, **rest)
            if not self._attachment.captures:
                return loss, metrics
            with spmd.no_typecheck():
                task = (loss.to_local() if isinstance(loss, DTensor) else loss).detach()
                added = self._added(task, labels, global_valid_tokens, rest.get("positions"))
                if isinstance(loss, DTensor):  # tensor parallelism: the same number on all its ranks
                    added = DTensor.from_local(added, loss.device_mesh, loss.placements)
                return loss + added, metrics

        return with_penalty

    def _added(self, task: Tensor, labels: Tensor, items: Tensor | None, positions: Tensor | None) -> Tensor:
        states = self._local(self._attachment.captures[-1].states)
        self._attachment.captures.clear()
        if items is None:
            items = sum_across((labels != -100).sum(), self._labels_split)
        term = self._attachment.term
        states, mask, cut_labels = term.sequences(Capture(states, None, positions), first=0, labels=labels)
        assert cut_labels is not None
        per_sequence = term.loss.over_layers(states, mask)[0].mean(0)
        counted = (cut_labels != -100).sum(1)
        own_share = (per_sequence.detach() * counted / items).sum()
        # Under context parallelism the loss of a sequence, and its gradient for this rank's tokens, count with the
        # share of the whole sequence. But torchtitan adds up the losses of the ranks, so the value that this rank
        # reports, `own_share`, counts only with the share of its own labels.
        penalty = (per_sequence * sum_across(counted, self._labels_split) / items).sum()
        self._sums += torch.stack([task, own_share])
        return self._weight * (penalty - penalty.detach() + own_share)

    def _local(self, states: Sequence[Tensor]) -> list[Tensor]:
        """The states as plain tensors with this rank's part of the sequence.

        Under tensor parallelism states are DTensors. Sequence parallelism splits them over the tokens, but the output
        of the final norm is gathered: each rank takes its own tokens of it, so that the ranks' gradients add up.
        """
        local = []
        for z in states:
            if isinstance(z, DTensor):
                gathered = self._split is not None and z.placements[0].is_replicate()
                z = z.to_local(grad_placements=[Partial()] if gathered else None)
                if gathered:
                    z = z.chunk(dist.get_world_size(self._split), dim=1)[dist.get_rank(self._split)]
            local.append(z)
        return local

    def _check(self, settings: Regularizer) -> None:
        config = self.trainer.config
        graphs = not config.training.disable_cuda_graphs and self.trainer.device.type == "cuda"
        if settings.documents and self._split is not None:
            logger.warning("regularizer: a row is one sequence, as its documents may lie on several ranks.")
        elif settings.documents and graphs:
            raise ValueError(
                "regularizer.documents needs training.disable_cuda_graphs, got CUDA graphs, whose shapes are fixed: "
                "set --training.disable_cuda_graphs, or --regularizer.no-documents to take a row as one sequence."
            )
        if settings.estimator == "sampled" and graphs:
            raise ValueError(
                "regularizer.estimator must not be 'sampled' under CUDA graphs, which would draw the same tokens "
                "forever: use first_order or exact, or set --training.disable_cuda_graphs."
            )


def _model_of(trainer: titan.Trainer) -> Any:
    parallelism = trainer.config.parallelism
    if trainer.parallel_dims.pp_enabled:
        raise ValueError(
            f"pipeline_parallel_degree must be 1 with a regularizer, got {parallelism.pipeline_parallel_degree}: a "
            "stage does not see the loss of the last one; use FSDP, tensor or context parallelism."
        )
    tensor = trainer.parallel_dims.tp > 1
    if parallelism.spmd_backend == "full_dtensor" or (tensor and parallelism.spmd_backend != "partial_dtensor"):
        raise ValueError(
            "parallelism.spmd_backend must be partial_dtensor for tensor parallelism with a regularizer, and not "
            f"full_dtensor otherwise, got {parallelism.spmd_backend}: set --parallelism.spmd-backend partial_dtensor."
        )
    return trainer.model_parts[0]


def _sequence_axis(trainer: titan.Trainer) -> str | None:
    """The mesh axis over which sequences are split between blocks, "cp" or "tp"; None if they are whole."""
    dims = trainer.parallel_dims
    by_tensor = dims.tp > 1 and trainer.config.parallelism.enable_sequence_parallel
    if dims.cp > 1 and by_tensor:
        raise ValueError(
            f"a sequence may be split over one mesh axis, got context parallelism {dims.cp} and sequence parallelism "
            f"{dims.tp}: set --parallelism.no-enable-sequence-parallel."
        )
    return "cp" if dims.cp > 1 else "tp" if by_tensor else None


def _state_names(model: Any) -> list[str]:
    """The modules whose outputs are the hidden states of a transformers model: embedding, blocks, final norm."""
    blocks = [f"layers.{name}" for name in getattr(model, "layers", {})]
    if not blocks or getattr(model, "norm", None) is None or getattr(model, "tok_embeddings", None) is None:
        raise TypeError(
            f"the model must be a torchtitan decoder with tok_embeddings, layers and norm, got {type(model).__name__}: "
            "use regularize(model, modules=[…]) in a loop of your own."
        )
    return ["tok_embeddings", *blocks[:-1], "norm"]


def _layers(text: str) -> hs.Layers:
    """Layers from text: "1,14,28" as indices, "all" and the other names as they are."""
    return [int(i) for i in text.split(",")] if text.strip("-0123456789, ") == "" else text


def __getattr__(name: str) -> Any:
    """The configurations of torchtitan's models under their own names, for `--module … --config NAME`."""
    for configuration in () if name.startswith("_") else configurations(name):
        return lambda: regularized(configuration())
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
