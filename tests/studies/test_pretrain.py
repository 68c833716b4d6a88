"""The screen's choice and the confirmation's intervals, on runs made by hand."""

from __future__ import annotations

import math
import re
from itertools import product
from typing import Any

import numpy as np
import pytest
from study_runs import packed, run, scored

from decondense.figures.chart import PALETTE, pale
from decondense.records import Training
from decondense.studies import find, settings_of
from decondense.studies.arms import recipe_of
from decondense.studies.contrasts import by_texts
from decondense.studies.outcomes import unpack
from decondense.studies.pretrain import _with_rate, arms, tokens_saved
from decondense.studies.runs import Members, Run, Runs, by_document, trained_name
from decondense.words import amount, signed


def training(arm: str, seed: int, losses: dict[str, list[float]], **more: Any) -> Run:
    documents = [
        {"text": text, "document": i, "tokens": 10, "loss": loss}
        for text, values in losses.items()
        for i, loss in enumerate(values)
    ]
    content = run(held_out_documents=documents) | {"recipe": {"train": {"seed": seed}}, "arm": arm}
    del content["outcomes"]
    return Run(f"{arm}-{seed}", Training.model_validate(content | more))


def test_texts_weigh_the_same_whatever_they_are_long():
    plain = training("a", 1, {"one": [1.0, 2.0, 3.0], "two": [6.0]}).record
    assert by_document(plain) == pytest.approx((2.0 + 6.0) / 2)
    pairs = by_texts([plain], [training("b", 1, {"one": [1.0, 2.0, 2.5], "two": [5.0]}).record])
    assert [float((t - b).mean()) for b, t in pairs] == pytest.approx([-0.5 / 3, -1.0])
    with pytest.raises(ValueError, match="the same held-out documents"):
        by_texts([plain], [training("b", 1, {"one": [1.0]}).record])


def test_tokens_saved_is_read_off_the_baselines_own_curve():
    budgets, losses = [10.0, 20.0, 40.0], [4.0, 3.5, 3.25]
    assert tokens_saved(budgets, losses, 20.0, 3.5) == pytest.approx(0.0)
    assert tokens_saved(budgets, losses, 10.0, 3.5) == pytest.approx(0.5)  # the baseline needs twice as many
    assert tokens_saved(budgets, losses, 20.0, 3.375) == pytest.approx(1 - 1 / math.sqrt(2))
    assert tokens_saved(budgets, losses, 40.0, 3.0) == pytest.approx(0.5)  # beyond the end, as before it
    assert tokens_saved(budgets, losses, 10.0, 4.5) == pytest.approx(-1.0)  # worse: half would have done
    assert math.isnan(tokens_saved([10.0], [4.0], 10.0, 3.9))
    assert math.isnan(tokens_saved(budgets, [3.0, 3.5, 3.2], 10.0, 3.1))  # no curve that falls


def confirmed(gain: dict[str, float], *, noise: float = 0.002, seeds: int = 5, without: str = "", **more: Any) -> Any:
    """The study over runs whose loss falls with the budget, and by `gain` (budget → nats) with the loss attached; all
    arms but one. `more`: settings."""
    study = find("pretrain")
    settings = settings_of(study, "smoke", seeds=list(range(1, seeds + 1))) | more
    rng = np.random.default_rng(0)
    runs = []
    documents = rng.normal(0, 0.3, (2, 30))
    for seed in settings["seeds"]:
        shift = rng.normal(0, 0.01)  # of the seed, in all arms
        for arm in settings["arms"]:
            loss, _, budget = arm.split(" · ")
            level = 4.0 + shift - 0.1 * (budget != amount(512)) - (gain[budget] if loss != "cross-entropy" else 0.0)
            noisy = level + documents + rng.normal(0, noise, documents.shape) + rng.normal(0, noise)
            if arm != without:
                runs.append(training(arm, seed, {"one": noisy[0].tolist(), "two": noisy[1].tolist()}))
    return study.conclude(Runs(runs, list(settings["arms"])), settings)


