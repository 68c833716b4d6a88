from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from decondense.meter.compare import Comparison
from train.runs import content


@pytest.fixture(scope="session")
def cache(tmp_path_factory) -> Path:
    """Tokenised texts, shared by all runs of a session."""
    return tmp_path_factory.mktemp("tokens")


@pytest.fixture(autouse=True)
def _no_figures(monkeypatch) -> None:
    """Half of the time of a small run is spent on drawing it; test_result.py sees the figures."""
    monkeypatch.setattr("decondense.figures.training.training_figure", lambda runs, path: path)
    monkeypatch.setattr(Comparison, "plot", lambda self, path: path)


@pytest.fixture
def recipe(tmp_path, cache, monkeypatch):
    """A recipe file in an empty working folder; texts are tokenised into the session's folder."""
    monkeypatch.setenv("DECONDENSE_CACHE", str(cache))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("decondense.commands.terminal.EVERY", 0.0)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    path = work / "small.yaml"
    path.write_text(yaml.safe_dump({k: v for k, v in content("data.tokens=512").items() if k != "name"}))
    return path
