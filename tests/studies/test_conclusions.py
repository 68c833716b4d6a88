"""From runs with known numbers to the verdict: the sign of every criterion, and what it says of no effect."""

from __future__ import annotations

import math

import numpy as np
import pytest
from study_runs import STATES, concluded, measured, noise, of, of_seeds, packed, run, scored, settled, snapshot

from decondense import studies
from decondense.records import Snapshot
from decondense.stats.verdicts import interval
from decondense.studies import outcomes, settings_of, variants
from decondense.studies.size import floor


def held(losses, default=3.0):
    """Runs whose held-out loss depends on the arm, with a seed's level and a little noise."""
    return lambda arm, s: run(held_out=losses.get(arm, default) + 0.1 * s + noise(arm, s))


def geometry(name, values, default=0.5):
    return lambda arm, s: run(**{name: values.get(arm, default) + noise(arm, s)})


def one_hardly_learns(arm: str, seed: int) -> dict:
    spearman, loss = (-0.8, 4.1) if "Olmo2" in arm else (0.8, 3.0)
    return run(spearman=spearman + noise(arm, seed), held_out=loss)


def layers(arm: str) -> int:
    return int(arm[0])


NARROW, WIDE = "MLP width 8", "MLP width 256"
PLAIN = "cross-entropy"
ALONE, TAUGHT, DISPERSED = "student alone", "student with a teacher", "dispersed teacher"
CE, DISP = "cross-entropy", "dispersion"
CASES = [
    ("width", geometry("spearman", {NARROW: 0.9, WIDE: -0.2}), "reproduced"),
    ("width", geometry("spearman", {NARROW: -0.2, WIDE: 0.9}), "not reproduced"),
    ("width", lambda arm, s: run(spearman=[0.1, 0.9, 0.4][s % 3] if arm == NARROW else 0.4), "undecided"),
    ("init", lambda arm, s: run(start=(0.5, 0.9 + noise(arm, s)), spearman=-0.4 + noise("end", s)), "reproduced"),
    ("init", lambda arm, s: run(start=(0.5, 0.5 + noise(arm, s)), spearman=0.9), "not reproduced"),
    ("init", lambda arm, s: run(start=(0.5, -0.5 + noise(arm, s)), spearman=-0.9), "not reproduced"),
    ("distill", geometry("cosine", {TAUGHT: 0.51, DISPERSED: 0.3}), "reproduced"),
    ("distill", geometry("cosine", {TAUGHT: 0.2, DISPERSED: 0.3}), "not reproduced"),
    ("distill", geometry("cosine", {"student with a dispersed teacher": 0.2, DISPERSED: 0.3}), "not reproduced"),
    ("distill", geometry("cosine", {TAUGHT: 0.51}), "undecided"),  # the second teacher is as condensed as the first
    ("counteract", geometry("cosine", {CE: 0.5, DISP: 0.3}), "reproduced"),
    ("counteract", geometry("cosine", {CE: 0.3, DISP: 0.5}), "not reproduced"),
    ("counteract", lambda arm, s: run(cosine=0.5 + (0.2 if (s == 2) == (arm == DISP) else 0.0)), "undecided"),
    ("dose", held({"λ −1": 3.2, "λ +1": 2.9}), "reproduced"),
    ("dose", held({"λ −1": 3.0, "λ +1": 3.2}), "not reproduced"),
    ("dose", held({"λ −1": 3.2, "λ +1": 3.2}), "not reproduced"),
    ("estimators", geometry("cosine", {CE: 0.5}, 0.3), "reproduced"),
    ("estimators", geometry("cosine", {CE: 0.5, "sampled": 0.4}, 0.3), "not reproduced"),
    ("estimators", held({CE: 3.5}), "undecided"),  # the exact loss moved nothing
    ("variants", held({DISP: 2.8}), "reproduced"),
    ("variants", held({DISP: 3.2}), "not reproduced"),
    ("hyper", held({"λ 0.1, τ 1": 2.8}), "reproduced"),
    ("hyper", held({"λ 0.5, τ 1": 2.8}), "not reproduced"),
    ("hyper", lambda arm, s: run(held_out=3.0 + 0.1 * s + noise(arm, s, 0.0003)), "reproduced"),  # cells that tie
    ("hyper", lambda arm, s: run(held_out=3.0 + 0.1 * s + noise(arm, s, 0.01)), "undecided"),
    ("variants", lambda arm, s: run(held_out=2.8 if arm == DISP else 3.0 + noise(arm, s), speed=None), "reproduced"),
    ("arch", lambda arm, s: run(spearman=0.8 + noise(arm, s)), "reproduced"),
    ("arch", lambda arm, s: run(spearman=(-0.8 if "Olmo2" in arm else 0.8) + noise(arm, s)), "not reproduced"),
    ("arch", lambda arm, s: run(spearman=(0.1 * (s - 2) if "Olmo2" in arm else 0.8) + noise(arm, s)), "undecided"),
    ("arch", one_hardly_learns, "reproduced"),  # the case of Olmo2 above, where it has learned
    ("size", lambda arm, s: run(spearman=1 - layers(arm) / 3, parameters=10 ** layers(arm)), "reproduced"),
    ("size", lambda arm, s: run(spearman=layers(arm) / 3 - 1.5, parameters=10 ** layers(arm)), "not reproduced"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "make", "verdict"), CASES)
