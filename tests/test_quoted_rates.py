"""The numbers of `rates` in the prose of README.md and docs/results.md."""

from __future__ import annotations

import pytest
from test_quoted_results import PLAIN, README, RESULTS, STUDIES, estimate, runs, table

from decondense.stats.crossed import crossed_macro
from decondense.stats.verdicts import signed
from decondense.studies.contrasts import by_texts
from decondense.studies.runs import by_document, cosine

UNIFORM, DISPERSED = "uniformity last 0.1", "dispersion all 0.1"
PROSE = " ".join(RESULTS.split())
KEPT = runs("rates")
CHOSEN = {  # what the prose compares, with the seeds that both have
    (UNIFORM, "gpt2"): (0.005, 0.008, 3),
    (UNIFORM, "llama"): (0.003, 0.003, 4),
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
        assert decision["level"] == pytest.approx(1 - 0.05 / 3, abs=1e-5)
        corrected = f"[{signed(decision['low'], 3)}, {signed(decision['high'], 3)}]"
        bold = f"**{told}**" if decision["low"] > 0 else told
        where = "GPT2" if model == "gpt2" else "Llama"
        assert f"| {names[loss]} | {where} | {rate:g} | {plain:g} | {seeds} | {bold} | {corrected} |" in RESULTS
    gpt2, llama = (own(UNIFORM, model)[0] for model in ("gpt2", "llama"))
    dispersed, gaps = own(DISPERSED, "llama")
    assert f"each at its own best rate: GPT2 {gpt2.replace(' [', ' nats [')}, **Llama {llama}**;" in RESULTS
    assert f"**Llama, 80M, each at its own best rate: {dispersed.replace(' [', ' nats [')}**, four seeds;" in RESULTS
    assert f"(uniformity {llama}, dispersion {dispersed}) and the GPT2's gain is not resolved ({gpt2})" in " ".join(
        README.split()
    )
    assert min(gaps) > 0  # "behind cross-entropy at 0.003 in each of the four seeds"
    gaps = own(UNIFORM, "gpt2")[1]
    assert max(gaps) < 0
    shared = fresh(f"{UNIFORM} · gpt2 · 0.005", f"{PLAIN} · gpt2 · 0.005")[1][:3]
    words = "ahead by {:.3f} where both had 0.005, and is by {:.3f} now: ahead in each seed, by {:.3f} to {:.3f}."
    assert words.format(-sum(shared) / 3, -sum(gaps) / 3, -max(gaps), -min(gaps)) in PROSE
    assert list(KEPT[f"{PLAIN} · gpt2 · 0.008"]) == [11, 12, 13, 14]


def test_what_other_rates_do():
    opposite = fresh(f"{DISPERSED} · llama · 0.003", f"{DISPERSED} · llama · 0.006")[0][1:]
    assert f"At 0.006 it ends {opposite} below where it ends at 0.003" in PROSE
    ahead = first(PLAIN, "llama", 0.006) - first(DISPERSED, "llama", 0.006)
    assert f"in seed 11 also {ahead:.3f} below cross-entropy at 0.006;" in PROSE
    higher = fresh(f"{PLAIN} · gpt2 · 0.005", f"{PLAIN} · gpt2 · 0.008")[0][1:]
    assert f"0.008 suits cross-entropy better than 0.005, by {higher} over three seeds" in PROSE
    worse = first(UNIFORM, "gpt2", 0.008) - first(UNIFORM, "gpt2", 0.005)
    assert f"and uniformity not ({worse:.3f} worse, one seed)" in PROSE
    alone = first(PLAIN, "gpt2", 0.008) - first(DISPERSED, "gpt2", 0.008)
    assert f"it is best at 0.008 as well, {alone:.3f} below cross-entropy there." in PROSE
    rates = (0.00075, 0.0015, 0.003, 0.006)
    for loss in (PLAIN, UNIFORM):
        assert min(rates, key=lambda rate: first(loss, "llama", rate)) == 0.003
    cosines = [cosine(KEPT[f"{PLAIN} · llama · {rate:g}"][11]) for rate in rates]
    assert "{:.2f}, {:.2f}, {:.2f} and {:.2f} from 0.00075 to 0.006".format(*cosines) in PROSE
    harms = [first(loss, "llama", r) - first(PLAIN, "llama", r) for loss in (UNIFORM, DISPERSED) for r in rates[:3]]
    assert f"at every rate up to there (by {min(harms):.3f} to {max(harms):.3f})" in PROSE
    less = first(UNIFORM, "llama", 0.006) - first(PLAIN, "llama", 0.006)
    assert f"uniformity harms less ({less:.3f}) and dispersion gains." in PROSE
    gains = [first(PLAIN, "gpt2", rate) - first(UNIFORM, "gpt2", rate) for rate in (0.003, 0.005, 0.008)]
    assert gains == sorted(gains, reverse=True)  # "largest at the lowest of three rates"
    flat = first(PLAIN, "gpt2", 0.005) - first(PLAIN, "gpt2", 0.008)
    assert f"({flat:.3f} between 0.005 and 0.008 for cross-entropy)" in PROSE


def test_which_runs_are_new():
    names = [run.name for run in (STUDIES / "rates" / "runs").iterdir()]
    older = {by_document(run) for arm in runs("pretrain").values() for run in arm.values()}
    shared = sum(by_document(run) in older for arm in KEPT.values() for run in arm.values())
    assert f"and {shared} runs of `pretrain` and `rates` (`--reuse`)" in PROSE
    assert f"the {len(names) - shared} runs that `rates` alone has are of" in PROSE
    assert f"[rates](../results/studies/rates), {len(names)} of 120 runs;" in RESULTS
    assert len([row for row in table("rates") if row["chosen"]]) == 6
