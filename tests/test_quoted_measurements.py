"""The numbers in the prose of docs/condensing.md and docs/measuring.md that come from measured published models."""

from __future__ import annotations

import json

import numpy as np
import pytest
from test_quoted_results import RESULTS, ROOT

from decondense.records import Measurement, read
from decondense.stats.verdicts import interval, signed
from decondense.words import amount

FAMILIES = ROOT / "results" / "families"
QWEN = {
    "qwen2.5-coder-0.5b": "Qwen2.5-Coder-Instruct 0.5B, mostly Q5_0",
    "qwen2.5-coder-1.5b": "Qwen2.5-Coder-Instruct 1.5B, mostly Q4_K",
}


def test_text():
    record = json.loads((ROOT / "results" / "studies" / "text" / "result.json").read_text(encoding="utf-8"))
    found, table = record["estimate"], record["table"]
    rows = [dict(zip(table["columns"], row)) for row in table["rows"]]

    def told(model: str) -> tuple[str, str, str, str]:
        """Ends of the level, ends of the trend with their texts, and what is expected of one more text."""
        mine = sorted((row for row in rows if row["model"] == model), key=lambda row: row["spearman"])
        cosines = [row["mean_cosine"] for row in mine]
        assert len(mine) == 10
        ends = [f"{signed(row['spearman'], 2)} ({row['text']})" for row in (mine[0], mine[-1])]
        middle, low, high = (signed(found["another_text"][model][key], 2) for key in ("estimate", "low", "high"))
        return f"{min(cosines):.3f}", f"{max(cosines):.3f}", " to ".join(ends), f"{middle} [{low}, {high}]"

    low, high, ends, another = told("smollm2-135m")
    assert f"lies between {low} and {high}, and on one more it would lie within 10 %" in RESULTS
    assert f"Spearman's trend goes from {ends}; for one more text it is {another}" in RESULTS
    low, high, ends, another = told("gemma-3-270m")
    assert f"(20 windows a text) has the narrowest cone, {low} to {high}" in RESULTS
    assert f"Spearman from {ends}, on one more text {another}" in RESULTS
    state = (cone := read(ROOT / "results" / "gemma-3-270m-wikitext2")).states[10]
    without = min(state.mean_cosine_without_variance3, state.mean_cosine_without_cosine3)
    assert f"three of its {cone.model.width} dimensions explain it" in RESULTS
    assert f"state 10 on WikiText-2 is {without:.2f} instead of {state.mean_cosine:.2f}" in RESULTS
    measuring = " ".join((ROOT / "docs" / "measuring.md").read_text(encoding="utf-8").split())
    first, second = cone.states[0].mean_cosine, cone.states[2].mean_cosine
    assert f"from {first:.2f} in the embedding to {second:.2f} in its second block" in measuring
    low, high, ends, _ = told("stories15M")
    assert f"(100 windows, seven states) has a trend from {ends}, and a level" in RESULTS
    assert f"{low} to {high}: texts differ by more than 10 %" in RESULTS
    verdicts = {model: decision["verdict"] for model, decision in found["mean_cosine"].items()}
    assert verdicts == dict.fromkeys(verdicts, "reproduced") | {"stories15M": "not reproduced"}
    assert {decision["verdict"] for decision in found["another_text"].values()} == {"undecided"}
    wide = found["another_text"]["smollm2-135m"]
    assert 0.2 < wide["high"] - wide["estimate"] < 0.215  # "by a hundredth wider"
    assert f"the lowest correlation of two is {found['lowest_correlation']['smollm2-135m']:.3f}" in RESULTS
    whole = read(ROOT / "results" / "smollm2-135m-wikitext2").trend["all"]["spearman"].value
    here = next(row["spearman"] for row in rows if (row["model"], row["text"]) == ("smollm2-135m", "wikitext-2"))
    assert f"the same Spearman of SmolLM2-135M, {here:.6f}" in RESULTS
    assert whole == pytest.approx(here, abs=1e-6)


def test_outlier_dimensions():
    measured = read(ROOT / "results" / "smollm2-135m-wikitext2")
    page = " ".join((ROOT / "docs" / "measuring.md").read_text(encoding="utf-8").split())
    states = measured.states[: measured.model.layers + 1]
    lost = [state for state in states if state.mean_cosine_without_cosine3 < state.mean_cosine / 2]
    assert f"{len(lost)} of the {len(states)} states lose more than half of their mean cosine when 3 of" in page
    counted = sum(state.mean_cosine >= 0.3 for state in lost)
    assert any(note.startswith(f"outlier dimensions explain {counted} of {len(states)}") for note in measured.notes)
    assert f"its note (which counts the {counted} with a mean cosine of at least 0.3) and `states.csv`" in page
    eleven = states[11]
    told = f"from {eleven.mean_cosine:.2f} to {eleven.mean_cosine_without_cosine3:.2f}, because 3 dimensions carry"
    assert f"at block 11 {told} {100 * eleven.top3_cosine_share:.0f} % of it" in page
    assert f"*variance* does not ({eleven.mean_cosine_without_variance3:.2f})" in page


def levels(measured: Measurement) -> np.ndarray:
    """Mean cosine of the blocks, of every window."""
    return np.array(measured.per_window.mean_cosine)[:, 1 : measured.model.layers + 1].mean(1)


def test_the_table_of_families():
    folders = sorted(file.parent for file in FAMILIES.glob("*/result.json"))
    assert len(folders) == 6
    for folder in folders:
        measured, title = read(folder), QWEN.get(folder.name, folder.name.removesuffix("-novels"))
        trend, (level, low, high) = measured.trend["all"]["spearman"], interval(list(levels(measured)))
        told = [title, amount(measured.model.parameters)]
        told += [{"wikitext-2:test": "WikiText-2", "novels:valid": "novels"}[measured.text.name]]
        told += [f"{trend.value:+.2f} [{trend.low:+.2f}, {trend.high:+.2f}]", f"{level:.3f} [{low:.3f}, {high:.3f}]"]
        assert f"| {' | '.join(told)} |" in RESULTS
        assert (measured.complete, measured.settings["tokens"]) == (True, 256)


def test_the_two_sizes_of_qwen():
    small, large = (read(FAMILIES / name) for name in QWEN)
    assert small.windows == large.windows  # "on the same 12 windows"
    apart = levels(small) - levels(large)
    assert len(apart) == 12
    assert apart.min() > 0  # "and in each of them"
    middle, low, high = interval(list(apart))
    assert f"the more condensed, by {middle:.3f} [{low:.3f}, {high:.3f}] on the same 12 windows" in RESULTS
    after, before = ([m.trend[of]["spearman"].value for m in (small, large)] for of in ("all", "all_before_norm"))
    assert [round(after[1] - after[0], 2), round(before[0] - before[1], 2)] == [0.01, 0.01]  # "a hundredth, … by one"
    assert f"before its norm ({before[0]:+.2f} for the smaller, {before[1]:+.2f} for the larger)" in RESULTS
