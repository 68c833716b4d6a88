"""Two logs of lm-eval, 100,000 items each, read and judged: seconds before and now.

Four choices and prompts of some 160 characters, 193 MB a log, written with the keys and the hashes of lm-eval 0.4.13.
`own_cpu` and `children_cpu`: processor seconds of the process and of those it starts to read beside it; `judging_cpu`:
the part of `own_cpu` that is not reading; `longest`: the larger of the two readings plus the judging, which is what two
cores take when nothing else runs on them. `wall` is by the clock, on a machine that may be shared. Medians of rounds in
which the trees take turns, each in a process of its own.

    mkdir -p /tmp/old && git archive COMMIT src | tar -x -C /tmp/old
    python benchmarks/bench_logs.py --old /tmp/old/src [--rounds 3] [--out benchmarks/results]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

NEW = Path(__file__).resolve().parent.parent / "src"
WORDS = "the of and a to in is you that it he was for on are as with his they at be this have from or one had by word"
COLUMNS = ("wall", "own_cpu", "children_cpu", "judging_cpu", "longest", "peak_mb")


def write_log(folder: Path, items: int, seed: int) -> None:
    """Write a log with the same questions for every seed, and different answers."""
    asked, answered, words = random.Random(7), random.Random(seed), WORDS.split()
    folder.mkdir(parents=True)
    with (folder / "samples_quiz_2026-11-16T07-00-00.000000.jsonl").open("w", encoding="utf-8") as file:
        for number in range(items):
            question = f"{number} {' '.join(asked.choices(words, k=40))}?"
            choices = [f"{asked.choice(words)} {asked.choice(words)}" for _ in range(4)]
            gold, prompt = asked.randrange(4), f"Question: {question}\nAnswer:"
            values = [-20 * answered.random() for _ in choices]
            right = float(values.index(max(values)) == gold)
            replies = [[str(value), "False"] for value in values]
            arguments = {f"gen_args_{k}": {"arg_0": prompt, "arg_1": f" {c}"} for k, c in enumerate(choices)}
            row = {
                "doc_id": number, "doc": {"question": question, "choices": choices, "answer": gold},
                "target": str(gold), "arguments": arguments, "resps": [[reply] for reply in replies],
                "filtered_resps": replies, "filter": "none", "metrics": ["acc", "acc_norm"],
            }  # fmt: skip
            hashes = zip(("doc_hash", "prompt_hash", "target_hash"), (question, prompt, str(gold)))
            row |= {key: hashlib.sha256(text.encode()).hexdigest() for key, text in hashes}
            file.write(json.dumps(row | {"acc": right, "acc_norm": right}) + "\n")


def measure(folder: Path) -> dict[str, float]:
    """Measure the package that is on the path."""
    from decondense.evaluate.readers import read_logs
    from decondense.stats.significance import significance

    begun, used = time.perf_counter(), time.process_time()
    found = significance(folder / "base", folder / "treated")
    wall, own = time.perf_counter() - begun, time.process_time() - used
    others = resource.getrusage(resource.RUSAGE_CHILDREN)
    children = others.ru_utime + others.ru_stime
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    (base,), (treated,) = (read_logs(folder / arm) for arm in ("base", "treated"))
    used = time.process_time()
    assert significance(base, treated).to_json() == found.to_json()
    judging = time.process_time() - used
    longest = max(own - judging, children) + judging
    return dict(zip(COLUMNS, (wall, own, children, judging, longest, peak)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--old", type=Path, help="src of an older state, to measure beside this one")
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="folder for logs.csv; default: only print")
    parser.add_argument("--here", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        print(json.dumps(measure(options.here)))
        return
    import harness

    trees = ({"before": options.old} if options.old else {}) | {"now": NEW}
    times: dict[str, list[dict[str, float]]] = {tree: [] for tree in trees}
    with tempfile.TemporaryDirectory() as place:
        for seed, arm in enumerate(("base", "treated")):
            write_log(Path(place) / arm, options.items, seed)
        for _ in range(options.rounds):
            for tree, source in trees.items():
                command = [sys.executable, __file__, "--here", place]
                path = os.environ | {"PYTHONPATH": str(source)}
                done = subprocess.run(command, env=path, capture_output=True, text=True, check=True)
                times[tree].append(json.loads(done.stdout.splitlines()[-1]))
    rows = [
        {"tree": tree, "items": options.items}
        | {column: statistics.median(one[column] for one in some) for column in COLUMNS}
        for tree, some in times.items()
    ]
    print(harness.table(rows, ("tree", "items", *COLUMNS)))
    if options.out:
        harness.write("logs", rows, options.out)


if __name__ == "__main__":
    main()
