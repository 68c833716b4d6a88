"""Reading hidden states while the model runs, each dropped as soon as it has been looked at.

State 0 is what enters the first block (the embedding layer's output), state l is what block l puts out, and state
L is, as transformers returns it, what comes *after the final norm*. One more state, number L + 1, is the output
of block L *before* that norm. In a model without a final norm (BERT) the two are the same tensor.

Forward hooks on the blocks read the states; asking the model for ``output_hidden_states`` would keep all of them
alive at once. The hooks are first checked against ``output_hidden_states`` on a few tokens; a model that they do
not fit is read through its outputs instead, and then the state before the norm is not known.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..checks import check_choice
from ..hidden_states import body_of, in_order
from ..inputs import arguments, labelled, token_mask
from ..insides.transformers import is_encoder_decoder
from ..stack import repeated_blocks

Batch = dict[str, Any]
Visit = Callable[[int, torch.Tensor], None]
STACKS = ("decoder", "encoder")


class StateReader:
    """``read(batch, visit)`` calls ``visit(number, tensor)`` once per hidden state, in any order. ``states`` is L + 2;
    without hooks number L + 1 is never visited.

    A batch is token ids (batch, tokens) or a mapping of the model's arguments. The hooks are checked on ``probe``, a
    batch of a few token ids by default.
    """

    def __init__(self, model: Any, *, stack: str = "decoder", probe: Batch | None = None) -> None:
        check_choice("stack", stack, STACKS)
        if stack == "encoder" and not is_encoder_decoder(model):
            raise ValueError(
                f"stack 'encoder' needs an encoder–decoder, but {type(model).__name__} has one stack: leave it out."
            )
        if probe is None:
            vocabulary = len(token_embedding(model).weight)
            probe = {"input_ids": torch.arange(1, 7).view(1, 6) % vocabulary}
        self.whole, self.model = model, body_of(model, probe, stack)
        self.caches = "use_cache" in inspect.signature(self.model.forward).parameters
        self.stack = stack if is_encoder_decoder(model) else "only"
        self.blocks = repeated_blocks(self.model.get_decoder() if self.stack == "decoder" else self.model)
        returned = self._returned(probe)
        self.layers = len(returned) - 1
        self.states = self.layers + 2
        self.width = int(returned[0].shape[-1])
        read: dict[int, torch.Tensor] = {}  # states from the hooks; incomplete where these do not fit the blocks
        if len(self.blocks) == self.layers:
            with contextlib.suppress(TypeError, AttributeError, IndexError, KeyError):
                self._read_hooked(probe, lambda number, z: read.__setitem__(number, z.clone()))
        # Image models return their last state before the norm and, as last_hidden_state, after it.
        last = [read[i] for i in (self.layers, self.layers + 1) if i in read]
        self.hooked = all(i in read and torch.equal(read[i], z) for i, z in enumerate(returned[:-1]))
        self.hooked &= len(last) == 2 and any(torch.equal(z, returned[-1]) for z in last)
        self.final_norm = not torch.equal(read[self.layers], read[self.layers + 1]) if self.hooked else None

    def read(self, batch: Batch | torch.Tensor, visit: Visit) -> None:
        batch = {"input_ids": batch} if isinstance(batch, torch.Tensor) else batch
        with torch.inference_mode():
            if self.hooked:
                self._read_hooked(batch, visit)
            else:
                for number, z in enumerate(self._returned(batch)):
                    visit(number, z)

    def mask(self, batch: Batch) -> torch.Tensor | None:
        """Return (batch, tokens), true where a token is not padding; None where the batch says nothing of padding."""
        inputs, decodes = self._inputs(batch), self.stack == "decoder"
        mask = token_mask(inputs, "decoder_" if decodes else "")
        if mask is not None or not decodes:
            return mask
        read = inputs["decoder_input_ids" if "decoder_input_ids" in inputs else "decoder_inputs_embeds"]
        return labelled(batch.get("labels"), read)

    def _inputs(self, batch: Batch) -> Batch:
        inputs = arguments(self.whole, batch, stack=self.stack)
        if self.caches:
            inputs["use_cache"] = False
        return inputs

    def _returned(self, batch: Batch) -> tuple[torch.Tensor, ...]:
        inputs = self._inputs(batch)
        with torch.inference_mode():
            out = self.model(**inputs, output_hidden_states=True, return_dict=True)
            states = getattr(out, "decoder_hidden_states" if self.stack == "decoder" else "hidden_states", None)
            if not states:
                raise ValueError(
                    f"a model must return hidden states, {type(self.model).__name__} does not: measure it with "
                    "inputs=…, batches of what it reads, and name its layers with modules=[…]."
                )
            return tuple(in_order(self.model, states, inputs))

    def _read_hooked(self, batch: Batch, visit: Visit) -> None:
        layers = len(self.blocks)

        def entering(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            visit(0, args[0] if args else kwargs["hidden_states"])

        def leaving(number: int, _module: nn.Module, _args: Any, output: Any) -> None:
            visit(number, output[0] if isinstance(output, (tuple, list)) else output)

        def ending(_module: nn.Module, _args: Any, output: Any) -> None:
            visit(layers, output[0])

        with contextlib.ExitStack() as hooks, torch.inference_mode():
            hooks.enter_context(self.blocks[0].register_forward_pre_hook(entering, with_kwargs=True))
            for number, block in zip((*range(1, layers), layers + 1), self.blocks):
                hooks.enter_context(block.register_forward_hook(functools.partial(leaving, number)))
            if self.stack == "decoder":  # the whole model may return logits instead of states
                hooks.enter_context(self.model.get_decoder().register_forward_hook(ending))
                self.model(**self._inputs(batch), return_dict=True)
            else:
                visit(layers, self.model(**self._inputs(batch), return_dict=True).last_hidden_state)


def token_embedding(model: Any) -> Any:
    """Return the model's token embedding; TypeError unless it is a transformers model that reads token ids."""
    if not hasattr(model, "config") or not hasattr(model, "get_input_embeddings"):
        reason = "is no transformers model"
    else:
        with contextlib.suppress(NotImplementedError):
            embedding = model.get_input_embeddings()
            if getattr(embedding, "weight", None) is not None and embedding.weight.ndim == 2:
                return embedding
        reason = "does not read token ids"
    raise TypeError(
        f"a text needs a transformers model that reads token ids; {type(model).__name__} {reason}: measure it with "
        "inputs=…, batches of what it reads, and if it is no transformers model name its layers with modules=[…]."
    )
