"""A loss or gradient that is NaN or infinite: stop and say where, or leave the step out and go on."""

from __future__ import annotations

import json
import math

import pytest
import torch
from safetensors.torch import load_file

from decondense.figures.training import training_figure
from decondense.records import read
from decondense.train import train
from decondense.train.blocks import Order
from decondense.train.prepare import prepare
from decondense.train.trainer import NotFinite, Trainer
from train.runs import result, tiny, weights


@pytest.fixture
def spoil(monkeypatch):
    """spoil(steps, kind): in the last micro-batch of those steps (from 0) the loss or a gradient is not finite."""

    def arrange(steps: set[int], kind: str = "loss") -> None:
        own, seen = Trainer.compute_loss, {}

        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            loss = own(self, model, inputs, return_outputs, num_items_in_batch)
            if not model.training:
                return loss
            step = self.state.global_step
            seen[step] = seen.get(step, 0) + 1
            if step in steps and seen[step] % self.args.gradient_accumulation_steps == 0:
                if kind == "gradient":  # finite loss, infinite slope
                    weight = next(model.parameters())
                    return loss + 0 * loss.detach() + (weight.abs().min() * 0).sqrt()
                return loss * {"loss": math.nan, "inf": math.inf}[kind]
            return loss

        monkeypatch.setattr(Trainer, "compute_loss", compute_loss)

    return arrange


@pytest.mark.parametrize("kind", ["loss", "inf", "gradient"])
def test_stops_and_says_where(kind, spoil, tmp_path, cache):
    spoil({5}, kind)
    recipe = tiny("train.checkpoints=4", "train.micro_batch=4")  # every two steps
    with pytest.raises(NotFinite) as caught:
        train(recipe, tmp_path / "run", cache=cache)
    said = str(caught.value)
    assert "loss or gradient is NaN or infinite at step 6 of 8 (8 blocks of the text, numbers " in said
    assert "; the first is block " in said
    assert "from its token " in said
    assert "the last good checkpoint is checkpoint-4: lower train.learning_rate" in said
    assert said.endswith("or add --resume --on-nan skip.")
    # nothing bad got into a checkpoint
    kept = load_file(tmp_path / "run" / "checkpoints" / "checkpoint-4" / "model.safetensors")
    assert all(torch.isfinite(w).all() for w in kept.values())
    assert not (tmp_path / "run" / "result.json").exists()


def test_the_place_is_that_of_the_step(spoil, tmp_path, cache):
    """Third step of 40 blocks of 8 tokens: 32 are named, the others counted."""
    spoil({2})
    recipe = tiny("data.context=8", "train.batch_tokens=320")
    with pytest.raises(NotFinite) as caught:
        train(recipe, tmp_path / "run", cache=cache)
    blocks = prepare(recipe, tmp_path, cache).blocks
    of_the_step = Order(blocks, 280, seed=1).order[80:120].tolist()
    listed, first = ", ".join(str(b) for b in of_the_step[:32]), blocks.origin(of_the_step[0])
    assert f"(40 blocks of the text, numbers {listed} and 8 more; the first is {first})" in str(caught.value)
    assert "there is no checkpoint yet: " in str(caught.value)


@pytest.mark.parametrize("before", [False, True])
def test_a_run_that_fails_in_its_first_step_leaves_nothing(before, spoil, tmp_path, cache, monkeypatch):
    """Nothing is there to go on with, and a recipe that was put right finds the folder free, with --resume or without.
    What somebody else keeps in the folder stays."""
    mine = tmp_path / "run" / "snapshots" / "mine.txt"
    if before:
        mine.parent.mkdir(parents=True)
        mine.write_text("notes")
    with monkeypatch.context():
        spoil({0})
        with pytest.raises(NotFinite, match=r"at step 1 of 8 .*; nothing was kept: .* or add --on-nan skip\.$"):
            train(tiny("snapshots.count=1"), tmp_path / "run", cache=cache)
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == ([mine] if before else [])
    assert before or not (tmp_path / "run").exists()
    again = tiny("train.on_nan=skip", "train.warmup=0")
    assert train(again, tmp_path / "run", cache=cache, resume=before).record["skipped_steps"] == [1]
    assert (tmp_path / "run" / "recipe.yaml").exists()


def test_what_tensorboard_has_of_a_failed_run_does_not_stop_the_next(spoil, tmp_path, cache):
    pytest.importorskip("tensorboard")
    spoil({0})
    with pytest.raises(NotFinite, match="at step 1 of 8"):
        train(tiny("train.report_to=[tensorboard]"), tmp_path / "run", cache=cache)
    assert list(tmp_path.glob("run/checkpoints/runs/**/events.*"))
    train(tiny("train.on_nan=skip"), tmp_path / "run", cache=cache)


