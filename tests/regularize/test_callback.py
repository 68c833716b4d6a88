"""`DecondenseCallback` in trainers, and the plugins of packages that build the trainer themselves.

Axolotl 0.19, LLaMA-Factory 0.9.5 and ms-swift 4.6 pin other versions of transformers and torch, or bring half a hundred
packages. Stand-ins with the interface that they publish take their place, and the trainer in them is the real one.
"""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import Trainer, TrainerCallback

import decondense as dc
from decondense import losses
from regularize.models import assert_same, llama, tokens
from regularize.test_model import states
from regularize.test_training import Rows, arguments


def trained(tmp_path, make, attach=None):
    args = arguments(tmp_path, per_device_train_batch_size=2, gradient_accumulation_steps=2, max_steps=2,
                     logging_steps=1)  # fmt: skip
    trainer = make(model=llama(), args=args, train_dataset=Rows(True))
    if attach is not None:
        attach(trainer)
    trainer.train()
    assert all("task_loss" in line for line in trainer.state.log_history if "loss" in line)
    return {name: p.detach().clone() for name, p in trainer.model.named_parameters()}


@pytest.fixture(scope="module")
def by_the_line(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("line"), Trainer, lambda trainer: dc.regularize(trainer, weight=20.0))


def added(trainer):
    trainer.add_callback(dc.DecondenseCallback(weight=20.0))


@pytest.mark.parametrize("when", ["built", "added"])
def test_a_callback_is_the_line(tmp_path, by_the_line, when):
    if when == "built":
        callback = dc.DecondenseCallback(weight=20.0)
        found = trained(tmp_path, lambda **options: Trainer(**options, callbacks=[callback]))
        assert callback.handle.attached
    else:
        found = trained(tmp_path, Trainer, added)
    assert_same(found, by_the_line)


def test_a_callback_without_a_trainer_says_the_line():
    with pytest.raises(RuntimeError, match=r"no such trainer called it.*dc\.regularize\(trainer"):
        dc.DecondenseCallback().on_train_begin(None, None, None)
    with pytest.raises(ValueError, match="weight must be a finite number"):
        dc.DecondenseCallback(weight=float("inf"))


def axolotl(monkeypatch):
    """`PluginManager.register` makes the plugin by its name; train.py calls post_trainer_create(cfg, trainer)."""
    base = ModuleType("axolotl.integrations.base")
    base.BasePlugin = type("BasePlugin", (), {})
    for name in ("axolotl", "axolotl.integrations"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "axolotl.integrations.base", base)
    monkeypatch.delitem(sys.modules, "decondense.integrations.axolotl", raising=False)
    import decondense.integrations.axolotl as ours

    plugin = ours.DecondensePlugin()
    module, _, name = plugin.get_input_args().rpartition(".")
    section = getattr(sys.modules[module], name)
    for wrong in ({"weight": "much"}, {"strength": 1}, {"layers": "most"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            section(decondense=wrong)
    cfg = SimpleNamespace(decondense=section(decondense={"weight": 20.0}).decondense, sample_packing=None)

    def make(sample_packing=None, **options):
        trainer = Trainer(**options)
        cfg.sample_packing = sample_packing
        plugin.post_trainer_create(cfg, trainer)
        return trainer

    return make


def swift(monkeypatch):
    """`--external_plugins` imports a file; the mixin makes callbacks_map[name](args, self) before Trainer.__init__."""
    package, callbacks = ModuleType("swift"), ModuleType("swift.callbacks")
    callbacks.callbacks_map = {"lisa": TrainerCallback}
    monkeypatch.setitem(sys.modules, "swift", package)
    monkeypatch.setitem(sys.modules, "swift.callbacks", callbacks)
    from decondense.integrations.swift import register

    register(weight=20.0)

    class Mixed(Trainer):
        def __init__(self, **options):
            chosen = callbacks.callbacks_map["decondense"](options["args"], self)
            super().__init__(**options, callbacks=[chosen])

    return Mixed


def llamafactory(monkeypatch):
    """`run_exp(callbacks=[…])` hands them to the constructor of a subclass of Seq2SeqTrainer."""
    from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments

    def run_exp(callbacks, **options):
        shown = options["args"].to_dict() | {"output_dir": options["args"].output_dir}
        known = {f: shown[f] for f in Seq2SeqTrainingArguments.__dataclass_fields__ if f in shown}
        options["args"] = Seq2SeqTrainingArguments(**known)
        return Seq2SeqTrainer(**options, callbacks=[*callbacks, TrainerCallback()])

    return lambda **options: run_exp([dc.DecondenseCallback(weight=20.0)], **options)


@pytest.mark.parametrize("package", [axolotl, swift, llamafactory])
def test_plugins_are_the_line(tmp_path, monkeypatch, by_the_line, package):
    assert_same(trained(tmp_path, package(monkeypatch)), by_the_line)


def test_axolotls_packed_rows_are_their_documents(tmp_path, monkeypatch):
    """Its collator numbers the documents in the attention mask and counts positions anew in each, in padding too."""
    lengths, padding = (5, 9, 4), 6
    row = nn.functional.pad(tokens(1, sum(lengths), 3), (0, padding))[0]
    numbers = torch.tensor([number + 1 for number, n in enumerate(lengths) for _ in range(n)] + [0] * padding)
    positions = torch.cat([torch.arange(n) for n in (*lengths, padding)])
    given = {"input_ids": row, "attention_mask": numbers, "position_ids": positions}
    model, args = llama().train(), arguments(tmp_path, max_steps=1, logging_steps=1)
    layers = states(model, **{name: values.unsqueeze(0) for name, values in given.items()})[1:]
    rows = [{**given, "labels": torch.where(numbers > 0, row, -100)}]
    trainer = axolotl(monkeypatch)(sample_packing=True, model=model, args=args, train_dataset=rows)
    trainer.train()
    labels = (5, 9, 3)  # of the next token, which the last one of a document has in the next document
    documents = [z.split((*lengths, padding), 1)[:3] for z in layers]
    apart = torch.stack(
        [torch.stack([losses.dispersion(z, estimator="first_order") for z in parts]) for parts in documents]
    ).mean(0)
    expected = sum(n * value for n, value in zip(labels, apart.tolist())) / sum(labels)
    assert trainer.state.log_history[0]["penalty"] == pytest.approx(expected, rel=1e-4)


def test_a_missing_package_is_named(monkeypatch):
    from decondense.integrations.swift import register

    monkeypatch.setitem(sys.modules, "swift", None)
    with pytest.raises(ImportError, match="register needs ms-swift"):
        register()
