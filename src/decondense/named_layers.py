"""Hidden states of any `nn.Module`: the outputs of layers that the user names, read through hooks on these layers."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.backends import mha
from torch.utils.hooks import RemovableHandle

from .capture import Capture, Hook
from .geometry import shape_or_type
from .inputs import called_with, patch_mask, token_mask, tokens_of, unpacked, unread_mask
from .insides.transformers import is_encoder_decoder
from .stack import padded_by, repeated_blocks, unwrap_peft
from .words import near, warn

SEEING = ("vision_model", "vision_tower", "visual")  # the parts of transformers models that read images


class ModuleReader:
    """The outputs of named submodules, for any `nn.Module`.

    A pattern is matched level by level: `h.*` are the modules directly in `h`, not those inside them. They are in the
    order of their calls, and before the first call of the model in that of `named_modules()`.
    """

    first = 0

    def __init__(self, model: nn.Module, patterns: str | Sequence[str]) -> None:
        self.model = model
        passed = patterns
        patterns = list(passed) if isinstance(passed, Iterable) and not isinstance(passed, str) else [passed]
        if not all(isinstance(one, str) for one in patterns):
            raise TypeError(
                "modules must be a name of submodules or a list of names, such as 'model.layers.*', got "
                f"{came(passed)}: give names as named_modules() has them."
            )
        modules = {name: module for name, module in model.named_modules() if name}
        self.names = [name for name in modules if any(_matches(name, pattern) for pattern in patterns)]
        if not self.names:
            deeper = ((name, one) for one in patterns for name in modules if fnmatch.fnmatchcase(name, f"*.{one}"))
            suggestion = next((".".join([*name.split(".")[: -1 - one.count(".")], one]) for name, one in deeper), "")
            blocks = dict.fromkeys(re.sub(r"\b\d+\b", "*", name) for name in modules)
            suggestion = suggestion or next((close for one in patterns for close in near(one, blocks)), "")
            hint = f" Did you mean {suggestion!r}?" if suggestion else ""
            raise ValueError(
                f"modules must name layers of {type(model).__name__}, but {patterns} matches none: patterns are "
                f"matched, level by level, against names such as {', '.join(list(modules)[:8])}.{hint}"
            )
        for name in self.names:
            if isinstance(modules[name], nn.ModuleList | nn.ModuleDict):
                raise ValueError(
                    f"modules must name layers that are called, got {name!r}, a {type(modules[name]).__name__}: "
                    f"name what is in it, '{name}.*'."
                )
            if _tokens_first(modules[name]):
                raise ValueError(
                    f"the output of {name} must be (batch, tokens, width), got that of a "
                    f"{type(modules[name]).__name__} with batch_first=False, whose tokens come first: make it with "
                    "batch_first=True."
                )
        self.parts = [modules[name] for name in self.names]
        # The torch stack around each layer; a layer outside of any uses the first one's mask if all mask the same side.
        stacks = [padded_by(model, name) for name in self.names]
        known_stacks = [one for one in stacks if one is not None]
        default_stack = known_stacks[0] if len({argument for _, argument in known_stacks}) == 1 else ("", "")
        self.padded = [one or default_stack for one in stacks]  # parallel to `names`, as `parts` and `sides`
        self.sides = _sides(self.names, self.parts, unwrap_peft(model), self.padded)
        self.masked = False  # whether the caller has a mask of its own beside what the arguments say
        self.ordered = False  # whether the order of the calls is known, and stays that of the first one
        self.differentiated = True  # whether a loss is computed from the states, which must then carry a gradient
        self._outputs: dict[str, Tensor] | None = None
        self._paddings: dict[str, Any] = {}  # module name of a torch stack → its padding mask in this call
        warned = set()

        def tell(message: str) -> None:  # a function: the compiler calls it while it traces (`Attachment.read`)
            if message not in warned:
                warned.add(message)
                warn(message)

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
        # Only during the call itself: a checkpoint's recomputation comes here again, in the backward pass.
        if self._outputs is None:
            return
        if name in self._outputs:
            self.tell(
                f"{name} was called more than once in a call of {type(self.model).__name__}, and its last output alone "
                "is read: to read each, let what it returns pass through an nn.Identity of its own each time, and name "
                "those."
            )
            del self._outputs[name]  # the latest call is the last in `_outputs`, and so among the layers
        self._outputs[name] = out[0] if isinstance(out, tuple) else out

    def once(self, inputs: dict[str, Any]) -> Capture:
        """Call the model with `inputs` and return the states."""
        self._outputs, self._paddings = {}, {}
        with ExitStack() as undo:
            # Without gradients torch's encoder would turn padded batches into nested tensors.
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
        one_mask = len(set(self.sides)) == 1 and all(padding is paddings[0] for padding in paddings)
        pairs = list(zip(states, paddings))[: 1 if one_mask else None]
        masks = [self._mask(self._own(given, i), i, z.shape[:2], padding) for i, (z, padding) in enumerate(pairs)]
        unread = None if self.masked or masks[0] is not None else unread_mask(self._own(given, 0), states[0].shape[:2])
        if unread is not None:
            self.tell(
                "padding is read from attention_mask (1: a token) or key_padding_mask (True: padding), got "
                f"{unread}, which is not read, so that every token counts: if it marks padding, give this argument of "
                "forward one of those names."
            )
        positions = None if "image" in self.sides else given.get("position_ids")
        return Capture(states, masks[0], positions, None if one_mask else masks)

    def _own(self, given: dict[str, Any], state: int) -> dict[str, Any]:
        """The model's arguments that may describe a layer's tokens: for a layer over the target, none of the source."""
        source_names = ("src", "memory") if self.padded[state][1].startswith("tgt") else ()
        return {name: value for name, value in given.items() if not name.startswith(source_names)}

    def _mask(self, given: dict[str, Any], state: int, shape: torch.Size, padding: Any) -> Tensor | None:
        """The tokens that count: by the `padding` that a torch stack was called with, else by the arguments `given`."""
        if padding is not None:
            return tokens_of(padding, self.padded[state][1], shape)
        if self.sides[state] == "image":
            patches = patch_mask(given)
            return patches if patches is not None and patches.shape == shape else None
        return token_mask(given, "decoder_" if self.sides[state] == "decoder" else "", shape)

    def _states(self, outputs: dict[str, Tensor]) -> list[Tensor]:
        """The outputs, whose order becomes that of the names; raise if some are missing or are no hidden states."""
        missing = [name for name in self.names if name not in outputs]
        if missing:
            raise RuntimeError(
                f"modules must name layers that run in every training call, but {', '.join(missing)} did not: "
                "leave them out, or, if the model is compiled and was called before attaching, call "
                "torch.compiler.reset()."
            )
        for name, state in outputs.items():
            if not isinstance(state, Tensor) or state.ndim != 3:
                raise TypeError(
                    f"the output of {name} must be (batch, tokens, width), got {shape_or_type(state)}: "
                    "name layers that return hidden states."
                )
            if self.differentiated and torch.is_grad_enabled() and not state.requires_grad:
                raise RuntimeError(
                    f"the output of {name} must carry a gradient, got none: reentrant checkpointing hides it, "
                    "use use_reentrant=False; a frozen layer has none, leave it out."
                )
        # A module may have registered its layers in another order, which would turn a trend over depth around.
        called = list(outputs)
        if called != self.names and not self.ordered:
            order = [self.names.index(name) for name in called]
            self.names, self.parts = called, [self.parts[i] for i in order]
            self.padded, self.sides = [self.padded[i] for i in order], [self.sides[i] for i in order]
        return [outputs[name] for name in self.names]


def naming(model: nn.Module | None = None) -> str:
    """The remedy in errors about models that do not return hidden states: the option, with a guess at the blocks."""
    blocks = [] if model is None else repeated_blocks(model)[:1]
    names = [name for name, module in model.named_modules() if module in blocks] if model is not None else []
    pattern = repr(names[0].rpartition(".")[0] + ".*") if names else "[…]"
    which = "the layers to read, which return (batch, tokens, width)"
    norm = "; the last block is then read before any final norm" if names else ""
    return f"name {which}, with modules={pattern} (loss.modules in a recipe){norm}"


def _sides(names: list[str], layers: list[nn.Module], model: Any, padded: list[tuple[str, str]]) -> list[str]:
    """What each layer reads, which decides its mask: "image" (the mask is the text's, not the image's), "encoder" or
    "decoder", the name of the padding argument of the torch stack around it, or "only", the model's one sequence."""
    decoder = model.get_decoder() if is_encoder_decoder(model) else model
    inside = set() if decoder is model else {id(module) for module in decoder.modules()}  # empty: a single stack
    sides = []
    for name, layer, (_, argument) in zip(names, layers, padded):
        if any(level in SEEING for level in name.split(".")):
            sides.append("image")
        elif inside:
            sides.append("decoder" if id(layer) in inside else "encoder")
        else:
            sides.append(argument or "only")
    return sides


def _tokens_first(layer: Any) -> bool:
    """Whether this is a torch module with batch_first=False, torch's default: without a mask, no shape reveals that."""
    if isinstance(layer, nn.TransformerEncoder | nn.TransformerDecoder):
        layer = layer.layers[0]
    if isinstance(layer, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
        layer = layer.self_attn
    return isinstance(layer, nn.MultiheadAttention | nn.RNNBase) and not layer.batch_first


def _matches(name: str, pattern: str) -> bool:
    levels, wanted = name.split("."), pattern.split(".")
    return len(levels) == len(wanted) and all(map(fnmatch.fnmatchcase, levels, wanted))


def came(value: Any) -> str:
    """A wrong argument in a few words, for an error message; the repr of a module would fill a page."""
    each = value if isinstance(value, (list, tuple)) else [value]
    if all(isinstance(one, (int, float, str)) for one in each):
        return repr(value)
    kinds = ", ".join(dict.fromkeys(type(one).__name__ for one in each))
    return kinds if each is not value else f"a list of {kinds}"
