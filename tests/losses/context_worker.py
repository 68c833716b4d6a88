"""Run by test_context_parallel.py on several processes: a sequence split over the ranks, against the whole of it."""

from __future__ import annotations

import torch
import torch.distributed as dist

from decondense import losses

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
g = torch.Generator().manual_seed(3)
whole = torch.randn(3, 24, 8, generator=g, dtype=torch.float64) + 0.8
mask = torch.ones(3, 24, dtype=torch.bool)
mask[0, 20:] = False
mask[1, 13:] = False
mask[2, 1:] = False  # a sequence of one token: no part of the mean
part = slice(rank * 24 // world, (rank + 1) * 24 // world)
for options in ({"estimator": "exact"}, {"estimator": "first_order"}, {"estimator": "exact", "diagonal": True}):
    for m in (None, mask):
        z = whole.clone().requires_grad_()
        expected = losses.dispersion(z, m, tau=0.5, **options)
        (gradient,) = torch.autograd.grad(expected, z)
        local = whole[:, part].clone().requires_grad_()
        value = losses.dispersion(
            local, None if m is None else m[:, part], tau=0.5, process_group=dist.group.WORLD, **options
        )
        (found,) = torch.autograd.grad(value, local)
        torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(found, gradient[:, part], rtol=1e-10, atol=1e-13)
if rank == 0:
    print("same value and gradient as one process")
dist.barrier()  # gloo ends badly when a peer leaves while another still sends
dist.destroy_process_group()
