"""Comparing runs: the tests that are used, and what is said."""

from __future__ import annotations

import itertools
import json
import re

import numpy as np
import pytest
from by_hand import cli, compared, make_item
from scipy import stats

from decondense.records import Damaged, Significance, differences, parse
from decondense.stats.checkpoints import mcnemar, permutation
from decondense.stats.significance import analyse, significance
from decondense.stats.tables import csv_table, latex, markdown


def copes(record, folder):
    """Everything that reads a record."""
    from decondense.figures.tasks import forest

    whole = parse(record)
    assert isinstance(whole, Significance)
    for text in (markdown(whole), latex(whole), csv_table(whole)):
        assert "nan" not in text.lower()
        assert "None" not in text
    place = folder / "comparison"
    place.mkdir()
    forest(differences(whole), place / "forest.png", title=whole.arms, power=whole.power)
    (place / "result.json").write_text(json.dumps(record))
    done = cli("report", place, "--out", folder / "page.html")
    assert done.returncode == 0, done.stderr
    assert "Treated against base" in (folder / "page.html").read_text()


def test_two_checkpoints(make_run):
    base = make_run("a", {"t": [1, 1, 0, 0, 1, 0, 0, 0, 1, 0]})
    treated = make_run("b", {"t": [1, 1, 1, 1, 0, 1, 1, 1, 1, 1]})
    record = compared([base], [treated])
    (row,) = record["tasks"]
    assert (row["test"], row["gained"], row["lost"]) == ("exact McNemar", 6, 1)
    assert row["p"] == row["p_holm"] == mcnemar(6, 1) == pytest.approx(0.125)
    assert (row["base"], row["treated"]) == (0.4, 0.9)
    assert record["claim"] == "checkpoints"
    assert "one seed in each arm" in record["notes"][0]
    assert record["verdict"].startswith("No difference shown: treated − base is +50.00 points on t (95 % interval ")
    assert record["verdict"].endswith("this compares two checkpoints, not two ways of training.")


def test_one_task_and_one_seed_is_that_tasks_test(make_run):
    """5 gained, none lost: the exact test says 0.0625, and so does the verdict."""
    base = make_run("a", {"t": [0] * 5 + [1] * 95})
    record = compared([base], [make_run("b", {"t": [1] * 100})], bootstrap=0)
    row, macro = record["tasks"][0], record["macro"]
    assert row["p"] == 0.0625
    for key in ("test", "p", "low", "high", "smallest_effect", "significant"):
        assert macro[key] == row[key], key
    assert record["verdict"].startswith("No difference shown")
    assert "p = 0.062)" in record["verdict"]


def test_average_of_two_checkpoints_by_all_signs():
    """Each item's difference weighs 1/n of its task; every pattern of signs, and the interval from the tasks'."""
    tasks = {"t": ([0, 0, 0, 1], [1, 1, 0, 1]), "u": ([0, 0, 1, 0, 0, 0, 0], [1, 1, 0, 1, 0, 1, 0])}
    outcomes = {name: tuple(np.array([arm], dtype=float) for arm in pair) for name, pair in tasks.items()}
    found = analyse(outcomes, bootstrap=0)
    weighted = np.concatenate([(b - a)[0] / a.shape[1] for a, b in outcomes.values()])
    moved = weighted[weighted != 0]
    signs = np.array(list(itertools.product((-1, 1), repeat=len(moved))))
    assert found["macro"]["p"] == np.mean(np.abs(signs @ moved) >= abs(moved.sum()) - 1e-12)
    assert found["macro"]["test"] == "paired permutation"
    reach = [[row["difference"] - row["low"], row["high"] - row["difference"]] for row in found["tasks"]]
    low, high = np.sqrt(np.sum(np.square(reach), axis=0)) / 2
    difference = found["macro"]["difference"]
    assert (found["macro"]["low"], found["macro"]["high"]) == pytest.approx((difference - low, difference + high))


