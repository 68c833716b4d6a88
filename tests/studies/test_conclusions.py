"""From runs with known numbers to the verdict: the sign of every criterion, and what it says of no effect."""

from __future__ import annotations

import math

import numpy as np
import pytest
from decondense.studies.study import settings_of
from study_pieces import of_seeds, outcomes, piece, run, snapshot

from decondense import studies
from decondense.studies import dose, variants
from decondense.studies import outcomes as kept


def noise(arm: str, seed: int, size: float = 0.001) -> float:
    return size * math.sin(7 * seed + 13 * sum(map(ord, arm)))


def held(losses, default=3.0):
    """Runs whose held-out loss depends on the arm, with a seed's level and a little noise."""
    return lambda arm, s: run(held_out=losses.get(arm, default) + 0.1 * s + noise(arm, s))


def geometry(name, values, default=0.5):
    return lambda arm, s: run(**{name: values.get(arm, default) + noise(arm, s)})


def layers(arm: str) -> int:
    return int(arm[0])


NARROW, WIDE = "MLP width 8", "MLP width 256"
ALONE, TAUGHT = "student alone", "student with a teacher"
CE, DISP = "cross-entropy", "dispersion"
CASES = [
    ("width", geometry("spearman", {NARROW: 0.9, WIDE: -0.2}), "reproduced"),
    ("width", geometry("spearman", {NARROW: -0.2, WIDE: 0.9}), "not reproduced"),
    ("width", lambda arm, s: run(spearman=[0.1, 0.9, 0.4][s % 3] if arm == NARROW else 0.4), "undecided"),
    ("init", lambda arm, s: run(start=(0.5, 0.9 + noise(arm, s)), spearman=-0.4 + noise("end", s)), "reproduced"),
    ("init", lambda arm, s: run(start=(0.5, 0.5 + noise(arm, s)), spearman=0.9), "not reproduced"),
    ("init", lambda arm, s: run(start=(0.5, -0.5 + noise(arm, s)), spearman=-0.9), "not reproduced"),
    ("distill", geometry("cosine", {ALONE: 0.5, TAUGHT: 0.51}), "reproduced"),
    ("distill", geometry("cosine", {ALONE: 0.5, TAUGHT: 0.2}), "not reproduced"),
    ("counteract", geometry("cosine", {CE: 0.5, DISP: 0.3}), "reproduced"),
    ("counteract", geometry("cosine", {CE: 0.3, DISP: 0.5}), "not reproduced"),
    ("counteract", lambda arm, s: run(cosine=0.5 + (0.2 if (s == 2) == (arm == DISP) else 0.0)), "undecided"),
    ("dose", held({"λ −1": 3.2, "λ +1": 2.9}), "reproduced"),
    ("dose", held({"λ −1": 3.0, "λ +1": 3.2}), "not reproduced"),
    ("dose", held({"λ −1": 3.2, "λ +1": 3.2}), "not reproduced"),
    ("estimators", held({CE: 3.5}), "reproduced"),
    ("estimators", held({"sampled": 3.2}), "not reproduced"),
    ("variants", held({DISP: 2.8}), "reproduced"),
    ("variants", held({DISP: 3.2}), "not reproduced"),
    ("hyper", held({"λ 0.1, τ 1": 2.8}), "reproduced"),
    ("hyper", held({"λ 0.5, τ 1": 2.8}), "not reproduced"),
    ("hyper", held({}), "undecided"),
    ("arch", lambda arm, s: run(spearman=0.8 + noise(arm, s)), "reproduced"),
    ("arch", lambda arm, s: run(spearman=(-0.8 if "Olmo2" in arm else 0.8) + noise(arm, s)), "not reproduced"),
    ("arch", lambda arm, s: run(spearman=(0.1 * (s - 2) if "Olmo2" in arm else 0.8) + noise(arm, s)), "undecided"),
    ("size", lambda arm, s: run(spearman=1 - layers(arm) / 3, parameters=10 ** layers(arm)), "reproduced"),
    ("size", lambda arm, s: run(spearman=layers(arm) / 3 - 1.5, parameters=10 ** layers(arm)), "not reproduced"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "make", "verdict"), CASES)