def test_verdict_from_three_seeds(name, make, verdict):
    end = of(name, make)
    assert end.verdict == verdict, end.sentence
    assert end.rows
    assert all(len(row) == len(end.columns) for row in end.rows)


@pytest.mark.parametrize(("name", "make"), [(n, m) for n, m, v in CASES if v == "reproduced" and n != "size"])
def test_one_seed_decides_nothing(name, make):
    """For size the unit is the model, and one seed of each is enough."""
    for seeds in ([1], [1, 2]):
        assert of(name, make, seeds).verdict == "undecided"


@pytest.mark.parametrize("name", ["width", "counteract", "dose", "variants", "hyper", "size", "distill", "estimators"])
def test_no_effect_is_rarely_called_reproduced(name):
    """Arms that differ by noise alone. Claims of sameness are tried at the edge of their margin."""
    rng = np.random.default_rng(0)
    edge = {
        "distill": {"cosine": {TAUGHT: -0.05, DISPERSED: -0.3}},
        "estimators": {"cosine": {CE: 2.0, "sampled": 0.2}},  # nine tenths of what the exact loss does
        "hyper": {"held_out": {"λ 0.5, τ 1": -0.002}},
    }.get(name, {})

    def make(arm, seed):
        shift = {key: values.get(arm, 0.0) for key, values in edge.items()}
        made = run(
            held_out=3 + 0.002 * rng.normal() + shift.get("held_out", 0),
            cosine=0.5 + 0.02 * rng.normal() + shift.get("cosine", 0),
            spearman=0.3 * rng.normal(),
            parameters=int(10 ** rng.uniform(5, 7)),
        )
        for shot in made["snapshots"]:
            del shot["histogram"]  # is drawn, and decides nothing
        return made

    trials = 200
    wrong = sum(of(name, make).verdict == "reproduced" for _ in range(trials))
    assert wrong / trials <= 0.07  # 5 % and two standard errors of 200 trials are 8 %


def test_figures_are_drawn_and_small(tmp_path):
    """One of each kind; the same numbers give the same bytes."""
    for name in ("counteract", "width", "dose", "variants"):
        end = of(name, held({DISP: 2.9}))
        end.draw(tmp_path / f"{name}.png")
        assert 10_000 < (tmp_path / f"{name}.png").stat().st_size < 400_000
    end.draw(tmp_path / "again.png")
    assert (tmp_path / "again.png").read_bytes() == (tmp_path / f"{name}.png").read_bytes()


