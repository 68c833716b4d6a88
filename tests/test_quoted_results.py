"""The numbers in the prose of README.md and docs/results.md are those of the committed study folders."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from decondense.studies.verdict import signed

ROOT = Path(__file__).resolve().parent.parent
STUDIES = ROOT / "results" / "studies"


def words_of(name: str) -> str:
    return " ".join((ROOT / name).read_text(encoding="utf-8").split())


RESULTS, README = words_of("docs/results.md"), words_of("README.md")


def estimate(study: str) -> dict:
    return json.loads((STUDIES / study / "result.json").read_text(encoding="utf-8"))["estimate"]


def table(study: str) -> list[dict]:
    found = json.loads((STUDIES / study / "result.json").read_text(encoding="utf-8"))["table"]
    return [dict(zip(found["columns"], row)) for row in found["rows"]]


def mean(study: str, arm: str, column: str) -> float:
    return float(np.mean([row[column] for row in table(study) if row["arm"] == arm]))


def bounds(decision: dict, digits: int, scale: float = 1.0) -> str:
    return f"[{signed(scale * decision['low'], digits)}, {signed(scale * decision['high'], digits)}]"


def test_benchmarks():
    macro = estimate("benchmarks")["macro"]
    moved, interval = signed(100 * macro["difference"], 2), bounds(macro, 2, 100)
    assert f"{moved} points, 95 % interval {interval}" in RESULTS
    assert f"move by {moved} points {interval} on average" in README
    assert f"A gain of {100 * macro['smallest_effect']:.2f} would have been found four times out of five" in RESULTS
    assert f"all {macro['items']:,} items" in RESULTS
    assert not any(row["p_holm"] < 0.05 for row in table("benchmarks") if row["task"] != "average")


def test_the_same_runs_in_geometry_and_loss():
    found = estimate("counteract")
    plain, treated = (mean("counteract", arm, "mean_cosine") for arm in ("cross-entropy", "dispersion"))
    assert f"{treated:.3f} against {plain:.3f}" in RESULTS
    assert f"from {plain:.3f} to {treated:.3f}" in README
    assert f"it is {found['share_removed_percent']:.1f} % of what is there" in RESULTS
    assert f"lowers it too, by {-found['cross_entropy_alone']['estimate']:.3f}" in RESULTS
    assert found["spearman"]["verdict"] == "undecided"  # "the rank trend does not change"
    loss = found["held_out_loss"]
    interval = bounds(loss, 4)
    assert f"by {loss['estimate']:.4f} nats {interval}" in RESULTS
    runs = estimate("benchmarks")["runs"]
    for key in ("held_out_loss", "lambada_openai perplexity"):  # "higher in all three seeds"
        assert all(runs["dispersion"][s][key] > runs["cross-entropy"][s][key] for s in ("1", "2", "3"))
    for seed in (1, 2, 3):  # "after every block and in every seed"
        ends = []
        for arm in ("dispersion", "cross-entropy"):
            piece = json.loads((STUDIES / "benchmarks" / "pieces" / f"seed-{seed}-{arm}.json").read_text())
            ends.append(np.array(piece["runs"][arm]["snapshots"][-1]["mean_cosine"][1:]))
        assert (ends[0] < ends[1]).all()


def test_dose():
    found = estimate("dose")
    against = found["against_zero"]
    small = against["λ +0.1"]
    assert f"the same weight gives {signed(small['estimate'], 4)} {bounds(small, 4)}" in RESULTS
    assert f"At −0.3 held-out loss is {against['λ −0.3']['estimate']:.4f} nats higher than at 0" in RESULTS
    assert against["λ +0.3"]["low"] < 0 < against["λ +0.3"]["high"]  # "at +0.3 no different"
    assert f"at −1 it is {against['λ −1']['estimate']:.3f} higher, at +1 {against['λ +1']['estimate']:.3f}" in RESULTS
    cosines = [mean("dose", arm, "mean_cosine") for arm in ("λ −1", "λ +1")]
    assert f"Mean cosine goes from {cosines[0]:.2f} to {cosines[1]:.2f}" in RESULTS
    slope = found["slope"]
    assert f"{signed(slope['estimate'], 4)} nats per unit of λ {bounds(slope, 4)}" in RESULTS
    best = min(against, key=lambda arm: against[arm]["estimate"])
    assert best == "λ +0.1"
    assert against[best]["verdict"] == "undecided"
    assert all(d["verdict"] != "reproduced" for d in against.values())  # README: "at any weight tried"


def test_trend_and_level():
    narrow, wide = "MLP width 64", "MLP width 4096"
    trends = [signed(mean("width", arm, "spearman"), 2) for arm in (narrow, wide)]
    assert f"Spearman {trends[0]} with an MLP of width 64 and {trends[1]} with 4096" in RESULTS
    levels = [mean("width", arm, "mean_cosine") for arm in (narrow, wide)]
    assert f"the narrowest models have {levels[0]:.3f} and the widest {levels[1]:.3f}" in RESULTS
    starts = [mean("width", arm, "mean_cosine_start") for arm in (narrow, wide)]
    assert f"{starts[0]:.2f} against {starts[1]:.2f}" in RESULTS
    found = estimate("init")
    assert f"{signed(found['start']['estimate'], 2)} at initialisation" in RESULTS
    assert f"{-found['change']['estimate']:.2f} lower at the end of training" in RESULTS
    assert f"training *raises* it by {found['mean_cosine']['estimate']:.3f}" in RESULTS
    assert found["mean_cosine"]["low"] > 0
    assert estimate("width")["mean_cosine"]["high"] < 0
    losses = [row["held_out_loss"] for row in table("width")]
    assert f"held-out losses from {min(losses):.1f} to {max(losses):.1f}" in RESULTS


def test_estimators_and_distillation():
    found = estimate("estimators")
    first = found["held_out_loss"]["first order"]
    assert f"differs by {signed(first['estimate'], 4)} nats, 90 % interval {bounds(first, 4)}" in RESULTS
    assert first["verdict"] == "reproduced"
    assert f"held-out loss within {max(-first['low'], first['high']):.4f} nats" in README
    assert max(map(abs, found["mean_cosine"]["first order"].values())) < 0.001
    alone, taught = (mean("distill", arm, "mean_cosine") for arm in ("student alone", "student with a teacher"))
    assert f"({taught:.3f} against {alone:.3f})" in RESULTS


@pytest.mark.parametrize("name", ["dose", "width", "init", "counteract"])
def test_three_seeds_where_three_are_said(name):
    seeds = {row["seed"] if "seed" in row else row["run"] for row in table(name)}
    assert len(seeds) == 3
