"""`get`: a loss by name and preset, as a module that stores nothing but keywords."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..checks import check_choice
from .options import BACKENDS, check_objects
from .registry import registered

# The keywords of each preset are in the registration of each loss.
PRESETS = {
    "paper": "the formulas of Liu et al. 2026: Algorithm 1 with its hard clamp, the feature-axis covariance, bare sums "
    "where the paper writes sums, no diagonal. Its ε is not stated; 0.01 is the released code's",
    "released": "what the paper's released code computes, to the last digit",
    "disperse": "the ancestors, Wang & He 2025: D = −cosine or squared distance, diagonal counted, no norm term",
}


class Loss(nn.Module):
    """A loss function with its keywords: `loss(z, mask)`. No parameters, no state."""

    def __init__(self, name: str, **keywords: Any) -> None:
        super().__init__()
        self.name, self.keywords = name, keywords
        self.function = registered()[name].function

    def forward(self, z: Tensor, mask: Tensor | None = None, **keywords: Any) -> Tensor:
        return self.function(z, mask, **{**self.keywords, **keywords})

    def over_layers(
        self, states: Sequence[Tensor], mask: Tensor | list[Tensor | None] | None
    ) -> tuple[Tensor, Tensor | None]:
        """The values (layers, batch) of several layers, and their mean cosines where they come for free.

        mask   one for all layers, or a list with one for each.

        Sequences of a single token have no pair and the value 0.
        """
        if states[0].shape[1] < 2 and self.keywords.get("process_group") is None:
            return torch.zeros(len(states), states[0].shape[0], device=states[0].device), None
        each = mask if isinstance(mask, list) else [mask] * len(states)
        masks = [None if mask is None else mask.to(z.device) for z, mask in zip(states, each)]
        return registered()[self.name].over_layers(states, masks, **self.keywords)

    def beside(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """z (batch, tokens, width) for whatever else reads it in the same graph, then the loss values (1, batch) and
        the mean cosines where they come for free."""
        return registered()[self.name].beside(z, **self.keywords)

    def check(self) -> None:
        """Refuse a keyword with an impossible value now, not in the first step of a training run."""
        entry = registered()[self.name]
        safe: dict[str, Any] = {"backend": "torch", "process_group": None, "generator": torch.Generator()}
        target = self.keywords.get("target")
        width = len(target) if isinstance(target, Tensor) else 8
        z = torch.linspace(-1, 1, 4 * width, dtype=torch.float32, device="cpu").view(1, 4, width)
        if isinstance(target, Tensor):
            safe["target"] = target.to(z)
        check_choice("backend", self.keywords.get("backend", "auto"), BACKENDS)
        check_objects(**self.keywords)
        with torch.no_grad():
            self(z, **{key: value for key, value in safe.items() if key in entry.options})

    def extra_repr(self) -> str:
        return ", ".join([repr(self.name), *(f"{key}={value!r}" for key, value in self.keywords.items())])


def get(name: str, *, preset: str | None = None, **keywords: Any) -> Loss:
    """The loss `name` with the keywords of a preset, each of which can be overridden; without a preset, our defaults.

    `get("dispersion", preset="released", tau=1.0, clamp=0.1)` is what the paper's GPT2 runs trained with. The
    released code is one class with one set of arguments, so with that preset every loss accepts `tau` and `clamp`,
    even if it does not use them.
    """
    entries = registered()
    name = {alias: key for key, entry in entries.items() for alias in entry.aliases}.get(name, name)
    check_choice("loss", name, tuple(entries))
    entry, settings = entries[name], dict[str, Any]()
    if preset is not None:
        check_choice("preset", preset, tuple(PRESETS))
        if preset not in entry.presets:
            having = ", ".join(key for key, other in entries.items() if preset in other.presets)
            others = [f"preset={p!r}" for p in entry.presets]
            raise ValueError(
                f"preset={preset!r} exists for {having}, got {name!r}, which that source does not have: "
                f"use {' or '.join([*others, 'no preset'])}."
            )
        settings.update(entry.presets[preset])
    for key, value in keywords.items():
        if key in ("tau", "clamp") and key not in entry.options and preset == "released":
            continue
        check_choice(f"option of {name}", key, entry.options)
        settings[key] = value
    loss = Loss(name, **settings)
    if keywords:
        loss.check()
    return loss
