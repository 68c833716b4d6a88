"""`dc.monitor`: the numbers are the meter's, the training is bit for bit the one without it, and loggers get it all."""

from __future__ import annotations

import math
import os
import pickle
import threading
import time
import warnings

import numpy as np
import pytest
import torch
from regularize.models import assert_same, gpt2, gradients, llama, padded, tokens
from regularize.test_training import Rows, arguments
from torch import nn
from transformers import Trainer, TrainerCallback, ViTConfig, ViTForImageClassification

import decondense as dc
from decondense.watch import reading
from decondense.watch.monitor import Collapse
from decondense.watch.reading import METRICS
from watch.test_watched_metrics import loops


def forgetful() -> nn.Module:
    """A model with dropout, whose random numbers a monitor might disturb."""
    model = gpt2()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.2
    return model.train()


def loop(attach, steps: int = 5, optimisers=(torch.optim.AdamW,)) -> tuple[dict[str, torch.Tensor], list[float]]:
    """Weights and losses of a small training."""
    torch.manual_seed(0)
    model = forgetful()
    model.transformer.h[0].attn.eval()  # as somebody may leave a frozen part
    watch = attach(model)
    turns = [kind(list(model.parameters()), lr=1e-2) for kind in optimisers]
    losses = []
    for i in range(steps):
        ids = tokens(4) if i % 2 else tokens(4).flip(0)
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        losses.append(loss.item())
        for optimiser in turns:
            optimiser.step()
        model.zero_grad()
    if watch is not None:
        watch.remove()
    assert model.training
    assert not model.transformer.h[0].attn.training
    return {name: p.detach().clone() for name, p in model.named_parameters()}, losses


def test_short_rows_are_passed_over():
    """The first rows of a batch may hold a single token each."""
    model, ids = llama().train(), tokens(8)
    mask = torch.ones_like(ids)
    mask[:5, 1:] = 0
    with dc.monitor(model, sequences=3, metrics="mean_cosine") as watch:
        model(input_ids=ids, attention_mask=mask)
    with dc.monitor(model, sequences=3, metrics="mean_cosine") as plain:
        model(input_ids=ids[5:])
    assert watch.readings[0].table["mean_cosine"] == pytest.approx(plain.readings[0].table["mean_cosine"], abs=1e-6)


@pytest.mark.parametrize("first", ["loss", "monitor"])
def test_beside_the_loss(first):
    """Both read the same states, and the output is that of neither."""
    model, ids = llama().train(), tokens()
    with dc.regularize(model, weight=2.0, eps=0.0) as alone:
        model(input_ids=ids, labels=ids).loss.backward()
    expected = gradients(model)
    model.zero_grad()
    attach = {"loss": lambda: dc.regularize(model, weight=2.0, eps=0.0), "monitor": lambda: dc.monitor(model)}
    attached = {name: attach[name]() for name in (first, *(attach.keys() - {first}))}
    out = model(input_ids=ids, labels=ids)
    out.loss.backward()
    assert out.hidden_states is None
    assert_same(gradients(model), expected)
    (reading,) = attached["monitor"].readings
    np.testing.assert_allclose(reading.table["mean_cosine"][1:], alone.last["mean_cosine"], atol=1e-5)
    for one in attached.values():
        one.remove()


@pytest.fixture
def beside(monkeypatch):
    """As on a GPU: eigenvalues are computed in a thread while the training goes on."""
    monkeypatch.setattr("decondense.watch.background.in_background", lambda state: True)


@pytest.mark.parametrize("inputs", [None, tokens(2)])
def test_training_is_bit_for_bit_the_same(inputs):
    plain, losses = loop(lambda model: None)
    watches = []
    watched, same = loop(lambda model: watches.append(dc.monitor(model, every=2, inputs=inputs)) or watches[0])
    assert losses == same
    assert all(torch.equal(plain[name], watched[name]) for name in plain)
    assert [r.step for r in watches[0].readings] == [0, 2, 4]


def test_the_numbers_from_a_thread_are_the_same(monkeypatch):
    """And so are the weights; a state that changes after the reading, in place, does not change them."""
    found = []
    for background in (False, True):
        monkeypatch.setattr("decondense.watch.background.in_background", lambda state: background)  # noqa: B023
        watches = []
        weights, losses = loop(lambda model: watches.append(dc.monitor(model, every=2)) or watches[0])  # noqa: B023
        found.append((weights, losses, watches[0].readings))
    (weights, losses, readings), (same, alike, others) = found
    assert losses == alike
    assert all(torch.equal(weights[name], same[name]) for name in weights)
    assert [r.step for r in others] == [0, 2, 4]
    for one, other in zip(readings, others):
        assert one.trend == other.trend
        np.testing.assert_array_equal(one.density, other.density)
        for name in METRICS:
            np.testing.assert_array_equal(one.table[name], other.table[name])


