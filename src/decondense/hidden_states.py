"""Where the hidden states of a training call come from, and which of them count.

A Hugging Face model is asked for its own `output_hidden_states`, at its decoder stack and only while it trains,
and the answer is taken out again unless the caller wanted it. A loss computed inside a layer's hook would run
twice under non-reentrant checkpointing and have no gradient under reentrant checkpointing; outputs of the model
have neither problem. Other modules are read through hooks on the layers that the user names.
"""

from __future__ import annotations

import copy
import fnmatch
import re
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.backends import mha
from torch.utils.hooks import RemovableHandle

from .inputs import called_with, stating, token_mask, tokens_of, unpacked, unread_mask
from .insides.transformers import is_encoder_decoder
from .losses.options import check_choice
from .split import refuse_pipeline
from .stack import padded_by, repeated_blocks, stack_of
from .words import near, warn

LAYER_NAMES = ("all", "last", "early_half", "late_half")
# They return what every block puts out and the last one's once more after the norm, nothing of the embedding layer.
LATE = ("mamba", "mamba2", "falcon_mamba", "rwkv")
GIVEN = ("position_ids", "input_ids", "inputs_embeds", "past_key_values")
Layers = str | Sequence[int] | Callable[[int], Sequence[int]]
Known = tuple[Tensor, Tensor, Tensor | None]  # a state, the loss of it and its mean cosines, (1, batch) each


@dataclass
class Capture:
    """One training call of the stack: its states, embedding layer first, and what came in with them. `masks` has one
    for each state where they are of two stacks, which read other tokens; `autocast` is the dtype of the call's. `known`
    are states whose values, and mean cosines where they came for nothing, the blocks have computed."""

    states: Sequence[Tensor]
    attention_mask: Tensor | None = None
    position_ids: Tensor | None = None
    masks: list[Tensor | None] | None = None
    autocast: torch.dtype | None = None
    known: Sequence[Known] = ()

    def mask_of(self, state: int) -> Tensor | None:
        return self.attention_mask if self.masks is None else self.masks[state]

    def targets(self, labels: Tensor, sides: Sequence[str]) -> None:
        """Targets are padded with −100, and the decoder sees them shifted: no label, no token. `sides`, one per state,
        or one for all, says which are the decoder's; a mask that was given stands."""
        kept = labels.ne(-100)
        for i, side in enumerate(sides):
            if side == "decoder" and self.mask_of(i) is None and kept.shape == self.states[i].shape[:2]:
                if self.masks is None:
                    self.attention_mask = kept
                else:
                    self.masks[i] = kept


class Hook(partial):
    """A hook that copies and pickles of a model leave behind: they are the model without the loss.

    It has no `__call__` in Python: torch.compile counts compilations by code object, and all hooks would share one.
    """

    handle: RemovableHandle | None = None

    @classmethod
    def hang(cls, register: Callable[..., RemovableHandle], function: Callable[..., Any], **options: Any) -> Any:
        """`register(hook of function, …)`, and what it returns."""
        hook = cls(function)
        hook.handle = register(hook, **options)
        return hook.handle

    def __deepcopy__(self, memo: dict[Any, Any]) -> Hook:
        # A hook cannot take itself out of a copy that is being made. `memo` goes when it is done, and with it the set.
        if self.handle is not None:
            weakref.finalize(memo.setdefault("decondense", set()), copy.deepcopy(self.handle, memo).remove)
        return Hook(_nothing)

    def __reduce__(self) -> tuple[Any, ...]:
        return Hook, (_nothing,)


def _nothing(*args: Any) -> None:
    """What is left of a hook in a model that was loaded from a file, or is being copied."""


