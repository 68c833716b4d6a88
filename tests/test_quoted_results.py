"""The numbers in the prose of README.md and docs/results.md are those of the committed study folders."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from decondense.evaluate.readers import read_logs
from decondense.records import Training, read
from decondense.stats.verdicts import interval, signed
from decondense.studies.benchmarks import GUESSING
from decondense.studies.runs import by_document

ROOT = Path(__file__).resolve().parent.parent
STUDIES = ROOT / "results" / "studies"
PLAIN, TREATED = "cross-entropy", "dispersion"
NARROW, WIDE = "MLP width 64", "MLP width 4096"


def words_of(name: str) -> str:
    return " ".join((ROOT / name).read_text(encoding="utf-8").split())


RESULTS, README = words_of("docs/results.md"), words_of("README.md")


def estimate(study: str) -> dict:
    return json.loads((STUDIES / study / "result.json").read_text(encoding="utf-8"))["estimate"]


def table(study: str) -> list[dict]:
    found = json.loads((STUDIES / study / "result.json").read_text(encoding="utf-8"))["table"]
    return [dict(zip(found["columns"], row)) for row in found["rows"]]


def runs(study: str) -> dict[str, dict[int, Training]]:
    """arm → seed → run."""
    table: dict[str, dict[int, Training]] = {}
    for folder in sorted((STUDIES / study / "runs").iterdir()):
        run = read(folder)
        table.setdefault(run.arm, {})[run.recipe["train"]["seed"]] = run
    return table


def values(study: str, arm: str, column: str) -> np.ndarray:
    rows = sorted((row for row in table(study) if row["arm"] == arm), key=lambda row: row["seed"])
    return np.array([row[column] for row in rows], dtype=float)


def mean(study: str, arm: str, column: str) -> float:
    return float(values(study, arm, column).mean())


def bounds(decision: dict, digits: int, scale: float = 1.0) -> str:
    return f"[{signed(scale * decision['low'], digits)}, {signed(scale * decision['high'], digits)}]"


def over_seeds(differences, digits: int, scale: float = 1.0) -> tuple[str, str]:
    """Mean and 95 % interval, as they are written."""
    middle, low, high = interval(list(differences))
    return signed(scale * middle, digits), bounds({"low": low, "high": high}, digits, scale)


def test_benchmarks():
    macro = estimate("benchmarks")["macro"]
    moved, where = signed(100 * macro["difference"], 2), bounds(macro, 2, 100)
    assert f"{moved} points, 95 % interval {where}" in RESULTS
    assert f"move by {moved} points {where} on average" in README
    assert f"A gain of {100 * macro['smallest_effect']:.2f} would have been found four times out of five" in RESULTS
    assert f"all {macro['items']:,} items" in RESULTS
    by_signal = macro["weighted"]
    assert f"the average moves by {signed(100 * by_signal['difference'], 2)} {bounds(by_signal, 2, 100)}" in RESULTS
    rows = {row["task"]: row for row in table("benchmarks") if not row["task"].startswith("average")}
    assert not any(row["p_holm"] < 0.05 for row in rows.values())
    guessing = {task: chance for task, chance in GUESSING.items() if task != "truthfulqa_mc2"}
    assert sum(rows[task]["base"] < chance + 0.025 for task, chance in guessing.items()) == 6  # "six of the ten tasks"


def test_what_guessing_scores_is_that_of_the_items():
    (log,) = read_logs(ROOT / "results" / "smollm2-135m-benchmarks")
    assert {task: scores.chance for task, scores in log.tasks.items()} == pytest.approx(GUESSING, abs=1e-6)


def test_the_same_runs_in_geometry_and_loss():
    found = estimate("counteract")
    plain, treated = (mean("counteract", arm, "mean_cosine") for arm in (PLAIN, TREATED))
    assert f"{treated:.3f} against {plain:.3f}" in RESULTS
    assert f"ends at {treated:.3f} with the loss and {plain:.3f} without" in README
    assert f"it is {found['share_removed_percent']:.1f} % of what is there" in RESULTS
    assert f"the geometry moved by {found['share_removed_percent']:.1f} % only" in RESULTS
    assert f"lowers it too, by {-found['cross_entropy_alone']['estimate']:.3f}" in RESULTS
    before, ends = (
        mean("counteract", PLAIN, "spearman_start"),
        [mean("counteract", a, "spearman") for a in (PLAIN, TREATED)],
    )
    assert f"from {before:+.3f} to {ends[0]:+.3f} and {ends[1]:+.3f}" in RESULTS
    assert f"({signed(found['spearman']['estimate'], 3)} {bounds(found['spearman'], 3)})" in RESULTS
    loss = found["held_out_loss"]
    assert f"by {loss['estimate']:.5f} nats {bounds(loss, 5)}" in RESULTS
    scores = estimate("benchmarks")["runs"]
    seeds = ("1", "2", "3")
    ppl = [
        scores[TREATED][s]["lambada_openai perplexity"] - scores[PLAIN][s]["lambada_openai perplexity"] for s in seeds
    ]
    corrected = estimate("benchmarks")["perplexity"]["lambada_openai perplexity"]
    assert corrected["low"] == pytest.approx(interval(ppl, 1 - 0.05 / 10).low, rel=1e-4)
    assert f"by {corrected['estimate']:.2f} of 38.0" in RESULTS
    assert f"that is not resolved ({bounds(corrected, 2)})" in RESULTS
    nats = estimate("benchmarks")["likelihood"]
    assert f"changes by {signed(nats['difference'], 4)} nats per item {bounds(nats, 4)}" in RESULTS
    assert f"{nats['smallest_effect']:.4f} would have been found four times out of five" in RESULTS
    assert all(scores[TREATED][s]["held_out_loss"] > scores[PLAIN][s]["held_out_loss"] for s in seeds)
    kept = runs("benchmarks")
    for seed in (1, 2, 3):  # "after every block and in every seed"
        ends = [np.array(kept[arm][seed].snapshots[-1].mean_cosine[1:]) for arm in (TREATED, PLAIN)]
        assert (ends[0] < ends[1]).all()


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
    assert f"held-out loss −{gains[0]:.3f} nats for a GPT2, −{gains[1]:.3f} for a Llama; one seed each" in RESULTS
    assert f"a rate of 0.005 it is {gains[0]:.3f} nats below where it was" in RESULTS
    assert f"its best at 40 % it gains {gains[1]:.3f} nats" in RESULTS
    assert f"without a loss it is lower by {gains[0]:.3f}" in README
    assert f"0.003 is the better of the two rates, by {llama[2] - llama[1]:.3f}" in RESULTS
    at = {arm: signed(row["minus_same_schedule"], 3) for arm, row in rows.items()}
    ends = [at[f"llama: uniformity last 0.1{end} @ 0.003"][1:] for end in ("", " warm-up 40 %")]
    assert "uniformity gains {} at 5 % and 0.003, and {} at 40 %".format(*ends) in RESULTS
    fast = {arm[: -len(" @ 0.002")]: value for arm, value in at.items() if arm.endswith(" @ 0.002") and "%" not in arm}
    assert max(fast, key=lambda arm: fast[arm] if "last" in arm else "") == "decorrelation last 0.3"
    assert f"decorrelation (weight 0.3) by {fast['decorrelation last 0.3'][1:]} nats" in RESULTS
    assert f"lower held-out loss by up to {fast['decorrelation last 0.3'][1:]} nats" in README
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
    assert f"{fast['decorrelation last 0.3']} and {fast['uniformity last 0.1']} nats at the same rate" in RESULTS
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
    both = [[(row["loss"], row["mean_cosine"]) for arm, row in gpt2.items() if of in arm] for of in ("", PLAIN)]
    ranks = [signed(stats.spearmanr(*zip(*pairs)).statistic, 2) for pairs in both]
    assert f"(Spearman {ranks[0]}; {ranks[1]} among the ten of cross-entropy alone)" in RESULTS
    assert [len(pairs) for pairs in both] == [46, 10]
    found = runs("screen")
    assert f"{len(found)} of 54 runs" in RESULTS
    places = [
        found[arm][1].held_out_by["position"]
        for arm in (f"{PLAIN} @ 0.003", "decorrelation last 1 @ 0.003", f"{PLAIN} warm-up 40 % @ 0.003")
    ]
    ends = [(f"{place[0]['loss']:.2f}", f"{place[-1]['loss']:.2f}") for place in places]
    assert "has {} nats in the first 64 tokens of a block and {} in the last 64".format(*ends[0]) in RESULTS
    assert "with decorrelation {} and {}, with a warm-up of 40 % {} and {}".format(*ends[1], *ends[2]) in RESULTS


def test_pretrain():
    rows = {(row["loss"], row["model"], row["tokens"]): row for row in table("pretrain")}

    def told(loss: str, model: str, tokens: float, of: str = "", digits: int = 3) -> str:
        row = rows[loss, model, tokens]
        low, high = (signed(row[f"{of}{end}"], digits) for end in ("low", "high"))
        return f"{signed(row[f'{of}difference'], digits)} [{low}, {high}]"

    uniform = [told("uniformity last 0.1", *cell) for cell in (("gpt2", 4e7), ("gpt2", 8e7), ("llama", 4e7))]
    dispersed = [told("dispersion all 0.1", *cell) for cell in (("llama", 4e7), ("gpt2", 4e7))]
    decorrelated = told("decorrelation last 0.3", "gpt2", 4e7)

    def first(words: str) -> str:
        return words.replace(" [", " nats [")

    assert f"GPT2: {first(uniform[0])} at 40M tokens, {uniform[1]} at 80M; Llama, 40M: {uniform[2]};" in RESULTS
    assert f"Llama, 40M: {first(dispersed[0])}; GPT2, 40M: {dispersed[1]}; three seeds each" in RESULTS
    assert f"GPT2, 40M: {first(decorrelated)}, three seeds" in RESULTS
    assert f"Uniformity of the last state: {first(uniform[0])} in a GPT2" in RESULTS
    assert f"{uniform[1]} with 80M (three), {uniform[2]} in a Llama with 40M" in RESULTS
    assert (
        f"all layers: {dispersed[0]} in the Llama, {dispersed[1]} in the GPT2. Decorrelation {decorrelated}." in RESULTS
    )
    assert f"{uniform[1]} in a GPT2 with 80M tokens, {uniform[2]} in a Llama with 40M" in README
    assert f"gains {dispersed[0][1:6]} in that Llama and costs {dispersed[1][1:6]} in a GPT2" in README
    longest = rows["uniformity last 0.1", "gpt2", 8e7]
    assert f"At 80M that is {100 * longest['tokens_saved']:.0f} % of the tokens" in RESULTS
    assert len(rows) == 7
    assert f"the smallest p is {min(row['p_holm'] for row in rows.values()):.3f}" in RESULTS
    small = [told("uniformity last 0.1", *cell, "int4_", 4) for cell in (("gpt2", 8e7), ("llama", 4e7))]
    small.append(told("dispersion all 0.1", "llama", 4e7, "int4_", 4))
    costs = [rows["uniformity last 0.1", *cell]["int4_cross_entropy"] for cell in (("gpt2", 8e7), ("llama", 4e7))]
    assert f"GPT2, 80M: uniformity {first(small[0])} of {costs[0]:.4f};" in RESULTS
    assert f"Llama, 40M: uniformity {small[1]}, dispersion {small[2]} of {costs[1]:.4f}" in RESULTS
    assert f"to int4 {costs[0]:.4f} in the GPT2 with 80M tokens and {costs[1]:.4f} in the Llama" in RESULTS
    assert f"the differences are {small[0]} and {small[1]} with uniformity, and {small[2]} with" in RESULTS
    assert max(row["int8_cross_entropy"] or 0 for row in rows.values()) < 0.00015  # "0.0001 nats or less"

    kept = runs("pretrain")
    assert f"{sum(map(len, kept.values()))} of 80 runs" in RESULTS
    losses = [by_document(run) for run in kept[f"{PLAIN} · gpt2 · 40M"].values()]
    assert f"the five of cross-entropy at 40M lie between {min(losses):.3f} and {max(losses):.3f}" in RESULTS
    plain, uniformity, dispersion = (
        kept[f"{arm} · gpt2 · 80M"] for arm in (PLAIN, "uniformity last 0.1", "dispersion all 0.1")
    )
    last = [np.mean([run.snapshots[-1].mean_cosine[-1] for run in arm.values()]) for arm in (plain, uniformity)]
    assert "mean cosine of the last state from {:.3f} to {:.3f} in the GPT2".format(*last) in RESULTS
    blocks = [np.mean([run.snapshots[-1].blocks for run in arm.values()]) for arm in (plain, dispersion)]
    assert "that of all blocks from {:.3f} to {:.3f};".format(*blocks) in RESULTS

    def at(run: Training, step: int) -> float:
        """Training loss over the 50 steps that end here."""
        return float(
            np.mean([h.loss if h.task_loss is None else h.task_loss for h in run.history if step - 50 < h.step <= step])
        )

    way = [
        signed(np.mean([at(uniformity[s], step) - at(plain[s], step) for s in plain]), 3) for step in (800, 1600, 2440)
    ]
    assert "{} nats after 26M tokens, {} after 52M, {} at the end".format(*way) in RESULTS

    def apart(kind: str) -> np.ndarray:
        """(seeds, groups) of uniformity minus cross-entropy."""
        pairs = [(uniformity[s].held_out_by[kind], plain[s].held_out_by[kind]) for s in plain]
        return np.array([[a["loss"] - b["loss"] for a, b in zip(*pair)] for pair in pairs])

    tenths = apart("frequency").mean(0)
    places = [signed(tenths[i], 3) for i in (5, 0, 9)]
    assert "({} in the sixth tenth of the text, {} in the most frequent, {} in the rarest)".format(*places) in RESULTS
    assert np.ptp(apart("position").mean(0)) < 0.005  # "at all positions alike"


def gaps(arm: str, column: str = "held_out_loss") -> list[float]:
    return list(values("dose", arm, column) - values("dose", "λ 0", column))


def test_dose():
    found = estimate("dose")
    against = found["against_zero"]
    small = against["λ +0.1"]
    assert f"the same weight gives {signed(small['estimate'], 4)} {bounds(small, 4)} nats" in RESULTS
    most = max(-interval(gaps(arm), 1 - 0.05 / 3).low for arm in ("λ +0.1", "λ +0.3", "λ +1"))
    assert found["gain_at_most"] == pytest.approx(most, rel=1e-3)
    assert f"it is at most {most:.4f} nats (at 0.3; at 0.1, had no other been tried, {-small['low']:.4f})" in RESULTS
    assert f"over the three weights tried it is at most {most:.4f} nats" in README
    assert min(against, key=lambda arm: against[arm]["estimate"]) == "λ +0.1"
    assert f"At −0.3 held-out loss is {against['λ −0.3']['estimate']:.4f} nats higher than at 0" in RESULTS
    assert f"at +0.3 the difference is not resolved ({bounds(against['λ +0.3'], 4)})" in RESULTS
    ends = [against[arm]["estimate"] for arm in ("λ −1", "λ +1")]
    assert f"at −1 it is {ends[0]:.3f} higher, at +1 {ends[1]:.3f}" in RESULTS
    cosines = [mean("dose", arm, "mean_cosine") for arm in ("λ −1", "λ 0", "λ +1")]
    assert f"Mean cosine goes from {cosines[0]:.2f} to {cosines[2]:.2f}" in RESULTS
    assert cosines[1] - cosines[2] > cosines[0] - cosines[1]  # "although the latter moves the mean cosine further"
    alone = cosines[1] - mean("dose", "λ 0", "mean_cosine_start")
    moved = cosines[1] - mean("dose", "λ +0.1", "mean_cosine")
    assert f"it raises it by {alone:.3f}, and the loss at the same weight lowers it by {moved:.3f}" in RESULTS
    trends = [signed(mean("dose", arm, "spearman"), 2) for arm in ("λ 0", "λ +0.3", "λ +1")]
    assert f"Spearman rises from {trends[0]} at 0 to {trends[1]} at 0.3 and {trends[2]} at 1" in RESULTS


def slopes(column: str, doses: dict[str, float]) -> np.ndarray:
    x = np.array(list(doses.values()))
    return x @ np.array([values("dose", arm, column) for arm in doses]) / (x @ x)


def test_slopes_of_dose():
    doses = {"λ −1": -1.0, "λ −0.3": -0.3, "λ −0.1": -0.1, "λ 0": 0.0, "λ +0.1": 0.1, "λ +0.3": 0.3, "λ +1": 1.0}
    slope, where = over_seeds(slopes("held_out_loss", doses), 4)
    assert f"{slope} nats per unit of λ {where}" in RESULTS
    assert slope == signed(estimate("dose")["slope"]["estimate"], 4)
    inner, where = over_seeds(slopes("held_out_loss", {a: d for a, d in doses.items() if abs(d) < 1}), 4)
    assert f"without ±1 it is {inner} {where}" in RESULTS
    accuracy, where = over_seeds(slopes("lambada_openai", doses), 2, 100)
    assert f"changes by {accuracy} points per unit of λ {where}" in RESULTS
    assert mean("dose", "λ +1", "lambada_openai") < mean("dose", "λ −1", "lambada_openai")
    perplexity = "lambada_openai perplexity"
    lower = values("dose", "λ +0.1", perplexity) - values("dose", "λ 0", perplexity)
    assert (lower < 0).all()
    corrected = estimate("dose")["perplexity"][perplexity]["λ +0.1"]
    assert corrected["low"] == pytest.approx(interval(list(lower), 1 - 0.05 / 6).low, rel=1e-4)
    assert f"by {-lower.mean():.2f} of {mean('dose', 'λ 0', perplexity):.1f}" in RESULTS
    assert f"at the level divided by six weights {bounds(corrected, 2)}" in RESULTS


def test_trend_and_level():
    trends = [signed(mean("width", arm, "spearman"), 2) for arm in (NARROW, WIDE)]
    assert f"Spearman {trends[0]} with an MLP of width 64 and {trends[1]} with 4096" in RESULTS
    between = [signed(v, 2) for v in values("width", "MLP width 256", "spearman")]
    assert f"the three seeds give {between[0]}, {between[1]} and {between[2]}" in RESULTS
    levels = [mean("width", arm, "mean_cosine") for arm in (NARROW, WIDE)]
    assert f"the narrowest models have {levels[0]:.3f} and the widest {levels[1]:.3f}" in RESULTS
    assert f"the level falls from {mean('width', NARROW, 'mean_cosine_start'):.2f} to {levels[0]:.2f}" in RESULTS
    stays, where = over_seeds(values("width", NARROW, "spearman") - values("width", NARROW, "spearman_start"), 2)
    assert f"the trend stays ({stays} {where})" in RESULTS
    found = estimate("init")
    starts = [row["spearman_start"] for row in table("width")]
    assert starts == [1.0] * 12
    assert f"{signed(found['start']['estimate'], 2)} at initialisation, in 12 of 12 of them over four widths" in RESULTS
    assert f"{-found['change']['estimate']:.2f} lower at the end of training" in RESULTS
    assert (
        f"training *raises* it by {found['mean_cosine']['estimate']:.3f} {bounds(found['mean_cosine'], 3)}" in RESULTS
    )
    assert f"training lowers it by {-found['last']['estimate']:.3f}" in RESULTS
    assert estimate("width")["mean_cosine"]["high"] < 0


def test_width_at_equal_loss():
    """Spearman of the widest, where its held-out loss is the final one of the narrowest; the same seeds."""
    kept = runs("width")
    ends = [np.mean([r.snapshots[-1].last for r in kept[arm].values()]) for arm in (NARROW, WIDE)]
    assert f"end alike ({ends[0]:.3f} and {ends[1]:.3f})" in RESULTS
    losses = [mean("width", arm, "held_out_loss") for arm in (NARROW, WIDE)]
    assert f"held-out {losses[0]:.2f} against {losses[1]:.2f}" in RESULTS
    matched, differences = [], []
    for seed, wide in kept[WIDE].items():
        narrow = kept[NARROW][seed]
        assert [at.step for at in wide.held_out] == [shot.step for shot in wide.snapshots]
        passed = [at.loss for at in wide.held_out][::-1], [shot.spearman for shot in wide.snapshots][::-1]
        matched.append(np.interp(narrow.held_out[-1].loss, *passed))
        differences.append(narrow.snapshots[-1].spearman - matched[-1])
    assert (
        f"their Spearman is {signed(float(np.mean(matched)), 2)} and not {signed(mean('width', WIDE, 'spearman'), 2)}"
        in RESULTS
    )
    middle, where = over_seeds(differences, 2)
    full = signed(estimate("width")["difference"]["estimate"], 2)
    assert f"the difference is {middle} {where} instead of {full}" in RESULTS


def test_estimators_and_distillation():
    found = estimate("estimators")
    first, geometry = found["held_out_loss"]["first order"], found["mean_cosine"]
    assert f"differs by {signed(first['estimate'], 4)} nats, 90 % interval {bounds(first, 4)}" in RESULTS
    assert first["verdict"] == "reproduced"
    assert f"lowers the mean cosine by {geometry[PLAIN]['mean']:.4f}" in RESULTS
    kept = found["kept_percent"]["first order"]
    where = f"[{kept['low']:.1f}, {kept['high']:.1f}]"
    assert f"first order by {kept['estimate']:.1f} % of that, 90 % interval {where}" in RESULTS
    assert f"by {kept['estimate']:.1f} % {where} of it" in README
    gaps = values("estimators", PLAIN, "held_out_loss") - values("estimators", "exact", "held_out_loss")
    _, low, high = interval(list(gaps), 0.9)
    assert -found["margin"] < low < high < found["margin"]  # "cross-entropy without any loss lies inside it as well"
    alone, taught = (mean("distill", arm, "mean_cosine") for arm in ("student alone", "student with a teacher"))
    assert f"({taught:.3f} against {alone:.3f})" in RESULTS


@pytest.mark.parametrize("name", ["dose", "width", "init", "counteract"])
def test_three_seeds_where_three_are_said(name):
    seeds = {row["seed"] if "seed" in row else row["run"] for row in table(name)}
    assert len(seeds) == 3
