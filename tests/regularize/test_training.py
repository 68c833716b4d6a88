"""Accumulation, checkpointing, compilation, autocast, PEFT: the same gradients as the plain sum."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import pytest
import torch
from accelerate.state import AcceleratorState
from torch import nn
from transformers import MambaConfig, MambaModel, Trainer, TrainingArguments
from transformers.distributed import DistributedConfig

import decondense as dc
from decondense.handle import Attachment
from decondense.integrations.own_loop import OwnLoop
from decondense.regularizer import term_of
from regularize.models import PLAIN, assert_same, gpt2, gradients, llama, padded, t5, tokens


def arguments(tmp_path, **options) -> TrainingArguments:
    return TrainingArguments(output_dir=str(tmp_path), report_to="none", seed=3, **PLAIN, **options)


class Rows(torch.utils.data.Dataset):
    def __init__(self, pad: bool, rows: int = 16) -> None:
        ids, mask, labels = padded(rows) if pad else (tokens(rows), None, tokens(rows))
        self.items = [
            {"input_ids": ids[i], "labels": labels[i], **({} if mask is None else {"attention_mask": mask[i]})}
            for i in range(rows)
        ]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return self.items[index]


class NoItems(nn.Module):
    """A model that does not take num_items_in_batch: Trainer then divides its loss by the accumulation steps."""

    accepts_loss_kwargs = False

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.inner = model
        self.config = model.config

    def forward(self, input_ids, labels=None, attention_mask=None):
        # the mean over the batch of each row's mean, so that the task loss itself does not depend on the micro-batch
        out = self.inner(input_ids=input_ids, attention_mask=attention_mask, use_cache=False)
        losses = nn.functional.cross_entropy(out.logits[:, :-1].mT, labels[:, 1:], reduction="none")
        count = (labels[:, 1:] != -100).sum(1)
        return {"loss": (losses.sum(1) / count).mean(), "logits": out.logits}


def trained(tmp_path, model, attach, *, micro: int, pad: bool, steps: int = 2, loss=None, **options):
    """Two optimiser steps over 16 rows: 8 × 1 or 1 × 8."""
    options |= {"per_device_train_batch_size": micro, "gradient_accumulation_steps": 8 // micro, "max_steps": steps}
    args = arguments(tmp_path, **options)
    trainer = Trainer(model=model, args=args, train_dataset=Rows(pad), compute_loss_func=loss)
    handle = attach(trainer)
    trainer.train()
    handle.remove()
    return {name: p.detach().clone() for name, p in model.named_parameters()}


ATTACH = {
    "model": lambda weight: lambda trainer: dc.regularize(trainer.model, weight=weight),
    "trainer": lambda weight: lambda trainer: dc.regularize(trainer, weight=weight),
}


@pytest.mark.parametrize(
    ("build", "door", "pad"),
    [(llama, "model", False), (llama, "model", True), (llama, "trainer", False), (llama, "trainer", True),
     (gpt2, "trainer", True)],
)  # fmt: skip
def test_accumulation_with_num_items(tmp_path, build, door, pad):
    attach = ATTACH[door](20.0)
    whole = trained(tmp_path, build(), attach, micro=8, pad=pad)
    parts = trained(tmp_path, build(), attach, micro=1, pad=pad)
    assert_same(whole, parts, 1e-5)
    without = trained(tmp_path, build(), ATTACH[door](0.0), micro=8, pad=pad)
    assert max((whole[n] - without[n]).abs().max() for n in whole) > 1e-3  # the term is felt at all


@pytest.mark.parametrize("pad", [False, True], ids=["full", "padded"])
def test_accumulation_without_num_items(tmp_path, pad):
    def attach(trainer):
        return dc.regularize(trainer, weight=20.0, modules=["inner.model.layers.?"])

    whole = trained(tmp_path, NoItems(llama()), attach, micro=8, pad=pad)
    parts = trained(tmp_path, NoItems(llama()), attach, micro=1, pad=pad)
    assert_same(whole, parts, 1e-5)


def test_a_naive_term_would_be_eight_times_too_strong(tmp_path):
    """The comparison above catches the mistake it is there for."""

    def naive(trainer):
        term = term_of(weight=20.0)
        penalty = term.penalty
        term.penalty = lambda capture, first, labels=None, items=None: penalty(capture, first)
        return Attachment(OwnLoop(trainer.model), term)

    whole = trained(tmp_path, llama(), naive, micro=8, pad=False, steps=1)
    parts = trained(tmp_path, llama(), naive, micro=1, pad=False, steps=1)
    none = trained(tmp_path, llama(), ATTACH["model"](0.0), micro=8, pad=False, steps=1)
    name = "model.layers.0.mlp.down_proj.weight"
    pushed, too_far = (whole[name] - none[name]).norm(), (parts[name] - none[name]).norm()
    assert too_far / pushed == pytest.approx(8, rel=0.05)
    with pytest.raises(AssertionError):
        assert_same(whole, parts, 1e-5)


def test_plain_loop_penalty_alone():
    """Eight micro-batches of one, each divided by eight, as everybody's own loop does it."""
    model, ids = llama().train(), tokens(8)
    with dc.regularize(model, weight=1.0) as handle:
        model(input_ids=ids)
        handle.penalty().backward()
        whole = gradients(model)
        model.zero_grad()
        for row in ids.split(1):
            model(input_ids=row)
            (handle.penalty() / 8).backward()
    assert_same(gradients(model), whole)