@pytest.mark.parametrize(
    ("gain", "verdict"),
    [
        ({"512": 0.05, "1.02k": 0.03}, "reproduced"),
        ({"512": 0.05, "1.02k": 0.0}, "not reproduced"),  # a head start that is gone at the end
        ({"512": 0.0, "1.02k": -0.05}, "not reproduced"),
        ({"512": 0.0, "1.02k": 0.005}, "undecided"),  # at the smallest effect that matters
    ],
)
def test_the_largest_budget_decides(gain, verdict):
    end = confirmed(gain)
    assert end.verdict == verdict
    last, first = ({**dict(zip(end.columns, row))} for row in end.rows)
    assert first["difference"] == pytest.approx(-gain["512"], abs=0.004)
    assert last["low"] < -gain["1.02k"] < last["high"]
    assert last["tokens_saved"] == pytest.approx(1 - 2 ** (-gain["1.02k"] / 0.1), abs=0.03)
    assert end.draw.keywords["strong"] == [row["p_holm"] < 0.05 for row in (first, last)]  # filled: significant
    assert end.draw.keywords["strong"][0] == (gain["512"] > 0)


@pytest.mark.parametrize(("gain", "verdict"), [(0.05, "reproduced"), (0.0, "not reproduced")])
def test_a_loss_is_judged_at_the_largest_budget_that_it_has(gain, verdict):
    """Cross-entropy alone was trained with the larger one: that decides nothing."""
    assert confirmed({"512": gain, "1.02k": -gain}, without="decorrelation last 1 · llama · 1.02k").verdict == verdict


def test_two_seeds_that_agree_decide_nothing():
    assert confirmed({"512": 0.05, "1.02k": 0.05}, seeds=2).verdict == "undecided"


def test_whether_a_loss_makes_models_quantise_better_where_runs_know_it():
    study = find("pretrain")
    settings = settings_of(study, "smoke", seeds=[1, 2, 3])
    costs = {"cross-entropy": {1: 0.10, 2: 0.20, 3: 0.30}, "decorrelation last 1": {1: 0.08, 2: 0.14, 3: 0.27}}
    runs = []
    for seed, arm in product(settings["seeds"], settings["arms"]):
        loss, _, budget = arm.split(" · ")
        more: dict[str, Any] = {}
        if budget == amount(512):
            after = {"one": 3.0 + costs[loss][seed] - 0.01, "two": 5.0 + costs[loss][seed] + 0.01}
            more = {"held_out_texts": {"one": 3.0, "two": 5.0}, "held_out_quantised": {"int4": after}}
        runs.append(training(arm, seed, {"one": [3.0, 3.1], "two": [5.0, 5.1]}, **more))
    end = study.conclude(Runs(runs, list(settings["arms"])), settings)
    last, first = (dict(zip(end.columns, row)) for row in end.rows)
    apart = np.array([-0.02, -0.06, -0.03])  # by hand: t with two degrees of freedom is 4.30265
    half = 4.30265 * apart.std(ddof=1) / math.sqrt(3)
    found = [first[f"int4_{what}"] for what in ("cross_entropy", "difference", "low", "high")]
    assert found == pytest.approx([0.2, apart.mean(), apart.mean() - half, apart.mean() + half], rel=1e-5)
    assert math.isnan(last["int4_difference"])  # those runs were not asked
    assert not any("int4" in column for column in confirmed({"512": 0.0, "1.02k": 0.0}).columns)