def test_verdict_from_three_seeds(name, make, verdict):
    study = studies.STUDIES[name]
    settings = settings_of(study, "smoke")
    end = study.conclude(of_seeds(study, "smoke", settings, make, [1, 2, 3]), settings)
    assert end.verdict == verdict, end.sentence
    assert end.rows
    assert all(len(row) == len(end.columns) for row in end.rows)


@pytest.mark.parametrize(("name", "make"), [(n, m) for n, m, v in CASES if v == "reproduced" and n != "size"])
def test_one_seed_decides_nothing(name, make):
    """For size the unit is the model, and one seed of each is enough."""
    study = studies.STUDIES[name]
    settings = settings_of(study, "smoke")
    for seeds in ([1], [1, 2]):
        assert study.conclude(of_seeds(study, "smoke", settings, make, seeds), settings).verdict == "undecided"


@pytest.mark.parametrize("name", ["width", "counteract", "dose", "variants", "hyper", "size", "distill", "estimators"])
def test_no_effect_is_rarely_called_reproduced(name):
    """Arms that differ by noise alone. Claims of sameness are tried at the edge of their margin."""
    study = studies.STUDIES[name]
    settings = settings_of(study, "smoke")
    rng = np.random.default_rng(0)
    edge = {"distill": {"cosine": {TAUGHT: -0.05}}, "estimators": {"held_out": dict.fromkeys(["sampled"], 0.005)}}.get(
        name, {}
    )

    def make(arm, seed):
        shift = {key: values.get(arm, 0.0) for key, values in edge.items()}
        return run(
            held_out=3 + 0.002 * rng.normal() + shift.get("held_out", 0),
            cosine=0.5 + 0.02 * rng.normal() + shift.get("cosine", 0),
            spearman=0.3 * rng.normal(),
            parameters=int(10 ** rng.uniform(5, 7)),
        )

    trials = 200
    wrong = sum(
        study.conclude(of_seeds(study, "smoke", settings, make, [1, 2, 3]), settings).verdict == "reproduced"
        for _ in range(trials)
    )
    assert wrong / trials <= 0.07  # 5 % and two standard errors of 200 trials are 8 %


def test_figures_are_drawn_and_small(tmp_path):
    """One of each kind; the same numbers give the same bytes."""
    for name in ("counteract", "width", "dose", "estimators", "variants"):
        study = studies.STUDIES[name]
        settings = settings_of(study, "smoke")
        end = study.conclude(of_seeds(study, "smoke", settings, held({DISP: 2.9}), [1, 2, 3]), settings)
        end.draw(tmp_path / f"{name}.png")
        assert 10_000 < (tmp_path / f"{name}.png").stat().st_size < 400_000
    end.draw(tmp_path / "again.png")
    assert (tmp_path / "again.png").read_bytes() == (tmp_path / f"{name}.png").read_bytes()


# ---- studies with numbers of their own ----


def benchmark_pieces(gain, seeds, rng):
    study = studies.STUDIES["benchmarks"]
    settings = settings_of(study, "smoke")

    def make(arm, seed):
        found = {task: outcomes(rng, 0.4 + gain * (arm == DISP)) for task in ("piqa", "arc_easy")}
        return run(weights=f"{arm}-{seed}", outcomes=found, scores={"piqa": 0.5})

    return study, settings, of_seeds(study, "smoke", settings, make, seeds)


def test_benchmarks_need_seeds_and_an_effect():
    rng = np.random.default_rng(0)
    study, settings, found = benchmark_pieces(0.3, [1, 2, 3], rng)
    end = study.conclude(found, settings)
    assert end.verdict == "reproduced"
    assert [row[0] for row in end.rows] == ["piqa", "arc_easy", "average"]
    assert end.estimate["likelihood"] is not None
    for seeds in ([1], [1, 2]):
        study, settings, found = benchmark_pieces(0.3, seeds, rng)
        assert study.conclude(found, settings).verdict == "undecided"
    study, settings, found = benchmark_pieces(-0.3, [1, 2, 3], rng)
    assert study.conclude(found, settings).verdict == "not reproduced"
    study, settings, found = benchmark_pieces(0.0, [1, 2, 3], rng)
    assert study.conclude(found, settings).verdict != "reproduced"


