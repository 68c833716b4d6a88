"""Killed by SIGKILL at its worst moments and resumed, a run ends with the same bits as one that was left alone."""

from __future__ import annotations

import json
import re
import signal
import time
from concurrent.futures import Future
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import torch

from decondense.train import train
from decondense.train.folder import kept_in, last_complete_checkpoint, mark, remove_other_checkpoints, would_go_on
from train.runs import child, content, fail_in_step_five, result, tiny, weights

# Everything that has a state of its own: dropout, the sampler's draws, noise on the embeddings, the clock of active
# forgetting (steps 2, 4, 6, 8), a weight that rises, the check of the estimator.
SETTINGS = [
    "data.tokens=2560",  # ten steps
    "loss={name: dispersion, weight: 1.0, schedule: linear, ramp_steps: 7, check_every: 3}",
    "loss.options={estimator: sampled, max_tokens: 16}",
    "baselines.noisy_embedding=2.0",
    "baselines.active_forgetting={every: 2, learning_rate: 0.01}",
    "train.micro_batch=4",
    "train.log_every=3",
    "train.checkpoints=3",  # steps 3, 7, 10
    "snapshots.count=2",
]


def finish(running: Future[CompletedProcess[str]], code: int) -> None:
    done = running.result(120)
    assert done.returncode == code, done.stderr


def same_result(one: Path, other: Path) -> None:
    first, second = result(one), result(other)
    for key in ("history", "held_out", "snapshots", "skipped_steps", "steps", "tokens", "text"):
        assert first[key] == second[key], key
    for snapshot in first["snapshots"]:
        assert json.loads((one / snapshot["file"]).read_text()) == json.loads((other / snapshot["file"]).read_text())
    left, right = weights(one), weights(other)
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, cache) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    finish(child(content(*SETTINGS, architecture="gpt2"), folder, cache), 0)
    return folder


def test_killed_again_and_again(undisturbed, tmp_path):
    """One run, killed at each of its worst moments in turn; what it resumes from is what was whole."""
    recipe, folder, cache = content(*SETTINGS, architecture="gpt2"), tmp_path / "run", tmp_path / "tokens"
    moments = [
        (("tokenising", 0), "there is no run in"),
        (("optimiser save", 3), "there is no complete checkpoint: starting from step 0"),
        (("after marker", 3), "resuming from checkpoint-3"),
        (("step", 5), "resuming from checkpoint-3"),
        (("optimiser save", 7), "resuming from checkpoint-3"),
        (("before marker", 7), "resuming from checkpoint-3"),
        (("after marker", 7), "resuming from checkpoint-7"),
        (("model save", 10), "resuming from checkpoint-10"),
    ]
    for number, (kill, _) in enumerate(moments):
        finish(child(recipe, folder, cache, kill=kill, resume=number > 0), -signal.SIGKILL)
        assert not (folder / "result.json").exists()
        assert not (folder / "model").exists()
        if kill[0] == "optimiser save":
            half = folder / "checkpoints" / f"checkpoint-{kill[1]}"
            assert (half / "model.safetensors").exists()  # Trainer would take it for a checkpoint
            assert not (half / "complete.json").exists()
    finish(child(recipe, folder, cache, resume=True), 0)
    said = [line for line in folder.with_suffix(".said").read_text().splitlines() if "start" in line or "resum" in line]
    assert [expected in line for (_, expected), line in zip(moments, said)] == [True] * len(moments), said
    same_result(undisturbed, folder)


def test_the_reference_run_has_what_must_be_resumed(undisturbed):
    """Else the test above would show nothing."""
    record = result(undisturbed)
    assert [e["step"] for e in record["history"]] == [1, 3, 6, 7, 9, 10]  # a line ends at every checkpoint
    weight = {e["step"]: e["penalty_weight"] for e in record["history"]}
    assert [weight[step] for step in (1, 7, 9, 10)] == [0, 6 / 7, 1, 1]  # one step, or steps of one weight
    assert 1 / 7 < weight[3] < 2 / 7  # a mean, in which a step counts by its penalty
    assert 3 / 7 < weight[6] < 5 / 7
    for e in record["history"]:
        assert e["loss"] == pytest.approx(e["task_loss"] + e["penalty_weight"] * e["penalty"], rel=1e-6)
    assert all(0 < abs(e["penalty_agreement"]) <= 1 for e in record["history"])
    assert [e["step"] for e in record["held_out"]] == [0, 5, 10]
    assert [s["step"] for s in record["snapshots"]] == [0, 5, 10]


def test_second_process_is_refused_and_a_finished_run_says_so(tmp_path, cache):
    folder = tmp_path / "run"
    reached, go = tmp_path / "reached", tmp_path / "go"
    first = child(content(), folder, cache, pause=(2, str(reached), str(go)))
    while not reached.exists():
        assert not first.done(), first.result().stderr
        time.sleep(0.01)
    try:
        for resume in (False, True):
            with pytest.raises(ValueError, match=r"in use by another process: wait for it, or choose another"):
                train(tiny(), folder, cache=cache, resume=resume)
    finally:
        go.touch()
    finish(first, 0)
    assert not (folder / ".lock").exists()
    said: list[str] = []
    before = (folder / "result.json").stat().st_mtime_ns
    again = train(tiny(), folder, cache=cache, resume=True, say=said.append)
    assert said == [f"this run is finished: {folder / 'result.json'}"]
    assert again.record == result(folder)
    assert (folder / "result.json").stat().st_mtime_ns == before
    with pytest.raises(ValueError, match=r"already holds a run: add --resume"):
        train(tiny(), folder, cache=cache)


