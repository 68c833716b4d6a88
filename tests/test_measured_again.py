"""`measure` a second time into its folder: what --resume goes on with, and what it leaves alone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from by_hand import cli as run
from by_hand import refused
from transformers import ByT5Tokenizer, GPT2Config, GPT2Model

from decondense.meter.result import load
from decondense.meter.run import Interrupted, measure

WORDS = " ".join(f"{n} people walked down to the harbour and {n * n} of them came back." for n in range(400))
QUICK = {"windows": 4, "tokens": 32, "bootstrap": 50}
OPTIONS = [str(word) for key, value in QUICK.items() for word in (f"--{key}", value)]


def checkpoint(folder: Path, *, seed: int = 0, **changes) -> Path:
    torch.manual_seed(seed)
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64, "vocab_size": 384}
    GPT2Model(GPT2Config(**sizes | changes)).save_pretrained(folder)
    ByT5Tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def text(tmp_path) -> Path:
    (tmp_path / "a.txt").write_text(WORDS)
    return tmp_path / "a.txt"


pytestmark = pytest.mark.usefixtures("unpainted")


def interrupted(model: Path, text: Path, folder: Path, **changes: int) -> None:
    """Leave the windows of the first of several batches in the folder."""

    def stop(done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        measure(model, text=text, batch=2, partial=folder, progress=stop, **QUICK | changes)
    assert (folder / "partial-0.npz").exists()


def test_windows_of_a_checkpoint_that_was_overwritten_are_not_mixed_with_those_of_the_new_one(text, tmp_path):
    model, out = checkpoint(tmp_path / "m"), tmp_path / "o"
    out.mkdir()
    interrupted(model, text, out)
    assert measure(model, text=text, partial=out, resume=True, **QUICK).complete
    checkpoint(model, seed=1)
    with pytest.raises(ValueError, match=r"belongs to another measurement \(model, its weights or tokenizer, text"):
        measure(model, text=text, partial=out, resume=True, **QUICK)
    checkpoint(model)
    moved = shutil.copytree(model, tmp_path / "elsewhere" / "m")
    assert measure(moved, text=text, partial=out, resume=True, **QUICK).complete


def test_a_result_of_another_checkpoint_or_text_is_not_taken_for_finished(text, tmp_path):
    """Of the same name; neither is it replaced."""
    model, out = checkpoint(tmp_path / "m"), tmp_path / "o"
    command = ("measure", model, "--text", text, *OPTIONS, "--out", out, "--resume")
    assert run(*command)[0] == 0
    assert "is finished" in run(*command)[2]
    before = load(out)
    text.write_text(WORDS + " And more.")
    said = refused(*command)
    assert said.endswith("already holds a result: choose another folder with --out, or replace it with --force.\n")
    text.write_text(WORDS)
    checkpoint(model, seed=1)
    assert "already holds a result: choose another folder" in refused(*command)
    assert load(out).record == before.record
    assert run(*command, "--force")[0] == 0
    assert load(out).record.model.weights != before.record.model.weights


def test_a_finished_result_is_not_replaced_by_resuming_another(text, tmp_path):
    """Windows that another measurement saved beside it, in Python or with --force, let --resume replace it."""
    model, out = checkpoint(tmp_path / "m"), tmp_path / "o"
    command = ("measure", model, "--text", text, *OPTIONS, "--out", out)
    assert run(*command)[0] == 0
    before = (out / "result.json").read_bytes()
    interrupted(model, text, out, windows=6)
    code, _, stderr = run(*command, "--windows", "6", "--resume")
    assert (code, "already holds a result: choose another folder" in stderr) == (2, True)
    assert (out / "result.json").read_bytes() == before
    assert run(*command, "--windows", "6", "--resume", "--force")[0] == 0
    assert load(out).record.windows_done == 6
