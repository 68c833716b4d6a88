"""More tokens and twice the width in docs/pretraining.md, and in README.md what it takes from there."""

from __future__ import annotations

import math

import numpy as np
from test_quoted_results import PLAIN, README, RESULTS, estimate, runs, table
from test_quoted_results import words_of as page

from decondense.records import Training
from decondense.stats.crossed import crossed_macro
from decondense.stats.significance import holm
from decondense.stats.verdicts import interval, signed
from decondense.studies.contrasts import by_texts
from decondense.studies.runs import by_document

UNIFORM, DISPERSED = "uniformity last 0.1", "dispersion all 0.1"
KEPT, CELLS = runs("pretrain"), estimate("pretrain")["cells"]
BUDGETS = ("80M", "160M", "320M")
Arm = dict[int, Training]


def both(loss: str, place: str, *, seeds: tuple[int, ...] = (11, 12, 13)) -> tuple[Arm, Arm]:
    """Cross-entropy and a loss, by default the seeds that all budgets have."""
    base, treated = ({seed: KEPT[f"{arm} · {place}"][seed] for seed in seeds} for arm in (PLAIN, loss))
    return base, treated


def apart(loss: str, place: str, *, seeds: tuple[int, ...] = (11, 12, 13)) -> list[float]:
    base, treated = both(loss, place, seeds=seeds)
    return [by_document(treated[seed]) - by_document(base[seed]) for seed in seeds]


def corrected(arm: str, digits: int = 3) -> str:
    return f"[{signed(CELLS[arm]['low'], digits)}, {signed(CELLS[arm]['high'], digits)}]"


def per_doubling(loss: str, model: str, *, seeds: tuple[int, ...] = (11, 12, 13)) -> list[float]:
    """What a line through the three budgets rises by, seed by seed."""
    gaps = np.array([apart(loss, f"{model} · {tokens}", seeds=seeds) for tokens in BUDGETS])
    return [float(slope) for slope in np.polyfit(range(3), gaps, 1)[0]]


def words_of(values: list[float]) -> str:
    middle, low, high = (signed(x, 3) for x in interval(values))
    return f"{middle} nats [{low}, {high}]"


def logged(run: Training, step: int) -> float:
    at = next(h for h in run.history if h.step == step)
    return at.loss if at.task_loss is None else at.task_loss


def course(loss: str, place: str, *, seeds: tuple[int, ...] = (11, 12, 13)) -> dict[float, list[float]]:
    """Millions of tokens → training loss minus cross-entropy's, seed by seed."""
    base, treated = both(loss, place, seeds=seeds)
    steps = [h.step for h in base[seeds[0]].history]
    return {x * 32768 / 1e6: [logged(treated[s], x) - logged(base[s], x) for s in seeds] for x in steps}


def over(gaps: dict[float, list[float]], low: float, high: float) -> np.ndarray:
    return np.mean([seeds for at, seeds in gaps.items() if low <= at < high], 0)


def lead(gaps: dict[float, list[float]]) -> tuple[float, float]:
    """The largest on average, and after how many million tokens."""
    best = min(gaps, key=lambda at: float(np.mean(gaps[at])))
    return -float(np.mean(gaps[best])), best


def behind_from(gaps: dict[float, list[float]]) -> float:
    """From where on every seed is behind."""
    places = list(gaps)
    return places[1 + max(i for i, at in enumerate(places) if min(gaps[at]) <= 0)]


def tenths(loss: str, place: str, *, seeds: tuple[int, ...] = (11, 12, 13)) -> np.ndarray:
    """(seeds, tenths) of held-out loss minus cross-entropy's, from frequent tokens to rare ones."""
    base, treated = both(loss, place, seeds=seeds)
    pairs = [(treated[s].held_out_by["frequency"], base[s].held_out_by["frequency"]) for s in seeds]
    return np.array([[a["loss"] - b["loss"] for a, b in zip(*pair)] for pair in pairs])


