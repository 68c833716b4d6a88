"""The GPT2 with more tokens, in the pages behind docs/pretraining.md, and in README.md what it takes from there."""

from __future__ import annotations

import math

import numpy as np
from test_quoted_budgets import (
    CELLS,
    DECORRELATED,
    DISPERSED,
    FIVE,
    KEPT,
    UNIFORM,
    apart,
    both,
    corrected,
    cost,
    course,
    lead,
    logged,
    over,
    per_doubling,
    tenths,
    words_of,
)
from test_quoted_results import PLAIN, RESULTS, runs, table

from decondense.stats.verdicts import interval, signed
from decondense.studies.contrasts import by_texts
from decondense.studies.pretrain import tokens_saved
from decondense.studies.runs import by_document

FASTER, LAMBADA = "gpt2 at 0.005", "lambada_openai"


def peaks(arm: str, after: float) -> list[float]:
    """The highest norm of the gradient after so many tokens, run by run."""
    return [max(h.grad_norm for h in run.history if h.tokens > after) for run in KEPT[arm].values()]


def early_outliers(arm: str) -> list[float]:
    """The variance of three dimensions after the second block, in per cent, run by run."""
    return [100 * run.snapshots[-1].outlier_share[2] for run in KEPT[arm].values()]


def test_the_gpt2_with_160m():
    place, losses = "gpt2 at 0.005 · 160M", (DECORRELATED, UNIFORM, DISPERSED)
    gaps = {loss: apart(loss, place, seeds=FIVE) for loss in losses}
    shorter = apart(DISPERSED, "gpt2 · 40M")
    assert min(shorter) > 0  # "with 40M at 0.003 it is behind in every seed"

    def level(arm: str) -> float:
        return float(np.mean([by_document(run) for run in KEPT[arm].values()]))

    llama, plain, dispersed = (
        level(f"{arm}") for arm in (f"{PLAIN} · llama · 160M", f"{PLAIN} · {place}", f"{DISPERSED} · {place}")
    )
    assert (
        f"ends at {llama:.3f} with 160M tokens; this GPT2 at {plain:.3f}, and with dispersion at {dispersed:.3f}."
        in RESULTS
    )
    assert 0.70 < (dispersed - llama) / (plain - llama) < 0.80  # "Three quarters of that distance stay"
    *others, last = sorted(by_document(KEPT[f"{PLAIN} · {place}"][s]) for s in FIVE)
    assert by_document(KEPT[f"{PLAIN} · {place}"][12]) == last
    assert {min(gap) == gap[FIVE.index(12)] for gap in gaps.values()} == {True}  # "the largest lead of each"
    without = -np.mean([gap for seed, gap in zip(FIVE, gaps[DISPERSED]) if seed != 12])
    words = f"seed 12's is the worst by {last - others[-1]:.3f} nats and gives each its largest lead. Without that"
    assert f"{words} seed dispersion's lead is {without:.3f}." in RESULTS

    way = course(DISPERSED, place, seeds=FIVE)
    means = {at: float(np.mean(gap)) for at, gap in way.items()}
    worst = max(means, key=means.__getitem__)
    first = next(at for at in way if all(max(gap) < 0 for later, gap in way.items() if later >= at))
    words = (
        "Dispersion leads in training loss by up to {:.3f} nats, after {:.0f}M tokens, is behind by up to {:.3f}, after"
    )
    words += (
        " {:.0f}M, and ahead in every seed from {:.0f}M on, by {:.3f} from 64M to 80M, where the warm-up has ended,"
    )
    words += " and by {:.3f} over the last 40M."
    spans = [-over(way, *span).mean() for span in ((64, 80), (120, 161))]
    assert words.format(*lead(way), means[worst], worst, first, *spans) in RESULTS
    behind = [at for at, gap in means.items() if gap > 0]
    assert f"dispersion is behind from {behind[0]:.0f}M to {behind[-1]:.0f}M and then ahead" in RESULTS
    for loss in (DECORRELATED, UNIFORM):  # "lead from the start" in the picture's description
        assert all(np.mean(gap) < 0 for at, gap in course(loss, place, seeds=FIVE).items() if at > 1)

    shots = {arm: [KEPT[f"{arm} · {place}"][s].snapshots[-1] for s in FIVE] for arm in (PLAIN, *losses)}
    blocks, last = ({arm: np.mean([of(shot) for shot in some]) for arm, some in shots.items()}
                    for of in (lambda shot: shot.blocks, lambda shot: shot.mean_cosine[-1]))  # fmt: skip
    words = (
        "takes the mean cosine of the blocks from {:.3f} to {:.3f} and leaves the last state nearly as it is, {:.3f}"
    )
    words += " instead of {:.3f}."
    assert words.format(blocks[PLAIN], blocks[DISPERSED], last[DISPERSED], last[PLAIN]) in RESULTS
    words = "open the last state, to {:.3f} and {:.3f}, and leave the blocks at {:.3f} and {:.3f}."
    ends = [of[arm] for of in (last, blocks) for arm in (DECORRELATED, UNIFORM)]
    assert words.format(*ends) in RESULTS
    there = np.mean([run.snapshots[-1].blocks for run in KEPT[f"{PLAIN} · llama · 160M"].values()])
    assert f"Cross-entropy's blocks have {there:.3f} in the Llama with 160M," in RESULTS

    high = {arm: peaks(f"{arm} · {place}", 64e6) for arm in (PLAIN, *losses)}
    assert [sum(peak > 1 for peak in high[arm]) for arm in (PLAIN, *losses)] == [0, 3, 1, 0]
    assert f"(another of these reaches {sorted(high[UNIFORM])[-2]:.2f}), but never above" in RESULTS
    assert max(*high[PLAIN], *high[DISPERSED]) < 0.40  # "never above 0.40"
    shares = [x for loss in losses for x in early_outliers(f"{loss} · {place}")], early_outliers(f"{PLAIN} · {place}")
    words = "hold {:.0f} to {:.0f} % of the variance after the second block with any of the three losses, where"
    words += " cross-entropy has {:.0f} to {:.0f} %."
    assert words.format(*(pick(some) for some in shares for pick in (min, max))) in RESULTS
    by_tenth = tenths(DISPERSED, place, seeds=FIVE)
    assert (by_tenth < 0).all()  # "in every tenth of the text, in every seed"
    assert (tenths(DECORRELATED, place, seeds=FIVE).mean(0) < 0).all()  # "on average decorrelation too"
    words = "by {:.3f} nats in the most frequent, {:.3f} in the ninth and {:.3f} in the rarest;"
    assert words.format(*(-by_tenth.mean(0)[i] for i in (0, 8, 9))) in RESULTS
    assert by_tenth.mean(0).argmin() == 8
    assert tenths(UNIFORM, place, seeds=FIVE).mean(0)[9] > 0  # "uniformity is behind on the rarest"


