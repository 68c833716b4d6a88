"""What the meter costs: time and peak memory of `measure` against the bare forward passes over the same batches.

    python benchmarks/bench_measure.py                      # SmolLM2-135M, 100 windows × 512 tokens, 2 threads
    python benchmarks/bench_measure.py --windows 16 --authors SITE

Time: one process goes over the batches, and every batch goes through all variants one after the other, so that a busy
machine hits all of them alike. Memory: every variant once more in a process of its own, so that its peak is its own.
`--authors SITE` adds the paper authors' package, installed apart with
`pip install --no-deps --target SITE embedding-condensation==2.0 nltk`: it is not a dependency of this project.

Targets: default views ≤ 1.10 × the time of the bare passes, with --spectral ≤ 1.6 ×, memory ≤ bare + 0.5 GiB.
The ratio of processor time is printed beside the ratio of wall time: on a machine that others use too, it is the
steadier of the two.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "measure.csv"


def child(options: argparse.Namespace) -> None:
    import torch

    torch.set_num_threads(options.threads)
    from decondense.meter import run
    from decondense.meter.states import StateReader
    from decondense.models import load
    from decondense.text import open_text
    from decondense.windows import draw_windows

    model, tokenizer = load(options.model, head=False, device=options.device)
    text = open_text(options.text)
    drawn = draw_windows(text, tokenizer, windows=options.windows, tokens=options.tokens)
    ids = torch.from_numpy(drawn.ids)
    batches = [list(range(i, min(i + options.batch, len(ids)))) for i in range(0, len(ids), options.batch)]
    device = next(model.parameters()).device
    reader = StateReader(model)

    def bare(batch: list[int]) -> None:
        with torch.inference_mode():
            model(input_ids=ids[batch].to(device), use_cache=False)

    def ours(spectral: bool) -> Callable[[list[int]], object]:
        settings = {"tokens": options.tokens, "spectral": spectral, "released": False}
        return lambda batch: run._batch(reader, ids[batch], batch, settings)

    def authors(batch: list[int]) -> None:
        from embedding_condensation import measure_embedding_condensation

        places = [drawn.origins[w]["start"] for w in batch]
        passages = [text.joined[at : at + 16 * options.tokens] for at in places]
        measure_embedding_condensation(
            model, tokenizer, repetitions=len(passages), max_length=options.tokens, texts=passages,
            plot=False, show_progress=False,
        )  # fmt: skip

    jobs: dict[str, Callable[[list[int]], object]] = {"bare": bare, "default": ours(False), "spectral": ours(True)}
    if options.authors and options.job in ("time", "authors"):
        sys.path.append(str(Path(options.authors).resolve()))
        os.chdir(tempfile.mkdtemp())  # it leaves a picture where it runs
        import embedding_condensation  # noqa: F401  (its import tries to download; that is not counted)

        jobs["authors"] = authors
    for name, warm in jobs.items():
        if options.job in ("time", name):
            warm([0, 1])
    if options.job != "time":
        # The authors' package keeps every matrix until the end: all windows in one call.
        for batch in [list(range(len(ids)))] if options.job == "authors" else batches:
            jobs[options.job](batch)
        unit = 2**30 if sys.platform == "darwin" else 2**20
        print(json.dumps({"peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit}))
        return
    spent = {name: {"wall_s": 0.0, "cpu_s": 0.0} for name in jobs}
    for number, batch in enumerate(batches):
        for name, job in jobs.items():
            wall, processor = time.perf_counter(), time.process_time()
            job(batch)
            if device.type == "cuda":
                torch.cuda.synchronize()
            spent[name]["wall_s"] += time.perf_counter() - wall
            spent[name]["cpu_s"] += time.process_time() - processor
        ratios = {k: round(v["wall_s"] / spent["bare"]["wall_s"], 3) for k, v in spent.items()}
        print(f"batch {number + 1} of {len(batches)}: {ratios}", file=sys.stderr, flush=True)
    print(json.dumps(spent))


def hardware() -> dict[str, str]:
    import importlib.metadata

    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            model = line.split(":")[1].strip()
            break
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    versions = {name: importlib.metadata.version(name) for name in ("torch", "transformers")}
    return {"cpu": model, "cores": str(os.cpu_count()), **versions, "commit": commit}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--text", default="wikitext-2")
    parser.add_argument("--windows", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--authors", help="folder in which embedding-condensation is installed")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        child(options)
        return

    def job(name: str) -> dict[str, Any]:
        run = subprocess.run(
            [sys.executable, __file__, *sys.argv[1:], "--job", name],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            env=os.environ | {"OMP_NUM_THREADS": str(options.threads)},
        )
        return json.loads(run.stdout.strip().splitlines()[-1])

    found = job("time")
    variants = list(found)
    for variant in variants:
        found[variant] |= job(variant)
        print(f"{variant:<9} {found[variant]}", file=sys.stderr, flush=True)
    base = found["bare"]
    rows = []
    for variant in variants:
        m = found[variant]
        rows.append(
            {
                "variant": variant,
                "model": options.model,
                "windows": options.windows,
                "tokens": options.tokens,
                "batch": options.batch,
                "threads": options.threads,
                "device": options.device,
                "wall_s": round(m["wall_s"], 2),
                "cpu_s": round(m["cpu_s"], 2),
                "wall_ratio": round(m["wall_s"] / base["wall_s"], 3),
                "cpu_ratio": round(m["cpu_s"] / base["cpu_s"], 3),
                "peak_gib": round(m["peak_gib"], 2),
                "extra_gib": round(m["peak_gib"] - base["peak_gib"], 2),
                **hardware(),
            }
        )
    print(f"{'variant':<10}{'wall s':>9}{'ratio':>8}{'cpu ratio':>11}{'peak GiB':>10}{'extra':>8}")
    for r in rows:
        print(
            f"{r['variant']:<10}{r['wall_s']:>9}{r['wall_ratio']:>8}{r['cpu_ratio']:>11}{r['peak_gib']:>10}"
            f"{r['extra_gib']:>8}"
        )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
