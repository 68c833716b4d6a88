"""Reading hidden states while the model runs, each dropped as soon as it has been looked at.

State 0 is what enters the first block (the embedding layer's output), state l is what block l puts out, and state
L is, as transformers returns it, what comes *after the final norm*. One more state, number L + 1, is the output
of block L *before* that norm. In a model without a final norm (BERT) the two are the same tensor.

Forward hooks on the blocks read the states; asking the model for ``output_hidden_states`` would keep all of them
alive at once. The hooks are checked against ``output_hidden_states`` on a few tokens before they are trusted; a
model they do not fit is read through its outputs instead, and there the state before the norm is not known.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..stack import repeated_blocks

__all__ = ["StateReader"]

Visit = Callable[[int, torch.Tensor], None]
STACKS = ("decoder", "encoder")


class StateReader:
    """``states`` is L + 2; ``read(ids, visit)`` calls ``visit(number, tensor)`` once for each, in any order."""

    def __init__(self, model: Any, *, stack: str = "decoder") -> None:
        if stack not in STACKS:
            raise ValueError(f"stack must be one of {', '.join(STACKS)}, got {stack!r}.")
        self.embedding = token_embedding(model)
        self.model = getattr(model, "base_model", model)
        pair = bool(getattr(model.config, "is_encoder_decoder", False))
        self.stack = stack if pair else "only"
        if pair and stack == "encoder":
            self.model = self.model.get_encoder()
        self.blocks = repeated_blocks(self.model.get_decoder() if self.stack == "decoder" else self.model)
        probe = torch.arange(6).view(1, 6) % min(6, len(self.embedding.weight)) + 1
        returned = self._returned(probe)
        self.layers = len(returned) - 1
        self.states = self.layers + 2
        self.width = int(returned[0].shape[-1])
        read: dict[int, torch.Tensor] = {}  # what the hooks read; nothing where they do not fit the blocks
        if len(self.blocks) == self.layers:
            with contextlib.suppress(TypeError, AttributeError, IndexError, KeyError):
                self._read_hooked(probe, lambda number, z: read.__setitem__(number, z.clone()))
        self.hooked = all(i in read and torch.equal(read[i], z) for i, z in enumerate(returned))
        self.final_norm = not torch.equal(read[self.layers], read[self.layers + 1]) if self.hooked else None

    def read(self, ids: torch.Tensor, visit: Visit) -> None:
        """ids (batch, tokens)."""
        with torch.inference_mode():
            if self.hooked:
                self._read_hooked(ids, visit)
            else:
                for number, z in enumerate(self._returned(ids)):
                    visit(number, z)

    def _inputs(self, ids: torch.Tensor) -> dict[str, Any]:
        ids = ids.to(self.embedding.weight.device)
        inputs: dict[str, Any] = {"input_ids": ids}
        if "use_cache" in inspect.signature(self.model.forward).parameters:
            inputs["use_cache"] = False
        if self.stack == "decoder":
            # Teacher forcing on the same passage: the decoder sees the window shifted right by one.
            config = self.model.config
            starts = (getattr(config, name, None) for name in ("decoder_start_token_id", "pad_token_id"))
            first = torch.full_like(ids[:, :1], next((s for s in starts if s is not None), 0))
            inputs["decoder_input_ids"] = torch.cat([first, ids[:, :-1]], 1)
        return inputs

    def _returned(self, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.inference_mode():
            out = self.model(**self._inputs(ids), output_hidden_states=True, return_dict=True)
        states = getattr(out, "decoder_hidden_states" if self.stack == "decoder" else "hidden_states", None)
        if not states:
            raise ValueError(
                f"a model must return hidden states, {type(self.model).__name__} does not: it cannot be measured."
            )
        return tuple(states)

    def _read_hooked(self, ids: torch.Tensor, visit: Visit) -> None:
        layers = len(self.blocks)

        def entering(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            visit(0, args[0] if args else kwargs["hidden_states"])

        def leaving(number: int, _module: nn.Module, _args: Any, output: Any) -> None:
            visit(number, output[0] if isinstance(output, (tuple, list)) else output)

        with contextlib.ExitStack() as hooks, torch.inference_mode():
            hooks.enter_context(self.blocks[0].register_forward_pre_hook(entering, with_kwargs=True))
            for number, block in zip((*range(1, layers), layers + 1), self.blocks):
                hooks.enter_context(block.register_forward_hook(functools.partial(leaving, number)))
            out = self.model(**self._inputs(ids), return_dict=True)
        visit(layers, out.last_hidden_state)


def token_embedding(model: Any) -> Any:
    """The table of token vectors, which only a transformers model that reads token ids has."""
    if not hasattr(model, "config") or not hasattr(model, "get_input_embeddings"):
        reason = "is no transformers model"
    else:
        with contextlib.suppress(NotImplementedError):
            embedding = model.get_input_embeddings()
            if getattr(embedding, "weight", None) is not None and embedding.weight.ndim == 2:
                return embedding
        reason = "does not read token ids"
    raise TypeError(
        f"measure needs a transformers model that reads token ids; {type(model).__name__} {reason}: collect its hidden "
        "states z (windows, tokens, width) and give each to decondense.meter.statistics.window_statistics(z)."
    )