@pytest.mark.parametrize("build", [llama, gpt2])
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("estimator", ["exact", "first_order"])
def test_gradient_checkpointing(build, reentrant, estimator):
    (ids, mask, labels), found = padded(), []
    for checkpointing in (False, True):
        model = build().train()
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
            model.enable_input_require_grads()
        with dc.regularize(model, weight=5.0, estimator=estimator):
            model(input_ids=ids, attention_mask=mask, labels=labels, use_cache=False).loss.backward()
        found.append(gradients(model))
    assert_same(*found)


@pytest.mark.slow
def test_compiled_model():
    """As it is traced, test_fullgraph.py has it; here is the code that is generated of that."""
    model, ids = llama(layers=2).train(), tokens()
    with dc.regularize(model, weight=1.0):
        eager = model(input_ids=ids, labels=ids, use_cache=False).loss
        eager.backward()
        expected = gradients(model)
        model.zero_grad()
        compiled = torch.compile(model)
        loss = compiled(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        torch.testing.assert_close(loss, eager)
        assert_same(gradients(model), expected, 1e-5)
    torch.compiler.reset()


def test_a_compiled_model_after_another_of_its_class(tmp_path):
    """As in a comparison of trainings without the loss and with it in one process: torch takes the graph of the first,
    which knows of no loss."""
    torch.compiler.reset()
    compiled = arguments(tmp_path, max_steps=1, torch_compile=True, torch_compile_backend="eager")
    Trainer(llama(layers=1), compiled, train_dataset=Rows(False, 8)).train()
    trainer = Trainer(llama(layers=1), compiled, train_dataset=Rows(False, 8))
    handle = dc.regularize(trainer, weight=5.0)
    with pytest.raises(RuntimeError, match=r"another one of its class, .*: call torch\.compiler\.reset\(\) before"):
        trainer.train()
    torch.compiler.reset()
    trainer.train()
    assert "penalty" in handle.last


@pytest.mark.parametrize("estimator", ["exact", "first_order", "second_order"])
def test_bf16_autocast(estimator):
    """The states are what autocast makes them; the penalty is computed from them in full precision."""
    model, ids = gpt2().train(), tokens()
    with dc.regularize(model, weight=1.0, estimator=estimator) as handle:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            z = model(input_ids=ids, labels=ids, output_hidden_states=True)
        assert z.loss.dtype == torch.float32
        expected = torch.stack([dc.losses.dispersion(x, estimator=estimator) for x in z.hidden_states[1:]])
        torch.testing.assert_close(handle.last["per_layer"], expected.detach(), rtol=1e-6, atol=1e-6)
        z.loss.backward()
        assert all(g.isfinite().all() for g in gradients(model).values())


class Shrinking(Trainer):
    """A loss of its own for a model without a head."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return model(input_ids=inputs["input_ids"])["last_hidden_state"].float().square().mean()


class Listed(nn.Module):
    """Nothing right below it is ever called."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Embedding(97, 8), nn.Linear(8, 8), nn.Linear(8, 97)])

    def forward(self, input_ids, labels):
        x = input_ids
        for layer in self.layers:
            x = layer(x)
        return {"loss": nn.functional.cross_entropy(x.flatten(0, 1).float(), labels.flatten())}


MADE = {
    "bare": lambda: llama().model,
    "listed": Listed,
    "mamba": lambda: MambaModel(MambaConfig(vocab_size=97, hidden_size=8, num_hidden_layers=2, state_size=4)),
}


@pytest.mark.parametrize(
    ("door", "modules"),
    [
        ("trainer", None),
        ("model", None),
        ("trainer", "model.layers.*"),
        ("model", "model.layers.*"),
        ("bare", None),
        ("listed", "layers.1"),
        ("mamba", None),
    ],
)
def test_the_loss_multiplies_as_the_model_was_called(tmp_path, monkeypatch, door, modules):
    """accelerate's autocast is over when the model has returned. The losses choose their kernels and products by it."""
    from decondense.losses.registry import Entry

    own, found = Entry.over_layers, []

    def looked(self, *args, **options):
        found.append(torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu"))
        return own(self, *args, **options)

    monkeypatch.setattr(Entry, "over_layers", looked)
    for options, expected in (({"bf16": True}, torch.bfloat16), ({}, False)):
        AcceleratorState._reset_state(True)
        model, kind = MADE.get(door, llama)(), Shrinking if door in ("bare", "mamba") else Trainer
        trainer = kind(model, arguments(tmp_path, max_steps=1, **options), train_dataset=Rows(False))
        with dc.regularize(model if door == "model" else trainer, estimator="exact", modules=modules):
            found.clear()  # attaching has tried the options
            trainer.train()
        assert found[0] is expected  # the next is the mean cosine of the log
    AcceleratorState._reset_state(True)


def test_bf16_weights():
    model, ids = llama().bfloat16().train(), tokens()
    with dc.regularize(model, weight=1.0) as handle:
        model(input_ids=ids, labels=ids).loss.backward()
        assert handle.last["penalty"].dtype == torch.float32
        assert model.model.layers[0].mlp.up_proj.weight.grad.dtype == torch.bfloat16


def test_lora():
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], lora_dropout=0.0)
    model, ids = peft.get_peft_model(llama(), config).train(), tokens()
    plain = model(input_ids=ids, labels=ids).loss
    plain.backward()
    before = gradients(model)
    model.zero_grad()
    with dc.regularize(model, weight=3.0) as handle:
        out = model(input_ids=ids, labels=ids)
        torch.testing.assert_close(out.loss, plain + 3.0 * handle.last["penalty"])
        out.loss.backward()
        after = gradients(model)
    assert before.keys() == after.keys()
    assert all("lora" in name for name in after)
    assert max((after[n] - before[n]).abs().max() for n in after) > 1e-4
    torch.testing.assert_close(model(input_ids=ids, labels=ids).loss, plain)


