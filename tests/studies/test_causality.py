"""What tells the geometry from the disturbance: a dose that is released, and a placebo."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pytest
from study_runs import concluded, of_seeds, packed, run, scored

from decondense import studies
from decondense.figures.chart import DASHES, INK, PALETTE
from decondense.studies import settings_of
from decondense.studies.arms import recipe_of
from decondense.studies.placebo import by_weight
from decondense.studies.release import GATE, KEPT, OPPOSITE, PLAIN, RELEASED, STRONGER

ROWS = csv.DictReader((Path(__file__).parents[2] / "benchmarks" / "results" / "placebo_strength.csv").open())
STRENGTH = float(f"{math.prod(float(row['strength']) for row in ROWS) ** 0.5:.2g}")


def documents(loss, rng, spread=0.0002):
    """Held-out documents of two texts around a loss; hard and easy documents are the same for every run."""
    return [
        {"text": text, "document": i, "tokens": 100, "loss": loss + 0.3 * math.sin(i) + spread * rng.normal()}
        for text in ("one", "two")
        for i in range(30)
    ]


def of(name, losses, cosines, scale="smoke", rates=None, seeds=(1, 2, 3)):
    """The conclusion from runs whose loss and mean cosine depend on the arm, with a seed's level and a little noise."""
    study, rng = studies.STUDIES[name], np.random.default_rng(0)
    settings = settings_of(study, scale)

    def make(arm, seed):
        noise = 0.0002 * math.sin(7 * seed + 13 * sum(map(ord, arm)))
        loss = losses.get(arm, 3.0) + 0.1 * seed + noise
        tasks = {task: packed(rng, (rates or {}).get(arm, 0.5)) for task in ("piqa", "arc_easy")}
        outcomes = scored(tasks, f"{arm}-{seed}", settings, piqa=0.5) if rates is not None else None
        return run(
            held_out=loss, held_out_documents=documents(loss, rng), cosine=cosines.get(arm, 0.5) + noise,
            outcomes=outcomes,
        )  # fmt: skip

    return concluded(study, settings, of_seeds(settings, make, list(seeds)))


MOVED = {RELEASED: 0.4, KEPT: 0.35, OPPOSITE: 0.6}
RELEASES = [
    ({RELEASED: 2.99}, MOVED, "reproduced"),
    ({RELEASED: 3.01}, MOVED, "not reproduced"),
    ({}, MOVED, "not reproduced"),  # a gain of 0.002 nats is excluded
    ({RELEASED: 2.99}, MOVED | {RELEASED: 0.43}, "undecided"),  # 14 %: the geometry has come back
    ({RELEASED: 3.01}, {}, "undecided"),
]


@pytest.mark.parametrize(("losses", "cosines", "verdict"), RELEASES)
def test_release_needs_a_geometry_that_stays(losses, cosines, verdict):
    end = of("release", losses, cosines)
    assert end.verdict == verdict, end.sentence
    assert all(len(row) == len(end.columns) for row in end.rows)
    assert end.estimate["gate_met_by"] == ([RELEASED] if cosines == MOVED else [])
    share = 100 * (cosines.get(RELEASED, 0.5) / 0.5 - 1)
    assert end.estimate["mean_cosine_percent"][RELEASED]["estimate"] == pytest.approx(share, abs=0.1)
    assert (share < -GATE) is (cosines == MOVED)


@pytest.mark.parametrize(
    ("cosines", "verdict"),
    [
        (MOVED | {STRONGER: 0.3}, "not reproduced"),  # both doses meet the gate: the lower decides
        (MOVED | {RELEASED: 0.45, STRONGER: 0.4}, "reproduced"),
        (MOVED | {RELEASED: 0.45, STRONGER: 0.44}, "undecided"),
    ],
)
def test_the_lower_dose_that_meets_the_gate_decides(cosines, verdict):
    end = of("release", {RELEASED: 3.01, STRONGER: 2.99}, cosines, "gpu")
    assert end.verdict == verdict, end.sentence


def test_release_with_two_seeds_decides_nothing():
    assert of("release", {RELEASED: 2.9}, MOVED, seeds=(1, 2)).verdict == "undecided"
    assert of("release", {RELEASED: 2.9}, MOVED, seeds=(1,)).verdict == "undecided"


def test_release_compares_both_directions_and_the_answers(tmp_path):
    rates = {PLAIN: 0.4, RELEASED: 0.7}
    end = of("release", {RELEASED: 2.99, OPPOSITE: 3.02, KEPT: 3.0}, MOVED, "gpu", rates)
    assert end.estimate["released_minus_opposite"]["estimate"] == pytest.approx(-0.03, abs=0.001)
    assert end.estimate["released_minus_kept"]["estimate"] == pytest.approx(-0.01, abs=0.001)
    assert end.estimate["points"][RELEASED]["estimate"] == pytest.approx(30, abs=6)
    assert "nats per item" in end.sentence
    for name, draw in {"figure.png": end.draw, **end.more}.items():
        draw(tmp_path / name)
        assert (tmp_path / name).stat().st_size > 10_000


