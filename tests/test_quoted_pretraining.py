"""The numbers of `screen` and `pretrain` in the prose of README.md and docs/pretraining.md."""

from __future__ import annotations

import numpy as np
from scipy import stats
from test_quoted_results import PLAIN, README, RESULTS, estimate, runs, table

from decondense.records import Training
from decondense.stats.crossed import crossed_macro
from decondense.stats.significance import holm
from decondense.stats.verdicts import signed
from decondense.studies.contrasts import by_texts
from decondense.studies.runs import by_document


def test_screen():
    rows = {row["arm"]: row for row in table("screen")}
    plain, longest = rows[f"{PLAIN} @ 0.002"]["loss"], rows[f"{PLAIN} warm-up 40 % @ 0.005"]["loss"]
    gpt2 = {arm: row for arm, row in rows.items() if "llama" not in arm}
    short = {arm: row["loss"] for arm, row in rows.items() if "%" not in arm}
    assert min(loss for arm, loss in short.items() if arm.startswith(PLAIN)) == plain  # "the best of four rates, 0.002"
    assert min(row["loss"] for arm, row in gpt2.items() if arm.startswith(PLAIN)) == longest
    llama = [
        rows[f"llama: {PLAIN}{end}"]["loss"] for end in (" @ 0.002", " warm-up 40 % @ 0.003", " warm-up 40 % @ 0.005")
    ]
    gains = [plain - longest, llama[0] - llama[1]]
    assert f"| **do this first** | −{gains[0]:.3f} in a GPT2, −{gains[1]:.3f} in a Llama; one seed each |" in RESULTS
    assert f"a rate of 0.005 it is {gains[0]:.3f} nats below where it was" in RESULTS
    assert f"the long warm-up gives {gains[1]:.3f} nats from the better of two rates" in RESULTS
    assert f"| both, in a Llama, 40M tokens: −{gains[1]:.3f} (one seed) |" in README
    assert f"0.003 is the better of the two rates, by {llama[2] - llama[1]:.3f}" in RESULTS
    at = {arm: signed(row["minus_same_schedule"], 3) for arm, row in rows.items()}
    ends = [at[f"llama: uniformity last 0.1{end} @ 0.003"][1:] for end in ("", " warm-up 40 %")]
    against = signed(rows["llama: uniformity last 0.1 @ 0.003"]["loss"] - llama[0], 3)
    told = (
        f"uniformity at 5 % gains {ends[0]} at a rate of 0.003, but nothing against cross-entropy at 0.002 ({against});"
    )
    assert f"{told} at 40 % it gains {ends[1]}." in RESULTS
    fast = {arm[: -len(" @ 0.002")]: value for arm, value in at.items() if arm.endswith(" @ 0.002") and "%" not in arm}
    assert max(fast, key=lambda arm: fast[arm] if "last" in arm else "") == "decorrelation last 0.3"
    assert f"decorrelation (weight 0.3) by {fast['decorrelation last 0.3'][1:]} nats" in RESULTS
    assert f"losses on the last state gain up to {fast['decorrelation last 0.3'][1:]}; the long one" in README
    assert gains[0] > float(fast["decorrelation last 0.3"][1:])  # "give more, without any loss"
    assert (
        "uniformity by {}, orthogonalization by {}, dispersion of the last state alone by {};".format(
            *(fast[arm][1:] for arm in ("uniformity last 0.1", "orthogonalization last 1", "dispersion last 0.1"))
        )
        in RESULTS
    )
    assert (
        f"a z-loss, by {fast['z-loss 1e-3'][1:]}, and label smoothing, by {fast['label smoothing 0.1'][1:]}" in RESULTS
    )
    assert (
        f"Dispersion on all layers does not ({fast['dispersion all 0.1']}), nor vicreg ({fast['vicreg last 1']})"
        in RESULTS
    )
    assert f"| {fast['decorrelation last 0.3']} and {fast['uniformity last 0.1']}; one seed, no interval |" in RESULTS
    assert rows[f"{PLAIN} warm-up 20 % @ 0.003"]["loss"] < min(
        loss for arm, loss in short.items() if arm in gpt2
    )  # "passes all of them"
    slow = {arm.partition(" warm-up 40 % @ 0.003")[0]: value for arm, value in at.items() if "40 % @ 0.003" in arm}
    assert f"koleo (0.1, {slow['koleo last 0.1']}) and decorrelation of the late half" in RESULTS
    assert f"({slow['decorrelation late half 1']}) look as good" in RESULTS
    assert f"orthogonalization ({slow['orthogonalization last 1']}), a z-loss ({slow['z-loss 1e-3']})" in RESULTS
    assert f"and dropout ({slow['dropout 0.1']}) do not" in RESULTS
    higher = rows[f"{PLAIN} warm-up 40 % @ 0.003"]["loss"] - longest
    assert f"gains {higher:.3f} nats (one seed) when the rate goes from 0.003 to 0.005" in RESULTS
    alike = [
        [row for arm, row in gpt2.items() if "40 % @ 0.003" in arm],
        [row for arm, row in gpt2.items() if "%" not in arm and arm.endswith(" @ 0.002")],
    ]
    assert list(map(len, alike)) == [9, 15]
    ranks = [stats.spearmanr(*zip(*((row["loss"], row["mean_cosine"]) for row in some))).statistic for some in alike]
    words = "(Spearman {} over the nine with 40 % and 0.003, {} over the fifteen with 5 % and 0.002, one seed each)"
    assert words.format(*(signed(rank, 2) for rank in ranks)) in RESULTS
    rounded = ("decorrelation all 0.3", "dispersion all 0.1", "dropout 0.1", "dispersion late half 0.1")
    costs = [rows[f"{arm} warm-up 40 % @ 0.003"]["int8-int8_cost"] for arm in rounded]
    words = "decorrelation on all {:.4f}, dispersion on all {:.4f}, dropout without a loss {:.4f}; but {:.4f} with"
    assert words.format(*costs) in RESULTS
    found = runs("screen")
    assert len(found) == 54
    places = [
        found[arm][1].held_out_by["position"]
        for arm in (f"{PLAIN} @ 0.003", "decorrelation last 1 @ 0.003", f"{PLAIN} warm-up 40 % @ 0.003")
    ]
    ends = [(f"{place[0]['loss']:.2f}", f"{place[-1]['loss']:.2f}") for place in places]
    assert "has {} nats in the first 64 tokens of a block and {} in the last 64".format(*ends[0]) in RESULTS
    assert (
        "with decorrelation (weight 1) {} and {}, with a warm-up of 40 % {} and {}".format(*ends[1], *ends[2])
        in RESULTS
    )


