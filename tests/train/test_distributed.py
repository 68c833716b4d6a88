"""Two processes: the result of one on the joined batch; and one that dies."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml
from processes import launch

from decondense.train import load_recipe, train
from train.runs import content, result, weights

WORKER = Path(__file__).with_name("ddp_worker.py")
SETTINGS = [
    "loss={name: dispersion, weight: 1.0, options: {estimator: exact}}",
    "train.checkpoints=2",
    "train.micro_batch=2",
    "snapshots.count=1",
    "data.boundaries=isolated",  # blocks with unlike numbers of labels
]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("distributed") / "two.yaml"
    path.write_text(yaml.safe_dump(content(*SETTINGS)))
    return path


@pytest.fixture(scope="module")
def alone(recipe, cache) -> Path:
    return train(load_recipe(recipe), recipe.parent / "alone", cache=cache, draw=False).folder


def same(one: Path, other: Path) -> None:
    """To 1e-4: held-out loss, the curve, the snapshots' mean cosine, and the weights."""
    import decondense as dc

    left, right = result(one), result(other)
    for key, names in (("held_out", ["loss"]), ("history", ["loss", "task_loss", "penalty"])):
        assert [e["step"] for e in left[key]] == [e["step"] for e in right[key]]
        for first, second in zip(left[key], right[key]):
            for name in names:
                assert second[name] == pytest.approx(first[name], rel=1e-4), (key, name, first["step"])
    for first, second in zip(left["snapshots"], right["snapshots"]):
        cosines = [dc.load(f / s["file"]).mean_cosine for f, s in ((one, first), (other, second))]
        assert cosines[0].tolist() == pytest.approx(cosines[1].tolist(), abs=1e-4)
    expected, found = weights(one), weights(other)
    assert expected.keys() == found.keys()
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=1e-4)


def test_two_processes_end_where_one_does(recipe, alone, cache):
    out = recipe.parent / "together"
    run = launch(2, WORKER, "train", recipe, out, cwd=out.parent, DECONDENSE_CACHE=cache)
    assert run.returncode == 0, run.stderr[-3000:]
    assert result(out)["processes"] == 2
    same(alone, out)
    assert run.stdout.count("held-out loss") == 1  # only the first process speaks
    assert "a sharded model is measured and trained" in run.stdout
    assert "destroy_process_group" not in run.stderr
    assert "[transformers]" not in run.stderr


@pytest.mark.parametrize("torchrun", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_process_that_dies_and_one_that_goes_on_alone(torchrun, recipe, alone, cache, tmp_path):
    out = tmp_path / "broken"
    run = launch(2, WORKER, "die", recipe, out, cwd=tmp_path, torchrun=torchrun, DECONDENSE_CACHE=cache)
    assert run.returncode != 0
    assert (
        "error: this process was told to end (SIGTERM), as launchers do when another process of the run has died: the "
        "same command with --resume, on as many processes or another number, continues from checkpoint-4.\n"
    ) in run.stderr
    assert "OSError" not in run.stderr
    assert not (out / "result.json").exists()
    said: list[str] = []
    train(load_recipe(recipe), out, cache=cache, resume=True, say=said.append)
    assert said[0] == "resuming from checkpoint-4"
    assert result(out)["processes"] == 1
    same(alone, out)
