"""What the meter costs: time and peak memory of `measure` against the bare forward passes over the same batches.

    python benchmarks/bench_measure.py                      # SmolLM2-135M, 100 windows × 512 tokens, 2 threads
    python benchmarks/bench_measure.py --windows 16 --authors SITE
    python benchmarks/bench_measure.py --device cuda --model FOLDER --text pydoc

On a CPU: one process goes over the batches, and every batch goes through all variants one after the other, so that a
busy machine hits all of them alike. Memory: every variant once more in a process of its own, so that its peak is its
own. `--authors SITE` adds the paper authors' package, installed apart with
`pip install --no-deps --target SITE embedding-condensation==2.0 nltk`: it is not a dependency of this project.

On a GPU: everything in one process, since a GPU's memory has its own counter. A round is a whole pass over the batches
by every variant in turn, as `measure` makes it, with one synchronisation at its end; the figures are medians over the
rounds after a first, warm-up round. Loading the model is not timed. Two more rows say what the eigenvalues alone take:
those of one batch, by the kernel and by torch.linalg on the GPU, times the batches. `--batch 4,16` does all this with 4
windows a pass and then with 16, each beside bare passes of as many. Rows go to measure_gpu.csv.

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

    model, tokenizer = load(options.model, head=False, device=options.device, dtype=options.dtype)
    text = open_text(options.text)
    drawn = draw_windows(text, tokenizer, windows=options.windows, tokens=options.tokens)
    ids = torch.from_numpy(drawn.ids)
    batches = {n: [list(range(i, min(i + n, len(ids)))) for i in range(0, len(ids), n)] for n in options.batch}
    device = next(model.parameters()).device
    reader = StateReader(model)

    def bare(batch: list[int]) -> None:
        with torch.inference_mode():
            model(input_ids=ids[batch].to(device), use_cache=False)

    def ours(spectral: bool) -> Callable[[list[int]], object]:
        settings = {"tokens": options.tokens, "spectral": spectral, "released": False}
        return lambda batch: [None for _ in run._tallies(reader, ids, [batch], settings, lambda _stage: None)]

    if device.type == "cuda":
        print(json.dumps({n: on_gpu(options, reader, ids, cut, bare) for n, cut in batches.items()}))
        return
    (of_size,) = batches.values()

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
        for batch in [list(range(len(ids)))] if options.job == "authors" else of_size:
            jobs[options.job](batch)
        unit = 2**30 if sys.platform == "darwin" else 2**20
        print(json.dumps({"peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit}))
        return
    spent = {name: {"wall_s": 0.0, "cpu_s": 0.0} for name in jobs}
    for number, batch in enumerate(of_size):
        for name, job in jobs.items():
            wall, processor = time.perf_counter(), time.process_time()
            job(batch)
            spent[name]["wall_s"] += time.perf_counter() - wall
            spent[name]["cpu_s"] += time.process_time() - processor
        ratios = {k: round(v["wall_s"] / spent["bare"]["wall_s"], 3) for k, v in spent.items()}
        print(f"batch {number + 1} of {len(of_size)}: {ratios}", file=sys.stderr, flush=True)
    print(json.dumps(spent))


def on_gpu(
    options: argparse.Namespace, reader: Any, ids: Any, batches: list[list[int]], bare: Callable[[list[int]], None]
) -> dict[str, dict[str, float]]:
    import torch

    from decondense.meter import run

    def passes(spectral: bool) -> None:
        settings = {"tokens": options.tokens, "spectral": spectral, "released": False}
        for _ in run._tallies(reader, ids, batches, settings, lambda _stage: None):
            pass

    jobs: dict[str, Callable[[], Any]] = {
        "bare": lambda: [bare(batch) for batch in batches],
        "default": lambda: passes(False),
        "spectral": lambda: passes(True),
    }
    rounds: dict[str, list[tuple[float, float]]] = {name: [] for name in jobs}
    peaks = {}
    for number in range(1 + options.rounds):
        for name, job in jobs.items():
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            wall, processor = time.perf_counter(), time.process_time()
            job()
            torch.cuda.synchronize()
            rounds[name].append((time.perf_counter() - wall, time.process_time() - processor))
            peaks[name] = torch.cuda.max_memory_allocated() / 2**30
            said = f"{len(batches[0])} a pass, round {number}, {name}: {rounds[name][-1][0]:.3f} s"
            print(said, file=sys.stderr, flush=True)
    found = {}
    for name, times in rounds.items():
        wall_s, cpu_s = (statistics.median(column) for column in zip(*times[1:]))
        found[name] = {"wall_s": wall_s, "cpu_s": cpu_s, "peak_gib": peaks[name]}
    matrices, size = reader.states * len(batches[0]), min(options.tokens, reader.width)
    for where, seconds in eigenvalues(matrices, size).items():
        wall_s = seconds * len(ids) / len(batches[0])
        found[f"eigenvalues alone, {where}"] = {"wall_s": wall_s, "cpu_s": 0.0, "peak_gib": 0.0}
    return found


def eigenvalues(number: int, size: int) -> dict[str, float]:
    """Seconds for the eigenvalues of `number` Gram matrices of random tokens; torch is timed on an eighth of them."""
    import torch

    from decondense.kernels import eigenvalues as kernel

    z = torch.randn(number, size, 2 * size, device="cuda", dtype=torch.float64)
    gram = z @ z.mT
    ways = {"GPU": (torch.linalg.eigvalsh, gram[: max(1, number // 8)])}
    if size <= kernel.LIMIT:
        ways = {"kernel": (kernel.eigenvalues, gram)} | ways
    spent = {}
    for where, (way, some) in ways.items():
        for _ in range(2):
            torch.cuda.synchronize()
            begun = time.perf_counter()
            way(some)
            torch.cuda.synchronize()
            spent[where] = (time.perf_counter() - begun) * number / len(some)
    return spent


def hardware() -> dict[str, str]:
    import importlib.metadata

    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            model = line.split(":")[1].strip()
            break
    from decondense.files import commit

    versions = {name: importlib.metadata.version(name) for name in ("torch", "transformers")}
    return {"cpu": model, "cores": str(os.cpu_count()), **versions, "commit": commit()}


def write_gpu(options: argparse.Namespace, found: dict[str, dict[str, dict[str, float]]]) -> None:
    import harness

    rows = [
        {
            "variant": variant, "model": Path(options.model).name, "windows": options.windows, "tokens": options.tokens,
            "batch": batch, "dtype": options.dtype or "", "wall_s": m["wall_s"], "cpu_s": m["cpu_s"],
            "wall_ratio": m["wall_s"] / of_batch["bare"]["wall_s"], "peak_gib": m["peak_gib"] or "",
            "extra_gib": m["peak_gib"] - of_batch["bare"]["peak_gib"] if m["peak_gib"] else "",
        }
        for batch, of_batch in found.items()
        for variant, m in of_batch.items()
    ]  # fmt: skip
    print(harness.table(rows, ("batch", "variant", "wall_s", "cpu_s", "wall_ratio", "peak_gib", "extra_gib")))
    print(harness.write("measure_gpu", rows, options.out or harness.RESULTS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--text", default="wikitext-2")
    parser.add_argument("--windows", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--batch", help="windows per forward pass; on a GPU several, default 4,16, else one, default 4")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", help="of the model; default its own")
    parser.add_argument("--rounds", type=int, default=3, help="passes of every variant on a GPU")
    parser.add_argument("--authors", help="folder in which embedding-condensation is installed")
    parser.add_argument("--out", type=Path, help="a CSV file, on a GPU a folder")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    try:
        options.batch = [int(n) for n in (options.batch or ("4" if options.device == "cpu" else "4,16")).split(",")]
    except ValueError:
        parser.error(f"--batch must be whole numbers, such as 4,16, got {options.batch!r}.")
    if options.device == "cpu" and len(options.batch) > 1:
        parser.error("several batches are for a GPU, got --device cpu: give one.")
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
    if options.device != "cpu":
        write_gpu(options, found)
        return
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
                "batch": options.batch[0],
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
    out = options.out or RESULTS
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
