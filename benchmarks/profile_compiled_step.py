"""What the loss adds to a step of `decondense train` with compiled blocks, kernel by kernel, by name.

    python benchmarks/profile_compiled_step.py [--streams float32] [--steps 3] [--out DIR]

The last rows of `bench_throughput.py`: the same recipe through the same call, SmolLM2-135M's architecture with random
weights. Two steps compile and allocate, `--steps` are timed, as many are recorded. A row is a kernel: its calls and its
time per step, and how much of both is added to the step without a loss in the same stream. A difference in time at the
same number of calls is noise (clock, cache), or the kernel waited for memory that the loss also used. Kernels below a
two-thousandth of the step are one row; `sum` is all that the GPU did, `by the clock` a step that was not recorded.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import bench_throughput as throughput
import harness
import torch
from profile_train_step import OURS
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from decondense.train import train

COLUMNS = ["stream", "variant", "kernel", "what", "calls", "us", "added_calls", "added_us", "of_step"]
SMALL, REST = 1 / 2000, "the rest"
PRINTED = 60  # characters of a kernel's name on the terminal; the file has all of it
CLOCKED = 2  # the step after which Trainer's clock runs


class Profile(NamedTuple):
    """One step: calls and microseconds by the name of the kernel, and microseconds by the clock."""

    calls: dict[str, float]
    us: dict[str, float]
    clock: float


class Recorder:
    """Records the steps from `begin` to `end`; `train(show=…)` calls it at every step."""

    def __init__(self, begin: int, end: int, batch_tokens: int) -> None:
        self.begin, self.end, self.batch_tokens = begin, end, batch_tokens
        self.clock = float("nan")
        kind = ProfilerActivity.CUDA if torch.cuda.is_available() else ProfilerActivity.CPU
        self.profile: Any = profile(activities=[kind], acc_events=True)
        self.running = self.done = False

    def __call__(self, step: int, figures: dict[str, float]) -> None:
        """A step may be reported twice, before and after its figures are logged."""
        if step == self.begin and not self.running:
            self.clock = 1e6 * self.batch_tokens / figures["tokens_per_second"]
            self.running = True
            _wait()
            self.profile.start()
        elif step == self.end and not self.done:
            _wait()
            self.profile.stop()
            self.done = True

    def result(self) -> Profile:
        steps, calls, us = self.end - self.begin, Counter[str](), Counter[str]()
        kind = DeviceType.CUDA if torch.cuda.is_available() else DeviceType.CPU
        for event in self.profile.events():
            if event.device_type == kind and not event.is_user_annotation:  # annotations are spans around kernels
                calls[event.name] += 1
                us[event.name] += event.time_range.elapsed_us()
        return Profile({k: n / steps for k, n in calls.items()}, {k: t / steps for k, t in us.items()}, self.clock)


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def measure(settings: list[str], steps: int, batch_tokens: int, folder: Path) -> Profile:
    begin = CLOCKED + steps
    recorder = Recorder(begin, begin + steps, batch_tokens)
    recipe = throughput.recipe(begin + steps, batch_tokens, [*settings, "train.checkpoints=0"])
    with tempfile.TemporaryDirectory(dir=folder) as own:
        train(recipe, Path(own) / "run", cache=folder / "tokens", show=recorder, draw=False)
    return recorder.result()


def compared(found: Profile, base: Profile) -> list[harness.Row]:
    """The kernels of a step, what was added first; then what is below `SMALL`, the sum, and the clock."""
    whole = sum(base.us.values())
    names = {**found.us, **base.us}
    shown = {k: k if max(p.us.get(k, 0.0) for p in (found, base)) >= SMALL * whole else REST for k in names}
    lines: dict[str, list[float]] = {}
    for name in names:
        figures = [source.get(name, 0.0) for source in (found.calls, found.us, base.calls, base.us)]
        for kernel in (shown[name], "sum"):
            lines[kernel] = [a + b for a, b in zip(lines.get(kernel, [0.0] * 4), figures)]
    order = sorted(lines, key=lambda k: (k == "sum", k == REST, lines[k][3] - lines[k][1], -lines[k][1]))
    rows: list[harness.Row] = []
    for kernel in order:
        calls, us, base_calls, base_us = lines[kernel]
        what = next((about for own, about in OURS.items() if kernel.startswith(own)), "")
        rows.append({"kernel": kernel, "what": what, "calls": calls, "us": us, "added_calls": calls - base_calls})
        rows[-1] |= {"added_us": us - base_us, "of_step": (us - base_us) / whole}
    clock = {"added_us": found.clock - base.clock, "of_step": (found.clock - base.clock) / base.clock}
    rows.append({"kernel": "by the clock", "what": "", "calls": "", "us": found.clock, "added_calls": "", **clock})
    return rows


def short(kernel: str) -> str:
    """The name of a kernel without namespaces, template arguments and parameters."""
    name, depth = "", 0
    for character in kernel.replace("(anonymous namespace)::", ""):
        depth -= character == ">"
        if character == "(" and not depth:
            break
        name += character if not depth and character not in "<>" else ""
        depth += character == "<"
    return (name.strip().split("::")[-1].removeprefix("void ") or kernel)[:PRINTED]


def main() -> None:
    parser = harness.arguments(__doc__ or "")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--batch-tokens", type=int, default=131072)
    parser.add_argument("--streams", nargs="+", choices=list(throughput.STREAMS), default=list(throughput.STREAMS))
    options = parser.parse_args()
    harness.need_cuda()
    rows: list[harness.Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for stream in options.streams:
            torch.compiler.reset()
            base: Profile | None = None
            for name, settings in throughput.runs()[-3:]:
                with throughput.STREAMS[stream][1]():
                    found = measure(settings, options.steps, options.batch_tokens, Path(folder))
                base = base or found
                about = {"stream": stream, "variant": name}
                rows += [about | row for row in compared(found, base)]
                path = harness.write("profile_compiled_step", rows, options.out)  # now, in case time runs out
                shown = [r | {"kernel": short(r["kernel"])} for r in rows if r | about == r]
                print(harness.table(shown, COLUMNS[2:]), about, sep="\n", flush=True)
    print(path)


if __name__ == "__main__":
    main()
