"""`decondense train` as a user meets it."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import torch
import yaml
from by_hand import cli, refused

from decondense import studies
from decondense.commands.train import _notes
from decondense.studies.arms import recipe_of
from decondense.train import load_recipe, recipe_from, train
from decondense.train.trainer import Trainer
from decondense.train.watch import in_words
from train.runs import interrupt, result, saved, tiny, weights

ROOT = Path(__file__).resolve().parent.parent.parent
run, refusal = partial(cli, "train"), partial(refused, "train")


def test_a_recipe_with_settings_and_several_seeds(recipe):
    code, out, err = run(recipe, "--set", "snapshots.count=1", "--seeds", "1,2", "--weight", "0.5",
                         "--loss", "dispersion", "--estimator", "exact", "--layers", "1,2")  # fmt: skip
    assert code == 0
    assert "Traceback" not in err
    folders = [recipe.parent / "runs" / "small" / f"seed-{seed}" for seed in (1, 2)]
    for seed, folder in zip((1, 2), folders):
        record = result(folder)
        assert record["recipe"]["train"]["seed"] == seed
        assert record["recipe"]["loss"] == tiny(
            "loss={name: dispersion, weight: 0.5, layers: [1, 2], options: {estimator: exact}}"
        ).loss.model_dump(mode="json")
        assert record["command"].startswith("decondense")
    one, two = (weights(folder) for folder in folders)
    assert any(not torch.equal(one[n], two[n]) for n in one)
    lines = out.splitlines()
    assert lines[0].split() == ["step", "tokens", "held-out", "loss", "mean", "cosine", "Spearman"]
    assert lines[1].split()[:2] == ["0", "0"]
    assert lines[2].split()[:2] == ["2", "512"]
    assert "2 steps in " in out
    assert "written: runs/small/seed-1/model, result.json, training.png, snapshots/" in out
    assert "step: 2 of 2" in err
    assert all(len(line) <= 80 for line in err.splitlines() if not line.startswith("step: "))  # whose figures are whole
    assert "transformers" not in err  # its notices are silenced


def test_into_a_pipe_every_part_before_the_first_step_is_a_line(recipe, tmp_path, monkeypatch):
    monkeypatch.setattr("decondense.commands.terminal.EVERY", 1e9)
    monkeypatch.setenv("DECONDENSE_CACHE", str(tmp_path / "nothing-tokenised"))
    begun = ["building a llama", "tokenising up to 1,024 tokens"]
    training = ["training: held-out loss at step 0, then 2 steps of 256 tokens"]
    assert run(recipe, "--out", "a")[2].splitlines() == begun + training
    assert run(recipe, "--out", "a", "--resume")[2].splitlines() == ["this run is finished: a/result.json"]
    monkeypatch.setattr("decondense.train.fast.compile_blocks", lambda model: None)  # which takes half a minute
    model = saved(tmp_path / "small-model")
    named = ["--model", model, "--set", "model.architecture=null", "--set", "model.config={}"]
    err = run(recipe, *named, "--set", "model.tokenizer=null", "--set", "train.compile=true", "--out", "b")[2]
    slow = f"{training[0]}; the first ones compile and take longer"
    assert err.splitlines() == [f"loading {model}", slow], "the tokens are there already"
    assert run(recipe, "--out", "c", "--json")[2] == ""
    monkeypatch.setattr("decondense.commands.terminal.EVERY", 0.0)
    err = run(recipe, "--tokens", "1K", "--out", "d")[2]
    assert "tokenising up to 1,536 tokens\n" in err
    assert "tokenising: 0 of" not in err, "it was just said"


def test_into_a_pipe_what_is_no_step_is_named_with_how_far_it_is(recipe, tmp_path, monkeypatch):
    """Held-out losses and snapshots may take minutes, after the last step too."""
    monkeypatch.setattr("decondense.train.held_out.TOKENS", 256)
    text = tmp_path / "text.txt"
    text.write_text("Some words, and then some more of them.\n" * 200)
    settings = ["snapshots.count=1", "snapshots.probes=true", "train.quantised=[int8]"]
    lines = run(recipe, "--held-out", text, *(part for s in settings for part in ("--set", s)))[2].splitlines()
    said = [line.partition(",")[0] for line in lines]
    order = ["windows of the snapshot: 2 of 2", "batches of held-out text: 2 of 2", "batches of the probes: 1 of 2"]
    order += [f"tokens of held-out documents{after}: 256 of 512" for after in ("", " in int8")]
    order += ["saving the model: 0 s so far"]
    # A batch that takes longer than a second on a busy machine is said twice.
    assert list(dict.fromkeys(line for line in said[said.index("step: 1 of 2") :] if line in order)) == order
    assert "tokens of held-out documents: 0 of 512" in said, "from before the first batch on"


def test_a_budget_below_one_block_names_the_context(recipe):
    """What the note says to type makes it shorter, or takes it away."""
    budget = ["--tokens", "20", "--dry-run"]
    one_block = "less than one step, which has 32: so many are trained on; for fewer, a shorter --context.\n"
    for more, said in (
        ([], "for fewer, --set train.batch_tokens=32.\n"), (["--set", "train.batch_tokens=32"], one_block),
        (["--set", "train.batch_tokens=20", "--context", "10"], ""),
    ):  # fmt: skip
        err = run(recipe, *budget, *more)[2]
        assert said in err if said else "note: " not in err, err


def test_a_negative_weight_is_said(recipe):
    for weight, said in (("-0.1", True), ("0.1", False)):
        code, _, err = run(recipe, "--loss", "dispersion", "--weight", weight, "--out", f"run{weight}")
        assert code == 0
        assert ("note: the weight of dispersion, -0.1, is negative: this run condenses on purpose." in err) is said


def test_a_budget_below_one_step_is_said(recipe):
    for tokens, said in (("100", True), ("512", False)):
        code, out, err = run(recipe, "--tokens", tokens, "--out", f"run{tokens}")
        assert code == 0
        note = (
            "note: the budget of 100 tokens is less than one step, which has 256: so many are trained on; for fewer, "
            "--set train.batch_tokens=128.\n"
        )
        assert (note in err) is said
        assert ("1 step in " in out) is said
        assert out.splitlines()[0].split() == ["step", "tokens", "held-out", "loss"], "no columns for no snapshots"
        assert out.endswith(f"written: run{tokens}/model, result.json, training.png\n")


def test_what_would_do_little_in_so_few_steps_is_said(recipe):
    """The recipe has two steps, at the second of which a rise over eight has come an eighth of its way."""

    def said(*settings: str) -> list[str]:
        given = [part for setting in settings for part in ("--set", setting)]
        code, _, err = run(recipe, "--dry-run", *given)
        assert code == 0
        return [line for line in err.splitlines() if line.startswith("note: ")]

    ramp = "loss={{name: koleo, weight: 0.4, schedule: linear, ramp_steps: {}}}".format
    rises = "note: loss.ramp_steps, 8, is more than the 2 steps of this run: the weight of koleo ends at 0.05 of 0.4."
    assert said(ramp(8)) == [rises]
    assert said(ramp(2)) == []
    forgets = (
        "note: baselines.active_forgetting.every, 2, is not less than the 2 steps of this run: nothing is forgotten."
    )
    assert said("baselines.active_forgetting.every=2") == [forgets]
    assert said("baselines.active_forgetting.every=1") == []
    assert rises in run(recipe, "--set", ramp(8), "--out", "rising")[2].splitlines()


def test_fresh_weights_at_the_rate_for_trained_ones_are_noted(recipe, tmp_path):
    def said(*settings: str) -> list[str]:
        _, _, err = run(recipe, "--dry-run", *(part for setting in settings for part in ("--set", setting)))
        return [line for line in err.splitlines() if line.startswith("note: ")]

    whole = yaml.safe_load(recipe.read_text())
    rate = whole["train"].pop("learning_rate")
    recipe.write_text(yaml.safe_dump(whole))
    note = (
        "note: the weights are fresh, and train.learning_rate, 5e-05, is the default for trained ones: type --set "
        "train.learning_rate=0.003 --set train.warmup=0.4 (the rate is for a width of 384); from nothing, warm-up and "
        "rate made more of a difference than any loss (docs/pretraining.md)."
    )
    assert said() == [note]
    alone = [note.replace(" --set train.warmup=0.4", "")]
    assert said("train.warmup=0.1") == said("train.schedule=constant") == alone
    assert said(f"train.learning_rate={rate}") == said("train.learning_rate=0.003", "train.warmup=0.4") == []
    assert said("train.learning_rate=5e-5") == [], "it was chosen"
    assert run(recipe, "--out", "fresh")[2].splitlines()[0] == note
    assert load_recipe(recipe.parent / "fresh" / "recipe.yaml").train.learning_rate == 5e-5
    trained = f"model={{name: {saved(tmp_path / 'model')}}}"
    assert said(trained) == []
    assert said(trained, "model.init=true") == [note]


def test_no_recipe_that_comes_with_the_package_is_noted():
    """Nor that of any arm of a study: the low rate of `width`, which is the paper's, is chosen."""
    arms = [
        recipe_of(settings, arm, 1)
        for study in studies.STUDIES.values()
        for settings in study.scales.values()
        for arm in settings.get("arms", ())
    ]
    recipes = [load_recipe(file) for file in (ROOT / "recipes").glob("*.yaml")]
    assert [one.name for one in (*arms, *recipes) if any("fresh" in note for note in _notes(one))] == []
    assert sum(one.model.fresh for one in arms) > 100
    assert sum(one.model.fresh for one in recipes) > 5