def test_tasks_are_told_where_both_arms_were_scored():
    """Averages over tasks and seeds by hand, at the level divided by the two cells; a third has no seed in common.
    Intervals are those of `significance`, tested there."""
    study = find("pretrain")
    settings = settings_of(study, "smoke", seeds=[1, 2, 3])
    settings["arms"]["vicreg · llama · 1.02k"] = settings["arms"]["cross-entropy · llama · 1.02k"]
    treated, both = "decorrelation last 1", ("512", "1.02k")
    rng = np.random.default_rng(0)
    runs, values = [], {}
    for seed, arm in product(settings["seeds"], settings["arms"]):
        one = training(arm, seed, {"one": [3.0, 3.1 + 0.01 * seed], "two": [5.0, 5.1]})
        tasks = {task: packed(rng, 0.5) for task in ("lambada_openai", "piqa")}
        if not arm.startswith("vicreg"):
            one = one._replace(outcomes=scored(tasks, one.name, settings))
            for kind, (task, kept) in product(("correct", "log_share"), one.outcomes.outcomes.items()):
                values.setdefault((arm, kind, task), []).append(unpack(kept, kind).mean())
        runs.append(one)
    end = study.conclude(Runs(runs, list(settings["arms"])), settings)
    rows = {(row[0], amount(row[2])): dict(zip(end.columns, row)) for row in end.rows}
    assert [rows["vicreg", "1.02k"][name] for name in ("points_difference", "tasks_level")] == [None, None]
    for column, scale, kind, tasks, words, digits in (
        ("points", 100, "correct", ["lambada_openai", "piqa"], "Average over tasks minus cross-entropy's, points", 2),
        ("nats", 1, "log_share", ["lambada_openai", "piqa"], "Log-likelihood of what is right, nats per item", 4),
        ("lambada_nats", 1, "log_share", ["lambada_openai"], "That of LAMBADA's last words", 4),
    ):
        for budget in both:
            level, plain = (
                float(np.mean([values[f"{loss} · llama · {budget}", kind, task] for task in tasks]))
                for loss in (treated, "cross-entropy")
            )
            row, told = rows[treated, budget], end.estimate["tasks"][f"{treated} · llama · {budget}"][column]
            assert row[f"{column}_difference"] == pytest.approx(scale * (level - plain)) == told["estimate"]
            assert row[f"{column}_low"] < row[f"{column}_difference"] < row[f"{column}_high"]
            assert (told["level"], told["low"], told["high"]) == (0.975, row[f"{column}_low"], row[f"{column}_high"])
            assert (row["level"], row["tasks_level"]) == (0.95, told["level"])
            number = f"{treated}, llama, {budget}: {signed(told['estimate'], digits)} 97.5 % interval"
            assert re.search(rf"{re.escape(words)}[^:]*: [^.]*.*{re.escape(number)}", end.sentence)
    bare = confirmed({"512": 0.0, "1.02k": 0.0})
    assert "tasks" not in bare.estimate
    assert not any("points" in column or "tasks" in column for column in bare.columns)


def test_what_changes_is_told_seed_by_seed_and_by_hand(tmp_path):
    study = find("pretrain")
    settings = settings_of(study, "smoke", seeds=[1, 2])
    runs = []
    for seed, arm in product(settings["seeds"], settings["arms"]):
        added = 0.0 if arm.startswith("cross-entropy") else 0.1 * seed
        groups = {"frequency": 10, "position": 8}
        by = {name: [{"tokens": 5, "loss": 3.0 + seed + i * added} for i in range(n)] for name, n in groups.items()}
        by["position"][3] = {"tokens": 0, "loss": None}
        history = (
            [{"step": 1, "tokens": 256, "loss": 9.0, "task_loss": 5.0 + seed - added}]
            if added
            else [{"step": 1, "tokens": 256, "loss": 5.0 + seed}]
        )
        runs.append(training(arm, seed, {"one": [3.0, 3.1 + added]}, held_out_by=by, history=history))
    end = study.conclude(Runs(runs, list(settings["arms"])), settings)
    panels = end.more["why-llama-1-02k.png"].args[0]
    (name,) = panels[0]["series"]
    assert panels[0]["series"][name] == ([256], [pytest.approx([-0.1, -0.2])])
    places, values = panels[2]["series"][name]
    assert (places[0], len(places), values[4]) == (0.5, 10, pytest.approx([0.4, 0.8]))
    assert panels[3]["series"][name][0] == [0.5, 1.5, 2.5, 4.5, 5.5, 6.5, 7.5]
    assert list(panels[1]["series"]) == [name, "cross-entropy"]
    assert all(panel["names"] == ["cross-entropy", name] for panel in panels)  # the same colour in all
    assert [panel["legend"] for panel in panels] == [False, True, False, False]  # where all arms are
    assert end.more["why-llama-1-02k.png"].keywords["note"].startswith("llama, 1.02k tokens, 2 seeds: ")
    assert end.more["why-llama-1-02k.png"](tmp_path / "why-llama-1-02k.png").stat().st_size > 1000
    assert list(end.more) == ["why-llama-1-02k.png"]  # whose losses are those of the smaller budget
    less = Runs(
        [run for run in runs if run.record.arm != "decorrelation last 1 · llama · 1.02k"], list(settings["arms"])
    )
    assert list(study.conclude(less, settings).more) == ["why-llama-512.png"]
    assert list(confirmed({"512": 0.0, "1.02k": 0.0}).more) == ["budgets.png"]  # runs that keep no such thing