@pytest.mark.parametrize("name", ["counteract", "distill", "hyper", "width"])
def test_an_arm_that_was_not_run_has_no_numbers(name):
    study, settings = studies.find(name), settings_of(studies.find(name), "smoke")
    for arm in settings["arms"]:
        runs = [one for one in of_seeds(settings, lambda arm, seed: run(), [1]) if one.record.arm == arm]
        assert " nan" not in concluded(study, settings, runs).sentence


def test_an_arm_that_diverged_is_undecided_and_not_an_error():
    end = of("dose", lambda arm, s: run(held_out=None if (arm, s) == ("λ +1", 2) else 3.0))
    assert end.verdict == "undecided"
    assert "without a value" in end.sentence


# ---- studies with numbers of their own ----


def benchmarks(gain, seeds, rng, change=lambda runs: None):
    study, settings = settled("benchmarks")

    def make(arm, seed):
        tasks = {task: packed(rng, 0.4 + gain * (arm == DISP)) for task in ("piqa", "arc_easy")}
        return run(outcomes=scored(tasks, f"{arm}-{seed}", settings, piqa=0.5))

    runs = of_seeds(settings, make, seeds)
    change([one.outcomes for one in runs if one.record.arm == CE])
    return concluded(study, settings, runs)


def test_benchmarks_need_seeds_and_an_effect():
    rng = np.random.default_rng(0)
    end = benchmarks(0.3, [1, 2, 3], rng)
    assert end.verdict == "reproduced"
    assert [row[0] for row in end.rows] == ["piqa", "arc_easy", "average", "average by S/N"]
    shown = [dict(zip(end.columns, row)) for row in end.rows]
    assert shown[2]["nats"] == end.estimate["likelihood"]["difference"]
    assert shown[1]["signal_to_noise"] > shown[0]["signal_to_noise"] > 0  # as much above 1/4 as above 1/2
    assert end.estimate["likelihood"] is not None
    for seeds in ([1], [1, 2]):
        assert benchmarks(0.3, seeds, rng).verdict == "undecided"
    assert benchmarks(-0.3, [1, 2, 3], rng).verdict == "not reproduced"
    assert benchmarks(0.0, [1, 2, 3], rng).verdict != "reproduced"


def test_benchmarks_refuse_copies_and_other_items():
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="same weights"):
        benchmarks(0.0, [1, 2, 3], rng, lambda plain: setattr(plain[1], "weights", plain[0].weights))
    with pytest.raises(ValueError, match="same items of 'piqa'"):
        benchmarks(0.0, [1, 2, 3], rng, lambda plain: setattr(plain[1].outcomes["piqa"], "items", "other"))


def test_outcomes_survive_packing():
    items = [
        {"subtask": "t", "item": f"{i}", "task": "t", "correct": float(i % 3 == 0), "gold": [0], "units": [1, 1],
         "loglikelihoods": [-1.0 - i / 7, -2.0]}
        for i in range(50)
    ]  # fmt: skip
    kept = outcomes.pack(items)
    assert outcomes.unpack(kept).tolist() == [i["correct"] for i in items]
    for i, share in zip(items, outcomes.unpack(kept, "log_share")):
        a, b = i["loglikelihoods"]
        assert share == pytest.approx(a - math.log(math.exp(a) + math.exp(b)), abs=2e-3)
    assert outcomes.pack(list(reversed(items))).items != kept.items
    graded = [{**i, "correct": 0.25, "loglikelihoods": None} for i in items]
    assert outcomes.unpack(outcomes.pack(graded)).tolist() == [0.25] * 50
    assert outcomes.pack(graded).log_share is None


def test_dose_slope_by_hand():
    losses = {"λ −1": 3.0, "λ 0": 3.1, "λ +1": 3.4}
    end = of("dose", lambda arm, s: run(held_out=losses[arm]))
    assert end.estimate["slope"]["estimate"] == pytest.approx((-3.0 + 3.4) / 2)
    assert end.estimate["against_zero"]["λ +1"]["estimate"] == pytest.approx(0.3)
    study, settings = settled("dose")
    runs = of_seeds(settings, lambda arm, s: run(held_out=losses[arm]), [1, 2, 3])
    condensing = concluded(study, settings | {"dose": -1.0}, runs).estimate
    assert condensing["deciding"] == {"λ −1 − λ 0": condensing["against_zero"]["λ −1"]}