def test_a_run_without_a_recipe_is_named_by_what_is_done(recipe, tmp_path):
    """Else a baseline would lie where plain cross-entropy does."""
    model, teacher = saved(tmp_path / "small"), saved(tmp_path / "teacher")
    names = {
        (): "small-cross-entropy",
        ("--loss", "none"): "small-cross-entropy",
        ("--loss", "koleo"): "small-koleo",
        ("--set", "loss=[{name: koleo}, {name: dispersion}]"): "small-koleo-dispersion",
        ("--teacher", teacher): "small-distillation",
        ("--loss", "koleo", "--teacher", teacher): "small-koleo-distillation",
        ("--noisy-embedding", "1"): "small-noisy-embedding",
        ("--active-forgetting", "2"): "small-active-forgetting",
        ("--set", "model.lora={}"): "small-lora",
        ("--set", "model.init=true", "--set", "baselines.dropout=0.0"): "small-fresh-no-dropout",
        ("--noisy-embedding", "1", "--set", "name=mine"): "mine",
    }
    for flags, name in names.items():
        assert run("--model", model, "--text", "pydoc", "--context", "32", *flags, "--dry-run")[1].startswith(
            f"name: {name}\n"
        )


def test_flags_without_a_recipe(recipe, tmp_path):
    model = saved(tmp_path / "small-model")
    text = tmp_path / "text.txt"
    text.write_text("Some words, and then some more of them.\n" * 60)
    flags = ["--model", model, "--text", f"{text}, pydoc", "--held-out", text, "--tokens", "0.5K", "--context", "32",
             "--loss", "decorrelation", "--weight", "0.2", "--layers", "last", "--noisy-embedding", "1",
             "--active-forgetting", "2", "--learning-rate", "1e-3", "--seed", "3", "--device", "cpu", "--on-nan",
             "skip", "--set", "data.held_out_tokens=64", "--set", "snapshots.count=0", "--set",
             "train.batch_tokens=256"]  # fmt: skip
    code, shown, _ = run(*flags, "--dry-run")
    assert code == 0
    assert not (recipe.parent / "runs").exists()
    printed = recipe_from(yaml.safe_load(shown))
    assert (printed.name, printed.steps) == ("small-model-decorrelation-noisy-embedding-active-forgetting", 2)
    assert printed.data.text == [str(text), "pydoc"]
    assert printed.baselines.active_forgetting.every == 2
    code, out, _ = run(*flags, "--json")
    assert code == 0
    record = json.loads(out)
    folder = recipe.parent / "runs" / printed.name
    assert record == result(folder)
    assert load_recipe(folder / "recipe.yaml") == printed
    assert recipe_from(record["recipe"]) == printed


