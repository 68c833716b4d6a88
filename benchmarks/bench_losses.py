"""The losses on a CPU, value and gradient: the dense formula beside the tiled one and the cheap estimators.

python benchmarks/bench_losses.py            under a minute on two cores; writes results/losses_cpu.csv
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable

import harness
import torch

from decondense import losses


def dense(z: torch.Tensor, tau: float = 1.0, clamp: float = 0.1, eps: float = 1e-2) -> torch.Tensor:
    """Algorithm 1 as anybody would write it: the N × N matrix in memory, the gradient by autograd."""
    u = z / (z.norm(dim=-1, keepdim=True) + eps)
    c = u @ u.mT
    limited = c + (c.clamp(-(1 - clamp), 1 - clamp) - c).detach()
    distance = torch.acos(limited) / math.pi
    n = z.shape[1]
    diagonal = torch.eye(n, dtype=torch.bool, device=z.device)
    logits = (-distance / tau).masked_fill(diagonal, -torch.inf)
    return (torch.logsumexp(logits.flatten(1), 1) - math.log(n * (n - 1))).mean()


def seconds(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median of each, the rounds interleaved so that a slow moment of the machine hits all of them."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def step(function: Callable[..., torch.Tensor], z: torch.Tensor, **options: object) -> Callable[[], object]:
    def call() -> object:
        return torch.autograd.grad(function(z, **options), z)

    return call


def main() -> None:
    parser = harness.arguments(__doc__ or "")
    parser.add_argument("--device", choices=["cpu"], default="cpu", help="bench_exact.py is the one for GPUs")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    rows = []
    for batch, tokens, width in ((1, 1024, 768), (4, 512, 576)):
        z = (torch.randn(batch, tokens, width) + torch.randn(batch, 1, width)).requires_grad_()
        calls = {
            "dense": step(dense, z),
            "exact": step(losses.dispersion, z),
            "second_order": step(losses.dispersion, z, estimator="second_order"),
            "first_order": step(losses.dispersion, z, estimator="first_order"),
            "sampled (256)": step(losses.dispersion, z, estimator="sampled"),
        }
        times = seconds(calls, options.rounds)
        for name, value in times.items():
            rows.append(
                {
                    "shape": f"{batch}x{tokens}x{width}",
                    "dtype": "float32",
                    "threads": torch.get_num_threads(),
                    "variant": name,
                    "ms": 1000 * value,
                    "over dense": value / times["dense"],
                    "exact over this": times["exact"] / value,
                }
            )
    print(harness.table(rows, list(rows[0])))
    path = harness.write("losses_cpu", rows, options.out)
    if options.plot:
        harness.bars(rows, path.with_suffix(".png"), case=("shape",), log=True)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
