"""The exact dispersion loss, value and gradient: the fused kernel against the formula in torch.

Every shape in one run: the floor (the two matrix products the loss cannot do without, by cuBLAS), Algorithm 1 in
torch (float32, bfloat16 autocast, compiled), the released setting (256 sampled tokens), and the kernel. Also the
extra memory at the peak in units of z, and the gradient's error against float64 on one sequence. The floor is that
of bfloat16 products for float32 states too (under autocast).

What is timed is what a user writes: z already requires a gradient, the loss is the mean over the sequences, and
`torch.autograd.grad` asks for its gradient; there is no `.grad` to be filled or cleared. "kernel" calls the kernels
without autograd. "ms" is the time of the GPU, from replays of a CUDA graph of these calls, where one can be captured;
"call_ms" is that of calls one after the other, by the clock. "compiled with CUDA graphs" is torch.compile's
`mode="reduce-overhead"`, timed as calls: its graphs are replayed, but the host checks the guards, copies z to where the
graphs read it and goes through autograd in every call.

    python benchmarks/bench_exact.py [--quick] [--out DIR] [--plot]
    python benchmarks/bench_exact.py --calls      # lone calls of the two small shapes alone, half a minute
    python benchmarks/profile_lone_call.py        # where the time of such a call goes
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import harness
import torch

from decondense.kernels import pairwise

SHAPES = [(32, 1024, 768), (8, 1024, 1024), (8, 4096, 1024)]
CALLS = [(8, 1024, 1024), (32, 1024, 768)]  # where the host decides how long a lone call takes
LONG = (1, 131072, 1024)
OTHERS = ("decorrelation", "orthogonalization", "uniformity", "l2_repel", "koleo", "vicreg")
EPS, CLAMP, TAU = 1e-2, 0.1, 1.0


def states(shape: tuple[int, int, int], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """A cloud with mean cosine one half, so that no cosine reaches the clamp: every variant agrees on the loss."""
    g = torch.Generator("cuda").manual_seed(seed)
    batch, tokens, width = shape
    z = torch.randn(shape, device="cuda", dtype=torch.float32, generator=g)
    z += torch.randn(batch, 1, width, device="cuda", generator=g)
    return (z * torch.exp(0.3 * torch.randn(batch, tokens, 1, device="cuda", generator=g))).to(dtype)


def algorithm_1(z: torch.Tensor) -> torch.Tensor:
    """The loss of every sequence as the paper writes it; the N×N matrix is in memory several times."""
    tokens = z.shape[1]
    u = z / (z.norm(dim=-1, keepdim=True) + EPS)
    c = torch.bmm(u, u.transpose(1, 2)).clamp(-1 + CLAMP, 1 - CLAMP)
    logits = -torch.arccos(c.float()) / (math.pi * TAU)
    logits = logits.masked_fill(torch.eye(tokens, dtype=torch.bool, device=z.device), -math.inf)
    return torch.logsumexp(logits.flatten(1), 1) - math.log(tokens * (tokens - 1))


def sampled(z: torch.Tensor) -> torch.Tensor:
    return algorithm_1(z[:, torch.randperm(z.shape[1], device=z.device)[:256]])


def averaged(loss: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda z: loss(z).mean()


def casting(autocast: bool) -> contextlib.AbstractContextManager[Any]:
    return torch.autocast("cuda", torch.bfloat16) if autocast else contextlib.nullcontext()


def by_autograd(loss: Callable[[torch.Tensor], torch.Tensor], z: torch.Tensor, autocast: bool):
    """The gradient of a loss that is one number."""
    cast = casting(autocast)
    leaf = z.detach().requires_grad_()

    def call() -> torch.Tensor:
        with cast:
            value = loss(leaf)
        return torch.autograd.grad(value, leaf)[0]

    return call


def by_kernel(z: torch.Tensor, autocast: bool):
    upstream = torch.full((len(z),), 1 / len(z), device=z.device)
    cast = casting(autocast)

    def call() -> torch.Tensor:
        with cast:
            _, saved = pairwise.forward(z, None, tau=TAU, clamp=CLAMP, eps=EPS)
        return pairwise.backward(z, saved, upstream, eps=EPS)

    return call


def by_public_function(z: torch.Tensor, autocast: bool):
    from decondense import losses

    return by_autograd(lambda x: losses.dispersion(x, tau=TAU, clamp=CLAMP, eps=EPS), z, autocast)


@functools.cache
def graphed() -> Callable[[torch.Tensor], torch.Tensor]:
    """The public function as torch.compile's CUDA graphs, one for each pass."""
    from decondense import losses

    def loss(x: torch.Tensor) -> torch.Tensor:
        return losses.dispersion(x, tau=TAU, clamp=CLAMP, eps=EPS)

    return torch.compile(loss, fullgraph=True, dynamic=False, mode="reduce-overhead")


def by_cuda_graph(z: torch.Tensor, autocast: bool):
    call = by_autograd(graphed(), z, autocast)

    def step() -> torch.Tensor:
        torch.compiler.cudagraph_mark_step_begin()
        return call()

    return step


def floor(z: torch.Tensor):
    """z zᵀ and (that) z in bfloat16."""
    x = z.to(torch.bfloat16)
    gram = torch.empty(len(z), z.shape[1], z.shape[1], dtype=torch.bfloat16, device=z.device)
    out = torch.empty_like(x)

    def call() -> torch.Tensor:
        torch.bmm(x, x.transpose(1, 2), out=gram)
        return torch.bmm(gram, x, out=out)

    return call


