from __future__ import annotations

from pathlib import Path

import pytest

from decondense.meter.compare import Comparison


@pytest.fixture(scope="session")
def cache(tmp_path_factory) -> Path:
    """Tokenised texts, shared by all runs of a session."""
    return tmp_path_factory.mktemp("tokens")


@pytest.fixture(autouse=True)
def _no_figures(monkeypatch) -> None:
    """Half of the time of a small run is spent on drawing it; test_result.py sees the figures."""
    monkeypatch.setattr("decondense.figures.training.training_figure", lambda runs, path: path)
    monkeypatch.setattr(Comparison, "plot", lambda self, path: path)
