"""The numbers in the prose of docs/kernels.md and -log.md, docs/measuring.md and README.md from benchmarks/results."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
from scipy.special import ndtr, ndtri, stdtrit

from decondense.meter.result import FEW

ROOT = Path(__file__).resolve().parent.parent
FIRST, LOG, MEASURING, README, CHANGELOG = (
    " ".join((ROOT / name).read_text(encoding="utf-8").split())
    for name in ("docs/kernels.md", "docs/kernels-log.md", "docs/measuring.md", "README.md", "CHANGELOG.md")
)
KERNELS = f"{FIRST} {LOG}"


def rows(name: str) -> list[dict[str, str]]:
    with (ROOT / "benchmarks" / "results" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_losses_in_a_step():
    ratios = {row["variant"]: float(row["ratio"]) for row in rows("train_step_losses")}
    assert max(ratios.values()) < 1.03  # "below the aim on all layers"
    last = {name: ratio for name, ratio in ratios.items() if name.endswith("last")}
    assert [name for name, ratio in last.items() if ratio > 1.003] == ["+ decorrelation, last"]
    assert f"decorrelation has {last['+ decorrelation, last']:.4f}, the others less" in KERNELS
    assert f"differ by up to {max(float(row['spread']) for row in rows('train_step_losses')):.4f}" in KERNELS
    assert f"second measurement on GPT2 first order had a ratio of {ratios['+ first_order']:.3f} (" in README


def of_turns(place: str, stream: str = "") -> tuple[list[float], list[float]]:
    """How much longer a step takes with first order, and with exact, in the rounds that were measured."""

    def rounds(loss: str) -> list[float]:
        option = f"with dispersion, {loss}, {place}{stream}"
        return [1 / float(row["ratio"]) for row in rows("throughput_turns") if row["option"] == option]

    return rounds("first order"), rounds("exact")


def test_compiled_training():
    (first, exact), (first_after, exact_after) = of_turns("in the blocks"), of_turns("afterwards")
    told = "takes {:.3f} and {:.3f} times as long with first order and {:.3f} and {:.3f} times with the exact loss"
    assert f"In the blocks a step {told.format(*first, *exact)}." in KERNELS
    assert told.removeprefix("takes ").format(*first, *exact) in CHANGELOG
    clocks = [1 + float(row["of_step"]) for row in profiled() if row["kernel"] == "by the clock"]
    assert "three steps, it is {:.3f} and {:.3f}.".format(*clocks) in KERNELS
    met = [[x <= aim for x in (*turns, clock)] for turns, clock, aim in zip((first, exact), clocks, (1.025, 1.08))]
    for name, aim, turns, clock in (("first order", 1.025, first, clocks[0]), ("exact", 1.08, exact, clocks[1])):
        assert "| {}, compiled blocks | {} | {:.3f}, {:.3f} and {:.3f} |".format(name, aim, *turns, clock) in FIRST
    assert met == [[True, True, False], [True, False, True]]  # "in two of three measurements"
    assert f"first order by {1.025 - first[1]:.4f} in one of them" in KERNELS
    after = "{:.3f} and {:.3f}, {}{:.3f} and {:.3f}"
    assert f"first order takes {after.format(*first_after, 'exact ', *exact_after)};" in KERNELS
    assert f"computed afterwards {after.format(*first_after, '', *exact_after)}." in CHANGELOG
    gained = [afterwards[1] - inside[1] for afterwards, inside in ((first_after, first), (exact_after, exact))]
    differ = [abs(inside[0] - inside[1]) for inside in (first, exact)]
    words = "gain {:.3f} with first order and {:.3f} with exact; two rounds of the same differ by {:.3f} and {:.3f}."
    assert words.format(*gained, *differ) in KERNELS
    assert gained[1] < differ[1]  # "within the noise", and "hardly above it"
    assert differ[0] < gained[0] < 2 * differ[0]
    bare = [float(row["tokens_per_s"]) for row in rows("throughput_turns") if row["option"].endswith("of 128")]
    assert f"the three runs have {min(bare):,.0f} to {max(bare):,.0f} tokens a second, 3 % apart" in KERNELS
    assert (len(bare), round(100 * (max(bare) / min(bare) - 1))) == (3, 3)
    assert "another measurement gave {:.2f} for first order and {:.2f} for exact.".format(*clocks) in README
    training = " ".join((ROOT / "docs" / "training.md").read_text(encoding="utf-8").split())
    speeds = [1 / x for x in (*first, *exact)]
    assert "has {:.3f} and {:.3f} of the speed without a loss and exact {:.3f} and {:.3f}".format(*speeds) in training
    by_option = {row["option"]: float(row["tokens_per_s"]) for row in rows("throughput")}
    eager, bare, treated = (by_option[o] for o in ("baseline", "+ micro-batch of 128", "with dispersion, first order"))
    assert f"Without the loss the ratio is {bare / eager:.2f}, where" in training
    assert f"gets {treated / eager:.2f}: {treated / bare:.3f} of the speed without a loss" in training
    scale = " ".join((ROOT / "docs" / "scale.md").read_text(encoding="utf-8").split())
    assert f"and {100 * (bare / treated - 1):.1f} % of SmolLM2-135M's, which is narrow, deep and compiled" in scale
    fused = by_option["+ fused head and loss"]
    for speed in (eager, fused, bare, treated):
        assert f"| {speed:,.0f} | {speed / eager:.3g} |" in training
    assert (
        f"reads {treated / eager:.2f} times as many tokens per second as Trainer's eager defaults without a loss"
        in README
    )
    stream = ", in a bfloat16 stream"
    ((inside,), (exact_inside,)), ((afterwards,), _) = of_turns("in the blocks", stream), of_turns("afterwards", stream)
    assert f"first order takes {inside:.3f} in the blocks and {afterwards:.3f} afterwards" in KERNELS
    assert f"| 1.015 | {inside:.3f} in the blocks, {afterwards:.3f} afterwards |" in FIRST
    assert f"Exact takes {exact_inside:.3f} in the blocks" in KERNELS
    assert inside > afterwards > 1.015
    assert (
        "shape, two rounds gave {:.2f} and {:.2f} for first order and {:.2f} and {:.2f} for exact;".format(
            *first, *exact
        )
        in README
    )
    plain = next(float(row["tokens_per_s"]) for row in rows("throughput_turns") if row["option"].startswith("+"))
    step = 128 * 1024 / plain
    passes = 4 * 30 * 128 * 1024 * 576 * 4 / 4.1e12
    assert f"a step of {1000 * step:.0f} ms: {1 + passes / step:.3f} was its floor" in KERNELS
    before, with_loss = (
        [r for r in profiled("first order", calls) if r["kernel"].endswith("_6")] for calls in (-30, 30)
    )
    grown = [max(abs(float(row["added_us"])) for row in found) / 1000 for found in (with_loss, before)]
    told = "takes {:.1f} ms instead of {:.1f} with first order; three passes are {:.1f}."
    assert told.format(*grown, 1000 * passes * 3 / 4) in KERNELS


def profiled(loss: str = "", calls: int | None = None) -> list[dict[str, str]]:
    """Rows of a step with a loss; those whose kernel is called so many times more often than without."""
    found = [
        row for row in rows("profile_compiled_step") if row["variant"].startswith("with") and loss in row["variant"]
    ]
    return found if calls is None else [row for row in found if row["added_calls"] == str(calls)]


def test_kernels_of_a_compiled_step():
    ends = ("sum", "by the clock")
    named = [r for r in profiled("first order") if (r["what"] or r["kernel"].startswith("triton_"))]
    added = sum(float(row["added_us"]) for row in named) / 1000
    whole = next(float(r["us"]) for r in rows("profile_compiled_step") if r["kernel"] == "sum") / 1000
    assert f"new or changed take {added:.1f} ms, {100 * added / whole:.1f} %" in KERNELS
    same = [row for row in profiled("first order", 0) if row not in named and row["kernel"] not in ends]
    assert f"noise, of {-sum(float(row['added_us']) for row in same) / 1000:.1f} ms" in KERNELS
    product = [row for row in profiled("exact", 62) if row["kernel"].startswith("nvjet")]
    second = sum(float(row["added_us"]) for row in product) / 1000
    assert f"the second product, {second:.1f} ms" in KERNELS
    tiles = sum(float(row["added_us"]) for row in profiled("exact") if row["what"].startswith("tiles")) / 1000
    assert f"the second product take {tiles + second:.1f} ms" in KERNELS
    whole = next(float(row["added_us"]) for row in profiled("exact") if row["kernel"] == "sum") / 1000
    assert f" and {tiles + second:.1f} of {whole:.1f} in SmolLM2-135M's." in FIRST
    others = [r for r in profiled("exact") if (r["what"] or r["kernel"].startswith("triton_"))]
    rest = sum(float(row["added_us"]) for row in others) / 1000 - tiles
    assert f"what the compiler's kernels gain take {rest:.1f} ms" in KERNELS


def test_exact_on_qwen3():
    kernels = {r["group"]: float(r["added_ms"]) for r in rows("profile_train_step") if r["model"] == "qwen3"}
    both = kernels["tiles of the Gram matrix"] + kernels["matrix product (cuBLAS)"]
    assert f"they take {both:.1f} of {kernels['sum']:.1f} ms in Qwen3's step" in FIRST
    ours = [ms for what, ms in kernels.items() if what.startswith(("gradient", "statistics"))]  # of exact, the last
    floor = next(r for r in rows("exact") if r["shape"] == "8x4096x1024" and r["variant"].startswith("floor"))
    step = next(r for r in rows("train_step") if (r["model"], r["variant"]) == ("qwen3", "cross-entropy"))
    needed, whole = 28 * float(floor["ms"]) / 2, float(step["ms"])
    assert f"times 28 layers {needed:.1f} of {whole:.0f} ms: {100 * needed / whole:.1f} % before" in KERNELS
    assert f"second product take {both:.1f} ms. Norms and projection come on top, {sum(ours):.1f} ms." in KERNELS


def test_what_the_exact_step_needs():
    """The figures of the prose are those of the table below it, which benchmarks/tables.py computes."""
    plain = [row for row in rows("throughput_turns") if row["option"].endswith("of 128")][1]
    step = 1000 * 128 * 1024 / float(plain["tokens_per_s"])
    floor = next(row for row in rows("exact_calls") if row["shape"] == "32x1024x768" and "floor" in row["variant"])
    products = 30 * (128 * 576) / (32 * 768) * float(floor["ms"])  # of the same length
    assert f"two whole products are {products:.1f}: that half of the first" in KERNELS
    assert f"product is left out ({products / 4:.1f} ms)" in KERNELS
    copied = next(
        row for row in rows("first_order") if row["dtype"] == "float32" and row["variant"].startswith("floor")
    )
    least = products + 30 * (4 + 2 * 2) * 128 * 1024 * 576 / float(copied["TB/s"]) / 1e9
    assert f"where the passes are {least - products:.1f}." in KERNELS
    assert f"| sum | {least:.1f} | {1 + least / step:.3f} |" in KERNELS
    assert f"| measured | {step * (of_turns('in the blocks')[1][0] - 1):.1f} |" in KERNELS


def test_heads():
    found = [row for row in rows("heads") if row["ratio"]]
    others = [float(row["ratio"]) for row in found if row["what"].startswith(("Liger", "cut"))]
    assert f"{min(others):.2f} to {max(others):.1f} times the time" in KERNELS
    assert all(0.97 < float(row["ratio"]) < 1.01 for row in found if row["what"] == "transformers, compiled")
    gpt2 = {row["what"]: float(row["peak_gib"]) for row in found if row["model"] == "GPT-2"}
    assert 0.3 < gpt2["decondense train, fused head"] / gpt2["transformers, compiled"] < 0.4  # "a third"


def test_lone_calls():
    calls, bare = (
        {
            row["shape"]: (float(row["ms"]), float(row["call_ms"]))
            for row in rows("exact_calls")
            if (row["variant"], row["dtype"]) == (variant, "bfloat16")
        }
        for variant in ("kernel, public function", "kernel")
    )
    (gpu, call), (larger, longer) = calls["8x1024x1024"], calls["32x1024x768"]
    alone = [bare[shape][1] for shape in ("8x1024x1024", "32x1024x768")]
    assert "the kernels take {:.2f} and {:.2f} by the clock, and a step of autograd".format(*alone) in KERNELS
    assert f"takes {gpu:.3f} ms for 8×1024×1024 and {larger:.3f} for 32×1024×768, by the clock" in KERNELS
    assert f"by the clock {call:.2f} and {longer:.2f} (bfloat16 states; such times vary:" in KERNELS
    assert f"| 0.25 and 0.45 ms by the clock | {call:.2f} and {longer:.2f} |" in FIRST
    assert (call > 0.25, longer > 0.45) == (True, False)  # "the second aim is met in one of two"
    apart = {
        (row["shape"], row["what"]): float(row["call_us"]) / 1000
        for row in rows("lone_call")
        if row["name"] == "by the clock"
    }
    one, other = (
        (apart[shape, "public function, autograd in one thread"], apart[shape, "public function"])
        for shape in ("8x1024x1024", "32x1024x768")
    )
    profiled = [apart[shape, "public function"] for shape in ("8x1024x1024", "32x1024x768")]
    assert "on the same machine, it was {:.2f} and {:.2f}, so".format(*profiled) in KERNELS
    assert profiled[1] > 0.45
    told = "took {:.2f} ms instead of {:.2f}, and {:.2f} instead of {:.2f}."
    assert told.format(*one, *other) in KERNELS
    nothing = {f"{value:.1f}" for (_, what), value in apart.items() if what == "autograd alone"}
    assert f"that computes nothing {' '.join(nothing)}, so in Python" in KERNELS


def test_repulsion_by_itself():
    ratios = [float(row["ratio"]) for row in rows("exact_others") if row["variant"] == "l2_repel"]
    words = "{2:.2f} times at 4096 tokens, {0:.1f} and {1:.1f} times at 1024"
    assert words.format(*ratios) in KERNELS


def test_ten_tasks_beside_lm_eval():
    words = " ".join((ROOT / "docs" / "evaluation.md").read_text(encoding="utf-8").split())
    found = {row["task"]: row for row in rows("evaluate_h200")}
    whole = found.pop("all")
    assert [row["different_items"] for row in found.values()] == ["0"] * 10
    ours, theirs, ratio = (float(whole[key]) for key in ("ours_s", "lm_eval_s", "ratio"))
    assert f"all {int(whole['items']):,} items" in words
    assert f"{ours:.1f} s and {theirs:.1f} s, **{ratio:.2f} of lm-eval's time**" in words
    order = sorted(found, key=lambda task: float(found[task]["ratio"]))
    ends = [x for task in (order[0], order[-1]) for x in (f"{float(found[task]['ratio']):.2f}", task)]
    assert "from {} ({}) to {} ({})".format(*ends) in words
    slowest = [float(found["mmlu"][key]) for key in ("ours_s", "lm_eval_s")]
    assert "mmlu {:.1f} s instead of {:.1f}.".format(*slowest) in words


def test_the_meter_on_a_gpu():
    ratios = {(row["batch"], row["variant"]): float(row["wall_ratio"]) for row in rows("measure_gpu")}
    for batch in {batch for batch, _ in ratios}:
        more, times = 100 * (ratios[batch, "default"] - 1), ratios[batch, "spectral"]
        assert f"{more:.0f} % more than the passes with {batch} windows a pass" in MEASURING
        assert f"{times:.2f} times the passes with {batch} windows a pass" in MEASURING
    few, many = (float(r["wall_s"]) for r in rows("measure_gpu") if r["variant"] == "default")
    assert f"all in all 16 take {100 * (1 - many / few):.0f} % less time." in MEASURING
    found = {row["variant"]: row for row in rows("measure_gpu") if row["batch"] == "4"}
    kernel, gpu = (float(found[f"eigenvalues alone, {where}"]["wall_s"]) for where in ("kernel", "GPU"))
    assert f"takes {kernel:.2f} s for all of them, torch on the GPU {gpu:.1f} s" in MEASURING


BOUNDS = {  # loss: what the table of what holds the rest back says of it, each number followed by its kernels
    "first_order": "memory: the gradient {gradient}, the statistics {statistics} |",
    "second_order": "the gradient {gradient}, the two products {product} and {scatter}, the statistics {statistics} |",
    "exact": "the tiles {tiles}, the gradient {gradient}, the second product {product}, the statistics {statistics} |",
    "l2_repel": "the two products {product}, the softmax of the rows {softmax}, the addition of the gradients "
    "{additions}, the gradient {gradient}, the copy in float16 and the statistics {copy+statistics} |",
    "koleo": "the product {product}, the nearest of the rows {nearest}, the gradient {gradient}, the addition "
    "{additions}, statistics and distances {statistics+distances} |",
    "vicreg": "the first product {product}, the addition {additions}, the copy in bfloat16, the statistics and "
    "the terms {copy+statistics+terms}; {small} are not told apart",
}


@pytest.mark.parametrize("loss", BOUNDS)
def test_what_bounds_each_loss(loss):
    of = [r for r in rows("profile_train_step") if (r["model"], r["estimator"]) == ("gpt2", loss)]
    names = {re.split(r"\W", r["group"].removeprefix("matrix "))[0]: r for r in reversed(of)}  # the larger of two

    def share(found: re.Match[str]) -> str:
        return f"{100 * sum(float(names[one]['share_of_added']) for one in found[1].split('+')):.0f} %"

    assert re.sub(r"\{(.+?)\}", share, BOUNDS[loss]) in FIRST


SAME = {  # what is the same kernels, and how the first table of the page calls them
    ("first_order", "cosreg, all"): "dispersion to first order; cosreg is the same kernels",
    ("second_order", "decorrelation, all"): "dispersion to second order; decorrelation is the same kernels",
    ("exact", "orthogonalization, all", "uniformity, all"): (
        "dispersion, exact; orthogonalization and uniformity are the same kernels"
    ),
    ("l2_repel, all",): "ℓ2-repel",
    ("koleo, all",): "koleo",
    ("vicreg, all",): "vicreg",
}


@pytest.mark.parametrize("losses", SAME, ids=lambda losses: losses[0])
def test_share_of_a_step(losses):
    """A range where several measurements differ, nothing where there is none."""

    def shares(model: str) -> list[float]:
        steps = [row for name in ("train_step", "train_step_losses") for row in rows(name) if row["model"] == model]
        return [float(row["ratio"]) - 1 for row in steps if row["variant"].removeprefix("+ ") in losses]

    turns = dict(zip(("first_order", "exact"), of_turns("in the blocks")))
    cells = [shares("gpt2"), shares("qwen3"), [ratio - 1 for ratio in turns.get(losses[0], [])]]
    ends = [sorted({f"{100 * end:.1f}" for end in (min(cell), max(cell))}) if cell else [] for cell in cells]
    told = " | ".join(f"{' to '.join(some)} %" if some else "" for some in ends)
    assert " ".join(f"| {SAME[losses]} | {told} |".split()) in FIRST


def test_the_clock_of_the_profile():
    losses = ("first_order", "exact", "l2_repel", "koleo", "vicreg")
    of = {(r["estimator"], r["group"]): r for r in rows("profile_train_step") if r["model"] == "gpt2"}
    clocks = [1 + float(of[loss, "step by the clock"]["of_step"]) for loss in losses]
    told = "takes {:.3f} times as long with first order, {:.3f} with exact, {:.3f} with ℓ2-repel, {:.3f} with koleo and"
    assert f"{told.format(*clocks[:4])} {clocks[4]:.3f} with vicreg." in KERNELS
    assert [loss for loss, clock in zip(losses, clocks) if clock > 1.03] == ["l2_repel", "koleo"]  # "two are not"
    steps = [row for name in ("train_step", "train_step_losses") for row in rows(name) if row["model"] == "gpt2"]
    turns = {row["variant"]: float(row["ratio"]) for row in steps}  # the later of two
    names = ("+ first_order", "+ exact", "+ l2_repel, all", "+ koleo, all", "+ vicreg, all")
    ratios = [turns[name] for name in names]
    assert "it was {:.3f}, {:.3f}, {:.3f}, {:.3f} and {:.3f}.".format(*ratios) in KERNELS
    assert f"{100 * clocks[0] - 100:.1f} % with first order to {100 * max(clocks) - 100:.1f} % with ℓ2-repel" in FIRST
    assert max(clocks) == clocks[2]
    assert "by the clock of the profile {2:.3f} with ℓ2-repel and {3:.3f} with koleo |".format(*clocks) in FIRST
    more = [float(of[x, "step by the clock"]["added_ms"]) - float(of[x, "sum"]["added_ms"]) for x in losses]
    assert f"in these five, {min(more):.1f} to {max(more):.1f} ms, is not explained." in KERNELS
    assert f" ({clocks[0]:.3f} by the clock of a profile), and every other" in README


def test_how_often_intervals_over_windows_hold_the_truth():
    """The prose around the table, the changelog, and the number of windows below which the meter says so."""
    found = {(r["model"], r["statistic"], int(r["windows"])): r for r in rows("coverage_windows")}
    assert {r["simulations"] for r in found.values()} == {"1000"}
    level = {key: row for key, row in found.items() if key[1] == "mean cosine of the blocks"}
    assert all((float(r["expanded"]) >= 0.93) == (n >= FEW) for (_, _, n), r in level.items())
    assert "From ten on the interval of the mean cosine holds it in at least 93 of 100 draws" in MEASURING
    assert {round(float(r["plain"]), 1) for (_, _, n), r in level.items() if n == FEW} == {0.9}  # "nine out of ten"
    ranks = {(m, n): float(r["expanded"]) for (m, s, n), r in found.items() if s == "Spearman"}
    steps = [value for (m, n), value in ranks.items() if m != "stories260K" and n >= FEW]
    said = f"in {100 * min(steps):.0f} to {100 * max(steps):.0f} of 100, from ten windows to a hundred"
    assert said in MEASURING
    assert {value for (m, _), value in ranks.items() if m == "stories260K"} == {1}  # "in every interval"
    tails = {n: ndtr(-((n / (n - 1)) ** 0.5) * stdtrit(n - 1, 0.975)) for n in (10, 100)}
    assert f"with 10 windows a is {100 * tails[10]:.2f} %, with 100 it is {100 * tails[100]:.1f} %" in MEASURING
    wider = {n: ndtri(tail) / ndtri(0.025) - 1 for n, tail in tails.items()}
    assert (round(wider[10], 1), round(wider[100], 2)) == (0.2, 0.02)
    assert "With 10 windows they are a fifth wider, with 100 by 2 %" in CHANGELOG
