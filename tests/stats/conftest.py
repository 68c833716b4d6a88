"""Runs made by hand, and the simulator of the benchmark script."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from by_hand import write_run

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))


@pytest.fixture
def make_run(tmp_path):
    """make_run(name, {task: outcomes}, weights=…, checkpoint=…, settings=…) → folder."""
    return lambda name, outcomes, **changes: write_run(tmp_path / name, outcomes, **changes)