def test_a_second_failure_takes_no_checkpoint_along(spoil, tmp_path, cache, monkeypatch):
    """The steps of a resumed run count from its checkpoint, also where it fails before that has been read."""
    settings = ["train.checkpoints=2"]
    spoil({5})
    with pytest.raises(NotFinite):
        train(tiny(*settings), tmp_path / "run", cache=cache)
    before = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}

    def torn(*args, **options):
        raise RuntimeError("no")

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "_load_from_checkpoint", torn)
        with pytest.raises(RuntimeError, match="no"):
            train(tiny(*settings), tmp_path / "run", cache=cache, resume=True)
    assert {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()} == before


def test_a_run_that_was_begun_before_keeps_its_folder(spoil, tmp_path, cache):
    """Without a checkpoint it begins at step 0 again; if that fails the folder still belongs to its recipe."""
    settings = ["snapshots.count=4"]
    spoil({5})
    with pytest.raises(NotFinite):
        train(tiny(*settings), tmp_path / "run", cache=cache)
    spoil({0})
    with pytest.raises(NotFinite, match="at step 1 of"):
        train(tiny(*settings), tmp_path / "run", cache=cache, resume=True)
    assert (tmp_path / "run" / "recipe.yaml").is_file()
    assert len(list((tmp_path / "run" / "snapshots").iterdir())) > 1


@pytest.mark.parametrize("kind", ["loss", "gradient"])
def test_skip_leaves_the_weights_alone_and_goes_on(kind, spoil, tmp_path, cache, monkeypatch):
    spoil({3, 4}, kind)
    seen: dict[int, dict[str, torch.Tensor]] = {}
    own = Trainer.on_pre_optimizer_step

    def look(self, *args, **kwargs):
        own(self, *args, **kwargs)
        seen[self.state.global_step] = {n: p.detach().clone() for n, p in self.model.named_parameters()}

    monkeypatch.setattr(Trainer, "on_pre_optimizer_step", look)
    recipe = tiny("train={on_nan: skip, micro_batch: 2, log_every: 4, checkpoints: 2, batch_tokens: 256, seed: 1}",
                  "train.learning_rate=0.01", "train.device=cpu", "loss={name: dispersion, weight: 0.5}")  # fmt: skip
    train(recipe, tmp_path / "run", cache=cache)
    # `seen` has the weights before the optimiser's step, so those after step 3 are those before step 4
    for step in range(1, 8):
        still = all(torch.equal(seen[step - 1][n], seen[step][n]) for n in seen[step])
        assert still == (step - 1 in (3, 4) or step == 1), step  # the first step's learning rate is 0
    record = result(tmp_path / "run")  # it is JSON: no NaN in it
    assert record["skipped_steps"] == [4, 5]
    assert all(torch.isfinite(w).all() for w in weights(tmp_path / "run").values())
    by_step = {e["step"]: e for e in record["history"]}
    assert list(by_step) == [1, 4, 8]
    for entry in record["history"]:
        assert entry["loss"] == pytest.approx(entry["task_loss"] + 0.5 * entry["penalty"], rel=1e-5)
        assert 5 < entry["task_loss"] < 6.5  # means over the steps that count, about log 384 = 5.95
    assert by_step[4]["grad_norm"] is None  # of a step that was skipped
    assert by_step[8]["grad_norm"] > 0


def test_a_line_of_the_log_with_nothing_in_it(spoil, tmp_path, cache):
    spoil({2, 3})
    train(tiny("train.on_nan=skip"), tmp_path / "run", cache=cache)
    losses = {e["step"]: e["loss"] for e in result(tmp_path / "run")["history"]}
    assert losses[4] is None
    assert all(value > 0 for step, value in losses.items() if step != 4)
    assert training_figure([("a", read(tmp_path / "run"))], tmp_path / "a.png").exists()


def test_skipped_steps_are_remembered_over_a_resumption(spoil, tmp_path, cache):
    spoil({1, 6})
    with pytest.raises(NotFinite):
        train(tiny("train.checkpoints=2"), tmp_path / "run", cache=cache)
    settings = ["train.checkpoints=2", "train.on_nan=skip"]  # on_nan may change

    class Enough(Exception):
        pass

    def stop(step, figures):
        if step == 5:
            raise Enough

    with pytest.raises(Enough):
        train(tiny(*settings), tmp_path / "run", cache=cache, resume=True, show=stop)
    marker = tmp_path / "run" / "checkpoints" / "checkpoint-4" / "complete.json"
    assert json.loads(marker.read_text())["skipped_steps"] == [2]
    train(tiny(*settings), tmp_path / "run", cache=cache, resume=True)
    assert result(tmp_path / "run")["skipped_steps"] == [2, 7]
