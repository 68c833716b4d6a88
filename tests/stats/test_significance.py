"""Comparing runs: what is paired, what is refused, what is said."""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
import shlex

import numpy as np
import pytest
from by_hand import cli, make_item
from scipy import stats

from decondense.records import Damaged, Significance, parse
from decondense.stats.bootstrap import hierarchical_bootstrap
from decondense.stats.checkpoints import mcnemar, mcnemar_power, permutation
from decondense.stats.crossed import crossed_macro
from decondense.stats.significance import analyse, ranks, significance
from decondense.stats.tables import csv_table, latex, markdown
from decondense.words import p_words, points


def compared(*arms, **options):
    """The comparison as it is written."""
    return json.loads(significance(*arms, **options).to_json())


@pytest.fixture
def six(make_run):
    """Three base and three treated seeds on two tasks; the treated arm answers ten items more."""
    rng = np.random.default_rng(0)
    easy, hard = rng.random(200) < 0.6, rng.random(300) < 0.3

    def outcomes(bonus, seed):
        noise = np.random.default_rng(seed)
        tables = {}
        for name, level in (("easy", easy), ("hard", hard)):
            flip = noise.random(len(level)) < 0.02
            answers = np.where(flip, ~level, level)
            answers[:bonus] = True
            tables[name] = answers.astype(float)
        return tables

    base = [make_run(f"base{s}", outcomes(0, s)) for s in range(3)]
    treated = [make_run(f"treated{s}", outcomes(40, 10 + s)) for s in range(3)]
    return base, treated


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


def test_identical_outcomes_state_no_smallest_effect(make_run, tmp_path):
    graded = np.linspace(0, 1, 9)
    arms = [[make_run(name, {"t": [1, 0] * 9, "g": graded})] for name in "ab"]
    record = compared(*arms)
    assert (record["macro"]["p"], record["macro"]["smallest_effect"]) == (1.0, None)
    assert "0.00 points would have been found" not in record["verdict"]
    assert "What could have been found cannot be stated" in record["verdict"]
    assert record["tasks"][1]["low"] is None
    copes(record, tmp_path)


def copes(record, folder):
    """Everything that reads a record."""
    from decondense.figures.forest import forest

    whole = parse(record)
    assert isinstance(whole, Significance)
    for text in (markdown(whole), latex(whole), csv_table(whole)):
        assert "nan" not in text.lower()
        assert "None" not in text
    place = folder / "comparison"
    place.mkdir()
    forest(record, place / "forest.png")
    (place / "result.json").write_text(json.dumps(record))
    done = cli("report", place, "--out", folder / "page.html")
    assert done.returncode == 0, done.stderr
    assert "Treated against base" in (folder / "page.html").read_text()


@pytest.mark.parametrize(("p", "words"), [(1e-9, "p < 0.0001"), (0.002, "p = 0.0020"), (0.0625, "p = 0.062")])
def test_p_in_words(p, words):
    assert p_words(p) == words


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
        f"{named} and 2 more: treated − base is +0.00 points on the average over 5 tasks"
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


def test_a_damaged_evaluation_is_named_with_its_field(make_run):
    good, bad = make_run("a", {"t": [1, 0]}), make_run("b", {"t": [1, 0]})
    content = json.loads((bad / "result.json").read_text())
    content["checkpoint"]["step"] = "many"
    (bad / "result.json").write_text(json.dumps(content))
    with pytest.raises(Damaged, match=r"b/result\.json is damaged: checkpoint\.step: .*make the result again"):
        significance([good], [bad])


# -- refusals ------------------------------------------------------------------------------------------------


def test_items_that_do_not_match(make_run):
    base = make_run("a", {"t": [1, 0, 1, 1]})
    rows = [make_item("t", n, 1) for n in range(2, 6)]
    treated = make_run("b", {"t": rows}, settings={"limit": 4})
    with pytest.raises(ValueError, match=r"4 of 6 items of 't' are not in all of them \(limit is None and 4\)"):
        compared([base], [treated])
    record = compared([base], [treated], common=True)
    assert record["tasks"][0]["items"] == 2
    assert "4 of 6 items are not in all runs and are left out" in record["notes"][0]
    stranger = make_run("c", {"t": [make_item("t", n, 1) for n in range(90, 94)]})
    with pytest.raises(ValueError, match="8 of 8 items"):
        compared([base], [stranger], common=True)


