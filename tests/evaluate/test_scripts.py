"""The benchmark scripts of the evaluation: what they read, and what their clock leaves out."""

from __future__ import annotations

import csv
import importlib
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module


def test_the_measured_spread_of_a_study(script):
    truth = script("bench_significance").measured_truth(ROOT / "results" / "studies" / "benchmarks" / "result.json")
    table = list(csv.DictReader((ROOT / "results" / "studies" / "benchmarks" / "table.csv").open()))
    tasks = [row for row in table if not row["task"].startswith("average")]
    assert len(tasks) == 10
    assert list(truth.items) == [int(row["items"]) for row in tasks]
    assert list(truth.accuracy) == [float(row["base"]) for row in tasks]
    assert list(truth.seed_sd) == [float(row["seed_sd"]) for row in tasks]


@pytest.mark.parametrize(("paired", "spread"), [(False, 0.02), (True, 0.02 / 2**0.5)])
def test_the_measured_spread_of_a_comparison(script, tmp_path, paired, spread):
    file = tmp_path / "result.json"
    file.write_text(json.dumps({"paired": paired, "tasks": [{"task": "t", "items": 9, "base": 0.4, "seed_sd": 0.02}]}))
    truth = script("bench_significance").measured_truth(file)
    assert (truth.items, truth.accuracy) == ((9,), (0.4,))
    assert truth.seed_sd == pytest.approx((spread,))


@pytest.mark.parametrize("body", [None, "{", "[]", "{}", '{"tasks": []}', '{"tasks": [{"items": 3, "base": 0.1}]}'])
def test_no_measured_spread(script, tmp_path, monkeypatch, capsys, body):
    file = tmp_path / "result.json"
    if body is not None:
        file.write_text(body)
    monkeypatch.setattr(sys, "argv", ["bench_significance.py", "--measured", str(file), "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit) as stop:
        script("bench_significance").main()
    assert stop.value.code == 2
    assert f"got {str(file)!r}: name such a file." in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_one_item_goes_through_both_before_the_clock_starts(script, stories, bench, tmp_path, monkeypatch):
    module, seen = script("bench_evaluate"), []
    plain = module.compare

    def spy(options, pair, name):
        row = plain(options, pair, name)
        seen.append((name, row["items"], row["lm_eval_s"] > 0))
        return row

    monkeypatch.setattr(module, "compare", spy)
    words = f"x --model {stories} --bench {bench} --tasks piqa,winogrande --limit 3 --batch-sizes 2 --repeats 2"
    monkeypatch.setattr(sys, "argv", [*words.split(), "--out", str(tmp_path), "--run", str(tmp_path / "run")])
    module.main()
    assert (tmp_path / "run" / "items.parquet").exists()
    assert seen == [("piqa", 1, True), ("piqa", 3, True), ("winogrande", 3, True)]
    with (tmp_path / "evaluate.csv").open() as file:
        assert [(row["task"], row["items"]) for row in csv.DictReader(file)] == [
            ("piqa", "3"),
            ("winogrande", "3"),
            ("all", "6"),
        ]
