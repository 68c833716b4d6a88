"""The paper's Tables 2 and 3 as they run on a GPU: held-out loss decides, and the answers are told beside it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from study_runs import concluded, of_seeds, packed, run, scored

from decondense import studies
from decondense.figures.chart import INK, PALETTE
from decondense.studies import hyper, settings_of, variants
from decondense.studies.contrasts import over_items
from decondense.studies.outcomes import unpack
from decondense.studies.runs import Runs, trained_name


def of(name, losses, rates, seeds=(1, 2, 3), **more):
    """The conclusion at gpu scale: arm → held-out loss, and arm → how often its answers are right."""
    study, rng = studies.STUDIES[name], np.random.default_rng(0)
    settings = settings_of(study, "gpu")

    def make(arm, seed):
        noise = 0.0003 * math.sin(7 * seed + 13 * sum(map(ord, arm)))
        tasks = {task: packed(rng, rates.get(arm, 0.5), 400) for task in ("piqa", "arc_easy")}
        outcomes = scored(tasks, f"{arm}-{seed}", settings, piqa=rates.get(arm, 0.5), arc_easy=0.5)
        return run(held_out=losses.get(arm, 3.0) + 0.1 * seed + noise, outcomes=outcomes, **more)

    planned = {p.name for p in study.plan(settings)}
    runs = [one for one in of_seeds(settings, make, list(seeds)) if one.name in planned]
    return concluded(study, settings, runs)


def test_table_2_tells_the_answers_beside_the_loss(tmp_path):
    end = of(
        "variants", {variants.OURS: 2.99}, {"decorrelation on last": 0.8, "active forgetting": 0.2, "original": 0.4}
    )
    assert end.verdict == "reproduced"
    points = end.estimate["points"]
    assert set(points) == set(settings_of(studies.STUDIES["variants"], "gpu")["arms"]) - {"original", "cross-entropy"}
    assert points["decorrelation on last"]["estimate"] == pytest.approx(30, abs=4)
    assert points["decorrelation on last"]["level"] == pytest.approx(1 - 0.05 / 8)
    words = "points: original 45.00, cross-entropy 50.00; minus cross-entropy's above 0 in decorrelation on last; "
    assert f"{words}below 0 in active forgetting; dispersion " in end.sentence
    assert "Log-likelihood of what is right; minus cross-entropy's above 0 in none; below 0 in none" in end.sentence
    assert sum(row[0] == "original" for row in end.rows) == 1  # which no seed changes
    assert {"piqa", "arc_easy"} <= set(end.columns)
    end.draw(tmp_path / "figure.png")


@pytest.mark.parametrize("kind", ["correct", "log_share"])
def test_answers_are_compared_over_the_seeds_that_both_arms_have(kind):
    """Against a loop: a third seed of cross-entropy, another level altogether, says nothing of an arm that has two."""
    settings, rng = settings_of(studies.STUDIES["variants"], "gpu"), np.random.default_rng(0)

    def make(arm, seed):
        tasks = {task: packed(rng, 0.2 * seed, 60) for task in ("piqa", "arc_easy")}
        return run(outcomes=scored(tasks, f"{arm}-{seed}", settings))

    made = of_seeds(settings, make, [1, 2, 3])
    runs = Runs([one for one in made if one.name != trained_name(variants.OURS, 3)], list(settings["arms"]))
    scale, gaps = {"correct": 100, "log_share": 1}[kind], []
    for task in ("piqa", "arc_easy"):
        for seed in (1, 2):
            ours, plain = (
                unpack(runs.outcomes[arm][seed].outcomes[task], kind) for arm in (variants.OURS, variants.PLAIN)
            )
            gaps += [scale * (x - y) for x, y in zip(ours, plain)]
    found = over_items(runs, variants.OURS, variants.PLAIN, kind=kind)
    assert (found.estimate, found.n) == (pytest.approx(sum(gaps) / len(gaps)), 2)
    for seed in (1, 2):
        del runs.outcomes[variants.OURS][seed]
    assert over_items(runs, variants.OURS, variants.PLAIN, kind=kind) is None


def test_a_ruined_arm_does_not_flatten_the_others(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr("decondense.figures.studies.draw", lambda strips, path: drawn.extend(strips))
    of("variants", {"l2_repel": 15.0, "decorrelation": 3.01}, {}).draw(tmp_path / "figure.png")
    chart = drawn[0].rows[0][0]
    labels = [label for _, label in chart.y.ticks]
    assert [label for label in labels if "off the scale" in label] == ["l2 repel: +12.00, off the scale"]
    low, high = chart.x.range
    assert -0.02 < low < 0 < 0.01 < high < 0.03
    assert chart.remarks[0].words == "the paper's losses"
    assert labels[:2] == ["dispersion", "decorrelation"]
    assert "rivals" not in [remark.words for remark in chart.remarks]


BLUE, ORANGE, _, PINK, _, SKY, *_ = PALETTE  # of cross-entropy, dispersion, decorrelation and orthogonalization
COLOURS = {
    "variants": {
        "dispersion": ORANGE, "decorrelation": PINK, "orthogonalization": SKY, "l2 repel": PALETTE[7],
        "l2 repel, released": PALETTE[7], "decorrelation on last": PINK,
        "noisy embedding": INK, "active forgetting": INK,
    },
    "hyper": {
        "the paper's choice: " * (arm == hyper.CENTRE) + arm: ORANGE
        for arm in settings_of(studies.STUDIES["hyper"], "gpu")["arms"] if arm != hyper.PLAIN
    },
    "estimators": {"cross-entropy": BLUE} | dict.fromkeys(["first order", "second order", "sampled"], ORANGE),
}  # fmt: skip


@pytest.mark.parametrize("name", COLOURS)
def test_every_row_has_the_colour_of_its_loss(name, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr("decondense.figures.studies.draw", lambda strips, path: drawn.extend(strips))
    of(name, {}, {}).draw(tmp_path / "figure.png")
    ((chart,),) = drawn[0].rows
    squares = {mark.y[0]: mark.colour for mark in chart.frames[0].marks if mark.symbol == "square" and len(mark.y)}
    assert {label: squares[place] for place, label in chart.y.ticks} == COLOURS[name]


def test_runs_without_a_snapshot_are_compared_in_loss_alone(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr("decondense.figures.studies.draw", lambda strips, path: drawn.extend(strips))
    for snapshots in ([], None):
        end = of("variants", {variants.OURS: 2.99}, {}, **({} if snapshots is None else {"snapshots": snapshots}))
        assert end.verdict == "reproduced"
        assert math.isnan(end.rows[0][end.columns.index("mean_cosine")]) is (snapshots == [])
        end.draw(tmp_path / "figure.png")
    bare, full = (strips.rows[0][0] for strips in drawn)
    assert (bare.right_title, bare.right) == ("", [])
    assert (full.right_title, len(full.right)) == ("mean cosine · cost (cross-entropy 0.500)", 8)


def test_table_2_without_three_seeds_says_nothing_of_the_answers():
    end = of("variants", {variants.OURS: 2.99}, {"decorrelation on last": 0.8}, seeds=(1, 2))
    assert end.verdict == "undecided"
    assert "above 0 in none; below 0 in none" in end.sentence


def test_table_3_tells_the_likelihood_of_what_is_right():
    end = of("hyper", {}, {"λ 1, τ 1": 0.9})
    assert end.verdict == "reproduced"  # no cell is lower by what matters
    likely = end.estimate["log_likelihood_minus_centre"]
    assert list(likely) == hyper.CELLS
    assert all(d["level"] == pytest.approx(1 - 0.05 / 6) for d in likely.values())
    assert end.estimate["points_minus_centre"]["λ 1, τ 1"]["estimate"] == pytest.approx(40, abs=4)
    assert "Log-likelihood of what is right, average over tasks, minus the paper's choice" in end.sentence


def test_table_3_tells_the_grid_from_no_loss_at_all():
    end = of("hyper", {"λ 0.5, τ 1": 3.02, "λ 1, τ 1": 3.05}, {})
    assert "Minus cross-entropy's: above 0 in λ 0.5, τ 1 and λ 1, τ 1; below 0 in none;" in end.sentence
    against = end.estimate["minus_cross_entropy"]
    assert list(against) == [hyper.CENTRE, *hyper.CELLS]
    assert against["λ 1, τ 1"]["estimate"] == pytest.approx(0.05, abs=0.005)
    assert all(d["level"] == pytest.approx(1 - 0.05 / 7) for d in against.values())


def test_the_original_is_not_trained(command, tmp_path):
    """One step at a learning rate of 0, at which its warm-up begins: the weights stay what they were."""
    import json

    for scale in studies.SCALES:
        settings = settings_of(studies.STUDIES["variants"], scale)
        recipe = studies.core.recipe_of(settings, "original", 1)
        assert recipe.steps == 1 == round(recipe.train.warmup * recipe.steps)
    code, _, err = command("study", "variants", "--piece", "original-seed-1", "--out", tmp_path / "o")
    assert code == 0, err
    record = json.loads((tmp_path / "o" / "runs" / "original-seed-1" / "result.json").read_text())
    before, after = record["snapshots"]
    assert before["mean_cosine"] == after["mean_cosine"]
    assert record["held_out"][0]["loss"] == record["held_out"][1]["loss"]