def test_defaults_follow_a_short_context_and_a_small_file(recipe, tmp_path):
    model, text = saved(tmp_path / "short-model", max_position_embeddings=128), tmp_path / "text.txt"
    text.write_text("Some words, and then some more of them.\n" * 200)  # 62 blocks: 9 for windows, 6 are a tenth
    flags = ["--model", model, "--text", text, "--context", "128", "--tokens", "1K", "--device", "cpu",
             "--set", "train.batch_tokens=1K"]  # fmt: skip
    code, out, err = run(*flags, "--json", "--out", "run")
    assert code == 0, err
    record = json.loads(out)
    assert record["recipe"]["snapshots"]["tokens"] == 128
    assert record["text"][0]["tokens"] == (62 - 9) * 128
    again = load_recipe(recipe.parent / "run" / "recipe.yaml")  # in which every key is given
    assert train(again, recipe.parent / "again").record["text"] == record["text"]
    refused = {"data.held_out_tokens=64K": "must fill 501 blocks", "snapshots.tokens=512": "at most data.context"}
    for given, said in refused.items():
        code, _, err = run(*flags, "--out", "other", "--set", given)
        assert code == 2
        assert said in err.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "and with --dry-run it prints the whole recipe, or take one from recipes/ in a clone of the repository."),
        (["absent.yaml"], "no recipe at 'absent.yaml'"),
        (["small.yaml", "--set", "train.sed=1"], "small.yaml: 'train.sed' is no key of a recipe: did you mean 'seed'?"),
        (
            ["small.yaml", "--seeds", "1,x"],
            "--seeds must be different whole numbers, got '1,x': separate them by commas, like 1,2,3.",
        ),
        (["small.yaml", "--seeds", "1", "--seed", "2"], "--seed and --seeds cannot be combined: give one of them"),
        (
            ["small.yaml", "--seeds", "9,2", "--set", "train.seed=9"],
            "--seeds 9,2 gives every run a seed of its own, but",
        ),
        (
            ["small.yaml", "--loss", "dispersion", "--layers", "1-3"],
            "--layers must be all, last, early_half, late_half or",
        ),
        (["small.yaml", "--loss", "dispersion", "--layers", "first"], "(−1 is the last), got 'first'."),
        (["small.yaml", "--weight", "0.1"], "setting 'loss.weight' needs a loss, and loss.name is none: name one"),
        (["--model", "gpt2", "--weight", "0.5"], "setting 'loss.weight' needs a loss, and loss.name is none: name one"),
    ],
)
def test_errors_are_one_sentence(recipe, arguments, said):
    assert said in refusal(*arguments)
    assert list(recipe.parent.iterdir()) == [recipe]


