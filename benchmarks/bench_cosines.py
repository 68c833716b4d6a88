"""Histogram and sums of all cosines of a sequence by the kernel; the histogram alone by the N×N matrix and torch.histc.

python benchmarks/bench_cosines.py [--out DIR] [--plot]
"""

from __future__ import annotations

from collections.abc import Callable

import harness
import torch
from bench_exact import states

from decondense.kernels.cosines import cosines

SHAPES = [(8, 512, 576), (8, 1024, 1024), (1, 8192, 1024)]


def dense(u: torch.Tensor) -> torch.Tensor:
    c = torch.bmm(u, u.transpose(1, 2)).float()
    lower = torch.ones(c.shape[1:], dtype=torch.bool, device=u.device).tril(-1)
    return torch.stack([torch.histc(one[lower].clamp(-1, 1), 128, -1, 1) for one in c]).long()


def main() -> None:
    options = harness.arguments(__doc__ or "").parse_args()
    harness.need_cuda()
    rows: list[harness.Row] = []
    for shape in SHAPES:
        for dtype in (torch.float32, torch.bfloat16):
            z = states(shape, torch.float32, 0)
            u = (z / z.norm(dim=-1, keepdim=True)).to(dtype)
            base = {"shape": "x".join(map(str, shape)), "dtype": str(dtype).removeprefix("torch.")}
            moved = int((dense(u.float()) - cosines(u).counts).abs().sum()) // 2
            variants: list[tuple[str, Callable[[], torch.Tensor]]] = [
                ("torch: N×N and histc", lambda u=u: dense(u)),
                ("kernel", lambda u=u: cosines(u).counts),
            ]
            first = 0.0
            for name, call in variants:
                ms = harness.call_time([call], budget=0.2)
                first = first or ms
                memory = harness.extra_memory(call) / 2**20
                rows.append(base | {"variant": name, "ms": ms, "ratio": ms / first, "memory_MiB": memory})
            rows[-1]["pairs_in_another_bin"] = moved / (shape[0] * shape[1] * (shape[1] - 1) / 2)
    print(harness.table(rows, ("shape", "dtype", "variant", "ms", "ratio", "memory_MiB", "pairs_in_another_bin")))
    path = harness.write("cosines", rows, options.out)
    if options.plot:
        harness.bars(rows, path.with_suffix(".png"))
    print(path)


if __name__ == "__main__":
    main()