def reference_gradient(z: torch.Tensor) -> torch.Tensor:
    """Gradient of one sequence in float64."""
    return by_autograd(averaged(algorithm_1), z[:1].double(), False)()


def measure(shape: tuple[int, int, int], dtype: torch.dtype, quick: bool) -> Iterator[harness.Row]:
    inputs = harness.copies(lambda seed: states(shape, dtype, seed))
    z = inputs[0]
    size = z.numel() * z.element_size()
    autocast = dtype == torch.float32
    base = {
        "shape": "x".join(map(str, shape)),
        "dtype": str(dtype).removeprefix("torch.") + (" autocast" if autocast else ""),
    }
    fewer = inputs[: max(1, min(len(inputs), 4))]
    fast = [floor(x) for x in fewer]
    limit = harness.device_time(fast)
    wanted = reference_gradient(z)
    yield base | {"variant": "floor: two bmm", "ms": limit, "call_ms": harness.call_time(fast), "ratio": 1.0}
    del fast
    variants: list[tuple[str, Callable, bool, bool]] = [
        ("kernel", by_kernel, True, True),
        ("kernel, public function", by_public_function, True, True),
        ("kernel, public function, compiled with CUDA graphs", by_cuda_graph, False, True),
    ]
    if not quick:
        variants += [
            ("torch, 256 sampled", lambda x, a: by_autograd(averaged(sampled), x, a), False, False),
            ("torch eager", lambda x, a: by_autograd(averaged(algorithm_1), x, a), False, True),
            ("torch eager, bf16 autocast", lambda x, _: by_autograd(averaged(algorithm_1), x, True), False, True),
        ]
        if dtype == torch.bfloat16:
            compiled = torch.compile(averaged(algorithm_1), dynamic=False)
            variants.append(("torch compiled", lambda x, _: by_autograd(compiled, x, True), False, True))
    for name, make, graph, exact in variants:
        calls = [make(x, autocast and "eager" not in name) for x in fewer]
        row = base | {"variant": name, "call_ms": harness.call_time(calls)}
        row["ms"] = harness.device_time(calls) if graph else row["call_ms"]
        row["ratio"] = row["ms"] / limit
        row["memory_of_z"] = harness.extra_memory(calls[0]) / size
        if exact:
            row["gradient_error"] = harness.error(len(z) * calls[0]()[:1], wanted)  # of the mean over the sequences
        yield row


def measure_others(shape: tuple[int, int, int]) -> Iterator[harness.Row]:
    """The other losses by themselves, value and gradient, float32 states under bfloat16 autocast."""
    from decondense import losses

    inputs = harness.copies(lambda seed: states(shape, torch.float32, seed))[:4]
    base = {"shape": "x".join(map(str, shape)), "dtype": "float32 autocast"}
    fast = [floor(x) for x in inputs]
    limit = harness.device_time(fast)
    yield base | {"variant": "floor: two bmm", "ms": limit, "call_ms": harness.call_time(fast), "ratio": 1.0}
    for name in OTHERS:
        loss = losses.get(name)
        calls = [by_autograd(loss, x, True) for x in inputs]
        took = harness.device_time(calls)
        yield base | {"variant": name, "ms": took, "call_ms": harness.call_time(calls), "ratio": took / limit}


def measure_long(dtype: torch.dtype) -> Iterator[harness.Row]:
    z = states(LONG, dtype, 0)
    base = {"shape": "x".join(map(str, LONG)), "dtype": str(dtype).removeprefix("torch.")}
    limit = harness.call_time([floor(z)], budget=0.5)
    torch.cuda.empty_cache()
    yield base | {"variant": "floor: two bmm", "ms": limit, "call_ms": limit, "ratio": 1.0}
    call = by_kernel(z, False)
    took = harness.call_time([call], budget=0.5)
    memory = harness.extra_memory(call) / (z.numel() * z.element_size())
    yield base | {"variant": "kernel", "ms": took, "call_ms": took, "ratio": took / limit, "memory_of_z": memory}


def main() -> None:
    parser = harness.arguments(__doc__ or "")
    parser.add_argument("--quick", action="store_true", help="the floor and the kernel alone")
    parser.add_argument("--no-long", action="store_true", help="leave out 1×131072×1024")
    parser.add_argument("--calls", action="store_true", help="the floor and lone calls of the kernel: exact_calls.csv")
    parser.add_argument("--others", action="store_true", help="the other losses by themselves: exact_others.csv")
    options = parser.parse_args()
    harness.need_cuda()
    columns = ("shape", "dtype", "variant", "ms", "call_ms", "ratio", "memory_of_z", "gradient_error")

    def parts() -> Iterator[list[harness.Row]]:
        if options.others:
            yield from map(measure_others, SHAPES)
            return
        for dtype in (torch.bfloat16, torch.float32):
            for shape in CALLS if options.calls else SHAPES:
                found = list(measure(shape, dtype, options.quick or options.calls))
                torch.cuda.empty_cache()
                print(harness.table(found, columns), flush=True)
                yield found
        if not (options.no_long or options.calls):
            yield measure_long(torch.bfloat16)

    name = "exact_calls" if options.calls else "exact_others" if options.others else "exact"
    rows, path = harness.collect(name, parts(), options.out)
    print(harness.table(rows, columns))
    if options.plot:
        harness.bars(rows, path.with_suffix(".png"), log=True)
    print(path)


if __name__ == "__main__":
    main()
