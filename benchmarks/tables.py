"""Write the tables of the documents from the CSV files, so that no figure in them is typed by hand.

python benchmarks/tables.py            fill every block between <!-- table: NAME --> and <!-- end -->
python benchmarks/tables.py --check    only say whether they are up to date (exit code 1 if not)
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import scale_table
from harness import read

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"(<!-- table: (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
FLOOR = "floor: two bmm"
Row = dict[str, str]


def markdown(header: list[str], lines: list[list[str]], source: str, rows: list[Row]) -> str:
    where = sorted({f"{row['device']}, torch {row['torch']}" for row in rows})
    table = [header, ["---"] * len(header), *lines]
    text = "\n".join("| " + " | ".join(line) + " |" for line in table)
    return f"{text}\n\n*`benchmarks/results/{source}.csv`: {'; '.join(where)}.*\n"


def agreement_model() -> str:
    """Worst and mean block of SmolLM2-135M."""
    rows = read("agreement_model")
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["tokens"], row["tau"], row["estimator"]), []).append(row)
    lines = []
    for (tokens, tau, estimator), group in groups.items():
        if int(tokens) <= 256 and estimator.startswith("sampled"):
            continue  # the sample is the whole
        cosines, norms = [float(r["cosine"]) for r in group], [float(r["norm ratio"]) for r in group]
        mean = sum(cosines) / len(cosines)
        spread = f"{min(norms):.2f} … {max(norms):.2f}"
        lines.append([tokens, tau, estimator, f"{min(cosines):.3f}", f"{mean:.3f}", spread])
    header = ["tokens", "τ", "estimator", "gradient cosine, worst block", "mean", "norm ratio"]
    return markdown(header, lines, "agreement_model", rows)


def agreement_cloud() -> str:
    """Constructed clouds, one row each, the estimators side by side."""
    rows = read("agreement_cloud")
    groups: dict[tuple[str, str, str], dict[str, str]] = {}
    for row in rows:
        key = (row["cloud"], row["mean cosine"], row["tau"])
        groups.setdefault(key, {})[row["estimator"]] = f"{float(row['cosine']):.3f}"
    names = ["first_order", "second_order", "sampled (256)"]
    lines = [
        [cloud, f"{float(mean):.2f}", tau, *(found[name] for name in names)]
        for (cloud, mean, tau), found in groups.items()
        if tau in ("1", "0.1")
    ]
    return markdown(["cloud (512 tokens)", "mean cosine", "τ", *names], lines, "agreement_cloud", rows)


def losses() -> str:
    """Every registered loss."""
    from decondense.losses.registry import SOURCES, registered

    lines = ["| loss | what it is | from | presets |", "| --- | --- | --- | --- |"]
    for name, entry in registered().items():
        presets = ", ".join(entry.presets) or "–"
        lines.append(f"| `{name}` | {entry.about} | {SOURCES[entry.source]}: {entry.reference} | {presets} |")
    return "\n".join(lines) + "\n"


def losses_cpu() -> str:
    """Value and gradient on a CPU."""
    rows = read("losses_cpu")
    lines = [[r["shape"], r["variant"], f"{float(r['ms']):.1f}", f"{float(r['over dense']):.3f}"] for r in rows]
    return markdown(["batch × tokens × width", "what", "ms", "over the dense formula"], lines, "losses_cpu", rows)


def number(row: Row, key: str, digits: int = 3) -> str:
    return f"{float(row[key]):.{digits}g}" if row.get(key) else ""


def exact(name: str = "exact") -> str:
    rows = read(name)
    header = ["shape", "z", "what", "GPU ms", "× floor", "call ms", "extra memory / z", "gradient error"]
    # equal figures are both of calls: the GPU column stays empty, unless a call is so long that only calls were timed
    lines = [
        [
            r["shape"], r["dtype"], r["variant"],
            number(r, "ms") if r["variant"] in ("kernel", FLOOR) or r["ms"] != r["call_ms"] else "",
            f"{float(r['ratio']):.2f}", number(r, "call_ms"), number(r, "memory_of_z"), number(r, "gradient_error", 2),
        ]
        for r in rows
    ]  # fmt: skip
    return markdown(header, lines, name, rows)


def exact_others() -> str:
    rows = read("exact_others")
    lines = [[r["shape"], r["variant"], number(r, "ms"), number(r, "ratio"), number(r, "call_ms")] for r in rows]
    return markdown(["shape", "what", "GPU ms", "× floor", "call ms"], lines, "exact_others", rows)


def lone_call() -> str:
    rows = [r for r in read("lone_call") if r["name"] == "by the clock"]
    shapes = list(dict.fromkeys(r["shape"] for r in rows))
    found = {(r["what"], r["shape"]): r for r in rows}
    lines = [
        [what, *(f"{float(found[what, shape][key]) / 1000:.2f}" for shape in shapes for key in ("host_us", "call_us"))]
        for what in dict.fromkeys(r["what"] for r in rows)
    ]
    header = ["what", *(f"{shape}, {kind} ms" for shape in shapes for kind in ("host", "call"))]
    return markdown(header, lines, "lone_call", rows)


def first_order() -> str:
    rows = read("first_order")
    header = ["shape", "z", "what", "GPU ms", "× floor", "TB/s"]
    lines = [
        [
            r["shape"],
            r["dtype"],
            r["variant"],
            number(r, "ms"),
            f"{float(r['ratio']):.2f}" if r["ratio"] else "",
            number(r, "TB/s"),
        ]
        for r in rows
        if "public" not in r["variant"]
    ]
    return markdown(header, lines, "first_order", rows)


def cosines() -> str:
    rows = read("cosines")
    lines = [[r["shape"], r["dtype"], r["variant"], number(r, "ms"), number(r, "memory_MiB")] for r in rows]
    return markdown(["shape", "u", "what", "ms", "extra MiB"], lines, "cosines", rows)


def train_step(name: str = "train_step") -> str:
    rows = read(name)
    lines = [
        [r["model"], f"{r['batch']}×{r['tokens']}", r["variant"], f"{float(r['ms']):.1f}", f"{float(r['ratio']):.4f}"]
        for r in rows
    ]
    return markdown(["model", "tokens", "what", "ms per step", "ratio"], lines, name, rows)


def train_step_short() -> str:
    """Models side by side, ratios only."""
    rows = read("train_step")
    models = {r["model"]: f"{r['model']}, {r['batch']} × {r['tokens']} tokens" for r in rows}
    ratios = {(r["model"], r["variant"]): f"{float(r['ratio']):.3f}" for r in rows}
    variants = list(dict.fromkeys(r["variant"] for r in rows))
    lines = [[variant, *(ratios[model, variant] for model in models)] for variant in variants]
    return markdown(["", *models.values()], lines, "train_step", rows)


def profile_train_step() -> str:
    """What each estimator adds to a step, by kernel."""
    rows = read("profile_train_step")
    lines = [
        [
            r["model"], r["estimator"], r["group"], f"{float(r['calls']):.0f}" if r["calls"] else "",
            f"{float(r['added_ms']):.2f}", f"{float(r['of_step']):.2%}",
        ]
        for r in rows
    ]  # fmt: skip
    return markdown(["model", "estimator", "what", "calls", "ms", "of the step"], lines, "profile_train_step", rows)


def profile_compiled_step() -> str:
    """What the loss adds to a compiled step. The compiler's kernels change their names with it: they are one line."""
    rows = [r for r in read("profile_compiled_step") if r["variant"].startswith("with")]
    found: dict[tuple[str, str, str], list[float]] = {}
    for r in rows:
        ends = r["kernel"] in ("sum", "by the clock")
        others = "kernels of the compiler" if r["kernel"].startswith("triton_") else "products, attention and the rest"
        key = (
            r["stream"],
            r["variant"].removeprefix("with dispersion, "),
            r["kernel"] if ends else r["what"] or others,
        )
        figures = [float(r["added_calls"] or 0), float(r["added_us"]) / 1000, float(r["of_step"])]
        found[key] = [x + y for x, y in zip(found.get(key, [0.0] * 3), figures)]
    lines = [
        [*key, "" if key[2] == "by the clock" else f"{calls:.0f}", f"{ms:.2f}", f"{share:.2%}"]
        for key, (calls, ms, share) in found.items()
    ]
    return markdown(["stream", "loss", "what", "calls", "ms", "of the step"], lines, "profile_compiled_step", rows)