def test_the_llama_with_160m():
    seeds = (11, 12, 13, 14)
    ends = [corrected(f"{loss} · llama · 160M") for loss in (UNIFORM, DISPERSED)]
    assert "Both last, uniformity's with {} and dispersion's with {}.".format(*ends) in RESULTS
    assert min(CELLS[f"{loss} · llama · 160M"]["low"] for loss in (UNIFORM, DISPERSED)) > 0
    rows = [row for row in table("pretrain") if (row["model"], row["tokens"]) == ("llama", 16e7)]
    (fewer,) = {round(160 / (1 - row["tokens_saved"]), -1) for row in rows}
    assert f"Some {fewer:.0f}M tokens without a loss would do what 160M do with either" in RESULTS
    gaps = course(UNIFORM, "llama · 160M", seeds=seeds)
    words = "uniformity leads by up to {:.3f} (after {:.0f}M) and is behind in every seed from {:.0f}M on."
    assert words.format(*lead(gaps), behind_from(gaps)) in RESULTS
    rare = [[signed(tenths(loss, "llama · 160M", seeds=seeds).mean(0)[i], 3) for i in (0, 9)]
            for loss in (DISPERSED, UNIFORM)]  # fmt: skip
    assert "with 160M from {} to {}, and from {} to {} with uniformity.".format(*rare[0], *rare[1]) in RESULTS
    arms = [KEPT[f"{arm} · llama · 160M"].values() for arm in (DISPERSED, UNIFORM, PLAIN)]
    noise = [[run.probes[-1].gradient_noise for run in arm] for arm in arms]
    words = "{:,.0f} (dispersion) and {:,.0f} (uniformity) instead of {:,.0f} with 160M."
    assert words.format(*(round(np.mean(arm), -3) for arm in noise)) in RESULTS
    assert all(loss > plain for arm in noise[:2] for loss, plain in zip(arm, noise[2]))
    levels = [np.mean([run.snapshots[-1].blocks for run in arm]) for arm in (arms[2], arms[0])]
    assert "with 160M from {:.3f} to {:.3f}:".format(*levels) in RESULTS


