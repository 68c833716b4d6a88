"""The numbers in the prose of docs/results.md that come from measurements of published models."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from decondense.records import Measurement, read
from decondense.stats.verdicts import interval, signed
from decondense.words import amount

ROOT = Path(__file__).resolve().parent.parent
RESULTS = " ".join((ROOT / "docs" / "results.md").read_text(encoding="utf-8").split())
FAMILIES = ROOT / "results" / "families"
QWEN = {
    "qwen2.5-coder-0.5b": "Qwen2.5-Coder-Instruct 0.5B, mostly Q5_0",
    "qwen2.5-coder-1.5b": "Qwen2.5-Coder-Instruct 1.5B, mostly Q4_K",
}


def test_text():
    record = json.loads((ROOT / "results" / "studies" / "text" / "result.json").read_text(encoding="utf-8"))
    found, table = record["estimate"], record["table"]
    rows = {row["text"]: row for row in (dict(zip(table["columns"], row)) for row in table["rows"])}
    assert len(rows) == 10
    levels = [row["mean_cosine"] for row in rows.values()]
    assert f"lies between {min(levels):.3f} and {max(levels):.3f}" in RESULTS
    trends = {text: row["spearman"] for text, row in rows.items()}
    ends = [(signed(trends[text], 2), text) for text in (min(trends, key=trends.get), max(trends, key=trends.get))]
    assert "goes from {} ({}) to {} ({})".format(*ends[0], *ends[1]) in RESULTS
    another, level = (found[key]["smollm2-135m"] for key in ("another_text", "mean_cosine"))
    middle, low, high = (signed(another[key], 2) for key in ("estimate", "low", "high"))
    assert f"for one more text it is {middle} [{low}, {high}]" in RESULTS
    assert 0.2 < another["high"] - another["estimate"] < 0.215  # "by a hundredth wider"
    assert level["verdict"] == "reproduced"
    assert f"the lowest correlation of two is {found['lowest_correlation']['smollm2-135m']:.3f}" in RESULTS
    whole = read(ROOT / "results" / "smollm2-135m-wikitext2").trend["all"]["spearman"]
    assert f"the same Spearman, {trends['wikitext-2']:.6f}" in RESULTS
    assert whole.value == pytest.approx(trends["wikitext-2"], abs=1e-6)


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
