"""Insides of transformers: how its losses count labels, and how its Trainer scales a loss.

Trainer divides the loss of a micro-batch by the accumulation steps, unless the loss is already a share of the whole
step's items. A penalty that is added to the loss must follow the same rule, and no public method tells which applies.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import attribute, member, replaced

if TYPE_CHECKING:
    from torch import Tensor

_SCALE = "the penalty must be scaled as Trainer scales its loss"


def shifts_labels(model: Any) -> bool:
    """Whether the model's loss compares position i with label i + 1. A model whose class names no loss (GPT2, for
    example) does, though Trainer counts all its labels: see `trainer_shifts_labels`."""
    module, why = "transformers.loss.loss_utils", "labels must be counted as the model's loss counts them"
    mapping = member(module, "LOSS_MAPPING", why=why)
    causal = member(module, "ForCausalLMLoss", why=why)
    named = getattr(model, "loss_type", None)
    loss = getattr(model, "_loss_function", None) or mapping.get(named, causal if _is_plain(model) else None)
    return loss is causal and not is_encoder_decoder(model)


def name_loss(model: Any) -> None:
    """Give a causal language model whose class names no loss (GPT2, for example) the loss that transformers would fall
    back to with a warning. A model with its own loss keeps it. `loss_type` stays: Trainer counts labels by it."""
    if _is_plain(model) and getattr(model, "loss_type", None) is None and "_loss_function" not in vars(model):
        why = "a model whose class names no loss must be given one"
        model.loss_function = member("transformers.loss.loss_utils", "ForCausalLMLoss", why=why)


def _is_plain(model: Any) -> bool:
    """Whether a model of transformers has the `loss_function` of all of them and no other in its place."""
    why = "a model whose class names no loss must be told from one that brings its own"
    base = member("transformers", "PreTrainedModel", why=why)
    own = attribute(base, "loss_function", library="transformers", why=why)
    return getattr(type(model), "loss_function", None) is own


def collect_hidden_states(stack: Any) -> None:
    """Install the hooks by which transformers collects hidden states. transformers does so in the first call that asks
    for them, under a lock, which torch.compile cannot trace; installed for good, the hooks would keep the model from
    being pickled. So call this only when tracing begins."""
    why = "its hooks must be there before a call is traced by torch.compile"
    member("transformers.utils.output_capturing", "maybe_install_capturing_hooks", why=why)(stack)


def collect_hidden_states_alone(stack: Any) -> None:
    """Install the hooks for hidden states, and for what else the model's configuration asks for, but no others. In the
    first call that asks for the states transformers would install all hooks, also one on every attention module; inside
    a compiled block torch.compile cannot trace it, and cuts the block into three graphs. From then on a call that asks
    this model for an output that its configuration does not ask for, such as attentions, gets none."""
    module, why = "transformers.utils.output_capturing", "a hook inside a compiled block cuts it into pieces"
    recorded = member(module, "_CAN_RECORD_REGISTRY", why=why)
    install = member(module, "install_all_output_capturing_hooks", why=why)
    name = str(type(stack))
    every = dict.get(recorded, name)  # from transformers 5.23 on its own methods take a model, the keys are the same
    if not every or getattr(stack, "_output_capturing_hooks_installed", False):
        return
    asked = {key for key in every if key == "hidden_states" or getattr(stack.config, f"output_{key}", False)}
    dict.__setitem__(recorded, name, {key: every[key] for key in every if key in asked})
    try:
        install(stack)
    finally:
        dict.__setitem__(recorded, name, every)


def without_gguf_bar() -> contextlib.AbstractContextManager[None]:
    """Hide the tqdm bar that transformers draws while it reads GGUF weights, whatever its settings say. A release that
    draws none is fine too, so this raises no `Moved`."""
    module: Any = import_module("transformers.modeling_gguf_pytorch_utils")
    if "tqdm" not in vars(module):
        return contextlib.nullcontext()
    return replaced(module, "tqdm", lambda items, **_: items)


def only(states: Sequence[Tensor], asked: int | Sequence[int]) -> Sequence[Tensor | None]:
    """Return what a call that asks for one or some hidden states gets: the others are None. Index 0 is the embedding
    layer. Before transformers 5.23 a list began at the first block, and a number asked for all states."""
    if _release() < (5, 23):
        if isinstance(asked, int):
            return tuple(states)
        states = states[1:]
    indices = {asked} if isinstance(asked, int) else set(asked)
    return tuple(s if indices & {i, i - len(states)} else None for i, s in enumerate(states))


def is_encoder_decoder(model: Any) -> bool:
    """Whether a model has an encoder and a decoder; one without a configuration is not of transformers, and has not."""
    return bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))


def trainer_shifts_labels(trainer: Any) -> bool:
    """Whether Trainer counts the labels of a model as `shifts_labels` says when it computes `num_items_in_batch`."""
    return bool(_of(trainer, "_loss_shifts_labels", "labels must be counted as Trainer counts num_items_in_batch"))


def scaled_for_accumulation(trainer: Any, items: Any) -> bool:
    """Whether the loss is already a share of the whole step, so that Trainer does not divide it by micro-batches."""
    if _release() >= (5, 19):  # earlier releases have only the rule below
        stated = _of(trainer, "loss_is_scaled_for_ga", _SCALE)
        if stated is not None:
            return bool(stated)
    by_model = bool(_of(trainer, "model_accepts_loss_kwargs", _SCALE)) and items is not None
    return by_model or _of(trainer, "compute_loss_func", _SCALE) is not None


def accumulation_steps(trainer: Any) -> int:
    """The micro-batches of the current optimiser step, fewer at the end of an epoch; known inside train() only."""
    return int(_of(trainer, "current_gradient_accumulation_steps", _SCALE))


def loss_copies(trainer: Any) -> int:
    """The factor of a loss that is divided by the items of all processes: Trainer multiplies, as DDP divides again."""
    if not trainer.args.average_tokens_across_devices:
        return 1
    return int(trainer.accelerator.num_processes // _of(trainer, "get_tp_size", _SCALE)())


def sequence_shards(trainer: Any) -> dict[str, int]:
    """Kind of parallelism → over how many processes it splits a sequence before `compute_loss` sees it."""
    why = "a sequence that is split over processes must be noticed"
    return {"context": _of(trainer, "get_cp_size", why)(), "sequence": _of(trainer, "get_sp_size", why)()}


def context_group(trainer: Any) -> Any:
    """The process group over which a trainer with context parallelism splits a sequence."""
    why = "the parts of a sequence must find another"
    return attribute(trainer.accelerator, "torch_device_mesh", library="accelerate", why=why)["cp"].get_group()


def pipeline_stages(model: Any) -> int:
    """Over how many pipeline stages transformers has spread a model's layers; 1 without a `DistributedConfig`."""
    config = getattr(getattr(model, "config", None), "distributed_config", None)
    size = config.get("pp_size") if isinstance(config, dict) else getattr(config, "pp_size", None)
    return int(size or 1)