def test_the_llama_with_320m():
    seeds, shared = (11, 12, 13, 14, 15), (11, 12, 13, 14)  # those of 160M
    base, treated = both(DISPERSED, "llama · 320M", seeds=seeds)
    gaps = apart(DISPERSED, "llama · 320M", seeds=seeds)
    row = next(row for row in table("pretrain") if (row["model"], row["tokens"]) == ("llama", 32e7))
    told = "{} [{}, {}]".format(*(signed(row[end], 3) for end in ("difference", "low", "high")))
    assert f"Behind by {min(gaps):.3f} to {max(gaps):.3f} in the five seeds, and in every text: {told}." in RESULTS
    harm = "{:.3f} nats [{:.3f}, {:.3f}]".format(*(row[end] for end in ("difference", "low", "high")))
    assert f"and with 320M the paper's, by {harm} over five seeds." in RESULTS
    assert f"and with 320M the paper's, by {row['difference']:.3f} nats over five seeds." in RESULTS
    assert "and the one tried with 320M, dispersion." in RESULTS
    assert "dispersion still with 320M" in README
    for seed, run in treated.items():
        assert all((loss - plain).mean() > 0 for plain, loss in by_texts([base[seed]], [run]))
    cell = CELLS[f"{DISPERSED} · llama · 320M"]
    assert f"At the corrected level that is {corrected(f'{DISPERSED} · llama · 320M')}, so by the rule" in RESULTS
    assert cell["low"] > 0  # "the harm lasts"
    lows = [(arm, x["low"]) for arm, x in CELLS.items() if arm.startswith(DISPERSED) and x["low"] is not None]
    excluded = {arm.split(" · ")[1] for arm, low in lows if low > -0.005}
    assert excluded == {"llama"}  # "the Llama alone excludes a gain of dispersion"
    three = crossed_macro(by_texts(*(list(arm.values()) for arm in both(DISPERSED, "llama · 320M"))), paired=True)
    low, high = three.interval(cell["level"])
    assert -0.005 < low < 0
    limit = f"Its corrected interval began at {signed(low, 3)}, and the limit is −0.005."
    assert limit in page("docs/studies-log.md")
    comparisons = table("pretrain")
    p = holm([three.p if one == row else one["p"] for one in comparisons])[comparisons.index(row)]
    before = f"Three seeds had left open whether it lasts ([{signed(low, 3)}, {signed(high, 3)}], p = {p:.3f})"
    assert before in RESULTS
    assert f"(p = {p:.3f})" in page("docs/studies-log.md")
    assert (
        f"Some {round(320 / (1 - row['tokens_saved']), -1):.0f}M tokens without the loss would do the same." in RESULTS
    )
    slopes, shorter = (f(DISPERSED, x, seeds=shared) for f, x in ((per_doubling, "llama"), (apart, "llama · 160M")))
    assert f"from 80M to 320M, the difference changes by {words_of(slopes)} (the four seeds" in RESULTS
    shrinks = [old - new for old, new in zip(shorter, gaps)]
    assert "it shrinks by {:.3f} [{:.3f}, {:.3f}].".format(*interval(shrinks)) in RESULTS
    passes = [
        KEPT[f"{PLAIN} · llama · {m}"][11].steps
        * 32768
        / sum(t.tokens for t in KEPT[f"{PLAIN} · llama · {m}"][11].text)
        for m in ("160M", "320M")
    ]
    assert "The texts are read {:.1f} and {:.1f} times for that.".format(*passes) in RESULTS

    way = course(DISPERSED, "llama · 320M", seeds=seeds)
    words = "leads in training loss by up to {:.3f} nats, after {:.0f}M tokens. It is behind in every seed from {:.0f}M"
    assert words.format(*lead(way), behind_from(way)) in RESULTS
    means = {at: np.mean(gap) for at, gap in way.items()}
    assert 0.025 < max(means.values()) < 0.035  # "by up to 0.03" in the picture's description
    assert f"is ahead until {max(at for at, gap in means.items() if gap < 0):.0f}M tokens" in RESULTS
    spans = [over(way, 128, 160).mean(), over(way, 280, 321).mean()]
    words = "by {:.3f} from 128M to 160M, where the warm-up has ended, and by {:.3f} over the last 40M."
    assert words.format(*spans) in RESULTS
    shots = [[run.snapshots[-1] for run in arm.values()] for arm in (base, treated)]
    levels = [np.mean([shot.blocks for shot in arm]) for arm in shots]
    assert "takes the mean cosine of the blocks from {:.3f} to {:.3f}, with 160M".format(*levels) in RESULTS
    assert 4.5 < levels[0] / levels[1] < 5.6  # "a fifth of the level"
    for of in ("mean_cosine", "outlier_share"):  # "are lower" in the picture's description
        plain, lower = ([getattr(shot, of)[-1] for shot in arm] for arm in shots)
        assert max(lower) < min(plain)
    ranks = [sorted((shot.spearman for shot in arm), key=abs) for arm in shots[::-1]]
    ends = [signed(arm[i], 2) for arm in ranks for i in (0, -1)]
    assert "Spearman is {} to {} with 320M, where cross-entropy has {} to {}.".format(*ends) in RESULTS
    noise = [[run.probes[-1].gradient_noise for run in arm.values()] for arm in (treated, base)]
    told_noise = "{:,.0f} tokens instead of {:,.0f} with 320M".format(*(round(np.mean(arm), -3) for arm in noise))
    assert f"higher with the losses in every seed: {told_noise}" in RESULTS
    assert all(more > less for more, less in zip(*noise))
    by_tenth = tenths(DISPERSED, "llama · 320M", seeds=seeds)
    words = "{} nats in the most frequent tenth of the text, {} in the second, where one seed is ahead, and {} in the"
    assert words.format(*(signed(by_tenth.mean(0)[i], 3) for i in (0, 1, 9))) in RESULTS
    assert list((by_tenth < 0).sum(0)) == [0, 1, *[0] * 8]


