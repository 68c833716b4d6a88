"""Every line of the tables in docs/trainers.md is run, and every sentence it quotes is in the source."""

from __future__ import annotations

import re

import pytest
import yaml
from doc_commands import ROOT, text_of
from transformers import Trainer

import decondense as dc
from regularize.models import llama
from regularize.test_callback import axolotl, swift
from regularize.test_training import Rows, arguments

PAGE = text_of(ROOT / "docs" / "trainers.md")


def rows(title: str) -> list[list[str]]:
    section = PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    table = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| ")][1:]
    return [[cell.strip() for cell in row] for row in table]


def lines() -> list[str]:
    found = [
        re.fullmatch(r"`(.*)`", row[1])[1] for title in ("Engines", "Watching without a loss") for row in rows(title)
    ]
    assert len(found) == 12
    return sorted({line for line in found if not line.startswith("--module")})  # torchtitan's: tests/test_doc_shell.py


@pytest.mark.parametrize("line", lines())
def test_line_runs(line, tmp_path, monkeypatch):
    if line.startswith("decondense:"):
        axolotl(monkeypatch)
        from decondense.integrations.axolotl import DecondenseArgs

        assert DecondenseArgs(**yaml.safe_load(line)).decondense == {"weight": 0.1}
        return
    names = {"dc": dc, "model": llama(layers=1)}
    if "trainer" in line:
        names["trainer"] = Trainer(names["model"], arguments(tmp_path), train_dataset=Rows(False))
    if "pl." in line:
        names["pl"] = pytest.importorskip("pytorch_lightning")
        from decondense.integrations import lightning

        names |= vars(lightning)
    if line.startswith("register"):
        swift(monkeypatch)
        from decondense.integrations.swift import register

        names["register"] = register
    names["Trainer"] = lambda model, callbacks: Trainer(
        model, arguments(tmp_path), train_dataset=Rows(False), callbacks=callbacks
    )
    names["run_exp"] = lambda callbacks: names["Trainer"](names["model"], callbacks)
    made = eval(line, names)
    if isinstance(made, Trainer):
        (callback,) = [c for c in made.callback_handler.callbacks if isinstance(c, dc.DecondenseCallback)]
        made = callback.handle
    if isinstance(made, dc.Handle):
        assert made.attached
        assert made.weight == 0.1
    if hasattr(made, "remove"):
        made.remove()


def test_refusals_are_those_of_the_source():
    code = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "src" / "decondense").rglob("*.py"))
    code = re.sub(r'"\s*\n\s*f?"', "", code).replace("{callback}", "RegularizeCallback")
    quoted = [re.findall(r'"([^"]+)"', row[1])[0] for row in rows("Refused")]
    assert len(quoted) == 11
    assert [words for words in quoted if words not in code] == []
