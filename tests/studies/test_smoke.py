"""Every study at smoke scale, on real code paths, in the time that it may take."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import start

import decondense.train.run
from decondense import records, studies

COMMAND = Path(__file__).parents[1] / "command_worker.py"
CLOSER = ("theory", "counteract", "init", "text", "distill")  # looked at in tests of their own
OTHERS = [n for n in studies.STUDIES if n not in CLOSER]
LIMIT = 3  # imports: what a study may take at smoke scale, its own imports included
IMPORTS = (
    "import decondense.cli, decondense.train.run, decondense.train.trainer, decondense.train.watch, "
    "matplotlib.backends.backend_agg, matplotlib.figure"
)


@pytest.fixture(scope="module")
def imports():
    """Seconds that a fresh process takes to import what studies use; here all of it is imported before, which also
    leaves compiled files where there were none."""
    exec(IMPORTS, {})
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    leave = "import os; os._exit(0)"  # taking all of it to pieces comes after the last file
    subprocess.run([sys.executable, "-c", f"{IMPORTS}; {leave}"], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.fixture(autouse=True)
def limit(imports):
    """Processor time, not the clock, and in units of the imports: other tests may share the machine, which then needs
    more of it for both. Three of them are some 20 seconds of a quiet core. Each test here runs one study, once."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    begun = time.process_time()
    yield
    spent = time.process_time() - begun
    torch.set_num_threads(threads)
    assert imports + spent < LIMIT * imports, f"{imports:.1f} s of imports and {spent:.1f} s"


def check(folder, name):
    record = json.loads((folder / "result.json").read_text())
    assert record["study"] == name
    assert record["scale"] == "smoke"
    assert record["verdict"] in ("reproduced", "not reproduced", "undecided")
    assert record["sentence"].startswith(record["verdict"])
    assert bool(record["runs"]) == (name != "theory")
    assert record["table"]["rows"]
    for file in ("figure.png", "table.csv", "config.yaml"):
        assert (folder / file).stat().st_size > 0
    files = [p for p in folder.rglob("*") if p.is_file()]
    assert not [p for p in files if p.suffix not in (".json", ".png", ".csv", ".yaml")]
    assert sum(p.stat().st_size for p in files) < 2_000_000
    assert str(folder.parent) not in "".join(p.read_text() for p in files if p.suffix != ".png")
    return record


def test_theory(command, tmp_path):
    _, out, _ = command("study", "theory", "--out", tmp_path / "o")
    record = check(tmp_path / "o", "theory")
    assert record["verdict"] == "not reproduced"
    assert "0.034679" in record["sentence"]
    fails = record["estimate"]["fails"]
    assert fails["published"] > 0
    assert (fails["lower"], fails["simple"], fails["sharp"]) == (0, 0, 0)
    rest = record["sentence"].removeprefix("not reproduced: ")
    assert f"not reproduced: {record['headline']} {rest}" in " ".join(out.split())


def test_counteract(command, tmp_path):
    """A run from nothing with λ = 1: the loss must show. Runs made one by one give what all together give."""
    _, _, err = command("study", "counteract", "--out", tmp_path / "o", "--piece", "*-seed-3")
    assert "dispersion: held-out loss" in err
    assert "1 of at least 3 training seeds" in check(tmp_path / "o", "counteract")["sentence"]
    _, out, err = command("study", "counteract", "--out", tmp_path / "o")
    assert "dispersion-seed-3: already done" in err
    record = check(tmp_path / "o", "counteract")
    assert record["verdict"] == "reproduced"
    assert record["estimate"]["mean_cosine"]["n"] == 3
    assert "checks the code" in out
    plain, treated = (records.read(tmp_path / "o" / "runs" / f"{a}-seed-1") for a in ("cross-entropy", "dispersion"))
    assert [shot.step for shot in treated.snapshots] == [0, 2, 4]
    # both arms start from the same weights
    assert treated.snapshots[0].mean_cosine == pytest.approx(plain.snapshots[0].mean_cosine)


def test_killed_in_the_middle_and_repeated_is_the_same_bytes(command, tmp_path):
    """SIGKILL in the second of two runs, after a checkpoint: nothing has a chance to tidy up."""
    settings = ["--set", "base.train.checkpoints=4", "--set", "base.snapshots.count=1"]
    asked = ["study", "init", "--seeds", "1,2", *settings, "--out"]
    running = start(COMMAND, tmp_path / "number", *asked, tmp_path / "killed")
    working = tmp_path / "killed" / ".work" / "from-scratch-seed-2"
    while not running.done() and not list(working.glob("checkpoints/*/complete.json")):
        time.sleep(0.002)
    os.kill(int((tmp_path / "number").read_text()), signal.SIGKILL)
    assert running.result().returncode == -signal.SIGKILL
    assert working.is_dir()
    assert not (tmp_path / "killed" / "result.json").exists()
    _, _, err = command(*asked, tmp_path / "killed")
    assert "from-scratch-seed-1: already done" in err
    assert not working.parent.exists()
    command(*asked, tmp_path / "left")
    files = [path.relative_to(tmp_path / "left") for path in (tmp_path / "left").rglob("*") if path.is_file()]
    assert {"result.json", "table.csv", "figure.png"} < set(map(str, files))
    for file in files:
        assert (tmp_path / "killed" / file).read_bytes() == (tmp_path / "left" / file).read_bytes(), file
    check(tmp_path / "left", "init")


def test_text(command, tmp_path):
    command("study", "text", "--out", tmp_path / "o")
    record = check(tmp_path / "o", "text")
    assert len(record["table"]["rows"]) == 4
    assert len({row[6] for row in record["table"]["rows"]}) == 4  # four texts, four numbers


@pytest.mark.usefixtures("unpainted")  # a figure of each kind is painted here or in test_conclusions.py
@pytest.mark.parametrize("name", OTHERS)
def test_every_other_study(command, tmp_path, request, name):
    bench = ["--bench", request.getfixturevalue("shared") / "data" / "bench"] if name == "benchmarks" else []
    code, _, err = command("study", name, "--out", tmp_path / "o", *bench)
    assert code == 0, err
    check(tmp_path / "o", name)


@pytest.mark.usefixtures("unpainted")
def test_distill(command, tmp_path, monkeypatch):
    """In calls of their own a teacher waits for its student, also while something else is done in the same folder."""
    folders, train = [], decondense.train.run.train
    monkeypatch.setattr(
        decondense.train.run, "train", lambda recipe, to, **how: folders.append(to.name) or train(recipe, to, **how)
    )
    kept = tmp_path / "o" / ".work" / "teacher-dispersed-teacher-seed-1"
    for pieces, there in (("dispersed*", True), ("student-alone*", True), ("*", False)):
        code, _, err = command("study", "distill", "--out", tmp_path / "o", "--piece", pieces)
        assert code == 0, err
        assert kept.exists() == there
    assert not kept.parent.exists()
    students = [f"student-with-a-{which}teacher-seed-1" for which in ("", "dispersed-")]
    assert folders == [kept.name, "student-alone-seed-1", "teacher-teacher-seed-1", *students], "each once"
    check(tmp_path / "o", "distill")


def test_benchmarks_without_data_are_not_run(command, tmp_path):
    _, out, _ = command("study", "benchmarks", "--out", tmp_path / "o")
    assert "undecided: not run" in out
    record = json.loads((tmp_path / "o" / "result.json").read_text())
    assert (record["verdict"], record["runs"]) == ("undecided", [])
