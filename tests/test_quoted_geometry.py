"""The numbers in the prose about `distill`, `size` and `arch` are those of the committed study folders."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from scipy.stats import spearmanr
from test_quoted_results import RESULTS, STUDIES, bounds, estimate, mean, over_seeds, runs, table, values

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
    assert f"lower with either teacher, by {one} and by {two}, but not on every text" in RESULTS
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
    row = f"| {signed(loss['estimate'], 3)} {bounds(loss, 3)}; mean cosine {told.replace(' interval', '')} |"
    assert row in RESULTS
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
    assert f"Spearman falls from {trend}, by {per} for tenfold parameters" in RESULTS
    alone = f"from {signed(small['spearman_blocks'], 2)} to {signed(large['spearman_blocks'], 2)}"
    assert f"Spearman goes {alone}, by {lower(found['spearman_blocks'], 2)} for tenfold parameters" in RESULTS
    level = found["mean_cosine"]
    rise = f"from {small['mean_cosine']:.3f} to {large['mean_cosine']:.3f}"
    assert f"{rise}, by {level['estimate']:.3f} [{level['low']:.3f}, {level['high']:.3f}]." in RESULTS
    curves = {arm: [np.array(run.snapshots[-1].mean_cosine) for run in some.values()] for arm, some in of.items()}
    ends = [curve[-1] for some in curves.values() for curve in some]
    assert f"({min(ends):.2f} to {max(ends):.2f} after the final norm)" in RESULTS
    assert all(curve.argmin() == 0 for some in curves.values() for curve in some)  # "the lowest state of all 18 runs"
    lowest = {row["model"]: floor(len(curves[row["model"]][0])) for row in rows}
    assert f"{lowest[small['model']]:g} with 4 layers, {signed(lowest[large['model']], 2)} with 16" in RESULTS
    assert "three largest models lie within 0.06 of that" in RESULTS
    assert 0.05 < max(row["spearman"] - lowest[row["model"]] for row in rows[3:]) < 0.06
    six, sixteen = "6 layers, width 192", large["model"]
    peaks = {arm: [int(curve.argmax()) for curve in some] for arm, some in curves.items()}
    assert {peak for arm, some in peaks.items() if arm != small["model"] for peak in some} == {2, 3, 4}
    highest = [f"{min(map(max, curves[arm])):.2f} to {max(map(max, curves[arm])):.2f}" for arm in (six, sixteen)]
    assert "the peak is higher, {} with 6 layers and {} with 16".format(*highest) in RESULTS
    last = float(np.mean([run.held_out[-1].loss for run in of[small["model"]].values()]))
    assert f"the loss that the smallest model ends with, {last:.2f} (interpolated between snapshots" in RESULTS
    at = [np.mean([at_loss(run, last) for run in of[row["model"]].values()], axis=0) for row in rows]
    (high, wide), (low, narrow) = at[0], at[-1]
    assert f"Spearman goes from {signed(high, 2)} to {signed(low, 2)} and the mean cosine from {wide:.2f} to" in RESULTS
    assert (
        f"to {narrow:.2f}; a third of the rise of the mean cosine is gone, and from {rows[3]['parameters'] / 1e6:.0f}M"
        in RESULTS
    )
    assert 1 - (narrow - wide) / (large["mean_cosine"] - small["mean_cosine"]) == pytest.approx(1 / 3, abs=0.03)
    assert np.ptp([level for _, level in at[3:]]) < 0.003
    each = [of[row["model"]][1].tokens / row["parameters"] for row in (small, large)]
    assert "are {:.0f} for each parameter of the smallest and {:.2f} for each of the largest".format(*each) in RESULTS


EFFECTS = {  # contrast → how the prose begins with its effect on the mean cosine
    "positions: none − rotary (SmolLM3)": "no positions instead of rotary",
    "place of the norm: after − before (OPT)": "norms after the sublayers",
    "place of the norm: after, with norms of q and k − before (Olmo2, Llama)": "and of queries and keys,",
    "positions: rotary − learned (GPT-NeoX, GPT2)": "rotary instead of learned",
    "head: tied − untied (Llama)": "a tied head",
    "head: tied − untied (GPT2)": "in the Llama and",
    "norm: RMSNorm − LayerNorm (Llama, StableLM)": "RMSNorm or LayerNorm",
}


def test_arch():
    found, of, rows = estimate("arch"), runs("arch"), table("arch")
    assert {(arm, *some) for arm, some in of.items()} == {(arm, 1, 2, 3) for arm in found["spearman"]}
    assert len(of) == 11
    sizes = [row["parameters"] / 1e6 for row in rows]
    assert f"width 384, {min(sizes):.0f}M to {max(sizes):.0f}M parameters" in RESULTS
    trend, blocks = ({arm: mean("arch", arm, column) for arm in of} for column in ("spearman", "spearman_blocks"))
    assert [arm for arm, d in found["spearman"].items() if d["low"] > 0] == [arch.OLMO2]
    assert f"above 0 in Olmo2 alone ({signed(trend[arch.OLMO2], 2)})" in RESULTS
    below = [
        {arm for arm in of if decide(values("arch", arm, column), claim="greater", level=1 - 0.05 / 11).high < 0}
        for column in ("spearman", "spearman_blocks")
    ]
    assert below[0] == below[1] == {*of} - {arch.LLAMA_TIED, arch.OLMO2}  # nine; "is open in a Llama with a tied head"
    ends = [signed(pick(blocks[arm] for arm in below[0]), 2) for pick in (max, min)]
    alone = over_seeds(values("arch", arch.OLMO2, "spearman_blocks"), 2)
    assert "below 0, with {} to {}, and Olmo2 has {} {}.".format(*ends, *alone) in RESULTS
    starts = [row["spearman_start"] for row in rows]
    assert f"All begin between {signed(min(starts), 2)} and {signed(max(starts), 2)}." in RESULTS
    curves = [run.snapshots[-1].mean_cosine for arm in of.values() for run in arm.values()]
    assert {(len(curve), curve.index(min(curve))) for curve in curves} == {(13, 0)}
    none = float(np.mean([spearmanr(range(13), [0, *order]).statistic for order in (range(1, 13), range(12, 0, -1))]))
    assert (
        f"cannot fall below {signed(floor(13), 2)}, and reads {signed(none, 2)} where the blocks have no trend."
        in RESULTS
    )
    last = [curve[-1] for curve in curves]
    assert f"After the final norm all are alike ({min(last):.2f} to {max(last):.2f})" in RESULTS
    ways = {arm: [run.snapshots[-1].mean_cosine[1:] for run in some.values()] for arm, some in of.items()}
    assert all(np.mean(way[:-1]) < way[-1] for way in ways[arch.OLMO2])  # "in Olmo2 it lies below"
    risen = {
        arm: [run.snapshots[-1].blocks - run.snapshots[1].blocks for run in some.values()] for arm, some in of.items()
    }
    assert {arm for arm, some in risen.items() if min(some) > 0} == {*of} - {arch.OLMO2}  # "in ten of the eleven"
    assert max(risen[arch.OLMO2]) < 0
    assert {round(run.snapshots[1].step / run.steps, 2) for some in of.values() for run in some.values()} == {0.25}


def test_the_level_of_architectures():
    found, of = estimate("arch"), runs("arch")
    level, loss = ({arm: mean("arch", arm, column) for arm in of} for column in ("mean_cosine", "held_out_loss"))
    start = {arm: mean("arch", arm, "mean_cosine_start") for arm in of}
    assert [min(level, key=level.get), *sorted(level, key=level.get)[-2:]] == [arch.OLMO2, arch.GPT2_UNTIED, arch.GPT2]
    ends = [f"{level[arm]:.3f}" for arm in (arch.OLMO2, arch.GPT2, arch.GPT2_UNTIED)]
    assert "of the blocks, {}, and the GPT2s the highest, {} and {}, more than twice".format(*ends) in RESULTS
    assert min(level[arm] / start[arm] for arm in (arch.GPT2, arch.GPT2_UNTIED)) > 2
    for what, begin in EFFECTS.items():
        d = found["contrasts_mean_cosine"][what]
        assert f"{begin} {signed(d['estimate'], 3)} {bounds(d, 3)}" in RESULTS
    assert EFFECTS.keys() == found["contrasts_mean_cosine"].keys()
    pairs = {what: pair for what, *pair in arch.CONTRASTS}
    gaps = {what: np.subtract(*(values("arch", arm, "mean_cosine") for arm in pair)) for what, pair in pairs.items()}
    corrected = {what: decide(gap, claim="greater", level=1 - 0.05 / 7) for what, gap in gaps.items()}
    left = [what for what, d in corrected.items() if d.low > 0 or d.high < 0]
    assert [pairs[what][0] for what in left] == [arch.OLMO2, arch.NOPE]  # "no positions and Olmo2 are left"
    assert f"begin at {start[arch.NEOX]:.2f} and {start[arch.GPT2]:.2f}" in RESULTS
    gate = over_seeds(values("arch", arch.STABLE, "mean_cosine") - values("arch", arch.NEOX, "mean_cosine"), 3)
    assert "the same norms, positions and head, {} {};".format(*gate) in RESULTS
    words = "rotary with a plain MLP ends at {:.3f}, a gated one without positions at {:.3f}, both together at"
    assert words.format(level[arch.NEOX], level[arch.NOPE]) in RESULTS
    groups = [[arm for arm in of if (arm in arch.GATED) == gated] for gated in (True, False)]

    def spans(of: dict[str, float], digits: int = 2) -> list[str]:
        return [f"{min(of[a] for a in some):.{digits}f} to {max(of[a] for a in some):.{digits}f}" for some in groups]

    both, (low, high) = spans(level)[0], spans(loss)
    assert f"held-out loss {low} in five such models, {high} in six others" in RESULTS
    assert f"both together at {both};" in RESULTS
    assert f"also have the lower loss, {low} instead of {high}. But" in RESULTS
    equal = {arm: float(np.mean([at_loss(run, 4.11)[1] for run in some.values()])) for arm, some in of.items()}
    assert 4.10 < max(run.held_out[-1].loss for some in of.values() for run in some.values()) < 4.11
    assert (
        "looked at afterwards), they have a mean cosine of {} and the six others {}.".format(*spans(equal)) in RESULTS
    )


def test_the_level_and_the_learning_rate():
    screened = {row["arm"]: row for row in table("screen")}
    at = {
        (model, rate): screened[f"{begin}cross-entropy warm-up 40 % @ {rate}"]
        for model, begin in (("gpt2", ""), ("llama", "llama: "))
        for rate in (0.003, 0.005)
    }
    levels = [row["mean_cosine"] for row in at.values()]
    assert "the GPT2 goes from {:.3f} to {:.3f} and the Llama from {:.3f} to {:.3f}".format(*levels) in RESULTS
    assert at["llama", 0.003]["loss"] < at["llama", 0.005]["loss"]  # "the better of two rates for the Llama"
    assert at["gpt2", 0.003]["loss"] > at["gpt2", 0.005]["loss"]
    rates = {folder.name: read(folder) for folder in sorted((STUDIES / "arch" / "rates").iterdir())}
    before, after = (rates[f"{place}-0.003-seed-1"] for place in ("before", "after"))
    level, loss = (mean("arch", arch.OPT_PRE, column) for column in ("mean_cosine", "held_out_loss"))
    told = f"has {before.snapshots[-1].blocks:.3f} at 0.003 and {level:.3f} at 0.0015 (loss "
    assert f"{told}{before.held_out[-1].loss:.3f} and {loss:.3f})" in RESULTS
    assert f"({after.held_out[-1].loss:.1f} nats, mean cosine {after.snapshots[-1].blocks:.2f})" in RESULTS
    tried = [rates[f"after-{rate}-seed-0"].held_out[-1].loss for rate in ("0.0015", "0.00075", "0.000375")]
    assert "with seed 0 it ends at {:.3f}, {:.3f} and {:.3f} with".format(*tried) in RESULTS


@pytest.mark.parametrize("states", range(3, 18))
def test_the_lowest_that_spearman_can_be(states):
    """With the first state lowest and all others falling; no order with the first lowest is below it."""
    falling = [0, *range(states - 1, 0, -1)]
    assert spearmanr(range(states), falling).statistic == pytest.approx(floor(states))
    if states < 8:
        others = (spearmanr(range(states), [0, *rest]).statistic for rest in permutations(range(1, states)))
        assert min(others) == pytest.approx(floor(states))