class StackReader:
    """The hidden states that a transformers model returns by itself."""

    first = 1  # the embedding layer is not one of "all"

    def __init__(self, model: Any) -> None:
        self.model, self.stack = model, stack_of(model)
        self.parts = list(self.stack.children())
        self._wanted: Any = None
        self._given: dict[str, Any] | None = None  # of a call that is read: its mask, and arguments in `GIVEN`

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
                mask = mask[:, -states[0].shape[1] :]  # the others are of the cache, which prefix tuning fills
            after(Capture(in_order(module, states, given), mask, given["position_ids"]))
            if self._wanted is True:
                return None
            rest = {key: value for key, value in out.items() if key != "hidden_states"}
            if self._wanted:  # some layers only, counted from the first block; the others are None
                asked = set(self._wanted)
                rest["hidden_states"] = tuple(s if i in asked else None for i, s in enumerate(states[1:]))
            return type(out)(**rest)

        return [
            Hook.hang(self.stack.register_forward_pre_hook, ask, with_kwargs=True),
            # Of two readers, a loss and a monitor, the one that asked first takes the states out: it must be the last.
            Hook.hang(self.stack.register_forward_hook, take, with_kwargs=True, prepend=True),
        ]

    def once(self, inputs: dict[str, Any]) -> Capture:
        """The states of one call, here and now; `inputs` are the arguments of the model's body."""
        body = body_of(self.model, inputs)
        out = body(**inputs, output_hidden_states=True, return_dict=True)
        side = "decoder_" if is_encoder_decoder(self.model) else ""
        states = in_order(body, out[f"{side}hidden_states"], inputs)
        return Capture(states, token_mask(inputs, side), inputs.get("position_ids"))


