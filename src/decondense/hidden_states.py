"""Where the hidden states of a training call come from, and which of them count.

A Hugging Face model is asked for its own `output_hidden_states`, at its stack of blocks and only while it trains,
and the states are removed from its output unless the caller wanted them. A loss computed inside a layer's hook would
run twice under non-reentrant checkpointing and have no gradient under reentrant checkpointing; outputs of the model
have neither problem. Other modules are read through hooks on the layers that the user names.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn

from .capture import Capture, Hook
from .checks import check_choice
from .inputs import called_with, stating, token_mask
from .insides.transformers import is_encoder_decoder, only
from .named_layers import ModuleReader, came, naming
from .split import refuse_pipeline
from .stack import stack_of, unwrap_peft

LAYER_NAMES = ("all", "last", "early_half", "late_half")
# Model types that return the output of every block, and that of the last again after the norm, but no embedding layer.
LATE = ("mamba", "mamba2", "falcon_mamba", "rwkv")
GIVEN = ("position_ids", "input_ids", "inputs_embeds", "past_key_values")
Layers = str | Sequence[int] | Callable[[int], Sequence[int]]


class StackReader:
    """The hidden states that a transformers model returns by itself."""

    first = 1  # the embedding layer is not one of "all"

    def __init__(self, model: Any) -> None:
        self.model, self.stack = model, stack_of(model)
        self.parts = list(self.stack.children())
        self._wanted: Any = None
        self._given: dict[str, Any] | None = None  # mask and `GIVEN` arguments of the call being read

    def name(self, i: int) -> str:
        return f"hidden state {i} of {type(self.stack).__name__}"

    def attach(self, before: Callable[[], bool], after: Callable[[Capture], None]) -> list[Any]:
        def ask(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            self._given = None
            if not (module.training and torch.is_grad_enabled() and before()):
                return None
            given = called_with(module.forward, args, kwargs)
            self._wanted = given.get("output_hidden_states")
            if self._wanted is None:
                self._wanted = getattr(getattr(module, "config", None), "output_hidden_states", False)
            self._given = {"mask": token_mask(given), **{name: given.get(name) for name in GIVEN}}
            return stating(module.forward, args, kwargs, "output_hidden_states", True)

        def take(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Any:
            given, self._given = self._given, None
            if given is None:
                return None
            states = out.get("hidden_states") if isinstance(out, dict) else None
            if states is None:
                raise TypeError(
                    f"{type(module).__name__} must return a ModelOutput with hidden_states, got "
                    f"{type(out).__name__} without them: drop return_dict=False, or {naming()}."
                )
            mask = given["mask"]
            if given["past_key_values"] is not None and isinstance(mask, Tensor) and mask.ndim == 2:
                mask = mask[:, -states[0].shape[1] :]  # the rest is the cache's, which prefix tuning fills
            after(Capture(in_order(module, states, given), mask, given["position_ids"]))
            if self._wanted is True:
                return None
            rest = {key: value for key, value in out.items() if key != "hidden_states"}
            if self._wanted:
                rest["hidden_states"] = only(states, self._wanted)
            return type(out)(**rest)

        return [
            Hook.hang(self.stack.register_forward_pre_hook, ask, with_kwargs=True),
            # Of two readers, a loss and a monitor, the first to ask removes the states: its hook here must run last.
            Hook.hang(self.stack.register_forward_hook, take, with_kwargs=True, prepend=True),
        ]

    def once(self, inputs: dict[str, Any]) -> Capture:
        """Call the model's body with `inputs`, its arguments, and return the states."""
        body = body_of(self.model, inputs)
        out = body(**inputs, output_hidden_states=True, return_dict=True)
        side = "decoder_" if is_encoder_decoder(self.model) else ""
        states = in_order(body, out[f"{side}hidden_states"], inputs)
        return Capture(states, token_mask(inputs, side), inputs.get("position_ids"))


Reader = StackReader | ModuleReader
"""Delivers a `Capture` for every training call. `first` is the index of the first layer that "all" means; `parts` are
modules that run inside the model's `forward`, and so inside the autocast that accelerate puts around it. Hooks on the
model itself run outside of that autocast."""


def refuse_prompts(model: Any) -> None:
    """Refuse prefix and prompt tuning, which act in the call of the PEFT model, not in the modules inside."""
    config: Any = getattr(model, "active_peft_config", None)
    if getattr(config, "is_prompt_learning", False):
        raise ValueError(
            f"an adapter must lie in the model's own modules for its hidden states to be read, got "
            f"{config.peft_type.value}, which acts in front of them: {naming(model)}; pass no mask if it adds tokens."
        )


def refuse_lightning(target: Any, callback: str) -> None:
    """Refuse Lightning's objects: it calls `training_step`, past the module's hooks, and keeps the loss to itself."""
    kinds = {kind.__name__ for kind in type(target).__mro__ if "lightning" in kind.__module__}
    if kinds & {"LightningModule", "Trainer"}:
        raise TypeError(
            f"Lightning takes callbacks, got its {type(target).__name__}: Trainer(callbacks=[{callback}(…)]), "
            f"from decondense.integrations.lightning import {callback}."
        )