def throughput(name: str = "throughput") -> str:
    rows = read(name)
    lines = [
        [r["option"], r["micro_batch"], f"{float(r['tokens_per_s']):,.0f}", number(r, "ratio"), number(r, "peak_gib")]
        for r in rows
    ]
    return markdown(["", "micro-batch", "tokens/s", "ratio", "peak GiB"], lines, name, rows)


def exact_step() -> str:
    """What the exact loss in the blocks cannot do without in `throughput_turns`, at the rates of cuBLAS and a copy."""
    turns, copies = read("throughput_turns"), read("first_order")
    at = next(i for i, r in enumerate(turns) if r["option"] == "with dispersion, exact, in the blocks")
    bare = [r for r in turns[:at] if r["option"].endswith("of 128")][-1:]  # of the same round
    layers, batch, tokens, width = 30, int(bare[0]["micro_batch"]), 1024, 576
    step = 1000 * batch * tokens / float(bare[0]["tokens_per_s"])
    state, pairs = batch * tokens * width, batch * tokens**2
    b, n, f = 32, 1024, 768  # the nearest shape that was timed
    floor = next(r for r in read("exact_calls") if (r["shape"], r["variant"]) == (f"{b}x{n}x{f}", FLOOR))
    rate = 4 * b * n * n * f / float(floor["ms"])  # operations of two products per ms
    copy = next(r for r in copies if r["variant"].startswith("floor") and r["dtype"] == "float32")
    bandwidth = 1e9 * float(copy["TB/s"])  # bytes per ms
    parts = [
        (f"two products per layer in bfloat16, {rate / 1e9:.0f} TFLOP/s", layers * 4 * pairs * width / rate),
        ("one pass over the float32 states (statistics)", layers * 4 * state / bandwidth),
        ("the bfloat16 copy written, the remainder read", layers * 2 * 2 * state / bandwidth),
    ]
    parts.append(("sum", sum(ms for _, ms in parts)))
    parts.append(("measured", step * (1 / float(turns[at]["ratio"]) - 1)))
    lines = [[what, f"{ms:.1f}", f"{1 + ms / step:.3f}"] for what, ms in parts]
    header = [f"{layers} layers, {batch} × {tokens} × {width}", "ms", f"ratio, of a step of {step:.0f} ms"]
    return markdown(header, lines, "throughput_turns", turns)


