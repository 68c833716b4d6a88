"""Where the time of a lone call of the exact dispersion loss goes: value and gradient of small states, bfloat16.

What the GPU runs in one call, by kernel (torch.profiler): those of the loss and of autograd, fills and copies, each
with its number and its time. Then what the host takes, by the clock and while nothing waits for the GPU, for a call and
for parts of it: the kernels without autograd, the forward pass, a step of autograd that computes nothing. Autograd runs
the backward pass of a GPU in a thread of its own; "autograd in one thread" forbids that
(`torch.autograd.set_multithreading_enabled`).

    python benchmarks/profile_lone_call.py [--out DIR]      # a quarter of a minute
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import harness
import torch
from bench_exact import CALLS, CLAMP, EPS, TAU, by_kernel, states
from profile_train_step import recorded

from decondense import losses
from decondense.losses import pairs
from decondense.losses.kernel import Kernel

COLUMNS = ("shape", "what", "name", "calls", "gpu_us", "host_us", "call_us")
REPEATS = 20  # few enough that their launches fit into the queue of the GPU: the host never waits


class Nothing(torch.autograd.Function):
    """As many results as the loss has, without computing them."""

    @staticmethod
    def forward(ctx: Any, z: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(z)
        return values.detach()

    @staticmethod
    def backward(ctx: Any, upstream: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.saved_tensors[0], None


def user(z: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(losses.dispersion(z), z)[0]


def parts(z: torch.Tensor) -> dict[str, Callable[[], Any]]:
    """Calls on z, which requires a gradient, by what they do."""
    given, values = (torch.ones(len(z), device=z.device) for _ in range(2))
    plain = z.detach()
    options = {"curve": "dispersion", "tau": TAU, "clamp": CLAMP, "hard_clamp": False, "eps": EPS, "diagonal": False}
    routine = Kernel("pairwise", **options)

    def backward() -> None:
        z.grad = None
        losses.dispersion(z).backward()

    def one_thread() -> torch.Tensor:
        with torch.autograd.set_multithreading_enabled(False):
            return user(z)

    return {
        "autograd alone": lambda: torch.autograd.grad(Nothing.apply(z, values), z, given),
        "kernels": by_kernel(plain, False),
        "forward, no gradient": lambda: losses.dispersion(plain),
        "forward": lambda: losses.dispersion(z),
        "kernels through autograd": lambda: torch.autograd.grad(pairs.apply(routine, z, None), z, given),
        "public function, none": lambda: torch.autograd.grad(losses.dispersion(z, reduction="none"), z, given),
        "public function": lambda: user(z),
        "public function, backward(), .grad": backward,
        "public function, autograd in one thread": one_thread,
    }


def host_time(call: Callable[[], Any], rounds: int = 15) -> float:
    """Microseconds until the host is through with a call, median over the rounds; each begins with an idle GPU."""

    def timed() -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(REPEATS):
            call()
        return (time.perf_counter() - start) / REPEATS * 1e6

    timed()
    return statistics.median(timed() for _ in range(rounds))


def measure(shape: tuple[int, int, int]) -> list[harness.Row]:
    z = states(shape, torch.bfloat16, 0).requires_grad_()
    base = {"shape": "x".join(map(str, shape))}
    calls = parts(z)
    for call in calls.values():
        call()
    rows: list[harness.Row] = []
    for what in ("kernels", "public function"):
        run = calls[what]
        recorded(run)  # the first record has the profiler's own start in it
        events = recorded(lambda run=run: [run() for _ in range(REPEATS)])
        count = Counter(event.name for event in events)
        for name, number in count.items():
            took = 1000 * sum(event.ms for event in events if event.name == name) / REPEATS
            rows.append(base | {"what": what, "name": name, "calls": number / REPEATS, "gpu_us": took})
        rows.append(
            base
            | {
                "what": what, "name": "sum", "calls": len(events) / REPEATS,
                "gpu_us": 1000 * sum(event.ms for event in events) / REPEATS,
            }
        )  # fmt: skip
    for what, call in calls.items():
        clock = 1000 * harness.call_time([call], budget=0.1)
        rows.append(base | {"what": what, "name": "by the clock", "host_us": host_time(call), "call_us": clock})
    return rows


def main() -> None:
    parser = harness.arguments(__doc__ or "")
    options = parser.parse_args()
    harness.need_cuda()
    parts = ([{column: row.get(column, "") for column in COLUMNS} for row in measure(shape)] for shape in CALLS)
    rows, path = harness.collect("lone_call", parts, options.out)
    print(harness.table([row | {"name": row["name"][:60]} for row in rows], COLUMNS))
    print(path)


if __name__ == "__main__":
    main()
