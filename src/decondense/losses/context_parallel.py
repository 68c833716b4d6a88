"""Context parallelism: a sequence is split over the ranks of a process group, each of which returns its whole loss.

    first order   Σ u_i, Σ ‖u_i‖² and n are summed over the ranks: one all-reduce of F + 2 numbers per sequence
    exact         the blocks of unit vectors go round a ring; each rank sums its own rows against all of them

Every rank returns the value of the whole sequence, and the gradient of that value with respect to its own tokens:
no communication in the backward pass, as ∂S/∂u_i = 2 Σ_j f'(c_ij) u_j is complete once the ring has closed. A
framework that averages gradients over the ranks also divides this gradient by their number: `regularize` corrects for
that; if you call the loss yourself, multiply it by the group's size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .moments import MeanCosine
from .pairs import CosinePairs, tiles


@dataclass(frozen=True)
class SharedMeanCosine(MeanCosine):
    """`MeanCosine` with sums over the group. Its value is (2, batch): c̄ and n, which no rank knows by itself."""

    group: Any = None

    def forward(self, z: Tensor, mask: Tensor | None, need_gradient: bool) -> tuple[Tensor, tuple[Tensor, ...]]:
        value, saved = super().forward(z, mask, need_gradient)
        return torch.stack([value, saved[-1]]), saved

    def backward(self, z: Tensor, mask: Tensor | None, saved: tuple[Tensor, ...], upstream: Tensor) -> Tensor:
        return super().backward(z, mask, saved, upstream[0])

    def summed(self, s: Tensor, square: Tensor, n: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        packed = torch.cat([s.squeeze(1), square.unsqueeze(1), n.unsqueeze(1)], 1)
        dist.all_reduce(packed, group=self.group)
        return packed[:, None, :-2].contiguous(), packed[:, -2], packed[:, -1]


def sum_across(counts: Tensor, group: Any) -> Tensor:
    """The sum of integer counts over the ranks of a group; without a group, the counts themselves."""
    if group is not None:
        dist.all_reduce(counts := counts.clone(), group=group)
    return counts


def tokens_across(mask: Tensor, group: Any) -> Tensor:
    """How many tokens of each sequence count, (batch,); with a group, `mask` is this rank's part of the sequences."""
    return sum_across(mask.bool().sum(1), group)


@dataclass(frozen=True)
class RingPairs(CosinePairs):
    """`CosinePairs` over a ring: O(N²F / ranks) time and O(NF / ranks) memory on each."""

    group: Any = None

    def summed(self, total: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
        packed = torch.stack([total, n])
        dist.all_reduce(packed, group=self.group)
        return packed[0], packed[1]

    def _sum(self, u: Tensor, weight: Tensor | None, need_gradient: bool) -> tuple[Tensor, Tensor | None]:
        """Σ_ij f(c_ij) and Σ_j f'(c_ij) u_j for the rows of this rank against the columns of every rank."""
        weight = u.new_ones(u.shape[:2]) if weight is None else weight
        ranks, rank = dist.get_world_size(self.group), dist.get_rank(self.group)
        to, source = (dist.get_global_rank(self.group, (rank + step) % ranks) for step in (1, -1))
        gradient = torch.zeros_like(u) if need_gradient else None
        parts = []
        block = torch.cat([u, weight.unsqueeze(-1)], -1).contiguous()  # the mask travels as one more feature
        for turn in range(ranks):
            incoming = torch.empty_like(block)
            pending = []
            if turn + 1 < ranks:  # send the next block while this one is worked on
                operations = [
                    dist.P2POp(dist.isend, block, to, self.group),
                    dist.P2POp(dist.irecv, incoming, source, self.group),
                ]
                pending = dist.batch_isend_irecv(operations)
            parts.append(self._block(u, weight, block, turn == 0, gradient))
            for operation in pending:
                operation.wait()
            block = incoming
        return torch.stack(parts).sum(0), gradient

    def _block(self, u: Tensor, weight: Tensor, block: Tensor, is_own: bool, gradient: Tensor | None) -> Tensor:
        columns, column_weight = block[..., :-1], block[..., -1]
        sums = torch.zeros_like(weight)
        for b, rows in tiles(u.shape[0], u.shape[1], u.device):
            f, slope = self.curve(u[b, rows] @ columns[b].mT)
            pairs = weight[b, rows, None] * column_weight[b, None, :]
            f, slope = f * pairs, slope * pairs
            if is_own and not self.diagonal:
                f.diagonal(offset=rows.start, dim1=-2, dim2=-1).zero_()
                slope.diagonal(offset=rows.start, dim1=-2, dim2=-1).zero_()
            sums[b, rows] = f.sum(-1)
            if gradient is not None:
                gradient[b, rows].baddbmm_(slope, columns[b])
        return sums.sum(-1)