def test_two_items_that_are_gained_prove_nothing(make_run, tmp_path):
    """No variance to estimate from, alone or beside a task that has some."""
    record = compared([make_run("a", {"t": [0, 0]})], [make_run("b", {"t": [1, 1]})])
    assert record["macro"]["p"] == 0.5
    assert not record["macro"]["significant"]
    noisy = [0, 1] * 100
    turned = [1, 0, 0, 1, *noisy[4:]]
    arms = ([make_run("c", {"t": [0, 0], "u": noisy})], [make_run("d", {"t": [1, 1], "u": turned})])
    assert compared(*arms)["macro"]["p"] >= 0.25
    folders = {arm: [make_run(f"{arm}{s}", {"t": [arm] * 8, "u": [arm] * 9}) for s in range(3)] for arm in (0, 1)}
    record = compared(folders[0], folders[1])
    assert record["macro"]["p"] == pytest.approx(2 / 20)
    assert "bootstrap" not in record["macro"]
    assert "no interval can be stated, p = 0.10" in record["verdict"]
    copes(record, tmp_path)


def test_identical_scores_state_no_smallest_effect(make_run, tmp_path):
    """The likelihoods differ, the scores do not: there is a comparison, but nothing to measure it by."""
    graded = np.linspace(0, 1, 9)
    arms = []
    for name, shift in (("a", 0), ("b", 0.5)):
        items = [make_item("t", n, n % 2, values=(-1.0 - shift * (n % 3), -2.0)) for n in range(18)]
        arms.append([make_run(name, {"t": items, "g": graded})])
    record = compared(*arms)
    assert (record["macro"]["p"], record["macro"]["smallest_effect"]) == (1.0, None)
    assert "0.00 points would have been found" not in record["verdict"]
    assert "What could have been found cannot be stated" in record["verdict"]
    assert record["tasks"][1]["low"] is None
    copes(record, tmp_path)


def test_runs_that_agree_on_everything_are_refused(make_run):
    with pytest.raises(ValueError, match=r"every outcome is the same in all of them: there is nothing to test"):
        compared([make_run("a", {"t": [1, 0] * 9})], [make_run("b", {"t": [1, 0] * 9})])


def test_graded_outcomes_use_the_permutation_test(make_run):
    rng = np.random.default_rng(1)
    x = rng.random(60)
    record = compared([make_run("a", {"t": x})], [make_run("b", {"t": x + 0.1})])
    assert record["tasks"][0]["test"] == "paired permutation"
    assert record["tasks"][0]["p"] == pytest.approx(1 / 10_001)


def test_seeds_are_the_unit(six):
    record = compared(*six, bootstrap=300)
    assert record["seeds"] == [3, 3]
    assert record["claim"] == "training"
    for row in record["tasks"]:
        assert row["test"] == "seeds × items"
        assert len(row["base_seeds"]) == len(row["treated_seeds"]) == len(row["pairs"]) == 3
    macro = record["macro"]
    assert macro["significant"]
    assert macro["low"] < macro["difference"] < macro["high"]
    assert record["verdict"].startswith("Different, the treated runs score better: treated − base is +")
    assert "3 base and 3 treated seeds." in record["verdict"]
    assert record["ranks"]["ahead"] == 2
    assert sum(record["ranks"]["base"]) > sum(record["ranks"]["treated"])


def test_the_order_of_items_and_runs_does_not_matter(six, make_run):
    record = compared(*six, bootstrap=0)
    base, treated = six
    again = compared(base[::-1], treated[::-1], bootstrap=0)
    assert again["macro"]["p"] == pytest.approx(record["macro"]["p"])
    from decondense.evaluate.items import read_items, write_items

    rows = read_items(base[0] / "items.parquet")
    write_items(base[0] / "items.parquet", rows[::-1])
    shuffled = compared(base, treated, bootstrap=0)
    by_name = {row["task"]: row for row in shuffled["tasks"]}
    for row in record["tasks"]:
        assert by_name[row["task"]]["p"] == pytest.approx(row["p"])


def test_the_table_of_a_run_stands_for_the_run(six):
    base, treated = six
    found = compared([folder / "items.parquet" for folder in base], treated, bootstrap=0)
    assert found["macro"] == compared(base, treated, bootstrap=0)["macro"]


def test_the_same_runs_give_the_same_record(six):
    assert compared(*six, bootstrap=50) == compared(*six, bootstrap=50)


