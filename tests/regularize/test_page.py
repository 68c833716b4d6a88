"""Every line of the tables in docs/trainers.md and docs/models.md is taken from the page and run: it trains a step,
or measures a model. What the pages quote is in the source, and the tests that they name exist."""

from __future__ import annotations

import re
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from doc_commands import ROOT, text_of
from transformers import Trainer

import decondense as dc
from regularize import test_other_packages as others
from regularize.kinds import KINDS, PAIR, Diffusion, build, pictures
from regularize.models import llama, tokens
from regularize.test_callback import axolotl, swift
from regularize.test_training import Rows, arguments
from regularize.test_trl import STAGES

TRAINERS, MODELS = (text_of(ROOT / "docs" / f"{name}.md") for name in ("trainers", "models"))


def rows(page: str, title: str) -> list[list[str]]:
    section = page.split(f"# {title}\n")[1].split("\n## ")[0]
    table = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| ")][1:]
    return [[cell.strip() for cell in row] for row in table]


def line_of(cell: str) -> str | None:
    """The code that is the whole cell; None where there are words."""
    found = re.fullmatch(r"`(.*)`", cell)
    return found and found[1]


def works(made: Any, call=None) -> None:
    """What a line made does what the page says: `call` is a training step, and a loss or a reading comes of it."""
    if isinstance(made, dc.Condensation):
        assert len(made.mean_cosine) > 1
        assert torch.tensor(made.mean_cosine).isfinite().all()
        return
    with made:
        call()
    if isinstance(made, dc.Handle):
        assert made.last["penalty"].isfinite()
        assert len(made.last["per_layer"]) > 0
    else:
        assert [reading.step for reading in made.readings] == [0]


# ---- in your trainer ----


def lines() -> list[str]:
    found = [line_of(row[1]) for title in ("Engines", "Watching without a loss") for row in rows(TRAINERS, title)]
    assert len(found) == 12
    assert None not in found
    return sorted({line for line in found if not line.startswith("--module")})  # that one: tests/titan/one_process.py


@pytest.mark.parametrize("line", lines())
def test_a_line_of_a_trainer(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if line.startswith("decondense:"):
        axolotl(monkeypatch)
        from decondense.integrations.axolotl import DecondenseArgs

        assert DecondenseArgs(**yaml.safe_load(line)).decondense == {"weight": 0.1}
        return
    model = llama(layers=1).train()
    trainer = partial(Trainer, args=arguments(tmp_path, max_steps=1, logging_steps=1), train_dataset=Rows(False))
    names = {
        "dc": dc,
        "model": model,
        "Trainer": trainer,
        "run_exp": lambda callbacks: trainer(model, callbacks=callbacks),
    }
    if "(trainer" in line:
        names["trainer"] = trainer(model)
    if line.startswith("pl."):
        pl = pytest.importorskip("pytorch_lightning")
        from decondense.integrations import lightning
        from regularize.test_lightning import LOADER, Module

        names |= vars(lightning)
        quiet = {"max_steps": 1, "logger": False, "enable_checkpointing": False, "enable_progress_bar": False,
                 "enable_model_summary": False, "accelerator": "cpu"}  # fmt: skip
        names["pl"] = SimpleNamespace(Trainer=partial(pl.Trainer, **quiet))
    if line.startswith("register"):
        swift(monkeypatch)
        from decondense.integrations.swift import register

        names["register"] = register
    made = eval(line, names)
    if line.startswith("register"):  # what the plugin is called with: the arguments, and the trainer that is being made
        from swift.callbacks import callbacks_map

        names["trainer"] = trainer(model)
        names["trainer"].add_callback(callbacks_map["decondense"](None, names["trainer"]))
        names["trainer"].train()
        assert "penalty" in names["trainer"].state.log_history[0]
    elif line.startswith("pl."):
        callback = made.callbacks[0]
        made.fit(Module(), LOADER)
        assert callback.handle.last["penalty"] if "Regularize" in line else callback.monitor.readings
    elif isinstance(made, Trainer):
        made.train()
        assert made.state.log_history[0]["penalty_weight"] == 0.1
    elif "trainer" in names:
        works(made, names["trainer"].train)
    else:
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        works(made, lambda: (model(input_ids=tokens(), labels=tokens()).loss.backward(), optimiser.step()))


def test_every_stage_is_one_that_is_trained():
    said = [row[0] for row in rows(TRAINERS, "Stages of TRL")]
    names = {"; assistant-only loss": "SFT assistant", "; packed": "SFT packed", "; with LoRA": "LoRA"}
    found = {cell.split(";")[0] for cell in said}
    assert found == {stage.split()[0] for stage in STAGES}
    for words, stage in names.items():
        assert any(words in cell for cell in said) is any(stage in name for name in STAGES)


def test_refusals_are_those_of_the_source():
    code = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "src" / "decondense").rglob("*.py"))
    code = re.sub(r'"\s*\n\s*f?"', "", code).replace("{callback}", "RegularizeCallback")
    quoted = [re.findall(r'"([^"]+)"', row[1])[0] for row in rows(TRAINERS, "Refused")]
    assert len(quoted) == 13
    assert [words for words in quoted if words not in code] == []


# ---- kinds of model ----


def own():
    return (
        Diffusion(),
        {"latent": pictures(4, 8, 8), "t": torch.tensor([0.1, 0.9])},
        None,
        lambda out: out.square().mean(),
    )


PACKAGES = {"timm": others.timm, "open_clip: images": others.images, "open_clip: texts": others.texts,
            "diffusers": others.diffusers, "any other module": own}  # fmt: skip


def cases() -> list[Any]:
    """(kind, model, its lines), of every row and every model in it."""
    found = []
    for kind, models, *cells in rows(MODELS, "Kinds of model"):
        code = [line for line in map(line_of, cells) if line]
        assert code, kind
        for model in models.split(", "):
            slow = [pytest.mark.slow] if "†" in kind else []
            found.append(pytest.param(kind.strip(" †"), model, code, marks=slow, id=f"{kind}, {model}"))
    assert len(found) == 42
    return found


def model_of(kind: str, name: str):
    """The model of a row, its arguments, and the loss of what it returns."""
    if kind in PACKAGES:
        model, batch, _, task = PACKAGES[kind]()
        return model, batch, task
    made = (
        PAIR
        if kind.startswith("two towers")
        else next(
            KINDS[key]
            for key in (name, f"{name}, decoder", f"{name.removesuffix(' as a classifier')}, images")
            if key in KINDS
        )
    )
    return build(made), made.inputs(), None


@pytest.mark.parametrize(("kind", "name", "code"), cases())
def test_a_line_of_a_kind_of_model(kind, name, code):
    model, batch, task = model_of(kind, name)
    pixels = batch.get("pixel_values", batch.get("x"))
    for line in code:
        made = eval(line, {"dc": dc, "model": model.train(), "batch": batch, "pixels": pixels})

        def call():
            out = model(**batch)
            (out.loss if task is None else task(out) + made.penalty()).backward()  # noqa: B023

        works(made, call)
