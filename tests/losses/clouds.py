"""Clouds of points that several tests need, and the gradient of a loss with respect to one."""

from __future__ import annotations

import torch


def cloud(shape: tuple[int, ...], cone: float = 0.7, seed: int = 0) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(shape, generator=g, dtype=torch.float64)
    return z + cone * torch.randn(shape[0], 1, shape[2], generator=g, dtype=torch.float64)


def gradient(value: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(value, z, allow_unused=True, materialize_grads=True)[0]