def test_benchmarks_refuse_copies_and_other_items():
    rng = np.random.default_rng(0)
    study, settings, found = benchmark_pieces(0.0, [1, 2, 3], rng)
    found[1]["runs"][CE]["weights"] = found[0]["runs"][CE]["weights"]
    with pytest.raises(ValueError, match="same weights"):
        study.conclude(found, settings)
    study, settings, found = benchmark_pieces(0.0, [1, 2, 3], rng)
    found[1]["runs"][CE]["outcomes"]["piqa"]["items"] = "other"
    with pytest.raises(ValueError, match="same items of 'piqa'"):
        study.conclude(found, settings)


def test_outcomes_survive_packing():
    items = [
        {"subtask": "t", "item": f"{i}", "task": "t", "correct": float(i % 3 == 0), "gold": [0], "units": [1, 1],
         "loglikelihoods": [-1.0 - i / 7, -2.0]}
        for i in range(50)
    ]  # fmt: skip
    packed = kept.pack(items)
    assert kept.unpack(packed).tolist() == [i["correct"] for i in items]
    for i, share in zip(items, kept.unpack(packed, "log_share")):
        a, b = i["loglikelihoods"]
        assert share == pytest.approx(a - math.log(math.exp(a) + math.exp(b)), abs=2e-3)
    assert kept.pack(list(reversed(items)))["items"] != packed["items"]
    graded = [{**i, "correct": 0.25, "loglikelihoods": None} for i in items]
    assert kept.unpack(kept.pack(graded)).tolist() == [0.25] * 50
    assert "log_share" not in kept.pack(graded)


def test_dose_slope_by_hand():
    study = studies.STUDIES["dose"]
    settings = settings_of(study, "smoke")
    losses = {"λ −1": 3.0, "λ 0": 3.1, "λ +1": 3.4}
    end = study.conclude(
        of_seeds(study, "smoke", settings, lambda arm, s: run(held_out=losses[arm]), [1, 2, 3]), settings
    )
    assert end.estimate["slope"]["estimate"] == pytest.approx((-3.0 + 3.4) / 2)
    assert end.estimate["against_zero"]["λ +1"]["estimate"] == pytest.approx(0.3)
    assert dose.name(0.1) == "λ +0.1"
    assert dose.name(-1.0) == "λ −1"


def test_matched_cost_by_hand():
    """Cross-entropy gains 0.1 from 10 % more tokens; an arm that takes 1.2 times as long is charged 0.2."""
    study = studies.STUDIES["variants"]
    settings = settings_of(study, "smoke")

    def make(arm, seed):
        if arm == variants.LONGER:
            return run(held_out=2.9)
        return run(held_out=3.0 + noise(arm, seed, 1e-9), speed=1200.0 / 1.2 if arm == DISP else 1200.0)

    end = study.conclude(of_seeds(study, "smoke", settings, make, [1, 2, 3]), settings)
    assert end.estimate["at_matched_cost"][DISP]["mean"] == pytest.approx(3.0 - (3.0 - 0.2))
    assert end.estimate["at_matched_cost"]["vicreg"]["mean"] == pytest.approx(0.0, abs=1e-6)
    assert end.verdict == "not reproduced"  # it costs more than it brings


def text_pieces(values):
    study = studies.STUDIES["text"]
    settings = settings_of(study, "gpu")
    measured = {
        t: snapshot(0, spearman=v, window_interval=[v - 0.01, v + 0.01]) for t, v in zip(settings["texts"], values)
    }
    return study, settings, [
        piece(study, "gpu", settings, f"m-{t}", {"model": "smollm2-135m", "text": t}, measurements={t: s})
        for t, s in measured.items()
    ]  # fmt: skip


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
    study, settings, found = text_pieces(values)
    end = study.conclude(found, settings)
    assert end.verdict == verdict
    assert len(end.rows) == len(values)


def test_size_takes_the_model_as_the_unit_and_families_have_levels():
    study = studies.STUDIES["size"]
    settings = settings_of(study, "paper")

    def measure(family, model, size, value):
        m = snapshot(0, spearman=value, model=model, parameters=size, window_interval=[value, value])
        return piece(
            study, "paper", settings, model.replace("/", "-"), {"family": family, "model": model}, measurement=m
        )

    gpt2, bloom = settings["families"]["GPT2"], settings["families"]["Bloom"]
    found = [measure("GPT2", m, 10 ** (8 + i / 3), 0.9 - 0.2 * i + 0.01 * (-1) ** i) for i, m in enumerate(gpt2)]
    found += [measure("Bloom", m, 10 ** (9 + i / 3), 0.5 - 0.2 * i - 0.01 * (-1) ** i) for i, m in enumerate(bloom)]
    end = study.conclude(found, settings)
    assert end.verdict == "reproduced"
    assert end.estimate["slope"]["estimate"] == pytest.approx(-0.6, abs=0.05)
    assert end.estimate["slope"]["n"] == 9
    assert study.conclude(found[:3], settings).verdict == "undecided"


