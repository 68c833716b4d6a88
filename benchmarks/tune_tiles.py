"""Shapes of the Gram matrix's tiles on this GPU: what `gram_tile` in kernels/pairwise.py should say.

Forward passes of the exact and the second-order kernel in the setting of a training step (float32 states under
bfloat16 autocast), GPU time in ms; the first line is what is in use (second order: at most `STAGES` stages).

    python benchmarks/tune_tiles.py
"""

from __future__ import annotations

from collections.abc import Callable

import harness
import torch
from bench_exact import states

from decondense.kernels import pairwise, second_order
from decondense.kernels.pairwise import Tile

SHAPES = [(32, 1024, 768), (4, 4096, 1024)]
TILES = [
    Tile(128, 128, 64, 8, 4),
    Tile(128, 128, 64, 8, 3),
    Tile(128, 128, 64, 8, 2),
    Tile(128, 128, 64, 4, 3),
    Tile(128, 128, 32, 8, 4),
    Tile(128, 128, 128, 8, 2),
    Tile(64, 64, 64, 4, 4),
    Tile(256, 256, 64, 8, 2),
]


def forward(kernel: str, z: torch.Tensor) -> Callable[[], object]:
    def call() -> object:
        with torch.autocast("cuda", torch.bfloat16):
            return pairwise.forward(z) if kernel == "exact" else second_order.forward(z)

    return call


def main() -> None:
    harness.need_cuda()
    used, stages = pairwise.gram_tile, second_order.STAGES
    rows: list[harness.Row] = []
    for tile in [None, *TILES]:
        shown = used(2, "tf32", torch.device("cuda", 0)) if tile is None else tile
        row: harness.Row = {"tile": "x".join(map(str, shown[:3])), "warps": shown.warps, "stages": shown.stages}
        second_order.STAGES = stages if tile is None else tile.stages
        pairwise.gram_tile = used if tile is None else (lambda *_, one=tile: one)  # type: ignore[assignment]
        pairwise.prepared.cache_clear()
        for shape in SHAPES:
            inputs = [states(shape, torch.float32, seed) for seed in range(3)]
            for kernel in ("exact", "second_order"):
                try:
                    ms = harness.device_time([forward(kernel, z) for z in inputs], budget=0.1, rounds=7)
                except Exception as failure:  # too much shared memory, too many registers: no candidate here
                    ms = type(failure).__name__
                row[f"{kernel} {'x'.join(map(str, shape))}"] = ms
        rows.append(row)
        print(harness.table([row], list(row)), flush=True)
    pairwise.gram_tile = used
    print(harness.table(rows, list(rows[0])))


if __name__ == "__main__":
    main()
