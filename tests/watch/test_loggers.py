"""The monitor's numbers and pictures where a trainer reports to: the real packages, into a folder, nothing leaves the
machine. They want other versions of what is pinned; `make slow` runs this in an environment of theirs, .venv-loggers.
"""

from __future__ import annotations

import importlib.util
import json
import sqlite3

import pytest
from regularize.models import gpt2, tokens
from regularize.test_training import Rows, arguments
from transformers import Trainer

import decondense as dc

pytestmark = pytest.mark.slow


def of_mlflow(folder) -> float:
    import mlflow

    (run,) = mlflow.search_runs(search_all_experiments=True, output_format="list")
    mlflow.end_run()
    return run.data.metrics["geometry/trend"]


def of_wandb(folder) -> float:
    import wandb

    trend = wandb.run.summary["train/geometry/trend"]
    wandb.finish()
    return trend


def of_trackio(folder) -> float:
    (file,) = (folder / "trackio").glob("*.db")
    with sqlite3.connect(file) as database:
        lines = [json.loads(line) for (line,) in database.execute("select metrics from metrics order by id")]
    return [line["train/geometry/trend"] for line in lines if "train/geometry/trend" in line][-1]


@pytest.mark.parametrize("told", [of_mlflow, of_trackio, of_wandb])
def test_the_monitor_sends_numbers_and_pictures(told, tmp_path, monkeypatch):
    """One picture a reading, beside the numbers of every layer."""
    name = told.__name__.removeprefix("of_")
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed: make slow runs this in .venv-loggers")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("WANDB_MODE", "offline")
    args = arguments(tmp_path / "out", max_steps=2, logging_steps=1)
    args.report_to = [name]
    trainer = Trainer(gpt2(), args, train_dataset=Rows(False))
    watch = dc.monitor(trainer, every=2, inputs=tokens(2))  # the last reading is at the end, before the run is closed
    trainer.train()
    assert told(tmp_path) == pytest.approx(watch.readings[-1].trend)
    pictures = [p for p in tmp_path.rglob("*.png") if p.stat().st_size > 5000]
    assert len(pictures) == len(watch.readings) == 2
