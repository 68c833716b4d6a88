"""The numbers of `rates` in the prose of README.md and docs/pretraining.md."""

from __future__ import annotations

import pytest
from test_quoted_results import PLAIN, README, RESULTS, ROOT, STUDIES, estimate, runs, table

from decondense.stats.crossed import crossed_macro
from decondense.stats.significance import holm
from decondense.stats.verdicts import interval, signed
from decondense.studies.contrasts import by_texts
from decondense.studies.runs import by_document, cosine, quantisation

UNIFORM, DISPERSED = "uniformity last 0.1", "dispersion all 0.1"
STUDIES_LOG = (ROOT / "docs" / "studies-log.md").read_text(encoding="utf-8")
PROSE = " ".join(RESULTS.split())
KEPT = runs("rates")
CHOSEN = {  # what the prose compares, with the seeds that both have
    (UNIFORM, "gpt2"): (0.005, 0.008, 3),
    (UNIFORM, "llama"): (0.003, 0.003, 4),
    (DISPERSED, "gpt2"): (0.008, 0.008, 3),
    (DISPERSED, "llama"): (0.006, 0.003, 4),
}


def fresh(arm: str, base: str) -> tuple[str, list[float]]:
    """arm − base over the seeds that did not choose: with its 95 % interval, and seed by seed."""
    seeds = [seed for seed in KEPT[base] if seed in KEPT[arm] and seed != 11]
    pairs = by_texts([KEPT[base][s] for s in seeds], [KEPT[arm][s] for s in seeds])
    crossed = crossed_macro(pairs, paired=True)
    low, high = (signed(x, 3) for x in crossed.interval())
    gaps = [by_document(KEPT[arm][s]) - by_document(KEPT[base][s]) for s in seeds]
    return f"{signed(crossed.difference, 3)} [{low}, {high}]", gaps


def own(loss: str, model: str) -> tuple[str, list[float]]:
    rate, plain, seeds = CHOSEN[loss, model]
    told, gaps = fresh(f"{loss} · {model} · {rate:g}", f"{PLAIN} · {model} · {plain:g}")
    assert len(gaps) == seeds
    return told, gaps


def first(loss: str, model: str, rate: float) -> float:
    return by_document(KEPT[f"{loss} · {model} · {rate:g}"][11])


def test_each_at_its_own_rate():
    found = estimate("rates")
    assert {tuple(key.split(" · ")) for key in found["own_rate"]} == CHOSEN.keys()
    names = {UNIFORM: "uniformity, last state, 0.1", DISPERSED: "dispersion, all layers, 0.1 (the paper's)"}
    for (loss, model), (rate, plain, seeds) in CHOSEN.items():
        assert (found["chosen"][f"{loss} · {model}"], found["chosen"][f"{PLAIN} · {model}"]) == (rate, plain)
        decision = found["own_rate"][f"{loss} · {model}"]
        told, gaps = own(loss, model)
        assert signed(decision["estimate"], 3) == told.split()[0]
        assert decision["level"] == pytest.approx(1 - 0.05 / 4, abs=1e-5)  # "of 98.8 % as four were planned"
        corrected = f"[{signed(decision['low'], 3)}, {signed(decision['high'], 3)}]"
        bold = f"**{told}**" if decision["low"] > 0 else told
        where = "GPT2" if model == "gpt2" else "Llama"
        assert f"| {names[loss]} | {where} | {rate:g} | {plain:g} | {seeds} | {bold} | {corrected} |" in RESULTS
    gpt2, llama = (own(UNIFORM, model)[0] for model in ("gpt2", "llama"))
    dispersed, gaps = own(DISPERSED, "llama")
    assert f"**do not count on it** | 80M, own rates: {gpt2}; 160M" in RESULTS
    assert f"**do not** | 80M, own rates: **{llama}**; 160M" in RESULTS
    assert f"**do not** | 80M, own rates: **{dispersed}**; 160M" in RESULTS
    level, behind = own(DISPERSED, "gpt2")
    assert f"**may help**: one budget, one rate | 80M, own rates: {level}; 160M" in RESULTS
    assert f"dispersion's gain is not seen ({level}), and" in RESULTS
    words = "the other three seeds are not ahead: behind by {1:.3f} and {2:.3f}, and level ({0:.3f})."
    assert words.format(*sorted(behind)) in PROSE
    assert f"; 80M, each at its best rate: {level} |" in README
    assert min(gaps) > 0  # "behind cross-entropy at 0.003 in each of the four seeds"
    gaps = own(UNIFORM, "gpt2")[1]
    assert max(gaps) < 0
    shared = fresh(f"{UNIFORM} · gpt2 · 0.005", f"{PLAIN} · gpt2 · 0.005")[1][:3]
    words = (
        "it was ahead by {:.3f} over these three seeds; at their own rates it is ahead by {:.3f} ({:.3f} to {:.3f})."
    )
    assert words.format(-sum(shared) / 3, -sum(gaps) / 3, -max(gaps), -min(gaps)) in PROSE
    every = [(pair, s) for pair in CHOSEN for s in (12, 13, 14, 15) if pair != (DISPERSED, "gpt2")]  # "in every seed"
    for ((loss, model), seed), sign in ((one, 1 if one[0][1] == "llama" else -1) for one in every):
        rate, plain, _ = CHOSEN[loss, model]
        base, arm = KEPT[f"{PLAIN} · {model} · {plain:g}"], KEPT[f"{loss} · {model} · {rate:g}"]
        if seed in base:
            assert all(sign * (b - a).mean() > 0 for a, b in by_texts([base[seed]], [arm[seed]]))
    assert list(KEPT[f"{PLAIN} · gpt2 · 0.008"]) == [11, 12, 13, 14]


