"""The arguments that a model is called with: batches of any kind turned into them, masks found among them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .geometry import shape_or_type
from .insides.transformers import is_encoder_decoder
from .words import warn

TARGETS = ("labels", "return_loss")  # dropped, since a measurement needs no loss
PADDING = ("src_key_padding_mask", "key_padding_mask")  # names in torch's own modules; true where there is padding
MARKS = {"pad", "padding", "valid"}  # words in names of what may be a mask of tokens, beside "mask" itself
MASKS = ("mask", *sorted(MARKS))  # ends of the names of masks of whole numbers: pad_ids are tokens


@dataclass
class Named:
    """Batches with their name and their source, for the record of a measurement."""

    batches: Iterable[Any]
    name: str
    source: str

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)


def main_input(model: nn.Module) -> str:
    """The argument that takes a bare tensor: `main_input_name` (input_ids, pixel_values, …), else the first one."""
    named = getattr(model, "main_input_name", None)
    return named if isinstance(named, str) else next(iter(inspect.signature(model.forward).parameters), "input")


def called_with(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name, whether they were given by keyword or by position."""
    if not args:  # torch.compile takes longer for a signature than for a block
        return dict(kwargs)
    return {**dict(zip(inspect.signature(function).parameters, args)), **kwargs}


def unpacked(given: dict[str, Any]) -> dict[str, Any]:
    """The arguments, together with the contents of any mapping among them (a whole batch given as one argument)."""
    inside = [value for value in given.values() if isinstance(value, Mapping)]
    return {name: value for one in [*inside, given] for name, value in one.items() if isinstance(name, str)}


def token_mask(given: dict[str, Any], side: str = "", shape: torch.Size | None = None) -> Tensor | None:
    """The mask (batch, tokens) of a call, true or 1 for tokens and not for padding; None if the arguments have none.
    `side` is "decoder_" for the decoder of an encoder–decoder. A torch padding mask must have `shape`, the states'."""
    mask, name = given.get(f"{side}attention_mask"), _padding(given)
    if isinstance(mask, dict):
        mask = _of_tokens(mask, f"{side}attention_mask")
    if mask is None and not side and given.get("input_ids") is None and given.get("inputs_embeds") is None:
        mask = patch_mask(given)
    if mask is not None or name is None:
        return mask
    return tokens_of(given[name], name, shape)


def patch_mask(given: dict[str, Any]) -> Tensor | None:
    """Return SigLIP 2's mask, (images, patches), of the patches that are no padding. The masks that other models call
    by this name are of pixels, and have more dimensions."""
    mask = given.get("pixel_attention_mask")
    return mask if isinstance(mask, Tensor) and mask.ndim == 2 else None


def _of_tokens(masks: dict[str, Any], name: str) -> Tensor | None:
    """The two-dimensional mask in a mapping of one mask per kind of attention, which some transformers models take."""
    present = {kind: mask for kind, mask in masks.items() if mask is not None}
    of_tokens = next((mask for mask in present.values() if isinstance(mask, Tensor) and mask.ndim == 2), None)
    if of_tokens is None and present:
        got = ", ".join(f"{kind} {shape_or_type(mask)}" for kind, mask in present.items())
        raise ValueError(
            f"{name} must be (batch, tokens) to tell padding from tokens, got a mapping of {got}: pass the "
            "two-dimensional mask, from which the model makes these."
        )
    return of_tokens


def tokens_of(padding: Any, name: str, shape: torch.Size | None = None) -> Tensor:
    """The tokens that are no padding, true, from a padding mask that a torch module takes in the argument `name`."""
    if not isinstance(padding, Tensor) or (shape is not None and padding.shape != shape):
        wanted = "" if shape is None else f" = {tuple(shape)}"
        raise ValueError(
            f"{name} must be a tensor (batch, tokens){wanted}, got {shape_or_type(padding)}: give it for every token; "
            "states must be (batch, tokens, width): batch_first=True."
        )
    return padding >= 0 if padding.is_floating_point() else ~padding.bool()  # a float is added to attention's logits


def _padding(given: dict[str, Any]) -> str | None:
    """The argument that is torch's padding mask, but not a source's in a call with a target, which layers may read."""
    two = any(name.startswith("tgt") and value is not None for name, value in given.items())
    return next((name for name in PADDING[two:] if given.get(name) is not None), None)