def loss_sum(trainer: Any) -> Any:
    """Trainer's sum of the losses since the last log line, from which a skipped step must be subtracted again."""
    return _of(trainer, "_tr_loss", "a skipped step must not count in the log")


def calling_trainer(callback: Any) -> Any:
    """The trainer that is calling this callback, or None: events carry its model, arguments and state, but not itself.

    It is found up the call stack, as the `self` that has `compute_loss` and holds the callback.
    """
    frame = sys._getframe(1)
    while frame is not None:
        owner = frame.f_locals.get("self")
        handler = getattr(owner, "callback_handler", None)
        if hasattr(owner, "compute_loss") and callback in getattr(handler, "callbacks", ()):
            return owner
        frame = frame.f_back  # type: ignore[assignment]
    return None


def use_one_gpu(arguments: Any) -> None:
    """Limit Trainer to one GPU per process: with several visible it would split each batch over copies of the model."""
    why = "Trainer must not split a batch over several GPUs of one process"
    attribute(arguments, "_n_gpu", library="transformers", why=why)
    arguments._n_gpu = min(1, arguments.n_gpu)


def _release() -> tuple[int, ...]:
    """The release, (5, 22) for transformers 5.22.2. Needed in every step, where package metadata would take 14 ms."""
    import transformers

    return tuple(int(part) for part in transformers.__version__.split(".")[:2])


def _of(trainer: Any, name: str, why: str) -> Any:
    return attribute(trainer, name, library="transformers", why=why)