def test_likelihoods_are_a_family_of_their_own(make_run):
    rng = np.random.default_rng(2)

    def items(shift):
        rows = [make_item("t", n, 1, values=(-1.0 + shift + 0.1 * rng.standard_normal(), -2.0)) for n in range(50)]
        rows += [make_item("text:x", n, 0, values=(-100.0 + 50 * shift,), units=[50], gold=None) for n in range(20)]
        return {"t": rows[:50], "text:x": rows[50:]}

    record = compared([make_run("a", items(0))], [make_run("b", items(0.5))])
    assert [row["task"] for row in record["tasks"]] == ["t"]
    assert record["tasks"][0]["p"] == 1
    likelihood = {row["task"]: row for row in record["likelihood"]["tasks"]}
    assert set(likelihood) == {"t", "text:x"}
    assert likelihood["t"]["p_holm"] < 0.001
    assert likelihood["text:x"]["difference"] == pytest.approx(0.5)
    shares = np.log(1 / (1 + np.exp(-1))), np.log(1 / (1 + np.exp(-1.5)))
    assert likelihood["t"]["base"] == pytest.approx(shares[0], abs=0.03)
    assert likelihood["t"]["treated"] == pytest.approx(shares[1], abs=0.03)


def test_the_verdict_mentions_likelihoods_that_differ(make_run):
    """The scores are the same, and the log-likelihoods are not: "No difference shown" alone would hide it."""
    rng = np.random.default_rng(2)

    def items(shift):
        values = [(-1.0 + shift + 0.1 * rng.standard_normal(), -2.0) for _ in range(50)]
        return {t: [make_item(t, n, 1, values=v) for n, v in enumerate(values)] for t in "tuvwx"}

    record = compared([make_run("a", items(0))], [make_run("b", items(0.5))])
    assert all(row["p_holm"] < 0.001 for row in record["likelihood"]["tasks"])
    gaps = [row["difference"] for row in record["likelihood"]["tasks"]]
    named = ", ".join(f"{task} (+{gap:.4f} nats)" for task, gap in zip("tuv", gaps))
    assert record["verdict"].startswith(
        "No difference shown in the scores, but after Holm's correction in the log-likelihoods of "
        f"{named} and 2 more: treated − base is 0.00 points on the average over 5 tasks"
    )
    judged = compared([make_run("e", items(0))], [make_run("f", items(0.5))], matters=5)
    gaps = [row["difference"] for row in judged["likelihood"]["tasks"]]
    named = ", ".join(f"{task} (+{gap:.4f} nats)" for task, gap in zip("tuv", gaps))
    assert judged["verdict"].startswith(
        f"{judged['macro']['finding'].capitalize()} (5 points or more would matter), but after Holm's correction the "
        f"log-likelihoods of {named} and 2 more differ: treated − base is 0.00 points on the average over 5 tasks"
    )
    same = compared([make_run("c", items(0))], [make_run("d", items(0))])
    assert same["verdict"].startswith("No difference shown: treated − base is")


@pytest.mark.parametrize("tasks", [("t",), ("t", "u"), ("t", "u", "v")])
def test_three_differing_items_of_120_state_what_the_exact_test_can_show(tasks):
    """Six differing items are the fewest that the test can reject with; the stated difference is found as often as
    stated, and is not below the interval's half-width."""
    n = 120 // len(tasks)
    outcomes = {name: (np.zeros((1, n)), np.zeros((1, n))) for name in tasks}
    outcomes["t"][1][0, :2] = 1
    outcomes["t"][0][0, 2:3] = 1
    macro = analyse(outcomes, bootstrap=0)["macro"]
    effect = macro["smallest_effect"]
    assert effect > 6 / 120
    assert effect > (macro["high"] - macro["low"]) / 2
    rng, hits, tries = np.random.default_rng(0), 0, 1000
    for _ in range(tries):
        differences = []
        for name in tasks:
            share = max(effect, 3 / n if name == "t" else 0.0)
            gained, lost, _ = rng.multinomial(n, [(share + effect) / 2, (share - effect) / 2, 1 - share])
            differences += [1.0] * gained + [-1.0] * lost
        hits += permutation(np.array(differences), samples=999) <= 0.05
    assert stats.binom.ppf(0.001, tries, 0.8) <= hits <= stats.binom.ppf(0.9999, tries, 0.8) + 30


