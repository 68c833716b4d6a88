"""The numbers of `rates` in the prose of README.md, docs/pretraining.md and the pages behind it."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from test_quoted_gpt2_rates import beside
from test_quoted_results import PLAIN, README, RESULTS, ROOT, STUDIES, estimate, runs, table

from decondense.records import Training
from decondense.stats.crossed import Crossed, crossed_macro
from decondense.stats.significance import holm
from decondense.stats.verdicts import interval, signed
from decondense.studies.contrasts import by_texts
from decondense.studies.runs import by_document, cosine, quantisation

UNIFORM, DISPERSED, DECORRELATED = "uniformity last 0.1", "dispersion all 0.1", "decorrelation last 0.3"
LONGER, FIVE = "gpt2 160M", [11, 12, 13, 14, 15]
STUDIES_LOG = (ROOT / "docs" / "studies-log.md").read_text(encoding="utf-8")
CHANGES = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
PROSE = " ".join(RESULTS.split())
KEPT = runs("rates")
CHOSEN = {  # what the prose compares, with the seeds that both have
    (UNIFORM, "gpt2"): (0.005, 0.008, 3),
    (UNIFORM, "llama"): (0.003, 0.003, 4),
    (DISPERSED, "gpt2"): (0.008, 0.008, 3),
    (DISPERSED, LONGER): (0.005, 0.008, 4),
    (DISPERSED, "llama"): (0.006, 0.003, 4),
    (DECORRELATED, LONGER): (0.008, 0.008, 4),
    (DECORRELATED, "llama"): (0.006, 0.003, 4),
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
    names[DECORRELATED] = "decorrelation, last state, 0.3"
    for (loss, model), (rate, plain, seeds) in CHOSEN.items():
        assert (found["chosen"][f"{loss} · {model}"], found["chosen"][f"{PLAIN} · {model}"]) == (rate, plain)
        decision = found["own_rate"][f"{loss} · {model}"]
        told, gaps = own(loss, model)
        assert signed(decision["estimate"], 3) == told.split()[0]
        assert decision["level"] == pytest.approx(1 - 0.05 / 9, abs=1e-5)  # "of 99.4 % as nine are planned"
        digits = 4 if min(abs(decision[end]) for end in ("low", "high")) < 0.001 else 3
        corrected = f"[{signed(decision['low'], digits)}, {signed(decision['high'], digits)}]"
        bold = f"**{told}**" if decision["low"] > 0 or decision["high"] < 0 else told
        where = {"gpt2": "GPT2, 80M", LONGER: "GPT2, 160M", "llama": "Llama, 80M"}[model]
        assert f"| {names[loss]} | {where} | {rate:g} | {plain:g} | {seeds} | {bold} | {corrected} |" in RESULTS
    gpt2, llama = (own(UNIFORM, model)[0] for model in ("gpt2", "llama"))
    dispersed, gaps = own(DISPERSED, "llama")
    assert f" | {gpt2} | **open**: a lead at one rate, not corrected |" in RESULTS
    assert f"** | **{llama}** | **do not** |" in RESULTS
    assert f"] | **{dispersed}** | **do not** |" in RESULTS
    level, behind = own(DISPERSED, "gpt2")
    assert f"] | {level} | **not resolved** |" in RESULTS
    assert f"for each arm dispersion shows no gain with 80M ({level}), and" in RESULTS
    words = "the other three seeds are not ahead: behind by {1:.3f} and {2:.3f}, and level ({0:.3f})."
    assert words.format(*sorted(behind)) in PROSE
    gained, ahead = own(DISPERSED, LONGER)
    assert max(ahead) < 0
    assert f"** | **{gained}** | **may help**: significant, narrowly |" in RESULTS
    assert f"; each at its own rate {gained} |" in README
    assert f"; 80M, each at its own rate: {level} |" in README
    brief, low, high = re.findall(r"[\d.]+", gained)
    assert (
        f"With each arm at its own rate, which one seed chose, the gain is {brief} [{high}, {low}] over the other four."
        in RESULTS
    )
    one = -next(r["difference"] for r in table("pretrain") if r["p_holm"] < 0.05 and r["difference"] < 0)
    words = f"it gains {one:.3f} nats at one rate and {brief} with each arm at its own (significant, narrowly)."
    assert words in RESULTS
    assert f"dispersion still gains in the GPT2 with 160M, by {brief} nats." in RESULTS
    assert f"(−{brief} nats, each at" in CHANGES
    recipe = (ROOT / "recipes" / "pretrain-small.yaml").read_text(encoding="utf-8")
    assert f"with each arm at its own rate it is {brief} nats." in recipe
    assert min(gaps) > 0  # "behind cross-entropy at 0.003 in each of the four seeds"
    gaps = own(UNIFORM, "gpt2")[1]
    assert max(gaps) < 0
    shared = fresh(f"{UNIFORM} · gpt2 · 0.005", f"{PLAIN} · gpt2 · 0.005")[1][:3]
    words = (
        "it was ahead by {:.3f} over these three seeds; at their own rates it is ahead by {:.3f} ({:.3f} to {:.3f})."
    )
    assert words.format(-sum(shared) / 3, -sum(gaps) / 3, -max(gaps), -min(gaps)) in PROSE
    # "in every seed and text"
    but = (DISPERSED, "gpt2"), (DECORRELATED, "llama")
    every = [(pair, s) for pair in CHOSEN for s in (12, 13, 14, 15) if pair not in but]
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


RATES = (0.003, 0.005, 0.008)


def longer(loss: str) -> dict[float, dict[int, Training]]:
    """rate → seed → run, of the GPT2 with 160M tokens."""
    return {rate: KEPT.get(f"{loss} · {LONGER} · {rate:g}", {}) for rate in RATES}


def paired(arm: dict[int, Training], base: dict[int, Training], seeds: list[int], **options) -> Crossed:
    return crossed_macro(by_texts([base[s] for s in seeds], [arm[s] for s in seeds]), **{"paired": True} | options)


def test_cross_entropy_at_three_rates():
    base = longer(PLAIN)
    assert all(list(arm) == FIVE for arm in base.values())
    levels = [float(np.mean([by_document(run) for run in arm.values()])) for arm in base.values()]
    words = "On average it ends within {:.3f} at three rates: {:.3f}, {:.3f} and {:.3f} with 0.003, 0.005 and 0.008,"
    assert words.format(max(levels) - min(levels), *levels) in PROSE
    assert f"at two other rates cross-entropy ends within {max(levels) - min(levels):.3f} on average" in PROSE
    assert min(levels) == levels[0]  # "at 0.003, which is the best of the three on average and the lowest"
    pairs = [paired(base[a], base[b], FIVE) for a, b in itertools.combinations(RATES, 2)]
    assert all(low < 0 < high for low, high in (pair.interval() for pair in pairs))
    low, high = (signed(x, 3) for x in pairs[0].interval())
    gaps = [by_document(base[0.003][s]) - by_document(base[0.005][s]) for s in FIVE]
    told = f"{signed(pairs[0].difference, 3)} [{low}, {high}], {signed(min(gaps), 3)} to {signed(max(gaps), 3)} in"
    assert f"0.003 minus 0.005 is {told} single seeds." in PROSE
    assert -min(gaps) > 0.027  # "does not exclude as much as the gain"


def test_losses_against_cross_entropy_at_three_rates():
    base, ahead = longer(PLAIN), {loss: longer(loss)[0.005] for loss in (DISPERSED, DECORRELATED, UNIFORM)}
    for loss, plain, seed in itertools.product((DISPERSED, DECORRELATED), base.values(), FIVE):
        assert by_document(ahead[loss][seed]) < by_document(plain[seed])  # "in every seed"
    for plain, seed in itertools.product(base.values(), FIVE):  # "and every text at each of the three"
        assert all((b - a).mean() < 0 for a, b in by_texts([plain[seed]], [ahead[DISPERSED][seed]]))

    def by(loss: str, rate: float) -> str:
        found = paired(ahead[loss], base[rate], FIVE)
        low, high = (f"{-x:.3f}".replace("-", "−") for x in reversed(found.interval()))
        return f"{-found.difference:.3f} [{low}, {high}]"

    first_, *rest = (by(DISPERSED, rate) for rate in RATES)
    words = "by {}, at 0.005 by {} and at 0.008 by {};".format(first_.replace(" [", " nats ["), *rest)
    assert words in PROSE
    words = "by {}, {} and {}, uncorrected.".format(*(by(DECORRELATED, rate) for rate in RATES))
    assert words in PROSE
    assert "by {}, {} and {}; none is resolved.".format(*(by(UNIFORM, rate) for rate in RATES)) in PROSE
    assert [rate for rate, arm in longer(UNIFORM).items() if arm] == [0.005]
    below = [by_document(base[r][11]) - first(DISPERSED, LONGER, r) for r in (0.003, 0.008)]
    assert "{:.3f} and {:.3f} below cross-entropy there.".format(*below) in PROSE
    own_rates = [first(DECORRELATED, LONGER, rate) for rate in (0.008, 0.003, 0.005)]
    assert "({:.3f}; {:.3f} and {:.3f} at 0.003 and 0.005).".format(*own_rates) in PROSE
    told, gaps = own(DECORRELATED, LONGER)
    assert f"] | {told} | **open**: a lead at 95 %, not corrected |" in RESULTS
    worse = fresh(f"{DECORRELATED} · {LONGER} · 0.008", f"{DECORRELATED} · {LONGER} · 0.005")[0].removeprefix("+")
    words = f"it is ahead there as well, by {-max(gaps):.3f} to {-min(gaps):.3f}, and {worse} behind itself at 0.005,"
    assert words in PROSE
    cell = estimate("rates")["own_rate"][f"{DECORRELATED} · {LONGER}"]
    assert cell["low"] < -0.005 < 0 < cell["high"]  # "the corrected interval contains 0 and −0.005"


def test_had_another_seed_chosen():
    """The rule with each seed as the one that chooses cross-entropy's rate, dispersion at 0.005."""
    base, arm = longer(PLAIN), longer(DISPERSED)[0.005]
    ends = {}
    for chooser in FIVE:
        rate = min(RATES, key=lambda rate: by_document(base[rate][chooser]))
        found = paired(arm, base[rate], [seed for seed in FIVE if seed != chooser])
        ends[chooser] = rate, found.difference, found.interval(1 - 0.05 / 9)[1]
    assert [rate for rate, *_ in ends.values()] == [0.008, 0.003, 0.003, 0.005, 0.005]
    assert f"It does, by {-ends[11][2]:.4f}, less than" in PROSE
    assert f"does not explain it, by {-ends[11][2]:.4f} nats." in PROSE
    assert f"a better rate does not explain the gain, but only by {-ends[11][2]:.4f} nats." in README
    assert f"It lies below 0 by {-ends[11][2]:.4f}." in " ".join(STUDIES_LOG.split())
    others = [ends[chooser] for chooser in FIVE[1:]]
    assert min(high for *_, high in others) > 0  # "that interval would contain 0"
    told = [signed(f([d for _, d, _ in others]), 3) for f in (max, min)]
    assert "the difference over the rest would be {} to {} and that".format(*told) in PROSE
    own_pairs = [[by_document(of[s]) for s in FIVE[1:]] for of in (base[0.008], arm)]
    alone = paired(arm, base[0.008], FIVE[1:], paired=False).p
    words = "({:.2f} over four seeds); without pairs p is {:.4f} there instead of {:.4f}."
    assert words.format(np.corrcoef(own_pairs)[0, 1], alone, paired(arm, base[0.008], FIVE[1:]).p) in PROSE


