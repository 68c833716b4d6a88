"""The dispersion loss: the log of a mean over all pairs of exp(−angular distance / τ).

    u_i = z_i/(‖z_i‖ + ε),  c_ij = u_i·u_j,  D_ij = arccos(c_ij)/π ∈ [0, 1]
    L = log ( 1/(n(n−1)) Σ_{i≠j} exp(−D_ij/τ) ),   averaged over the sequences

Identical tokens give 0, orthogonal ones −1/(2τ): lower is more dispersed. Source: Liu et al. 2026,
arXiv 2602.00217, Algorithm 1.

Four estimators of the same quantity, with f(c) = exp(−arccos(c)/(πτ)):

    exact         all pairs                                               O(N²F)
    second_order  log f(c̄) + ½ (f″/f)(c̄) Var(c)                           O(NF²)
    first_order   log f(c̄), with c̄ the mean cosine over the pairs         O(NF)
    sampled       exact on `max_tokens` random tokens of each sequence    O(max_tokens² F)

docs/estimators.md says what each costs and what it misses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import geometry
from . import layers, moments, pairs
from .options import check_choice, finish, fused
from .sampling import sample

ESTIMATORS = ("exact", "first_order", "second_order", "sampled")
DISTANCES = ("angular", "cosine")
TOGETHER = ("exact", "first_order", "second_order")  # those that `dispersion_layers` knows


def dispersion(
    z: Tensor,
    mask: Tensor | None = None,
    *,
    tau: float = 1.0,
    clamp: float = 0.1,
    eps: float = 1e-2,
    estimator: str = "exact",
    hard_clamp: bool = False,
    distance: str = "angular",
    diagonal: bool = False,
    constant: float = 0.0,
    max_tokens: int | None = None,
    shared_sample: bool = False,
    generator: torch.Generator | None = None,
    backend: str = "auto",
    process_group: Any = None,
    reduction: str = "mean",
) -> Tensor:
    """Dispersion loss of hidden states.

    z (batch, tokens, width); mask (batch, tokens), true where a token counts. Returns a scalar, or (batch,)
    with `reduction="none"`; float32, or float64 for float64 states.

    tau         temperature τ > 0.
    clamp       cosines are limited to ±(1 − clamp), straight-through: the value saturates and the gradient
                keeps the slope of the boundary, so that a fully condensed cloud still feels a push.
                `hard_clamp=True` is the paper's Algorithm 1, which has no gradient where the limit bites; we
                recommend the other because it differs exactly where condensation is worst.
    eps         ε in u = z/(‖z‖ + ε). It bounds the gradient of very short vectors; 0 makes the loss invariant
                to scale.
    estimator   "exact" is the definition; see above for the others.
    distance    "angular", or "cosine" for D = −c (Wang & He 2025), which needs no clamp.
    diagonal    count the pairs i = i too (n² of them). We do not: they have no gradient and only dilute the
                weights of the others, by S/(S + n).
    constant    added inside the log-sum-exp, as Algorithm 1 does with its ε: shifts the value, not the gradient.
    max_tokens  with more tokens than this a random subset is used (256 for "sampled"); `shared_sample=True`
                draws one set of positions for the whole batch; `generator` is where the draw comes from.
    backend     "auto": a Triton kernel on CUDA; "torch": never; "triton": always, or an error.
    process_group  z holds this rank's part of sequences that are split over the ranks of the group, in equal parts;
                the value is that of the whole sequence (`losses/context_parallel.py`).
    """
    mask = geometry.check_states(z, mask)
    geometry.check_positive("tau", tau)
    geometry.check_clamp(clamp)
    check_choice("estimator", estimator, ESTIMATORS)
    check_choice("distance", distance, DISTANCES)
    if diagonal and estimator in ("first_order", "second_order"):
        raise ValueError(
            f"diagonal=True needs an estimator that visits pairs, got {estimator!r}: use estimator='exact'."
        )
    if process_group is not None and (estimator not in ("exact", "first_order") or max_tokens is not None):
        raise ValueError(
            f"process_group needs estimator='exact' or 'first_order' on all tokens, got {estimator!r}: "
            "second order and sampling do not cross ranks."
        )
    if estimator == "sampled" and max_tokens is None:
        max_tokens = 256
    if max_tokens is not None:
        z, mask = sample(z, mask, max_tokens, shared=shared_sample, generator=generator)
    logit = Logit(tau=tau, clamp=clamp, hard_clamp=hard_clamp, distance=distance)
    if process_group is not None:
        return finish(
            _across_ranks(z, mask, logit, eps, estimator, diagonal, process_group) + constant, None, reduction
        )
    if estimator == "first_order":
        value = logit.first_order(moments.mean_cosine(z, mask, eps=eps, backend=backend))
    elif estimator == "second_order":
        value = logit.second_order(*moments.two_moments(z, mask, eps=eps, backend=backend))
    else:
        value = pairs.apply(_exact(logit, eps, diagonal, fused(z, backend, tau=tau)), z, mask)
    return finish(value + constant if constant else value, mask, reduction)


def dispersion_layers(
    states: Sequence[Tensor],
    masks: Sequence[Tensor | None],
    *,
    tau: float = 1.0,
    clamp: float = 0.1,
    eps: float = 1e-2,
    hard_clamp: bool = False,
    distance: str = "angular",
    constant: float = 0.0,
    backend: str = "auto",
    estimator: str = "exact",
) -> tuple[Tensor, Tensor | None]:
    """`dispersion` of many layers at once: values and mean cosines, each (layers, batch).

    The curve is applied to all layers together: on a GPU its dozen of tiny operations would otherwise cost more
    than the sums over the tokens. The exact loss does not know the mean cosine: None.
    """
    geometry.check_positive("tau", tau)
    geometry.check_clamp(clamp)
    check_choice("estimator", estimator, TOGETHER)
    check_choice("distance", distance, DISTANCES)
    logit = Logit(tau=tau, clamp=clamp, hard_clamp=hard_clamp, distance=distance)
    masks = [geometry.check_states(z, mask) for z, mask in zip(states, masks)]
    mean = None
    if estimator == "first_order":
        mean = _over(states, masks, layers.MeanCosines(eps), moments.MeanCosine(eps), backend)
        value = logit.first_order(mean)
    elif estimator == "second_order":
        if fused(states[0], backend) and layers.alike(states):
            mean, square = layers.apply(layers.TwoMoments(eps), states, masks[0]).unbind(1)
        else:
            found = [moments.two_moments(z, mask, eps=eps, backend=backend) for z, mask in zip(states, masks)]
            mean, square = (_stack(part) for part in zip(*found))
        value = logit.second_order(mean, square)
    else:
        kernel, plain = (_exact(logit, eps, False, use) for use in (True, False))
        assert isinstance(kernel, pairs.FusedPairs)
        value = _over(states, masks, layers.Pairs(kernel), plain, backend, tau=tau)
    return finish(value + constant if constant else value, masks[0], "none"), mean


def _over(
    states: Sequence[Tensor],
    masks: Sequence[Tensor | None],
    kernel: layers.Routine,
    plain: pairs.Routine,
    backend: str,
    *,
    tau: float = 1.0,
) -> Tensor:
    """(layers, batch): all layers through the kernels at once, or each by itself."""
    use = [fused(z, backend, tau=tau) for z in states]
    if all(use) and layers.alike(states):
        return layers.apply(kernel, states, masks[0])
    each = zip(states, masks, use)
    return _stack([layers.apply(kernel, [z], m)[0] if u else pairs.apply(plain, z, m) for z, m, u in each])


def _stack(values: Sequence[Tensor]) -> Tensor:
    """(layers, batch) on the device of the first layer."""
    return torch.stack([value.to(values[0].device) for value in values])


def _exact(logit: Logit, eps: float, diagonal: bool, kernel: bool) -> pairs.Routine:
    if kernel:
        curve = "dispersion" if logit.distance == "angular" else "dispersion_cosine"
        return pairs.FusedPairs(
            curve=curve,
            tau=logit.tau,
            clamp=logit.clamp,
            hard_clamp=logit.hard_clamp,
            eps=eps,
            diagonal=diagonal,
        )
    return pairs.CosinePairs(curve=logit, log=True, eps=eps, diagonal=diagonal)


def _across_ranks(
    z: Tensor, mask: Tensor | None, logit: Logit, eps: float, estimator: str, diagonal: bool, group: Any
) -> Tensor:
    from .context_parallel import RingPairs, SharedMeanCosine

    if estimator == "first_order":
        mean, n = pairs.apply(SharedMeanCosine(eps, group), z, mask)
        return geometry.enough(n.detach(), logit.first_order(mean))
    return pairs.apply(RingPairs(curve=logit, log=True, eps=eps, diagonal=diagonal, group=group), z, mask)


@dataclass(frozen=True)
class Logit:
    """log f(c) = −D(c)/τ: its values, slopes and Taylor terms.

    Angular, with k = 1/(πτ) and q = 1 − c²:   (log f)' = k q^(−1/2)
        f″/f    = k² q⁻¹ + k c q^(−3/2)
        (f″/f)' = 2 k² c q⁻² + k (q^(−3/2) + 3 c² q^(−5/2))
    Cosine: log f = c/τ, f″/f = 1/τ².
    """

    tau: float = 1.0
    clamp: float = 0.1
    hard_clamp: bool = False
    distance: str = "angular"

    def __call__(self, c: Tensor) -> tuple[Tensor, Tensor]:
        """f and f' of a tile of cosines, for `pairs.CosinePairs`."""
        if self.distance == "cosine":
            f = torch.exp(c / self.tau)
            return f, f / self.tau
        bound, k = self._bound(c), 1 / (math.pi * self.tau)
        flat = geometry.outside(c, self.clamp) if self.hard_clamp else None
        c = c.clamp_(-bound, bound)
        f = torch.arccos(c).mul_(-k).exp_()
        slope = c.square_().neg_().add_(1).rsqrt_().mul_(f).mul_(k)
        return f, slope if flat is None else slope.masked_fill_(flat, 0)

    def first_order(self, mean: Tensor) -> Tensor:
        """log f(c̄), c̄ limited straight-through."""
        value, slope = self._line(mean.detach())
        return value + slope * (mean - mean.detach())

    def second_order(self, mean: Tensor, mean_square: Tensor) -> Tensor:
        """log f(c̄) + ½ (f″/f)(c̄) Var."""
        value, slope = self._line(mean.detach())
        bend, bend_slope = self._bend(mean.detach())
        step = mean - mean.detach()  # zero, but it carries the gradient past the limit
        variance = mean_square - mean * mean
        return value + slope * step + 0.5 * (bend + bend_slope * step) * variance

    def _bound(self, c: Tensor) -> float:
        return 1 - max(self.clamp, torch.finfo(c.dtype).eps)

    def _line(self, mean: Tensor) -> tuple[Tensor, Tensor]:
        """log f and (log f)' at the limited mean."""
        if self.distance == "cosine":
            return mean / self.tau, torch.full_like(mean, 1 / self.tau)
        bound, k = self._bound(mean), 1 / (math.pi * self.tau)
        c = mean.clamp(-bound, bound)
        slope = k * torch.rsqrt(1 - c * c)
        return -k * torch.arccos(c), self._flattened(slope, mean)

    def _bend(self, mean: Tensor) -> tuple[Tensor, Tensor]:
        """f″/f and (f″/f)' at the limited mean."""
        if self.distance == "cosine":
            return torch.full_like(mean, 1 / self.tau**2), torch.zeros_like(mean)
        bound, k = self._bound(mean), 1 / (math.pi * self.tau)
        c = mean.clamp(-bound, bound)
        q = 1 - c * c
        root = torch.rsqrt(q)
        bend = k * k / q + k * c * root / q
        bend_slope = 2 * k * k * c / (q * q) + k * root / q * (1 + 3 * c * c / q)
        return bend, self._flattened(bend_slope, mean)

    def _flattened(self, slope: Tensor, mean: Tensor) -> Tensor:
        return slope.masked_fill(geometry.outside(mean, self.clamp), 0) if self.hard_clamp else slope
