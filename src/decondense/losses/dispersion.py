"""The dispersion loss: the log of a mean over all pairs of exp(−angular distance / τ).

    u_i = z_i/(‖z_i‖ + ε),  c_ij = u_i·u_j,  D_ij = arccos(c_ij)/π ∈ [0, 1]
    L = log ( 1/(n(n−1)) Σ_{i≠j} exp(−D_ij/τ) ),   averaged over the sequences

Identical tokens give 0, orthogonal ones −1/(2τ): lower is more dispersed. Source: Liu et al. 2026, arXiv 2602.00217;
`algorithm_1.py` has the paper's own formula in ten lines.

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
from . import moments, pairs
from .options import check_choice, finish, fused
from .registry import register
from .sampling import RELEASED_SAMPLE, sample

ESTIMATORS = ("exact", "first_order", "second_order", "sampled")
DISTANCES = ("angular", "cosine")


def over_layers(
    states: Sequence[Tensor], masks: Sequence[Tensor | None], **options: Any
) -> tuple[Tensor, Tensor | None]:
    """`dispersion` of many layers: values and mean cosines, each (layers, batch); no cosines from exact pairs.

    The curve is applied to all layers together: on a GPU its dozen of tiny operations would otherwise cost more
    than the sums over the tokens.
    """
    return Dispersion(**options).values(states, masks)


@register(
    "log of a mean over the pairs of exp(−angular distance/τ)",
    source="paper",
    reference="Liu et al. 2026, equation 2",
    presets={
        "paper": {"hard_clamp": True, "clamp": 0.01, "eps": 0.01, "constant": 0.01},
        "released": {"clamp": 0.25, "eps": 0.01, "constant": 0.01, **RELEASED_SAMPLE},
        "disperse": {"distance": "cosine", "diagonal": True, "eps": 0.0},
    },
    aliases=("angular_spread", "angular"),
    layers=over_layers,
)
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
    loss = Dispersion(
        tau=tau,
        clamp=clamp,
        hard_clamp=hard_clamp,
        distance=distance,
        eps=eps,
        estimator=estimator,
        diagonal=diagonal,
        constant=constant,
        max_tokens=max_tokens,
        shared_sample=shared_sample,
        generator=generator,
        backend=backend,
        process_group=process_group,
    )
    values, _ = loss.values([z], [mask])
    return finish(values[0], None, reduction)


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


@dataclass(frozen=True, kw_only=True)
class Dispersion(Logit):
    """The options of `dispersion`, checked, and its values for many layers."""

    eps: float = 1e-2
    estimator: str = "exact"
    diagonal: bool = False
    constant: float = 0.0
    max_tokens: int | None = None
    shared_sample: bool = False
    generator: torch.Generator | None = None
    backend: str = "auto"
    process_group: Any = None

    def __post_init__(self) -> None:
        geometry.check_positive("tau", self.tau)
        geometry.check_clamp(self.clamp)
        check_choice("estimator", self.estimator, ESTIMATORS)
        check_choice("distance", self.distance, DISTANCES)
        if self.diagonal and self.estimator in ("first_order", "second_order"):
            raise ValueError(
                f"diagonal=True needs an estimator that visits pairs, got {self.estimator!r}: use estimator='exact'."
            )
        if self.process_group is not None and (
            self.estimator not in ("exact", "first_order") or self.max_tokens is not None
        ):
            raise ValueError(
                f"process_group needs estimator='exact' or 'first_order' on all tokens, got {self.estimator!r}: "
                "second order and sampling do not cross ranks."
            )

    def values(self, states: Sequence[Tensor], masks: Sequence[Tensor | None]) -> tuple[Tensor, Tensor | None]:
        """(layers, batch), and the mean cosines where the estimator knows them; on the device of the first layer."""
        masks = [geometry.check_states(z, mask) for z, mask in zip(states, masks)]
        most = 256 if self.estimator == "sampled" and self.max_tokens is None else self.max_tokens
        layers = [
            sample(z, mask, most, shared=self.shared_sample, generator=self.generator) for z, mask in zip(states, masks)
        ]
        mean: Tensor | None = None
        if self.process_group is not None:
            value = _stack([self._across_ranks(z, mask) for z, mask in layers])
            return value + self.constant, None
        if self.estimator == "first_order":
            mean = _stack([moments.mean_cosine(z, mask, eps=self.eps, backend=self.backend) for z, mask in layers])
            value = self.first_order(mean)
        elif self.estimator == "second_order":
            both = [moments.two_moments(z, mask, eps=self.eps, backend=self.backend) for z, mask in layers]
            mean, square = (_stack(part) for part in zip(*both))
            value = self.second_order(mean, square)
        else:
            value = _stack([pairs.apply(self._exact(z), z, mask) for z, mask in layers])
        value = value + self.constant if self.constant else value
        return _without_lone_tokens(value, [mask for _, mask in layers]), mean

    def _exact(self, z: Tensor) -> pairs.Routine:
        if not fused(z, self.backend, tau=self.tau):
            return pairs.CosinePairs(curve=self, log=True, eps=self.eps, diagonal=self.diagonal)
        return pairs.Kernel(
            "pairwise",
            curve="dispersion" if self.distance == "angular" else "dispersion_cosine",
            tau=self.tau,
            clamp=self.clamp,
            hard_clamp=self.hard_clamp,
            eps=self.eps,
            diagonal=self.diagonal,
        )

    def _across_ranks(self, z: Tensor, mask: Tensor | None) -> Tensor:
        from .context_parallel import RingPairs, SharedMeanCosine

        if self.estimator == "first_order":
            mean, n = pairs.apply(SharedMeanCosine(self.eps, self.process_group), z, mask)
            return geometry.enough(n.detach(), self.first_order(mean))
        ring = RingPairs(curve=self, log=True, eps=self.eps, diagonal=self.diagonal, group=self.process_group)
        return pairs.apply(ring, z, mask)


def _stack(values: Sequence[Tensor]) -> Tensor:
    """(layers, batch) on the device of the first layer."""
    return torch.stack([value.to(values[0].device) for value in values])


def _without_lone_tokens(values: Tensor, masks: Sequence[Tensor | None]) -> Tensor:
    """values (layers, batch), 0 for sequences with fewer than two tokens that count; most layers share a mask."""
    several = {id(mask): (mask.sum(1) >= 2).to(values.device) for mask in masks if mask is not None}
    if not several:
        return values
    return torch.where(torch.stack([several[id(mask)] for mask in masks]), values, 0)