def no_target(target: Any) -> TypeError:
    """The error for what is neither a model nor a trainer."""
    came = repr(target) if target is None or isinstance(target, (str, type)) else f"an object of {type(target)}"
    return TypeError(f"target must be a model or a trainer, got {came}: pass the object that you train with.")


def reader_of(model: nn.Module, modules: str | Sequence[str] | None) -> tuple[Reader, int | None]:
    """The reader for a model, and the number of states it will deliver if that is known in advance."""
    inner: Any = unwrap_peft(model)
    refuse_pipeline(inner)
    if modules is not None:
        reader = ModuleReader(model, modules)
        return reader, len(reader.names)
    config = getattr(inner, "config", None)
    if config is None or not hasattr(inner, "base_model"):
        raise TypeError(
            f"model must be a transformers model that can return hidden states, got {type(model).__name__}: "
            f"for other modules {naming(model)}."
        )
    names = ["num_decoder_layers", "decoder_layers"]  # with two stacks, num_hidden_layers counts the encoder's or all
    if not is_encoder_decoder(inner):
        names = [*(names if getattr(config, "is_decoder", False) else []), "num_hidden_layers"]
    blocks = next((number for name in names if (number := getattr(config, name, None))), None)
    return StackReader(inner), None if blocks is None else blocks + 1


def in_order(stack: Any, states: Sequence[Tensor], given: dict[str, Any]) -> Sequence[Tensor]:
    """Hidden states in the order of all models but those in `LATE`: the embedding layer, block 1, …, and the last block
    after the final norm."""
    for state in states:
        if state.ndim != 3:
            raise TypeError(
                f"the hidden states of {type(stack).__name__} must be (batch, tokens, width), got "
                f"{tuple(state.shape)}, several streams or a feature map: name layers that return such states "
                "with modules=[…] (loss.modules in a recipe)."
            )
    if getattr(getattr(stack, "config", None), "model_type", None) not in LATE:
        return states
    embedded = given.get("inputs_embeds")
    if embedded is None:
        embedded = stack.get_input_embeddings()(given["input_ids"])
    return (embedded, *states[:-2], states[-1])


def body_of(model: Any, inputs: dict[str, Any], stack: str = "decoder") -> Any:
    """The part of a transformers model that is called for its hidden states: the model without its head; of an
    encoder–decoder the encoder alone or both stacks; of two towers (CLIP, SigLIP) the one that reads `inputs`."""
    refuse_prompts(model)
    body = getattr(unwrap_peft(model), "base_model", model)
    if is_encoder_decoder(model) and stack == "encoder":
        return body.get_encoder()
    if not hasattr(body, "logit_scale") or not hasattr(body, "vision_model"):
        return body
    if ("pixel_values" in inputs) == ("input_ids" in inputs):
        raise ValueError(
            f"inputs of {type(model).__name__}, which has two towers, must have either pixel_values or input_ids, got "
            f"{', '.join(inputs)}: give those of the tower that you want."
        )
    return body.vision_model if "pixel_values" in inputs else body.text_model


def checked_layers(layers: Layers) -> Layers:
    """Check `layers` and return them, indices as a list: every call reads them, and a generator is read only once."""
    if isinstance(layers, str):
        check_choice("layers", layers, LAYER_NAMES)
    if isinstance(layers, str) or callable(layers):
        return layers
    indices = list(layers) if isinstance(layers, Iterable) else [None]
    if not all(isinstance(i, Integral) and not isinstance(i, bool) for i in indices):
        raise TypeError(
            f"layers must be one of {', '.join(map(repr, LAYER_NAMES))}, a list of indices or a callable, "
            f"got {came(layers)}: hidden state 0 is the embedding layer, −1 the last."
        )
    return list(map(int, indices))


def select(layers: Layers, states: int, first: int) -> list[int]:
    """The chosen indices into the hidden states (0 is the embedding layer of a transformers model, where first = 1).

    "early_half" and "late_half" split the blocks; a callable gets the number of hidden states.
    """
    blocks = list(range(first, states))
    half = len(blocks) // 2
    if isinstance(layers, str):
        check_choice("layers", layers, LAYER_NAMES)
        named = {"all": blocks, "last": blocks[-1:], "early_half": blocks[:half], "late_half": blocks[half:]}
        layers = named[layers]
    if callable(layers):
        given = layers(states)
        try:
            layers = [operator.index(i) for i in given]
        except TypeError:
            raise TypeError(
                f"layers must return a list of indices, got {came(given)} for {states} hidden states: return "
                f"range({first}, {states}) for every block."
            ) from None
    chosen = list(layers)
    for index in chosen:
        if not -states <= index < states:
            raise ValueError(
                f"layers must lie in 0 … {states - 1} (or −{states} … −1), got {index}: this model has {states} hidden "
                f"states{', the embedding layer included' if first else ''}."
            )
    chosen = sorted({index % states for index in chosen})
    if not chosen:
        raise ValueError("layers must choose at least one hidden state, got none: use 'all'.")
    return chosen