def test_matched_cost_by_hand():
    """Cross-entropy gains 0.1 from 10 % more tokens; an arm that takes 1.2 times as long is charged 0.2."""

    def make(arm, seed):
        if arm == variants.LONGER:
            return run(held_out=2.9)
        return run(held_out=3.0 + noise(arm, seed, 1e-9), speed=1200.0 / 1.2 if arm == DISP else 1200.0)

    end = of("variants", make)
    assert "At matched cost minus decorrelation +0.2000" in end.sentence
    assert end.estimate["at_matched_cost"][DISP]["mean"] == pytest.approx(3.0 - (3.0 - 0.2))
    assert end.estimate["at_matched_cost"]["vicreg"]["mean"] == pytest.approx(0.0, abs=1e-6)
    charged = end.estimate["contrasts_at_matched_cost"].values()
    assert {one["verdict"] for one in charged} == {"not reproduced"}  # it costs more than it brings


def test_every_registered_loss_is_a_variant():
    from decondense.losses.registry import registered

    for scale in ("smoke", "paper"):  # at gpu scale it is the paper's table
        _, settings = settled("variants", scale)
        there = {arm.get("loss", {}).get("name") for arm in settings["arms"].values()}
        assert registered().keys() - there == registered("control").keys()


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([0.8, 0.82, 0.79, 0.81], "reproduced"),
        ([0.8, -0.8, 0.7, -0.9], "not reproduced"),
        ([0.8, 0.82], "undecided"),  # narrow as the intervals over windows may be
        ([0.8, 0.65, 0.9, 0.7], "undecided"),
    ],
)
def test_text_takes_the_text_as_the_unit(values, verdict):
    study, settings = settled("text", "gpu")
    of_text = dict(zip(settings["texts"], values))

    def numbers(config):
        value = of_text.get(config["text"])
        return None if value is None else snapshot(None, spearman=value, window_interval=[value - 0.01, value + 0.01])

    end = concluded(study, settings, measured(study, settings, numbers))
    assert end.verdict == verdict
    assert len(end.rows) == len(values) * len(settings["models"])
    assert len(settings["texts"]) == 10
    level = "undecided" if len(values) < 3 else "reproduced"  # of which all have the same
    assert f"By the trend over depth {verdict}, by the level of the mean cosine {level}." in end.sentence
    assert end.estimate["verdicts"] == {"trend": verdict, "level": level}


def test_text_takes_the_level_of_all_models():
    """The first that is told is steady, another is not."""
    study, settings = settled("text", "gpu")
    jumps = {text: 0.3 + 0.5 * (i % 2) for i, text in enumerate(settings["texts"])}

    def numbers(config):
        last = config["model"] == max(settings["models"])
        return snapshot(None, cosine=jumps[config["text"]] if last else 0.5, spearman=0.8)

    end = concluded(study, settings, measured(study, settings, numbers))
    assert end.estimate["verdicts"] == {"trend": "reproduced", "level": "not reproduced"}


def test_size_takes_the_model_as_the_unit_and_families_have_levels():
    study, settings = settled("size", "paper")
    families = {"GPT2": (8, 0.9, 0.01), "Bloom": (9, 0.5, -0.01)}

    def numbers(config):
        if config["family"] not in families:
            return None
        size, level, noise = families[config["family"]]
        i = settings["families"][config["family"]].index(config["model"])
        value = level - 0.2 * i + noise * (-1) ** i
        return snapshot(None, spearman=value, model=config["model"], parameters=int(10 ** (size + i / 3)))

    runs = measured(study, settings, numbers)
    end = concluded(study, settings, runs)
    assert end.verdict == "reproduced"
    assert end.estimate["slope"]["estimate"] == pytest.approx(-0.6, abs=0.05)
    assert end.estimate["slope"]["n"] == 9
    assert concluded(study, settings, runs[:3]).verdict == "undecided"


