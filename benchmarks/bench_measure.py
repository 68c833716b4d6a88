"""What the meter costs: time and peak memory of `measure` against the bare forward passes over the same batches.

    python benchmarks/bench_measure.py                      # SmolLM2-135M, 100 windows × 512 tokens, 2 threads
    python benchmarks/bench_measure.py --windows 16 --authors SITE

Every variant runs in a process of its own, so that its peak memory is its own, and the variants take turns, so that
a busy machine hits all of them. `--authors SITE` adds the paper authors' package, installed apart with
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
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

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
    settings = {"tokens": options.tokens, "spectral": options.variant == "spectral", "released": False}
    device = next(model.parameters()).device

    def bare() -> None:
        for b in batches:
            with torch.inference_mode():
                model(input_ids=ids[b].to(device), use_cache=False)

    def ours() -> None:
        reader = StateReader(model)
        tally = run._empty(reader, settings)
        run._run(reader, drawn.ids, batches, tally, settings, None, 0, "", None)

    def authors() -> None:
        from embedding_condensation import measure_embedding_condensation

        passages = [text.joined[o["start"] : o["start"] + 16 * options.tokens] for o in drawn.origins]
        measure_embedding_condensation(
            model, tokenizer, repetitions=len(passages), max_length=options.tokens, texts=passages,
            plot=False, show_progress=False,
        )  # fmt: skip

    if options.variant == "authors":
        sys.path.append(str(Path(options.authors).resolve()))
        os.chdir(tempfile.mkdtemp())  # it leaves a picture where it runs
        import embedding_condensation  # noqa: F401  (its import tries to download; that is not counted)
    job = {"bare": bare, "authors": authors}.get(options.variant, ours)
    with torch.inference_mode():
        model(input_ids=ids[:1].to(device), use_cache=False)
    if device.type == "cuda":
        torch.cuda.synchronize()
    wall, processor = time.perf_counter(), time.process_time()
    job()
    if device.type == "cuda":
        torch.cuda.synchronize()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform != "darwin" else 2**30)
    found = {
        "wall_s": time.perf_counter() - wall,
        "cpu_s": time.process_time() - processor,
        "peak_gib": peak,
        "gpu_peak_gib": torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else 0.0,
    }
    print(json.dumps(found))


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
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--authors", help="folder in which embedding-condensation is installed")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--variant", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.variant:
        child(options)
        return

    variants = ["bare", "default", "spectral"] + (["authors"] if options.authors else [])
    found: dict[str, list[dict[str, float]]] = {v: [] for v in variants}
    for _ in range(options.rounds):
        for variant in variants:
            run = subprocess.run(
                [sys.executable, __file__, *sys.argv[1:], "--variant", variant],
                stdout=subprocess.PIPE,
                text=True,
                check=True,
                env=os.environ | {"OMP_NUM_THREADS": str(options.threads)},
            )
            found[variant].append(json.loads(run.stdout.strip().splitlines()[-1]))
            print(f"{variant:<9} {found[variant][-1]}", file=sys.stderr)

    median = {v: {k: statistics.median(r[k] for r in rows) for k in rows[0]} for v, rows in found.items()}
    base = median["bare"]
    rows = []
    for variant in variants:
        m = median[variant]
        rows.append(
            {
                "variant": variant,
                "model": options.model,
                "windows": options.windows,
                "tokens": options.tokens,
                "batch": options.batch,
                "threads": options.threads,
                "device": options.device,
                "rounds": options.rounds,
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
