"""`decondense evaluate` against lm-eval called directly with its best fixed batch size: time, agreement by item.

Both get the same task objects, the same model in memory and the same device; the time is that of building the prompts,
tokenising, scoring and collecting, without loading the model: wall seconds on an accelerator, CPU seconds of the
process on a CPU, where the machine may have other work. lm-eval runs once for every batch size, and the fastest of
them for each task is the baseline. One item of the first task goes through both before the clock starts.

    python benchmarks/bench_evaluate.py --model smollm2-135m --bench DIR --limit 25              # a CPU, minutes
    python benchmarks/bench_evaluate.py --model smollm2-135m --bench DIR --batch-sizes 64,256   # a GPU, all items

A machine without lm-eval, datasets or gguf and without a network: `--wheels FOLDER` unpacks the wheels in it and puts
them behind what is installed; `--model FOLDER/x.gguf` may also lie there in parts x.gguf.part0, x.gguf.part1, ….
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

import harness

COLUMNS = ("task", "items", "requests", "ours_s", "lm_eval_s", "batch_size", "ratio", "different_items", "largest_gap")


def unpack(folder: Path) -> None:
    # dill, which datasets uses, treats modules as importable only below a folder of this name
    target = Path(tempfile.mkdtemp(prefix="wheels-")) / "site-packages"
    for wheel in sorted(folder.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(target)
    sys.path.append(str(target))
    # packages that look for their neighbours by metadata read this too
    os.environ["PYTHONPATH"] = os.pathsep.join(p for p in (os.environ.get("PYTHONPATH"), str(target)) if p)


def join(model: str) -> str:
    path = Path(model)
    parts = sorted(path.parent.glob(f"{path.name}.part*")) if model.endswith(".gguf") and not path.exists() else []
    if parts:
        whole = Path(tempfile.mkdtemp(prefix="model-")) / path.name
        with whole.open("wb") as out:
            for part in parts:
                out.write(part.read_bytes())
        return str(whole)
    return model


def synchronise() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def clock() -> float:
    import torch

    return time.perf_counter() if torch.cuda.is_available() else time.process_time()


def timed(build: Any, run: Any) -> tuple[float, Any]:
    """Build the task objects outside the clock (both sides read the same files), everything else inside."""
    tasks = build()
    synchronise()
    begun = clock()
    result = run(tasks)
    synchronise()
    return clock() - begun, result


def compare(options: Any, pair: Any, name: str) -> harness.Row:
    from lm_eval.evaluator import evaluate as lm_evaluate
    from lm_eval.models.huggingface import HFLM

    from decondense.evaluate import harness as own
    from decondense.evaluate import tasks as catalogue
    from decondense.evaluate.scorer import Scorer
    from decondense.insides.lm_eval import quiet

    def build() -> Any:
        return catalogue.build([name], catalogue.bench_folder(options.bench), shots=options.shots)[0]

    def ours(benchmark: Any) -> Any:
        with quiet():
            scorer = Scorer(*pair)
        return own._run(benchmark, scorer, options.limit, lambda what, done, of: None)

    def theirs(benchmark: Any, size: int) -> Any:
        with quiet():
            lm = HFLM(pretrained=pair[0], tokenizer=pair[1], batch_size=size, softmax_dtype="float32")
            plain = lm.loglikelihood
            lm.loglikelihood = lambda requests: plain(requests, disable_tqdm=True)  # type: ignore[method-assign]
            got = lm_evaluate(
                lm=lm, task_dict={"tasks": benchmark.tasks}, limit=options.limit, bootstrap_iters=0, log_samples=True
            )
        return [row for subtask in benchmark.tasks for row in got["samples"][subtask]]

    mine_s, times, items, rows = [], {}, [], []
    for _ in range(options.repeats):
        seconds, items = timed(build, ours)
        mine_s.append(seconds)
        for size in options.batch_sizes:
            seconds, rows = timed(build, lambda benchmark, size=size: theirs(benchmark, size))
            times.setdefault(size, []).append(seconds)
    best = min(times, key=lambda size: statistics.median(times[size]))
    gaps, different = [0.0], 0
    for item, row in zip(items, rows, strict=True):
        gaps += [abs(a - b[0]) for a, b in zip(item["loglikelihoods"], row["filtered_resps"], strict=True)]
        different += abs(item["correct"] - row["acc"]) > 1e-3
    first, second = statistics.median(mine_s), statistics.median(times[best])
    return {
        "task": name,
        "items": len(items),
        "requests": sum(len(item["loglikelihoods"]) for item in items),
        "shots": options.shots,
        "ours_s": first,
        "lm_eval_s": second,
        "batch_size": best,
        "ratio": first / second,
        "ours_acc": sum(item["correct"] for item in items) / len(items),
        "lm_eval_acc": sum(float(row["acc"]) for row in rows) / len(rows),
        "different_items": int(different),
        "largest_gap": max(gaps),
    }


def warm_up(options: Any, pair: Any, name: str) -> None:
    """The first batches on a device also load its kernels: that is not the first task's time."""
    compare(argparse.Namespace(**vars(options) | {"limit": 1, "repeats": 1}), pair, name)