class ModuleReader:
    """The outputs of named submodules, for any `nn.Module`.

    A pattern is matched level by level: `h.*` are the modules right below `h`, not what is inside them.
    """

    first = 0

    def __init__(self, model: nn.Module, patterns: str | Sequence[str]) -> None:
        self.model = model
        given = patterns
        patterns = [given] if isinstance(given, str) else list(given) if isinstance(given, Iterable) else []
        if not isinstance(given, Iterable) or not all(isinstance(one, str) for one in patterns):
            raise TypeError(
                "modules must be a name of submodules or a list of names, such as 'model.layers.*', got "
                f"{_came(given)}: give names as named_modules() has them."
            )
        modules = {name: module for name, module in model.named_modules() if name}
        self.names = [name for name in modules if any(_matches(name, pattern) for pattern in patterns)]
        if not self.names:
            deeper = ((name, one) for one in patterns for name in modules if fnmatch.fnmatchcase(name, f"*.{one}"))
            whole = next((".".join([*name.split(".")[: -1 - one.count(".")], one]) for name, one in deeper), "")
            blocks = dict.fromkeys(re.sub(r"\b\d+\b", "*", name) for name in modules)
            whole = whole or next((close for one in patterns for close in near(one, blocks)), "")
            meant = f" Did you mean {whole!r}?" if whole else ""
            raise ValueError(
                f"modules must name layers of {type(model).__name__}, but {patterns} matches none: patterns are "
                f"matched, level by level, against names such as {', '.join(list(modules)[:8])}.{meant}"
            )
        for name in self.names:
            if isinstance(modules[name], nn.ModuleList | nn.ModuleDict):
                raise ValueError(
                    f"modules must name layers that are called, got {name!r}, a {type(modules[name]).__name__}: "
                    f"name what is in it, '{name}.*'."
                )
        self.parts = [modules[name] for name in self.names]
        # Of each layer the stack of torch's own around it; where all are of one kind, what lies outside has its tokens.
        found = [padded_by(model, name) for name in self.names]
        around = [one for one in found if one is not None]
        alone = around[0] if len({argument for _, argument in around}) == 1 else ("", "")
        self.padded = [one or alone for one in found]
        self.sides = _sides(self.parts, unwrap_peft(model), self.padded)
        self.differentiated = True  # whether a loss is taken of the states, so that they must carry a gradient
        self._outputs: dict[str, Tensor] | None = None
        self._paddings: dict[str, Any] = {}  # what torch's own stacks and layers were called with, by their names
        told = set()

        def tell(words: str) -> None:  # no method: a compiler that traces calls it then and there (`Attachment.read`)
            if words not in told:
                told.add(words)
                warn(words)

        self.tell = tell

    def name(self, i: int) -> str:
        return self.names[i]

    def attach(self, before: Callable[[], bool], after: Callable[[Capture], None]) -> list[Any]:
        def start(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            active = module.training and torch.is_grad_enabled() and before()
            self._outputs, self._paddings = {} if active else None, {}

        def end(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
            outputs, self._outputs = self._outputs, None
            if outputs is None:
                return
            after(self._capture(outputs, unpacked(called_with(module.forward, args, kwargs))))

        handles = [Hook.hang(self.model.register_forward_pre_hook, start, with_kwargs=True)]
        handles += [Hook.hang(register, hook, **options) for register, hook, options in self._hooks()]
        handles.append(Hook.hang(self.model.register_forward_hook, end, with_kwargs=True))
        return handles

    def _hooks(self) -> Iterator[tuple[Callable[..., RemovableHandle], Callable[..., None], dict[str, Any]]]:
        for name, part in zip(self.names, self.parts):
            yield part.register_forward_hook, partial(self._record, name), {}
        for name, argument in dict.fromkeys(self.padded):
            if argument:
                part = self.model.get_submodule(name)
                yield part.register_forward_pre_hook, partial(self._note_padding, name, argument), {"with_kwargs": True}

    def _note_padding(self, name: str, argument: str, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        if self._outputs is not None:
            self._paddings[name] = called_with(module.forward, args, kwargs).get(argument)

    def _record(self, name: str, module: nn.Module, args: Any, out: Any) -> None:
        # Only during the call itself: a checkpoint's recomputation passes here again, in the backward.
        if self._outputs is None:
            return
        if name in self._outputs:
            self.tell(
                f"{name} was called more than once in a call of {type(self.model).__name__}, and its last output alone "
                "is read: to read each, let what it returns pass through an nn.Identity of its own each time, and name "
                "those."
            )
        self._outputs[name] = out[0] if isinstance(out, tuple) else out

    def once(self, inputs: dict[str, Any]) -> Capture:
        """The states of one call, here and now."""
        self._outputs, self._paddings = {}, {}
        with ExitStack() as undo:
            # Where nothing is differentiated, torch's encoder makes nested tensors of padded batches.
            undo.callback(mha.set_fastpath_enabled, mha.get_fastpath_enabled())
            mha.set_fastpath_enabled(False)
            for register, hook, options in self._hooks():
                undo.callback(register(hook, **options).remove)
            self.model(**inputs)
        outputs, self._outputs = self._outputs, None
        return self._capture(outputs, unpacked(inputs))

    def _capture(self, outputs: dict[str, Tensor], given: dict[str, Any]) -> Capture:
        states = self._states(outputs)
        paddings = [self._paddings.get(around) for around, _ in self.padded]
        one = len(set(self.sides)) == 1 and all(padding is paddings[0] for padding in paddings)
        each = list(zip(states, paddings))[: 1 if one else None]
        masks = [self._mask(self._own(given, i), i, z.shape[:2], padding) for i, (z, padding) in enumerate(each)]
        if masks[0] is None and (unread := unread_mask(self._own(given, 0), states[0].shape[:2])) is not None:
            self.tell(
                "padding is what attention_mask (1: a token) or key_padding_mask (True: padding) says, got "
                f"{unread}, which is not read, so that every token counts: where it marks padding, let forward call it "
                "by one of those names."
            )
        return Capture(states, masks[0], given.get("position_ids"), None if one else masks)

    def _own(self, given: dict[str, Any], state: int) -> dict[str, Any]:
        """Of the model's arguments those that may tell of a layer's tokens: a target's are not those of its source."""
        others = ("src", "memory") if self.padded[state][1].startswith("tgt") else ()
        return {name: value for name, value in given.items() if not name.startswith(others)}

    def _mask(self, given: dict[str, Any], state: int, shape: torch.Size, padding: Any) -> Tensor | None:
        """The tokens that count: without the `padding` with which torch's own stack was called, or as `given` says."""
        if padding is not None:
            return tokens_of(padding, self.padded[state][1], shape)
        return token_mask(given, "decoder_" if self.sides[state] == "decoder" else "", shape)

    def _states(self, outputs: dict[str, Tensor]) -> list[Tensor]:
        """The outputs in the order of the names, or the error that says which of them are no hidden states."""
        missing = [name for name in self.names if name not in outputs]
        if missing:
            raise RuntimeError(
                f"modules must name layers that run in every training call, but {', '.join(missing)} did not: "
                "leave them out; a compiled model that was called before does not notice what is attached to its "
                "layers, until torch.compiler.reset()."
            )
        for name, state in outputs.items():
            if not isinstance(state, Tensor) or state.ndim != 3:
                came = tuple(state.shape) if isinstance(state, Tensor) else type(state).__name__
                raise TypeError(
                    f"the output of {name} must be (batch, tokens, width), got {came}: "
                    "name layers that return hidden states."
                )
            if self.differentiated and torch.is_grad_enabled() and not state.requires_grad:
                raise RuntimeError(
                    f"the output of {name} must carry a gradient, got none: reentrant checkpointing hides it, "
                    "use use_reentrant=False; a frozen layer has none, leave it out."
                )
        return [outputs[name] for name in self.names]


Reader = StackReader | ModuleReader
"""Delivers a `Capture` for every training call. `first` is the index of the first layer that "all" means; `parts` are
modules that such a call calls inside of the model's `forward`, and so of the autocast that accelerate puts around that;
hooks of the model itself, which may be all that is read, are outside of it."""


def naming(model: nn.Module | None = None) -> str:
    """The remedy where a model does not say what its hidden states are: the option, with a guess at its blocks."""
    blocks = [] if model is None else repeated_blocks(model)[:1]
    names = [name for name, module in model.named_modules() if module in blocks] if model is not None else []
    pattern = repr(names[0].rpartition(".")[0] + ".*") if names else "[…]"
    which = "the layers to read, that return (batch, tokens, width)"
    norm = "; of blocks the last is then read before a final norm" if names else ""
    return f"name {which}, with modules={pattern}, in a recipe loss.modules{norm}"


def _sides(layers: list[nn.Module], model: Any, padded: list[tuple[str, str]]) -> list[str]:
    """Of which stack of an encoder–decoder each layer is, which decides about its mask; torch's own are called by what
    they call it."""
    if not is_encoder_decoder(model):
        return [argument or "only" for _, argument in padded]
    inside = {id(module) for module in model.get_decoder().modules()}
    return ["decoder" if id(layer) in inside else "encoder" for layer in layers]


def _matches(name: str, pattern: str) -> bool:
    levels, wanted = name.split("."), pattern.split(".")
    return len(levels) == len(wanted) and all(map(fnmatch.fnmatchcase, levels, wanted))


def _came(value: Any) -> str:
    """A wrong argument in a few words; that of a module would be a page."""
    each = value if isinstance(value, (list, tuple)) else [value]
    if all(isinstance(one, (int, float, str)) for one in each):
        return repr(value)
    kinds = ", ".join(dict.fromkeys(type(one).__name__ for one in each))
    return kinds if each is not value else f"a list of {kinds}"


def shifted(labels: Tensor) -> Tensor:
    """Labels as a causal loss counts them: that of position i is label i + 1, the last position has none."""
    return nn.functional.pad(labels[..., 1:], (0, 1), value=-100)


def unwrap_peft(model: Any) -> Any:
    """The transformers model inside a PEFT model; any other model as it is."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def refuse_prompts(model: Any) -> None:
    """Prefix and prompt tuning act in the call of the PEFT model, not in the modules of the one inside of it."""
    config: Any = getattr(model, "active_peft_config", None)
    if getattr(config, "is_prompt_learning", False):
        raise ValueError(
            f"an adapter must be in the model's own modules for its hidden states to be asked for, got "
            f"{config.peft_type.value}, in front of them: {naming(model)}; no mask where tokens are added."
        )


def refuse_lightning(target: Any, callback: str) -> None:
    """Lightning calls `training_step`, past the hooks of its module, and hands the loss to nobody but itself."""
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
    """The reader for a model, and the number of states it will deliver where that is known beforehand."""
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
    names = ["num_decoder_layers", "decoder_layers"]  # num_hidden_layers are then the encoder's, or those of both
    if not is_encoder_decoder(inner):
        names = [*(names if getattr(config, "is_decoder", False) else []), "num_hidden_layers"]
    blocks = next((number for name in names if (number := getattr(config, name, None))), None)
    return StackReader(inner), None if blocks is None else blocks + 1


def in_order(stack: Any, states: Sequence[Tensor], given: dict[str, Any]) -> Sequence[Tensor]:
    """Hidden states as all models return them but those of `LATE`: the embedding layer, block 1, …, and the last block
    after the final norm."""
    for state in states:
        if state.ndim != 3:
            raise TypeError(
                f"the hidden states of {type(stack).__name__} must be (batch, tokens, width), got "
                f"{tuple(state.shape)}, several streams or a feature map: name layers that return such states "
                "with modules=[…], in a recipe loss.modules."
            )
    if getattr(getattr(stack, "config", None), "model_type", None) not in LATE:
        return states
    embedded = given.get("inputs_embeds")
    if embedded is None:
        embedded = stack.get_input_embeddings()(given["input_ids"])
    return (embedded, *states[:-2], states[-1])


def body_of(model: Any, inputs: dict[str, Any], stack: str = "decoder") -> Any:
    """The part of a transformers model that is called for its hidden states: without the head, of an encoder–decoder
    the encoder alone or all of it, and of two towers (CLIP, SigLIP) the one that reads `inputs`."""
    refuse_prompts(model)
    body = getattr(unwrap_peft(model), "base_model", model)
    if is_encoder_decoder(model) and stack == "encoder":
        return body.get_encoder()
    if not hasattr(body, "logit_scale") or not hasattr(body, "vision_model"):
        return body
    if ("pixel_values" in inputs) == ("input_ids" in inputs):
        raise ValueError(
            f"{type(model).__name__} has two towers, which read different things: give pixel_values or input_ids, "
            f"one of them, got {', '.join(inputs)}."
        )
    return body.vision_model if "pixel_values" in inputs else body.text_model


def check_layers(layers: Layers) -> None:
    if isinstance(layers, str):
        check_choice("layers", layers, LAYER_NAMES)
    elif not callable(layers) and not (isinstance(layers, Iterable) and all(type(i) is int for i in layers)):
        raise TypeError(
            f"layers must be one of {', '.join(map(repr, LAYER_NAMES))}, a list of indices or a callable, "
            f"got {_came(layers)}: hidden state 0 is the embedding layer, −1 the last."
        )


def select(layers: Layers, states: int, first: int) -> list[int]:
    """Indices into the hidden states (0 is the embedding layer of a transformers model, where first = 1).

    "early_half" and "late_half" split the blocks; a callable gets the number of hidden states.
    """
    blocks = list(range(first, states))
    half = len(blocks) // 2
    if isinstance(layers, str):
        check_choice("layers", layers, LAYER_NAMES)
        named = {"all": blocks, "last": blocks[-1:], "early_half": blocks[:half], "late_half": blocks[half:]}
        layers = named[layers]
    chosen = list(layers(states)) if callable(layers) else list(layers)
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
