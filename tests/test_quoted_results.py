"""Numbers in the prose of README.md, docs/results.md and the pages behind it are those of the committed studies."""

from __future__ import annotations

import functools
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


PAGES = (
    *("results", "pretraining", "pretraining-details", "pretraining-afterwards", "quantising"),
    *("midtraining", "condensing", "runs"),
)
RESULTS, README = " ".join(words_of(f"docs/{page}.md") for page in PAGES), words_of("README.md")


def estimate(study: str) -> dict:
    return json.loads((STUDIES / study / "result.json").read_text(encoding="utf-8"))["estimate"]


def table(study: str) -> list[dict]:
    found = json.loads((STUDIES / study / "result.json").read_text(encoding="utf-8"))["table"]
    return [dict(zip(found["columns"], row)) for row in found["rows"]]


@functools.cache
def runs(study: str) -> dict[str, dict[int, Training]]:
    """arm → seed → run."""
    table: dict[str, dict[int, Training]] = {}
    for folder in sorted((STUDIES / study / "runs").iterdir()):
        run = read(folder)
        if isinstance(run, Training):
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
    above = {task: rows[task]["base"] - chance for task, chance in GUESSING.items()}
    assert "Seven of the ten tasks are within 2.5 points of guessing" in RESULTS
    assert sum(gap < 0.025 for gap in above.values()) == 7
    assert "which gives three of those no weight and the other four little" in RESULTS
    near = [by_signal["weights"][task] for task, gap in above.items() if gap < 0.025]
    assert sum(weight == 0 for weight in near) == 3
    assert sum(near) < 0.05


def test_what_guessing_scores_is_that_of_the_items():
    (log,) = read_logs(ROOT / "results" / "smollm2-135m-benchmarks")
    assert {task: scores.chance for task, scores in log.tasks.items()} == pytest.approx(GUESSING, abs=1e-6)


def test_the_same_runs_in_geometry_and_loss():
    found = estimate("counteract")
    plain, treated = (mean("counteract", arm, "mean_cosine") for arm in (PLAIN, TREATED))
    assert f"{treated:.3f} against {plain:.3f}" in RESULTS
    assert f"ends at {treated:.3f} with the loss and {plain:.3f} without" in README
    before = mean("counteract", PLAIN, "mean_cosine_start")
    assert f"In the model below two of them have a mean cosine of {before:.2f};" in README
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
    macro = estimate("benchmarks")["macro"]
    effect = f"{signed(loss['estimate'], 5)} {bounds(loss, 5)}"
    assert f"| dispersion: {effect}; after" in README
    points = f"ten benchmarks {signed(100 * macro['difference'], 2)} points {bounds(macro, 2, 100)}"
    assert f"| {effect}; {points} |" in RESULTS
    scores = estimate("benchmarks")["runs"]
    seeds = ("1", "2", "3")
    ppl = [
        scores[TREATED][s]["lambada_openai perplexity"] - scores[PLAIN][s]["lambada_openai perplexity"] for s in seeds
    ]
    corrected = estimate("benchmarks")["perplexity"]["lambada_openai perplexity"]
    assert corrected["low"] == pytest.approx(interval(ppl, 1 - 0.05 / 10).low, rel=1e-4)
    assert f"by {corrected['estimate']:.2f} of 38.0" in RESULTS
    assert f"this is not resolved ({bounds(corrected, 2)})" in RESULTS
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
    ends = [*sorted(moved[arm] for arm in four[1:])[::2], *sorted(scores[arm] for arm in four)[::3]]
    assert "| {1} to {0}; ten benchmarks {2} to {3} points, none resolved |".format(*ends) in RESULTS
    assert all(points[arm]["high"] - points[arm]["low"] > 0.8 for arm in four)
    assert {points[arm]["level"] for arm in scores} == {1 - 0.05 / 8}
    share = answers[last]
    assert f"| {moved[last]} {reach(last, 4)} |" in RESULTS
    lost = "lose {:.3f} nats of log-likelihood, 99.4 % interval [{:.3f}, {:.3f}]."
    told = lost.format(*(-share[key] for key in ("estimate", "high", "low")))
    assert f"{moved[last]} nats, and the right answers {told}" in RESULTS
    narrower = [mean("variants", arm, "mean_cosine") for arm in (PLAIN, released)]
    row = f"| {signed(off(released), 3)} {reach(released, 3)}; ten benchmarks {scores[released]} points, 99.4 % "
    assert f"{row}{bounds(points[released], 2)} |" in RESULTS
    assert f"costs {off(released):.3f} nats and {-points[released]['estimate']:.2f} points" in RESULTS
    assert "ends at {1:.3f} where cross-entropy's is {0:.3f}".format(*narrower) in RESULTS
    steps = runs("variants")[released][1].history
    fallen = f"falls from {steps[0].penalty:.0f} to {steps[-1].penalty:.1f} in the first seed; the repulsion in it"
    assert f"{fallen} stays between −{np.log(256):.1f} and 0" in RESULTS  # of 256 tokens: 1/n ≤ its mean ≤ 1
    differences = words_of("docs/differences.md")
    told = "a held-out loss {:.2f} nats above cross-entropy's and a mean cosine of {:.2f} instead of {:.2f}"
    assert told.format(off(released), *reversed(narrower)) in differences
    assert f"destroyed (held-out loss +{off('l2_repel'):.0f} nats after 20M tokens)" in differences
    cosines = [-100 * off(arm, "mean_cosine") / mean("variants", PLAIN, "mean_cosine") for arm in losses]
    assert "falls by {:.1f}, {:.1f} and {:.1f} %.".format(*cosines) in RESULTS
    far = [off("l2_repel"), off("active forgetting")]
    assert "| +{:.1f} (two seeds) and +{:.1f} (one) |".format(*far) in RESULTS
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