def test_a_trainer_of_a_head_alone_is_refused(tmp_path):
    """Whose adapter no penalty can reach: the loss would be attached, logged, and do nothing."""
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(llama(layers=1), peft.LoraConfig(r=4, target_modules=["lm_head"]))
    trainer = Trainer(model=model, args=arguments(tmp_path, max_steps=1), train_dataset=Rows(False))
    with (
        dc.regularize(trainer),
        pytest.raises(RuntimeError, match=r"nothing trainable lies below layers \[1\]: train"),
    ):
        trainer.train()


def test_a_step_without_any_label_changes_nothing(tmp_path):
    """As where prompts fill all rows: the task loss, 0/0, has a gradient of 0, and so must the penalty."""
    model = llama()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    rows = [{"input_ids": ids, "labels": torch.full_like(ids, -100)} for ids in tokens(4)]
    trainer = Trainer(model=model, args=arguments(tmp_path, max_steps=2, weight_decay=0.0), train_dataset=rows)
    with dc.regularize(trainer, weight=3.0) as handle:
        trainer.train()
        assert handle.last["penalty"] == 0
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.detach(), before[name], msg=name)


def test_trainer_logs_both_terms(tmp_path):
    model = llama()
    args = arguments(
        tmp_path,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        max_steps=4,
        logging_steps=2,
        eval_strategy="steps",
        eval_steps=4,
    )
    trainer = Trainer(model=model, args=args, train_dataset=Rows(True), eval_dataset=Rows(True, 4))
    untouched = trainer.evaluate()["eval_loss"]
    handle = dc.regularize(trainer, weight=0.5, estimator="exact", check_every=1)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(untouched, rel=1e-6)
    trainer.train()
    rows = [row for row in trainer.state.log_history if "loss" in row]
    assert len(rows) == 2
    for row in rows:
        assert row["loss"] == pytest.approx(row["task_loss"] + 0.5 * row["penalty"], rel=1e-4)
        assert -1 <= row["mean_cosine"] <= 1
        assert row["penalty"] < 0
        assert row["penalty_agreement"] == pytest.approx(1.0, abs=1e-4)
    handle.remove()
    assert "compute_loss" not in vars(trainer)
    assert "log" not in vars(trainer)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(
        [row["eval_loss"] for row in trainer.state.log_history if "eval_loss" in row][-1], rel=1e-5
    )


