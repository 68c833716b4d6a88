"""The later runs of `pretrain` in docs/pretraining.md: what sets them apart, and the GPT2 with 160M tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
from test_quoted_results import PLAIN, README, RESULTS, STUDIES, estimate, runs, table

from decondense.records import Training, read
from decondense.stats.crossed import crossed_macro
from decondense.stats.verdicts import interval, signed
from decondense.studies.contrasts import by_texts
from decondense.studies.outcomes import paired_outcomes
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
    row = next(row for row in table("pretrain") if (row["model"], row["tokens"]) == ("gpt2 at 0.005", 16e7))
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
    listed = "in three of the four: {} [{}, {}] where cross-entropy loses {:.3f}."
    assert listed.format(*figures, row["int4_cross_entropy"]) in prose
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


def test_the_llama_with_twice_the_tokens():
    prose, kept, place = " ".join(RESULTS.split()), runs("pretrain"), "llama · 160M"
    base, uniform, dispersed = (kept[f"{arm} · {place}"] for arm in (PLAIN, *LOSSES))
    assert list(base) == list(uniform) == list(dispersed) == [11, 12, 13, 14]
    rows = [next(r for r in table("pretrain") if (r["loss"], r["model"]) == (loss, "llama")) for loss in LOSSES]
    assert [row["tokens"] for row in rows] == [16e7, 16e7]
    cells = [estimate("pretrain")["cells"][f"{loss} · {place}"] for loss in LOSSES]
    ends = [f"[{signed(cell['low'], 3)}, {signed(cell['high'], 3)}]" for cell in cells]
    assert "Both last, uniformity's with {} and dispersion's with {}.".format(*ends) in prose
    assert min(cell["low"] for cell in cells) > 0
    for arm in (uniform, dispersed):  # "harms in every seed and every text"
        for seed, run in arm.items():
            assert all((treated - plain).mean() > 0 for plain, treated in by_texts([base[seed]], [run]))
    assert {round(160 / (1 - row["tokens_saved"])) for row in rows} == {143}
    places = np.log([40, 80, 160])
    losses = [
        np.mean([by_document(run) for run in kept[f"{PLAIN} · llama · {m}"].values()]) for m in ("40M", "80M", "160M")
    ]
    bent = np.polyfit(places, losses, 2)
    for row in rows:  # "some 140M": 143 by a straight line in the logarithm, 139 and 140 through three budgets
        reached = np.exp(min(np.roots(bent - [0, 0, losses[2] + row["difference"]]).real))
        assert 139 < reached < 140
    assert "some 140M tokens without a loss would do what 160M do with either" in prose

    steps = [h.step for h in base[11].history]
    gaps = [
        {st: [logged(arm[s], st) - logged(base[s], st) for s in base] for st in steps} for arm in (uniform, dispersed)
    ]
    best = [min((np.mean(seeds), step) for step, seeds in gap.items()) for gap in gaps]
    (led, at), (less, sooner) = ((-gap, step * 32768 / 1e6) for gap, step in best)
    words = "leads by up to {:.3f} nats (after {:.0f}M tokens), dispersion by up to {:.3f} (after {:.0f}M)."
    assert words.format(led, at, less, sooner) in prose
    since = [max(st for st in steps if min(gap[st]) <= 0) for gap in gaps]  # the last step at which a seed is ahead
    behind = [steps[steps.index(step) + 1] * 32768 / 1e6 for step in since]
    mean_behind = [
        min(st for st in steps if all(np.mean(gap[later]) > 0 for later in steps if later >= st)) * 32768 / 1e6
        for gap in gaps
    ]
    words = "On average they are behind from {:.0f}M and {:.0f}M on, in every seed from {:.0f}M and {:.0f}M."
    assert words.format(*mean_behind, *behind) in prose
    assert "dispersion is ahead until 12M tokens and uniformity until 32M" in prose

    def over(gap: dict[int, list[float]], low: float, high: float) -> float:
        return float(np.mean([seeds for step, seeds in gap.items() if low <= step * 32768 / 1e6 < high]))

    early, late = ([over(gap, *ends) for gap in gaps] for ends in ((64, 80), (140, 161)))
    moved = []
    for gap in gaps:
        spans_ = [[seeds for st, seeds in gap.items() if a <= st * 32768 / 1e6 < b] for a, b in ((64, 80), (140, 161))]
        moved.append(
            "{} [{}, {}]".format(*(signed(x, 3) for x in interval(list(np.mean(spans_[1], 0) - np.mean(spans_[0], 0)))))
        )
    words = (
        "{:.3f} nats until 80M and {:.3f} over the last 20M with uniformity (a change of {}), {:.3f} and {:.3f} with"
    )
    assert words.format(early[0], late[0], moved[0], early[1], late[1]) in prose
    assert f"with dispersion ({moved[1]})." in prose

    shots = [[run.snapshots[-1] for run in arm.values()] for arm in (base, uniform, dispersed)]
    blocks = [np.mean([shot.blocks for shot in arm]) for arm in shots]
    assert f"from a mean cosine of {blocks[0]:.3f} to {blocks[2]:.3f}" in " ".join(README.split())
    levels = sorted(shot.blocks for shot in shots[0])
    spread = f"{blocks[0]:.3f} ({levels[0]:.3f} to {levels[-1]:.3f} over the seeds)"
    assert f"mean cosine of the blocks from {spread} to {blocks[2]:.3f}, and the loss rises" in prose
    assert 4.5 < blocks[0] / blocks[2] < 5.5  # "a fifth of the level"
    near, far = ([signed(pick((shot.spearman for shot in arm), key=abs), 2) for arm in shots] for pick in (min, max))
    words = "Spearman is {} to {} with dispersion, {} to {} with cross-entropy and {} to {} with uniformity."
    assert words.format(near[2], far[2], near[0], far[0], near[1], far[1]) in prose
    depth = [np.mean([shot.mean_cosine for shot in arm], 0) for arm in shots]
    assert {f"{x:.2f}" for x in depth[2][1:7]} <= {"0.06", "0.07"}
    words = "and rises to {:.2f} after the final norm; with cross-entropy it falls from {:.2f} after the second block"
    assert words.format(depth[2][-1], depth[0][2]) in prose
    assert f"after the second block to {depth[0][-1]:.2f}." in prose
    assert np.argmax(depth[0]) == 2
    before = [np.mean(u.mean_cosine[1:12]) - np.mean(c.mean_cosine[1:12]) for c, u in zip(*shots[:2])]
    words = "no change is resolved ({} [{}, {}]), but the one before the last is lower in every seed"
    assert words.format(*(signed(x, 3) for x in interval(before))) in prose
    assert all(u.mean_cosine[11] < c.mean_cosine[11] for c, u in zip(*shots[:2]))
    noise = [[run.probes[-1].gradient_noise for run in arm.values()] for arm in (uniform, dispersed, base)]
    words = "in all four seeds: {:,.0f} and {:,.0f} tokens instead of {:,.0f}."
    assert words.format(*(round(np.mean(arm), -3) for arm in noise)) in prose
    assert all(a > b for arm in noise[:2] for a, b in zip(arm, noise[2]))
    assert f"takes the last state's from {depth[0][-1]:.3f} to {depth[1][-1]:.3f}; of" in prose

    def apart(kind: str, arm: dict[int, Training]) -> np.ndarray:
        pairs = [(arm[s].held_out_by[kind], base[s].held_out_by[kind]) for s in base]
        return np.array([[a["loss"] - b["loss"] for a, b in zip(*pair)] for pair in pairs]).mean(0)

    rare = [[signed(apart("frequency", arm)[i], 3) for i in (0, 9)] for arm in (uniform, dispersed)]
    words = (
        "uniformity from {} nats in the most frequent tenth of the text to {} in the rarest, dispersion from {} to {}."
    )
    assert words.format(*rare[0], *rare[1]) in prose
    assert all((apart("frequency", arm) > 0).all() for arm in (uniform, dispersed))
    level = np.mean([[group["loss"] for group in run.held_out_by["frequency"]] for run in base.values()], 0)
    assert f"rare tokens cost more, {level[9]:.2f} nats instead of {level[0]:.2f}:" in prose
    share = [100 * apart("frequency", arm) / level for arm in (uniform, dispersed)]
    words = "uniformity's harm grows from {:.1f} to {:.1f} %, dispersion's does not ({:.1f} to {:.1f} % in all tenths)."
    assert words.format(share[0][0], share[0][9], min(share[1]), max(share[1])) in prose
    ends = [signed(pick(apart("position", arm)), 3) for arm in (uniform, dispersed) for pick in (min, max)]
    assert "Over positions the harms are {} to {} and {} to {}.".format(*ends) in prose

    def told(column: str, digits: int) -> list[str]:
        ends = [[signed(row[f"{column}_{end}"], digits) for end in ("difference", "low", "high")] for row in rows]
        return [f"{middle} [{low}, {high}]" for middle, low, high in ends]

    word = rows[1]
    lost = "{:.2f} nats [{:.2f}, {:.2f}]".format(
        *(-word[f"lambada_nats_{end}"] for end in ("difference", "high", "low"))
    )
    assert f"LAMBADA's last words falls by {lost}, perplexity" in prose
    listed = lost.replace(" nats [", f" nats ({100 * word['tasks_level']:.0f} % interval [")
    assert f"LAMBADA's last words become less likely too, by {listed})." in " ".join(README.split())
    assert f"With uniformity it is {told('lambada_nats', 2)[0]}. The average" in prose
    scored = [
        [read(STUDIES / f"pretrain/runs/{arm}-llama-160M-seed-{seed}/outcomes.json") for seed in base]
        for arm in FOLDERS
    ]
    words = [paired_outcomes(scored[0], some, kind="log_share") for some in scored[1:]]
    crossed = [crossed_macro([words[1]["lambada_openai"]], paired=paired) for paired in (False, True)]
    wide, narrow = 1 - 0.05 / 15, 1 - 0.05 / 5
    assert "it is still resolved, [{1:.2f}, {0:.2f}];".format(*(-x for x in crossed[0].interval(wide))) in prose
    high, low = (signed(-x, 4) for x in crossed[1].interval(narrow))
    assert f"it would just not be, [{low}, {high}] at the first level." in prose
    assert crossed[1].interval(narrow)[1] > 0
    rest = [crossed_macro([pair for task, pair in some.items() if task != "anli_r2"], paired=False) for some in words]
    changes = [signed(x, 3) for one in rest for x in (one.difference, *one.interval(narrow))]
    assert "as [below](#twice-the-width), the last two are {} [{}, {}] and {} [{}, {}].".format(*changes) in prose
    perplexity = [np.mean([one.scores["lambada_openai perplexity"] for one in scored[i]]) for i in (0, 2)]
    assert "perplexity rises from {:.0f} to {:.0f}, and".format(*perplexity) in prose
    points, nats = told("points", 2), told("nats", 3)
    assert f"by {points[0].replace(' [', ' points [')} with uniformity and {points[1]} with dispersion, the" in prose
    assert f"right answers by {nats[0].replace(' [', ' nats per item [')} and {nats[1]}: what" in prose
    guessed = [[one.scores["lambada_openai"] for one in arm] for arm in scored]
    shares = [100 * np.mean(arm) for arm in guessed]
    assert f"{shares[2]:.1f} % of them are guessed instead of {shares[0]:.1f} %, fewer in every seed." in prose
    assert all(d < b for b, d in zip(guessed[0], guessed[2]))

    four, eight = told("int4", 4), told("int8-int8", 4)
    costs = [rows[0][f"{scheme}_cross_entropy"] for scheme in ("int4", "int8-int8")]
    words = "int4 weights cost {:.4f} nats, which uniformity changes by {} and dispersion by {}, less in every seed."
    assert words.format(costs[0], *four) in prose
    assert "int8 weights and activations cost {:.4f}, which they change by {} and {}.".format(costs[1], *eight) in prose
    assert all(quantisation("int4")(run) < quantisation("int4")(base[s]) for s, run in dispersed.items())
    budgets = [
        next(r for r in table("pretrain") if (r["model"], r["tokens"]) == ("llama", m))["int4_cross_entropy"]
        for m in (4e7, 8e7, 16e7)
    ]
    assert "({:.4f}, {:.4f} and {:.4f} with 40M, 80M and 160M)".format(*budgets) in prose
    changes = []
    for loss in LOSSES:
        gaps_at = [
            [
                by_document(kept[f"{loss} · llama · {m}"][s]) - by_document(kept[f"{PLAIN} · llama · {m}"][s])
                for s in base
            ]
            for m in ("80M", "160M")
        ]
        changes += [signed(x, 3) for x in interval(list(np.subtract(gaps_at[1], gaps_at[0])))]
    assert "the harms change by {} [{}, {}] and {} [{}, {}] from 80M".format(*changes) in prose
    saved = -rows[1]["int4_difference"]
    assert round(costs[0] / saved) == round(rows[1]["difference"] / saved) == 9  # "a ninth", of both
    words = "dispersion in the Llama with 160M, {} of {:.4f}, where held-out loss is {:.3f} higher |"
    assert words.format(four[1], costs[0], rows[1]["difference"]) in RESULTS
    best = min((r for r in table("pretrain") if r["seeds"] > 2), key=lambda r: r["int4_difference"] or 0.0)
    assert (best["loss"], best["model"], best["tokens"]) == (LOSSES[1], "llama", 16e7)  # "at best"


def test_twice_the_width():
    """The GPT2 of width 768: losses, course, rounding."""
    prose, kept, place = " ".join(RESULTS.split()), runs("pretrain"), "gpt2 768 · 40M"
    base, uniform, dispersed = (kept[f"{a} · {place}"] for a in (PLAIN, *LOSSES))
    assert list(base) == list(uniform) == list(dispersed) == [11, 12, 13]
    size = base[11].model.parameters
    assert f"width 768 ({size / 1e6:.0f}M parameters, {4e7 / size:.2f} tokens for each), seeds 11 to 13" in prose
    level, narrow = (np.mean([by_document(kept[f"{PLAIN} · {p}"][s]) for s in base]) for p in (place, "gpt2 · 40M"))
    assert f"ends at {level:.3f}, over the same seeds {narrow - level:.3f} nats below the one of width 384" in prose
    rows = [next(r for r in table("pretrain") if (r["loss"], r["model"]) == (loss, "gpt2 768")) for loss in LOSSES]

    def told(row: dict[str, Any], of: str, digits: int) -> str:
        middle, low, high = (signed(row[f"{of}{end}"], digits) for end in ("difference", "low", "high"))
        return f"{middle} [{low}, {high}]"

    gaps = [signed(by_document(uniform[s]) - by_document(base[s]), 4) for s in base]
    words = "level with it, {}, by {}, {} and {} over the seeds"
    assert words.format(told(rows[0], "", 3), *gaps) in prose
    cell = estimate("pretrain")["cells"][f"uniformity last 0.1 · {place}"]
    assert f"the corrected interval, [{signed(cell['low'], 3)}, {signed(cell['high'], 3)}], contains" in prose
    smaller = next(r for r in table("pretrain") if (r["loss"], r["model"], r["tokens"]) == (LOSSES[0], "gpt2", 4e7))
    assert f"resolved with 40M either ({told(smaller, '', 3)})" in prose
    apart = [by_document(dispersed[s]) - by_document(base[s]) for s in base]
    assert f"in every seed, by {min(apart):.3f} to {max(apart):.3f}, and in every text" in prose
    by_text = [by_texts(list(base.values()), list(arm.values())) for arm in (uniform, dispersed)]
    assert all(((treated - plain).mean(1) > 0).all() for plain, treated in by_text[1])
    texts = list(dict.fromkeys(d.text.partition(":")[0] for d in base[11].held_out_documents))
    moved = dict(zip(texts, ((treated - plain).mean(1) for plain, treated in by_text[0])))
    assert (moved["reviews"] < 0).all()  # "better on reviews in every seed, worse on abstracts"
    assert (moved["abstracts"] > 0).all()
    ends = [np.mean([run.snapshots[-1].blocks for run in arm.values()]) for arm in (base, dispersed)]
    assert "mean cosine of the blocks from {:.3f} to {:.3f}: a harm by estimate".format(*ends) in prose

    def ahead(low: float, high: float) -> str:
        steps = [h.step for h in base[11].history if low <= h.tokens <= high]
        return signed(np.mean([logged(uniform[s], step) - logged(base[s], step) for s in base for step in steps]), 3)

    words = "by {} nats after 5M tokens, by {} when the warm-up ends, and is level over the last 5M ({})"
    points = ahead(4.5e6, 5.5e6)[1:], ahead(15e6, 17e6)[1:], ahead(35e6, 41e6)
    assert words.format(*points) in prose
    rare = [
        np.mean([[g["loss"] for g in run.held_out_by["frequency"]] for run in arm.values()], 0)
        for arm in (base, uniform, dispersed)
    ]
    middle, last = (signed((rare[1] - rare[0])[i], 3) for i in (4, 9))
    assert f"({middle} in the fifth tenth) and behind on the rarest tenth ({last}, as dispersion is)" in prose
    assert signed((rare[2] - rare[0])[9], 3) == last
    assert np.argmin(rare[1] - rare[0]) == 4
    cost, both = rows[0]["int4_cross_entropy"], rows[0]["int8-int8_cross_entropy"]
    changes = [told(row, "int4_", 4) for row in rows]
    words = "int4 weights cost {:.4f} nats, which uniformity changes by {} and dispersion by {}."
    assert words.format(cost, *changes) in prose
    changes = [told(row, "int8-int8_", 4) for row in rows]
    words = "int8 weights and activations cost {:.4f}, and both losses take away two thirds of that: {} and {},"
    assert words.format(both, *changes) in prose
    assert all(0.6 < -row["int8-int8_difference"] / both < 0.7 for row in rows)


def test_tasks_at_twice_the_width():
    prose = " ".join(RESULTS.split())
    rows = [next(r for r in table("pretrain") if (r["loss"], r["model"]) == (loss, "gpt2 768")) for loss in LOSSES]

    def told(column: str, digits: int) -> list[str]:
        ends = [[signed(row[f"{column}_{end}"], digits) for end in ("difference", "low", "high")] for row in rows]
        return [f"{middle} [{low}, {high}]" for middle, low, high in ends]

    points, nats, words = told("points", 2), told("nats", 3), told("lambada_nats", 2)
    first = points[0].replace(" [", " points [")
    assert f"the average is {first} with uniformity and {points[1]} with dispersion where" in prose
    assert f"right answers {nats[0].replace(' [', ' nats per item [')} and {nats[1]} where" in prose
    assert f"their log-likelihood changes by {words[0].replace(' [', ' nats [')} and {words[1]}." in prose
    assert all(d["level"] == 0.99 for cell in estimate("pretrain")["tasks"].values() for d in cell.values())
    scored = [
        [read(file.parent / "outcomes.json") for file in sorted(STUDIES.glob(f"pretrain/runs/{arm}-gpt2-768-*/*.json"))]
        for arm in FOLDERS
    ]
    scored = [some[::2] for some in scored]  # each folder has two files
    assert list(map(len, scored)) == [3, 3, 3]
    shares = [100 * np.mean([one.scores["lambada_openai"] for one in some]) for some in scored]
    assert "guesses {:.1f} % of the last words, uniformity {:.1f} %, dispersion {:.1f} %".format(*shares) in prose
    pairs = zip(scored[0], scored[2])  # "fewer in every seed"
    assert all(less.scores["lambada_openai"] < more.scores["lambada_openai"] for more, less in pairs)
    changes = []
    for some in scored[1:]:
        tasks = paired_outcomes(scored[0], some, kind="log_share")
        spread = {task: base.mean(1).var(ddof=1) for task, (base, _) in tasks.items()}
        assert max(spread, key=spread.get) == "anli_r2"
        without = crossed_macro([pair for task, pair in tasks.items() if task != "anli_r2"], paired=False)
        changes += [signed(x, 3) for x in (without.difference, *without.interval(0.99))]
    assert "the log-likelihood changes by {} [{}, {}] and {} [{}, {}].".format(*changes) in prose