def dose(arm: str) -> float:
    return float(arm.removeprefix("λ ").replace("−", "-"))


# study → (arm, sign) → numbers whose trend goes as the claim says, and whose level does so for the sign 1
SIDES = {
    "size": lambda arm, sign: {
        "spearman": 1 - layers(arm) / 10, "cosine": 0.5 - sign * layers(arm) / 20, "parameters": 10 ** layers(arm)
    },
    "dose": lambda arm, sign: {"spearman": 0.5 - dose(arm) / 10, "cosine": 0.5 - sign * dose(arm) / 10},
    "arch": lambda arm, sign: {"spearman": 0.9, "cosine": 0.5, "start": (0.5 - sign / 10, 0.9)},
    "distill": lambda arm, sign: {"spearman": 0.5, "cosine": 0.5 + sign * (arm == TAUGHT) / 5},
    "width": lambda arm, sign: {"spearman": 0.9 * (arm == NARROW), "cosine": 0.5 + sign * (arm == NARROW) / 5},
    "init": lambda arm, sign: {"spearman": 0.5, "cosine": 0.5, "start": (0.5 + sign / 10, 1.0)},
    "counteract": lambda arm, sign: {"spearman": 0.5 * (arm == PLAIN), "cosine": 0.5 + sign * (arm == PLAIN) / 5},
}  # fmt: skip


@pytest.mark.parametrize("name", SIDES)
def test_trend_and_level_stand_side_by_side(name):
    """Claims about condensation have both verdicts, as the level may go the other way."""
    for sign, level in ((1, "reproduced"), (-1, "not reproduced")):

        def make(arm, seed, sign=sign):
            numbers = SIDES[name](arm, sign)
            return run(**numbers | {k: numbers[k] + noise(arm + k, seed) for k in ("spearman", "cosine")})

        end = of(name, make)
        sentence = end.sentence.replace("by the trend", "By the trend")
        if name != "dose":  # whose verdict is about held-out loss
            assert end.estimate["verdicts"] == {"trend": "reproduced", "level": level}
        assert f"By the trend over depth reproduced, by the level of the mean cosine {level}." in sentence


def test_a_gain_is_bounded_over_all_weights_that_were_tried():
    """The bound over one weight is not that over the best of several."""
    study, settings = settled("dose", "gpu")

    def make(arm, seed):
        return run(held_out=3.0 + 0.1 * seed + noise(arm, seed, 0.0003 if arm == "λ +0.1" else 0.002))

    end = concluded(study, settings, of_seeds(settings, make, [1, 2, 3]))
    lows = {arm: d["low"] for arm, d in end.estimate["against_zero_corrected"].items()}
    assert set(lows) == {"λ +0.1", "λ +0.3", "λ +1"}
    assert end.estimate["gain_at_most"] == -min(lows.values()) > -end.estimate["against_zero"]["λ +0.1"]["low"]
    gaps = [noise("λ +0.3", s, 0.002) - noise("λ 0", s, 0.002) for s in (1, 2, 3)]
    assert lows["λ +0.3"] == pytest.approx(interval(gaps, 1 - 0.05 / 3).low, abs=1e-6)
    assert f"at most {end.estimate['gain_at_most']:.4f} nats (over 3 weights" in end.sentence


def test_width_says_when_level_and_trend_disagree():
    trends = {NARROW: 0.9, WIDE: -0.2}

    def end(cosines):
        return of("width", lambda arm, s: run(spearman=trends[arm] + noise(arm, s), cosine=cosines[arm] + s / 1000))

    against = end({NARROW: 0.2, WIDE: 0.4})
    assert against.verdict == "reproduced"
    assert against.estimate["mean_cosine"]["estimate"] == pytest.approx(-0.2)
    assert "0.202 and 0.402" in against.sentence
    assert "it is the wider that are condensed" in against.sentence
    assert "it is the wider" not in end({NARROW: 0.4, WIDE: 0.2}).sentence


