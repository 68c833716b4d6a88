"""Every study at smoke scale, on real code paths."""

from __future__ import annotations

import json
import time

import pytest

from decondense import studies

CLOSER = ("theory", "counteract", "text")  # looked at in tests of their own
OTHERS = [n for n in studies.STUDIES if n not in CLOSER]
LIMIT = 30  # seconds of processor time: 20 on the core they were measured on, and some room for a slower one


def check(folder, name):
    record = json.loads((folder / "result.json").read_text())
    assert record["study"] == name
    assert record["scale"] == "smoke"
    assert record["verdict"] in ("reproduced", "not reproduced", "undecided")
    assert record["sentence"].startswith(record["verdict"])
    assert record["pieces"]
    assert record["table"]["rows"]
    for file in ("figure.png", "table.csv", "config.yaml"):
        assert (folder / file).stat().st_size > 0
    files = [p for p in folder.rglob("*") if p.is_file()]
    assert not [p for p in files if p.suffix not in (".json", ".png", ".csv", ".yaml")]
    assert sum(p.stat().st_size for p in files) < 2_000_000
    assert str(folder.parent) not in "".join(p.read_text() for p in files if p.suffix != ".png")
    return record


def test_theory(command, tmp_path):
    code, out, _ = command("study", "theory", "--out", tmp_path / "o")
    assert code == 0
    record = check(tmp_path / "o", "theory")
    assert record["verdict"] == "not reproduced"
    assert "0.034679" in record["sentence"]
    fails = record["estimate"]["fails"]
    assert fails["published"] > 0
    assert (fails["lower"], fails["simple"], fails["sharp"]) == (0, 0, 0)
    assert "not reproduced" in out


def test_counteract(command, tmp_path):
    """A run from nothing with λ = 1: the loss must show. Pieces run one by one give what all together give."""
    code, _, err = command("study", "counteract", "--out", tmp_path / "o", "--piece", "3")
    assert code == 0
    assert "dispersion: held-out loss" in err
    assert "1 of at least 3 training seeds" in check(tmp_path / "o", "counteract")["sentence"]
    code, out, err = command("study", "counteract", "--out", tmp_path / "o")
    assert code == 0
    assert "seed-3: done before" in err
    record = check(tmp_path / "o", "counteract")
    assert record["verdict"] == "reproduced"
    assert record["estimate"]["mean_cosine"]["n"] == 3
    assert "checks the code" in out
    snapshots = json.loads((tmp_path / "o" / "pieces" / "seed-1.json").read_text())["runs"]["dispersion"]["snapshots"]
    assert [s["step"] for s in snapshots] == [0, 2, 4]
    assert snapshots[0]["mean_cosine"] == pytest.approx(
        json.loads((tmp_path / "o" / "pieces" / "seed-1.json").read_text())["runs"]["cross-entropy"]["snapshots"][0][
            "mean_cosine"
        ]
    )  # both arms start from the same weights


def test_text(command, tmp_path):
    code, _, _ = command("study", "text", "--out", tmp_path / "o")
    assert code == 0
    record = check(tmp_path / "o", "text")
    assert len(record["table"]["rows"]) == 4
    assert len({row[6] for row in record["table"]["rows"]}) == 4  # four texts, four numbers


@pytest.mark.parametrize("name", OTHERS)
def test_every_other_study(command, tmp_path, request, name):
    bench = ["--bench", request.getfixturevalue("shared") / "data" / "bench"] if name == "benchmarks" else []
    begun = time.process_time()
    code, _, err = command("study", name, "--out", tmp_path / "o", *bench)
    assert code == 0, err
    check(tmp_path / "o", name)
    assert time.process_time() - begun < LIMIT


def test_benchmarks_without_data_are_not_run(command, tmp_path):
    code, out, _ = command("study", "benchmarks", "--out", tmp_path / "o")
    assert code == 0
    assert "undecided: not run" in out
    record = json.loads((tmp_path / "o" / "result.json").read_text())
    assert (record["verdict"], record["pieces"]) == ("undecided", [])