def test_the_gpt2_with_more_tokens():
    model = "gpt2 at 0.005"
    slopes = words_of(per_doubling(UNIFORM, model)).removeprefix("+")
    assert f"with each doubling, from 80M to 320M, the difference rises by {slopes}." in RESULTS
    gaps = course(UNIFORM, f"{model} · 320M")
    means = {at: float(np.mean(seeds)) for at, seeds in gaps.items()}
    signs = [(round(at), gap > 0) for at, gap in means.items()]
    turns = [at for (at, now), (_, before) in zip(signs[2:], signs[1:]) if now != before]
    last = signs[[at for at, _ in signs].index(turns[1]) - 1][0]
    assert len(turns) == 3
    assert f"behind from {turns[0]}M, before the warm-up ends, to {last}M and again from {turns[2]}M;" in RESULTS
    assert f"leads by up to {lead(gaps)[0]:.2f} nats and is on average behind" in RESULTS

    high = [peak > 1 for arm in (PLAIN, UNIFORM) for peak in peaks(f"{arm} · {model} · 320M", 128e6)]
    assert high == [True] * 5 + [False]  # "the seed that ends ahead"
    llama = [run for arm in (PLAIN, UNIFORM, DISPERSED) for run in KEPT[f"{arm} · llama · 320M"].values()]
    norms = [h.grad_norm for run in llama for h in run.history if h.tokens > 128e6]
    assert f"In the Llama with 320M the norm never exceeds {math.ceil(100 * max(norms)) / 100:.2f}." in RESULTS

    short, long = (over(course(UNIFORM, f"{model} · {m}"), 100, 113) for m in ("160M", "320M"))
    assert max(short) < 0  # "ahead in every seed with 160M and behind in two of three with 320M"
    assert sum(long > 0) == 2
    assert f"with 320M: {words_of(list(long - short))} from one to the other, over these three." in RESULTS
    early = [h.grad_norm for m in ("160M", "320M") for arm in both(UNIFORM, f"{model} · {m}") for run in arm.values()
             for h in run.history if 66e6 < h.tokens < 113e6]  # fmt: skip
    assert max(early) < 0.5
    assert "when the runs of uniformity and of cross-entropy are still steady" in RESULTS
    shaken = [max(h.grad_norm for h in run.history if 100e6 < h.tokens < 113e6)
              for run in KEPT[f"{DECORRELATED} · {model} · 160M"].values()]  # fmt: skip
    assert sum(norm > 1 for norm in shaken) == 1  # so it does not say "all runs"
    steady = [h.grad_norm for arm in both(UNIFORM, f"{model} · 320M") for run in arm.values() for h in run.history
              if 66e6 < h.tokens < 150e6]  # fmt: skip
    assert max(steady) < 0.5  # "after 150M the curves are unsteady" in the picture's description
    once, again = ({s: (logged(run, 1), run.blocks) for s, run in both(UNIFORM, f"{model} · {m}")[0].items()}
                   for m in ("160M", "320M"))  # fmt: skip
    assert once == again  # "the same blocks in the same order": the seed and the number of blocks make it

    high = [[x for x in early_outliers(f"{arm} · {model} · 320M") if x > 10] for arm in (PLAIN, UNIFORM)]
    assert list(map(len, high)) == [1, 2]
    words = (
        "With 320M one run of cross-entropy and two of uniformity have {:.0f} to {:.0f} %, and all five of dispersion"
    )
    dispersed, slower = (early_outliers(f"{arm} · 320M") for arm in (f"{DISPERSED} · {model}", f"{PLAIN} · gpt2"))
    words += f" {min(dispersed):.0f} to {max(dispersed):.0f} %; at 0.003 cross-entropy has {min(slower):.0f} to"
    words += f" {max(slower):.0f} %."
    assert words.format(min(map(min, high)), max(map(max, high))) in RESULTS
    rare = tenths(UNIFORM, f"{model} · 320M")[:, 9]
    assert f"in every seed, by {rare.min():.3f} to {rare.max():.3f} nats." in RESULTS


