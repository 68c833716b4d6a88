"""Every study at every scale is complete and valid, without running anything; the command and its errors."""

from __future__ import annotations

import json

import pytest
from study_pieces import of_seeds, run, write

from decondense import studies
from decondense.studies import training
from decondense.studies.study import safe_name, settings_of

NAMES = [
    "size", "text", "width", "arch", "init", "distill", "counteract", "benchmarks", "variants", "hyper", "dose",
    "estimators", "theory",
]  # fmt: skip
EVERY = [(name, scale) for name in NAMES for scale in studies.SCALES]


def test_the_thirteen_studies_are_there():
    assert list(studies.STUDIES) == NAMES


@pytest.mark.parametrize(("name", "scale"), EVERY)
def test_settings_are_complete_and_recipes_valid(name, scale):
    study = studies.STUDIES[name]
    about = study.scales[scale]
    assert about["about"]
    assert about["cost"]
    settings = settings_of(study, scale)
    assert json.loads(json.dumps(settings)) == settings
    if study.check is not None:
        study.check(settings)
    plan = study.plan(settings)
    names = [p.name for p in plan]
    assert names
    assert len(set(names)) == len(names)
    assert all(safe_name(n) == n for n in names)
    if "arms" in settings and "seeds" in settings:
        covered = [(p.what["seed"], arm) for p in plan if "arms" in p.what for arm in p.what["arms"]]
        assert sorted(covered) == sorted((s, arm) for s in settings["seeds"] for arm in settings["arms"])
        assert len({safe_name(arm) for arm in settings["arms"]}) == len(settings["arms"])
    if scale == "gpu" and "seeds" in settings:
        assert len(settings["seeds"]) >= 3


@pytest.mark.parametrize("name", NAMES)
def test_the_criterion_is_stated_before(name):
    """In the result, and in the words of the file."""
    study = studies.STUDIES[name]
    words = " ".join(__import__(f"decondense.studies.{name}", fromlist=["x"]).__doc__.split())
    assert "Criterion" in words
    assert study.criterion
    assert study.question.endswith("?")


def test_arms_are_what_they_say():
    def recipe(name, scale, arm):
        return training.recipe_of(settings_of(studies.STUDIES[name], scale), arm, 5)

    assert recipe("width", "gpu", "MLP width 64").model.config["n_inner"] == 64
    assert recipe("width", "paper", "MLP width 4096").model.config["n_embd"] == 768
    assert recipe("dose", "gpu", "λ −0.3").loss.weight == -0.3
    assert recipe("dose", "gpu", "λ 0").loss.name == "none"
    paper = recipe("counteract", "paper", "dispersion")
    assert (paper.model.name, paper.data.tokens, paper.steps, paper.loss.weight) == (
        "openai-community/gpt2",
        200_000_000,
        1526,
        0.1,
    )
    assert recipe("estimators", "gpu", "sampled").loss.options["max_tokens"] == 256
    assert recipe("variants", "gpu", "l2_repel, ancestor").loss.preset == "disperse"
    assert recipe("variants", "gpu", "active forgetting").baselines.active_forgetting.every == 100
    assert recipe("hyper", "gpu", "λ 0.1, τ 0.5").loss.options["tau"] == 0.5
    assert recipe("hyper", "gpu", "layers: late half").loss.layers == "late_half"
    assert recipe("distill", "gpu", "student with a teacher").baselines.distillation.teacher == "smollm2-135m"
    assert recipe("benchmarks", "gpu", "cross-entropy").data.tokens == 20_000_000
    assert (
        recipe("arch", "gpu", "SmolLM3: RMSNorm before, no positions, tied").model.config["no_rope_layers"] == [0] * 12
    )
    assert recipe("dose", "gpu", "λ 0").train.seed == 5


def test_a_change_keeps_the_order_of_the_arms():
    """Pieces are numbered by it, so the same piece must be the same arms with and without a change."""
    for name in ("dose", "width", "variants"):
        study = studies.STUDIES[name]
        plain, changed = (
            settings_of(study, "gpu"),
            settings_of(study, "gpu", ["base.data.tokens=5M", "base.loss.weight=0.2"]),
        )
        assert list(changed["arms"]) == list(plain["arms"])
        assert [p.what for p in study.plan(changed)] == [p.what for p in study.plan(plain)]
        assert changed["base"]["data"]["tokens"] == "5M"
        assert study.scales["gpu"]["base"]["data"]["tokens"] != "5M"