def test_where_losses_end_over_learning_rates(tmp_path):
    """By recipe and not by name; a loss with one rate is no line, and a model with two rates has no panel."""
    study = find("pretrain")
    settings = settings_of(study, "smoke", seeds=[1, 2])
    rates = {"slow": 0.001, "plain": 0.003, "fast": 0.009}
    models = {name: {"train": {"learning_rate": rate}} for name, rate in rates.items()}
    losses = {"cross-entropy": {}, "vicreg": {"loss": {"name": "vicreg"}}, "koleo": {"loss": {"name": "koleo"}}}
    settings["arms"] = arms({"models": models, "budgets": [512, 1024], "losses": losses})
    made = {"cross-entropy": rates, "vicreg": ("plain", "fast"), "koleo": ("plain",)}
    made = [f"{loss} · {model} · 512" for loss, of in made.items() for model in of]
    made += [f"cross-entropy · {model} · 1.02k" for model in ("slow", "fast")]
    runs = [training(arm, seed, {"one": [3.0 + i + seed / 10]}) for i, arm in enumerate(made) for seed in (1, 2)]
    runs = [run for run in runs if (run.record.arm, run.record.recipe["train"]["seed"]) != ("vicreg · fast · 512", 2)]
    figure = study.conclude(Runs(runs, list(settings["arms"])), settings).more["rates.png"]
    (panel,) = figure.args[0]
    assert (panel["title"], panel["ticks"]) == ("slow, 512 tokens", [0.001, 0.003, 0.009])
    assert {name: values for name, (_, values) in panel["series"].items()} == {
        "cross-entropy (2, 2, 2)": [pytest.approx([3.1 + i, 3.2 + i]) for i in range(3)],
        "vicreg (2, 1)": [pytest.approx([6.1, 6.2]), pytest.approx([7.1])],
    }
    plain, other = (x for x, _ in panel["series"].values())
    assert [plain, other] == [pytest.approx([0.001, 0.003, 0.009], rel=0.02), pytest.approx([0.003, 0.009], rel=0.02)]
    assert [there / here for here, there in zip(plain[1:], other)] == pytest.approx([1.03, 1.03])  # side by side
    assert figure(tmp_path / "rates.png").stat().st_size > 1000