def test_few_differing_graded_items_state_no_more():
    """Three graded items of 120 differ: Student's theory would state what no test of three signs can show."""
    x = np.linspace(0.1, 0.9, 120)[None]
    y = x.copy()
    y[0, :3] += (0.05, -0.04, 0.06)
    (row,) = analyse({"t": (x, y)}, bootstrap=0)["tasks"]
    assert row["smallest_effect"] > 6 * 0.05 / 120


@pytest.mark.parametrize("tasks", [1, 3])
def test_the_effect_of_graded_outcomes_is_no_part_of_their_noise(tasks):
    """What could have been found depends on the spread about the mean: the same whatever the difference was, and as a
    noncentral t has it."""
    rng = np.random.default_rng(0)
    base, noise = rng.random((2, tasks, 1, 200))
    stated = []
    for shift in (0.0, 0.5, -20.0):
        outcomes = {f"t{k}": (b, b + shift + e) for k, (b, e) in enumerate(zip(base, noise))}
        stated.append(analyse(outcomes, bootstrap=0)["macro"]["smallest_effect"])
    assert stated == pytest.approx([stated[0]] * 3, rel=1e-6)
    if tasks == 1:
        beyond = stats.t.ppf(0.975, 199)
        away = stated[0] / stats.sem(noise[0, 0])
        assert stats.nct.sf(beyond, 199, away) + stats.nct.cdf(-beyond, 199, away) == pytest.approx(0.8, abs=2e-3)


def test_too_few_graded_items_for_any_sign_test_state_nothing():
    """Five signs cannot be more extreme than 2 of 32."""
    x = np.linspace(0.1, 0.9, 5)[None]
    (row,) = analyse({"t": (x, x + 0.3 + 0.01 * x**2)}, bootstrap=0)["tasks"]
    assert row["smallest_effect"] is None


def test_a_difference_that_scores_cannot_have_is_not_stated(tmp_path):
    """Two and two seeds that spread widely: even 0 against 1 would hardly be found. Other scores have no such bound."""
    levels = {"base": (0.1, 0.9), "treated": (0.2, 0.7)}
    for unit in (1, 4):
        for arm, means in levels.items():
            for seed, mean in enumerate(means):
                rows = [f"{n},{unit * min(1, max(0, mean + (n % 5 - 2) / 40 * (n % (2 + seed))))}" for n in range(40)]
                (tmp_path / f"{arm}{seed}.csv").write_text("\n".join(["item,score,metric", *(f"{r},x" for r in rows)]))
        found = significance(*([tmp_path / f"{arm}{seed}.csv" for seed in (0, 1)] for arm in levels), bootstrap=0)
        none = "No possible difference would have been found with 80 % probability." in found.verdict
        assert (found.macro.smallest_effect is None, none) == (unit == 1, unit == 1)
        assert unit == 1 or found.macro.smallest_effect > 4


def test_a_few_large_differences_among_rounding_are_few():
    x = np.linspace(0.1, 0.9, 120)[None]
    y = x + 1e-7 * np.sin(np.arange(120))
    y[0, :3] += (0.5, -0.4, 0.6)
    (row,) = analyse({"t": (x, y)}, bootstrap=0)["tasks"]
    assert row["smallest_effect"] > 6 * 0.5 / 120


def test_a_damaged_evaluation_is_named_with_its_field(make_run):
    good, bad = make_run("a", {"t": [1, 0]}), make_run("b", {"t": [1, 0]})
    content = json.loads((bad / "result.json").read_text())
    content["checkpoint"]["step"] = "many"
    (bad / "result.json").write_text(json.dumps(content))
    with pytest.raises(Damaged, match=r"b/result\.json is damaged: checkpoint\.step: .*make the result again"):
        significance([good], [bad])


@pytest.mark.parametrize(
    ("matters", "found"),
    [(0.5, "an effect that matters"), (1, "an effect that matters"), (60, "an effect, too small to matter"),
     (10, "undecided")],
)  # fmt: skip
def test_what_would_matter_is_in_the_verdict(six, matters, found):
    record = compared(*six, bootstrap=0, matters=matters)
    words = f"{found[0].upper()}{found[1:]} ({matters} point{'s' * (matters != 1)} or more would matter), the"
    words += " treated runs score better: "
    assert record["verdict"].startswith(words)
    assert (record["macro"]["finding"], record["settings"]["matters"]) == (found, matters)