def test_a_teacher_that_is_not_there(recipe):
    code, out, err = run(recipe, "--teacher", "nobody/has-this")
    assert (code, out) == (2, "")
    told, refusal = err.splitlines()
    assert told == "building a llama"
    assert refusal.startswith("error: model 'nobody/has-this' is no folder, ")
    assert "the hub did not provide it" in refusal
    assert list(recipe.parent.iterdir()) == [recipe]


def test_not_finite_ends_with_exit_code_2(recipe, monkeypatch):
    own = Trainer.compute_loss

    def compute_loss(self, *args, **kwargs):
        return own(self, *args, **kwargs) * (float("nan") if self.state.global_step == 1 else 1)

    monkeypatch.setattr(Trainer, "compute_loss", compute_loss)
    code, _, err = run(recipe, "--out", "run", "--set", "train.checkpoints=2")
    assert code == 2
    last = err.strip().splitlines()[-1]
    assert "NaN or infinite at step 2 of 2" in last
    assert "the last good checkpoint is checkpoint-1" in last
    code, out, _ = run(recipe, "--out", "run", "--set", "train.checkpoints=2", "--resume", "--on-nan", "skip")
    assert code == 0
    assert "note: 1 step left out, where loss or gradient was not finite" in out
    assert result(recipe.parent / "run")["skipped_steps"] == [2]


@pytest.mark.parametrize("place", ["run.prepare", "run.run_folder.begin"])
def test_interrupted_before_any_work(place, recipe, monkeypatch):
    """Ctrl-C leaves nothing, and names nothing that is not there."""
    monkeypatch.setattr(f"decondense.train.{place}", interrupt)
    code, _, err = run(recipe, "--out", "deep/run")
    assert (code, err.splitlines()[-1]) == (130, "interrupted.")
    assert list(recipe.parent.iterdir()) == [recipe]