def unread_mask(given: dict[str, Any], shape: torch.Size) -> str | None:
    """The name of an argument that may be a mask of tokens, if `token_mask` finds none of those that it reads."""
    if any(given.get(f"{side}attention_mask") is not None for side in ("", "decoder_")) or _padding(given) is not None:
        return None
    for name, value in given.items():
        if not isinstance(value, Tensor) or ("mask" not in name and MARKS.isdisjoint(name.split("_"))):
            continue
        if not value.is_floating_point() and value.dtype != torch.bool and not name.endswith(MASKS):
            continue
        # A float mask, which attention adds, or a square one is probably for pairs of tokens, unless named for padding.
        pairs = value.is_floating_point() or shape[0] == shape[1]
        if value.shape == shape and ("mask" not in name or "pad" in name or not pairs):
            return name
    return None


def tell_unread(batch: dict[str, Any], name: str) -> None:
    """Warn of a mask of tokens in a batch of a transformers model that `token_mask` does not read; the model might pass
    over it too, as many take any keyword. `name` is the argument with the tokens."""
    tokens = next((batch[key] for key in (name, "inputs_embeds") if isinstance(batch.get(key), Tensor)), None)
    masks = (key for key, value in batch.items() if "mask" in key and _may_mask(tokens, value))
    unread = next((key for key in masks if not key.endswith("attention_mask")), None)
    if unread is not None and token_mask(batch) is None:
        warn(
            f"padding is read from attention_mask (1: a token), got {unread}, which is not read, so that every token "
            "counts: if it marks padding, call it attention_mask in the batch."
        )


