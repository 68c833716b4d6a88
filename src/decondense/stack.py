"""Where the blocks of a Transformer are."""

from __future__ import annotations

from torch import nn

__all__ = ["repeated_blocks"]


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """The blocks of the stack: of all lists of modules in the model the one with the most parameters, and of two that
    hold the same ones the outer. The longest would not do: a layer may hold more experts than there are layers."""
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m)]
    return list(max(lists, key=lambda modules: sum(p.numel() for p in modules.parameters()), default=()))
