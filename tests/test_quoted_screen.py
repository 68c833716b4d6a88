"""The numbers of `screen` in the prose of README.md, docs/pretraining.md and the pages behind it."""

from __future__ import annotations

from scipy import stats
from test_quoted_results import PLAIN, README, RESULTS, runs, table

from decondense.stats.verdicts import signed

SHORT_WARM_UP = {
    "decorrelation last 0.3": "decorrelation, last state, 0.3",
    "uniformity last 0.1": "uniformity, last state, 0.1",
    "orthogonalization last 1": "orthogonalization, last state, 1",
    "dispersion last 0.1": "dispersion, last state, 0.1",
    "z-loss 1e-3": "z-loss, 0.001",
    "label smoothing 0.1": "label smoothing, 0.1",
    "dispersion all 0.1": "dispersion, all layers, 0.1 (the paper's)",
    "vicreg last 1": "vicreg, last state, 1",
}


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
    assert f"the long warm-up gives {gains[1]:.3f} nats from the better of two rates" in RESULTS
    assert f"Cross-entropy alone gains {gains[0]:.3f} nats in a GPT2 and {gains[1]:.3f} in a Llama when" in RESULTS
    assert f"| both, in a Llama, 40M tokens: −{gains[1]:.3f} (one seed) |" in README
    assert f"0.003 is the better of the two rates, by {llama[2] - llama[1]:.3f}" in RESULTS
    at = {arm: signed(row["minus_same_schedule"], 3) for arm, row in rows.items()}
    ends = [at[f"llama: uniformity last 0.1{end} @ 0.003"][1:] for end in ("", " warm-up 40 %")]
    against = signed(rows["llama: uniformity last 0.1 @ 0.003"]["loss"] - llama[0], 3)
    told = (
        f"uniformity at 5 % gains {ends[0]} where both have a rate of 0.003; against cross-entropy at its better rate,"
    )
    assert f"{told} 0.002, the difference is {against}. At 40 % uniformity gains {ends[1]}." in RESULTS
    fast = {arm[: -len(" @ 0.002")]: value for arm, value in at.items() if arm.endswith(" @ 0.002") and "%" not in arm}
    assert max(fast, key=lambda arm: fast[arm] if "last" in arm else "") == "decorrelation last 0.3"
    assert f"losses on the last state gain up to {fast['decorrelation last 0.3'][1:]}; the long one" in README
    assert gains[0] > float(fast["decorrelation last 0.3"][1:])  # "give more, without any loss"
    for arm, words in SHORT_WARM_UP.items():
        assert f"| {words} | 5 % | 0.002 | {fast[arm]} |" in RESULTS
    for ends, bold in (("20 % @ 0.003", ""), ("40 % @ 0.005", "**")):
        gap, (share, rate) = signed(rows[f"{PLAIN} warm-up {ends}"]["loss"] - plain, 3), ends.split(" @ ")
        assert f"| **cross-entropy alone** | {share} | {rate} | {bold}{gap}{bold} |" in RESULTS
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