def test_repeated_items_are_paired_one_by_one(make_run):
    def rows(*answers):
        return {"t": [make_item("t", n, a, item="same") for n, a in enumerate(answers)]}

    record = compared([make_run("a", rows(1, 0, 0))], [make_run("b", rows(1, 1, 1))])
    assert (record["tasks"][0]["gained"], record["tasks"][0]["items"]) == (2, 3)


def test_missing_tasks(make_run):
    base, treated = make_run("a", {"t": [1, 0], "u": [1, 1]}), make_run("b", {"t": [1, 0]})
    with pytest.raises(ValueError, match=r"task 'u' is missing in 1 of 2 runs \(b\)"):
        compared([base], [treated])
    assert [r["task"] for r in compared([base], [treated], common=True)["tasks"]] == ["t"]
    with pytest.raises(ValueError, match="no task in common"):
        compared([base], [make_run("c", {"v": [1]})], common=True)


def test_checkpoints_from_the_middle_are_refused(make_run):
    base = make_run("a", {"t": [1, 0]})
    middle = {"step": 500, "steps": 1526, "final": False}
    treated = make_run("b", {"t": [1, 1]}, checkpoint=middle)
    with pytest.raises(ValueError, match=r"treated run 'b' is step 500 of 1526, and nothing says how"):
        compared([base], [treated])
    chosen = make_run("c", {"t": [1, 1]}, checkpoint=middle | {"selected_by": "held-out-loss"})
    record = compared([base], [chosen])
    assert "treated run 'c': the checkpoint was chosen by held-out-loss." in record["notes"]
    assert record["treated"][0]["selected_by"] == "held-out-loss"


def test_several_checkpoints_of_one_training_run_are_refused(make_run):
    base = make_run("a", {"t": [1, 0]})
    chosen = {"selected_by": "held-out-loss", "steps": 100, "final": False}
    runs = [
        make_run(f"r{n}", {"t": [1, 1]}, checkpoint=chosen | {"step": n}, model={"name": f"out/run/checkpoint-{n}"})
        for n in (50, 90)
    ]
    with pytest.raises(ValueError, match=r"2 treated runs are checkpoints of one training run \('run'\)"):
        compared([base], runs)


def test_checkpoints_are_told_by_the_run_they_lie_in(make_run):
    """By the place that the evaluation recorded, not by how the path was typed."""
    base = make_run("a", {"t": [1, 0]})

    def run(name, place, folder, typed="."):
        where = {"run": "run", "place": place, "folder": folder, "selected_by": "held-out-loss"}
        return make_run(name, {"t": [1, 1]}, checkpoint=where, model={"name": typed})

    whole, half = run("b", "1f", "", "out/run"), run("c", "1f", "checkpoint-50", "elsewhere/link")
    with pytest.raises(ValueError, match=r"2 treated runs are checkpoints of one training run \('run'\)"):
        compared([base], [whole, half])
    one, other = (run(name, name, "checkpoint-100", "checkpoint-100") for name in "de")
    assert compared([base], [one, other], bootstrap=0)["seeds"] == [1, 2]
    # evaluations of before say only what was typed
    old = [
        make_run(n, {"t": [1, 1]}, model={"name": typed}) for n, typed in (("f", "out/x"), ("g", "out/x/checkpoint-5"))
    ]
    with pytest.raises(ValueError, match=r"of one training run \('x'\)"):
        compared([base], old)
    seeds = [make_run(n, {"t": [1, 1]}, model={"name": f"out/{n}/checkpoint-5"}) for n in "hi"]
    assert compared([base], seeds, bootstrap=0)["seeds"] == [1, 2]


def test_copies_are_not_seeds(make_run):
    base = make_run("a", {"t": [1, 0]})
    runs = [make_run(n, {"t": [1, 1]}, weights="same") for n in "bc"]
    with pytest.raises(ValueError, match="a copy is not another seed"):
        compared([base], runs)


