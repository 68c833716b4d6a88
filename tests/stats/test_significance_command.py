"""`decondense significance` as a user calls it."""

from __future__ import annotations

import csv
import json
import shlex

import numpy as np
import pytest
from by_hand import cli, compared, make_item, refused

from decondense.commands.significance import _show
from decondense.records import read
from decondense.stats.significance import significance
from decondense.words import points

pytestmark = pytest.mark.usefixtures("unpainted")


def test_command(six, tmp_path):
    base, treated = six
    out = tmp_path / "out"
    done = cli("significance", *base, "--", *treated, "--out", out, "--bootstrap", 100)
    assert done.returncode == 0, done.stderr
    names = {"result.json", "table.md", "table.tex", "table.csv", "forest.png"}
    assert {p.name for p in out.iterdir()} == names
    record = json.loads((out / "result.json").read_text())
    assert record["seeds"] == [3, 3]
    assert record["verdict"] in done.stdout.replace("\n", " ")
    heads, easy = (next(line for line in done.stdout.splitlines() if word in line) for word in ("Holm", "easy"))
    assert heads.split()[-1] == "S/N"
    assert easy.split()[-1] == f"{record['tasks'][0]['signal_to_noise']:.1f}"
    again = cli("significance", base[0], treated[0], "--out", out)
    assert again.returncode == 2
    assert "already holds a result: choose another folder with --out, or replace it with --force." in again.stderr
    assert "alpha and power must" in cli("significance", base[0], treated[0], "--out", out, "--alpha", 2).stderr
    assert json.loads((out / "result.json").read_text()) == record
    assert "; S/N: how far" in done.stdout
    assert cli("significance", base[0], treated[0], "--out", out, "--force").returncode == 0
    assert json.loads((out / "result.json").read_text())["seeds"] == [1, 1]


def test_a_column_that_is_not_shown_is_not_explained(six, tmp_path, capsys):
    base, treated = six
    cli("significance", base[0], treated[0], "--out", tmp_path / "o")
    content = json.loads((tmp_path / "o" / "result.json").read_text())
    content["macro"].pop("weighted", None)
    for row in content["tasks"]:
        row["signal_to_noise"] = None  # as where seeds and items agree
    (tmp_path / "o" / "result.json").write_text(json.dumps(content))
    _show(read(tmp_path / "o"))
    said = capsys.readouterr().out
    assert "could: the smallest" in said
    assert "S/N" not in said


def test_the_spread_of_seeds_is_said_to_leave_out_that_of_items(make_run, tmp_path):
    """With items that seeds answer at random the averages differ, and seeds as such do not."""
    rng = np.random.default_rng(3)
    arms = [[make_run(f"{arm}{s}", {"t": (rng.random(40) < 0.5) * 1.0}) for s in range(3)] for arm in "bt"]
    done = cli("significance", *arms[0], "--", *arms[1], "--out", tmp_path / "o", "--bootstrap", 0)
    assert "; beyond what items explain a seed's average spreads by 0.00 " in " ".join(done.stdout.split())
    assert len(set(read(tmp_path / "o").macro.base_seeds)) > 1


def test_the_average_by_signal_to_noise_stands_beside_the_plain_one(tmp_path):
    rng = np.random.default_rng(0)
    for arm, gain in (("base", 0.0), ("treated", 0.1)):
        rows = [
            f"{item},{rng.random() < level + gain:d},{task},{seed}"
            for seed in range(2)
            for task, level in (("a", 0.2), ("b", 0.6))
            for item in range(50)
        ]
        (tmp_path / f"{arm}.csv").write_text("\n".join(["item,score,task,seed", *rows]) + "\n")
    out = tmp_path / "out"
    done = cli("significance", tmp_path / "base.csv", "--", tmp_path / "treated.csv", "--out", out, "--bootstrap", 0)
    assert done.returncode == 0, done.stderr
    record = read(out)
    weighted = record.macro.weighted
    assert weighted.weights["b"] > weighted.weights["a"] > 0
    assert weighted.difference == pytest.approx(sum(weighted.weights[t.task] * t.difference for t in record.tasks))
    for text in (done.stdout, (out / "table.md").read_text(), (out / "table.tex").read_text()):
        plain, other = (next(line for line in text.splitlines() if word in line) for word in ("average ", "by S/N"))
        assert points(record.macro.difference, sign=True) in plain
        assert points(weighted.difference, sign=True) in other
        assert text.index(plain) < text.index(other)
    table = list(csv.DictReader((out / "table.csv").open()))
    assert [row["task"] for row in table] == ["a", "b", "average", "average by S/N"]
    frame = record.to_pandas().set_index("task")
    assert frame.loc["average by S/N", "low"] == float(table[3]["low"]) == weighted.low