def test_what_a_loss_does_over_budgets(tmp_path):
    """Of two rates that of the lower cross-entropy; fewer than three seeds, or one budget, are no line."""
    study = find("pretrain")
    settings = settings_of(study, "smoke", seeds=[1, 2, 3])
    models = {"plain": {}, "fast": {"train": {"learning_rate": 0.009}}, "wide": {"model": {"config": {"n_embd": 8}}}}
    losses = {"cross-entropy": {}, "vicreg": {"loss": {"name": "vicreg"}}, "koleo": {"loss": {"name": "koleo"}}}
    settings["arms"] = arms({"models": models, "budgets": [512, 1024], "losses": losses})
    ends = {"cross-entropy · plain · 512": 3.0, "cross-entropy · fast · 512": 2.9, "cross-entropy · plain · 1.02k": 2.8,
            "vicreg · plain · 512": 3.5, "vicreg · fast · 512": 3.0, "vicreg · plain · 1.02k": 2.6,
            "koleo · plain · 512": 3.1, "koleo · plain · 1.02k": 2.7,  # nothing at the best rate
            "cross-entropy · wide · 512": 3.0, "vicreg · wide · 512": 2.0}  # fmt: skip
    runs = [training(arm, seed, {"one": [end + seed / 10]}) for arm, end in ends.items() for seed in (1, 2, 3)]
    # a rate of two seeds is not the best
    runs += [training("cross-entropy · fast · 1.02k", seed, {"one": [2.0]}) for seed in (1, 2)]
    figure = study.conclude(Runs(runs, list(settings["arms"])), settings).more["budgets.png"]
    (panel,) = figure.args[0]
    (loss, (places, gaps)), = panel["series"].items()  # fmt: skip
    assert (panel["title"], panel["ticks"], panel["labels"]) == ("plain", [512, 1024], ["512", "1.02k"])
    assert (loss, places) == ("vicreg", [512, 1024])
    assert gaps == [pytest.approx([0.1] * 3), pytest.approx([-0.2] * 3)]
    assert panel["limits"] == pytest.approx((-0.245, 0.19))
    assert figure(tmp_path / "budgets.png").stat().st_size > 1000


def test_what_only_some_runs_keep_is_shown_where_all_have_it():
    """Rank and noise of one place; a noise that was not to be seen in one seed is left out for all."""
    study = find("pretrain")
    settings = settings_of(study, "smoke", seeds=[1, 2])
    runs = []
    for seed, arm in product(settings["seeds"], settings["arms"]):
        by = {name: [{"tokens": 5, "loss": 3.0}] * n for name, n in {"frequency": 10, "position": 8}.items()}
        noises = [1000.0 * seed, None if seed == 2 else 7.0]
        probes = [
            {"step": i, "tokens": 256 * i, "gradient_noise": noise, "frequency_share": 0.1}
            for i, noise in enumerate(noises)
        ]
        runs.append(training(arm, seed, {"one": [3.0]}, held_out_by=by, probes=probes))
    panels = study.conclude(Runs(runs, list(settings["arms"])), settings).more["why-llama-1-02k.png"].args[0]
    by_title = {panel["title"]: panel["series"] for panel in panels}
    assert by_title["Gradient"]["cross-entropy"] == ([0, 256], [[1.0, 2.0], [0.007]])  # of the seed that has one
    assert by_title["Last state: frequency"]["cross-entropy"] == ([0, 256], [[0.1, 0.1]] * 2)
    assert "Last state: rank" not in by_title


def test_a_run_that_was_not_asked_about_quantisation_is_the_same_training():
    study = find("pretrain")
    settings = settings_of(study, "smoke")
    members = Members(study.plan(settings), settings)
    (arm, *_), recipe = settings["arms"], recipe_of(settings, next(iter(settings["arms"])), 2).model_dump(mode="json")
    del recipe["train"]["quantised"]  # as older versions wrote it
    found, reason = members.take(Run("any", training(arm, 2, {"one": [3.0]}, recipe=recipe).record))
    assert (found is not None and found.name, reason) == (trained_name(arm, 2), "")
    recipe["train"]["warmup"] = 0.5
    assert members.take(Run("any", training(arm, 2, {"one": [3.0]}, recipe=recipe).record))[0] is None