def test_what_other_rates_do():
    opposite, _ = fresh(f"{DISPERSED} · llama · 0.003", f"{DISPERSED} · llama · 0.006")
    assert f"there it ends {opposite[1:]} below where it ends at 0.003" in PROSE
    base, higher = (KEPT[f"{PLAIN} · gpt2 · {rate:g}"] for rate in (0.003, 0.008))
    crossed = crossed_macro(by_texts(*([arm[s] for s in (11, 12, 13)] for arm in (base, higher))), paired=True)
    low, high = (-x for x in crossed.interval())
    assert f"cross-entropy gains {-crossed.difference:.3f} nats [{high:.3f}, {low:.3f}] (seeds 11 to 13)" in PROSE
    for rate in (0.003, 0.005, 0.008):  # "less of both"
        uniform, plain = (KEPT[f"{loss} · gpt2 · {rate:g}"][11] for loss in (UNIFORM, PLAIN))
        assert by_document(uniform) < by_document(plain)
        assert cosine(uniform) < cosine(plain)
    gains = fresh(f"{PLAIN} · gpt2 · 0.005", f"{PLAIN} · gpt2 · 0.008")[1]
    flat = first(PLAIN, "gpt2", 0.005) - first(PLAIN, "gpt2", 0.008)
    worse = first(UNIFORM, "gpt2", 0.008) - first(UNIFORM, "gpt2", 0.005)
    words = (
        "0.008 by {:.3f} for cross-entropy, which gains {:.3f} to {:.3f} by it in the other seeds, and 0.005 by {:.3f}"
    )
    assert words.format(flat, min(gains), max(gains), worse) in PROSE
    at = {rate: first(DISPERSED, "gpt2", rate) for rate in (0.0015, 0.003, 0.005, 0.008)}
    below = [first(PLAIN, "gpt2", rate) - at[rate] for rate in (0.003, 0.005, 0.008)]
    words = "are level ({:.3f} and {:.3f}), {:.3f} and {:.3f} below cross-entropy;"
    assert words.format(at[0.005], at[0.008], *below[1:]) in PROSE
    assert at[0.003] > at[0.0015]
    two = [by_document(run) for run in KEPT[f"{DISPERSED} · gpt2 · 0.003"].values()]
    assert f"its two seeds there are {max(two) - min(two):.3f} apart" in PROSE
    words = "(0.031, 0.014 and 0.009), while dispersion goes from {} at 0.003 to {} and {}."
    assert words.format(*(signed(-gap, 3) for gap in below)) in PROSE
    gained = [first(PLAIN, "gpt2", rate) - first(UNIFORM, "gpt2", rate) for rate in (0.003, 0.005, 0.008)]
    assert "({:.3f}, {:.3f} and {:.3f}), while".format(*gained) in PROSE


def test_the_llama_over_rates():
    rates = (0.00075, 0.0015, 0.003, 0.006)
    for loss in (PLAIN, UNIFORM):
        assert min(rates, key=lambda rate: first(loss, "llama", rate)) == 0.003
    harms = [
        by_document(run) - by_document(KEPT[f"{PLAIN} · llama · 0.003"][s])
        for s, run in KEPT[f"{UNIFORM} · llama · 0.003"].items()
    ]
    assert f"({harms[0]:.3f}; the others {min(harms[1:]):.3f} to {max(harms[1:]):.3f})" in PROSE
    assert all(first(UNIFORM, "llama", rate) > first(PLAIN, "llama", rate) for rate in rates)
    assert [first(DISPERSED, "llama", r) > first(PLAIN, "llama", r) for r in rates] == [True, True, True, False]
    cosines = [[cosine(KEPT[f"{loss} · llama · {rate:g}"][11]) for rate in rates] for loss in (PLAIN, DISPERSED)]
    assert "{:.2f}, {:.2f}, {:.2f} and {:.2f} from 0.00075 to 0.006".format(*cosines[0]) in PROSE
    assert f"Dispersion keeps it at {min(cosines[1]):.2f} to {max(cosines[1]):.2f} at all four" in PROSE
    base, uniform, dispersed = (first(loss, "llama", 0.006) for loss in (PLAIN, UNIFORM, DISPERSED))
    words = "uniformity is {:.3f} behind and dispersion {:.3f} ahead of a cross-entropy that is itself {:.3f} worse"
    assert words.format(uniform - base, base - dispersed, base - first(PLAIN, "llama", 0.003)) in PROSE


