"""Every study at every scale is complete and valid, without running anything; the command and its errors."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys

import pytest
from study_runs import of_seeds, run, write

from decondense import studies
from decondense.commands import terminal
from decondense.files import safe_name
from decondense.losses.registry import registered
from decondense.studies import placebo, release, settings_of
from decondense.studies.arms import recipe_of, teacher_of
from decondense.studies.contrasts import SMALLEST
from decondense.studies.runs import MATTERS_COSINE
from decondense.studies.settings import command_of, joined

NAMES = [
    "size", "text", "width", "init", "distill", "counteract", "benchmarks", "theory", "dose", "arch", "estimators",
    "variants", "hyper",
]  # fmt: skip
EVERY = [(name, scale) for name in studies.STUDIES for scale in studies.SCALES]


def test_the_studies_are_there_and_the_numbered_claims_come_first():
    assert set(NAMES) <= set(studies.STUDIES)
    assert [s.claim for s in studies.STUDIES.values()][:7] == [f"C{number}" for number in range(1, 8)]


@pytest.mark.parametrize(("name", "scale"), EVERY)
def test_settings_are_complete_and_recipes_valid(name, scale):
    study = studies.STUDIES[name]
    assert all(
        (study.criterion, study.question.endswith("?"), study.scales[scale]["about"], study.scales[scale]["cost"])
    )
    settings = settings_of(study, scale)
    assert json.loads(json.dumps(settings)) == settings
    study.check(settings)
    plan = study.plan(settings)
    names = [p.name for p in plan]
    assert bool(names) == (name != "theory")  # which computes
    assert len(set(names)) == len(names)
    assert all(safe_name(n) == n for n in names)
    if "arms" in settings and "seeds" in settings:
        covered = [(p.seed, p.arm) for p in plan if p.arm is not None]
        first, once = settings["seeds"][0], settings.get("once", ())
        ordered = sorted(
            settings["arms"], key=lambda arm: name != "distill" or arm not in ("teacher", "dispersed teacher")
        )
        assert covered == [(s, arm) for s in settings["seeds"] for arm in ordered if s == first or arm not in once]
    if scale == "gpu" and "seeds" in settings and name != "screen":  # which chooses, and decides nothing
        assert len(settings["seeds"]) >= 3


def test_arms_are_what_they_say():
    def recipe(name, scale, arm):
        return recipe_of(settings_of(studies.STUDIES[name], scale), arm, 5)

    assert recipe("width", "gpu", "MLP width 64").model.config["n_inner"] == 64
    assert recipe("width", "paper", "MLP width 4096").model.config["n_embd"] == 768
    assert recipe("dose", "gpu", "λ −0.3").loss.weight == -0.3
    assert recipe("dose", "gpu", "λ 0").loss.name == "none"
    paper = recipe("counteract", "paper", "dispersion")
    assert (paper.model.name, paper.data.tokens) == ("openai-community/gpt2", 200_000_000)
    assert (paper.steps, paper.loss.weight) == (1526, 0.1)
    assert recipe("estimators", "gpu", "sampled").loss.options["max_tokens"] == 256
    assert recipe("variants", "smoke", "l2_repel, ancestor").loss.preset == "disperse"
    assert recipe("variants", "gpu", "decorrelation on last").loss.layers == "last"
    mixture = recipe("pretrain", "gpu", "cross-entropy · gpt2 · 40M").data.text
    for name, arm in (("variants", "cross-entropy"), ("hyper", "λ 1, τ 1"), ("release", "cross-entropy")):
        assert recipe(name, "gpu", arm).data.text == mixture
    assert recipe("variants", "gpu", "active forgetting").baselines.active_forgetting.every == 100
    assert recipe("hyper", "gpu", "λ 0.1, τ 0.5").loss.options["tau"] == 0.5
    assert recipe("hyper", "gpu", "layers: late half").loss.layers == "late_half"
    assert recipe("distill", "gpu", "student with a teacher").baselines.distillation.teacher == "smollm2-135m"
    taught = recipe("distill", "gpu", "student with a dispersed teacher").baselines.distillation.teacher
    assert taught.startswith("teacher ")  # and the fingerprint of the arm
    dispersed = recipe("distill", "gpu", "dispersed teacher")
    assert (dispersed.model.name, dispersed.model.architecture, dispersed.loss.weight) == ("smollm2-135m", None, 3.0)
    assert recipe("benchmarks", "gpu", "cross-entropy").data.tokens == 20_000_000
    nowhere = recipe("arch", "gpu", "SmolLM3: RMSNorm before, no positions, tied")
    assert nowhere.model.config["no_rope_layers"] == [0] * 12
    assert recipe("dose", "gpu", "λ 0").train.seed == 5


def test_a_teacher_of_all_arms_is_that_of_each_that_keeps_it():
    base = {"baselines": {"distillation": {"teacher": "large"}}}
    arms = {"small": {}, "with dropout": {"baselines": {"dropout": 0.1}}, "large": {"baselines": None}}
    assert [teacher_of({"base": base, "arms": arms}, arm) for arm in arms] == ["large", "large", None]


def test_a_change_keeps_the_order_of_the_arms():
    """Runs are numbered by it, so the same number must be the same arm with and without a change."""
    for name in ("dose", "width", "variants"):
        study = studies.STUDIES[name]
        changes = ["base.data.tokens=5M", "base.loss.weight=0.2"]
        plain, changed = settings_of(study, "gpu"), settings_of(study, "gpu", changes)
        assert list(changed["arms"]) == list(plain["arms"])
        assert study.plan(changed) == study.plan(plain)
        assert changed["base"]["data"]["tokens"] == "5M"
        assert study.scales["gpu"]["base"]["data"]["tokens"] != "5M"


def test_joined_goes_section_by_section():
    base = {"a": {"b": 1, "c": {"d": 2}}, "e": 3}
    assert joined(base, {"a": {"c": {"d": 9}}, "e": None}) == {"a": {"b": 1, "c": {"d": 9}}}
    assert base["a"]["c"]["d"] == 2


# ---- the command ----


def test_list(command):
    code, out, _ = command("study", "list", "--json")
    assert code == 0
    listed = json.loads(out)
    assert [s["question"] for s in listed] == [study.question for study in studies.STUDIES.values()]
    assert [s["study"] for s in listed] == list(studies.STUDIES)
    assert listed[2]["scales"]["gpu"]["pieces"][:2] == ["MLP-width-64-seed-1", "MLP-width-256-seed-1"]
    for scale in studies.SCALES:  # the same answer as the table's
        _, shown, _ = command("study", "list", "--scale", scale)
        listed = json.loads(command("study", "list", "--scale", scale, "--json")[1])
        rows = [[row["study"], row["short"], str(row["runs"]), row["cost"]] for row in listed]
        assert [" ".join(row).split() for row in rows] == [line.split() for line in shown.splitlines()[1:-1]]


@pytest.mark.parametrize("flag", [["--seeds", "1"], ["--set", "a=1"], ["--out", "x"], ["--piece", "1"], ["--plan"]])
def test_the_list_refuses_what_it_would_not_heed(refusal, flag):
    assert f"`study list` takes --scale and --json alone, got {flag[0]}: leave" in refusal("study", "list", *flag)


def test_the_list_waits_for_no_library_that_it_does_not_use():
    heavy = ("torch", "transformers", "matplotlib.figure", "scipy.special", "scipy.optimize")
    code = "import sys\nsys.argv[1:] = ['study', 'list', '--json']\nfrom decondense.cli import main\n"
    code += f"try: main()\nexcept SystemExit: print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_variants_has_an_arm_of_every_loss():
    """It has them by name, as the list above would have to import every loss to find them."""
    for scale in ("smoke", "paper"):
        arms = studies.STUDIES["variants"].scales[scale]["arms"].values()
        assert {arm["loss"]["name"] for arm in arms if "loss" in arm} == registered().keys() - registered(
            "control"
        ).keys()


@pytest.mark.parametrize("scale", studies.SCALES)
def test_the_list_has_a_line_for_every_study_and_the_plan_says_more(command, monkeypatch, scale):
    whole = command("study", "list", "--scale", scale)[1].splitlines()
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(terminal.out, "_width", 80)
    listed = command("study", "list", "--scale", scale)[1].splitlines()
    assert max(map(len, listed)) <= 80
    assert listed[0].split()[-3:] == ["runs", "cost,", "about"], "no column is left out"
    assert len(listed) == len(whole) == len(studies.STUDIES) + 2
    for study, line in zip(studies.STUDIES.values(), whole[1:]):
        question, *plan = command("study", study.name, "--scale", scale, "--plan")[1].splitlines()
        assert question == f"{study.name} ({study.claim}): {study.question}"
        assert plan[-2] == study.scales[scale]["about"]
        runs, _, cost = plan[-1].partition("; ")
        assert int(runs.split()[0]) == len(plan) - 3
        name, short, number, about = re.fullmatch(r"(\S+)  +(.+?)  +(\d+)  (.+)", line).groups()
        assert (name, number) == (study.name, runs.split()[0])
        assert len(short) > 10
        assert cost.removeprefix("about ").startswith(about.strip())
        assert re.match(r"[\d.]+ (s|minutes|hours?|days) o[nf] \D", about), "the time of all runs"
        assert all(int(times) == int(number) for times in re.findall(r"(\d+) × ", cost)), cost


def test_plan_lists_runs(command, refusal):
    _, out, _ = command(
        "study", "distill", "--plan", "--set", "arms.student with a teacher.baselines.distillation=null"
    )
    assert [line.split()[1] for line in out.splitlines()[2:4]] == ["dispersed-teacher-seed-1", "student-alone-seed-1"]
    code, out, _ = command("study", "dose", "--scale", "gpu", "--plan", "--seeds", "4,5")
    assert code == 0
    assert "lambda-+0.3-seed-4" in out
    assert "lambda-0-seed-5" in out
    _, out, _ = command("study", "dose", "--scale", "gpu", "--plan", "--piece", "lambda-0-seed-2,*-seed-3")
    assert out.splitlines()[2].split()[:2] == ["11", "lambda-0-seed-2"]
    assert len(out.splitlines()) == 2 + 8 + 1
    assert out.splitlines()[-1] == "8 runs"
    assert "no run 'seed-9'" in refusal("study", "dose", "--scale", "gpu", "--plan", "--piece", "seed-9")
    assert "did you mean 'gpu'?" in refusal("study", "list", "--scale", "gpuu")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["widht"], ", hyper: did you mean 'width'?"),
        (["lst"], ", hyper: did you mean 'list'?"),
        (["zzz"], "there is no study 'zzz', the studies are size, text, width"),
        (["variants-gemma"], "'variants-gemma': if it is a folder with a result of the study 'variants', give decond"),
        (["width", "--scale", "huge"], "scale must be one of 'smoke', 'gpu', 'paper', got 'huge': pick one of these."),
        (["width", "--seeds", "1,x"], "--seeds must be different whole numbers"),
        (["width", "--seeds", "1,1"], "must be different whole numbers"),
        (["theory", "--seeds", "1"], "trains nothing"),
        (["width", "--piece", "9"], "has no run '9', its runs are 1 (MLP-width-8-seed-1), 2"),
        (["width", "--set", "bse.data.tokens=5"], "did you mean 'base'?"),
        (["width", "--set", "base.data.tokens.x=5"], "goes into 'tokens', which is a value"),
        (["width", "--set", "base"], "must be key=value"),
        (["width", "--set", "base.data.text=[a"], "must be YAML"),
        (["width", "--set", "base.data={tokens: 5, tokens: 6}"], "must be YAML: quote it, and give every key once."),
        (["width", "--set", "base.data.text=" + "[" * 9999 + "]" * 9999], "must be YAML"),
        (["width", "--set", "base.data.tokns=5"], "'data.tokns' is no key of a recipe: did you mean 'tokens'?"),
        (["width", "--set", "base.train.lr=1"], "'train.lr' is no key of a recipe: did you mean 'learning_rate'?"),
        (["width", "--from", "x"], "goes with --merge"),
        (["width", "--merge", "--piece", "1"], "leave them out"),
        (["width", "--merge", "--piece", ""], "leave them out"),
        (["width", "--merge", "--seeds", "9"], "leave them out"),
        (["width", "--piece", ","], "--piece must name at least one run, like MLP-width-8-seed-1, got none"),
        (["width", "--piece", "", "--plan"], "--piece must name at least one run"),
        (["width", "--set", "base..data=5"], "must be key=value"),
        (["width", "--set", "base.data.tokens.=5"], "must be key=value"),
        (["width", "--set", "base.data.text=novels:train", "--piece", "1"], "'novels' is read from a local folder"),
        (["benchmarks", "--bench", "nowhere"], "benchmark folder 'nowhere' does not exist"),
    ],
)  # fmt: skip
def test_errors_are_one_sentence_and_leave_nothing(refusal, tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    assert sentence in refusal("study", *arguments)
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


# ---- changed settings: what the end of a study would stumble over is said at its beginning ----


@pytest.mark.parametrize("plan", [True, False])
@pytest.mark.parametrize(
    ("name", "change", "sentence"),
    [
        ("width", "base=3", "setting 'base' of width at scale smoke must be a section, got 3: name a key inside it"),
        ("width", "base=null", "'base' of width at scale smoke must be a section"),
        ("width", "arms=1", "must be a section with a section for each arm, got 1"),
        ("width", "arms={}", "must name at least one arm, got {}"),
        ("width", "arms.MLP width 8=null", "must be a section with a section for each arm"),
        ("width", "arms.MLP width 512={}", "every arm must give its MLP width as a whole number, got None"),
        ("width", "arms={a: {model: {config: {n_inner: 8}}}}", "the arms must differ in MLP width, got 8"),
        (
            "width", "arms={a b: {model: {config: {n_inner: 8}}}, a-b: {model: {config: {n_inner: 9}}}}",
            "every run must have a folder of its own, got two of the name 'a-b-seed-1': name a model once, and arms, ",
        ),
        ("width", "seeds=3", "must be a list of different whole numbers from 0 on, got 3: write it like [1, 2, 3]"),
        ("width", "seeds=abc", "must be a list of different whole numbers from 0 on, got 'abc'"),
        ("width", "seeds=[1,1]", "must be a list of different whole numbers"),
        ("width", "seeds=[]", "must be a list of different whole numbers"),
        ("width", "seeds=[1,-1]", "must be a list of different whole numbers"),
        ("width", "seeds=[true]", "must be a list of different whole numbers"),
        ("width", "heatmaps=some", "must be all, last or none, got 'some': the default is 'last'"),
        ("width", "base.train.learning_rate=.nan", "must be text, a finite number"),
        ("dose", "dose=0.2", "dose must be the weight of an arm, and not 0, got 0.2, while the arms have -1, 0, 1"),
        ("dose", "dose=0", "dose must be the weight of an arm, and not 0"),
        ("dose", "dose=abc", "must be a number, got 'abc': the default is 1.0"),
        ("dose", "arms.λ +1.loss.weight=0.5", "got 1, while the arms have -1, 0, 0.5"),
        ("dose", "arms.λ +1.loss.weight=-1", "the arms must differ in loss.weight, got -1, 0, -1"),
        ("dose", "arms={a: {loss: {name: dispersion, weight: 1}}}", "one arm must have λ = 0"),
        ("estimators", "margin=abc", "must be a number, got 'abc': the default is 0.005"),
        ("estimators", "margin=true", "must be a number, got True"),
        ("estimators", "margin=-1", "margin must be above 0, in nats per token, got -1"),
        ("estimators", "arms={exact: {}}", "the settings lack 'first order', 'second order', 'sampled'"),
        ("theory", "paddings=[2, 64]", "paddings must be at least 3, got 2"),
        ("theory", "paddings=[]", "must be a list of different whole numbers of at least 1, got []"),
        ("theory", "draws=1", "draws must be at least 2, got 1"),
        ("theory", "points=many", "must be a whole number of at least 1, got 'many'"),
        ("counteract", "arms={dispersion: {}}", "the settings lack 'cross-entropy'"),
        ("init", "arms.another={}", "the study must have one arm, 'from scratch', got 'from scratch', 'another'"),
        ("distill", "arms.teacher.model.config=3", "arm 'teacher': model.config"),
        ("distill", "arms.student with a dispersed teacher.baselines.distillation.teacher=x", "must be an arm, so"),
        ("distill", "arms.teacher.baselines.distillation.teacher=dispersed teacher", "must have none itself, got"),
        ("distill", "arms={student alone: {}}", "the settings lack 'student with a teacher'"),
        ("benchmarks", "tasks=piqa", "must be a list of different names, got 'piqa': write it like [piqa, arc_easy]"),
        ("benchmarks", "tasks=[]", "got an empty list of tasks"),
        ("benchmarks", "limit=all", "or null for all items, got 'all'"),
        ("benchmarks", "shots=two", "must be gpt2, qwen3, zero or a whole number"),
        ("hyper", "arms={cross-entropy: {}}", "the settings lack 'λ 0.1, τ 1'"),
        ("variants", "base.data.tokens=2048", "must train for more steps than 'cross-entropy', got 3 and 8"),
        ("variants", "once=[orignal]", "once must name arms, got 'orignal'"),
        ("dose", "base.snapshots.count=0", "snapshots.count must be at least 1, got 0 in"),
        ("size", "arms={}", "must name at least one arm"),
        ("size", "families.mine=org/model", "must be a section of lists of different names"),
        ("text", "sizes.trained first=4", "must be a section with windows, tokens or both for each model, got"),
        ("text", "sizes.trained first.windws=4", "must be a section with windows, tokens or both for each model"),
        ("text", "sizes.trained first.windows=0", 'write it like sizes."MODEL"={windows: 20, tokens: 256}'),
        ("text", "sizes.gpt2.windows=2", "models that the study measures, got gpt2: choose among trained first"),
        ("text", "texts=[pydoc 1/4, pydoc x]", "a text must be NAME or a part of one like 'pydoc 2/4', got 'pydoc x'"),
    ],
)  # fmt: skip
def test_settings_that_cannot_end_well_are_refused_before_anything_runs(
    refusal, tmp_path, monkeypatch, name, change, sentence, plan
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("decondense.studies.core.make", lambda *a: pytest.fail("a run was begun"))
    assert sentence in refusal("study", name, "--set", change, "--bench", tmp_path, *["--plan"] * plan)
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


@pytest.mark.parametrize(
    ("name", "change", "run"),
    [("text", "models=[a/b-c, a-b/c]", "a-b-c-wikitext-103"), ("distill", "pairs=[[a, b], [a, c]]", "a-wikitext-103")],
)
def test_two_measurements_of_one_folder_are_refused(name, change, run):
    """The second had replaced the first."""
    settings = settings_of(studies.STUDIES[name], "paper", [change])
    with pytest.raises(ValueError, match=f"folder of its own, got two of the name '{run}"):
        studies.STUDIES[name].check(settings)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("distill", "pairs=[[a, b, c]]", "a list of different pairs of names"),
        ("init", "checkpoints.mine=step0", "a section of lists of different names"),
        ("text", "models=[gpt2, gpt2]", "a list of different names"),
        ("dose", "tasks_needed=1", "true or false"),
    ],
)
def test_settings_of_paper_scale_are_checked_too(name, change, words):
    with pytest.raises(ValueError, match=words):
        settings_of(studies.STUDIES[name], "paper", [change])


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("dose", "limit=20"), ("dose", "tasks=[]"), ("dose", "seeds=[0, 7]"), ("dose", "dose=1"),
        ("size", "families.mine=[org/model-s, org/model-l]"), ("estimators", "margin=1e-3"),
        ("text", "texts=[wikitext-2, imdb, squad]"),
    ],
)  # fmt: skip
def test_good_changes_stay_good(name, change):
    study = studies.STUDIES[name]
    settings = settings_of(study, "gpu", [change])
    assert study.plan(settings)
    study.check(settings)


def test_a_model_can_have_windows_of_its_own():
    """One that is slow, or that reads no more than 256 tokens."""
    study = studies.STUDIES["text"]
    changes = [
        "models=[one, two, three]",
        "texts=[imdb]",
        "sizes.two={windows: 20, tokens: 256}",
        "sizes.one.tokens=64",
    ]
    settings = settings_of(study, "gpu", changes)
    study.check(settings)
    asked = {planned.config["model"]: planned.config for planned in study.plan(settings)}
    assert {model: (c["windows"], c["tokens"]) for model, c in asked.items()} == {
        "one": (100, 64), "two": (20, 256), "three": (100, 512),
    }  # fmt: skip


def test_theory_does_without_its_example(command, tmp_path):
    changes = ["--set", "paddings=[3,64]", "--set", "lengths=3", "--set", "draws=100", "--set", "simulated=[4]"]
    code, _, err = command("study", "theory", *changes, "--out", tmp_path / "o")
    assert code == 0, err
    record = json.loads((tmp_path / "o" / "result.json").read_text())
    assert record["sentence"].endswith("(κ).")


# ---- names with dots, and the command that says what was changed ----


@pytest.mark.usefixtures("unpainted")
def test_arms_with_dots_in_their_names_can_be_changed(tmp_path):
    """And the study goes by the weight of an arm, not by its name."""
    study = studies.STUDIES["dose"]
    settings = settings_of(study, "gpu", ["arms.λ +0.3.loss.weight=0.4"])
    assert list(settings["arms"]) == list(study.scales["gpu"]["arms"])
    assert settings["arms"]["λ +0.3"]["loss"]["weight"] == 0.4
    study.check(settings)
    made = of_seeds(settings, lambda arm, s: run(held_out=3 - (arm == "λ +0.3") + s / 100), [1, 2, 3])
    write(tmp_path, study, "gpu", settings, made)
    record = studies.conclude(study, "gpu", tmp_path)
    assert "lowest mean loss at λ = 0.4" in record.sentence
    assert record.estimate["slope"]["n"] == 3
    assert "symmetric" not in record.criterion


@pytest.mark.parametrize(
    ("name", "change", "place", "value"),
    [
        ("dose", 'arms."λ 0.5"={loss: {name: dispersion, weight: 0.5}}', ("arms", "λ 0.5", "loss", "weight"), 0.5),
        ("dose", 'arms."λ 0.5".loss.weight=0.5', ("arms", "λ 0.5", "loss", "weight"), 0.5),
        ("text", 'sizes."org/model-1.7B"={windows: 20}', ("sizes", "org/model-1.7B", "windows"), 20),
        ("size", 'families."Model 2.5"=[a, b]', ("families", "Model 2.5"), ["a", "b"]),
        ("dose", '"base".data.context=64', ("base", "data", "context"), 64),
    ],
)
def test_a_new_name_with_a_dot_is_in_quotes(name, change, place, value):
    """Without them "λ 0.5" would be key "5" of the arm "λ 0"."""
    settings = settings_of(studies.STUDIES[name], "gpu", [change])
    for key in place:
        settings = settings[key]
    assert settings == value


@pytest.mark.parametrize("change", ['arms.""={}', 'arms."a"b={}', 'arms."a={}'])
def test_quotes_must_hold_a_whole_name(change):
    with pytest.raises(ValueError, match=r"must be key=value|a name in quotes must end"):
        settings_of(studies.STUDIES["dose"], "gpu", [change])


ROUND_TRIPS = [
    ("dose", ["arms.λ +0.3.loss.weight=0.4"]),
    ("dose", ["arms.λ +0.3={loss: {name: dispersion, weight: 0.5}}"]),
    ("dose", ['arms={"λ 0": {}, "λ +0.25": {"loss": {"name": "dispersion", "weight": 0.25}}}', "dose=0.25"]),
    ("dose", ["arms.λ 0.snapshots.count=2", "base.train.learning_rate=0.00001", "limit=5", "tasks=[]"]),
    ("width", ["arms.MLP width 512={model: {config: {n_inner: 512}}}", "base.data.tokens=5M"]),
    ("width", ['arms={"a = b": {}, "a.b": {"c": 1}, "a": {"b": {"c": 2}}}']),
    ("size", ["families={}", "families={Qwen2.5: [a, b], Other: [c]}"]),
    ("size", ["families.SmolLM2=[a, b]"]),
    ("dose", ['arms."λ 0.5"={loss: {name: dispersion, weight: 0.5}}']),
    ("dose", ["arms.λ 0.snapshots.count=2", 'arms."λ 0.snapshots"={}', "arms.λ 0.train={clip: 2}"]),
    ("width", ['arms.a={"b.c": 1}', 'arms."a.b.c"={}']),
]  # fmt: skip


@pytest.mark.parametrize(("name", "changes"), ROUND_TRIPS)
def test_the_command_in_a_result_gives_the_same_settings(name, changes):
    study = studies.STUDIES[name]
    settings = settings_of(study, "gpu", changes, [7, 9])
    words = shlex.split(command_of(name, "gpu", settings_of(study, "gpu"), settings))
    assert words[:7] == ["decondense", "study", name, "--scale", "gpu", "--seeds", "7,9"]
    assert words[7::2] == ["--set"] * len(words[7::2])
    assert settings_of(study, "gpu", words[8::2], [7, 9]) == settings


def test_a_small_change_is_a_small_command():
    study = studies.STUDIES["dose"]
    settings = settings_of(study, "gpu", ["arms.λ +0.3.loss.weight=0.4", "base.train.learning_rate=1e-5"])
    words = shlex.split(command_of("dose", "gpu", settings_of(study, "gpu"), settings))
    assert words[5:] == ["--set", "base.train.learning_rate=1e-05", "--set", "arms.λ +0.3.loss.weight=0.4"]
    settings = settings_of(study, "gpu", ['arms."λ 0.5".loss.weight=0.5'])
    words = shlex.split(command_of("dose", "gpu", settings_of(study, "gpu"), settings))
    assert words[5:] == ["--set", 'arms."λ 0.5".loss.weight=0.5']


# ---- the criterion says what was compared ----


@pytest.mark.parametrize(
    ("name", "scale", "changes", "words"),
    [
        ("dose", "gpu", [], "Held-out loss at λ = 0.1 minus at λ = 0 is below 0, and the slope of held-out loss over "
         "the symmetric doses is below 0: both 95 % intervals over training seeds."),
        ("dose", "smoke", [], "at λ = 1 minus at λ = 0"),
        ("dose", "gpu", ["dose=-0.3"], "at λ = −0.3 minus at λ = 0"),
        ("estimators", "gpu", [], "within ±0.005 nats per token"),
        ("estimators", "gpu", ["margin=0.01"], "within ±0.01 nats per token"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("unpainted")
def test_the_criterion_follows_the_settings(tmp_path, name, scale, changes, words):
    study = studies.STUDIES[name]
    settings = settings_of(study, scale, changes)
    write(tmp_path, study, scale, settings, of_seeds(settings, lambda arm, s: run(), [1, 2, 3]))
    assert words in studies.conclude(study, scale, tmp_path).criterion
    assert (words in study.criterion) == (scale == "gpu" and not changes)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("estimators", f"within ±{100 * MATTERS_COSINE:g} % of that change"),
        ("placebo", f"by at most {placebo.GATE:g} % of what dispersion changes"),
        ("release", f"at least {release.GATE:g} % below cross-entropy's"),
        *((name, f"{SMALLEST:g} nats") for name in ("pretrain", "rates")),
    ],
)
def test_numbers_of_the_code_are_those_of_the_criterion(name, words):
    assert words in studies.STUDIES[name].criterion