def test_the_screen_takes_the_best_rate_of_the_best_arms_and_no_control():
    study = find("screen")
    settings = settings_of(study, "gpu")
    losses = dict.fromkeys(settings["arms"], 4.5) | {
        "cross-entropy @ 0.001": 4.10, "cross-entropy @ 0.002": 4.05,
        "decorrelation last 1 @ 0.002": 4.01, "decorrelation last 1 @ 0.003": 4.30,
        "decorrelation last 3 @ 0.002": 4.02,  # a second weight of the same
        "z-loss 1e-3 @ 0.002": 4.00,  # a control
        "koleo last 1 @ 0.002": 4.03, "dispersion all 0.1 @ 0.002": 4.07,
        "llama: cross-entropy warm-up 40 % @ 0.003": 3.90, "llama: uniformity last 0.1 @ 0.003": 3.95,
        "llama: decorrelation last 0.3 warm-up 40 % @ 0.003": 3.89,
    }  # fmt: skip
    runs = [training(arm, 1, {"one": [loss], "two": [loss]}) for arm, loss in losses.items()]
    end = study.conclude(Runs(runs, list(settings["arms"])), settings)
    assert end.verdict == "undecided"
    assert end.estimate["chosen"] == {
        "cross-entropy": ["decorrelation last 1 @ 0.002", "koleo last 1 @ 0.002"],
        "llama: cross-entropy": ["llama: decorrelation last 0.3 warm-up 40 % @ 0.003"],  # each model by its own
    }
    assert end.estimate["cross_entropy"] == pytest.approx({"cross-entropy": 4.05, "llama: cross-entropy": 3.90})
    row = next(r for r in end.rows if r[0] == "decorrelation last 1 @ 0.003")
    assert row[3] == pytest.approx(4.30 - 4.5)  # against cross-entropy at the same rate
    panels = end.draw.args[0]
    assert [panel["title"] for panel in panels] == [
        "gpt2: warm-up 5 %",
        "gpt2: each at its best rate, 0.001 to 0.003",
        "llama: each at its best rate, 0.002 to 0.003",
    ]
    assert all(panel.get("legend", True) for panel in panels)

    part = study.conclude(Runs(runs[1:], list(settings["arms"])), settings)  # without cross-entropy @ 0.0005
    assert part.estimate["chosen"] == {}
    assert "nothing is chosen before all are run: 1 of" in part.sentence
    assert "cross-entropy @ 0.0005 among them" in part.sentence


def test_a_model_may_have_budgets_of_its_own():
    models = {"a": {"train": {"seed": 1}}, "b": {"train": {"seed": 2}, "budgets": [2000]}}
    named = {"models": models, "budgets": [1000], "losses": {"cross-entropy": {}, "x": {"loss": {"weight": 1}}}}
    planned = arms(named)
    assert [*planned] == ["cross-entropy · a · 1k", "x · a · 1k", "cross-entropy · b · 2k", "x · b · 2k"]
    assert planned["x · b · 2k"] == {"train": {"seed": 2}, "loss": {"weight": 1}, "data": {"tokens": 2000}}
    assert models["b"]["budgets"] == [2000], "the settings are left as they were"


def test_differences_beside_the_criterion():
    """Told at 95 %, over the seeds that both have, and counted in no correction."""
    plain, treated = (f"{loss} · llama · 512" for loss in ("cross-entropy", "decorrelation last 1"))
    longer = "cross-entropy · llama · 1.02k"
    asked = [treated, longer], [plain, longer]
    end, without = (confirmed({"512": 0.05, "1.02k": 0.0}, beside=some) for some in (asked, ()))
    assert (end.verdict, end.rows) == (without.verdict, without.rows)
    told = end.estimate["beside"]
    names = [
        f"{loss}, llama, 512 minus cross-entropy, llama, 1.02k" for loss in ("decorrelation last 1", "cross-entropy")
    ]
    assert list(told) == names
    ahead, level = (told[name] for name in names)
    assert ahead["estimate"] == pytest.approx(0.05, abs=0.004)  # 0.1 fewer by the budget, 0.05 by the loss
    assert level["estimate"] == pytest.approx(0.1, abs=0.004)
    assert {decision["level"] for decision in told.values()} == {0.95}
    assert f"at 95 %: {names[0]}: {signed(ahead['estimate'], 4)} [" in end.sentence
    assert "Beside the criterion" not in without.sentence
    assert "Not compared" not in end.sentence + without.sentence
    with pytest.raises(ValueError, match="beside must name pairs of arms, got 'nothing'"):
        find("pretrain").check(settings_of(find("pretrain"), "smoke", changes=['beside=[["nothing", "else"]]']))