def test_rounding_and_steadiness_at_other_rates():
    base, arm = longer(PLAIN), longer(DISPERSED)[0.005]
    changes = {
        (rate, scheme): [quantisation(scheme)(arm[s]) - quantisation(scheme)(base[rate][s]) for s in FIVE]
        for rate in (0.003, 0.008)
        for scheme in ("int4", "int8-int8")
    }
    fewer = [changes[rate, "int4"] for rate in (0.003, 0.008)]
    assert max(map(max, fewer)) < 0
    words = "int4 costs less with it in every seed too ({} and {})."
    assert words.format(*(signed(float(np.mean(some)), 4) for some in fewer)) in PROSE
    middle, low, high = (signed(x, 4) for x in interval(changes[0.003, "int8-int8"]))
    plain = float(np.mean([quantisation("int8-int8")(run) for run in base[0.003].values()]))
    assert f"at 0.003 cross-entropy loses {plain:.4f}, which is changed by {middle} [{low}, {high}]." in PROSE
    costs = sorted(quantisation("int8-int8")(run) for run in base[0.008].values())
    words = "loses {:.3f} to {:.3f} in three of five seeds, {:.3f} and {:.3f} in the others."
    assert words.format(costs[2], costs[4], *costs[:2]) in PROSE
    new = [
        run
        for loss in (PLAIN, DISPERSED, DECORRELATED)
        for rate in (0.003, 0.008)
        for run in longer(loss)[rate].values()
    ]
    norms = [max(line.grad_norm for line in run.history if line.step > 0.4 * run.steps) for run in new]
    assert len(new) == 18
    *steady, highest = sorted(norms)
    assert max(steady) < 0.40  # "below 0.40 in seventeen of eighteen runs"
    assert f"and reaches {highest:.2f} in one with decorrelation" in PROSE
    assert new[norms.index(highest)].arm.startswith(DECORRELATED)


