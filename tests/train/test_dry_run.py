"""`decondense train --dry-run`: what it says of a recipe, and what it refuses as the run would."""

from __future__ import annotations

import os
import warnings
from functools import partial
from pathlib import Path

import pytest
import torch
import yaml
from by_hand import cli, refused
from transformers import LlamaConfig, LlamaForCausalLM

from decondense.train import load_recipe
from decondense.words import amount
from train.runs import content, interrupt, result, saved, tiny

run, refusal = partial(cli, "train"), partial(refused, "train")


def warned(recipe, *options):
    """What a dry run warns of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        code, _, err = run(recipe, *options, "--dry-run")
    assert code == 0, err
    return [str(one.message) for one in caught if one.category is UserWarning]


def test_a_dry_run_of_a_recipe_is_the_whole_recipe(recipe):
    parameters = sum(p.numel() for p in LlamaForCausalLM(LlamaConfig(**tiny().model.config)).parameters())
    code, out, err = run(recipe, "--seed", "9", "--dry-run")
    assert code == 0
    assert err.splitlines() == [
        f"llama, fresh weights, {amount(parameters)} parameters, on pydoc: 512 tokens in 2 steps; held-out loss of "
        "512 tokens (data.held_out_tokens) at step 0 and at the end",
        "loss: cross-entropy",
        "it would write runs/small; nothing was written",
    ]
    losses = {
        "[{name: dispersion, weight: 0.5, layers: [1, -1]}, {name: koleo}]": "0.5 · dispersion on layers 1, −1 + 0.1 · "
        "koleo on layers all",
        "{name: koleo, modules: model.layers.*}": "0.1 · koleo on modules model.layers.*",
    }
    for given, said in losses.items():
        small = ["--seeds", "1,2", "--out", "o", "--tokens", "100"]
        _, _, err = run(recipe, "--dry-run", "--set", f"loss={given}", *small)
        assert err.startswith("note: the budget of 100 tokens is less than one step")
        ends = [f"loss: cross-entropy + {said}", "it would write o/seed-{1,2}; nothing was written"]
        assert err.splitlines()[-2:] == ends
    assert yaml.safe_load(out) == load_recipe(recipe, ["train.seed=9"]).model_dump(mode="json")
    for wrong, said in (["--text", "absent.txt"], "no text at"), (["--loss", "koleo", "--layers", "9"], "layers must"):
        code, out, err = run(recipe, *wrong, "--dry-run")
        assert code == 2
        assert "name: small" in out, "it is printed nevertheless"
        assert err == run(recipe, *wrong, "--out", "run")[2].splitlines(keepends=True)[-1]
        assert said in err
    assert list(recipe.parent.iterdir()) == [recipe]


@pytest.mark.parametrize("of", ["an architecture", "a named model"])
def test_a_dry_run_counts_the_tokens_that_a_tokenizer_is_to_learn(recipe, tmp_path, of):
    small = content("model.tokenizer={train: 512, characters: 20K}", "data.tokens=512")
    del small["model"]["config"]["vocab_size"]
    if of == "a named model":
        small["model"] |= {"architecture": None, "name": str(saved(tmp_path / "model")), "init": True}
    recipe.write_text(yaml.safe_dump(small))
    told = run(recipe, "--dry-run")[2].splitlines()[0]
    assert run(recipe, "--out", "run")[0] == 0
    assert f"fresh weights, {amount(result(recipe.parent / 'run')['model']['parameters'])} parameters, on" in told


@pytest.mark.parametrize("tokenizer", ["bytes", "{train: 384}"])
def test_a_dry_run_warns_of_tokens_that_the_model_has_no_embedding_for(recipe, tokenizer):
    """It cannot refuse them: a text need not use them, and none is tokenised."""
    small = ["--set", f"model.tokenizer={tokenizer}", "--set", "model.config.vocab_size=300"]
    (said,) = warned(recipe, *small)
    assert said.startswith("the tokenizer has 384 tokens, the model 300 embeddings: a text that uses")
    assert warned(recipe, *[part.replace("300", "384") for part in small]) == []


def test_a_dry_run_of_a_named_model_says_whether_its_weights_are_fresh(recipe, tmp_path):
    model = saved(tmp_path / "small-model")
    parameters = sum(p.numel() for p in LlamaForCausalLM.from_pretrained(model).parameters())
    fresh = ["--set", "model.init=true", "--learning-rate", "0.003"]
    for settings, said in ([], ""), (fresh, ", fresh weights"):
        err = run("--model", model, "--text", "pydoc", "--context", "32", "--dry-run", *settings)[2]
        assert err.startswith(f"{model}{said}, {amount(parameters)} parameters, on pydoc: ")


@pytest.mark.parametrize(
    ("tokens", "count", "often"),
    [
        (8192, 4, "at step 0, every 8 steps and at the end"),
        (8192, 5, "at step 0, about every 6 steps and at the end"),
        (8192, 1, "at step 0 and at the end"),
        (8192, 0, "at step 0 and at the end"),
        (512, 4, "at step 0 and after every step"),
    ],
)
def test_a_dry_run_says_how_much_is_held_out_and_how_often_it_is_read(recipe, tokens, count, often):
    settings = ["--tokens", str(tokens), "--set", f"snapshots.count={count}"]
    # blocks of 32 tokens are read whole, and 4,065 tokens need the first token of the 128th
    line = run(recipe, "--dry-run", "--set", "data.held_out_tokens=4065", *settings)[2].splitlines()[0]
    assert line.endswith(f"; held-out loss of 4,096 tokens (data.held_out_tokens) {often}")


def test_a_dry_run_says_all_that_the_loss_is_made_of(recipe, tmp_path):
    teacher = saved(tmp_path / "teacher")
    rising = "loss={name: koleo, schedule: linear, ramp_steps: 2000}"
    released = "loss={name: koleo, schedule: release, release_at: 0.25}"
    settings = {
        f"baselines.distillation={{teacher: {teacher}, share: 0.3}}": "0.7 · cross-entropy + 0.3 · distillation from "
        f"{teacher}",
        "baselines={z_loss: 0.01, label_smoothing: 0.1}": "cross-entropy + 0.01 · z_loss + 0.1 · label_smoothing",
        "baselines={noisy_embedding: 1, active_forgetting: {}}": "cross-entropy; beside it noisy_embedding and "
        "active_forgetting",
        rising: "cross-entropy + 0.1 · koleo on layers all, linear rise over 2,000 steps",
        released: "cross-entropy + 0.1 · koleo on layers all, released from 0.25 to 1 of the run",
        "baselines.dropout=0.0": "cross-entropy; beside it no dropout",
        "baselines.dropout=0.5": "cross-entropy; beside it dropout",
    }
    for given, said in settings.items():
        (line,) = (line for line in run(recipe, "--dry-run", "--set", given)[2].splitlines() if line.startswith("loss"))
        assert line == f"loss: {said}"


def test_a_dry_run_says_adapters_unequal_shares_many_steps_and_a_minus(recipe, tmp_path):
    model, text = saved(tmp_path / "model"), tmp_path / "text.txt"
    text.write_text("Some words.")
    settings = ["--model", model, "--context", "32", "--set", "model.lora={r: 4}", "--tokens", "600M", "--set",
                f"data.text={{pydoc:train: 3, {text}: 1}}", "--loss", "koleo", "--weight", "-1"]  # fmt: skip
    of_model, of_loss = run(*settings, "--dry-run")[2].splitlines()[1:3]
    assert of_model.startswith(f"{model}, LoRA of rank 4, ")
    assert f"on 25 % {text} + 75 % pydoc:train: 600,047,616 tokens in 4,578 steps" in of_model
    assert of_loss == "loss: cross-entropy − 1 · koleo on layers all"


def test_a_dry_run_refuses_the_folder_that_the_run_refuses(recipe):
    def tree():
        return {path: path.stat().st_mtime_ns for path in sorted(recipe.parent.rglob("*"))}

    assert run(recipe, "--out", "o/seed-2", "--seed", "2")[0] == 0
    (recipe.parent / "file").touch()
    before, absent = tree(), "mps" if torch.cuda.is_available() else "cuda"
    for arguments, said in {
        ("--out", "o/seed-2"): "'o/seed-2' already holds a run: add --resume",
        ("--out", "o", "--seeds", "1,2"): "'o/seed-2' already holds a run: add --resume",
        ("--out", "o/seed-2", "--resume", "--seed", "3"): "must be resumed with the recipe it was started with",
        ("--out", "file"): "the run folder 'file' must be writable: file exists; choose",
        ("--out", "file/run"): "the run folder 'file/run' must be writable: not a directory; choose",
        ("--out", "o/p/q", "--device", absent): f"device must be one that this machine has, got '{absent}': ",
        ("--out", "p", "--set", "train.device=gpu"): "got 'gpu': devices are called cpu, cuda, cuda:0, mps",
        ("--out", "p", "--set", "train.report_to=[nothing]"): "train.report_to must name what is installed",
    }.items():
        code, _, told = run(recipe, *arguments, "--dry-run")
        assert code == 2
        assert said in told
        assert tree() == before, "nothing was written"
        if "--seeds" not in arguments:  # where the first seed would be trained
            assert run(recipe, *arguments)[2].splitlines(keepends=True)[-1] == told
            before = tree()  # a lock came and went


def test_a_dry_run_refuses_a_folder_that_is_closed(recipe, monkeypatch):
    closed = recipe.parent / "closed"
    closed.mkdir()
    for lacks in (os.W_OK, os.X_OK):  # a stand-in, which binds root too
        monkeypatch.setattr(
            "decondense.files.os.access",
            lambda path, mode, lacks=lacks: Path(path) != closed or not mode & lacks,
        )
        code, _, told = run(recipe, "--out", "closed/x/y", "--dry-run")
        assert (code, "'closed/x/y' must be writable: permission denied; choose" in told) == (2, True)
        assert not any(closed.iterdir())


def test_a_dry_run_refuses_a_cache_that_is_closed_unless_the_tokens_are_there(recipe, monkeypatch):
    (recipe.parent / "file").touch()
    assert run(recipe, "--out", "o")[0] == 0
    monkeypatch.setenv("DECONDENSE_CACHE", "file")
    code, _, told = run(recipe, "--dry-run")
    assert (code, "could not be written into 'file/tokens': not a directory; set DECONDENSE" in told) == (2, True)
    assert run(recipe, "--out", "p")[2].splitlines(keepends=True)[-1] == told
    monkeypatch.delenv("DECONDENSE_CACHE")
    monkeypatch.setattr("decondense.files.os.access", lambda path, mode: Path(path).name != "tokens")
    assert run(recipe, "--dry-run")[0] == 0


def test_a_dry_run_says_what_would_go_on(recipe, monkeypatch):
    assert run(recipe, "--out", "o/seed-2", "--seed", "2")[0] == 0
    with monkeypatch.context() as patched:
        patched.setattr("decondense.train.run.save_model", interrupt)
        assert run(recipe, "--out", "o/seed-3", "--seed", "3")[0] == 130
    err = run(recipe, "--out", "o", "--seeds", "1,2,3,4", "--resume", "--dry-run")[2]
    assert err.splitlines()[-1] == (
        "o/seed-2 is finished already; it would go on in o/seed-3 (--resume continues from checkpoint-2); it would "
        "write o/seed-{1,4}; nothing was written"
    )
