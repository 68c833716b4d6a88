"""Two states of this package against each other: a training step without a loss and with each estimator, in one run.

GPT2-124M, 32 sequences of 1024 tokens, bfloat16 autocast, fused AdamW; eager, and with its blocks compiled one by one.
Each tree runs in a process of its own; within it the variants take turns, and times are ratios to that without a loss.

    mkdir -p /tmp/old && git archive COMMIT src | tar -x -C /tmp/old
    python benchmarks/bench_taps.py --old /tmp/old/src [--rounds 4]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

VARIANTS = ("none", "first_order", "second_order", "exact")
NEW = Path(__file__).resolve().parent.parent / "src"


def measure(rounds: int) -> dict[str, dict[str, Any]]:
    """{model: {variant: median milliseconds of a step, its spread, peak GiB}} with the package on the path."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    import decondense as dc

    result: dict[str, dict[str, Any]] = {}
    for name in ("eager", "compiled blocks"):
        torch.manual_seed(0)
        with torch.device("cuda"):
            model = GPT2LMHeadModel(GPT2Config(use_cache=False, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)).train()
        if name != "eager":
            for block in model.transformer.h:
                block.compile()
        optimiser = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
        ids = torch.randint(0, model.config.vocab_size, (32, 1024), device="cuda")

        def steps(variant: str, repeats: int, model: Any = model, optimiser: Any = optimiser, ids: Any = ids) -> float:
            handle = None if variant == "none" else dc.regularize(model, weight=0.1, estimator=variant)
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            for _ in range(repeats):
                with torch.autocast("cuda", torch.bfloat16):
                    loss = model(input_ids=ids, labels=ids).loss
                loss.backward()
                optimiser.step()
                optimiser.zero_grad(set_to_none=True)
            end.record()
            torch.cuda.synchronize()
            if handle is not None:
                handle.remove()
            return start.elapsed_time(end) / repeats

        memory, times = {}, {variant: list[float]() for variant in VARIANTS}
        for variant in VARIANTS:
            steps(variant, 2)
            torch.cuda.reset_peak_memory_stats()
            steps(variant, 1)
            memory[variant] = torch.cuda.max_memory_allocated() / 2**30
        for _ in range(rounds):
            for variant in VARIANTS:
                steps(variant, 1)  # the allocator settles
                times[variant].append(steps(variant, 4))
        result[name] = {
            v: {"ms": statistics.median(t), "spread": max(t) - min(t), "GiB": memory[v]} for v, t in times.items()
        }
        del model, optimiser
        torch.cuda.empty_cache()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", help="the src folder of the other state")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--out", type=Path, help="folder for taps.csv; default: only print")
    parser.add_argument("--child", action="store_true", help="measure the package on the path and print JSON")
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(options.rounds)))
        return
    trees = {"new": NEW} if options.old is None else {"old": options.old, "new": NEW}
    rows = []
    print(f"{'':4} {'model':16} {'loss':13} {'ms':>8} {'over none':>10} {'spread':>8} {'GiB':>7}")
    for tree, path in trees.items():
        command = [sys.executable, __file__, "--child", "--rounds", str(options.rounds)]
        environment = {**os.environ, "PYTHONPATH": str(path)}
        run = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        for model, variants in json.loads(run.stdout.splitlines()[-1]).items():
            base = variants["none"]["ms"]
            for variant, row in variants.items():
                ratio, spread = row["ms"] / base, row["spread"] / base
                cells = {"tree": tree, "model": model, "loss": variant, "ms": row["ms"], "ratio": ratio}
                rows.append(cells | {"spread": spread, "peak_gib": row["GiB"]})
                print(
                    f"{tree:4} {model:16} {variant:13} {row['ms']:8.2f} {ratio:10.4f} {spread:8.4f} {row['GiB']:7.2f}"
                )
    if options.out is not None:
        import harness

        harness.write("taps", rows, options.out)


if __name__ == "__main__":
    main()