def test_the_gpt2_with_more_tokens():
    model = "gpt2 at 0.005"
    for seed, run in KEPT[f"{UNIFORM} · {model} · 80M"].items():  # "in each of five seeds and each text"
        pairs = by_texts([KEPT[f"{PLAIN} · {model} · 80M"][seed]], [run])
        assert all((uniform - plain).mean() < 0 for plain, uniform in pairs)
    assert len(KEPT[f"{UNIFORM} · {model} · 80M"]) == 5
    one, two, three, four = apart(UNIFORM, f"{model} · 160M", seeds=(11, 12, 13, 14))
    words = "ahead by {:.3f}, {:.3f} and {:.3f} in three seeds and behind by {:.3f} in one; at the corrected level {}."
    assert words.format(-one, -two, -four, three, corrected(f"{UNIFORM} · {model} · 160M")) in RESULTS
    first, second, third = apart(UNIFORM, f"{model} · 320M")
    words = "behind by {:.3f} and {:.3f} in two seeds and ahead by {:.3f} in one, each time in every text; at the"
    assert words.format(first, second, -third) in RESULTS
    assert f"in every text; at the corrected level {corrected(f'{UNIFORM} · {model} · 320M')}." in RESULTS
    base, treated = both(UNIFORM, f"{model} · 320M")
    for seed, run in treated.items():
        assert len({(loss - plain).mean() > 0 for plain, loss in by_texts([base[seed]], [run])}) == 1
    slopes = words_of(per_doubling(UNIFORM, model)).removeprefix("+")
    assert f"from 80M to 320M, the difference rises by {slopes}." in RESULTS
    gaps = course(UNIFORM, f"{model} · 320M")
    means = {at: float(np.mean(seeds)) for at, seeds in gaps.items()}
    signs = [(round(at), gap > 0) for at, gap in means.items()]
    turns = [at for (at, now), (_, before) in zip(signs[2:], signs[1:]) if now != before]
    last = signs[[at for at, _ in signs].index(turns[1]) - 1][0]
    assert len(turns) == 3
    assert f"behind from {turns[0]}M, before the warm-up ends, to {last}M and again from {turns[2]}M;" in RESULTS
    assert f"leads by up to {lead(gaps)[0]:.2f} nats and is on average behind" in RESULTS

    def peaks(place: str, after: float) -> list[float]:
        arms = [KEPT[f"{arm} · {place}"].values() for arm in (PLAIN, UNIFORM)]
        return [max(h.grad_norm for h in run.history if h.tokens > after) for arm in arms for run in arm]

    assert sorted(peak > 1 for peak in peaks(f"{model} · 160M", 64e6)) == [False] * 7 + [True]
    assert max(peaks(f"{model} · 160M", 64e6)[:4]) < 0.4  # "both have the loss"
    assert f"(another reaches {sorted(peaks(f'{model} · 160M', 64e6))[-2]:.2f}; both have the loss)" in RESULTS
    assert [peak > 1 for peak in peaks(f"{model} · 320M", 128e6)] == [True] * 5 + [False]  # "the seed that ends ahead"
    llama = [run for arm in (PLAIN, DISPERSED) for run in KEPT[f"{arm} · llama · 320M"].values()]
    norms = [h.grad_norm for run in llama for h in run.history if h.tokens > 128e6]
    assert f"In the Llama with 320M it never exceeds {math.ceil(100 * max(norms)) / 100:.2f}." in RESULTS

    short, long = (over(course(UNIFORM, f"{model} · {m}"), 100, 113) for m in ("160M", "320M"))
    assert max(short) < 0  # "ahead in every seed with 160M and behind in two of three with 320M"
    assert sum(long > 0) == 2
    assert f"with 320M: {words_of(list(long - short))} from one to the other." in RESULTS
    early = [h.grad_norm for m in ("160M", "320M") for arm in both(UNIFORM, f"{model} · {m}") for run in arm.values()
             for h in run.history if 66e6 < h.tokens < 113e6]  # fmt: skip
    assert max(early) < 0.5  # "when all runs are still steady"
    steady = [h.grad_norm for arm in both(UNIFORM, f"{model} · 320M") for run in arm.values() for h in run.history
              if 66e6 < h.tokens < 150e6]  # fmt: skip
    assert max(steady) < 0.5  # "after 150M the curves are unsteady" in the picture's description
    once, again = ({s: (logged(run, 1), run.blocks) for s, run in both(UNIFORM, f"{model} · {m}")[0].items()}
                   for m in ("160M", "320M"))  # fmt: skip
    assert once == again  # "the same blocks in the same order": the seed and the number of blocks make it

    def share(arm: str, tokens: str) -> list[float]:
        """In per cent, after the second block."""
        return [100 * run.snapshots[-1].outlier_share[2] for run in KEPT[f"{arm} · {model} · {tokens}"].values()]

    ends = [pick(share(arm, "160M")) for arm in (UNIFORM, PLAIN) for pick in (min, max)]
    words = (
        "hold {:.0f} to {:.0f} % of the variance after the second block, where cross-entropy has {:.0f} to {:.0f} %."
    )
    assert words.format(*ends) in RESULTS
    high = [[x for x in share(arm, "320M") if x > 10] for arm in (PLAIN, UNIFORM)]
    assert list(map(len, high)) == [1, 2]
    words = "With 320M one run of cross-entropy and two of uniformity have {:.0f} to {:.0f} %."
    assert words.format(min(map(min, high)), max(map(max, high))) in RESULTS
    rare = tenths(UNIFORM, f"{model} · 320M")[:, 9]
    assert f"in every seed, by {rare.min():.3f} to {rare.max():.3f} nats." in RESULTS


