"""Run every benchmark that this machine can run, one after the other: what `make bench` does."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

import torch

HERE = Path(__file__).parent
CPU = ["bench_losses.py", "bench_agreement.py", "bench_measure.py", "bench_monitor.py", "bench_significance.py"]
GPU = [
    "bench_exact.py",
    "bench_first_order.py",
    "bench_cosines.py",
    "bench_train_step.py",
    "profile_train_step.py",
    "profile_compiled_step.py",
    "profile_lone_call.py",
    "bench_throughput.py",
    "bench_heads.py",
    "bench_long.py",
]


def main() -> int:
    argparse.ArgumentParser(description=__doc__).parse_args()  # so that --help does not start the benchmarks
    scripts = CPU + (GPU if torch.cuda.is_available() else [])
    if not torch.cuda.is_available():
        print(f"no CUDA device here: leaving out {', '.join(GPU)}")
    failed = []
    for name in scripts:
        if not (HERE / name).exists():
            continue
        print(f"\n== {name}", flush=True)
        started = time.perf_counter()
        if subprocess.run([sys.executable, str(HERE / name)]).returncode:
            failed.append(name)
        print(f"== {name}: {time.perf_counter() - started:.0f} s", flush=True)
    if failed:
        print("failed: " + ", ".join(failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