def test_init_says_how_the_level_changes():
    end = of("init", lambda arm, s: run(start=(0.3, 1.0), spearman=s / 100, cosine=0.4 + s / 1e6))
    assert end.verdict == "reproduced"
    assert end.estimate["mean_cosine"]["estimate"] == pytest.approx(0.1, abs=1e-4)
    assert "end minus step 0, +0.100" in end.sentence


def test_published_checkpoints_are_one_run_each():
    study, settings = settled("init", "paper")
    models = list(settings["checkpoints"])

    def numbers(config):
        i, last = models.index(config["model"]), len(settings["checkpoints"][config["model"]]) - 1
        start, end = (0.95 + i / 100, -0.4 - i / 100)
        return snapshot(None, spearman=start + (end - start) * config["place"] / last)

    runs = measured(study, settings, numbers)
    first = [one for one in runs if one.record.config["model"] == models[0]]
    assert concluded(study, settings, first).verdict == "undecided"
    assert concluded(study, settings, runs).verdict == "reproduced"
    # a run without its end does not count
    assert concluded(study, settings, runs[:-1]).estimate["start"]["n"] == 3


def test_an_older_study_of_distillation_has_one_teacher():
    """Without the second one the criterion and the verdict are about the first."""
    study, settings = settled("distill", "gpu")
    settings["arms"] = {arm: settings["arms"][arm] for arm in (ALONE, TAUGHT)}
    study.check(settings)
    assert "dispersed" in study.criterion
    assert "dispersed" not in study.criterion_of(settings)
    make = geometry("cosine", {ALONE: 0.5, TAUGHT: 0.51})
    end = concluded(study, settings, of_seeds(settings, make, [1, 2, 3]))
    assert (end.verdict, "dispersed" in end.sentence) == ("reproduced", False)


def test_distilled_pairs():
    study, settings = settled("distill", "paper")

    def numbers(config):
        level = 0.4 + config["pair"] / 50 + config["taught"] / 100 + noise(config["model"], config["pair"])
        return snapshot(None, cosine=level, model=config["model"], parameters=10**9, window_interval=[0, 1])

    runs = measured(study, settings, numbers)
    assert concluded(study, settings, runs).verdict == "reproduced"
    assert concluded(study, settings, runs[:4]).verdict == "undecided"


def test_the_mean_cosine_of_a_snapshot_is_that_of_its_blocks():
    """The embedding, which no loss acts on, is left out."""
    assert Snapshot(**snapshot(0, mean_cosine=[0.9, 0.1, 0.3], histogram=None)).blocks == pytest.approx(0.2)
    assert math.isnan(Snapshot(**snapshot(0, mean_cosine=[0.9, None, 0.3], histogram=None)).blocks)


def test_size_draws_every_seed_and_the_lowest_spearman_of_one_family(monkeypatch):
    """Families of different depth have no such line in common."""
    strips = []
    monkeypatch.setattr("decondense.figures.studies.draw", lambda of, path: strips.append(of[1]))
    of("size", lambda arm, s: run(spearman=s / 100 - layers(arm) / 10, parameters=10 ** layers(arm))).draw(path=None)
    study, settings = settled("size", "paper")
    shot = snapshot(None, spearman=0.1, model="m", parameters=10**8)
    concluded(study, settings, measured(study, settings, lambda config: shot)).draw(path=None)
    (trend, level), (several, _) = (strip.rows[0] for strip in strips)
    assert (trend.y.title, level.y.title) == ("Spearman", "mean cosine of the blocks")
    lines = [[mark for mark in chart.frames[-1].marks if mark.name.startswith("lowest")] for chart in (trend, several)]
    assert list(lines[0][0].y) == [floor(STATES)] * 4
    assert not lines[1]
    assert sum(len(mark.x) for mark in trend.frames[-1].marks if mark.hollow) == 4 * 3