def test_variants_of_gemma():
    losses = {
        arm: values("variants-gemma", arm, "held_out_loss") for arm in ("original", PLAIN, TREATED, "decorrelation")
    }
    assert f"{sum(map(len, losses.values()))} of its 28 runs" in RESULTS
    before, plain = losses["original"][0], losses[PLAIN]
    assert f"from {before:.3f} to {plain.mean():.3f} nats" in RESULTS
    treated = interval(list(losses[TREATED] - plain))
    told = f"{signed(treated.mean, 4)} {bounds(treated._asdict(), 4)}"
    assert f"minus cross-entropy it is {told}:" in RESULTS
    assert f"| {told}; decorrelation" in RESULTS
    assert -0.002 < treated.low < treated.high < 0.002  # "excluded both ways"
    others = [signed(x, 4) for x in losses["decorrelation"] - plain[:2]]
    assert "its two seeds end {} and {} from cross-entropy's".format(*others) in RESULTS
    assert "decorrelation {} and {} in two seeds |".format(*others) in RESULTS
    table = runs("variants-gemma")
    for arm, seeds in ((TREATED, (1, 2, 3)), ("decorrelation", (1, 2))):
        both = by_texts(*([table[name][seed] for seed in seeds] for name in (PLAIN, arm)))
        crossed = crossed_macro(both, paired=True)
        found = f"{signed(crossed.difference, 4)} {bounds(dict(zip(('low', 'high'), crossed.interval())), 4)}"
        assert found in RESULTS
    assert not any(run.snapshots for arm in table.values() for run in arm.values())  # "thrown away"
    assert not list((STUDIES / "variants-gemma").rglob("outcomes.json"))


def test_dose():
    found = estimate("dose")
    against = found["against_zero"]
    small = against["λ +0.1"]
    assert f"the same weight gives {signed(small['estimate'], 4)} {bounds(small, 4)} nats" in RESULTS
    most = max(-interval(gaps(arm), 1 - 0.05 / 3).low for arm in ("λ +0.1", "λ +0.3", "λ +1"))
    assert found["gain_at_most"] == pytest.approx(most, rel=1e-3)
    assert (
        f"the gain is at most {most:.4f} nats (at 0.3; at 0.1, had no other been tried, {-small['low']:.4f})" in RESULTS
    )
    assert f"Over three weights a gain is at most {most:.4f} nats" in README
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
    assert f"{signed(found['start']['estimate'], 2)} at initialisation, in 12 of 12 models over four widths" in RESULTS
    assert f"{-found['change']['estimate']:.2f} lower at the end of training" in RESULTS
    assert (
        f"training *raises* it by {found['mean_cosine']['estimate']:.3f} {bounds(found['mean_cosine'], 3)}" in RESULTS
    )
    assert f"training lowers the mean cosine by {-found['last']['estimate']:.3f}" in RESULTS
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


def test_estimators():
    found = estimate("estimators")
    first, geometry = found["held_out_loss"]["first order"], found["mean_cosine"]
    assert f"differs by {signed(first['estimate'], 4)} nats, 90 % interval {bounds(first, 4)}" in RESULTS
    assert first["verdict"] == "reproduced"
    assert f"lowers the mean cosine by {geometry[PLAIN]['mean']:.4f}" in RESULTS
    kept = found["kept_percent"]["first order"]
    where = f"[{kept['low']:.1f}, {kept['high']:.1f}]"
    assert f"first order by {kept['estimate']:.1f} % of that, 90 % interval {where}" in RESULTS
    level = f"{100 * kept['level']:.0f} % interval"
    assert f"by {kept['estimate']:.1f} % of its effect, {level} {where}." in README
    gaps = values("estimators", PLAIN, "held_out_loss") - values("estimators", "exact", "held_out_loss")
    _, low, high = interval(list(gaps), 0.9)
    assert -found["margin"] < low < high < found["margin"]  # "cross-entropy without any loss lies inside it as well"


@pytest.mark.parametrize("name", ["dose", "width", "init", "counteract"])
def test_three_seeds_where_three_are_said(name):
    seeds = {row["seed"] if "seed" in row else row["run"] for row in table(name)}
    assert len(seeds) == 3


def test_commits_of_the_runs():
    page = (ROOT / "docs" / "runs.md").read_text(encoding="utf-8")
    told = re.findall(r"^\| `([\w-]+)` \| (\d+) \| [^|]+ \| (\w{7}) \| ([\d to]+) \|$", page, re.MULTILINE)
    made: dict[tuple[str, str], list[int]] = {}
    for study in {row[0] for row in told}:
        for run in (run for arm in runs(study).values() for run in arm.values()):
            commit = (run.versions.get("decondense") or "").partition("+g")[2][:7]
            if commit:
                made.setdefault((study, commit), []).append(run.recipe["train"]["micro_batch"])
    ends = {
        key: (len(sizes), " to ".join(dict.fromkeys(map(str, (min(sizes), max(sizes)))))) for key, sizes in made.items()
    }
    assert {(study, commit): (int(count), at) for study, count, commit, at in told} == ends