def heads() -> str:
    """Output head and cross-entropy, one way after the other; a row without figures says why."""
    rows = read("heads")
    lines = []
    for r in rows:
        figures = [number(r, "ms"), number(r, "ratio"), number(r, "peak_gib")]
        errors = [number(r, key, 2) for key in ("hidden_error", "weight_error")]
        what = r["what"] + (f" ({r['version']})" if r["version"] and "decondense" not in r["version"] else "")
        lines.append([f"{r['model']}, {r['tokens'].replace('x', ' × ')}", what, *figures, *errors, r["why_not"]])
    header = ["tokens", "what", "ms", "× ours", "peak GiB", "error, hidden", "error, weight", ""]
    return markdown(header, lines, "heads", rows)


def long() -> str:
    rows = read("long")
    lines = [
        [f"{int(r['tokens']):,}", r["what"], number(r, "ms"), rate(r["share"]), r["why_not"]] for r in rows
    ]  # fmt: skip
    return markdown(["tokens", "what", "GPU ms", "of one attention layer", ""], lines, "long", rows)


def measure_gpu() -> str:
    """The meter beside bare forward passes on a GPU."""
    rows = read("measure_gpu")
    lines = [
        [r["batch"], r["variant"], number(r, "wall_s"), rate(r["wall_ratio"]), number(r, "extra_gib", 2)] for r in rows
    ]
    about = f"{rows[0]['windows']} windows × {rows[0]['tokens']} tokens"
    return markdown(["windows a pass", about, "s", "ratio", "extra GiB on the GPU"], lines, "measure_gpu", rows)


