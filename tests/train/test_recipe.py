"""Recipes: what is wrong is named, with the nearest right thing; what is right survives being written and read."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from decondense.train import load_recipe, recipe_from, train, with_settings
from decondense.train.sections import count
from train.runs import content, tiny

RECIPES = sorted((Path(__file__).resolve().parents[2] / "recipes").glob("*.yaml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.stem)
def test_every_recipe_loads_and_survives_its_own_printing(path):
    recipe = load_recipe(path)
    assert recipe.name == path.stem
    assert recipe_from(yaml.safe_load(recipe.to_yaml())) == recipe
    # complete: every key of every section is printed
    printed = yaml.safe_load(recipe.to_yaml())
    for name in ("model", "data", "loss", "baselines", "train", "snapshots"):
        assert printed[name].keys() == type(getattr(recipe, name)).model_fields.keys()


def test_there_are_the_recipes_of_the_paper():
    by_name = {p.stem: load_recipe(p) for p in RECIPES}
    gpt2, qwen = by_name["midtrain-gpt2"], by_name["midtrain-qwen3-0.6b"]
    assert (gpt2.steps, gpt2.data.context, gpt2.loss.options["clamp"]) == (1526, 1024, 0.1)
    assert (qwen.steps, qwen.data.context, qwen.loss.options["clamp"]) == (1526, 4096, 0.25)
    for recipe in (gpt2, qwen):
        train = recipe.train
        assert (recipe.loss.weight, recipe.loss.options["tau"], train.batch_tokens) == (0.1, 1.0, 131072)
        assert (train.learning_rate, train.schedule, train.warmup, train.scale_learning_rate) == (
            5e-5, "cosine", 0.2, True,
        )  # fmt: skip
        assert (train.beta1, train.beta2, train.weight_decay, train.clip) == (0.9, 0.95, 0.1, 1.0)
        assert (train.precision, train.checkpointing) == ("bf16", True)
    assert by_name["midtrain-smollm2-135m"].model.name == "smollm2-135m"
    c4 = by_name["pretrain-qwen3-0.6b-c4"]
    assert (c4.model.init, c4.data.tokens) == (True, 156_000_000_000)
    widths = [by_name[f"width-{w}"] for w in (64, 256, 1024, 4096)]
    for width, recipe in zip((64, 256, 1024, 4096), widths):
        assert recipe.model.config["n_inner"] == width
        same = recipe.model_dump() | {"name": "", "model": None}
        assert same == widths[0].model_dump() | {"name": "", "model": None}
        assert recipe.model.config | {"n_inner": 0} == widths[0].model.config | {"n_inner": 0}


@pytest.mark.parametrize(
    ("given", "number"),
    [(7, 7), ("200M", 200_000_000), ("1.5B", 1_500_000_000), ("131_072", 131072), ("2k", 2000), ("1e3", 1000),
     ("156b", 156_000_000_000), ("2,000", 2000), ("3T", 3 * 10**12),
     ("156.7T", 1567 * 10**11), ("1,234,567", 1_234_567), (2e3, 2000)],
)  # fmt: skip
def test_numbers_of_tokens(given, number):
    assert count(given) == number


@pytest.mark.parametrize("given", ["", "many", "0", -1, "M", "inf", "nan", "2MM", 1.5, "0.5", "1.0005K", "1,5M"])
def test_what_is_no_number_of_tokens(given):
    with pytest.raises(ValueError, match="a number of tokens must be"):
        count(given)


def test_budget_in_tokens_is_made_of_whole_steps():
    recipe = tiny("data={text: pydoc, tokens: 200M, context: 1024}", "train.batch_tokens=131072")
    assert (recipe.steps, recipe.batch_blocks, recipe.step_tokens) == (1526, 128, 131072)
    uneven = tiny("data={text: pydoc, tokens: 1000, context: 30}", "train.batch_tokens=100")
    assert (uneven.batch_blocks, uneven.step_tokens, uneven.steps) == (3, 90, 12)


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("train.learning_rat=1", "recipe: 'train.learning_rat' is no key of a recipe: did you mean 'learning_rate'?"),
        ("learning_rate=1", "recipe: 'learning_rate' is no key of a recipe: did you mean 'train.learning_rate'?"),
        ("model=gpt2", "recipe: model must be a section of keys, got 'gpt2': give it as model.name: gpt2."),
        (
            "loss=dispersion",
            "recipe: loss must be a section of keys, got 'dispersion': give it as loss.name: dispersion.",
        ),
        ("loss=[dispersion]", "recipe: loss.0 must be a section of keys, got 'dispersion': give it as loss.0.name:"),
        (
            "model.lora=true",
            "recipe: model.lora must be a section of keys, got True: give model.lora.r, or leave it out.",
        ),
        ("learn=1", "recipe: 'learn' is no key of a recipe: did you mean 'train.learning_rate'?"),
        ("data.seed=1", "recipe: 'data.seed' is no key of a recipe: did you mean 'train.seed'?"),
        ("trian.seed=1", "recipe: 'trian' is no key of a recipe: did you mean 'train'?"),
        ("train.lr=1e-3", "recipe: 'train.lr' is no key of a recipe: did you mean 'learning_rate'?"),
        ("data.lr=1e-3", "recipe: 'data.lr' is no key of a recipe: did you mean 'train.learning_rate'?"),
        ("lr=1e-3", "recipe: 'lr' is no key of a recipe: did you mean 'train.learning_rate'?"),
        ("train.epochs=3", "recipe: 'train.epochs' is no key of a recipe: did you mean 'data.tokens'?"),
        ("loss.steps=3", "recipe: 'loss.steps' is no key of a recipe: did you mean 'ramp_steps'?"),
        ("train.batch_size=3", "recipe: 'train.batch_size' is no key of a recipe: did you mean 'batch_tokens'?"),
        ("loss={name: koleo, lambda: 1}", "recipe: 'loss.lambda' is no key of a recipe: did you mean 'weight'?"),
        ("loss={name: koleo, tau: 1}", "recipe: 'loss.tau' is no key of a recipe: did you mean 'options.tau'?"),
        (
            "loss=[{name: dispersion, estimator: exact}, {name: koleo}]",
            "recipe: 'loss.0.estimator' is no key of a recipe: did you mean 'options.estimator'?",
        ),
        ("train.workers=1", "recipe: 'train.workers' is no key of a recipe: known here: seed, batch_tokens, "),
        ("model.lora.rank=4", "recipe: 'model.lora.rank' is no key of a recipe: did you mean 'r'?"),
        (
            "snapshots.xyz=4",
            "'snapshots.xyz' is no key of a recipe: known here: count, windows, tokens, bootstrap, spectral, probes.",
        ),
        (
            "snapshots.bootstrap=5",
            "recipe: snapshots.bootstrap must be at least 20, as an interval of 95 % cannot be read from fewer "
            "resamplings, got 5: correct it, or leave it out for 200.",
        ),
        ("snapshots.bootstrap=x", "recipe: snapshots.bootstrap must be a whole number, got 'x': correct it, or leave"),
        (
            "train.keep=1",
            "recipe: train.keep must be at least 2, as one must be whole while the next is being written, got 1: "
            "correct it, or leave it out for 2.",
        ),
        ("baselines.active_forgetting.evry=4", "did you mean 'every'?"),
        ("loss.option.tau=1", "'loss.option' is no key of a recipe: did you mean 'options'?"),
        ("loss={name: disperson}", "dispersion"),
        ("loss={name: dispersion, options: {tua: 1}}", "tau"),
        ("loss={name: dispersion, options: {estimator: quick}}", "first_order"),
        ("loss={name: dispersion, schedule: linear}", "needs ramp_steps of at least 1, got None"),
        (
            "loss={name: none, options: {tau: 1}}",
            "recipe: loss: options does nothing with loss none: name a loss, like",
        ),
        ("loss={name: none, weight: 0.5}", "recipe: loss: weight does nothing with loss none: name a loss, like"),
        ("loss={name: none, layers: last}", "recipe: loss: layers does nothing with loss none"),
        ("loss={weight: 0.1}", "recipe: loss: weight does nothing with loss none"),
        ("loss={name: dispersion, ramp_steps: 5}", "ramp_steps goes with schedule linear or cosine, got 5 with const"),
        (
            "train={schedule: constant, warmup: 0.1}",
            "got warmup 0.1: set it to 0, or schedule to constant_with_warmup.",
        ),
        ("model.revision=main", "recipe: model: revision goes with name, got it with architecture"),
        ("model.init=true", "recipe: model: init goes with name, got it with architecture"),
        ("model.trust_remote_code=true", "recipe: model: trust_remote_code goes with name"),
        ("model.name=gpt2", "recipe: model: give either name or architecture, got both."),
        ("model={}", "recipe: model: give either name or architecture, got neither."),
        ("model.tokenizer=null", "an architecture from scratch needs a tokenizer: name a model's, bytes"),
        ("model={name: gpt2, config: {n_layer: 2}}", "trained weights do not fit it: set init to true"),
        ("model={name: gpt2, init: true, lora: {}}", "lora adapts trained weights"),
        ("model={name: gpt2, lora: {}}; baselines.active_forgetting={}", "which lora freezes"),
        ("train.fused_loss=true; baselines.distillation.teacher=gpt2", "neither distillation nor lora"),
        ("model={name: gpt2}; baselines.dropout=0.1", "recipe: baselines.dropout is part of an architecture: it goes"),
        ("train.batch_tokens=16", "must hold at least one block of data.context = 32 tokens, got 16"),
        ("snapshots={count: 1, tokens: 64}", "snapshots.tokens must be at most data.context = 32, got 64"),
        ("train.on_nan=ignore", "must be one of stop, skip, got 'ignore': correct it, or leave it out for \"stop\"."),
        ("train.on_nan=skp", "must be one of stop, skip, got 'skp': did you mean 'skip'?"),
        (
            "train.compile=3",
            'recipe: train.compile must be auto, true or false, got 3: correct it, or leave it out for "auto".',
        ),
        ("train.fused_loss=autp", "train.fused_loss must be auto, true or false, got 'autp': did you mean 'auto'?"),
        (
            "loss={name: dispersion, layers: 0.5}",
            'recipe: loss.layers must be a string or a list, got 0.5: correct it, or leave it out for "all".',
        ),
        ("model.tokenizer=3", "recipe: model.tokenizer must be a string or a section of keys, got 3: correct it, or"),
        ("data.text=3", "recipe: data.text must be a string, a list or a section of keys, got 3: correct it, or leave"),
        (
            "train.learning_rate=-1",
            "recipe: train.learning_rate must be above 0, got -1: correct it, or leave it out for 5e-05.",
        ),
        (
            "train.learning_rate=.inf",
            "recipe: train.learning_rate must be a finite number, got inf: correct it, or leave it out for 5e-05.",
        ),
        ("train.weight_decay=inf", "recipe: train.weight_decay must be a finite number, got inf: correct it, or leave"),
        ("baselines.z_loss=.inf", "recipe: baselines.z_loss must be a finite number, got inf: correct it, or leave it"),
        ("model.config.rope_theta=.nan", "recipe: model.config.rope_theta must be a finite number, got nan: correct"),
        ("data.tokens=1e30", "recipe: data.tokens: a number of tokens must be at most 10**15, got '1e30'."),
        (
            "loss={name: dispersion, options: {tau: null}}",
            "tau must be a positive number, got None: leave it out for the recommended one.",
        ),
        ("data.tokens=lots", "recipe: data.tokens: a number of tokens must be like 2000000, 2M or 1.5B, got 'lots'."),
        ("loss={name: dispersion, weight: true}", "recipe: loss.weight: it must be a number, got true."),
        (
            "loss={name: dispersion, layers: [1, true]}",
            "recipe: loss.layers.1 must be a whole number, got True: correct it.",
        ),
        ("data.text={novels: 1, pydoc: false}", "recipe: data.text.pydoc must be a number, got False: correct it."),
        ("train.micro_batch=true", "recipe: train.micro_batch: it must be a number, got true."),
        ("data.tokens=true", "recipe: data.tokens: it must be a number, got true."),
        (
            "data.held_out_document_tokens=true",
            "recipe: data.held_out_document_tokens: it must be a number, got true.",
        ),
        ("train.log_every=0", "recipe: train.log_every must be at least 1, got 0: correct it, or leave it out for 10."),
        ("train.warmup=1.5", "recipe: train.warmup must be below 1, got 1.5: correct it, or leave it out for 0.2."),
        ("train.log_every=often", "train.log_every must be a whole number, got 'often': correct it, or leave it out"),
        ("train.beta1=[1]", "recipe: train.beta1 must be a number, got list: correct it, or leave it out for 0.9."),
        ("snapshots.spectral=maybe", "must be true or false, got 'maybe': correct it, or leave it out for false."),
        ("baselines.distillation={teacher: 3}", "distillation.teacher must be a string, got 3: correct it."),
        ("data.text={a: 0}", "text must name at least one text, each with a share above 0"),
        ("data.text=[]", "text must name at least one text"),
        ("data.held_out={a: -1}", "held_out must name at least one text"),
        ("data={text: {a: 1}, order: sequential, context: 32}", "have no shares: give text as a list"),
        ("loss={name: dispersion, release_at: 0.5}", "release_at goes with schedule release, got it with constant"),
        ("loss={name: dispersion, schedule: release, ramp_steps: 5}", "ramp_steps goes with schedule linear or cosine"),
        (
            "loss={name: dispersion, schedule: release, release_at: 1}",
            "loss.release_at must be below 1, got 1: correct it",
        ),
        ("loss={name: dispersion, release_end: 0.5}", "release_end goes with schedule release, got it with constant"),
        ("loss={name: dispersion, schedule: release, release_end: 0.5}", "must come after release_at = 0.6, got 0.5"),
        ("baselines={z_loss: 0.1, distillation: {teacher: gpt2}}", "distillation replaces the targets"),
        ("model={name: gpt2, tokenizer: {train: 8192}}", "trained weights know their own tokenizer"),
        ("model.tokenizer={train: 100}", "at least 257, as there are 256 bytes and an end of text, got 100: "),
        ("loss=[]", "a list of losses must name two or more, got nothing"),
        ("loss=[{name: dispersion}]", "a list of losses must name two or more, got dispersion: give one loss without"),
        ("loss=[{name: dispersion}, {name: none}]", "must name two or more, got dispersion, none"),
        ("loss=[{name: dispersion, check_every: 2}, {name: koleo}]", "check_every is about one loss"),
        ("loss=[{name: dispersion, modules: h.*}, {name: koleo}]", "modules is about one loss"),
        ("loss=[{name: dispersion}, {name: koleo, wieght: 1}]", "'loss.1.wieght' is no key of a recipe: did you"),
        ("loss=[{name: dispersion}, {name: koleon}]", "recipe: loss.1: "),
        ("train.quantised=[int3]", "must be one of int8, int4, int8-int8, got 'int3'"),
        ("train.quantised=[int8]", "name texts in data.held_out"),
        ("train.quantised=[int8]; data.held_out=pydoc; data.held_out_documents=0", "held_out_documents above 0"),
        ("model={name: gpt2, lora: {}}; data.held_out=pydoc; train.quantised=[int8]", "to which lora adds"),
        ("model={name: gpt2, lora: {}}; snapshots.probes=true", "which lora freezes"),
    ],
)
def test_what_is_wrong_is_one_sentence(setting, sentence):
    with pytest.raises(ValueError) as caught:
        recipe_from(with_settings(content(), setting.split("; ")))
    said = str(caught.value)
    assert sentence in said
    assert said.startswith("recipe: ")
    assert not said.startswith("recipe: recipe")
    assert "\n" not in said
    assert said.endswith((".", "?"))


def test_one_state_needs_no_list():
    assert tiny("loss={name: dispersion, layers: 3}").loss.layers == [3]
    with pytest.raises(ValueError, match=r"loss\.layers must be a string or a list, got True"):
        tiny("loss={name: dispersion, layers: true}")


def test_a_constant_schedule_has_no_warmup(tmp_path, cache):
    """The oracle: the learning rates of the log. A default that would do nothing is printed as what it is."""
    recipe = tiny("train.schedule=constant", "train.log_every=1")
    assert recipe.train.warmup == 0
    assert recipe_from(yaml.safe_load(recipe.to_yaml())) == recipe
    rates = [e["learning_rate"] for e in train(recipe, tmp_path / "run", cache=cache).record["history"]]
    assert rates == [0.01] * 8
    rising = tiny("train={schedule: constant_with_warmup, warmup: 0.25, learning_rate: 0.01, log_every: 1}",
                  "train.batch_tokens=256", "train.device=cpu")  # fmt: skip
    rates = [e["learning_rate"] for e in train(rising, tmp_path / "rising", cache=cache).record["history"]]
    assert rates == [0.0, 0.005] + [0.01] * 6


def test_a_number_that_yaml_takes_for_a_string_is_a_number(tmp_path):
    """As 5e-5, which has no point: so a recipe cannot refuse numbers in quotes, which look the same to it."""
    file = tmp_path / "small.yaml"
    file.write_text(yaml.safe_dump(content()) + "baselines: {active_forgetting: {learning_rate: 5e-5}}\n")
    assert yaml.safe_load(file.read_text())["baselines"]["active_forgetting"]["learning_rate"] == "5e-5"
    recipe = load_recipe(file, ["train.learning_rate=1e-3"])
    assert (recipe.train.learning_rate, recipe.baselines.active_forgetting.learning_rate) == (1e-3, 5e-5)


def test_a_recipe_without_a_loss_is_printed_and_read(tmp_path):
    """`--loss none` on a recipe whose loss has settings of its own."""
    file = tmp_path / "a.yaml"
    file.write_text(yaml.safe_dump(content("loss={name: dispersion, weight: 0.3, schedule: linear, ramp_steps: 4}")))
    recipe = load_recipe(file, ["loss.name=none"])
    assert recipe_from(yaml.safe_load(recipe.to_yaml())) == recipe


def test_a_recipe_may_ask_for_a_kernel_that_this_machine_cannot_run():
    """Whether it can is for the machine that trains to say; a word that is no backend is wrong anywhere."""
    assert recipe_from(content("loss={name: dispersion, options: {backend: triton}}")).losses[0].options
    with pytest.raises(ValueError, match="backend must be one of 'auto', 'torch', 'triton'"):
        recipe_from(content("loss={name: dispersion, options: {backend: trition}}"))


def test_settings_of_a_list_of_losses():
    two = content("loss=[{name: dispersion}, {name: koleo, weight: 0.3}]")
    assert with_settings(two, ["loss.name=none"])["loss"] == {"name": "none"}
    for setting in ("loss.weight=0.5", "loss.name=koleo", "loss.options.tau=2", "loss.0.weight=1"):
        with pytest.raises(ValueError) as caught:
            with_settings(two, [setting])
        key = setting.partition("=")[0]
        whole = "loss is a list: give it whole, --set 'loss=[{…}, {…}]'."
        assert str(caught.value) == f"setting {key!r} is about one loss, and {whole}"


def test_settings_override_and_leave_the_original_alone():
    before = content()
    after = with_settings(before, ["train.seed=2", "data.text=[pydoc, pydoc]", "model.config.hidden_size=24"])
    assert (before["train"]["seed"], after["train"]["seed"]) == (1, 2)
    assert after["data"]["text"] == ["pydoc", "pydoc"]
    assert after["model"]["config"]["hidden_size"] == 24
    assert before["model"]["config"]["hidden_size"] == 16
    dispersed = content("loss={name: dispersion, weight: 0.3, options: {tau: 2.0}, check_every: 5}")
    assert with_settings(dispersed, ["loss.name=none"])["loss"] == {"name": "none"}
    assert with_settings(dispersed, ["loss.name=dispersion"])["loss"] == dispersed["loss"]
    other = with_settings(dispersed, ["loss.options.axis=feature", "loss.name=decorrelation"])["loss"]
    assert other == {"name": "decorrelation", "weight": 0.3, "options": {"axis": "feature"}}
    for wrong, sentence in (
        ("train.seed", "must be key=value"),
        ("name.seed=2", "which is a value and not a section"),
        ("name={", "must be YAML: quote it"),
        ("loss={name: koleo, name: vicreg}", "must be YAML: quote it, and give every key once"),
        ("loss.weight=0.1", "setting 'loss.weight' needs a loss, and loss.name is none: name one"),
    ):
        with pytest.raises(ValueError, match=sentence):
            with_settings(before, [wrong])


def test_files_that_are_no_recipe(tmp_path):
    with pytest.raises(FileNotFoundError, match="no recipe at"):
        load_recipe(tmp_path / "none.yaml")
    with pytest.raises(
        FileNotFoundError, match=r"no recipe at .*: give a YAML file, or --model and the other flags\.$"
    ):
        load_recipe(tmp_path)  # a folder is not what its own name is near
    with pytest.raises(ValueError, match=r"'modl' is no key of a recipe: did you mean 'model'\?"):
        recipe_from({"modl": {"name": "gpt2"}})
    with pytest.raises(
        TypeError, match=r"recipe must be a Recipe, got str: make one with load_recipe\(path\) or recipe_f"
    ):
        train("recipe.yaml", tmp_path / "run")
    assert not (tmp_path / "run").exists()
    for text, sentence in (
        ("{", "must be YAML"),
        ("- a", r"must be a mapping of sections, got list: begin it with 'model:'"),
        ("# all of it is a comment", r"must be a mapping of sections, got nothing: begin it with 'model:'"),
        (
            "model:\n  name: gpt2\ntrain: {seed: 1}\n'model': {name: gpt3}",
            r"'a\.yaml' must be YAML: .* once, got 'model' in line 1 and again in line 4: keep one of them\.$",
        ),
        ("train:\n  seed: 1\n  clip: 2\n  seed: 3", r"got 'seed' in line 2 and again in line 4"),
        ("\xff", "must be YAML"),
        (
            "model: " + "[" * 100_000 + "]" * 100_000,
            r"'a\.yaml' must be YAML: .* at most 200 levels deep, got more: take",
        ),
    ):
        (tmp_path / "a.yaml").write_text(text, encoding="latin-1")
        with pytest.raises(ValueError, match=sentence):
            load_recipe(tmp_path / "a.yaml")
    (tmp_path / "evil.yaml").write_text("model: !!python/object/apply:os.system ['true']")
    with pytest.raises(ValueError, match="must be YAML"):
        load_recipe(tmp_path / "evil.yaml")
