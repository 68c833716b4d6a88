"""The first-order estimator, forward and backward, against the time to move its bytes.

Forward reads z, backward reads z and writes a gradient of its size: three times the bytes of z. The floor is the time
in which a plain copy moves that many bytes (a copy of z moves twice the bytes of z).

    python benchmarks/bench_first_order.py [--out DIR] [--plot]
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import harness
import torch
from bench_exact import by_autograd, states

from decondense import losses
from decondense.kernels import first_order

SHAPES = [(32, 1024, 768), (8, 4096, 1024)]
LENGTHS = [16384, 32768, 65536, 131072]


def kernels(z: torch.Tensor, part: str = "both") -> Callable[[], torch.Tensor]:
    coefficient = torch.ones(len(z), device=z.device)
    _, kept = first_order.forward(z, None)

    def forward() -> torch.Tensor:
        return first_order.forward(z, None)[0]

    def backward() -> torch.Tensor:
        return first_order.backward(z, kept, coefficient)

    def both() -> torch.Tensor:
        _, saved = first_order.forward(z, None)
        return first_order.backward(z, saved, coefficient)

    return {"forward": forward, "backward": backward, "both": both}[part]


def public(backend: str) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda z: losses.dispersion(z, estimator="first_order", backend=backend)


def copy(z: torch.Tensor) -> Callable[[], torch.Tensor]:
    target = torch.empty_like(z)
    return lambda: target.copy_(z)


def measure(shape: tuple[int, int, int], dtype: torch.dtype, brief: bool = False) -> list[harness.Row]:
    inputs = harness.copies(lambda seed: states(shape, dtype, seed), at_most=8)
    base = {"shape": "x".join(map(str, shape)), "dtype": str(dtype).removeprefix("torch.")}
    copying = [copy(z) for z in inputs]
    # the faster of the two ways to run a copy: as a node of a graph and as plain calls
    floor = 1.5 * min(harness.device_time(copying), harness.call_time(copying))
    moved = 3 * inputs[0].numel() * inputs[0].element_size()
    found = [base | {"variant": "floor: copy 3/2 times", "ms": floor, "ratio": 1.0, "TB/s": moved / floor / 1e9}]
    parts = (
        [("kernels", "both")]
        if brief
        else [("kernel forward", "forward"), ("kernel backward", "backward"), ("kernels", "both")]
    )
    for name, part in parts:
        calls = [kernels(z, part) for z in inputs]
        ms = harness.device_time(calls)
        row = base | {"variant": name, "ms": ms, "call_ms": harness.call_time(calls)}
        if part == "both":
            row |= {"ratio": ms / floor, "TB/s": moved / ms / 1e9}
        found.append(row)
    for name, backend in [] if brief else [("public function", "auto"), ("public function, torch backend", "torch")]:
        calls = [by_autograd(public(backend), z, False) for z in inputs]
        ms = harness.call_time(calls)
        memory = harness.extra_memory(calls[0]) / (inputs[0].numel() * inputs[0].element_size())
        found.append(base | {"variant": name, "ms": ms, "call_ms": ms, "ratio": ms / floor, "memory_of_z": memory})
    return found


def plot(rows: list[harness.Row], path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(4.5, 3.2))
    for variant in ("kernels", "floor: copy 3/2 times"):
        some = [
            (int(r["shape"].split("x")[1]), r["ms"]) for r in rows if r["variant"] == variant and r["shape"][:2] == "1x"
        ]
        axis.loglog(*zip(*some), marker="o", label=variant)
    axis.set(xlabel="tokens of one sequence", ylabel="ms, forward and backward")
    axis.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def main() -> None:
    options = harness.arguments(__doc__ or "").parse_args()
    harness.need_cuda()
    parts = itertools.chain(
        (measure(shape, dtype) for shape in SHAPES for dtype in (torch.bfloat16, torch.float32)),
        (measure((1, tokens, 768), torch.bfloat16, brief=True) for tokens in LENGTHS),
    )
    rows, path = harness.collect("first_order", parts, options.out)
    columns = ("shape", "dtype", "variant", "ms", "call_ms", "ratio", "TB/s", "memory_of_z")
    print(harness.table(rows, columns))
    long = {r["shape"]: r["ms"] for r in rows if r["variant"] == "kernels"}
    print(f"time(131072)/time(16384) = {long['1x131072x768'] / long['1x16384x768']:.2f}")
    if options.plot:
        plot(rows, path.with_suffix(".png"))
    print(path)


if __name__ == "__main__":
    main()
