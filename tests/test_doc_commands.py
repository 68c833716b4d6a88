"""The commands inside the sentences of the documents (those in blocks are run by test_doc_shell.py) are such that the
command line takes them, every recipe and make target they name is there, and the tables of studies are those of the
committed results."""

from __future__ import annotations

import re
import shlex

import pytest
import typer
from doc_commands import DOCUMENTS as RUN
from doc_commands import FENCE, ROOT, make_targets, text_of

from decondense import cli
from decondense.report.results_table import insert_table
from decondense.studies import STUDIES

DOCUMENTS = [*RUN, ROOT / "CONTRIBUTING.md"]


def calls() -> list:
    """Of two words at least: one is the name of a command, and no call."""
    found = [
        pytest.param(line, id=f"{document.name}: {line[:60]}")
        for document in DOCUMENTS
        for line in re.findall(r"`decondense (\w+ [^`\n]+)`", re.sub(FENCE, "", text_of(document)))
    ]
    assert len(found) > 5
    return found


@pytest.mark.parametrize("line", calls())
def test_command_is_understood(line):
    words = [word for word in shlex.split(line) if word not in ("…", "--")]
    group = typer.main.get_command(cli.app)
    with group.make_context("decondense", [words[0], "--help"], resilient_parsing=True) as context:
        name, command, _ = group.resolve_command(context, words)
        with command.make_context(name, words[1:], parent=context):
            pass
    for word in words:
        if word.startswith("recipes/") and "*" not in word:
            assert (ROOT / word).exists(), word


def test_tests_that_documents_name_exist():
    """As evidence, a document names a test function or a test file."""
    code = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("*.py"))
    known = set(re.findall(r"^def (test_\w+)", code, re.MULTILINE))
    named = {name for document in DOCUMENTS for name in re.findall(r"`(test_\w+)`", text_of(document))}
    assert len(named) > 10
    assert named <= known
    files = {name for document in DOCUMENTS for name in re.findall(r"`(tests/[\w/]+\.py)`", text_of(document))}
    assert [name for name in files if not (ROOT / name).exists()] == []


def test_make_targets_are_there():
    found = [re.findall(r"^make (\w+)|`make (\w+)`", text_of(document), re.MULTILINE) for document in DOCUMENTS]
    flat = {name for pairs in found for pair in pairs for name in pair if name}
    assert flat
    assert flat <= make_targets()


@pytest.mark.parametrize("name", ["README.md", "docs/results.md"])
def test_tables_of_studies_are_those_of_the_results(name):
    known = [(study.name, study.claim, study.question) for study in STUDIES.values()]
    text, skipped = insert_table(ROOT / name, [ROOT / "results" / "studies"], known=known)
    assert not skipped
    assert text == text_of(ROOT / name), "decondense report results/studies --readme FILE"