def test_what_would_matter_where_nothing_differs(six):
    base, treated = six
    same = compared(base[:1] + treated[1:2], base[1:2] + treated[:1], bootstrap=0, matters=99)
    assert same["macro"]["finding"] == "no effect that matters"
    with pytest.raises(ValueError, match=r"matters must be a difference above 0, in points, got 0"):
        compared(base, treated, matters=0)
    assert "finding" not in compared(base, treated, bootstrap=0)["macro"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"paired": "yes"}, "paired must be True or False, got 'yes'"),
        ({"common": 1}, "common must be True or False, got 1"),
        ({"bootstrap": 2.5}, "resamplings, got 2.5: take 2000, or 0 to leave it out."),
        ({"bootstrap": 19}, "at least 20, as an interval of 95 % cannot be read from fewer resamplings, got 19: "),
        ({"permutations": "many"}, "permutations must be a whole number of at least 1, got 'many': take 10000."),
        ({"seed": 1.5}, "seed must be a whole number of at least 0, got 1.5: leave it out for 0."),
    ],
)
def test_options_are_checked_before_anything_is_read(options, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        significance("nowhere", "nor here", **options)


def test_the_average_weighted_by_signal_to_noise():
    rng = np.random.default_rng(0)
    outcomes = {
        name: ((rng.random((3, n)) < level).astype(float), (rng.random((3, n)) < level + 0.05).astype(float))
        for name, n, level in (("easy", 200, 0.6), ("hard", 300, 0.35), ("chance", 400, 0.15))
    }
    record = analyse(outcomes, bootstrap=0, chance=dict.fromkeys(outcomes, 0.25))
    ratios = []
    for row in record["tasks"]:
        above = (row["base"] + row["treated"]) / 2 - 0.25
        assert row["signal_to_noise"] == pytest.approx(above / row["se"])
        ratios.append(max(0.0, above / row["se"]))
    weights = np.array(ratios) / sum(ratios)
    found = record["macro"]["weighted"]
    assert list(found["weights"].values()) == pytest.approx(weights.tolist())
    assert found["weights"]["chance"] == 0
    assert found["difference"] == pytest.approx(weights @ [row["difference"] for row in record["tasks"]])
    assert found["low"] < found["difference"] < found["high"]


@pytest.mark.usefixtures("unpainted")
def test_clusters_by_the_command(make_run, tmp_path):
    """Ten questions about each of 30 subjects, all of which the treated model learned or not."""
    rng = np.random.default_rng(0)
    subjects = np.arange(300) // 10
    learned = rng.random(30) < 0.4

    def rows(gain):
        answers = (rng.random(300) < 0.3) | (gain & learned[subjects])
        return {"t": [make_item("t", n, a, subtask=f"subject-{subjects[n]}") for n, a in enumerate(answers)]}

    arms = [make_run("a", rows(False))], [make_run("b", rows(True))]
    plain, grouped = compared(*arms, bootstrap=50), compared(*arms, bootstrap=50, cluster="subtask")
    row = grouped["tasks"][0]
    assert (row["clusters"], row["test"]) == (30, "paired permutation of clusters")
    assert 30 < row["effective"] < 200
    assert row["high"] - row["low"] > 1.2 * (plain["tasks"][0]["high"] - plain["tasks"][0]["low"])
    boot = [r["macro"]["bootstrap"] for r in (plain, grouped)]
    assert boot[1]["se"] > 1.2 * boot[0]["se"]
    done = cli("significance", *arms[0], *arms[1], "--cluster", "subtask", "--out", tmp_path / "out", "--bootstrap", 50)
    assert done.returncode == 0, done.stderr
    assert "300 items in 30 clusters tell as much as" in " ".join(done.stdout.split())
    with pytest.raises(ValueError, match=r"--cluster must be a field of every item, but 'passage' is not in "):
        compared(*arms, cluster="passage")
