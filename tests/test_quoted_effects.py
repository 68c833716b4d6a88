"""The effects quoted in docs/differences.md that come from committed measurements of SmolLM2-135M."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import decondense as dc
from decondense import records
from decondense.studies.outcomes import unpack

ROOT = Path(__file__).resolve().parent.parent
WORDS = " ".join((ROOT / "docs" / "differences.md").read_text(encoding="utf-8").split())


def by_seed(file):
    """In the order in which the numbers were drawn that the document quotes."""
    arm, _, seed = file.parent.name.partition("-seed-")
    return seed, arm


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
    before = model.before_norm.mean_cosine
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


def test_the_best_of_six_is_above_their_mean():
    """The six runs of the study `benchmarks` stand for six checkpoints of about the same quality."""
    files = sorted((ROOT / "results" / "studies" / "benchmarks" / "runs").glob("*/outcomes.json"), key=by_seed)
    runs = [records.read(file).outcomes for file in files]
    tasks = [np.array([unpack(run[task]) for run in runs]) for task in runs[0]]
    rng = np.random.default_rng(0)

    def above(limit):
        """Largest minus mean of the averages over tasks, in points, on at most so many items of each."""
        gains = []
        for _ in range(1000):
            chosen = [task[:, rng.choice(task.shape[1], min(limit, task.shape[1]), replace=False)] for task in tasks]
            averages = np.mean([part.mean(1) for part in chosen], axis=0)
            gains.append(averages.max() - averages.mean())
        return 100 * np.mean(gains)

    averages = np.mean([task.mean(1) for task in tasks], axis=0)
    assert len(averages) == 6
    assert f"by {100 * (averages.max() - averages.mean()):.2f} points on all items" in WORDS
    assert f"by {above(500):.2f} with 500 documents per task and {above(200):.2f} with 200" in WORDS