def test_the_training_goes_on_while_eigenvalues_are_computed(beside, monkeypatch):
    """The thread is held until step 3: the reading is reported at the next call, with the step that it is of, and a
    process that forks waits for the thread."""
    held, told = threading.Event(), []
    own = reading.of_moments
    monkeypatch.setattr(reading, "of_moments", lambda moments: held.wait(60) and own(moments))
    model, ids = gpt2().train(), tokens(4)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = dc.monitor(model, every=100, log=lambda r: told.append((r.step, steps)))
    for steps in range(5):
        if steps == 3:
            assert not told
            assert not watch._waiting.done()
            held.set()
            child = os.fork() if hasattr(os, "fork") else None
            if child == 0:
                os._exit(0 if watch._waiting.done() else 1)
            assert child is None or os.waitpid(child, 0)[1] == 0
            watch._waiting.exception(60)
        model(input_ids=ids, labels=ids).loss.backward()
        optimiser.step()
    assert told == [(0, 3)]
    watch.remove()


def test_what_is_wrong_in_the_thread_is_said_in_the_training(beside, monkeypatch):
    monkeypatch.setattr(reading, "of_moments", lambda moments: 1 / 0)
    model, ids = gpt2().train(), tokens(4)
    watch = dc.monitor(model)
    model(input_ids=ids, labels=ids)
    with pytest.raises(ZeroDivisionError):
        watch.settle()
    watch.remove()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_state_that_is_not_finite_is_no_end(bad):
    """A training that diverges ends as it would have, and the layers that are finite have numbers."""
    model, ids = gpt2().train(), tokens(4)
    with torch.no_grad():
        model.transformer.h[1].mlp.c_proj.bias[0] = bad
    with dc.monitor(model) as watch:
        model(input_ids=ids, labels=ids).loss.backward()
    (one,) = watch.readings
    for name in METRICS:
        assert np.isfinite(one.table[name]).tolist() == [True, True, False, False], name
    assert one.picture.shape == (420, 640, 3)
    assert "geometry/mean_cosine/02" not in one.figures()


def test_two_optimisers_over_one_model_make_one_step():
    watches = []
    kinds = (torch.optim.AdamW, torch.optim.SGD)
    loop(lambda m: watches.append(dc.monitor(m, every=1)) or watches[0], steps=3, optimisers=kinds)
    assert [r.step for r in watches[0].readings] == [0, 1, 2]


def test_an_optimiser_of_parameters_that_came_later_is_counted():
    """As FSDP2 replaces those of a model, and LoRA adds some."""
    model, ids = llama().train(), tokens()
    with dc.monitor(model, every=1) as watch:
        model.lm_head = nn.Linear(32, 64)
        optimiser = torch.optim.SGD(model.lm_head.parameters(), lr=1e-3)
        for _ in range(3):
            model(input_ids=ids, labels=ids).loss.backward()
            optimiser.step()
    assert [one.step for one in watch.readings] == [0, 1, 2]


def test_the_numbers_are_those_of_the_states_that_passed():
    torch.manual_seed(0)
    model = gpt2().train()
    ids, mask, labels = padded(4)
    with dc.monitor(model, sequences=3) as watch:
        model(input_ids=ids, attention_mask=mask, labels=labels)
    model.eval()
    with torch.no_grad():
        states = model(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states
    (reading,) = watch.readings
    assert reading.layers == tuple(f"{i:02d}" for i in range(len(states)))
    for i, z in enumerate(states):
        wanted = loops([row[m.bool()].numpy() for row, m in zip(z[:3], mask[:3])])
        assert {name: reading.table[name][i] for name in METRICS} == pytest.approx(wanted, rel=2e-4, abs=1e-5)
    model(input_ids=ids, labels=ids)
    assert len(watch.readings) == 1  # removed


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_numbers_of_a_gpu():
    torch.manual_seed(0)
    model, ids = gpt2().train().cuda(), tokens(4).cuda()
    states = model(input_ids=ids, output_hidden_states=True).hidden_states
    with dc.monitor(model) as watch:
        model(input_ids=ids, labels=ids)
        assert watch._waiting is not None
    for i, z in enumerate(states):
        wanted = loops(list(z.detach().double().cpu().numpy()))
        found = {name: watch.readings[0].table[name][i] for name in METRICS}
        assert found == pytest.approx(wanted, rel=1e-3, abs=1e-4)


class Writer:
    def __init__(self) -> None:
        self.figures: list[tuple[str, int]] = []

    def add_image(self, name, pixels, step, dataformats) -> None:
        assert pixels.shape == (420, 640, 3)
        assert pixels.dtype == np.uint8
        assert len(np.unique(pixels)) > 50
        self.figures.append((name, step))


class Reports(TrainerCallback):
    """What an integration of transformers looks like."""

    def __init__(self) -> None:
        self.tb_writer, self.lines = Writer(), []

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        self.lines.append((state.global_step, dict(logs)))


def run(tmp_path, attach) -> tuple[Trainer, dict[str, torch.Tensor], Reports]:
    torch.manual_seed(0)
    options = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "max_steps": 5, "logging_steps": 2}
    reports = Reports()
    trainer = Trainer(
        model=forgetful(), args=arguments(tmp_path, **options), train_dataset=Rows(pad=True), callbacks=[reports]
    )
    attach(trainer)
    trainer.train()
    return trainer, {name: p.detach().clone() for name, p in trainer.model.named_parameters()}, reports