def test_decorrelation_in_the_llama():
    at = {rate: first(DECORRELATED, "llama", rate) for rate in (0.0015, 0.003, 0.006)}
    assert min(at, key=at.__getitem__) == 0.006
    plain = {rate: first(PLAIN, "llama", rate) for rate in at}
    words = "there it ends {:.3f} below where it ends at 0.003, {:.3f} below cross-entropy at the same rate, and {:.3f}"
    assert words.format(at[0.003] - at[0.006], plain[0.006] - at[0.006], plain[0.003] - at[0.006]) in PROSE
    told, gaps = own(DECORRELATED, "llama")
    assert f"** | {told} | **no gain seen** |" in RESULTS
    low, high = re.findall(
        r"[+−][\d.]+", fresh(f"{DECORRELATED} · llama · 0.003", f"{DECORRELATED} · llama · 0.006")[0]
    )[1:]
    middle = fresh(f"{DECORRELATED} · llama · 0.003", f"{DECORRELATED} · llama · 0.006")[0].split()[0][1:]
    words = (
        f"In the other four seeds it ends {middle} [{low}, {high}] below where it ends at 0.003, and {min(gaps):.3f} to"
    )
    assert f"{words} {max(gaps):.3f} above cross-entropy." in PROSE
    cell = estimate("rates")["own_rate"][f"{DECORRELATED} · llama"]
    assert cell["low"] < 0 < 0.005 < cell["high"]  # "It contains both, so that stays open"


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
    # "not resolved at 99.4 %"
    assert interval([eight(arm[s]) - eight(base[s]) for s in (12, 13, 14)], 1 - 0.05 / 9)[2] > 0
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
    """Holm over the twenty-seven comparisons of `pretrain` and the seven here: dispersion's two are then not."""
    own = {}
    for (loss, model), (rate, plain, _) in CHOSEN.items():
        base, arm = KEPT[f"{PLAIN} · {model} · {plain:g}"], KEPT[f"{loss} · {model} · {rate:g}"]
        seeds = [seed for seed in base if seed in arm and seed != 11]
        own[loss, model] = crossed_macro(by_texts([base[s] for s in seeds], [arm[s] for s in seeds]), paired=True).p
    ps = [row["p"] for row in table("pretrain")] + list(own.values())
    assert len(ps) == 34
    together = holm(ps)
    older, corrected = together[:27], dict(zip(own, together[27:]))
    assert [place for place, p in corrected.items() if p < 0.05] == [(UNIFORM, "llama")]
    assert sum(p < 0.05 for p in older) == 6
    found = {(row["loss"], row["model"], row["tokens"]): p for row, p in zip(table("pretrain"), older)}
    gain = found[DISPERSED, "gpt2 at 0.005", 16e7]
    two = {f"{corrected[DISPERSED, model]:.3f}" for model in (LONGER, "llama")}
    assert len(two) == 1
    words = "Over the thirty-four comparisons of `pretrain` and `rates` together neither dispersion's +0.017 nor its"
    words += f" −0.028 of `rates` would be significant (p = {two.pop()} each), nor the gain (p = {gain:.3f}); the six"
    assert f"{words} harms of `pretrain` would." in PROSE
    assert gain > 0.05
    alone = next(row["p_holm"] for row in table("pretrain") if (row["loss"], row["tokens"]) == (DISPERSED, 16e7))
    words = f"p = {alone:.3f} after Holm's correction for this study, {gain:.3f} for both studies together."
    own_rates = f"{corrected[DISPERSED, LONGER]:.3f}"
    assert f"{words} With each arm at its own rate it has p = {own_rates} over both." in PROSE
    assert f"p = {alone:.3f} after correction for this study, {gain:.3f} over both studies together." in PROSE
    assert f"p = {alone:.3f} after correction in its study, {gain:.3f} over both studies together." in README


