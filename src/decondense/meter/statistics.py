"""The statistics of one hidden state of one window.

z is (tokens, width), N tokens; u_i = z_i / ‖z_i‖ (a zero vector stays zero and has cosine 0 with everything);
c_ij = u_i·u_j. Pairs are unordered, i < j, so the diagonal never counts unless a name ends in ``_all``.

=============================  =================================================================================
mean_cosine                    mean of c_ij over pairs = (‖Σu‖² − Σ‖u_i‖²) / (N(N−1)); no matrix is needed
mean_cosine_all                mean of c_ij over all N² (i, j), the diagonal of ones counted = ‖(1/N) Σu‖²
cosine_variance                variance of c_ij over pairs, from deviations: the mean of c_ij² minus the square of the
                               mean would be rounding alone where all cosines are close to 1
mean_direction_norm            ‖(1/N) Σu‖
token_norm                     mean of ‖z_i‖
mean_cosine_without_first      mean_cosine of tokens 2 … N, if N > 2 (the first one is often an attention sink)
top3_variance_share            share of the 3 dimensions with the largest variance over tokens in the sum of all
mean_cosine_without_variance3  mean_cosine after deleting those 3 dimensions from z
top3_cosine_share              share of ‖Σu‖² that its 3 largest coordinates carry
mean_cosine_without_cosine3    mean_cosine after deleting those 3 dimensions from z
apart_k                        mean of c_ij over pairs with 2^k ≤ j − i < 2^(k+1), k = 0, 1, …
=============================  =================================================================================
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch

from ..geometry import inverse
from ..losses.options import fused
from ..losses.pairs import full_precision
from .spectrum import SPECTRAL, spectral_statistics

# Pooled counts are kept in bins eight times finer than the 128 that are shown, so that quantiles read from them
# are off by at most 1/512; int16 bin numbers make torch.bincount five times faster than torch.histc.
FINE_BINS = 1024

SCALARS = ("mean_cosine", "mean_cosine_all", "cosine_variance", "mean_direction_norm", "token_norm",
           "mean_cosine_without_first", "top3_variance_share", "mean_cosine_without_variance3",
           "top3_cosine_share", "mean_cosine_without_cosine3")  # fmt: skip


class WindowStatistics(NamedTuple):
    """``scalars`` (windows, columns), float64, in the order of ``columns``; ``counts`` (fine bins), int64, of the pairs
    of all windows together."""

    scalars: torch.Tensor
    counts: torch.Tensor


def distance_buckets(tokens: int) -> list[tuple[int, int]]:
    """Token distances [low, high), by powers of two: [1, 2), [2, 4), [4, 8) … up to N − 1."""
    return [(2**k, min(2 ** (k + 1), tokens)) for k in range((tokens - 1).bit_length())]


def columns(tokens: int, *, spectral: bool = False) -> tuple[str, ...]:
    by_distance = tuple(f"apart_{k}" for k in range(len(distance_buckets(tokens))))
    return SCALARS + by_distance + (SPECTRAL if spectral else ())


def state_statistics(
    z: torch.Tensor, where: str, *, spectral: bool, matrix: torch.Tensor | None = None
) -> WindowStatistics:
    """Return ``window_statistics`` of a state, which must be ``measurable``; ``spectral`` adds the spectral statistics.
    Errors call the state by ``where``."""
    check_peak(where, float(peaks(z[None])), z.dtype)
    # All windows go through each operation together: dozens of small ones per window, or one thread per window,
    # cost a CPU half as much again.
    scalars, counts = window_statistics(z, matrix=matrix)
    if spectral:
        scalars = torch.cat([scalars, spectral_statistics(z)], 1)
    return WindowStatistics(scalars, counts)


def peaks(z: torch.Tensor) -> torch.Tensor:
    """Return the largest absolute entry of each state in z (states, …), in one pass; NaN for a state with a NaN."""
    low, high = z.flatten(1).aminmax(dim=1)
    return torch.maximum(-low, high)


def measurable(peak: float, dtype: torch.dtype) -> bool:
    """Whether a state with this largest entry can be measured: no NaN, no infinity, and no squares, or sums of squares,
    that overflow or vanish, which would give 0 or −1/(N−1) as cosines: plausible and wrong."""
    return peak == 0 or 1 / _limit(dtype) <= peak <= _limit(dtype)


def _limit(dtype: torch.dtype) -> float:
    return torch.finfo(torch.promote_types(dtype, torch.float32)).max ** 0.4


def check_peak(where: str, peak: float, dtype: torch.dtype) -> None:
    if measurable(peak, dtype):
        return
    if not math.isfinite(peak):
        raise not_finite(where, dtype)
    limit = _limit(dtype)
    bound = f"at most {limit:.3g}" if peak > 1 else f"at least {1 / limit:.3g}"
    raise ValueError(
        f"{where} must have a largest entry of {bound} for its squares to be numbers, got {peak:.3g}: look at the "
        "weights, or measure with dtype float64."
    )


def not_finite(where: str, dtype: torch.dtype) -> ValueError:
    remedy = "look for NaN or infinity in the weights, or take another checkpoint"
    if dtype in (torch.float16, torch.bfloat16):
        remedy = f"measure with dtype float32 instead of {str(dtype).removeprefix('torch.')}"
    return ValueError(f"{where} must be finite, but holds NaN or infinity: {remedy}.")


def window_statistics(z: torch.Tensor, *, matrix: torch.Tensor | None = None) -> WindowStatistics:
    """All default statistics of one hidden state ``z`` (windows, tokens, width), computed in float32 (float64 stays).

    Args:
        matrix: (tokens, tokens), optional; c_ij of the pairs i < j is added to its upper triangle. Only the
            ``released`` view asks for it.
    """
    if z.ndim != 3 or z.shape[1] < 2:
        raise ValueError(f"z must be (windows, tokens, width) with at least 2 tokens, got {tuple(z.shape)}.")
    scalars, counts = on_device(z, matrix)
    return WindowStatistics(scalars.cpu(), counts[0].cpu())


def on_device(z: torch.Tensor, matrix: torch.Tensor | None = None, *, states: int = 1) -> WindowStatistics:
    """``window_statistics`` left on the device of z, which holds the windows of one state or of several ``states``, one
    after the other; ``counts`` (states, bins)."""
    with full_precision(z.device):  # measuring under autocast is no reason to round the cosines
        return _on_device(z, matrix, states)


def _on_device(z: torch.Tensor, matrix: torch.Tensor | None, states: int) -> WindowStatistics:
    if z.dtype not in (torch.float32, torch.float64):
        z = z.float()
    n = z.shape[1]
    squared = z * z
    norms = squared.sum(2).sqrt()
    inverses = inverse(norms)
    u = z * inverses[..., None]
    total = _sum_tokens(u)
    squares = (norms > 0).sum(1)  # Σ‖u_i‖², free of rounding
    by_dimension = total.double().square()
    length2 = by_dimension.sum(1)
    rest = total - u[:, 0]
    without_first = (rest.double().square().sum(1) - squares + (norms[:, 0] > 0)) / ((n - 1) * (n - 2) or math.nan)

    variance = _sum_tokens((z - _sum_tokens(z)[:, None] / n).square_())
    k = min(3, z.shape[2])
    by_variance = torch.topk(variance, k)
    by_cosine = torch.topk(by_dimension, k)
    # A state of identical tokens has no variance and so no outlier dimension: 0/0 counts as 0 here.
    variance_share = by_variance.values.double().sum(1) / variance.double().sum(1).clamp_min(1e-300)
    cosine_share = by_cosine.values.sum(1) / length2.clamp_min(1e-300)
    without_variance3, without_cosine3 = _mean_cosines_without(z, squared, by_variance.indices, by_cosine.indices)

    mean, pairs = (length2 - squares) / (n * (n - 1)), n * (n - 1) / 2
    about = mean.to(u.dtype)
    counts, deviations, apart = _pairs_of_states(u, about, matrix, states)
    off = apart.sum(1) / pairs - about.double()  # rounding moves `mean` by more than the sums of the same cosines
    scalars = [
        mean,
        length2 / n**2,
        (deviations / pairs - off.square()).clamp_min(0),
        length2.sqrt() / n,
        norms.double().mean(1),
        without_first,
        variance_share,
        without_variance3,
        cosine_share,
        without_cosine3,
    ]
    table = torch.cat([torch.stack(scalars, dim=1), apart / _pairs_apart(n, str(u.device))], dim=1)
    return WindowStatistics(table, counts)


def trimmed(z: torch.Tensor, mask: torch.Tensor | None) -> list[tuple[range, torch.Tensor]]:
    """Drop the tokens of z (sequences, tokens, width) that a boolean mask leaves out → pairs (indices of sequences,
    their states): one pair for all sequences where every token counts, else one for each."""
    if mask is None or bool(mask.all()):
        return [(range(len(z)), z)]
    return [(range(i, i + 1), z[i : i + 1, counts.to(z.device)]) for i, counts in enumerate(mask)]


@functools.lru_cache(maxsize=16)
def _pairs_apart(tokens: int, device: str) -> torch.Tensor:
    """Return the number of pairs in each of ``distance_buckets``, float64."""
    pairs = [sum(tokens - d for d in range(low, high)) for low, high in distance_buckets(tokens)]
    with torch.inference_mode(False):
        return torch.tensor(pairs, dtype=torch.float64, device=device)


def _sum_tokens(x: torch.Tensor) -> torch.Tensor:
    """x (windows, tokens, width) → (windows, width)."""
    return _sums(x, torch.ones_like(x[..., 0]))[0] if x.device.type == "cpu" else x.sum(1)


def _sums(x: torch.Tensor, *weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return Σ_i w_i x_i of each window, (windows, width), for each of the ``weights`` (windows, tokens). On a CPU a
    matrix product is several times faster than a sum over rows; elsewhere it might run at lower precision."""
    if x.device.type != "cpu":
        return tuple((x * w[..., None]).sum(1) for w in weights)
    return (torch.stack(weights, dim=1) @ x).unbind(1)