def test_interrupted_then_resumed_then_finished(recipe, monkeypatch):
    own = Trainer.on_pre_optimizer_step

    def look(self, *args, **kwargs):
        if self.state.global_step == 1:
            raise KeyboardInterrupt
        own(self, *args, **kwargs)

    command = [recipe, "--out", "run", "--set", "train.checkpoints=2"]
    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "on_pre_optimizer_step", look)
        code, _, err = run(*command)
    assert code == 130
    assert "interrupted: the same command with --resume continues from checkpoint-1." in err
    assert "already holds a run: add --resume" in refusal(*command)
    code, _, err = run(*command, "--resume")
    assert code == 0
    assert "resuming from checkpoint-1" in err
    code, out, err = run(*command, "--resume")
    assert code == 0
    assert "this run is finished: run/result.json" in err.replace("\n", "")
    assert "held-out loss" in out  # the table of what came out, again


def test_a_line_in_a_pipe_has_all_figures(recipe, monkeypatch):
    """Of however narrow a terminal COLUMNS tells."""
    monkeypatch.setenv("COLUMNS", "30")
    err = run(recipe, "--loss", "dispersion", "--set", "train.log_every=1")[2]
    last = [line for line in err.splitlines() if line.startswith("step: 2 of 2")][-1]
    assert all(f" {name} " in last for name in ("task loss", "penalty", "cosine", "held-out"))


def test_figures_in_words():
    figures = {"tokens_per_second": 285_123.4, "loss": 3.3, "task_loss": 3.24701, "penalty": -0.4312,
               "mean_cosine": 0.5371, "eval_loss": 3.2475}  # fmt: skip
    whole = "285k tok/s  task loss 3.247  penalty -0.431  cosine 0.537  held-out 3.248"
    assert in_words(figures, 200) == whole
    assert in_words(figures, 57) == whole[: whole.index("  held-out")]
    assert in_words(figures, 11) == "285k tok/s"
    assert in_words(figures, 3) == ""
    assert in_words({"loss": 3.3, "eval_loss": 4.0}, 50) == "loss 3.300  held-out 4.000"
    assert in_words({"tokens_per_second": 2735.0}, 50) == "2,735 tok/s"
    alone = {"loss": 3.3, "snapshot_cosine": 0.5312, "eval_loss": 4.0}
    assert in_words(alone, 50) == "loss 3.300  cosine 0.531  held-out 4.000"
    assert in_words(figures | {"snapshot_cosine": 0.9}, 200) == whole  # that of the batches is newer
    assert in_words(figures | {"part": 0.25}, 200) == f"25% of the next  {whole}"


def test_a_long_step_gives_signs_of_life(tmp_path, cache):
    shown: list[tuple[int, float | None]] = []
    recipe = tiny("train.micro_batch=1", "snapshots.count=0")
    assert recipe.batch_blocks == 8
    train(recipe, tmp_path / "run", cache=cache, show=lambda step, now: shown.append((step, now.get("part"))))
    of_first = [part for step, part in shown if step == 0 and part is not None]
    assert of_first == [k / 8 for k in range(1, 8)], "the eighth pass ends the step"
    assert [part for step, part in shown if step == 1 and part is not None] == of_first


def test_without_a_loss_the_cosine_is_that_of_the_last_snapshot(tmp_path, cache):
    import decondense as dc

    shown: dict[int, dict] = {}
    run = train(
        tiny("snapshots.count=2"), tmp_path / "run", cache=cache, show=lambda n, now: shown.update({n: {**now}})
    )
    found = {s["step"]: dc.load(run.folder / s["file"]).mean_cosine[1:].mean() for s in run.record["snapshots"]}
    assert list(found) == [0, 4, 8]
    for step, last in ((0, 0), (3, 0), (4, 4), (7, 4), (8, 8)):
        assert shown[step]["snapshot_cosine"] == pytest.approx(found[last], abs=1e-6), step


def test_help_reads_well():
    code, out, _ = run("--help")
    assert code == 0
    assert "decondense train --model smollm2-135m --text wikitext-2 --tokens 2M" in out
    assert all(len(line) <= 80 for line in out.splitlines())
