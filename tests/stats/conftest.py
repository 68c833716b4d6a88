"""Runs made by hand, and the simulator of the benchmark script."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))


@pytest.fixture
def six(make_run):
    """Three base and three treated seeds on two tasks; the treated arm answers ten items more."""
    rng = np.random.default_rng(0)
    easy, hard = rng.random(200) < 0.6, rng.random(300) < 0.3

    def outcomes(bonus, seed):
        noise = np.random.default_rng(seed)
        tables = {}
        for name, level in (("easy", easy), ("hard", hard)):
            flip = noise.random(len(level)) < 0.02
            answers = np.where(flip, ~level, level)
            answers[:bonus] = True
            tables[name] = answers.astype(float)
        return tables

    base = [make_run(f"base{s}", outcomes(0, s)) for s in range(3)]
    treated = [make_run(f"treated{s}", outcomes(40, 10 + s)) for s in range(3)]
    return base, treated