@pytest.mark.parametrize("schedule", ["linear", "release"])
def test_every_line_of_the_log_adds_up(tmp_path, schedule):
    """loss = task_loss + penalty_weight · penalty while the weight changes, also under accumulation."""
    options = {"release_at": 2} if schedule == "release" else {}
    for every in (1, 3):
        args = arguments(
            tmp_path, per_device_train_batch_size=2, gradient_accumulation_steps=2, max_steps=6, logging_steps=every
        )
        trainer = Trainer(model=llama(), args=args, train_dataset=Rows(True, 24))
        with dc.regularize(trainer, weight=5.0, schedule=schedule, ramp_steps=4, **options) as handle:
            trainer.train()
            assert handle.step == 6
            with pytest.raises(AttributeError, match="global_step"):
                handle.step = 3
        rows = [row for row in trainer.state.log_history if "loss" in row]
        assert len(rows) == 6 // every
        for row in rows:
            assert row["loss"] == pytest.approx(row["task_loss"] + row["penalty_weight"] * row["penalty"], rel=1e-6)
        if every == 1:
            term = term_of(weight=5.0, schedule=schedule, ramp_steps=4, **options)
            assert [row["penalty_weight"] for row in rows] == [term.weight_at(step) for step in range(6)]


@pytest.mark.parametrize(("weight", "warned"), [(1.0, False), (1000.0, True)])
def test_a_penalty_that_overwhelms_the_task_is_told_once(tmp_path, weight, warned):
    trainer = Trainer(model=llama(), args=arguments(tmp_path, max_steps=3, logging_steps=1), train_dataset=Rows(False))
    with dc.regularize(trainer, weight=weight), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        trainer.train()
    rows = [row for row in trainer.state.log_history if "penalty" in row]
    assert [abs(row["penalty"] * weight) > 10 * row["task_loss"] for row in rows] == [warned] * 3
    words = [str(one.message) for one in told if "weight · penalty" in str(one.message)]
    assert len(words) == warned
    assert all("at step 1: lower the weight" in sentence for sentence in words)


