"""Tables fit narrow terminals and pipes, and --json is everywhere: every command that prints, on committed results."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from by_hand import cli as run
from rich.console import Console
from rich.table import Table

import decondense as dc
from decondense import records
from decondense.commands import compare, doctor, evaluate, measure, significance, study, terminal, train
from decondense.meter.compare import Comparison
from decondense.stats.tables import cells
from decondense.studies import STUDIES, settings_of

RESULTS = Path(__file__).resolve().parent.parent / "results"
DOSE = RESULTS / "studies" / "dose" / "runs" / "lambda-0-seed-3"


def of_two_tasks() -> records.Record:
    """Of ten tasks, one with a long name."""
    row = {"items": 12_345, "base": 0.5, "treated": 0.61, "base_seeds": [0.5], "treated_seeds": [0.61], "low": -0.1234}
    row |= {"difference": 0.1, "high": 0.3456, "p": 0.00004, "p_holm": 0.0004, "test": "t", "significant": False}
    row |= {"smallest_effect": 0.1234}
    part = {"tasks": [row | {"task": "hendrycks_elementary"}, row | {"task": "arc"}], "macro": row | {"tasks": 2}}
    return records.parse(part | {
        "schema": "decondense.significance/1", "base": [{"name": "a"}], "treated": [{"name": "b"}], "seeds": [1, 2],
        "paired": False, "claim": "training", "alpha": 0.05, "power": 0.8, "likelihood": part, "notes": [],
        "verdict": "v",
    })  # fmt: skip


SHOWN = {
    "measure": lambda: terminal.out.print(measure._state_table(dc.load(RESULTS / "smollm2-135m-wikitext2"))),
    "compare": lambda: terminal.out.print(
        compare._table(Comparison([dc.load(RESULTS / "smollm2-135m-wikitext2") for _ in range(2)], "order"))
    ),
    "train": lambda: train.show_run(records.read(DOSE).model_copy(update={"seconds": 9.0}), Path("r")),
    "evaluate": lambda: evaluate.show(records.read(RESULTS / "smollm2-135m-benchmarks")),
    "significance": lambda: significance._print_table(cells(of_two_tasks())),
    "doctor": lambda: doctor.doctor(),
    "study list": lambda: study._show_list("gpu", False),
    **{
        f"plan of {name}": lambda one=one: study._show_plan(one, "gpu", settings_of(one, "gpu"), None, False)
        for name, one in STUDIES.items()
    },
    **{
        f"study {folder.name}": lambda folder=folder: study._show(records.read(folder), folder, False)
        for folder in sorted((RESULTS / "studies").iterdir())
    },
}


@pytest.mark.parametrize("name", SHOWN)
def test_tables_fit_sixty_columns(name, monkeypatch):
    monkeypatch.setattr("decondense.hub.hub_reachable", lambda: False)
    monkeypatch.setattr(terminal.out, "_width", 60)
    monkeypatch.setenv("COLUMNS", "60")
    tables = []
    monkeypatch.setattr(terminal.out, "print", lambda *things, **_: tables.extend(things))
    SHOWN[name]()
    tables = [thing for thing in tables if isinstance(thing, Table)]
    assert tables or name == "plan of theory"
    for one in tables:
        pipe = Console(file=io.StringIO(), width=60, soft_wrap=True)
        pipe.print(one)
        said = pipe.file.getvalue()
        assert max(map(len, said.splitlines())) <= 60, said
        assert "\x1b" not in said
        letters = "".join(said.split())
        for column in one.columns:  # whole, if over several lines
            assert all("".join(cell.plain.split())[:9] in letters for cell in column.cells), said


def test_a_number_that_a_state_has_not_is_a_dash():
    """As of windows of 2 tokens without the first, when they were measured and when they are read again."""
    result = dc.load(RESULTS / "smollm2-135m-wikitext2")
    for nothing in (None, float("nan")):
        result.record.states[0].mean_cosine_without_first = nothing
        shown = [cell.plain for cell in measure._state_table(result).columns[8].cells]
        assert shown[:2] == ["–", f"{result.record.states[1].row()['mean_cosine_without_first']:.2f}"]


def test_a_spectral_measurement_says_its_ranks():
    result = dc.load(RESULTS / "smollm2-135m-wikitext2")
    assert measure._ranks(result) == ""
    for number, state in enumerate(result.record.states):
        state.effective_rank = None if number == 3 else 90.0 - number if number < 7 else 80.0 + number
    told = "effective rank: 90.0 at the embedding, 110.0 at state 30, lowest 84.0 at state 6; the rest of --spectral: "
    assert measure._ranks(result) == f"{told}states.csv"


def test_json_everywhere(tmp_path):
    """Of commands that need no model; tests/test_help.py sees that all have the option."""
    theory = RESULTS / "studies" / "theory"
    plan = json.loads(run("study", "width", "--scale", "gpu", "--plan", "--piece", "2,3", "--json").stdout)
    assert [one["number"] for one in plan["runs"]] == [2, 3]
    assert plan["cost"] is None, "of some of the runs nobody knows it"
    assert len(json.loads(run("study", "list", "--json").stdout)) == len(STUDIES)
    (row,) = json.loads(run("report", theory, "--table", "--json").stdout)
    assert (row["study"], row["verdict"]) == ("theory", "not reproduced")
    assert json.loads(run("report", theory, "--out", tmp_path / "p.html", "--json").stdout)["results"] == {"study": 1}
    recipe = ("train", "--model", "smollm2-135m", "--dry-run", "--json")
    assert json.loads(run(*recipe).stdout)["model"]["name"] == "smollm2-135m"
    assert [one["train"]["seed"] for one in json.loads(run(*recipe, "--seeds", "4,5").stdout)] == [4, 5]


def test_where_the_page_is_served_is_said_as_json(monkeypatch):
    monkeypatch.setattr("http.server.ThreadingHTTPServer.serve_forever", lambda server: None)
    done = run("report", RESULTS / "studies" / "theory", "--serve", "--port", "0", "--json")
    assert json.loads(done.stdout)["address"].startswith("http://127.0.0.1:")