@pytest.mark.parametrize(
    ("inputs", "background"), [(None, False), ([{"input_ids": tokens(2)}, {"input_ids": tokens(3)[:, :7]}], True)]
)
def test_a_trainer_logs_every_layer_and_a_picture_and_trains_the_same(
    tmp_path, capsys, monkeypatch, inputs, background
):
    monkeypatch.setattr("decondense.watch.background.in_background", lambda state: background)
    own = reading.of_moments
    if background:  # what is not ready at the end of the training is waited for
        monkeypatch.setattr(reading, "of_moments", lambda moments: time.sleep(0.1) or own(moments))
    _, plain, _ = run(tmp_path, lambda trainer: None)
    watches = []
    trainer, watched, reports = run(
        tmp_path, lambda t: watches.append(dc.monitor(t, every=2, inputs=inputs, metrics=["effective_rank"]))
    )
    assert all(torch.equal(plain[name], watched[name]) for name in plain)
    (watch,) = watches
    lines = [line for line in trainer.state.log_history if "geometry/trend" in line]
    assert [line["step"] for line in lines] == [0, 2, 4]
    assert [r.step for r in watch.readings] == [0, 2, 4]
    assert lines[1]["geometry/mean_cosine/01"] == watch.readings[1].table["mean_cosine"][1]
    assert {key.split("/")[1] for key in lines[0] if "/" in key} == {"mean_cosine", "effective_rank", "trend"}
    assert [step for step, line in reports.lines if "geometry/trend" in line] == [0, 2, 4]
    assert reports.tb_writer.figures == [("geometry/cosines", step) for step in (0, 2, 4)]
    assert "geometry/" not in capsys.readouterr().out  # a hundred numbers on the screen help nobody


def test_a_reading_that_comes_late_has_the_epoch_it_was_taken_in(tmp_path, beside, monkeypatch):
    """Held until the end of the training, or the next reading: the same rows as without a thread."""
    monkeypatch.setattr(dc.Monitor, "settle", late(dc.Monitor.settle))
    trainer, _, _ = run(tmp_path, lambda t: dc.monitor(t, every=2, metrics=["mean_cosine"]))
    lines = trainer.state.log_history
    taken = {line["step"]: line["epoch"] for line in lines if "loss" in line}
    late_ones = {line["step"]: line["epoch"] for line in lines if "geometry/trend" in line}
    assert late_ones == {step: taken.get(step, 0) for step in (0, 2, 4)}


def late(settle):
    return lambda self, *, wait=True: settle(self) if wait else None


def test_a_table_and_pictures(tmp_path):
    watches = []
    loop(lambda m: watches.append(dc.monitor(m, every=2)) or watches[0])
    table = watches[0].to_pandas()
    assert list(table.columns) == ["step", "layer", *METRICS]
    assert len(table) == sum(len(r.layers) for r in watches[0].readings)
    assert table.layer.tolist()[:3] == [0, 1, 2]
    assert table.mean_cosine[1] == watches[0].readings[0].table["mean_cosine"][1]
    picture = watches[0].plot().axes[0]
    assert [words.get_text() for words in picture.get_legend().get_texts()][:2] == ["layer 0", "layer 1"]
    assert all(tick == round(tick) for tick in picture.get_xticks())
    readings = watches[0].readings
    assert repr(watches[0]).endswith(f"every=2, {len(readings)} readings, the last at step {readings[-1].step})")
    first = repr(readings[0])
    assert first.startswith("Reading(step=0, layers=00 … ")
    assert f"mean_cosine={readings[0].table['mean_cosine'][0]:.3f}, " in first
    assert len(first) < 120, "no densities"
    assert watches[0].plot(tmp_path / "new" / "all.png").exists()
    assert (tmp_path / "new" / "all.csv").read_text().splitlines()[1].startswith("0,0,")
    assert watches[0].readings[0].plot(tmp_path / "new").name == "step-000000.png"


