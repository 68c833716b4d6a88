"""`dc.load` reads every kind of result, and every kind is a table."""

from __future__ import annotations

import json

import pytest
from page_results import write_everything

import decondense as dc
from decondense import records
from decondense.needs import MissingExtra


def test_every_kind_is_loaded_and_is_a_table(tmp_path, monkeypatch):
    write_everything(tmp_path)
    seen = {}
    for path, _ in records.find([tmp_path]):
        result = dc.load(path)
        kind = json.loads(path.read_text())["schema"].partition("/")[0].rpartition(".")[2]
        seen[kind] = frame = result.to_pandas()
        assert len(frame) > 0
        if kind == "condensation":
            assert frame["mean_cosine"][: result.layers + 1].to_list() == result.mean_cosine.tolist()
        elif kind == "train":
            assert frame["step"].is_monotonic_increasing
            assert frame["held_out_loss"].dropna().to_list() == [entry.loss for entry in result.held_out]
            assert set(frame["step"]) >= {line.step for line in result.history}
        elif kind in ("evaluation", "significance"):
            named = result.tasks if kind == "evaluation" else [task.task for task in result.tasks]
            assert frame["task"].to_list()[: len(named)] == list(named)
        elif kind == "study":
            assert list(frame.columns) == result.table.columns
        elif kind == "comparison":
            assert frame["spearman"].to_list() == [row.spearman for row in result.rows]
    assert seen.keys() >= {"condensation", "train", "evaluation", "significance", "study", "comparison"}
    monkeypatch.setattr("decondense.needs.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"a table needs pandas: pip install 'decondense\[pandas\]'"):
        result.to_pandas()


def test_a_record_prints_in_short(everything):
    result = dc.load(everything / "train" / "dispersion-seed1")
    said = repr(result)
    assert said == str(result)
    assert said.startswith("Training(finished=True, command='decondense train --model smollm2-135m ")
    assert ", history[300], held_out[4], snapshots[4], " in said
    assert len(said) < 600