def test_the_record_says_how_to_make_it_again(make_run, tmp_path, monkeypatch):
    """The command on the page, run where the folders lie, gives the same record."""
    from decondense.report.reproduce import significance_command

    rng = np.random.default_rng(0)
    short, long = make_run("short", {"t": rng.random(20)}), make_run("long", {"t": rng.random(30)})
    plain = significance([long], [make_run("other", {"t": rng.random(30)})])
    command = (
        "decondense significance --alpha 0.05 --power 0.8 --bootstrap 2000 --permutations 10000 --seed 0 long -- other"
    )
    assert significance_command(plain) == command
    record = significance([short], [long], common=True, bootstrap=50, permutations=300, seed=7)
    words = shlex.split(significance_command(record))
    assert words[6:-3] == ["--common", "--bootstrap", "50", "--permutations", "300", "--seed", "7"]
    monkeypatch.chdir(tmp_path)
    done = cli(*words[1:], "--json")
    assert done.returncode == 0, done.stderr
    assert done.stdout == record.to_json()


def test_ranks_of_runs_with_one_name(six, tmp_path):
    """Two folders may end in the same word: every run has its own rank, and the terminal shows them."""
    arms = [[], []]
    for arm, folders in enumerate(six):
        for number, folder in enumerate(folders):
            place = tmp_path / f"arm{arm}-seed{number}" / "run"
            place.parent.mkdir()
            arms[arm].append(folder.rename(place))
    record = compared(*arms, bootstrap=0)
    assert [run["run"] for run in record["treated"]] == [f"arm1-seed{n}/run" for n in range(3)]
    assert [len(record["ranks"][arm]) for arm in ("base", "treated")] == [3, 3]
    assert sum(record["ranks"]["base"] + record["ranks"]["treated"]) == pytest.approx(1 + 2 + 3 + 4 + 5 + 6)
    done = cli("significance", *arms[0], "--", *arms[1], "--out", tmp_path / "out", "--bootstrap", 0)
    shown = ", ".join(f"{rank:.1f}" for rank in record["ranks"]["treated"])
    assert f"treated {shown}" in done.stdout


def test_texts_alone(make_run, tmp_path):
    """No benchmark: the likelihoods are said, and only files that were written are named."""
    rng = np.random.default_rng(0)

    def text(name, shift):
        values = [(-100 + 50 * shift + rng.standard_normal(),) for _ in range(30)]
        rows = [make_item("text:x", n, 0, values=v, units=[50], gold=None) for n, v in enumerate(values)]
        return make_run(name, {"text:x": rows})

    out = tmp_path / "out"
    done = cli("significance", text("a", 0), text("b", 0.2), "--out", out)
    assert done.returncode == 0, done.stderr
    record = json.loads((out / "result.json").read_text())
    start = "Different, the treated checkpoint scores better: log-likelihood, treated − base is +0."
    assert record["verdict"].startswith(start)
    assert " nats on text:x (95 % interval +0." in record["verdict"]
    assert "p < 0.0001" in record["verdict"]
    words = done.stdout[done.stdout.index("written:") :].replace("\n", " ")
    assert all(f"{p.name}" in words for p in out.iterdir())
    assert "forest.png" not in words
    assert "table.tex" not in words
    assert "nats per item" in done.stdout
    table = (out / "table.md").read_text()
    assert table.count("| text:x |") == 1
    assert record["verdict"] in table


def test_a_file_that_is_not_there_is_told_so(tmp_path):
    there = tmp_path / "base.csv"
    there.write_text("item,score\n1,1\n2,0\n")
    what = "a folder that `decondense evaluate` wrote, another tool's log, or a table (CSV, JSON lines, parquet)"
    for name, close in ("nope.csv", "."), ("bse.csv", ": did you mean 'base.csv'?"):
        said = refused("significance", there, "--", tmp_path / name, "--out", tmp_path / "out")
        assert said == f"error: no file or folder at {str(tmp_path / name)!r}: give {what}{close}\n"


def test_names_are_printed_as_they_are(make_run, tmp_path):
    """Square brackets in the names of texts and folders are markup to the library that prints."""
    name, out = "text:[/b]", tmp_path / "o[" / "x]"
    arms = []
    for run, shift in (("a", 0), ("b", 1)):
        rows = [make_item(name, n, 0, values=(-100 + shift * (2 + n % 3),), units=[50], gold=None) for n in range(30)]
        arms.append(make_run(run, {name: rows}))
    done = cli("significance", *arms, "--out", out)
    assert done.returncode == 0, done.stderr
    assert f"\n{name} " in done.stdout  # the table
    assert f" nats on {name} (95 % interval" in done.stdout
    assert f"written: {out}/result.json" in done.stdout


def test_command_errors(six, tmp_path):
    base, treated = six
    out = tmp_path / "out"
    done = cli("significance", *base, *treated, "--out", out)
    assert done.returncode == 2
    assert done.stderr.strip().startswith("error: put -- between base and treated runs")
    assert not out.exists()