def _mean_cosines_without(z: torch.Tensor, squared: torch.Tensor, *sets: torch.Tensor) -> list[torch.Tensor]:
    """Return the mean cosine of each window after deleting k dimensions, for each of the ``sets`` (windows, k) of
    dimensions. ``squared`` holds z²."""
    n = z.shape[1]
    inverses = []
    for dimensions in sets:
        columns = dimensions[:, None].expand(-1, n, -1)
        removed = squared.gather(2, columns)
        # Zeroed and put back: ‖z‖² minus these squares would cancel where they are nearly all of ‖z‖².
        inverses.append(inverse(squared.scatter_(2, columns, 0.0).sum(2).sqrt()))
        squared.scatter_(2, columns, removed)
    totals = _sums(z, *inverses)
    return [
        (total.double().scatter_(1, d, 0.0).square().sum(1) - (scale > 0).sum(1)) / (n * (n - 1))
        for total, scale, d in zip(totals, inverses, sets)
    ]


def _pairs_of_states(
    u: torch.Tensor, about: torch.Tensor, matrix: torch.Tensor | None, states: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``_pairs`` of several states: counts (states, fine bins), and the other two results for every window."""
    if matrix is None and has_kernel(u):
        return _fused_pairs(u, about, states)
    parts = zip(u.chunk(states), about.chunk(states))
    counts, deviations, apart = zip(*(_pairs(part, a, matrix) for part, a in parts))
    return torch.stack(counts), torch.cat(deviations), torch.cat(apart)


def _pairs(
    u: torch.Tensor, about: torch.Tensor, matrix: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return, over all pairs i < j: counts per bin of all windows together, and of each window Σ (c − about)² and Σ c
    in each of ``distance_buckets``. ``about`` is (windows,).

    A tile holds rows a … a+r and columns a … N of the Gram matrix. Its part on and under the diagonal is set to
    zero; then row i of the tile, shifted left by i places, has distance d in column d. The shift costs nothing:
    the same memory is read with row stride m + 1, and what runs over the end of a row falls on the zeros of
    the next row.
    """
    windows, n = u.shape[:2]
    # A CPU wants tiles that stay in its cache, an accelerator few launches; either way 64 MiB at most.
    block = max(1, min(128 if u.device.type == "cpu" else n, (1 << 24) // (n * windows)))
    counts = torch.zeros(FINE_BINS, dtype=torch.int64, device=u.device)
    deviations = torch.zeros(windows, dtype=torch.float64, device=u.device)
    by_distance = torch.zeros(windows, n, dtype=torch.float64, device=u.device)
    buffer = u.new_empty(windows * (block * n + block))
    for a in range(0, n, block):
        r, m = min(block, n - a), n - a
        memory = buffer[: windows * (r * m + r)].view(windows, r * m + r)
        memory[:, r * m :] = 0
        flat = memory[:, : r * m]
        tile = flat.unflatten(1, (r, m))
        shifted = memory.as_strided((windows, r, m), (r * m + r, m + 1, 1))
        product = torch.bmm(u[:, a : a + r], u[:, a:].mT).triu_(1)
        tile.copy_(product)
        deviations += product.sub_(about[:, None, None]).triu_(1).square_().sum((1, 2))
        by_distance[:, :m] += _sum_tokens(shifted)
        if matrix is not None:
            matrix[a : a + r, a:] += tile.sum(0).to(matrix.device)
        counts += _bin_(tile)
        pairs = r * (m - 1) - r * (r - 1) // 2
        counts[FINE_BINS // 2] -= windows * (r * m - pairs)  # the zeros of triu_, which are no cosines
    apart = [by_distance[:, low:high].sum(1) for low, high in distance_buckets(n)]
    return counts, deviations, torch.stack(apart, dim=1)


def has_kernel(u: torch.Tensor) -> bool:
    return u.dtype == torch.float32 and fused(u, "auto")


def _fused_pairs(
    u: torch.Tensor, about: torch.Tensor, states: int = 1
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``_pairs_of_states`` by the fused kernel, which keeps no tile in memory."""
    from ..kernels.cosines import cosines

    pairs = cosines(u, about, bins=FINE_BINS)
    return pairs.counts.unflatten(0, (states, -1)).sum(1), pairs.deviations, pairs.apart


def _bin_(cosines: torch.Tensor) -> torch.Tensor:
    """Count the cosines per bin, overwriting them. A cosine that rounding puts a hair outside [−1, 1] counts in the
    first or the last bin."""
    if cosines.device.type != "cpu":
        # Unlike bincount, histc does not make the host wait. A tile has at most 2²⁴ cosines: float32 counts are exact.
        return torch.histc(cosines.clamp_(-1, 1).float(), FINE_BINS, -1, 1).to(torch.int64)
    half = FINE_BINS / 2
    # −1 − ε truncates into bin 0; 1 + ε lands in one extra bin.
    counts = torch.bincount(cosines.mul_(half).add_(half).to(torch.int16).view(-1), minlength=FINE_BINS + 1)
    counts[FINE_BINS - 1] += counts[FINE_BINS:].sum()
    return counts[:FINE_BINS]