def test_width_says_when_level_and_trend_disagree():
    study = studies.STUDIES["width"]
    settings = settings_of(study, "smoke")

    def made(cosines):
        trends = {NARROW: 0.9, WIDE: -0.2}
        make = lambda arm, s: run(spearman=trends[arm] + noise(arm, s), cosine=cosines[arm] + s / 1000)  # noqa: E731
        return of_seeds(study, "smoke", settings, make, [1, 2, 3])

    against = study.conclude(made({NARROW: 0.2, WIDE: 0.4}), settings)
    assert against.verdict == "reproduced"
    assert against.estimate["mean_cosine"]["estimate"] == pytest.approx(-0.2)
    assert "0.202 and 0.402" in against.sentence
    assert "it is the wider that are condensed" in against.sentence
    assert "it is the wider" not in study.conclude(made({NARROW: 0.4, WIDE: 0.2}), settings).sentence


def test_init_says_how_the_level_changes():
    study = studies.STUDIES["init"]
    settings = settings_of(study, "smoke")
    found = of_seeds(
        study,
        "smoke",
        settings,
        lambda arm, s: run(start=(0.3, 1.0), spearman=s / 100, cosine=0.4 + s / 1e6),
        [1, 2, 3],
    )
    end = study.conclude(found, settings)
    assert end.verdict == "reproduced"
    assert end.estimate["mean_cosine"]["estimate"] == pytest.approx(0.1, abs=1e-4)
    assert "end minus step 0, +0.100" in end.sentence


def test_published_checkpoints_are_one_run_each():
    study = studies.STUDIES["init"]
    settings = settings_of(study, "paper")

    def row(model, first, last):
        revisions = settings["checkpoints"][model]
        values = np.linspace(first, last, len(revisions))
        return [
            piece(study, "paper", settings, f"{model[:12]}-{i}".replace("/", "-"),
                  {"model": model, "revision": r, "place": i}, measurement=snapshot(0, spearman=float(v)))
            for i, (r, v) in enumerate(zip(revisions, values))
        ]  # fmt: skip

    models = list(settings["checkpoints"])
    assert study.conclude(row(models[0], 1.0, -0.4), settings).verdict == "undecided"
    every = [p for i, m in enumerate(models) for p in row(m, 0.95 + i / 100, -0.4 - i / 100)]
    assert study.conclude(every, settings).verdict == "reproduced"
    assert study.conclude(every[:-1], settings).estimate["start"]["n"] == 3  # a run without its end does not count


def test_distilled_pairs():
    study = studies.STUDIES["distill"]
    settings = settings_of(study, "paper")
    found = []
    for i, pair in enumerate(settings["pairs"]):
        for k, model in enumerate(pair):
            m = snapshot(
                0,
                cosine=0.4 + i / 50 + k / 100 + noise(model, i),
                model=model,
                parameters=10**9,
                window_interval=[0, 1],
            )
            what = {"model": model, "pair": i, "taught": bool(k)}
            found.append(piece(study, "paper", settings, f"{i}-{k}", what, measurement=m))
    assert study.conclude(found, settings).verdict == "reproduced"
    assert study.conclude(found[:4], settings).verdict == "undecided"


def test_the_mean_cosine_of_a_snapshot_is_that_of_its_blocks():
    """The embedding, which no loss acts on, is left out."""
    from decondense.studies.training import blocks, cosine

    shots = [snapshot(0, mean_cosine=[0.9, 0.1, 0.3]), snapshot(1, mean_cosine=[0.9, 0.5, 0.7])]
    assert [blocks(shot) for shot in shots] == pytest.approx([0.2, 0.6])
    assert (cosine({"snapshots": shots}), cosine({"snapshots": shots}, 0)) == pytest.approx((0.6, 0.2))
