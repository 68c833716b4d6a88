"""Numbers from items, and runs that cannot be read."""

from __future__ import annotations

import gzip
import math
import re
import shutil
from pathlib import Path

import pytest
from by_hand import make_item

from decondense.evaluate.items import calibration, load_run, summarise
from decondense.records import Damaged

RESULTS = Path(__file__).resolve().parents[2] / "results"


def test_ece_by_hand():
    log = math.log
    items = [
        make_item("t", 0, 1, values=(log(0.9), log(0.1))),  # confident 0.9, right
        make_item("t", 1, 0, values=(log(0.08), log(0.92))),  # confident 0.92, wrong
        make_item("t", 2, 1, values=(log(0.6), log(0.4))),  # confident 0.6, right
    ]
    assert calibration(items, bins=10) == pytest.approx(1 / 3 * abs(1 - 0.6) + 2 / 3 * abs(0.5 - 0.91))
    assert calibration([make_item("t", 0, 1, values=(-1.0,))]) is None
    certain = [make_item("t", 0, 1, values=(0.0, -1000.0))]
    assert calibration(certain) == pytest.approx(0)


def test_summary_of_one_item():
    assert summarise([make_item("t", 0, 1)])["stderr"] is None


def test_load_run_errors(tmp_path, make_run):
    with pytest.raises(FileNotFoundError, match="no run at"):
        load_run(tmp_path / "none")
    (tmp_path / "half" / "partial").mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match="it is unfinished: repeat its command"):
        load_run(tmp_path / "half")
    folder = make_run("good", {"t": [1, 0]})
    (folder / "items.parquet").write_bytes(b"PAR1 nonsense")
    with pytest.raises(ValueError, match="could not be read as items"):
        load_run(folder)
    shutil.copy(RESULTS / "studies" / "counteract" / "runs" / "cross-entropy-seed-1" / "result.json", folder)
    for remedy in ("give another", f"evaluate its model first, decondense evaluate {folder}/model"):
        with pytest.raises(ValueError, match=rf"must be an evaluation, got a training: {re.escape(remedy)}\.$"):
            load_run(folder)
        (folder / "model").mkdir(exist_ok=True)
    (folder / "result.json").write_text('{"schema": "other"}')
    with pytest.raises(Damaged, match=r"result\.json has the schema 'other', which this version does not read"):
        load_run(folder)
    (folder / "result.json").write_bytes(gzip.compress(b"x"))
    with pytest.raises(
        Damaged, match=r"result\.json is not valid JSON.*; delete it and make the result again, or leave"
    ):
        load_run(folder)
