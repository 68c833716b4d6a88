"""The hierarchical bootstrap, ranks, the smallest effect, tables and the forest plot."""

from __future__ import annotations

import csv
import io
import json
import re

import numpy as np
import pytest
from scipy import stats

from decondense.records import differences, parse
from decondense.stats.bootstrap import hierarchical_bootstrap
from decondense.stats.checkpoints import mcnemar_power
from decondense.stats.crossed import crossed_macro
from decondense.stats.significance import analyse, ranks, significance
from decondense.stats.tables import csv_table, latex, markdown
from decondense.words import points


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
    ratio = record["tasks"][0]["signal_to_noise"]
    assert f"| {ratio:.1f} |\n" in scores
    assert ("signal to noise" in scores, "signal to noise" in likelihoods) == (True, False)
    assert record["verdict"] in text
    tex = latex(whole)
    assert tex.count("\\\\") == 4
    assert "95 \\% interval" in tex
    assert not re.search(r"(?<!\\)[%_&]", tex.replace(" & ", ""))
    rows = list(csv.DictReader(io.StringIO(csv_table(whole))))
    assert [row["task"] for row in rows[:3]] == ["easy", "hard", "average"]
    assert float(rows[2]["difference"]) == record["macro"]["difference"]
    assert float(rows[0]["signal_to_noise"]) == ratio
    assert whole.to_pandas().set_index("task").loc["easy", "signal_to_noise"] == ratio
    assert points(-0.0412, sign=True) == "−4.12"
    assert points(-0.00001, sign=True) == "0.00"
    assert points(None) == "–"


def test_forest_plot(six, tmp_path):
    import matplotlib.image

    from decondense.figures.tasks import forest

    record = significance(*six, bootstrap=0)
    same = parse(json.loads(record.to_json()))
    first, second = (
        forest(differences(one), tmp_path / f"{name}.png", title=one.arms, power=one.power)
        for name, one in (("a", record), ("b", same))
    )
    assert first.read_bytes() == second.read_bytes()
    assert matplotlib.image.imread(first).shape[1] > 800
    for kind in ("svg", "pdf"):
        files = [forest(differences(record), tmp_path / f"{name}.{kind}", title="", power=0.8) for name in "ab"]
        assert files[0].read_bytes() == files[1].read_bytes(), "no date and no random names inside"
    with pytest.raises(ValueError, match=r"must be \.png, \.svg or \.pdf, got '.*a\.doc'"):
        forest(differences(record), tmp_path / "a.doc", title="", power=0.8)