def test_twice_the_width():
    base, uniform = both(UNIFORM, "gpt2 768 · 40M")
    _, dispersed = both(DISPERSED, "gpt2 768 · 40M")
    size = base[11].model.parameters
    assert f"width 768 ({size / 1e6:.0f}M parameters, {4e7 / size:.2f} tokens for each), seeds 11 to 13" in RESULTS
    level, narrow = (
        np.mean([by_document(KEPT[f"{PLAIN} · {model} · 40M"][s]) for s in base]) for model in ("gpt2 768", "gpt2")
    )
    assert f"ends at {level:.3f}, over the same seeds {narrow - level:.3f} nats below the one of width 384" in RESULTS
    gaps = [signed(gap, 4) for gap in apart(UNIFORM, "gpt2 768 · 40M")]
    assert "level with it ({}, {} and {} over the seeds);".format(*gaps) in RESULTS
    assert f"the corrected interval, {corrected(f'{UNIFORM} · gpt2 768 · 40M')}, contains" in RESULTS
    behind = apart(DISPERSED, "gpt2 768 · 40M")
    assert f"in every seed, by {min(behind):.3f} to {max(behind):.3f}, and in every text" in RESULTS
    pairs = by_texts(list(base.values()), list(dispersed.values()))
    assert all(((treated - plain).mean(1) > 0).all() for plain, treated in pairs)
    ends = [np.mean([run.snapshots[-1].blocks for run in arm.values()]) for arm in (base, dispersed)]
    assert "mean cosine of the blocks from {:.3f} to {:.3f}.".format(*ends) in RESULTS
    gaps = course(UNIFORM, "gpt2 768 · 40M")
    assert f"uniformity leads by {lead(gaps)[0]:.1f} nats at first and by nothing at the end" in RESULTS
    assert abs(over(gaps, 35, 41).mean()) < 0.002
    row = next(row for row in table("pretrain") if (row["loss"], row["model"]) == (UNIFORM, "gpt2 768"))
    told = "{} [{}, {}]".format(*(signed(row[end], 3) for end in ("difference", "low", "high")))
    assert told in RESULTS
    assert {run.recipe["train"]["learning_rate"] for run in (*base.values(), *uniform.values())} == {0.0015}


def test_the_open_cone_in_the_readme():
    shots = [[run.snapshots[-1].blocks for run in KEPT[f"{arm} · llama · 320M"].values()] for arm in (PLAIN, DISPERSED)]
    assert "from a mean cosine of {:.3f} to {:.3f}".format(*map(np.mean, shots)) in README
    row = next(r for r in table("pretrain") if (r["loss"], r["model"], r["tokens"]) == (DISPERSED, "llama", 32e7))
    lost = "{:.2f} nats".format(-row["lambada_nats_difference"])
    listed = "({:.1f} % interval [{:.2f}, {:.2f}])".format(
        100 * row["tasks_level"], -row["lambada_nats_high"], -row["lambada_nats_low"]
    )
    assert f"by {lost} {listed}." in README