def test_pretrain():
    rows = {(row["loss"], row["model"], row["tokens"]): row for row in table("pretrain")}

    def told(loss: str, model: str, tokens: float, of: str = "", digits: int = 3) -> str:
        row = rows[loss, model, tokens]
        low, high = (signed(row[f"{of}{end}"], digits) for end in ("low", "high"))
        return f"{signed(row[f'{of}difference'], digits)} [{low}, {high}]"

    cells = (("gpt2", 4e7), ("gpt2", 8e7), ("gpt2 at 0.005", 8e7), ("llama", 4e7), ("llama", 8e7))
    longer, harm = (told("uniformity last 0.1", model, 16e7) for model in ("gpt2 at 0.005", "llama"))
    longest = told("dispersion all 0.1", "llama", 16e7)
    decorrelated = [told("decorrelation last 0.3", *cell) for cell in (("gpt2", 4e7), ("llama", 8e7))]
    early = told("uniformity last 0.1 early", "llama", 8e7)
    largest = [row for (_, model, tokens), row in rows.items() if (model, tokens) == ("llama", 8e7)]
    assert [row["seeds"] for row in largest] == [5, 5, 5, 5]
    assert [rows["uniformity last 0.1", *cell]["seeds"] for cell in cells] == [5, 3, 5, 3, 5]

    def first(words: str) -> str:
        return words.replace(" [", " nats [")

    assert f"; 160M: {longer}; 320M" in RESULTS
    assert f"; 160M: **{harm}** |" in RESULTS
    assert f"; 160M: **{longest}** |" in RESULTS
    assert f"decorrelation, last state, 0.3 | **no gain seen** | 40M: {decorrelated[0]} |" in RESULTS
    assert f"decorrelation, last state, 0.3 | **do not** | 80M: **{decorrelated[1]}** |" in RESULTS
    assert f"gone after 30 % of the tokens | **no gain kept** | 80M: {early} |" in RESULTS
    prose = " ".join(RESULTS.split())
    names = {
        "uniformity last 0.1": "uniformity, last state, 0.1",
        "uniformity last 0.1 early": "the same, gone after 30 % of the tokens",
        "decorrelation last 0.3": "decorrelation, last state, 0.3",
        "dispersion all 0.1": "dispersion, all layers, 0.1 (the paper's)",
    }
    for (loss, model, tokens), row in rows.items():
        effect, p = told(loss, model, tokens), row["p_holm"]
        where = f"{model.replace('gpt2', 'GPT2').replace('llama', 'Llama')} | {tokens / 1e6:.0f}M | {row['seeds']}"
        line = f"| {names[loss]} | {where} | {f'**{effect}**' if p < 0.05 else effect} | {p:.3f} |"
        assert line in RESULTS
    assert f"uniformity that is gone early, added after 47 runs: {early}, at the corrected level" in prose
    assert f"| dispersion, 160M tokens: {longest} |" in README
    assert {loss for loss, model, tokens in rows if (model, tokens) == ("llama", 16e7)} == {
        "uniformity last 0.1",
        "dispersion all 0.1",
    }
    assert "Of eighteen comparisons (one, with two seeds, is not drawn) five are significant after" in README
    assert "after correction, all of them harms." in README
    (missing,) = (cell for cell, row in rows.items() if row["seeds"] < 3)  # of the other seventeen there are bars
    assert missing == ("dispersion all 0.1", "gpt2", 8e7)
    assert rows[missing]["seeds"] == 2
    significant = [row for row in rows.values() if row["p_holm"] < 0.05]
    assert len(significant) == 5
    assert all(row["low"] > 0 for row in significant)
    plainly = rows["uniformity last 0.1", "gpt2", 4e7]["int8-int8_cross_entropy"]
    assert f"at 40 % and 0.003 is {plainly:.4f} with cross-entropy (two seeds)" in RESULTS
    assert len(rows) == 18
    gone = "uniformity last 0.1 early"
    harmful = ("uniformity last 0.1", "decorrelation last 0.3", "dispersion all 0.1")
    significant = {cell for cell, row in rows.items() if row["p_holm"] < 0.05}
    twice = {(loss, "llama", 16e7) for loss in ("uniformity last 0.1", "dispersion all 0.1")}
    assert significant == {(loss, "llama", 8e7) for loss in harmful} | twice
    assert "Five are significant: the harms of uniformity, decorrelation and dispersion in the Llama with 80M" in prose
    gains = [("uniformity last 0.1", *cell) for cell in cells[1:3]] + [("dispersion all 0.1", "llama", 4e7)]
    others = {cell: row["p_holm"] for cell, row in rows.items() if row["difference"] < 0}
    nearest = {f"{others.pop(cell):.2f}" for cell in gains}
    assert f"nearest to it, with p = {' '.join(nearest)} each, are uniformity's in the GPT2 with 80M and" in prose
    assert float(*nearest) < min(others.values())
    at_corrected = {arm: cell["low"] for arm, cell in estimate("pretrain")["cells"].items() if "llama · 80M" in arm}
    excluded = {arm.partition(" · ")[0] for arm, low in at_corrected.items() if low > -0.005}
    assert excluded == {*harmful, gone}  # "a gain of 0.005 nats is excluded for each of the four losses", as with 160M
    ends = {arm: cell["low"] for arm, cell in estimate("pretrain")["cells"].items() if "llama · 160M" in arm}
    assert len(ends) == 2
    assert min(ends.values()) > 0
    added = estimate("pretrain")["cells"][f"{gone} · llama · 80M"]
    assert f"at the corrected level [{signed(added['low'], 3)}, {signed(added['high'], 3)}]." in prose
    assert f"on held-out text (p = {rows[gone, 'llama', 8e7]['p_holm']:.2f} after correction)" in prose
    small = [told("uniformity last 0.1", *cell, "int4_", 4) for cell in (("gpt2", 8e7), ("llama", 4e7))]
    small.append(told("dispersion all 0.1", "llama", 4e7, "int4_", 4))
    costs = [rows["uniformity last 0.1", *cell]["int4_cross_entropy"] for cell in (("gpt2", 8e7), ("llama", 4e7))]
    wide = [rows["uniformity last 0.1", *cell] for cell in cells[1:3]]
    assert all(max(-row["int4_low"], row["int4_high"]) > 0.002 for row in wide)  # "is not excluded"
    assert f"to int4 {costs[0]:.4f} in the GPT2 with 80M tokens and {costs[1]:.4f} in the Llama with 40M" in RESULTS
    assert f"changes that by {small[0]} and {small[1]}, dispersion in the Llama by {small[2]}." in prose
    later = told("dispersion all 0.1", "llama", 8e7, "int4_", 4)
    cost = largest[0]["int4_cross_entropy"]
    most = max(largest, key=lambda row: abs(row["int4_difference"]))
    assert most["loss"] == "dispersion all 0.1"
    assert f"With 80M the Llama loses {cost:.4f}; dispersion changes that by {later}, a twentieth of it" in prose
    assert round(cost / abs(most["int4_difference"])) == 20
    assert all(row["int4_low"] < 0 < row["int4_high"] for row in largest if row is not most)
    both = max(abs(row["int8-int8_difference"]) for row in largest)
    plain = largest[0]["int8-int8_cross_entropy"]
    assert f"with 80M (five seeds) it is {plain:.4f}, and the losses change it by {both:.4f} or less." in prose
    assert max(row["int8_cross_entropy"] or 0 for row in rows.values()) < 0.00025  # "0.0002 nats or less"

    kept = runs("pretrain")
    before = {}  # the p-values with four seeds of the Llama with 80M tokens, and what else was known then
    for loss, model, tokens in (cell for cell in rows if cell[2] < 16e7 and cell[1] != "gpt2 768"):
        two = [kept[f"{arm} · {model} · {tokens / 1e6:.0f}M"] for arm in (PLAIN, loss)]
        later = {("llama", 8e7): 15, ("gpt2 at 0.005", 8e7): 14}.get((model, tokens), 16)
        seeds = [s for s in two[1] if s in two[0] and s < later]
        pairs = by_texts(*([arm[s] for s in seeds] for arm in two))
        before[loss, model, tokens] = crossed_macro(pairs, paired=True).p
    then = dict(zip(before, holm(list(before.values()))))["dispersion all 0.1", "llama", 8e7]
    assert f"With four, dispersion had p = {then:.3f} after the correction of then." in prose
    losses = [by_document(run) for run in kept[f"{PLAIN} · gpt2 · 40M"].values()]
    assert f"five of cross-entropy with 40M tokens lie between {min(losses):.3f} and {max(losses):.3f}" in RESULTS
    arms = [kept[f"{arm} · gpt2 · 40M"] for arm in (PLAIN, "uniformity last 0.1")]
    assert list(arms[0]) == list(arms[1]) == [11, 12, 13, 14, 15]
    late = [signed(by_document(arms[1][seed]) - by_document(arms[0][seed]), 3) for seed in (14, 15)]
    assert "the two that came later gave {} and {}".format(*late) in RESULTS
    pairs = by_texts(*([arm[seed] for seed in (11, 12, 13)] for arm in arms))
    early = crossed_macro(pairs, paired=True)
    low, high = (signed(end, 3) for end in early.interval())
    assert f"at 40M gave {signed(early.difference, 3)} nats [{low}, {high}]" in RESULTS
    plain, uniformity, dispersion = (
        kept[f"{arm} · gpt2 · 80M"] for arm in (PLAIN, "uniformity last 0.1", "dispersion all 0.1")
    )
    last = [np.mean([run.snapshots[-1].mean_cosine[-1] for run in arm.values()]) for arm in (plain, uniformity)]
    assert "the mean cosine of the last state from {:.3f} to {:.3f}, and dispersion".format(*last) in RESULTS
    blocks = [np.mean([run.snapshots[-1].blocks for run in arm.values()]) for arm in (plain, dispersion)]
    assert "that of all blocks from {:.3f} to {:.3f};".format(*blocks) in RESULTS

    def at(run: Training, step: int) -> float:
        """Training loss over the 50 steps that end here."""
        return float(
            np.mean([h.loss if h.task_loss is None else h.task_loss for h in run.history if step - 50 < h.step <= step])
        )

    def way(model: str, *steps: int, loss: str = "uniformity last 0.1") -> list[str]:
        base, treated = (kept[f"{arm} · {model} · 80M"] for arm in (PLAIN, loss))
        return [signed(np.mean([at(treated[s], step) - at(base[s], step) for s in base]), 3) for step in steps]

    faster, llama = "gpt2 at 0.005", "llama"
    ahead = [way(model, 250)[0][1:] for model in (llama, faster)]
    assert "(after 8M tokens the Llama by {} nats, the GPT2 at 0.005 by {})".format(*ahead) in prose
    assert "keeps a part of it ({} after 52M, {} after 79M)".format(*way(faster, 1600, 2400)) in prose
    both = [kept[f"{arm} · llama · 80M"] for arm in (PLAIN, "uniformity last 0.1")]
    behind = [[at(both[1][seed], step) > at(both[0][seed], step) for seed in both[0]] for step in (800, 850, 1000)]
    assert list(map(all, behind)) == [False, True, True]  # "from 28M on, in every seed"
    assert "in every seed ({} after 52M, {} after 79M)".format(*way(llama, 1600, 2400)) in prose

    steps = way(llama, 250, 750, 1000, 2400, loss=gone)
    assert "(by {} nats after 8M tokens, {} after 25M)".format(*(x[1:] for x in steps[:2])) in prose
    words = "by {} on average after 33M (one seed is level or ahead until 51M), by {} after 79M; in every seed from"
    assert words.format(*(x[1:] for x in steps[2:])) in prose
    later_on = [h.step for h in both[0][11].history if h.tokens > 52e6]
    assert all(
        at(run, s) > at(both[0][seed], s) for seed, run in kept[f"{gone} · llama · 80M"].items() for s in later_on
    )
    everywhere = {loss: kept[f"{loss} · llama · 80M"] for loss in (*harmful, gone)}
    assert all(by_document(run) > by_document(both[0][s]) for arm in everywhere.values() for s, run in arm.items())
    for loss in harmful:  # "in every seed and every text"
        for seed, run in everywhere[loss].items():
            gaps = zip(by_texts([both[0][seed]], [run]), range(5), strict=True)
            assert all((treated - base).mean() > 0 for (base, treated), _ in gaps)
    shares = [
        np.mean([run.snapshots[-1].outlier_share[-1] for run in kept[f"{loss} · llama · 80M"].values()])
        for loss in (gone, PLAIN, "uniformity last 0.1")
    ]
    words = (
        "{:.0%} of the variance in the outlier dimensions, where cross-entropy has {:.0%} and kept uniformity {:.0%}"
    )
    assert words.format(*shares).replace("%", " %") in prose
    ends_at = [
        (run.snapshots[-1].mean_cosine[-1], run.snapshots[-1].effective_rank[-1]) for run in everywhere[gone].values()
    ]
    assert "mean cosine {:.3f} and effective rank {:.0f}, and".format(*np.mean(ends_at, 0)) in prose
    others = [way(llama, 250, 850, loss=loss) for loss in ("decorrelation last 0.3", "dispersion all 0.1")]
    first_, then = ([pair[i][1:] for pair in others] for i in (0, 1))
    assert "as well, by {} and {}, and behind after 28M by {} and {}.".format(*first_, *then) in prose

    def apart(model: str, kind: str) -> np.ndarray:
        """(groups,) of uniformity minus cross-entropy."""
        base, treated = (kept[f"{arm} · {model} · 80M"] for arm in (PLAIN, "uniformity last 0.1"))
        pairs = [(treated[s].held_out_by[kind], base[s].held_out_by[kind]) for s in base]
        return np.array([[a["loss"] - b["loss"] for a, b in zip(*pair)] for pair in pairs]).mean(0)

    tenths = [signed(apart(llama, "frequency")[i], 3) for i in (0, 9)]
    assert "{} nats in the most frequent tenth of the text, {} in the rarest.".format(*tenths) in prose
    assert (apart(llama, "frequency") > 0).all()
    middle = apart(faster, "frequency")
    assert sorted(np.argsort(middle)[:2]) == [5, 6]
    told_middle = "({} and {} in the sixth and seventh tenth)".format(*(signed(x, 3) for x in middle[5:7]))
    assert f"gains most in the middle {told_middle}" in prose
    assert all(np.ptp(apart(model, "position")) < 0.006 for model in (llama, faster))  # "all positions are alike"

    def ends(of: str, model: str = llama) -> list[float]:
        """Of the last state with cross-entropy, and with uniformity."""
        both = [kept[f"{arm} · {model} · 80M"].values() for arm in (PLAIN, "uniformity last 0.1")]
        if of in ("gradient_noise", "frequency_share"):
            return [float(np.mean([getattr(run.probes[-1], of) for run in arm])) for arm in both]
        return [float(np.mean([getattr(run.snapshots[-1], of)[-1] for run in arm])) for arm in both]

    assert "mean cosine falls from {:.3f} to {:.3f}".format(*ends("mean_cosine")) in prose
    assert "effective rank rises from {:.0f} to {:.0f} of 384".format(*ends("effective_rank")) in prose
    outliers, frequency = (ends(of)[::-1] for of in ("outlier_share", "frequency_share"))
    assert "hold {:.0f} % of the variance instead of {:.0f} %".format(*(100 * x for x in outliers)) in prose
    assert "token frequency {:.1f} % instead of {:.1f} %".format(*(100 * x for x in frequency)) in prose
    noise = [f"{round(x, -3):,.0f}" for x in (*ends("gradient_noise")[::-1], *ends("gradient_noise", faster)[::-1])]
    assert "ends at {} instead of {} in the Llama, and at {} and {} in the GPT2".format(*noise) in prose
    raised = {
        seed: [
            kept[f"{loss} · llama · 80M"][seed].probes[-1].gradient_noise - run.probes[-1].gradient_noise
            for loss in ("uniformity last 0.1", "decorrelation last 0.3")
        ]
        for seed, run in kept[f"{PLAIN} · llama · 80M"].items()
    }
    fifth = raised.pop(15)
    among = [value for values_ in raised.values() for value in values_]
    told_noise = (f"+{round(fifth[0], -2):,.0f}", f"−{round(-fifth[1], -2):,.0f}")
    assert "({} and {} tokens against cross-entropy's, where the other four".format(*told_noise) in prose
    assert f"have +{round(min(among), -3):,.0f} to +{round(max(among), -3):,.0f})" in prose
    texts = [{t.name: t.tokens for t in kept[f"{PLAIN} · llama · {m}"][11].text} for m in ("80M", "40M")]
    shares = [[100 * t[f"{name}:train"] / sum(t.values()) for t in texts] for name in ("abstracts", "encyclopedia")]
    assert "abstracts are {:.0f} % of it instead of {:.0f} %, encyclopedia".format(*shares[0]) in prose
    assert "encyclopedia {:.0f} % instead of {:.0f} %;".format(*shares[1]) in prose

    def together(model: str) -> float:
        """The correlation of the two arms over seeds."""
        base, treated = (kept[f"{arm} · {model}"] for arm in (PLAIN, "uniformity last 0.1"))
        return float(
            np.corrcoef([(by_document(base[s]), by_document(treated[s])) for s in treated], rowvar=False)[0, 1]
        )

    places = ("llama · 40M", "gpt2 · 80M", f"{faster} · 80M", f"{faster} · 160M", "gpt2 · 40M", "llama · 80M")
    assert [together(place) > 0.5 for place in places] == [True, True, False, False, False, False]
    left = 275 - sum(map(len, kept.values()))
    assert f"({left} of 275 runs)" in RESULTS
    assert f"Of the 275 runs planned {left} are not made" in prose
    slow, fast = (kept[f"{PLAIN} · {m} · 80M"] for m in ("gpt2", faster))
    lower = np.mean([by_document(run) - by_document(fast[seed]) for seed, run in slow.items()])
    assert f"cross-entropy itself is {lower:.3f} lower than at 0.003 with 80M, over the three seeds" in prose
    treated = kept[f"uniformity last 0.1 · {faster} · 80M"]
    both_gains = np.mean([by_document(run) - by_document(treated[seed]) for seed, run in slow.items()])
    assert list(slow) == [11, 12, 13]
    assert f"over those, rate and loss together give {both_gains:.3f}." in prose
