"""The numbers in the prose of README.md and docs/results.md are those of the committed study folders."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from decondense.evaluate.readers import read_logs
from decondense.records import Training, read
from decondense.stats.crossed import crossed_macro
from decondense.stats.verdicts import interval, signed
from decondense.studies.benchmarks import GUESSING
from decondense.studies.contrasts import by_texts

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


def gaps(arm: str, column: str = "held_out_loss") -> list[float]:
    return list(values("dose", arm, column) - values("dose", "λ 0", column))


def test_release():
    found = estimate("release")
    released, kept, opposite = "λ 1, then released", "λ 1 to the end", "λ −1, then released"
    stronger = "λ 3, then released"
    moved, lost = found["mean_cosine_percent"], found["held_out_loss"]
    cost = f"{lost[released]['estimate']:.4f}"
    assert found["gate_met_by"] == [stronger]
    assert (
        f"ends {-moved[released]['estimate']:.1f} % lower, held-out loss +{cost} nats {bounds(lost[released], 4)}"
        in RESULTS
    )
    assert f"{-moved[released]['estimate']:.1f} % below cross-entropy's, and held-out loss {cost} nats above" in RESULTS
    open_by, loss, nats, points = (
        found[key][stronger] for key in ("mean_cosine_percent", "held_out_loss", "log_likelihood", "points")
    )
    wide, worse = f"{-open_by['estimate']:.1f} %", f"{loss['estimate']:.4f}"
    likely = f"{signed(nats['estimate'], 3)} nats per item {bounds(nats, 3)}"
    assert f"3: {wide} lower, +{worse} {bounds(loss, 4)}, log-likelihood of the right answers {likely}" in RESULTS
    assert f"with {wide}, and held-out loss is {worse} nats higher {bounds(loss, 4)}" in RESULTS
    less = {key: -nats[key] for key in ("estimate", "low", "high")}
    assert "lower by {estimate:.4f} nats per item [{high:.4f}, {low:.4f}]".format(**less) in RESULTS
    fewer = f"{-points['estimate']:.2f} points [{-points['high']:.2f}, {-points['low']:.2f}]"
    assert f"average score by {fewer}" in RESULTS
    assert f"the cone {-open_by['estimate']:.0f} % more open and the model {worse} nats worse" in README
    assert f"above it {bounds(lost[released], 4)}; kept to the end" in RESULTS
    assert f"gives {-moved[kept]['estimate']:.1f} % and {lost[kept]['estimate']:.4f}." in RESULTS
    narrower, other = f"{moved[opposite]['estimate']:.1f}", signed(lost[opposite]["estimate"], 4)
    assert f"stays {narrower} % narrower, and the loss is {other} nats {bounds(lost[opposite], 4)}" in RESULTS
    sides = found["released_minus_opposite"]
    assert f"is the worse, by {sides['estimate']:.4f} {bounds(sides, 4)}" in RESULTS
    less = {
        arm: [-found["log_likelihood"][arm][key] for key in ("estimate", "high", "low")] for arm in (kept, released)
    }
    assert "by {:.4f} nats per item [{:.4f}, {:.4f}]".format(*less[kept]) in RESULTS
    value, low, high = less[released]
    assert f"is not resolved ({value:.4f} [{signed(low, 4)}, {signed(high, 4)}])" in RESULTS
    at_release = []
    for arm in (released, stronger):
        run, plain = (runs("release")[one] for one in (arm, PLAIN))
        strongest, last = (
            np.mean([plain[s].snapshots[i].blocks - run[s].snapshots[i].blocks for s in run]) for i in (2, -1)
        )
        at_release.append(100 * strongest / np.mean([one.snapshots[2].blocks for one in plain.values()]))
        assert 1 - last / strongest == pytest.approx(1 / 3, abs=0.015)
    told = "{:.1f} % open with a weight of 1 and {:.1f} % with 3, a third came back with either"
    assert told.format(*at_release) in RESULTS
    ranks = [mean("release", arm, "spearman") for arm in (released, stronger, PLAIN, opposite)]
    told = "Spearman {:.2f} and, with 3, {:.2f}; cross-entropy {:.2f}, condensed and released {:.2f}."
    assert told.format(*ranks) in RESULTS


def test_placebo():
    found = estimate("placebo")
    real, blind, away = "dispersion λ +1", "placebo λ +1", "placebo λ −1"
    alone, more = found["against_no_loss"], found["dispersion_minus_placebo"][real]
    seen = found["seen_percent"][blind]
    assert f"it has {signed(seen['estimate'], 1)} %, 90 % interval {bounds(seen, 1)}" in RESULTS
    costs = f"It costs {alone[blind]['estimate']:.4f} nats {bounds(alone[blind], 4)}, dispersion"
    assert f"{costs} {alone[real]['estimate']:.4f}: {more['estimate']:.4f} more {bounds(more, 4)}" in RESULTS
    assert f"+{alone[real]['estimate']:.4f} {bounds(alone[real], 4)} on five kinds of text; " in RESULTS
    assert f"; {more['estimate']:.4f} {bounds(more, 4)} more than with a push matched in strength" in RESULTS
    likely = found["log_likelihood"][real]
    assert f"minus placebo {signed(likely['estimate'], 4)} nats per item {bounds(likely, 4)}" in RESULTS
    lost = {key: -found["log_likelihood_alone"][blind][key] for key in ("estimate", "high", "low")}
    assert (
        "the placebo loses {estimate:.4f} nats per item [{high:.4f}, {low:.4f}], dispersion".format(**lost) in RESULTS
    )
    assert f"dispersion {-found['log_likelihood_alone'][real]['estimate']:.4f}, and the two are not told" in RESULTS
    norms = found["gradient_norm"]
    assert f"is {norms[blind]:.2f} times that without a loss, dispersion's {norms[real]:.2f}" in RESULTS
    windows = [mean("placebo", arm, "held_out_loss") - mean("placebo", "λ 0", "held_out_loss") for arm in (blind, real)]
    assert "`held_out_loss`, the placebo costs {:.4f} and dispersion {:.4f}.".format(*windows) in RESULTS
    told = "at most {:.1f} up to step 90, is between {:.0f} and {:.0f} from step 110 on"
    early, late = (
        [line.grad_norm for run in runs("placebo")[away].values() for line in run.history if low <= line.step <= high]
        for low, high in ((1, 90), (110, 300))
    )
    assert told.format(max(early), np.floor(min(late)), np.ceil(max(late))) in RESULTS
    lower = 100 * (1 - mean("placebo", away, "mean_cosine") / mean("placebo", "λ 0", "mean_cosine"))
    windows = mean("placebo", away, "held_out_loss") - mean("placebo", "λ 0", "held_out_loss")
    ends = f"ends {alone[away]['estimate']:.2f} nats higher {bounds(alone[away], 2)} (over windows {windows:.2f})"
    assert f"{ends}, the mean cosine {lower:.1f} % lower" in RESULTS
    other = "dispersion λ −1"
    assert f"Condensing itself costs {alone[other]['estimate']:.4f} nats {bounds(alone[other], 4)}" in RESULTS
    lost = {key: -found["log_likelihood_alone"][other][key] for key in ("estimate", "high", "low")}
    assert "and {estimate:.4f} nats per item [{high:.4f}, {low:.4f}] of right answers".format(**lost) in RESULTS
    known = runs("placebo")
    both = by_texts(*([known[arm][seed] for seed in (1, 2, 3)] for arm in (other, real)))
    crossed = crossed_macro(both, paired=True)
    low, high = crossed.interval(0.95)
    told = f"weight {crossed.difference:.4f} nats more {bounds({'low': low, 'high': high}, 4)}: not told apart"
    assert told in RESULTS
    worse = mean("dose", "λ −1", "held_out_loss") - mean("dose", "λ +1", "held_out_loss")
    assert f"condensing had cost {worse:.4f} more" in RESULTS


def test_hyper():
    found = estimate("hyper")
    cells = ["0.01, 1", "0.1, 2", "0.1, 1", "0.1, 0.5", "0.5, 1", "0.1, 0.1", "1, 1"]
    opened = []
    for cell in cells:
        arm = f"λ {cell.replace(', ', ', τ ')}"
        against = found["minus_cross_entropy"][arm]
        opened.append(100 * (mean("hyper", arm, "mean_cosine") / mean("hyper", PLAIN, "mean_cosine") - 1))
        middle, around = signed(against["estimate"], 4), bounds(against, 4)
        own = cell == "0.1, 1"
        name = f"{cell} (the paper's)" if own else cell
        assert f"| {name} | {signed(opened[-1], 1)} % | {middle} {around} |" in RESULTS
        told = f"(0.1, 1), the paper's choice: {middle} nats {around}" if own else f"({cell}) {middle} {around}"
        assert told in RESULTS
    assert opened == sorted(opened, reverse=True)
    assert sum(d["high"] < 0 for d in found["minus_cross_entropy"].values()) == 0
    rivals = [found["cell_minus_centre"][arm] for arm in ("λ 0.1, τ 2", "λ 0.01, τ 1")]
    assert {f"{-rival['estimate']:.4f}" for rival in rivals} == {"0.0004"}
    assert f"each 0.0004 lower, 90 % intervals {bounds(rivals[0], 5)} and {bounds(rivals[1], 5)}" in RESULTS
    assert {d["verdict"] for d in found["points_minus_centre"].values()} == {"undecided"}
    assert f"more than {-min(d['low'] for d in found['minus_cross_entropy'].values()):.4f} nats is excluded" in RESULTS
    ratios = [float(weight) / float(tau) for weight, tau in (cell.split(", ") for cell in cells)]
    falls = [-percent / ratio for percent, ratio in zip(opened, ratios)]
    assert f"falls by {min(falls):.1f} to {max(falls):.1f} % times λ/τ" in RESULTS
    last = mean("hyper", "λ 1, τ 1", "held_out_loss") - mean("hyper", "λ 0.1, τ 0.1", "held_out_loss")
    assert f"the last two, differ by {last:.4f} nats" in RESULTS
    pairs = zip(runs("placebo")["dispersion λ −1"].values(), runs("release")["λ −1, then released"].values())
    again = [abs(one.loss - two.loss) for new, old in pairs for one, two in zip(new.held_out[:3], old.held_out[:3])]
    assert f"differs by at most {max(again):.4f} nats" in RESULTS
    strongest = found["minus_cross_entropy"]["λ 1, τ 1"]["estimate"]
    assert f"cost up to {strongest:.4f} nats" in README
    assert f"the strongest costs {strongest:.3f} nats" in README
    likely = found["log_likelihood_minus_centre"]
    told = f"by {-likely['λ 0.1, τ 0.1']['estimate']:.3f} and {-likely['λ 1, τ 1']['estimate']:.3f} nats per item"
    assert told in RESULTS
    assert {arm for arm, d in likely.items() if d["low"] > 0 or d["high"] < 0} == {"λ 0.1, τ 0.1", "λ 1, τ 1"}
    reach = [(d["high"] - d["low"]) / 2 for d in found["points_minus_centre"].values()]
    assert f"intervals of ±{min(reach):.1f} to ±{max(reach):.1f}. From" in RESULTS
    assert sum(map(len, runs("hyper").values())) == 24


def test_variants():
    def off(arm: str, column: str = "held_out_loss") -> float:
        """Minus cross-entropy of the same seeds."""
        seen = values("variants", arm, column)
        return float((seen - values("variants", PLAIN, column)[: len(seen)]).mean())

    def reach(arm: str, digits: int) -> str:
        seen = values("variants", arm, "held_out_loss") - values("variants", PLAIN, "held_out_loss")
        return bounds(interval(list(seen))._asdict(), digits)

    by_seed = [[len(table) for table in runs("variants").values()].count(n) for n in (1, 2, 3)]
    assert by_seed == [2, 1, 7]
    assert f"variants), {2 + 2 + 3 * 7} of 28 runs" in RESULTS
    losses, last, released = (
        ["dispersion", "decorrelation", "orthogonalization"],
        "decorrelation on last",
        "l2_repel, released",
    )
    points, answers = (estimate("variants")[kind] for kind in ("points", "log_likelihood"))
    moved = {arm: signed(off(arm), 4) for arm in [*losses, "noisy embedding", last]}
    scores = {arm: signed(points[arm]["estimate"], 2) for arm in [*moved, released]}
    ended = "ends at {dispersion} with dispersion, {decorrelation} with decorrelation and {orthogonalization} with"
    assert ended.format(**moved) in RESULTS
    ended = "The benchmarks end at {dispersion}, {decorrelation} and {orthogonalization} points, none of them resolved"
    assert ended.format(**scores) in RESULTS
    assert all(points[arm]["low"] < 0 and points[arm]["high"] > 0.3 for arm in losses)  # "is not excluded"
    assert max(losses, key=lambda arm: points[arm]["estimate"]) == "dispersion"  # "is first of these"
    contrasts = estimate("variants")["contrasts"]
    found, other = contrasts["orthogonalization"], contrasts["decorrelation"]
    lower = f"[{found['low']:.4f}, {found['high']:.4f}] over seeds"
    assert f"orthogonalization ends {found['estimate']:.4f} nats lower, {lower}" in RESULTS
    assert f"below decorrelation, by {-other['estimate']:.4f} nats" in RESULTS
    assert found["low"] > 0 > other["high"]
    assert [contrasts[arm]["verdict"] for arm in contrasts].count("not reproduced") == 1  # "that alone"
    assert all(abs(off(arm)) < 0.002 for arm in losses)
    table = runs("variants")
    by_documents = []
    for arm in ("orthogonalization", PLAIN):
        both = by_texts(*([table[name][seed] for seed in (1, 2, 3)] for name in (arm, "dispersion")))
        crossed = crossed_macro(both, paired=True)
        low, high = crossed.interval()
        assert low > -0.002  # "excluded both ways"
        by_documents += [signed(crossed.difference, 4), bounds({"low": low, "high": high}, 4)]
    assert "minus orthogonalization is {} {}, and minus cross-entropy {} {}.".format(*by_documents) in RESULTS
    four = [*losses, "noisy embedding"]
    row = "held-out loss {} nats {}, {} {}, {} {} and {} {}; ten benchmarks {}, {}, {} and {} points, each interval"
    told = [word for arm in four for word in (moved[arm], reach(arm, 4))] + [scores[arm] for arm in four]
    assert row.format(*told) in RESULTS
    assert all(points[arm]["high"] - points[arm]["low"] > 0.8 for arm in four)
    assert {points[arm]["level"] for arm in scores} == {1 - 0.05 / 8}
    share = answers[last]
    assert (
        f"held-out loss {moved[last]} nats {reach(last, 4)}, log-likelihood of the right answers "
        f"{signed(share['estimate'], 3)} nats per item, 99.4 % interval {bounds(share, 3)}; ten benchmarks "
        f"{scores[last]} points; three" in RESULTS
    )
    assert f"{moved[last]} nats, and the right answers lose {-share['estimate']:.3f} nats" in RESULTS
    narrower = [mean("variants", arm, "mean_cosine") for arm in (PLAIN, released)]
    rise = 100 * (narrower[1] / narrower[0] - 1)
    assert (
        f"released code: held-out loss {signed(off(released), 3)} nats {reach(released, 3)}, ten benchmarks "
        f"{scores[released]} points, 99.4 % interval {bounds(points[released], 2)}, and the cone gets narrower, mean "
        f"cosine +{rise:.0f} %" in RESULTS
    )
    assert f"costs {off(released):.3f} nats and {-points[released]['estimate']:.2f} points" in RESULTS
    assert "ends at {1:.3f} where cross-entropy's is {0:.3f}".format(*narrower) in RESULTS
    steps = runs("variants")[released][1].history
    fallen = f"falls from {steps[0].penalty:.0f} to {steps[-1].penalty:.1f} in the first seed; the repulsion in it"
    assert f"{fallen} stays between −{np.log(256):.1f} and 0" in RESULTS  # of 256 tokens: 1/n ≤ its mean ≤ 1
    assert f"it costs {off(released):.2f} nats and narrows the cone" in README
    assert (
        f"held-out loss rises by {off(released):.2f} nats, or without its diagonal by {off('l2_repel'):.0f}." in README
    )
    cosines = [-100 * off(arm, "mean_cosine") / mean("variants", PLAIN, "mean_cosine") for arm in losses]
    assert "falls by {:.1f}, {:.1f} and {:.1f} %.".format(*cosines) in RESULTS
    far = [off("l2_repel"), off("active forgetting")]
    assert "held-out loss +{:.1f} nats (two seeds) and +{:.1f} (one)".format(*far) in RESULTS
    gained = values("variants", "original", "held_out_loss") - values("variants", PLAIN, "held_out_loss")
    assert f"lowers held-out loss by {gained.mean():.3f} nats" in RESULTS
    told = json.loads((STUDIES / "variants" / "result.json").read_text(encoding="utf-8"))["sentence"]
    before, after = re.search(r"points: original ([\d.]+), cross-entropy ([\d.]+);", told).groups()
    assert f"raises the ten benchmarks from {before} to {after} points." in RESULTS
    history = table["l2_repel"][1].history
    grown = f"from −{-history[0].penalty:,.0f} to −{-history[-1].penalty:,.0f} in the first seed"
    assert grown in RESULTS
    assert [round(h.task_loss) for run in table["l2_repel"].values() for h in run.history if h.step == 50] == [9, 9]
    assert f"({mean('variants', 'active forgetting', 'held_out_loss'):.1f} nats, one seed)" in RESULTS


def test_dose():
    found = estimate("dose")
    against = found["against_zero"]
    small = against["λ +0.1"]
    assert f"the same weight gives {signed(small['estimate'], 4)} {bounds(small, 4)} nats" in RESULTS
    most = max(-interval(gaps(arm), 1 - 0.05 / 3).low for arm in ("λ +0.1", "λ +0.3", "λ +1"))
    assert found["gain_at_most"] == pytest.approx(most, rel=1e-3)
    assert f"it is at most {most:.4f} nats (at 0.3; at 0.1, had no other been tried, {-small['low']:.4f})" in RESULTS
    assert f"over three weights, it is at most {most:.4f} nats" in README
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
