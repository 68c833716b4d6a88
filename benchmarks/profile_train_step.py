"""What the loss adds to a training step, kernel by kernel: where the time of each estimator and loss goes.

One step of each model is recorded with and without the loss. The loss's forward pass is one stretch of the GPU's
queue, from its first kernel to its last: everything inside it is the loss's. Its own kernels are known by name
wherever they run. What remains is compared with the step without the loss, name by name: a kernel that is called
more often than there is an addition of autograd's or a small operation of the loss; one that is called as often has a
difference that is noise (clock, cache). The last rows of each are the sum, and the step's time by the clock
without the profiler: where that grew by less, the GPU had waited before.

    python benchmarks/profile_train_step.py [--models gpt2 qwen3] [--variants koleo …] [--steps 3] [--out DIR] [--plot]
"""

from __future__ import annotations

import gc
import re
import statistics
from collections import Counter
from typing import Any, NamedTuple

import harness
import torch
from bench_train_step import MODELS, prepared
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

import decondense as dc

LOSSES = ("decorrelation", "l2_repel", "koleo", "vicreg")
VARIANTS: dict[str, dict[str, str]] = {name: {"estimator": name} for name in ("first_order", "second_order", "exact")}
VARIANTS |= {name: {"loss": name} for name in LOSSES}
# kernels of decondense → what they do; the first stage reads z in every estimator
OURS = {
    "_statistics_kernel": "statistics: read z (write u or a copy)",
    "_reduce_kernel": "statistics: add up",
    "_mean_cosine_kernel": "mean cosine",
    "_scatter_kernel": "scatter matrix",
    "_moments_kernel": "moments",
    "tile_kernel": "tiles of the Gram matrix",
    "product_kernel": "masked product",
    "finish_kernel": "value",
    "_finish_kernel": "value",
    "_scale_kernel": "copy: read z, write",
    "_terms_kernel": "terms: read G, write M",
    "_softmax_kernel": "softmax of the rows",
    "_nearest_kernel": "nearest of the rows",
    "_distance_kernel": "distances: read z",
    "_project_kernel": "gradient: read z, write",
    "_gradient_kernel": "gradient: read z, write",
}
BACKWARD = ("_project_kernel", "_gradient_kernel")
PRODUCTS = "matrix product (cuBLAS)"
PRODUCT = re.compile(r"gemm|nvjet|cutlass|cublas", re.IGNORECASE)
SMALL, OTHER = "small operations", "other: "
ADDITION = re.compile(r"CUDAFunctor_add|CUDAFunctorOnSelf_add|AddFunctor")


class Event(NamedTuple):
    name: str
    start: float
    ms: float


def recorded(step: Any) -> list[Event]:
    """The GPU's work during one step, in order."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as record:
        step()
        torch.cuda.synchronize()
    found = [
        Event(e.name, e.time_range.start, e.time_range.elapsed_us() / 1000)
        for e in record.events()
        if e.device_type == DeviceType.CUDA
    ]
    return sorted(found, key=lambda e: e.start)


def groups(events: list[Event]) -> tuple[dict[str, float], Counter[str]]:
    """Milliseconds and calls by group; by the kernel's name where only a comparison can tell whose it is."""
    ours = {e.name: next((own for own in OURS if e.name.startswith(own)), "") for e in events}
    forward = [e.start for e in events if ours[e.name] and ours[e.name] not in BACKWARD]
    first, last = (min(forward), max(forward)) if forward else (0.0, -1.0)
    ms: dict[str, float] = {}
    calls: Counter[str] = Counter()
    for e in events:
        if ours[e.name]:
            group = OURS[ours[e.name]]
        elif first <= e.start <= last:
            group = PRODUCTS if PRODUCT.search(e.name) else SMALL
        else:
            group = OTHER + e.name
        ms[group] = ms.get(group, 0.0) + e.ms
        calls[group] += 1
    return ms, calls


def compared(
    ms: dict[str, float], calls: dict[str, float], base_ms: dict[str, float], base_calls: dict[str, float]
) -> list[tuple[str, float, float]]:
    """(group, calls, milliseconds) that the loss adds, the largest first."""
    added: dict[str, list[float]] = {}
    for key in {**ms, **base_ms}:
        number = calls.get(key, 0) - base_calls.get(key, 0)
        if not key.startswith(OTHER):
            group = key
        elif number == 0:
            group = "the same kernels (noise)"
        else:
            group = "additions (autograd)" if ADDITION.search(key) else PRODUCTS if PRODUCT.search(key) else SMALL
        line = added.setdefault(group, [0, 0.0])
        line[0] += number
        line[1] += ms.get(key, 0.0) - base_ms.get(key, 0.0)
    return sorted(((g, n, t) for g, (n, t) in added.items()), key=lambda line: -line[2])


def measure(name: str, variants: list[str], steps: int) -> list[harness.Row]:
    model, optimiser, ids = prepared(name)

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    def clocked() -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        step()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end)

    def one(variant: str | None) -> tuple[dict[str, float], dict[str, float], float]:
        """Medians over the steps: milliseconds and calls by group, milliseconds by the clock."""
        handle = dc.regularize(model, weight=0.1, **VARIANTS[variant]) if variant else None  # type: ignore[arg-type]
        try:
            step()
            step()
            clock = statistics.median(clocked() for _ in range(2 * steps))
            found = [groups(recorded(step)) for _ in range(steps)]
        finally:
            if handle is not None:
                handle.remove()
        every = list(dict.fromkeys(group for ms, _ in found for group in ms))
        return (
            {g: statistics.median(ms.get(g, 0.0) for ms, _ in found) for g in every},
            {g: statistics.median(calls[g] for _, calls in found) for g in every},
            clock,
        )

    base_ms, base_calls, base_clock = one(None)
    rows: list[harness.Row] = []
    for variant in variants:
        ms, calls, clock = one(variant)
        lines: list[tuple[str, Any, float]] = list(compared(ms, calls, base_ms, base_calls))
        added = sum(time for _, _, time in lines)
        lines += [("sum", sum(n for _, n, _ in lines), added), ("step by the clock", "", clock - base_clock)]
        for group, number, time in lines:
            row = {"model": name, "estimator": variant, "group": group, "calls": number, "added_ms": time}
            rows.append(row | {"share_of_added": time / added, "of_step": time / base_clock})
    return rows


def main() -> None:
    parser = harness.arguments(__doc__ or "")
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()
    harness.need_cuda()
    rows: list[harness.Row] = []
    for name in options.models:
        rows += measure(name, options.variants, options.steps)
        gc.collect()
        torch.cuda.empty_cache()
        path = harness.write("profile_train_step", rows, options.out)
    print(harness.table(rows, ("model", "estimator", "group", "calls", "added_ms", "share_of_added", "of_step")))
    if options.plot:
        bars = [row | {"variant": row["group"]} for row in rows]
        harness.bars(bars, path.with_suffix(".png"), value="added_ms", case=("model", "estimator"))
    print(path)


if __name__ == "__main__":
    main()