def test_joined_goes_section_by_section():
    base = {"a": {"b": 1, "c": {"d": 2}}, "e": 3}
    assert training.joined(base, {"a": {"c": {"d": 9}}, "e": None}) == {"a": {"b": 1, "c": {"d": 9}}}
    assert base["a"]["c"]["d"] == 2


# ---- the command ----


def test_list(command):
    code, out, _ = command("study", "list")
    assert code == 0
    for study in studies.STUDIES.values():
        assert study.question in out.replace("\n", " ")
        assert study.claim in out
    assert out.count("smoke ") >= 13
    code, out, _ = command("study", "list", "--json")
    listed = json.loads(out)
    assert [s["study"] for s in listed] == NAMES
    assert listed[2]["scales"]["gpu"]["pieces"] == ["seed-1", "seed-2", "seed-3"]


def test_plan_lists_pieces(command):
    code, out, _ = command("study", "dose", "--scale", "gpu", "--plan", "--seeds", "4,5")
    assert code == 0
    assert "seed-4-1" in out
    assert "seed-5-2" in out
    _, out, _ = command("study", "dose", "--scale", "gpu", "--plan", "--piece", "seed-2-1")
    assert out.split()[:2] == ["3", "seed-2-1"]
    assert out.count("seed") == 2
    code, _, err = command("study", "dose", "--scale", "gpu", "--plan", "--piece", "seed-9")
    assert code == 2
    assert "no piece 'seed-9'" in err


def test_merge_takes_pieces_from_elsewhere(command, tmp_path):
    study = studies.STUDIES["dose"]
    settings = settings_of(study, "smoke")
    write(tmp_path / "a", of_seeds(study, "smoke", settings, lambda arm, s: run(held_out=3 + s / 10), [1, 2]))
    write(tmp_path / "b", of_seeds(study, "smoke", settings, lambda arm, s: run(held_out=3 + s / 10), [3]))
    code, out, _ = command(
        "study", "dose", "--merge", "--from", tmp_path / "a", "--from", tmp_path / "b", "--out", tmp_path / "c"
    )
    assert code == 0
    assert "undecided: " in out
    record = json.loads((tmp_path / "c" / "result.json").read_text())
    assert record["pieces"] == ["seed-1", "seed-2", "seed-3"]
    code, out, _ = command("study", "dose", "--merge", "--out", tmp_path / "c", "--json")
    assert json.loads(out) == record


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["widht"], "there is no study 'widht': did you mean 'width'?"),
        (["zzz"], "The studies are size, text, width"),
        (["width", "--scale", "huge"], "scale must be one of smoke, gpu, paper, got 'huge'"),
        (["width", "--seeds", "1,x"], "--seeds must be whole numbers"),
        (["width", "--seeds", "1,1"], "must be different whole numbers"),
        (["theory", "--seeds", "1"], "trains nothing"),
        (["width", "--piece", "9"], "has no piece '9': its pieces are 1 (seed-1)"),
        (["width", "--set", "bse.data.tokens=5"], "did you mean 'base'?"),
        (["width", "--set", "base.data.tokens.x=5"], "goes into 'tokens', which is a value"),
        (["width", "--set", "base"], "must be key=value"),
        (["width", "--set", "base.data.text=[a"], "must be YAML"),
        (["width", "--set", "base.data.tokns=5"], "'data.tokns' is no key of a recipe: did you mean 'tokens'?"),
        (["width", "--from", "x"], "goes with --merge"),
        (["width", "--merge", "--piece", "1"], "leave them out"),
        (["width", "--set", "base.data.text=novels:train", "--piece", "1"], "'novels' is read from a local folder"),
        (["benchmarks", "--bench", "nowhere"], "benchmark folder 'nowhere' does not exist"),
    ],
)  # fmt: skip
def test_errors_are_one_sentence_and_leave_nothing(command, tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    code, _, err = command("study", *arguments)
    assert code == 2
    *_, last = err.strip().splitlines()
    assert last.startswith("error: ")
    assert sentence in last
    assert list(tmp_path.rglob("result.json")) == []
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]