def test_rounding_and_what_a_seed_does():
    def cost(loss: str, model: str, scheme: str, digits: int = 3) -> str:
        rate, plain, _ = CHOSEN[loss, model]
        base, arm = KEPT[f"{PLAIN} · {model} · {plain:g}"], KEPT[f"{loss} · {model} · {rate:g}"]
        middle, low, high = interval(
            [quantisation(scheme)(arm[s]) - quantisation(scheme)(base[s]) for s in base if s in arm and s != 11]
        )
        return f"{signed(middle, digits)} [{signed(low, digits)}, {signed(high, digits)}]"

    gpt2 = [cost(UNIFORM, "gpt2", *scheme) for scheme in (("int4", 3), ("int8-int8", 4))]
    also = [cost(DISPERSED, "gpt2", *scheme) for scheme in (("int4", 3), ("int8-int8", 4))]
    plain = [
        sum(quantisation(scheme)(KEPT[f"{PLAIN} · gpt2 · 0.008"][s]) for s in (12, 13, 14)) / 3
        for scheme in ("int4", "int8-int8")
    ]
    words = "int4 weights cost {:.3f} nats with cross-entropy, which uniformity changes by {} and dispersion by {};"
    assert words.format(plain[0], gpt2[0], also[0]) in PROSE
    assert f"activations cost {plain[1]:.4f}, changed by {gpt2[1]} and {also[1]}, the last being less in every" in PROSE
    eight = quantisation("int8-int8")
    base, arm = KEPT[f"{PLAIN} · gpt2 · 0.008"], KEPT[f"{DISPERSED} · gpt2 · 0.008"]
    assert all(eight(arm[s]) < eight(base[s]) for s in (12, 13, 14))
    assert interval([eight(arm[s]) - eight(base[s]) for s in (12, 13, 14)], 0.9875)[2] > 0  # "not resolved at 98.8 %"
    assert [cost(DISPERSED, "llama", scheme).split()[0].strip("+−") for scheme in ("int4", "int8-int8")] == [
        "0.000",
        "0.000",
    ]
    costs = [quantisation("int8-int8")(run) for run in KEPT[f"{PLAIN} · gpt2 · 0.008"].values()]
    assert f"(cross-entropy at 0.008 with 80M: {min(costs):.3f} to {max(costs):.3f})" in PROSE
    base, arm = KEPT[f"{PLAIN} · llama · 0.003"], KEPT[f"{DISPERSED} · llama · 0.006"]
    crossed = crossed_macro(by_texts(*([of[s] for s in (12, 13, 14)] for of in (base, arm))), paired=True)
    low, high = (signed(x, 3) for x in crossed.interval())
    assert f"(without it {signed(crossed.difference, 3)} [{low}, {high}])" in " ".join(STUDIES_LOG.split())


def test_over_both_studies_one_harm_of_rates_is_significant():
    """Holm over the twenty-two comparisons of `pretrain` and the four here: dispersion's +0.017 is then none."""
    own = {}
    for (loss, model), (rate, plain, _) in CHOSEN.items():
        base, arm = KEPT[f"{PLAIN} · {model} · {plain:g}"], KEPT[f"{loss} · {model} · {rate:g}"]
        seeds = [seed for seed in base if seed in arm and seed != 11]
        own[loss, model] = crossed_macro(by_texts([base[s] for s in seeds], [arm[s] for s in seeds]), paired=True).p
    ps = [row["p"] for row in table("pretrain")] + list(own.values())
    assert len(ps) == 26
    *older, _, _, _, _ = together = holm(ps)
    corrected = dict(zip(own, together[-4:]))
    assert [place for place, p in corrected.items() if p < 0.05] == [(UNIFORM, "llama")]
    assert sum(p < 0.05 for p in older) == 7
    found = {(row["loss"], row["model"], row["tokens"]): p for row, p in zip(table("pretrain"), older)}
    harm, gain = found[DISPERSED, "llama", 8e7], found[DISPERSED, "gpt2 at 0.005", 16e7]
    words = (
        "Over the twenty-six comparisons of `pretrain` and `rates` together dispersion's +0.017 of `rates` would not be"
    )
    words += (
        f" significant, nor its harm in the Llama with 80M (p = {harm:.3f}); the other six harms of `pretrain` would,"
    )
    assert f"{words} and the gain (p = {gain:.3f})." in PROSE
    assert gain < 0.05 < harm


def test_which_runs_are_new():
    names = [run.name for run in (STUDIES / "rates" / "runs").iterdir()]
    older = {by_document(run) for arm in runs("pretrain").values() for run in arm.values()}
    shared = sum(by_document(run) in older for arm in KEPT.values() for run in arm.values())
    assert sum((run.origin or "").startswith("pretrain/") for arm in KEPT.values() for run in arm.values()) == shared
    assert f"and {shared} runs of `pretrain` and `rates` (`--reuse`)" in PROSE
    assert len(names) - shared == 21 + 3  # as the table of docs/runs.md has them
    assert len(names) == 57
    assert len([row for row in table("rates") if row["chosen"]]) == 6