def test_pairs_beside_the_criterion_without_their_arms_are_named_as_not_compared():
    study = find("pretrain")
    treated, plain = (f"{loss} · llama · 512" for loss in ("decorrelation last 1", "cross-entropy"))
    settings = settings_of(
        study, "smoke", changes=[f'arms={{"{plain}": {{}}, "{treated}": {{loss: {{name: cosreg}}}}}}']
    )
    study.check(settings)
    fewer = {arm: change for arm, change in settings_of(study, "smoke")["arms"].items() if arm in (treated, plain)}
    found = confirmed({"512": 0.05}, arms=fewer)
    assert "beside" not in found.estimate
    pair = "decorrelation last 1, llama, 512 minus cross-entropy, llama, 1.02k"
    assert found.sentence.endswith(f"Not compared, without a seed that both have: {pair}.")


def test_the_figure_is_in_the_order_of_models_losses_and_tokens(tmp_path, monkeypatch):
    """Each model with its rate; pairs beside the criterion are in the text alone, and cells of two seeds nowhere."""
    study = find("pretrain")
    models = {"small": {"train": {"learning_rate": 0.003}}, "small at 0.005": {"train": {"learning_rate": 0.005}}}
    losses = {"cross-entropy": {}, "uniformity": {"loss": {"name": "uniformity"}}, "koleo": {"loss": {"name": "koleo"}}}
    planned = arms({"models": models, "budgets": [512, 1024], "losses": losses})
    beside = [["koleo · small · 512", "koleo · small at 0.005 · 512"]]
    settings = settings_of(study, "smoke", seeds=[1, 2, 3]) | {"arms": planned, "beside": beside}
    few = "koleo · small at 0.005 · 512"
    runs = [
        training(arm, seed, {"one": [3.0 - 0.1 * ("koleo" in arm) + seed * seed / 1000 * ("koleo" in arm)]})
        for arm in planned for seed in (1, 2, 3)[: 2 if arm == few else 3]
    ]  # fmt: skip
    end = study.conclude(Runs(runs, list(planned)), settings)
    assert end.estimate["beside"]
    drawn = []
    monkeypatch.setattr("decondense.figures.studies.draw", lambda strips, path: drawn.append(strips[0].rows[0][0]))
    end.draw(tmp_path / "figure.png")
    (chart,) = drawn
    both = ["uniformity, 512", "1.02k", "koleo, 512", "1.02k"]
    assert [label for _, label in chart.y.ticks] == [*both, *both[:2], "koleo, 1.02k"]
    heads = [(remark.words, remark.y) for remark in chart.remarks]
    assert heads == [("small, learning rate 0.003", 9), ("small, learning rate 0.005", 4)]
    assert {place for place, _ in chart.y.ticks} == {8, 7, 6, 5, 3, 2, 1}
    squares = {mark.y[0]: mark.colour for mark in chart.frames[0].marks if mark.symbol == "square"}
    green, amber = PALETTE[2], PALETTE[4]  # those of uniformity and koleo in every figure
    of = {8: green, 7: green, 6: amber, 5: amber, 3: green, 2: green, 1: amber}
    assert all(colour in (of[place], pale(of[place])) for place, colour in squares.items())
    assert len(squares) == 7


def test_a_rate_is_told_once_and_what_else_a_model_is_called_stays():
    of = {"gpt2 at 0.005": 0.005, "gpt2 clipped": 0.005, "gpt2 768": 0.0015}
    settings = {"base": {}, "arms": {f"x · {model} · 1M": {"train": {"learning_rate": r}} for model, r in of.items()}}
    told = [_with_rate(("x", model, "1M"), settings) for model in of]
    assert told == [
        "gpt2, learning rate 0.005", "gpt2 clipped, learning rate 0.005", "gpt2 768, learning rate 0.0015",
    ]  # fmt: skip