def at_slow() -> float:
    """Millions of tokens that cross-entropy at 0.003 needs for what dispersion at 0.005 reaches with 160M, in tens."""
    rates = runs("rates")
    short, long, reached = (
        np.mean([by_document(run) for run in arm.values()])
        for arm in (rates[f"{PLAIN} · gpt2 160M · 0.003"], KEPT[f"{PLAIN} · gpt2 · 320M"],
                    KEPT[f"{DISPERSED} · {FASTER} · 160M"])
    )  # fmt: skip
    return round(160 / (1 - tokens_saved([160, 320], [short, long], 160, reached)), -1)


def test_the_table_of_the_gpt2():
    model, mixed = "gpt2 at 0.005", []
    rows = {(r["tokens"], r["loss"]): r for r in table("pretrain") if r["model"] == model}
    assert len(rows) == 8
    for (tokens, loss), row in rows.items():
        arm = f"{loss} · {model} · {tokens / 1e6:.0f}M"
        seeds = tuple(s for s in KEPT[arm] if s in KEPT[f"{PLAIN} · {arm.partition(' · ')[2]}"])
        gaps = apart(loss, arm.partition(" · ")[2], seeds=seeds)
        ends = f"{signed(min(gaps), 3)} to {signed(max(gaps), 3)}"
        told = "{} [{}, {}]".format(*(signed(row[x], 3) for x in ("difference", "low", "high")))
        level = corrected(arm, 4 if abs(CELLS[arm]["high"]) < 0.001 else 3)
        ahead = f"{sum(gap < 0 for gap in gaps)} of {len(gaps)}"
        line = f"| {tokens / 1e6:.0f}M | {loss.split()[0]} | {ahead} | {ends} | {told} | {level} |"
        assert line in RESULTS
        assert CELLS[arm]["low"] < -0.005 < CELLS[arm]["high"]  # "by the rule all eight are open"
        base, treated = both(loss, arm.partition(" · ")[2], seeds=seeds)
        for seed, run in treated.items():
            if len({(changed - plain).mean() > 0 for plain, changed in by_texts([base[seed]], [run])}) > 1:
                mixed.append((loss, tokens))
    # "but for two of dispersion with 80M and one of uniformity with 160M"
    assert sorted(mixed) == [(DISPERSED, 8e7), (DISPERSED, 8e7), (UNIFORM, 16e7)]
    words = (
        f"needs some {cost(DISPERSED, 160, model):.0f}M tokens to reach what 160M reach with dispersion (its runs with"
    )
    words += f" 320M, on which this rests, are three seeds, all unsteady; by those at 0.003 it is {at_slow():.0f}M)."
    assert words in RESULTS