def stating(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], name: str, value: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call with `value` for the parameter `name`, by position if it was given by position."""
    names = list(inspect.signature(function).parameters)[: len(args)] if args else []
    if name not in names:
        return args, {**kwargs, name: value}
    return tuple(value if own == name else arg for own, arg in zip(names, args)), kwargs


def batches_of(inputs: Any, name: str) -> Iterator[dict[str, Any]]:
    """Yield batches as keyword arguments of the model. `inputs` is a tensor, for the argument `name`; a mapping; or any
    iterable of these, such as a DataLoader. Of a batch that is a pair (inputs, targets) the first is taken. What may be
    a mask, or a list of batches that may be one batch, is refused."""
    several = any(hasattr(inputs, way) for way in ("__iter__", "__getitem__"))
    if isinstance(inputs, Tensor) or hasattr(inputs, "keys") or not several:
        inputs = [inputs]
    if isinstance(inputs, (tuple, list)) and _may_be_one(inputs):
        doubt = "which may be one batch with its targets or its mask"
        raise _unnamed("inputs must be one batch or several that are alike", inputs, doubt, name)
    for batch in inputs:
        first = batch[0] if isinstance(batch, (tuple, list)) and batch else batch
        if first is not batch and any(_may_mask(first, other) for other in batch[1:]):
            doubt = "of which one may be a mask"
            raise _unnamed("a batch must be inputs, a pair of inputs and targets, or a mapping", batch, doubt, name)
        if isinstance(first, Tensor):
            yield {name: first}
        elif hasattr(first, "keys"):
            yield {key: first[key] for key in first.keys()}  # noqa: SIM118 (a BatchEncoding)
        else:
            raise TypeError(
                "inputs must be a tensor of token ids or pixel values, a mapping of the model's arguments, or batches "
                f"of them, got {type(first).__name__}."
            )


def _may_be_one(batches: Sequence[Any]) -> bool:
    """Whether a list looks like one batch with its targets or its mask and not like several batches. Among several some
    may have the same tokens as the first; of targets every other one does."""
    if any(_goes_with(batches[0], other) for other in batches[1:]):
        return True
    return len(batches) > 1 and all(_same_or_next(batches[0], other) for other in batches[1:])


def _goes_with(first: Any, other: Any) -> bool:
    """Whether `other`, after `first` in a list, can be no other batch, or may be the mask of `first`."""
    if not isinstance(other, Tensor) or not isinstance(first, Tensor):
        return isinstance(other, Tensor) and hasattr(first, "keys")
    if other.shape[:1] != first.shape[:1]:
        return False
    if other.ndim != first.ndim or other.is_floating_point() != first.is_floating_point():
        return True
    return first.ndim == 2 and _may_mask(first, other) and not _zeros_and_ones(first)


def _same_or_next(first: Any, other: Any) -> bool:
    """Whether `other` has the tokens of `first`, or the next ones, as targets do."""
    if not isinstance(other, Tensor) or not isinstance(first, Tensor) or first.ndim != 2 or other.shape != first.shape:
        return False
    other = other.to(first.device)
    return bool((first == other).all()) or (first.shape[1] > 1 and bool((first[:, 1:] == other[:, :-1]).all()))


def _may_mask(first: Any, other: Any) -> bool:
    """Whether `other` may be a mask of the tokens of `first`, (batch, tokens) or (batch, tokens, width)."""
    if not isinstance(first, Tensor) or not isinstance(other, Tensor) or first.ndim not in (2, 3):
        return False
    return other.shape == first.shape[:2] and _zeros_and_ones(other)


def _zeros_and_ones(value: Tensor) -> bool:
    return bool(((value == 0) | (value == 1)).all())


def _unnamed(contract: str, parts: Sequence[Any], doubt: str, name: str) -> ValueError:
    got = f"{type(parts).__name__} of {', '.join(map(shape_or_type, parts[:3]))}{', …' if len(parts) > 3 else ''}"
    return ValueError(
        f"{contract}, got a {got}, {doubt}: give a mapping of the model's arguments, {{{name!r}: …, "
        "'attention_mask': …}, or the inputs alone."
    )


def arguments(model: Any, batch: dict[str, Any], *, stack: str = "decoder") -> dict[str, Any]:
    """A batch as arguments of the model's body, on its device. Targets are dropped, and the cache is switched off (with
    a cache transformers lets the documents of a packed row attend to each other). The decoder of an encoder–decoder
    also gets what it reads: `decoder_input_ids`, else the labels as the model shifts them or shifted right by one, else
    `input_ids` shifted right by one (teacher forcing)."""
    parameter = next(model.parameters(), None)
    if parameter is None:
        raise ValueError(
            f"{type(model).__name__} must have parameters, to whose device inputs go, got none: give the model that "
            "holds it."
        )
    given = {key: value.to(parameter.device) if isinstance(value, Tensor) else value for key, value in batch.items()}
    labels = given.get("labels")
    labels = labels if isinstance(labels, Tensor) and labels.ndim > 1 else None  # one per sequence are no tokens
    given = {key: value for key, value in given.items() if key not in TARGETS}
    cached = stack != "encoder" and "use_cache" in inspect.signature(model.forward).parameters
    no_cache = {"use_cache": False} if cached else {}
    if not is_encoder_decoder(model):
        return given | no_cache
    if stack == "encoder":
        return {key: value for key, value in given.items() if not key.startswith("decoder_")}
    if "decoder_input_ids" not in given and "decoder_inputs_embeds" not in given:
        passage = given.get("input_ids") if labels is None else labels
        if passage is None:
            raise ValueError(
                f"the decoder of {type(model).__name__} must have something to read, got {', '.join(given)}: add "
                "decoder_input_ids or labels, or measure the encoder with stack='encoder'."
            )
        if labels is not None and hasattr(model, "prepare_decoder_input_ids_from_labels"):
            shifted = model.prepare_decoder_input_ids_from_labels(labels.clone())  # FSMT's writes into what it is given
        else:
            starts = (getattr(model.config, name, None) for name in ("decoder_start_token_id", "pad_token_id"))
            first = torch.full_like(passage[:, :1], next((s for s in starts if s is not None), 0))
            shifted = torch.cat([first, passage[:, :-1]], 1)
        given["decoder_input_ids"] = shifted.clamp_min(0)  # a label of −100 is no token
        if labels is None and "decoder_attention_mask" not in given and "attention_mask" in given:
            given["decoder_attention_mask"] = given["attention_mask"]
    return given | no_cache


def labelled(labels: Any, read: Tensor) -> Tensor | None:
    """Where the tokens that a decoder reads, (batch, tokens, …), have a label: targets are padded with −100, and where
    there is no label there is no token. None where labels, such as boxes in an image, are not one for each token."""
    if not isinstance(labels, Tensor) or labels.shape != read.shape[:2]:
        return None
    return labels.to(read.device).ne(-100)