def test_bad_options(six):
    base, treated = six
    with pytest.raises(ValueError, match="at least one base and one treated"):
        compared([], treated)
    with pytest.raises(ValueError, match="as many base as treated runs, got 2 and 3"):
        compared(base[:2], treated, paired=True)
    with pytest.raises(ValueError, match="alpha and power must lie between 0 and 1"):
        compared(base, treated, alpha=5)
    with pytest.raises(ValueError, match=r"power must be above alpha, got 0.04 and 0.05: .*\.$"):
        compared(base, treated, power=0.04)
    with pytest.raises(ValueError, match=r"bootstrap must be a number of resamplings, got -3: .*\.$"):
        compared(base, treated, bootstrap=-3)
    with pytest.raises(ValueError, match=r"permutations must be at least 1, got 0: .*\.$"):
        compared(base, treated, permutations=0)


def test_notes_about_few_seeds(six):
    base, treated = six
    assert "single seed" in compared(base[:1], treated, bootstrap=0)["notes"][0]
    assert "only 2 seeds" in compared(base[:2], treated, bootstrap=0)["notes"][0]
    assert compared(base, treated, bootstrap=0)["notes"] == []


# -- bootstrap, ranks, tables --------------------------------------------------------------------------------


def test_bootstrap_variance_in_closed_form():
    """One seed each: the bootstrap's variance is that of a mean over items, s²(n−1)/n². With seeds that
    differ by a constant it is the unbiased seed variance, which plain resampling would miss by (S−1)/S."""
    rng = np.random.default_rng(0)
    x, y = rng.random((2, 1, 120))
    estimate = crossed_macro([(x, y)])
    found = hierarchical_bootstrap([(x, y)], estimate, samples=20_000)
    assert found["se"] == pytest.approx(np.std(y - x) / np.sqrt(120), rel=0.02)
    assert found["widened_by"] == pytest.approx(stats.t.ppf(0.975, 119) / 1.959964, rel=1e-4)
    levels = np.array([0.1, 0.2, 0.6])
    base, treated = np.zeros((3, 40)), np.repeat(levels[:, None], 40, axis=1)
    found = hierarchical_bootstrap([(base, treated)], crossed_macro([(base, treated)]), samples=20_000)
    assert found["se"] == pytest.approx(levels.std(ddof=1) / np.sqrt(3), rel=0.02)


def test_bootstrap_by_loops():
    """The fast resampling against one draw at a time, in distribution."""
    rng = np.random.default_rng(4)
    tasks = [(rng.random((3, 15)), rng.random((3, 15))), (rng.random((3, 25)), rng.random((3, 25)))]
    draws = []
    for _ in range(4000):
        a, b = rng.integers(0, 3, 3), rng.integers(0, 3, 3)
        total = 0.0
        for base, treated in tasks:
            picked = rng.integers(0, base.shape[1], base.shape[1])
            scale = np.sqrt(3 / 2)
            first, second = base[:, picked].mean(1), treated[:, picked].mean(1)
            first = first.mean() + scale * (first[a].mean() - first.mean())
            second = second.mean() + scale * (second[b].mean() - second.mean())
            total += (second - first) / 2
        draws.append(total)
    found = hierarchical_bootstrap(tasks, crossed_macro(tasks), samples=4000)
    assert found["se"] == pytest.approx(np.std(draws), rel=0.06)


@pytest.mark.parametrize("lone", [0, 1])
def test_bootstrap_of_a_lone_seed_in_closed_form(lone):
    """Seeds that differ by a constant: the lone one is given their variance, s²(1/S + 1) in all, as in the test."""
    levels = np.array([0.1, 0.2, 0.6])
    arms = [np.repeat(levels[:, None], 40, axis=1)] * 2
    arms[lone] = np.zeros((1, 40))
    tasks = [tuple(arms)]
    found = hierarchical_bootstrap(tasks, crossed_macro(tasks), samples=20_000)
    assert found["se"] ** 2 == pytest.approx(levels.var(ddof=1) * (1 + 1 / 3), rel=0.03)
    assert found["se"] == pytest.approx(crossed_macro(tasks).se, rel=0.02)


def test_paired_bootstrap_sees_that_pairs_move_together():
    levels = np.array([0.1, 0.5, 0.9])[:, None]
    base, treated = np.repeat(levels, 30, 1), np.repeat(levels + 0.01, 30, 1)
    tasks = [(base, treated)]
    assert hierarchical_bootstrap(tasks, crossed_macro(tasks, paired=True), paired=True)["se"] < 1e-9
    assert hierarchical_bootstrap(tasks, crossed_macro(tasks))["se"] > 0.1