def test_dispersion_with_fewer_and_more_tokens():
    model = "gpt2 at 0.005"
    five = [apart(DISPERSED, f"{model} · {tokens}", seeds=FIVE) for tokens in ("80M", "160M")]
    middle, *ends = interval([short - long for short, long in zip(*five)])
    words = f"From 80M to 160M the lead grows by {middle:.3f} nats [{ends[0]:.3f}, {ends[1]:.3f}] over five seeds, from"
    gaps = apart(DISPERSED, f"{model} · 320M")
    middle, *ends = interval([short - long for short, long in zip(apart(DISPERSED, f"{model} · 160M"), gaps)])
    words += f" 160M to 320M by {middle:.3f} [{signed(ends[0], 3)}, {signed(ends[1], 3)}] over three, and with each"
    middle, *ends = interval([-slope for slope in per_doubling(DISPERSED, model)])
    assert f"{words} doubling by {middle:.3f} [{ends[0]:.3f}, {ends[1]:.3f}] over these three." in RESULTS
    steady, unsteady = (peaks(f"{arm} · {model} · 320M", 128e6) for arm in (DISPERSED, PLAIN))
    assert max(steady) < 1 < min(unsteady)
    words = (
        "five runs of dispersion with 320M are steady ({:.2f} to {:.2f}), and none of cross-entropy's three is ({:.1f},"
    )
    words += " {:.1f} and {:.1f})."
    assert words.format(min(steady), max(steady), *unsteady) in RESULTS
    way = course(DISPERSED, f"{model} · 320M")
    level, top = over(way, 50, 150).mean(), lead(way)[0]
    assert abs(level) < 0.01  # "level with cross-entropy"
    last = -over(way, 280, 321).mean()
    before = []
    for i, run in enumerate(both(DISPERSED, f"{model} · 320M")[0].values()):
        later = [h for h in run.history if h.tokens > 128e6]
        first = next(j for j, h in enumerate(later) if h.grad_norm > 1)
        before.append(-way[later[first - 1].step * 32768 / 1e6][i])
    words = "first exceeded 1, {:.3f} and {:.3f} nats of training loss, in the third nearly none, {:.3f}."
    assert words.format(*before) in RESULTS
    assert f"from 50M to 150M and then ahead, by {top:.2f} at most and {last:.2f} at the end." in RESULTS
    shots = [[run.snapshots[-1] for run in arm.values()] for arm in both(DISPERSED, f"{model} · 320M")]
    ends = [np.mean([of(shot) for shot in some])
            for of in (lambda shot: shot.blocks, lambda shot: shot.mean_cosine[-1]) for some in shots]  # fmt: skip
    words = "Dispersion takes the mean cosine of the blocks from {:.3f} to {:.3f}, and of the last state from {:.3f} to"
    assert f"{words} {{:.3f}}.".format(*ends) in RESULTS
    by_tenth = tenths(DISPERSED, f"{model} · 320M")
    assert (by_tenth < 0).all()
    words = "with 320M by {:.3f}, {:.3f} and {:.3f}."
    assert words.format(*(-by_tenth.mean(0)[i] for i in (0, 8, 9))) in RESULTS
    at_end = [[run.probes[-1].gradient_noise for run in both(arm, f"{model} · 320M")[1].values()]
              for arm in (DISPERSED, PLAIN, UNIFORM)]  # fmt: skip
    known = [np.mean([noise for noise in some if noise is not None]) for some in at_end]
    assert min(known) == known[0]  # "on average least with dispersion"
