"""The effects quoted in docs/differences.md that come from committed measurements of SmolLM2-135M."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import decondense as dc

ROOT = Path(__file__).resolve().parent.parent
WORDS = " ".join((ROOT / "docs" / "differences.md").read_text(encoding="utf-8").split())


@pytest.fixture(scope="module")
def model():
    return dc.load(ROOT / "results" / "smollm2-135m-wikitext2" / "result.json")


def spread(density):
    """Standard deviation of the cosines of each state, from its histogram."""
    edges = np.linspace(-1, 1, density.shape[1] + 1)
    middle = (edges[1:] + edges[:-1]) / 2
    share = density / density.sum(1, keepdims=True)
    return np.sqrt(share @ middle**2 - (share @ middle) ** 2)


def test_averaging_first_narrows_the_histogram(model):
    ratio = (spread(model.released_histogram) / spread(model.histogram))[1:]
    assert f"to {ratio.min():.2f} … {ratio.max():.2f} of its width" in WORDS


def test_the_diagonal_hardly_moves_the_mean(model):
    moved = model.mean_cosine_all - model.mean_cosine
    np.testing.assert_allclose(moved, (1 - model.mean_cosine) / 512, rtol=1e-6)
    assert f"adds at most {moved.max():.4f}" in WORDS


def test_the_final_norm_hides_condensation(model):
    before = model.before_norm["mean_cosine"]
    assert f"{before:.3f} before the norm, {model.mean_cosine[-1]:.3f} after" in WORDS
    states = [*model.mean_cosine[:-1], before]
    trend = stats.spearmanr(range(len(states)), states).statistic
    assert f"from {model.spearman:.2f} to {trend:.2f}" in WORDS


def test_the_interval_over_windows(model):
    low, high = model.interval("spearman")
    assert f"Spearman {model.spearman:.2f} with 95 % of [{low:.2f}, {high:.2f}] over 100 windows" in WORDS


def test_the_embedding_in_the_trend(model):
    blocks = model.trend("spearman", states="blocks")
    assert f"{model.spearman:.2f} with the embedding, {blocks:.2f} without" in WORDS


def test_a_few_hundred_documents_leave_a_wide_average():
    record = json.loads((ROOT / "results" / "smollm2-135m-benchmarks" / "result.json").read_text())

    def error(limit):
        """Standard error of the average over tasks, in points, if each had at most so many items."""
        parts = [e["acc"] * (1 - e["acc"]) / min(limit, e["items"]) for e in record["tasks"].values()]
        return 100 * math.sqrt(sum(parts)) / len(parts)

    assert f"{error(500):.2f} points with 500 documents per task, {error(200):.2f} with 200" in WORDS
    assert f"{error(math.inf):.2f} with all" in WORDS