def test_resume_with_another_recipe_is_refused(tmp_path, cache):
    folder = tmp_path / "run"
    finish(child(content(), folder, cache, kill=("step", 3)), -signal.SIGKILL)
    (folder / ".lock").unlink()  # the killed process's; the lock itself went with it

    def files() -> dict[Path, bytes]:
        return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}

    before = files()
    with pytest.raises(ValueError, match=r"but train\.learning_rate was 0\.01 and is 0\.02: use .*recipe\.yaml"):
        train(tiny("train.learning_rate=0.02"), folder, cache=cache, resume=True)
    with pytest.raises(ValueError, match=r"but baselines\.active_forgetting\.every was None and is 2"):
        train(tiny("baselines.active_forgetting.every=2"), folder, cache=cache, resume=True)
    assert files() == before
    # a key that has come since has its default there, and what does not change the result may change
    file = folder / "recipe.yaml"
    shorter = "\n".join(line for line in file.read_text().splitlines() if "scale_learning_rate" not in line)
    assert shorter != file.read_text()
    file.write_text(shorter)
    train(tiny("train.micro_batch=2", "train.keep=3"), folder, cache=cache, resume=True)
    assert result(folder)["finished"]


@pytest.mark.parametrize("changed", ["text", "held_out"])
def test_resume_with_another_text_is_refused(changed, tmp_path, cache, monkeypatch):
    """A file of the same name may hold other words: the checkpoint knows what it was trained on and judged by."""
    files = {key: tmp_path / f"{key}.txt" for key in ("text", "held_out")}
    before = {key: f"The {key} has lines.\n" * 300 for key in files}
    for key, file in files.items():
        file.write_text(before[key])
    recipe = tiny(*(f"data.{key}={file}" for key, file in files.items()), "train.checkpoints=4")
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        fail_in_step_five(patch, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            train(recipe, folder, cache=cache)
    files[changed].write_text("Quite other words.\n" * 500)
    sentence = (
        f"a run must be resumed with the texts it was started with, but {str(files[changed])!r} has changed "
        "since checkpoint-4: restore the old text, or start in another folder."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        train(recipe, folder, cache=cache, resume=True)
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        would_go_on(folder, recipe, resume=True, cache=cache)
    files[changed].unlink()
    with pytest.raises(FileNotFoundError, match=f"^no text at {re.escape(repr(str(files[changed])))}"):
        train(recipe, folder, cache=cache, resume=True)
    files[changed].write_text(before[changed])
    assert would_go_on(folder, recipe, resume=True, cache=cache) is not None
    assert sorted(p.name for p in (folder / "checkpoints").iterdir()) == ["checkpoint-2", "checkpoint-4"]
    train(recipe, folder, cache=cache, resume=True)
    assert result(folder)["finished"]


def test_a_checkpoint_that_does_not_know_its_texts_goes_on(tmp_path, cache, monkeypatch):
    file, folder = tmp_path / "text.txt", tmp_path / "run"
    file.write_text("A line of the text.\n" * 300)
    recipe = tiny(f"data.text={file}", "train.checkpoints=2")
    with monkeypatch.context() as patch:
        fail_in_step_five(patch, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            train(recipe, folder, cache=cache)
    checkpoint = folder / "checkpoints" / "checkpoint-4"
    older = kept_in(checkpoint)
    assert older.pop("texts").keys() == {str(file)}
    older.pop("digest")
    mark(checkpoint, **older)
    file.write_text("Another line of it.\n" * 300)
    train(recipe, folder, cache=cache, resume=True)
    assert result(folder)["finished"]


def test_a_result_that_is_no_run_is_not_taken_for_one(tmp_path, cache):
    study = Path(__file__).resolve().parents[2] / "results" / "studies" / "theory" / "result.json"
    begun = b"command: study\nstudy: theory\nscale: smoke\n"
    for name, there in (("result.json", study.read_bytes()), ("config.yaml", begun)):
        (tmp_path / name).write_bytes(there)
        for resume in (False, True):
            with pytest.raises(ValueError, match=r"holds a study: choose another folder with --out\.$"):
                train(tiny(), tmp_path, cache=cache, resume=resume)
        (tmp_path / name).unlink()


def test_only_whole_checkpoints_count(tmp_path):
    folder = tmp_path / "checkpoints"
    for step in (5, 10, 20, 30):
        (folder / f"checkpoint-{step}").mkdir(parents=True)
        (folder / f"checkpoint-{step}" / "weights").write_bytes(b"12345")
    (folder / "checkpoint-old").mkdir()
    assert last_complete_checkpoint(tmp_path) is None
    for step in (5, 20, 10):
        mark(folder / f"checkpoint-{step}", step=step)
    assert last_complete_checkpoint(tmp_path) == folder / "checkpoint-20"
    (folder / "checkpoint-20" / "weights").write_bytes(b"12346")
    assert last_complete_checkpoint(tmp_path) == folder / "checkpoint-10"
    marker = folder / "checkpoint-10" / "complete.json"
    marker.write_text(marker.read_text().replace("10", "11", 1))
    remove_other_checkpoints(tmp_path, last_complete_checkpoint(tmp_path))
    assert sorted(p.name for p in folder.iterdir()) == ["checkpoint-5", "checkpoint-old"]
    (folder / "checkpoint-5" / "complete.json").write_text('{"step": 5}')
    assert last_complete_checkpoint(tmp_path) is None
