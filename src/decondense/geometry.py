"""Unit vectors, cosines, angles and masks: the few pieces of geometry that every loss is made of.

Notation, the same everywhere in the package: z is (batch, tokens, width); a mask is (batch, tokens), true
where a token counts; n is the number of tokens of a sequence that count. One sequence is one cloud of points,
pairs are formed inside it and never across the batch.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor

NO_NUMBER = (str, bool, list, tuple, dict, type(None))  # listed, since torch.compile cannot trace a test of abilities


def check_states(z: Tensor, mask: Tensor | None) -> Tensor | None:
    """Refuse what no loss can work on, and return the mask as booleans.

    Shapes and types only, so nothing here waits for a GPU.
    """
    if not isinstance(z, Tensor):
        raise TypeError(f"z must be a tensor (batch, tokens, width), got {type(z).__name__}: pass hidden states.")
    shape, wrong = tuple(z.shape), ""
    if z.ndim != 3:
        wrong = f", got {shape}: reshape to three dimensions"
    elif shape[0] < 1:
        wrong = f" with at least 1 sequence, got {shape}: skip empty batches"
    elif shape[1] < 2:
        wrong = f" with at least 2 tokens, got {shape}: drop single-token sequences"
    elif shape[2] < 1:
        wrong = f" with a width of at least 1, got {shape}: pass states that have a width"
    if wrong:
        raise ValueError(f"z must be (batch, tokens, width){wrong}.")
    if not z.is_floating_point():
        raise TypeError(f"z must be a floating-point tensor, got {z.dtype}: pass hidden states, not token ids.")
    if mask is None:
        return None
    if not isinstance(mask, Tensor) or mask.shape != z.shape[:2]:
        raise ValueError(
            f"mask must be (batch, tokens) = {tuple(z.shape[:2])}, got {shape_or_type(mask)}: "
            "pass the two-dimensional attention mask, true where a token counts."
        )
    if mask.device != z.device:
        raise ValueError(f"mask must be on the device of z ({z.device}), got {mask.device}: move it there.")
    return counting(mask)


def shape_or_type(value: object) -> str:
    """What came, for an error message: the shape of a tensor, like (2, 3), else the name of the type."""
    return str(tuple(value.shape)) if isinstance(value, Tensor) else type(value).__name__


def counting(mask: Tensor) -> Tensor:
    """The mask as booleans, true where a token counts. Floats must be 1 or 0: a mask added to attention's logits has 0
    for a token, the opposite. On a GPU, where a check would have to wait, such a mask keeps no token.
    """
    if not mask.is_floating_point():
        return mask.bool()
    if mask.device.type == "cpu" and not torch.compiler.is_compiling():
        strange = mask[(mask != 0) & (mask != 1)]
        if len(strange):
            raise ValueError(
                f"a mask of floats must be 1 where a token counts and 0 at padding, got {strange[0]:g}: pass mask >= 0 "
                "for one that is added to attention's logits."
            )
    return mask > 0


def check_positive(name: str, value: float) -> None:
    if isinstance(value, NO_NUMBER) or not 0 < value <= sys.float_info.max:
        raise ValueError(f"{name} must be a positive number, got {value!r}: leave it out for the recommended one.")


def check_eps(eps: float) -> None:
    if isinstance(eps, NO_NUMBER) or not 0 <= eps <= sys.float_info.max:
        raise ValueError(f"eps must be a number of at least 0, got {eps!r}: leave it out for the recommended one.")


def check_finite(**values: float) -> None:
    for name, value in values.items():
        if isinstance(value, NO_NUMBER) or not abs(value) <= sys.float_info.max:
            raise ValueError(f"{name} must be a finite number, got {value!r}: leave it out for the recommended one.")


def check_clamp(clamp: float) -> None:
    if isinstance(clamp, NO_NUMBER) or not 0 <= clamp < 1:
        raise ValueError(
            f"clamp must lie in [0, 1), got {clamp!r}: cosines are limited to ±(1 − clamp), the paper's runs use 0.1."
        )


def keep(z: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor]:
    """z with zeros where the mask is false, the mask as numbers, and n (batch,): float64 for float64 z, else float32.

    Selection instead of multiplication: a NaN at a position that does not count is gone, not 0 · NaN.
    """
    z = z if z.dtype == torch.float64 else z.float()
    if mask is None:
        return z, None, torch.full((z.shape[0],), float(z.shape[1]), dtype=z.dtype, device=z.device)
    mask = mask.bool()
    weight = mask.to(z.dtype)
    return torch.where(mask.unsqueeze(-1), z, 0), weight, weight.sum(1)


def norms(z: Tensor) -> Tensor:
    """‖z_i‖ (…, tokens, 1), also for float32 entries whose squares overflow or vanish (beyond 1e19, below 1e-19).

    Otherwise a vector whose squares overflow would have an infinite norm, and count as zero without any error.
    """
    if z.dtype == torch.float64 or z.device.type == "mps":  # MPS has no float64
        return torch.linalg.vector_norm(z, dim=-1, keepdim=True)
    if z.device.type == "cpu" and not torch.compiler.is_compiling():  # no branch on a value in a compiled graph
        plain = torch.linalg.vector_norm(z, dim=-1, keepdim=True)
        # float64 is half as fast here; checking the values is cheap on a CPU, on a GPU it would wait
        if bool(((plain > 1e-15) & (plain < 1e18)).all()):
            return plain
    return torch.linalg.vector_norm(z, dim=-1, keepdim=True, dtype=torch.float64).to(z.dtype)


def inverse(x: Tensor) -> Tensor:
    """1/x, and 0 where x is 0: a vector of length zero has no direction, and no gradient through one."""
    return torch.where(x == 0, 0, 1 / x)


def unit(z: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """u = z/(‖z‖ + ε) and r = ‖z‖ (batch, tokens, 1). Zero vectors stay zero."""
    r = norms(z)
    return z * inverse(r + eps), r


def unit_gradient(u: Tensor, r: Tensor, gradient: Tensor, eps: float) -> Tensor:
    """Pull a gradient with respect to u back to z, with z/r = u (r + ε)/r:

    dz = (g − u (g·z)/r) / (r + ε)
    """
    along = (gradient * u).sum(-1, keepdim=True) * ((r + eps) * inverse(r))
    return (gradient - u * along) * inverse(r + eps)


def pair_count(n: Tensor, *, diagonal: bool = False) -> Tensor:
    """Ordered pairs of n tokens: n(n − 1), or n² with the diagonal. (batch,)"""
    return n * n if diagonal else n * (n - 1)


def enough(n: Tensor, value: Tensor) -> Tensor:
    """`value` where a sequence has at least two tokens that count, else 0: there is no pair to compare."""
    return torch.where(n >= 2, value, 0)


def over_enough(n: Tensor, dtype: torch.dtype) -> Tensor:
    """The factor from the mean over all sequences, where those without a pair have the value 0, to the mean over those
    with one. n is (…, batch). Exactly 1 where all have a pair, so that not even the last bit changes then."""
    having, batch = (n >= 2).sum(-1), n.shape[-1]
    return torch.where(having == batch, 1, batch / having.clamp_min(1).to(dtype))


def limited(c: Tensor, clamp: float, *, hard: bool) -> Tensor:
    """Cosines limited to ±(1 − clamp). Where that changes them, straight-through passes the gradient on, hard does not.

    The limit stays one rounding step away from ±1, where the slope of the arccosine is infinite.
    """
    bound = 1 - max(clamp, torch.finfo(c.dtype).eps)
    inside = c.clamp(-bound, bound)
    return inside if hard else inside.detach() + (c - c.detach())


def arc(c: Tensor, clamp: float, *, hard: bool) -> tuple[Tensor, Tensor]:
    """θ = arccos(c) and −dθ/dc = 1/√(1 − c²) of a tile of cosines, limited as in `limited`; overwrites the tile.

    Where the limit bites, the angle saturates; straight-through, the slope is the one at the boundary, hard it is 0.
    """
    flat = c.abs() > 1 - clamp if hard else None
    bound = 1 - max(clamp, torch.finfo(c.dtype).eps)
    c = c.clamp_(-bound, bound)
    angle = torch.arccos(c)
    slope = c.square_().neg_().add_(1).rsqrt_()
    return angle, slope if flat is None else slope.masked_fill_(flat, 0)


def centred(z: Tensor, weight: Tensor | None, n: Tensor) -> Tensor:
    """z minus the mean over its tokens that count: the same distances, with less cancellation in computing them."""
    mean = z.sum(1, keepdim=True) / n.clamp_min(1)[:, None, None]
    z = z - mean
    return z if weight is None else z * weight.unsqueeze(-1)


def squared_distances(left: Tensor, right: Tensor) -> Tensor:
    """‖l_i − r_j‖² (batch, rows, columns), from one matrix product: ‖l‖² + ‖r‖² − 2 l·r, never negative."""
    squares = left.square().sum(-1)[..., None] + right.square().sum(-1)[..., None, :]
    return torch.baddbmm(squares, left, right.mT, alpha=-2).clamp_min_(0)