def test_a_layer_that_collapses_is_named_once_until_it_recovers():
    torch.manual_seed(0)
    model = gpt2().train()
    block = model.transformer.h[1]
    parallel = True
    block.register_forward_hook(lambda m, a, out: torch.ones_like(out) + 1e-3 * out if parallel else out)
    dc.monitor(model, every=1)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.0)

    def step() -> list[str]:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            model(input_ids=tokens(4), labels=tokens(4)).loss.backward()
        optimiser.step()
        return [str(w.message) for w in said if w.category is Collapse]

    (sentence,) = step()
    assert "step 0: the tokens of layer 02" in sentence
    assert "nearly parallel" in sentence
    assert step() == []
    parallel = False
    assert step() == []
    parallel = True
    assert len(step()) == 1


def test_an_image_model_and_a_module_of_ones_own():
    config = ViTConfig(hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=32, image_size=8,
                       patch_size=4, num_labels=3)  # fmt: skip
    model = ViTForImageClassification(config).train()
    pixels = torch.randn(4, 3, 8, 8)
    with dc.monitor(model, inputs={"pixel_values": pixels}) as fixed, dc.monitor(model) as passing:
        model(pixel_values=pixels, labels=torch.tensor([0, 1, 2, 0]))
    assert len(fixed.readings[0].layers) == len(passing.readings[0].layers) == 4

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

        def forward(self, x):
            for block in self.blocks:
                x = block(x).relu()
            return x

    own = Own().train()
    own.blocks[0].requires_grad_(False)  # as under LoRA: nothing is differentiated here
    x = torch.randn(2, 5, 8)
    with dc.monitor(own, modules="blocks.*", inputs={"x": x}) as fixed, dc.monitor(own, modules="blocks.*") as passing:
        own(x)
    assert fixed.readings[0].layers == ("blocks.0", "blocks.1", "blocks.2")
    for name in METRICS:
        assert fixed.readings[0].table[name] == pytest.approx(passing.readings[0].table[name])


def test_named_layers_leave_nothing_in_the_model():
    """Where its hidden states are asked for transformers leaves hooks of its own, which no pickle takes."""
    model, ids = llama().train(), tokens()
    with dc.monitor(model, modules="model.layers.*") as watch:
        model(input_ids=ids, labels=ids).loss.backward()
    assert len(watch.readings) == 1
    dc.measure(model, inputs=ids, modules="model.layers.*", bootstrap=20)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    pickle.dumps(model)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"metrics": ["nonsense"]},
            r"metrics must be of mean_cosine, .*got 'nonsense': pick some of these, or leave it out for",
        ),
        ({"metrics": ["rank"]}, r"metrics must be of mean_cosine, .*got 'rank': did you mean 'effective_rank'\?$"),
        (
            {"metrics": []},
            r"metrics must be of mean_cosine, .*got none: pick some of these, or leave it out for all\.$",
        ),
        (
            {"metrics": None},
            r"metrics must be of mean_cosine, .*got None: pick some of these, or leave it out for all\.$",
        ),
        ({"metrics": 3}, r"metrics must be of mean_cosine, .*got 3: pick some of these, or leave it out for all\.$"),
        ({"metrics": "mean_cosin"}, r", got 'mean_cosin': did you mean 'mean_cosine'\?$"),
        ({"every": 0}, "every must be a whole number of at least 1, got 0: leave it out for the recommended one"),
        ({"collapse": "x"}, "collapse must be a cosine, from -1 to 1, got 'x': 1 for no warning"),
        ({"collapse": None}, "collapse must be a cosine, from -1 to 1, got None: 1 for no warning"),
        ({"inputs": []}, "inputs must hold at least one batch, got none"),
        ({"inputs": 3}, "inputs must be a tensor of .*, a mapping of .*, or batches of them, got int"),
    ],
)
def test_refused(options, sentence):
    with pytest.raises((ValueError, TypeError), match=sentence):
        dc.monitor(gpt2(), **options)
    for wrong, got in (
        ("gpt2", "'gpt2'"),
        ((gpt2(), None), "an object of <class 'tuple'>"),
        (type(gpt2()), "<class .*>"),
    ):
        for attach in (dc.monitor, dc.regularize):
            with pytest.raises(
                TypeError, match=rf"^target must be a model or a trainer, got {got}: pass the object .*$"
            ):
                attach(wrong)
    assert dc.monitor(gpt2(), metrics="effective_rank").metrics == ("mean_cosine", "effective_rank")


def test_a_model_whose_calls_do_not_pass_is_told():
    model = gpt2().eval()
    watch = dc.monitor(model, collapse=1)
    model(input_ids=tokens(2), labels=tokens(2)).loss.backward()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.warns(UserWarning, match="no training call has passed: watch a model before it is compiled and called"):
        optimiser.step()  # and the training goes on
    with warnings.catch_warnings(action="error"):
        optimiser.step()  # told once
    model.train()
    model(input_ids=tokens(2), labels=tokens(2)).loss.backward()
    optimiser.step()
    assert [reading.step for reading in watch.readings] == [0]
    watch.remove()