def main() -> None:
    parser = harness.arguments(__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--bench", required=True, help="folder of benchmark files")
    parser.add_argument("--tasks", default="paper")
    parser.add_argument("--shots", default="gpt2")
    parser.add_argument("--limit", type=int, help="items per task; default all")
    parser.add_argument("--batch-sizes", default="4,16,64", help="what lm-eval may choose from")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--device")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--wheels", type=Path, help="folder of wheels to unpack")
    parser.add_argument("--seconds", type=float, help="begin no further task after so many seconds")
    parser.add_argument("--name", default="evaluate", help="name of the CSV file")
    parser.add_argument("--run", type=Path, help="first run the `evaluate` command itself into this folder, in --dtype")
    options = parser.parse_args()
    options.batch_sizes = [int(size) for size in options.batch_sizes.split(",") if size]
    if options.wheels:
        unpack(options.wheels)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    model = join(options.model)
    if options.run is not None:
        from decondense.commands.evaluate import evaluate

        evaluate(
            model,
            tasks=options.tasks,
            bench=options.bench,
            shots=options.shots,
            limit=options.limit,
            out_dir=options.run,
            dtype=options.dtype,
            device=options.device,
        )
    if not options.batch_sizes:
        return
    from decondense import models
    from decondense.evaluate.task_names import names_of

    pair = models.load(model, device=options.device, dtype=options.dtype)
    rows: list[harness.Row] = []
    names = names_of(options.tasks)
    warm_up(options, pair, names[0])
    begun = time.monotonic()
    for name in names:
        if options.seconds and time.monotonic() - begun > options.seconds:
            print(f"no time left for {name}")
            continue
        try:
            rows.append(compare(options, pair, name))
        except Exception as error:  # such as too little memory for lm-eval's batches: the other tasks go on
            print(f"{name}: {type(error).__name__}: {error}".splitlines()[0], flush=True)
            continue
        print(harness.table(rows[-1:], COLUMNS), flush=True)
        done = [*rows, total(rows)] if len(rows) > 1 else rows
        harness.write(
            options.name, [row | {"model": Path(model).name, "dtype": options.dtype} for row in done], options.out
        )
    if not rows:
        raise SystemExit("no task was finished")
    print(harness.table([*rows, total(rows)], COLUMNS))


def total(rows: list[harness.Row]) -> harness.Row:
    """All tasks together; the baseline may choose another batch size for every task."""
    sums = {
        key: sum(row[key] for row in rows) for key in ("items", "requests", "ours_s", "lm_eval_s", "different_items")
    }
    return {
        "task": "all",
        **sums,
        "ratio": sums["ours_s"] / sums["lm_eval_s"],
        "largest_gap": max(r["largest_gap"] for r in rows),
    }


if __name__ == "__main__":
    main()