def test_ranks():
    outcomes = {"t": (np.array([[0.1], [0.5]]), np.array([[0.5], [0.9]]))}
    found = ranks(outcomes)
    assert found["base"] == [4.0, 2.5]
    assert found["treated"] == [2.5, 1.0]
    assert (found["ahead"], found["behind"], found["tied"]) == (1, 0, 0)


def test_smallest_effect_shrinks_with_items():
    rng = np.random.default_rng(0)
    sizes = []
    for n in (100, 400, 1600):
        x = (rng.random((1, n)) < 0.5).astype(float)
        y = np.where(rng.random((1, n)) < 0.1, 1 - x, x)
        (row,) = analyse({"t": (x, y)}, bootstrap=0)["tasks"]
        effect, share = row["smallest_effect"], float(np.mean(x != y))
        assert mcnemar_power(n, max(share, effect), effect) == pytest.approx(0.8, abs=1e-4)
        sizes.append(effect)
    assert sizes[0] > sizes[1] > sizes[2]
    assert sizes[0] / sizes[2] == pytest.approx(4, rel=0.6)


def test_tables(six):
    whole = significance(*six, bootstrap=50)
    record, text = json.loads(whole.to_json()), markdown(whole)
    scores, likelihoods = text.split("Log-likelihood of what is right, in nats per item (per token of a text):")
    assert scores.count("\n| ") == likelihoods.count("\n| ") - 1 == 3
    assert record["verdict"] in text
    tex = latex(whole)
    assert tex.count("\\\\") == 4
    assert "95 \\% interval" in tex
    assert not re.search(r"(?<!\\)[%_&]", tex.replace(" & ", ""))
    rows = list(csv.DictReader(io.StringIO(csv_table(whole))))
    assert [row["task"] for row in rows[:3]] == ["easy", "hard", "average"]
    assert float(rows[2]["difference"]) == record["macro"]["difference"]
    assert points(-0.0412, sign=True) == "−4.12"
    assert points(-0.00001, sign=True) == "+0.00"
    assert points(None) == "–"


def test_forest_plot(six, tmp_path):
    import matplotlib.image

    from decondense.figures.forest import forest

    record = compared(*six, bootstrap=0)
    first = forest(record, tmp_path / "a.png")
    second = forest(json.loads(json.dumps(record)), tmp_path / "b.png")
    assert first.read_bytes() == second.read_bytes()
    assert matplotlib.image.imread(first).shape[1] > 800
    for kind in ("svg", "pdf"):
        files = [forest(record, tmp_path / f"{name}.{kind}").read_bytes() for name in "ab"]
        assert files[0] == files[1], "no date and no random names inside"
    with pytest.raises(ValueError, match=r"must be \.png, \.svg or \.pdf, got 'a\.doc'"):
        forest(record, tmp_path / "a.doc")


# -- the command ---------------------------------------------------------------------------------------------


def test_command(six, tmp_path):
    base, treated = six
    out = tmp_path / "out"
    done = cli("significance", *base, "--", *treated, "--out", out, "--bootstrap", 100)
    assert done.returncode == 0, done.stderr
    names = {"result.json", "table.md", "table.tex", "table.csv", "forest.png"}
    assert {p.name for p in out.iterdir()} == names
    record = json.loads((out / "result.json").read_text())
    assert record["seeds"] == [3, 3]
    assert record["verdict"] in done.stdout.replace("\n", " ")
    again = cli("significance", base[0], treated[0], "--out", out)
    assert again.returncode == 2
    assert "already holds a result: choose another folder with --out, or replace it with --force." in again.stderr
    assert json.loads((out / "result.json").read_text()) == record
    assert cli("significance", base[0], treated[0], "--out", out, "--force").returncode == 0
    assert json.loads((out / "result.json").read_text())["seeds"] == [1, 1]