def taps() -> str:
    """Ratios of a step before and after autograd adds the gradients of the loss."""
    rows = read("taps")
    ratios = {(r["model"], r["loss"], r["tree"]): f"{float(r['ratio']):.4f}" for r in rows}
    cases = dict.fromkeys((r["model"], r["loss"]) for r in rows if r["loss"] != "none")
    lines = [[model, loss, *(ratios[model, loss, tree] for tree in ("old", "new"))] for model, loss in cases]
    return markdown(["gpt2, 32 × 1024 tokens", "loss", "0.1.0", "0.2.0"], lines, "taps", rows)


def monitor() -> str:
    rows = read("monitor")
    lines = [
        [r["readings"], f"{r['model']}, {r['batch']} × {r['tokens']} tokens", f"{float(r['step_ms']):.0f}",
         f"{float(r['reading_ms']):.0f}", f"{float(r['share_percent']):.2f} %"]
        for r in rows
    ]  # fmt: skip
    header = ["readings of", "model", "step, ms", "reading, ms", "share of the time, every 100 steps"]
    return markdown(header, lines, "monitor", rows)


def significance() -> str:
    """Error rates without a difference."""
    rows = [r for r in read("significance") if float(r["effect"]) == 0]
    columns = ["tasks", "average", "pooled", "satterthwaite", "coverage"]
    lines = [[r["truth"], r["seeds"], *(rate(r[c]) for c in columns)] for r in rows]
    return markdown(["truth", "seeds", *columns], lines, "significance", rows)


def significance_power() -> str:
    """How often a difference is found that should be found 4 times in 5."""
    rows = [r for r in read("significance") if float(r["effect"])]
    lines = []
    for r in rows:
        found = r["average"] if r["average"] != "nan" else r["tasks"]
        lines.append([r["truth"], r["seeds"], f"{100 * float(r['effect']):.2f}", rate(r["stated_power"]), rate(found)])
    return markdown(["truth", "seeds", "difference, points", "stated", "found"], lines, "significance", rows)


def coverage_windows() -> str:
    """How often a 95 % interval holds the truth, plain and as the meter has it, by the number of windows."""
    rows = read("coverage_windows")
    found: dict[str, dict[str, str]] = {}
    for r in rows:
        cells = found.setdefault(r["windows"], {})
        cells[f"{r['model'].split(',')[0]}, {r['statistic']}"] = f"{rate(r['plain'])} → {rate(r['expanded'])}"
    header = ["windows", *next(iter(found.values()))]
    return markdown(header, [[windows, *cells.values()] for windows, cells in found.items()], "coverage_windows", rows)


def rate(value: str) -> str:
    return "" if value in ("", "nan") else f"{float(value):.3f}"


TABLES: dict[str, Callable[[], str]] = {
    "losses": losses,
    "throughput": throughput,
    "throughput_turns": lambda: throughput("throughput_turns"),
    "exact_step": exact_step,
    "heads": heads,
    "long": long,
    "measure_gpu": measure_gpu,
    "taps": taps,
    "monitor": monitor,
    "profile_train_step": profile_train_step,
    "profile_compiled_step": profile_compiled_step,
    "train_step_short": train_step_short,
    "exact": exact,
    "exact_calls": lambda: exact("exact_calls"),
    "exact_others": exact_others,
    "lone_call": lone_call,
    "first_order": first_order,
    "cosines": cosines,
    "train_step": train_step,
    "train_step_losses": lambda: train_step("train_step_losses"),
    "agreement_model": agreement_model,
    "agreement_cloud": agreement_cloud,
    "losses_cpu": losses_cpu,
    "significance": significance,
    "significance_power": significance_power,
    "coverage_windows": coverage_windows,
    **scale_table.TABLES,
}


def filled(text: str) -> str:
    return BLOCK.sub(lambda m: m[1] + TABLES[m[2]]() + m[4], text)


def main() -> int:
    stale = [path for path in DOCUMENTS if filled(path.read_text()) != path.read_text()]
    for path in stale:
        print(("out of date: " if "--check" in sys.argv else "written: ") + str(path.relative_to(ROOT)))
        if "--check" not in sys.argv:
            path.write_text(filled(path.read_text()))
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