def test_which_runs_are_new():
    names = [run.name for run in (STUDIES / "rates" / "runs").iterdir()]
    older = {by_document(run) for arm in runs("pretrain").values() for run in arm.values()}
    shared = sum(by_document(run) in older for arm in KEPT.values() for run in arm.values())
    taken = [(KEPT, "pretrain/"), (runs("pretrain"), "rates/")]
    origins = [
        (run.origin or "").startswith(place) for some, place in taken for arm in some.values() for run in arm.values()
    ]
    assert sum(origins) == shared
    assert f"and {shared} runs of `pretrain` and `rates` (`--reuse`)" in PROSE
    assert (
        len(names) - (shared - 1) == 21 + 3 + 16 + 8
    )  # one of them is shared the other way; as the table of docs/runs.md has them
    assert f"`rates` ({220 - len(names)} of 220 runs; 92 in all would be enough" in PROSE
    assert len(names) == 106
    assert len([row for row in table("rates") if row["chosen"]]) == 10


def test_the_choice_of_rates_with_320m():
    """How far the lead with 320M rests on which rates are compared, and in which seeds they were chosen."""
    made, fast = runs("pretrain"), f"{DISPERSED} · gpt2 at 0.005 · 320M"
    lower, slow, higher, same = (
        f"{PLAIN} · gpt2 at 0.002 · 320M", f"{PLAIN} · gpt2 · 320M", f"{PLAIN} · gpt2 at 0.004 · 320M",
        f"{PLAIN} · gpt2 at 0.005 · 320M",
    )  # fmt: skip
    best, *others = sorted(
        (lower, slow, higher, same), key=lambda arm: np.mean([*map(by_document, made[arm].values())])
    )
    assert best == slow  # "on average the best of four rates"
    assert f"| dispersion, against the best of four rates: {beside(fast, slow, tuple(FIVE))[0]}; where" in README
    lowest = [min(by_document(made[arm][s]) for arm in (best, *others) if s in made[arm]) for s in FIVE]
    middle, *ends = interval([low - by_document(made[fast][s]) for s, low in zip(FIVE, lowest)])
    words = "the lowest of its rates in each seed by itself the lead is {:.3f} [{:.3f}, {:.3f}]."
    assert words.format(middle, *ends) in PROSE
    without, later = beside(fast, slow, tuple(FIVE[1:]))[0], beside(fast, lower, (12, 13, 14))[0]
    words = f"the −0.017 is {without}. Against 0.002 the lead over seeds 12 to 14 is {later}."
    assert f"Without seed 11, which compared these three, {words}" in PROSE
    left, part = (
        beside(*pair, (11, 12, 13, 14))[1].mean() for pair in ((fast, slow), (fast, f"{DISPERSED} · gpt2 · 320M"))
    )
    assert f"So of a lead of {-left:.3f} over seeds 11 to 14 {-part:.3f} come with the higher rate." in PROSE
    assert {made[arm][11].recipe["train"]["clip"] for arm in (fast, same)} == {1.0}  # no "stricter limit"
    more = [
        float(re.findall(r"[\d.]+", own_or)[0])
        for own_or in (own(DISPERSED, LONGER)[0], beside(fast, slow, tuple(FIVE))[0])
    ]
    words = "gained {:.2f} nats in a GPT2 with 160M tokens (significant, narrowly). With 320M it led by {:.2f} (not"
    assert words.format(*more) in README