def test_what_a_trainer_tells_is_of_the_call(tmp_path):
    """Not of the call's share of the step: the penalty beside its mean cosine, on one scale."""
    args = arguments(tmp_path, per_device_train_batch_size=1, gradient_accumulation_steps=8, max_steps=1)
    trainer, seen = Trainer(model=llama(), args=args, train_dataset=Rows(False)), []
    with dc.regularize(trainer, weight=0.5) as handle:
        compute = trainer.compute_loss
        trainer.compute_loss = lambda *a, **k: seen.append((compute(*a, **k), dict(handle.last))) or seen[-1][0]
        trainer.train()
    for loss, last in seen:
        expected = -torch.arccos(last["mean_cosine"]) / torch.pi
        torch.testing.assert_close(last["per_layer"], expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(last["penalty"], expected.mean(), rtol=1e-5, atol=1e-5)
        assert last["share"] == pytest.approx(1 / 8)
        torch.testing.assert_close(loss.detach(), last["share"] * (last["task_loss"] + 0.5 * last["penalty"]))


def test_split_sequences_are_refused(tmp_path, monkeypatch):
    """Ulysses, of a trainer and by hand: a process sees its part of a sequence, and nothing in the states tells."""
    trainer = Trainer(model=llama(), args=arguments(tmp_path), train_dataset=Rows(False))
    monkeypatch.setattr(trainer, "get_sp_size", lambda: 2)
    with pytest.raises(ValueError, match="sequence parallelism over 2 processes"):
        dc.regularize(trainer)
    monkeypatch.setitem(AcceleratorState._shared_state, "parallelism_config", SimpleNamespace(sp_size=2))
    model, ids = llama().train(), tokens()
    with dc.regularize(model), pytest.raises(ValueError, match="the loss must see whole sequences"):
        model(input_ids=ids, labels=ids)
    watch = dc.monitor(llama().train())
    with pytest.raises(ValueError, match="the monitor must see whole sequences"):
        watch.model(input_ids=ids, labels=ids)
    watch.remove()


def test_a_pipeline_is_refused():
    model = llama()
    model.config.distributed_config = DistributedConfig(pp_size=2)
    for attach in (dc.regularize, dc.monitor):
        with pytest.raises(ValueError, match=r"got a pipeline of 2 stages \(pp_size\)"):
            attach(model)


@pytest.mark.parametrize("option", ["label smoothing", "compute_loss_func"])
def test_trainer_with_a_loss_of_its_own(tmp_path, option):
    """Losses that never read out.loss: the term is added all the same, and accumulation stays exact."""

    def own(outputs, labels, num_items_in_batch=None):
        flat = nn.functional.cross_entropy(
            outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="sum"
        )
        return flat / num_items_in_batch

    options = {"loss": own} if option == "compute_loss_func" else {"label_smoothing_factor": 0.1}
    options |= {"pad": True, "remove_unused_columns": False}
    without, whole, parts = (
        trained(tmp_path, llama(), ATTACH["trainer"](weight), micro=micro, **options)
        for weight, micro in ((0.0, 8), (20.0, 8), (20.0, 1))
    )
    assert_same(whole, parts, 1e-5)
    assert max((without[n] - whole[n]).abs().max() for n in whole) > 1e-3


def test_trainer_errors(tmp_path):
    trainer = Trainer(model_init=lambda: llama(), args=arguments(tmp_path), train_dataset=Rows(False))
    with pytest.raises(ValueError, match="model_init"):
        dc.regularize(trainer)
    trainer = Trainer(model=llama(), args=arguments(tmp_path), train_dataset=Rows(False))
    with dc.regularize(trainer) as handle:
        with pytest.raises(RuntimeError, match="contains the penalty already"):
            handle.penalty()
        with pytest.raises(RuntimeError, match="already has a loss attached"):
            dc.regularize(trainer)


def test_a_later_trainer_of_a_model_takes_over(tmp_path):
    """A notebook's cell that is run again, or DPO after SFT: the bare line keeps no handle that could be removed."""
    model, rows = llama(), Rows(False)

    def trained():
        trainer = Trainer(model=model, args=arguments(tmp_path, max_steps=1, logging_steps=1), train_dataset=rows)
        dc.regularize(trainer, weight=0.5)
        return trainer

    first = trained()
    first.train()
    again = Trainer(model=model, args=arguments(tmp_path, max_steps=1), train_dataset=rows)
    for wrong in ({"layers": [9]}, {"modules": "absent.*"}, {"layers": []}):
        with pytest.raises(ValueError, match="must"):
            dc.regularize(again, **wrong)
    first.train()
    assert "penalty" in first.state.log_history[-2], "a refused loss takes no other off"
    with pytest.warns(UserWarning, match=r"an earlier trainer had attached to its LlamaForCausalLM is taken off"):
        second = trained()
    second.train()
    line = second.state.log_history[0]
    assert line["loss"] == pytest.approx(line["task_loss"] + 0.5 * line["penalty"], rel=1e-4)
    first.train()
    assert "penalty" not in first.state.log_history[-2]


def test_padded_targets_of_a_seq2seq_trainer_do_not_count(tmp_path):
    """The decoder gets no mask from a Seq2SeqTrainer: its padding is where the labels have −100."""
    ids, mask, labels = tokens(4), torch.ones(4, 12, dtype=torch.long), tokens(4, seed=1)
    labels[:, 8:] = -100
    rows = [{"input_ids": i, "attention_mask": m, "labels": y} for i, m, y in zip(ids, mask, labels)]
    model = t5().train()
    with dc.regularize(model, weight=0.5) as alone:
        model(input_ids=ids, attention_mask=mask, labels=labels).loss.backward()
    options = {"per_device_train_batch_size": 4, "max_steps": 1}
    trainer = Trainer(model=t5(), args=arguments(tmp_path, **options), train_dataset=rows)
    with dc.regularize(trainer, weight=0.5) as handle:
        trainer.train()
    torch.testing.assert_close(handle.last["per_layer"], alone.last["per_layer"], rtol=1e-5, atol=1e-6)
