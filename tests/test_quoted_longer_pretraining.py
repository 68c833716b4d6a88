"""The later runs of `pretrain` in the prose of docs/results.md: what sets them apart, and the GPT2 with 160M tokens."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from test_quoted_results import PLAIN, RESULTS, STUDIES, estimate, runs, table

from decondense.records import Training
from decondense.stats.crossed import crossed_macro
from decondense.stats.verdicts import signed
from decondense.studies.contrasts import by_texts
from decondense.studies.runs import by_document, quantisation

LOSSES = ("uniformity last 0.1", "dispersion all 0.1")
FOLDERS = ("cross-entropy", "uniformity-last-0.1", "dispersion-all-0.1")


def logged(run: Training, step: int) -> float:
    at = next(h for h in run.history if h.step == step)
    return at.loss if at.task_loss is None else at.task_loss


def test_what_differs_between_runs():
    """Arms of a cell differ in the loss alone; what the seeds gave that came after the change of the software."""
    prose, kept = " ".join(RESULTS.split()), runs("pretrain")

    def besides(run: Training) -> list[Any]:
        """All but the loss: a key that came later has its default; what is computed after a run may differ."""
        recipe = {key: value for key, value in run.recipe.items() if key not in ("name", "loss")}
        recipe["data"] = {"begin": "text"} | recipe["data"]
        recipe["train"] = {key: value for key, value in recipe["train"].items() if key != "quantised"}
        texts = [(text.name, text.documents, text.tokens) for text in (*run.text, *run.held_out_text)]
        return [recipe, texts, run.versions, run.hardware, run.steps]

    for arm, found in kept.items():
        base = kept[" · ".join((PLAIN, *arm.split(" · ")[1:]))]
        for seed, run in found.items():
            assert besides(run) == besides(base[seed])
            assert abs(logged(run, 1) - logged(base[seed], 1)) < 1e-4  # of the same weights and the same batch
    assert {run.versions["torch"] for arm in kept.values() for run in arm.values()} == {"2.11.0"}
    assert {run.versions["transformers"] for arm in kept.values() for run in arm.values()} == {"5.17.0"}
    base, treated = (kept[f"{arm} · gpt2 at 0.005 · 80M"] for arm in (PLAIN, "uniformity last 0.1"))
    early = crossed_macro(by_texts(*([arm[s] for s in (11, 12, 13)] for arm in (base, treated))), paired=True)
    words = "with 80M the first three seeds gave {} [{}, {}], and the two later ones {} and {}."
    late = [by_document(treated[s]) - by_document(base[s]) for s in (14, 15)]
    assert words.format(*(signed(x, 3) for x in (early.difference, *early.interval(), *late))) in prose
    plain, uniform = ([by_document(arm[s]) for s in (11, 12, 13, 15)] for arm in (base, treated))
    fourth = [by_document(arm[14]) for arm in (base, treated)]
    assert f"it ended at {fourth[0]:.3f} there and between {min(plain):.3f} and {max(plain):.3f} in the other" in prose
    assert f"uniformity at {fourth[1]:.3f}, among its other four" in prose
    assert min(uniform) < fourth[1] < max(uniform)
    texts = {text.name: text.tokens for text in kept[f"{PLAIN} · gpt2 at 0.005 · 160M"][11].text}
    assert f"With 160M abstracts are {100 * texts['abstracts:train'] / sum(texts.values()):.0f} %" in prose
    sizes = [
        run.model.parameters / 1e6 for arm in ("gpt2 · 40M", "llama · 40M") for run in kept[f"{PLAIN} · {arm}"].values()
    ]
    assert f"Models of {min(sizes):.0f}M (GPT2) and {max(sizes):.0f}M parameters (Llama)" in prose
    assert f"(of {min(sizes):.0f}M to 135M parameters)" in prose


def test_twice_the_tokens():
    """The GPT2 at 0.005 with 160M tokens, and what was seen there after the fact."""
    prose, kept, place = " ".join(RESULTS.split()), runs("pretrain"), "gpt2 at 0.005 · 160M"
    base, treated = (kept[f"{arm} · {place}"] for arm in (PLAIN, "uniformity last 0.1"))
    assert list(base) == list(treated) == [11, 12, 13, 14]
    gaps = {s: signed(by_document(treated[s]) - by_document(base[s]), 3) for s in base}
    ahead = (
        f"ahead by {gaps[11][1:]}, {gaps[12][1:]} and {gaps[14][1:]} in three seeds and behind by {gaps[13][1:]} in one"
    )
    assert ahead in prose
    assert [gap[0] for gap in gaps.values()] == ["−", "−", "+", "−"]
    row = next(row for row in table("pretrain") if row["tokens"] == 16e7)
    cell = estimate("pretrain")["cells"][f"uniformity last 0.1 · {place}"]
    ends = [signed(x, 3) for x in (row["difference"], row["low"], row["high"], cell["low"], cell["high"])]
    assert "in one: {} [{}, {}], at the corrected level [{}, {}].".format(*ends) in prose
    passes = base[11].steps * 32768 / sum(text.tokens for text in base[11].text)
    assert f"the texts are read {passes:.1f} times" in prose
    for seed, run in kept["uniformity last 0.1 · gpt2 at 0.005 · 80M"].items():  # "each of five seeds and each text"
        pairs = by_texts([kept[f"{PLAIN} · gpt2 at 0.005 · 80M"][seed]], [run])
        assert all((uniform - plain).mean() < 0 for plain, uniform in pairs)

    apart = {h.step: logged(treated[13], h.step) - logged(base[13], h.step) for h in base[13].history}
    assert set(np.diff(list(apart))[1:-1]) == {90}  # "one step in 90 is kept"
    assert [round(step * 32768 / 1e6) for step in (1530, 3420, 3600, 3780)] == [50, 112, 118, 124]
    assert all(gap < 0 for step, gap in apart.items() if 1 < step <= 3600)
    while_ahead = [-gap for step, gap in apart.items() if 1530 <= step <= 3420]
    since = [gap for step, gap in apart.items() if step > 3780]
    assert f"until 118M tokens, by {min(while_ahead):.3f} to {max(while_ahead):.3f} nats from 50M" in prose
    assert (
        f"behind by {apart[3780]:.3f} at 124M and by {min(since):.3f} to {max(since):.3f} from then on. In between"
        in prose
    )
    peaks = [
        [max(h.grad_norm for h in run.history if h.tokens > 64e6) for run in arm.values()] for arm in (base, treated)
    ]
    assert f"rose to {peaks[1][2]:.1f}. Another seed of uniformity reaches {peaks[1][3]:.2f}, the other two no" in prose
    assert f"no more than {max(peaks[1][:2]):.2f}; after the warm-up cross-entropy logs {max(peaks[0]):.2f} at" in prose
    noise = [[round(run.probes[-1].gradient_noise, -3) for run in arm.values()] for arm in (base, treated)]
    words = (
        "ends at {:,.0f} and {:,.0f} tokens in the two unsteady runs, at {:,.0f} and {:,.0f} in the other two, and at"
    )
    assert words.format(*noise[1][2:], *sorted(noise[1][:2])) in prose
    assert f"and at {min(noise[0]):,.0f} to {max(noise[0]):,.0f} with cross-entropy." in prose

    def cost(scheme: str, tokens: str = "160M") -> list[list[float]]:
        arms = (kept[f"{arm} · gpt2 at 0.005 · {tokens}"] for arm in (PLAIN, "uniformity last 0.1"))
        return [[quantisation(scheme)(run) for run in arm.values()] for arm in arms]

    plain, uniform = cost("int8-int8")
    assert f"in all four seeds, {min(uniform):.3f} to {max(uniform):.3f} nats, where cross-entropy loses" in prose
    assert f"where cross-entropy loses {min(plain):.3f} to {max(plain):.3f}." in prose
    figures = [signed(row[f"int8-int8_{end}"], 3) for end in ("difference", "low", "high")]
    assert "is not resolved: {} [{}, {}].".format(*figures) in prose
    assert all(u > p for p, u in zip(plain, uniform))
    shorter = [value for arm in cost("int8-int8", "80M") for value in arm]
    assert f"With 80M both lose {min(shorter):.3f} to {max(shorter):.3f} with int8" in prose
    assert sum(u > p for p, u in zip(*cost("int4"))) == 3
    most = max(cost("int4")[1])
    assert cost("int4")[1].index(most) == 0  # "a steady one"
    assert f"loses most by int4, {most:.3f} nats" in prose
    figures = [signed(row[f"int4_{end}"], 3) for end in ("difference", "low", "high")]
    listed = "uniformity {} [{}, {}] of {:.3f}, higher in three of four seeds".format(
        *figures, row["int4_cross_entropy"]
    )
    assert f"GPT2 at 0.005, 160M: {listed}" in RESULTS
    ends_of = [[run.snapshots[-1] for run in arm.values()] for arm in (treated, base)]

    def share(state: int, arms: list[list[Any]]) -> list[float]:
        """In per cent, the least and the most of each arm."""
        return [100 * pick(end.outlier_share[state] for end in arm) for arm in arms for pick in (min, max)]

    words = "three dimensions hold {:.0f} to {:.0f} % of the variance, with cross-entropy {:.0f} to {:.0f} %;"
    assert words.format(*share(2, ends_of)) in prose
    assert "after the fifth, {:.0f} to {:.0f} % and {:.0f} to {:.0f} %.".format(*share(5, ends_of)) in prose
    at_80 = [
        [run.snapshots[-1] for run in kept[f"{arm} · gpt2 at 0.005 · 80M"].values()]
        for arm in ("uniformity last 0.1", PLAIN)
    ]
    assert "with 80M it is {:.0f} to {:.0f} % against {:.0f} to {:.0f} %".format(*share(2, at_80)) in prose
    first_block = [[end.mean_cosine[1] for end in arm] for arm in ends_of]
    fallen = first_block[0].pop(2)
    told = "of the seed that fell behind is {:.2f}, that of the other three {:.2f} to {:.2f}, and cross-entropy has {}."
    low, high, *plainly = (pick(arm) for arm in first_block for pick in (min, max))
    assert told.format(fallen, low, high, "{:.2f} to {:.2f}".format(*plainly)) in prose


def test_twice_the_width():
    """The GPT2 of width 768, and what its nine runs did on the tasks."""
    prose, kept, place = " ".join(RESULTS.split()), runs("pretrain"), "gpt2 768 · 40M"
    base, uniform, dispersed = (kept[f"{a} · {place}"] for a in (PLAIN, "uniformity last 0.1", "dispersion all 0.1"))
    assert list(base) == list(uniform) == list(dispersed) == [11, 12, 13]
    assert f"width 768 ({base[11].model.parameters / 1e6:.0f}M parameters), 40M tokens, seeds 11 to 13" in prose
    level, narrow = (np.mean([by_document(r) for r in kept[f"{PLAIN} · {p}"].values()]) for p in (place, "gpt2 · 40M"))
    assert f"Cross-entropy ends at {level:.3f}, {narrow - level:.3f} nats below the one of width 384" in prose
    gaps = [signed(by_document(uniform[s]) - by_document(base[s]), 4) for s in base]
    assert "level with it, by {}, {} and {} over the seeds".format(*gaps) in prose
    texts = list(dict.fromkeys(d.text for d in base[11].held_out_documents))

    def by_text(arm: dict[int, Training], text: str) -> list[float]:
        ((plain, treated),) = [by_texts(list(base.values()), list(arm.values()))[texts.index(text)]]
        return list((treated - plain).mean(1))

    better, worse = by_text(uniform, "reviews:valid"), by_text(uniform, "abstracts:valid")
    assert f"better on reviews in every seed ({-max(better):.3f} to {-min(better):.3f}), worse on abstracts" in prose
    assert f"on abstracts ({min(worse):.3f} to {max(worse):.3f})" in prose
    assert all(x > 0 for text in texts for x in by_text(dispersed, text))  # "in every seed and text"
    apart = [by_document(dispersed[s]) - by_document(base[s]) for s in base]
    assert f"by {min(apart):.3f} to {max(apart):.3f}, though it takes the mean cosine of the blocks" in prose
    ends = [np.mean([run.snapshots[-1].blocks for run in arm.values()]) for arm in (base, dispersed)]
    assert "mean cosine of the blocks from {:.3f} to {:.3f}: a harm by estimate".format(*ends) in prose

    def ahead(tokens: float) -> str:
        steps = [h.step for h in base[11].history]
        step = min(steps, key=lambda at: abs(at * 32768 - tokens))
        return signed(np.mean([logged(uniform[s], step) - logged(base[s], step) for s in base]), 3)

    assert f"by {ahead(8e6)[1:]} nats after 8M tokens" in prose
    assert f"gone at the end ({ahead(28e6)} after 28M, {ahead(39e6)} after 39M)" in prose
    found = estimate("pretrain")
    cell = found["cells"][f"uniformity last 0.1 · {place}"]
    assert f"the corrected one ([{signed(cell['low'], 3)}, {signed(cell['high'], 3)}])" in prose
    rows = [next(r for r in table("pretrain") if (r["loss"], r["model"]) == (loss, "gpt2 768")) for loss in LOSSES]
    assert rows[0]["low"] > -0.008

    def told(column: str, digits: int, unit: str = "") -> list[str]:
        ends = [[signed(row[f"{column}_{end}"], digits) for end in ("difference", "low", "high")] for row in rows]
        return [f"{middle}{unit} [{low}, {high}]" for middle, low, high in ends]

    points, nats, words = told("points", 2), told("nats", 3), told("lambada_nats", 2)
    first = points[0].replace(" [", " points [")
    assert f"the average is {first} with uniformity and {points[1]} with dispersion" in prose
    assert f"right answers {nats[0].replace(' [', ' nats per item [')} and {nats[1]}." in prose
    assert f"their log-likelihood changes by {words[0].replace(' [', ' nats [')} and {words[1]}." in prose
    assert all(d["level"] == 0.975 for cell in found["tasks"].values() for d in cell.values())
    known = [
        [json.loads(file.read_text(encoding="utf-8"))["scores"]["lambada_openai"] for file in files]
        for files in (sorted(STUDIES.glob(f"pretrain/runs/{a}-gpt2-768-40M-*/outcomes.json")) for a in FOLDERS)
    ]
    assert list(map(len, known)) == [3, 3, 3]
    shares = [100 * np.mean(some) for some in known]
    assert "guesses {:.1f} % of the last words, uniformity {:.1f} %, dispersion {:.1f} %".format(*shares) in prose
    assert all(less < more for less, more in zip(known[2], known[0]))  # "fewer in every seed"
    cost, both = rows[0]["int4_cross_entropy"], rows[0]["int8-int8_cross_entropy"]
    most = max(abs(row["int4_difference"]) for row in rows)
    assert f"Rounding to int4 costs {cost:.4f} nats and neither loss changes that by more than {most:.4f}" in prose
    assert {f"{row['int8-int8_difference']:.4f}" for row in rows} == {"-0.0010"}
    assert f"both lower the cost of {both:.4f} by 0.0010" in prose
