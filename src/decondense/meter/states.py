"""Reading hidden states while the model runs, each dropped as soon as it has been looked at.

State 0 is what enters the first block (the embedding layer's output), state l is what block l puts out, and state
L is, as transformers returns it, what comes *after the final norm*. One more state, number L + 1, is the output
of block L *before* that norm. In a model without a final norm (BERT) the two are the same tensor.

Forward hooks on the blocks read the states; asking the model for ``output_hidden_states`` would keep all of them
alive at once. The hooks are checked against ``output_hidden_states`` on a few tokens before they are trusted; a
model they do not fit is read through its outputs instead, and there the state before the norm is not known.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

__all__ = ["StateReader"]

Visit = Callable[[int, torch.Tensor], None]
STACKS = ("decoder", "encoder")


class StateReader:
    """``states`` is L + 2; ``read(ids, visit)`` calls ``visit(number, tensor)`` once for each, in any order."""

    def __init__(self, model: Any, *, stack: str = "decoder") -> None:
        if stack not in STACKS:
            raise ValueError(f"stack must be one of {', '.join(STACKS)}, got {stack!r}.")
        if not hasattr(model, "config"):
            raise TypeError(
                f"a model must be a transformers model, got {type(model).__name__}: wrap it or load it by name."
            )
        self.model = getattr(model, "base_model", model)
        self.pair = bool(getattr(model.config, "is_encoder_decoder", False))
        self.stack = stack if self.pair else "only"
        if self.pair and stack == "encoder":
            self.model = self.model.get_encoder()
        self.blocks = self._find_blocks()
        probe = torch.arange(6).view(1, 6) % min(6, self._vocabulary()) + 1
        returned = self._returned(probe)
        self.hooked = self._hooks_agree(probe, returned)
        self.layers = len(returned) - 1
        self.states = self.layers + 2
        self.width = int(returned[0].shape[-1])
        self.final_norm: bool | None = None
        if self.hooked:
            last: dict[int, torch.Tensor] = {}
            self._read_hooked(probe, lambda number, z: last.__setitem__(number, z.clone()))
            self.final_norm = not torch.equal(last[self.layers], last[self.layers + 1])

    def read(self, ids: torch.Tensor, visit: Visit) -> None:
        """ids (batch, tokens)."""
        with torch.inference_mode():
            if self.hooked:
                self._read_hooked(ids, visit)
            else:
                for number, z in enumerate(self._returned(ids)):
                    visit(number, z)

    # -- inside ----------------------------------------------------------------------------------------------

    def _vocabulary(self) -> int:
        return int(self.model.get_input_embeddings().weight.shape[0])

    def _inputs(self, ids: torch.Tensor) -> dict[str, Any]:
        ids = ids.to(self.model.get_input_embeddings().weight.device)
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
        name = "decoder_hidden_states" if self.stack == "decoder" else "hidden_states"
        found = getattr(out, name, None)
        if not found:
            raise ValueError(
                f"a model must return hidden states, {type(self.model).__name__} does not: it cannot be measured."
            )
        return tuple(found)

    def _find_blocks(self) -> nn.ModuleList | None:
        """The shallowest list of modules that is as long as the stack is deep."""
        root = self.model.get_decoder() if self.stack == "decoder" else self.model
        config = self.model.config
        names = ("num_hidden_layers", "n_layer", "num_layers", "num_decoder_layers", "decoder_layers", "encoder_layers")
        depths = {getattr(config, name, None) for name in names} - {None}
        lists = [
            (n.count("."), m) for n, m in root.named_modules() if isinstance(m, nn.ModuleList) and len(m) in depths
        ]
        return min(lists, key=lambda pair: pair[0])[1] if lists else None

    def _hooks_agree(self, probe: torch.Tensor, returned: tuple[torch.Tensor, ...]) -> bool:
        if self.blocks is None or len(self.blocks) != len(returned) - 1:
            return False
        seen: dict[int, torch.Tensor] = {}
        try:
            self._read_hooked(probe, lambda number, z: seen.__setitem__(number, z.clone()))
        except (TypeError, AttributeError, IndexError):
            return False
        return all(i in seen and torch.equal(seen[i], z) for i, z in enumerate(returned))

    def _read_hooked(self, ids: torch.Tensor, visit: Visit) -> None:
        assert self.blocks is not None
        layers = len(self.blocks)

        def entering(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            visit(0, args[0] if args else kwargs["hidden_states"])

        def leaving(number: int) -> Callable[..., None]:
            def hook(_module: nn.Module, _args: Any, output: Any) -> None:
                visit(number, output[0] if isinstance(output, (tuple, list)) else output)

            return hook

        handles: list[Any] = [self.blocks[0].register_forward_pre_hook(entering, with_kwargs=True)]
        for number, block in enumerate(self.blocks, start=1):
            handles.append(block.register_forward_hook(leaving(number if number < layers else layers + 1)))
        try:
            with torch.inference_mode():
                out = self.model(**self._inputs(ids), return_dict=True)
        finally:
            for handle in handles:
                handle.remove()
        visit(layers, out.last_hidden_state)