@pytest.mark.parametrize("name", ["release", "placebo"])
def test_dispersion_has_its_colour_at_every_weight_and_the_placebo_ink(name, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr("decondense.figures.studies.draw", lambda strips, path: drawn.append(strips[0].rows[0][0]))
    end = of(name, {}, {})
    for draw in (end.draw, *end.more.values()):
        draw(tmp_path / "figure.png")
    chart, *course = drawn
    labels, (blue, orange, *_) = dict(chart.y.ticks), PALETTE
    squares = {labels[mark.y[0]]: mark.colour for mark in chart.frames[0].marks if mark.symbol == "square" and mark.y}
    assert set(squares) == set(TREATED if name == "placebo" else (RELEASED, KEPT, OPPOSITE))
    assert squares == {label: INK if label.startswith("placebo") else orange for label in squares}
    lines = {mark.name: (mark.colour, mark.dash) for one in course for mark in one.frames[0].marks if mark.name}
    looks = [(PLAIN, blue, DASHES[0])]
    looks += [(f"dispersion {arm}", orange, dash) for arm, dash in zip((RELEASED, KEPT, OPPOSITE), DASHES)]
    assert lines == {arm: tuple(style) for arm, *style in looks if course}


def test_the_dose_is_gone_at_the_end():
    """λ = 1 for 40 % of the steps, then linearly to 0 at 60 %."""
    recipe = recipe_of(settings_of(studies.STUDIES["release"], "gpu"), RELEASED, 1)
    options = recipe.loss.of_the_term(recipe.steps)
    assert (recipe.steps, options["release_at"], options["ramp_steps"]) == (300, 120, 60)
    assert (options["weight"], options["schedule"]) == (1.0, "release")


# ---- the placebo ----

TREATED = {"dispersion λ +1": 0.4, "dispersion λ −1": 0.6, "placebo λ +1": 0.49, "placebo λ −1": 0.51}
PLACEBOS = [
    ({"dispersion λ +1": 2.99, "dispersion λ −1": 3.02}, TREATED, "reproduced"),
    ({"dispersion λ +1": 3.01, "dispersion λ −1": 3.02}, TREATED, "not reproduced"),
    ({"dispersion λ +1": 2.99, "dispersion λ −1": 2.99}, TREATED, "not reproduced"),
    (dict.fromkeys(TREATED, 3.02), TREATED, "not reproduced"),  # all of it is disturbance
    ({"dispersion λ +1": 2.99, "dispersion λ −1": 3.02}, TREATED | {"placebo λ +1": 0.45}, "undecided"),  # half of it
    ({"dispersion λ +1": 2.99, "dispersion λ −1": 3.02}, {}, "undecided"),  # nothing was moved
]


@pytest.mark.parametrize(("losses", "cosines", "verdict"), PLACEBOS)
def test_dispersion_against_its_placebo(losses, cosines, verdict, tmp_path):
    end = of("placebo", losses, cosines)
    assert end.verdict == verdict, end.sentence
    assert all(len(row) == len(end.columns) for row in end.rows)
    assert end.estimate["gate_met"] is (cosines == TREATED)
    up = losses.get("dispersion λ +1", 3.0) - losses.get("placebo λ +1", 3.0)
    assert end.estimate["dispersion_minus_placebo"]["dispersion λ +1"]["estimate"] == pytest.approx(up, abs=0.001)
    end.draw(tmp_path / "figure.png")


def test_a_placebo_that_ruins_the_model_is_named():
    losses, cosines, _ = PLACEBOS[0]
    assert "ruined" not in of("placebo", losses, cosines).sentence
    for arm in ("placebo λ −1", "dispersion λ −1", "placebo λ +1"):
        end = of("placebo", losses | {arm: 4.0}, cosines)
        assert f"The model is ruined by {arm}, and a comparison with it decides nothing." in end.sentence
        assert end.verdict == "undecided"
    wrong = of("placebo", losses | {"placebo λ −1": 4.0, "dispersion λ +1": 3.02}, cosines)
    assert wrong.verdict == "not reproduced"  # by the other half
    assert all(arm.startswith("dispersion λ +") for arm in end.estimate["log_likelihood"])


def test_placebo_with_two_seeds_decides_nothing():
    assert of("placebo", *PLACEBOS[0][:2], seeds=(1, 2)).verdict == "undecided"


def test_every_weight_has_its_placebo(refusal):
    for scale in studies.SCALES:
        settings = settings_of(studies.STUDIES["placebo"], scale)
        arms = by_weight(settings)
        assert arms["dispersion"].keys() == arms["placebo"].keys()
        for weight, arm in arms["placebo"].items():
            if weight:
                recipe = recipe_of(settings, arm, 1)
                real = recipe_of(settings, arms["dispersion"][weight], 1)
                assert (recipe.loss.name, real.loss.options["estimator"]) == ("placebo", "first_order")
                assert recipe.loss.options.items() - {("strength", STRENGTH)} <= real.loss.options.items()
    words = refusal("study", "placebo", "--plan", "--set", "arms.placebo λ +1.loss.weight=0.5")
    assert "every weight must be there once with dispersion and once with placebo" in words
    assert "take one that is there with both signs" in refusal("study", "placebo", "--plan", "--set", "dose=0.5")
    assert "every weight must be there once" in refusal("study", "placebo", "--plan", "--set", "arms.again={}")
