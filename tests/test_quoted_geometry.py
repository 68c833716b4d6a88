"""The numbers in the prose about `distill`, `size` and `arch` are those of the committed study folders."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from scipy.stats import spearmanr
from test_quoted_results import README, RESULTS, STUDIES, bounds, estimate, mean, runs, table, values

from decondense.records import Training, read
from decondense.stats.verdicts import decide, interval, signed
from decondense.studies import arch
from decondense.studies.size import floor

ALONE, TAUGHT, OTHERWISE = "student alone", "student with a teacher", "student with a dispersed teacher"
TEACHER = "dispersed teacher"
TEXTS = ("novels", "encyclopedia", "reviews", "abstracts", "wikitext-2")


def lower(decision: dict, digits: int) -> str:
    """An effect below 0, told as how much lower."""
    low, high = -decision["high"], -decision["low"]
    return f"{-decision['estimate']:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def test_distill():
    found, of = estimate("distill"), runs("distill")
    assert {(arm, *some) for arm, some in of.items()} == {(arm, 1, 2, 3) for arm in (ALONE, TAUGHT, OTHERWISE, TEACHER)}
    first, second = found["mean_cosine"], found["mean_cosine_dispersed"]
    told = f"{signed(first['estimate'], 3)}, 90 % interval {bounds(first, 3)}"
    assert f"{told}, and {signed(second['estimate'], 3)} {bounds(second, 3)}: a fall of" in RESULTS
    assert min(first["low"], second["low"]) > -found["margin"]
    assert f"a fall of {found['margin']:g}, the margin, is excluded for both" in RESULTS
    assert (
        f"mean cosine is {first['estimate']:.3f} and {second['estimate']:.3f} higher than alone, and a fall" in README
    )
    start, end = (np.mean([run.snapshots[i].blocks for run in of[TEACHER].values()]) for i in (0, -1))
    assert f"mean cosine, from {start:.3f} to {end:.3f}" in RESULTS
    levels = [mean("distill", arm, "mean_cosine") for arm in (ALONE, TAUGHT, OTHERWISE)]
    assert "end at {:.3f} alone, {:.3f} with the first teacher and {:.3f} with the second".format(*levels) in RESULTS
    apart = lower(found["mean_cosine_handed_on"], 3)
    assert f"the two teachers differ by {start - end:.3f}, their students differ by {apart}." in RESULTS
    ahead = [
        [at_loss(of[arm][s], of[ALONE][s].held_out[-1].loss)[1] - of[ALONE][s].snapshots[-1].blocks for s in (1, 2, 3)]
        for arm in (TAUGHT, OTHERWISE)
    ]
    assert "they are {:.3f} and {:.3f} above, and one seed is below".format(*np.mean(ahead, 1)) in RESULTS
    assert np.sum(np.array(ahead) < 0) == 1
    loss, other = found["held_out_loss"], found["held_out_loss_dispersed"]
    one, two = lower(loss, 3).replace(" [", " nats ["), lower(other, 3)
    assert f"lower with either teacher, by {one} and by {two}, but not of every text" in RESULTS
    gaps = {text: interval(by_text(TAUGHT, text) - by_text(ALONE, text)) for text in TEXTS}
    lowest = [-gaps[text][0] for text in ("novels", "encyclopedia", "wikitext-2")]
    assert f"lower by {min(lowest):.2f} to {max(lowest):.2f} on novels, encyclopedia and WikiText-2" in RESULTS
    assert gaps["reviews"][1] < 0 < gaps["reviews"][2]
    assert all(gaps[text][2] < 0 for text in ("novels", "encyclopedia", "wikitext-2"))
    assert "{:.3f} [{:.3f}, {:.3f}] higher on abstracts".format(*gaps["abstracts"]) in RESULTS
    behind = found["held_out_loss_other_teacher"]
    told = lower(behind, 4).replace(" [", " nats [")
    abstracts = -np.mean(by_text(OTHERWISE, "abstracts") - by_text(TAUGHT, "abstracts"))
    assert f"student is {told} below the other, on abstracts by {abstracts:.3f}" in RESULTS
    told = f"{signed(first['estimate'], 3)}, 90 % interval {bounds(first, 3)}"
    row = f"held-out loss {signed(loss['estimate'], 3)} nats {bounds(loss, 3)}, mean cosine {told}"
    assert row in RESULTS
    second_told = f"{signed(second['estimate'], 3)}, 90 % {bounds(second, 3)}"
    assert f"{signed(other['estimate'], 3)} {bounds(other, 3)} and {second_told}" in RESULTS
    read = [np.mean([run.held_out[i].loss for run in of[TEACHER].values()]) for i in (-1, 0)]
    assert "held-out loss shows ({:.2f} instead of {:.2f})".format(*read) in RESULTS
    assert f"A GPT2 of {table('distill')[0]['parameters'] / 1e6:.0f}M parameters" in RESULTS


def by_text(arm: str, text: str) -> np.ndarray:
    """Held-out loss of a text, mean over its documents, of every seed."""
    documents = [run.held_out_documents for _, run in sorted(runs("distill")[arm].items())]
    return np.array([np.mean([one.loss for one in some if one.text == f"{text}:valid"]) for some in documents])


def at_loss(run: Training, loss: float) -> tuple[float, float]:
    """Spearman and mean cosine where a run passes a held-out loss, between its snapshots."""
    losses = [one.loss for one in run.held_out][::-1]
    assert [one.step for one in run.held_out] == [shot.step for shot in run.snapshots]
    kept = [(shot.spearman, shot.blocks) for shot in run.snapshots][::-1]
    return tuple(float(np.interp(loss, losses, column)) for column in zip(*kept))


def test_size():
    found, of = estimate("size"), runs("size")
    rows = sorted((row for row in table("size") if row["seeds"] == 3), key=lambda row: row["parameters"])
    assert len(rows) == 6
    small, large = rows[0], rows[-1]
    assert f"({small['parameters'] / 1e6:.1f}M to {large['parameters'] / 1e6:.0f}M parameters)" in RESULTS
    trend = f"{signed(small['spearman'], 2)} in the smallest to {signed(large['spearman'], 2)} in the largest"
    per = lower(found["slope"], 2)
    assert f"it falls from {trend}, by {per} for tenfold parameters" in RESULTS
    alone = f"from {signed(small['spearman_blocks'], 2)} to {signed(large['spearman_blocks'], 2)}"
    assert f"Spearman goes {alone}, by {lower(found['spearman_blocks'], 2)} for tenfold parameters" in RESULTS
    level = found["mean_cosine"]
    rise = f"from {small['mean_cosine']:.3f} to {large['mean_cosine']:.3f}"
    assert f"{rise}, by {level['estimate']:.3f} [{level['low']:.3f}, {level['high']:.3f}]." in RESULTS
    assert (
        f"the largest has a Spearman of {signed(large['spearman'], 2)} and a mean cosine of "
        f"{large['mean_cosine']:.3f}, the smallest {signed(small['spearman'], 2)} and {small['mean_cosine']:.3f}"
    ) in README
    curves = {arm: [np.array(run.snapshots[-1].mean_cosine) for run in some.values()] for arm, some in of.items()}
    ends = [curve[-1] for some in curves.values() for curve in some]
    assert f"({min(ends):.2f} to {max(ends):.2f} after the final norm)" in RESULTS
    assert all(curve.argmin() == 0 for some in curves.values() for curve in some)  # "the lowest state of all 18 runs"
    lowest = {row["model"]: floor(len(curves[row["model"]][0])) for row in rows}
    assert f"{lowest[small['model']]:g} with 4 layers, {signed(lowest[large['model']], 2)} with 16" in RESULTS
    assert (
        f"cannot go below {lowest[small['model']]:g} with 4 layers, nor below {signed(lowest[large['model']], 2)}"
        in README
    )
    assert "three largest models lie within 0.06 of that" in RESULTS
    assert 0.05 < max(row["spearman"] - lowest[row["model"]] for row in rows[3:]) < 0.06
    six, sixteen = "6 layers, width 192", large["model"]
    peaks = {arm: [int(curve.argmax()) for curve in some] for arm, some in curves.items()}
    assert {peak for arm, some in peaks.items() if arm != small["model"] for peak in some} == {2, 3, 4}
    highest = [f"{min(map(max, curves[arm])):.2f} to {max(map(max, curves[arm])):.2f}" for arm in (six, sixteen)]
    assert "the peak is higher, {} with 6 layers and {} with 16".format(*highest) in RESULTS
    last = float(np.mean([run.held_out[-1].loss for run in of[small["model"]].values()]))
    assert f"the loss that the smallest ends with, {last:.2f}, between snapshots" in RESULTS
    at = [np.mean([at_loss(run, last) for run in of[row["model"]].values()], axis=0) for row in rows]
    (high, wide), (low, narrow) = at[0], at[-1]
    assert f"Spearman goes from {signed(high, 2)} to {signed(low, 2)} and the mean cosine from {wide:.2f} to" in RESULTS
    assert f"to {narrow:.2f}; a third of its rise is gone, and from {rows[3]['parameters'] / 1e6:.0f}M" in RESULTS
    assert 1 - (narrow - wide) / (large["mean_cosine"] - small["mean_cosine"]) == pytest.approx(1 / 3, abs=0.03)
    assert np.ptp([level for _, level in at[3:]]) < 0.003
    each = [of[row["model"]][1].tokens / row["parameters"] for row in (small, large)]
    assert "are {:.0f} for each parameter of the smallest and {:.2f} for each of the largest".format(*each) in RESULTS


GATED = (arch.STABLE, arch.LLAMA, arch.LLAMA_TIED, arch.OLMO2, arch.ROPE)  # rotary positions and a gated MLP
EFFECTS = {  # contrast → how the prose begins with its effect on the mean cosine
    "positions: none − rotary (SmolLM3)": "rotary ones",
    "place of the norm: after − before (OPT)": "norms after the sublayers",
    "place of the norm: after, with norms of q and k − before (Olmo2, Llama)": "norms of queries and keys besides,",
    "positions: rotary − learned (GPT-NeoX, GPT2)": "rotary instead of learned",
    "head: tied − untied (Llama)": "a tied head",
    "head: tied − untied (GPT2)": "in the Llama and",
    "norm: RMSNorm − LayerNorm (Llama, StableLM)": "that could be seen (",
}


def test_arch():
    found, of, rows = estimate("arch"), runs("arch"), table("arch")
    assert {(arm, *some) for arm, some in of.items()} == {(arm, 1, 2, 3) for arm in found["spearman"]}
    assert len(of) == 11
    level, loss, trend = (
        {arm: mean("arch", arm, column) for arm in of} for column in ("mean_cosine", "held_out_loss", "spearman")
    )
    above = [arm for arm, d in found["spearman"].items() if d["low"] > 0]
    assert above == [arch.OLMO2]
    assert f"above 0 in Olmo2 alone ({signed(trend[arch.OLMO2], 2)})" in RESULTS
    strict = {arm: decide(values("arch", arm, "spearman"), claim="greater", level=1 - 0.05 / 11) for arm in of}
    below = [arm for arm, d in strict.items() if d.high < 0]
    assert len(below) == 9  # "in nine of eleven at the level divided by their number"
    assert {*of} - {*below, *above} == {arch.LLAMA_TIED}  # "is open in a Llama with a tied head"
    starts = [row["spearman_start"] for row in rows]
    assert f"All begin between {signed(min(starts), 2)} and {signed(max(starts), 2)}." in RESULTS
    assert all(
        run.snapshots[-1].mean_cosine[0] == min(run.snapshots[-1].mean_cosine)
        for a in of.values()
        for run in a.values()
    )
    assert {len(run.snapshots[-1].mean_cosine) for arm in of.values() for run in arm.values()} == {13}
    assert f"{signed(floor(13), 2)} is as low as it can be, and GPT-NeoX is there." in RESULTS
    assert floor(13) + 0.05 > trend[arch.NEOX] == min(trend.values())
    assert min(level, key=level.get) == arch.OLMO2
    assert f"the most open cone of all, a mean cosine of {level[arch.OLMO2]:.3f}" in RESULTS
    ends = [signed(trend[a], 2) for a in (arch.GPT2, arch.GPT2_UNTIED)]
    ends += [f"{level[a]:.3f}" for a in (arch.GPT2, arch.GPT2_UNTIED)]
    assert "the GPT2s, at {} and {}, have the narrowest, {} and {}.".format(*ends) in RESULTS
    assert sorted(level, key=level.get)[-2:] == [arch.GPT2_UNTIED, arch.GPT2]
    for what, begin in EFFECTS.items():
        d = found["contrasts_mean_cosine"][what]
        assert f"{begin} {signed(d['estimate'], 3)} {bounds(d, 3)}".replace("( ", "(") in RESULTS
    assert EFFECTS.keys() == found["contrasts_mean_cosine"].keys()
    pair = [f"{level[a]:.3f}" for a in (arch.STABLE, arch.NEOX)]
    assert "end at {} and {}; one has a gated MLP without biases".format(*pair) in RESULTS
    rank = spearmanr(list(level.values()), list(loss.values())).statistic
    assert f"its rank correlation with held-out loss is {signed(rank, 2)}" in RESULTS
    groups = [[a for a in of if (a in GATED) == gated] for gated in (True, False)]
    spans = [
        f"{min(x[a] for a in some):.2f} to {max(x[a] for a in some):.2f}" for some in groups for x in (level, loss)
    ]
    assert "blocks {} and held-out loss {} in five such models, {} and {} in the six others".format(*spans) in RESULTS
    rates = {f.name: read(f) for f in sorted((STUDIES / "arch" / "rates").iterdir())}
    before, after = (rates[f"{place}-0.003-seed-1"] for place in ("before", "after"))
    assert (
        f"has {before.snapshots[-1].blocks:.3f} at 0.003 and {level[arch.OPT_PRE]:.3f} at the 0.0015 that both "
        f"OPTs were given (loss {before.held_out[-1].loss:.3f} and {loss[arch.OPT_PRE]:.3f})"
    ) in RESULTS
    assert f"({after.held_out[-1].loss:.1f} nats, mean cosine {after.snapshots[-1].blocks:.2f})" in RESULTS
    tried = [rates[f"after-{rate}-seed-0"].held_out[-1].loss for rate in ("0.0015", "0.00075", "0.000375")]
    assert "with seed 0 that one ends at {:.3f}, {:.3f} and {:.3f} with".format(*tried) in RESULTS
    assert "Of eleven small architectures one has a trend above 0, Olmo2, and it has the most open cone." in README


@pytest.mark.parametrize("states", range(3, 18))
def test_the_lowest_that_spearman_can_be(states):
    """With the first state lowest and all others falling; no order with the first lowest is below it."""
    falling = [0, *range(states - 1, 0, -1)]
    assert spearmanr(range(states), falling).statistic == pytest.approx(floor(states))
    if states < 8:
        others = (spearmanr(range(states), [0, *rest]).statistic for rest in permutations(range(1, states)))
        assert min(others) == pytest.approx(floor(states))