def test_the_record_says_how_to_make_it_again(make_run, tmp_path, monkeypatch):
    """The command on the page, run where the folders lie, gives the same record."""
    from decondense.report.reproduce import significance_command

    rng = np.random.default_rng(0)
    short, long = make_run("short", {"t": rng.random(20)}), make_run("long", {"t": rng.random(30)})
    plain = significance([long], [make_run("other", {"t": rng.random(30)})])
    command = "decondense significance --alpha 0.05 --power 0.8 {}long -- other"
    assert significance_command(plain) == command.format("--bootstrap 2000 --permutations 10000 --seed 0 ")
    plain.settings = {}  # as older results are
    assert significance_command(plain) == command.format("")
    record = significance([short], [long], common=True, bootstrap=50, permutations=300, seed=7)
    words = shlex.split(significance_command(record))
    assert words[6:-3] == ["--common", "--bootstrap", "50", "--permutations", "300", "--seed", "7"]
    monkeypatch.chdir(tmp_path)
    done = cli(*words[1:], "--json")
    assert done.returncode == 0, done.stderr
    assert done.stdout == record.to_json()


def test_ranks_of_runs_with_one_name(six, tmp_path):
    """Two folders may end in the same word: every run has its own rank, and the terminal shows them."""
    arms = [[], []]
    for arm, folders in enumerate(six):
        for number, folder in enumerate(folders):
            place = tmp_path / f"arm{arm}-seed{number}" / "run"
            place.parent.mkdir()
            arms[arm].append(folder.rename(place))
    record = compared(*arms, bootstrap=0)
    assert [len(record["ranks"][arm]) for arm in ("base", "treated")] == [3, 3]
    assert sum(record["ranks"]["base"] + record["ranks"]["treated"]) == pytest.approx(1 + 2 + 3 + 4 + 5 + 6)
    done = cli("significance", *arms[0], "--", *arms[1], "--out", tmp_path / "out", "--bootstrap", 0)
    shown = ", ".join(f"{rank:.1f}" for rank in record["ranks"]["treated"])
    assert f"treated {shown}" in done.stdout


def test_texts_alone(make_run, tmp_path):
    """No benchmark: the likelihoods are said, and only files that were written are named."""
    rng = np.random.default_rng(0)

    def text(name, shift):
        values = [(-100 + 50 * shift + rng.standard_normal(),) for _ in range(30)]
        rows = [make_item("text:x", n, 0, values=v, units=[50], gold=None) for n, v in enumerate(values)]
        return make_run(name, {"text:x": rows})

    out = tmp_path / "out"
    done = cli("significance", text("a", 0), text("b", 0.2), "--out", out)
    assert done.returncode == 0, done.stderr
    record = json.loads((out / "result.json").read_text())
    start = "Different, the treated checkpoint scores better: log-likelihood, treated − base is +0."
    assert record["verdict"].startswith(start)
    assert " nats on text:x (95 % interval +0." in record["verdict"]
    assert "p < 0.0001" in record["verdict"]
    words = done.stdout[done.stdout.index("written:") :].replace("\n", " ")
    assert all(f"{p.name}" in words for p in out.iterdir())
    assert "forest.png" not in words
    assert "table.tex" not in words
    assert "nats per item" in done.stdout
    table = (out / "table.md").read_text()
    assert table.count("| text:x |") == 1
    assert record["verdict"] in table


def test_names_are_printed_as_they_are(make_run, tmp_path):
    """Square brackets in the names of texts and folders are markup to the library that prints."""
    name, out = "text:[/b]", tmp_path / "o[" / "x]"
    arms = []
    for run, shift in (("a", 0), ("b", 1)):
        rows = [make_item(name, n, 0, values=(-100 + shift * (2 + n % 3),), units=[50], gold=None) for n in range(30)]
        arms.append(make_run(run, {name: rows}))
    done = cli("significance", *arms, "--out", out)
    assert done.returncode == 0, done.stderr
    assert "\ntext:[/" in done.stdout  # the table, which cuts long names
    assert f" nats on {name} (95 % interval" in done.stdout
    assert f"written: {out}/result.json" in done.stdout


def test_command_errors(six, tmp_path):
    base, treated = six
    out = tmp_path / "out"
    done = cli("significance", *base, *treated, "--out", out)
    assert done.returncode == 2
    assert done.stderr.strip().startswith("error: put -- between base and treated runs")
    assert not out.exists()
