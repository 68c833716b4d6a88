"""The callbacks of Lightning, with the real trainer: gradients are those of the plain sum, and everything is logged."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn

import decondense as dc
from regularize.models import VOCABULARY, assert_same, gradients, llama, tokens

pytest.importorskip("pytorch_lightning")
import pytorch_lightning as pl

from decondense.handle import Attachment
from decondense.integrations.lightning import MonitorCallback, RegularizeCallback

LOADER = torch.utils.data.DataLoader(tokens(16), batch_size=2)


class Module(pl.LightningModule):
    """How the loss is made: by the model, by the module from logits, in a dict, or with manual optimisation."""

    def __init__(self, kind: str = "labels", parts: int = 2, frozen: bool = False) -> None:
        super().__init__()
        self.model = llama(layers=2)
        self.measure = nn.CrossEntropyLoss()
        if frozen:
            self.teacher = llama(layers=1)
        self.kind, self.parts, self.before_steps = kind, parts, []
        self.automatic_optimization = kind != "manual"

    def training_step(self, batch, batch_idx):
        out = self.model(input_ids=batch, labels=batch, use_cache=False)
        if self.kind in ("logits", "manual"):
            loss = self.measure(out.logits[:, :-1].flatten(0, 1), batch[:, 1:].flatten())
        else:
            loss = out.loss
        if self.kind != "manual":
            return {"loss": loss} if self.kind == "dict" else loss
        self.manual_backward(loss / self.parts)
        if (batch_idx + 1) % self.parts == 0:
            for optimiser in self.optimizers():
                optimiser.step()
                optimiser.zero_grad()
        return None

    def configure_optimizers(self):
        halves = [p for p in self.model.parameters() if p.ndim == 2], [p for p in self.model.parameters() if p.ndim < 2]
        if self.automatic_optimization:
            return torch.optim.SGD(halves[0] + halves[1], lr=0.1)
        return [torch.optim.SGD(half, lr=0.1) for half in halves]

    def on_before_optimizer_step(self, optimizer):
        if not self.before_steps or self.automatic_optimization:
            self.before_steps.append(gradients(self.model))


class Lines(pl.loggers.logger.DummyLogger):
    """A logger that keeps its lines."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def log_metrics(self, metrics, step=None):
        self.lines.append((step, metrics))


def fit(module, *callbacks, parts=2, steps=4, checkpoint=None, every=1):
    logger = Lines()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("always", "the watched model|the penalty goes with")
        trainer = pl.Trainer(
            max_steps=steps, accelerator="cpu", logger=logger, log_every_n_steps=every, callbacks=list(callbacks),
            accumulate_grad_batches=parts if module.automatic_optimization else 1, enable_progress_bar=False,
            enable_model_summary=False, enable_checkpointing=False,
        )  # fmt: skip
        trainer.fit(module, LOADER, ckpt_path=checkpoint, weights_only=False)
    return trainer, logger


def plain_sum(weight: float, parts: int = 2) -> dict[str, torch.Tensor]:
    """Gradients of the first step, by hand: the mean over the micro-batches of task + weight · mean over the blocks."""
    model = llama(layers=2).train()
    for batch, _ in zip(LOADER, range(parts)):
        out = model(input_ids=batch, labels=batch, output_hidden_states=True)
        penalty = torch.stack([dc.losses.dispersion(z, estimator="first_order") for z in out.hidden_states[1:]]).mean()
        ((out.loss + weight * penalty) / parts).backward()
    return gradients(model)


@pytest.mark.parametrize("kind", ["labels", "logits", "dict", "manual"])
def test_gradients_are_those_of_the_plain_sum(kind):
    module = Module(kind)
    callback = RegularizeCallback(weight=3.0, accumulate=2 if kind == "manual" else 1)
    _, logger = fit(module, callback)
    assert_same(module.before_steps[0], plain_sum(3.0), 1e-5)
    told = [line for _, line in logger.lines if "task_loss" in line]
    assert told[-1]["penalty"] < 0 < told[-1]["task_loss"]
    assert told[-1]["penalty_weight"] == 3.0
    assert -1 <= told[-1]["mean_cosine"] <= 1
    assert "training_step" not in vars(module)  # removed with the end of the training
    assert not callback.handle.attached


@pytest.mark.parametrize("kind", ["labels", "manual"])
def test_the_ramp_counts_training_steps(kind, tmp_path):
    """Two micro-batches make one, and so do two optimisers; a resumed run goes on where it was."""
    callback = RegularizeCallback("cosreg", schedule="linear", ramp_steps=8, weight=0.8, accumulate=2)
    trainer, _ = fit(Module(kind), callback, steps=6 if kind == "manual" else 3)
    assert callback.step == 3
    assert callback.handle.weight == pytest.approx(0.3)
    trainer.save_checkpoint(tmp_path / "state.ckpt")
    resumed = RegularizeCallback("cosreg", schedule="linear", ramp_steps=8, weight=0.8, accumulate=2)
    fit(Module(kind), resumed, steps=8 if kind == "manual" else 4, checkpoint=tmp_path / "state.ckpt")
    assert resumed.step == 4


def test_the_clock_begins_with_a_training():
    """Of a callback that has seen another one to its end, too."""
    callback, watch = RegularizeCallback(schedule="linear", ramp_steps=8, weight=0.8), MonitorCallback(every=2)
    for _ in range(2):
        _, logger = fit(Module(), callback, watch, parts=1, steps=3)
        weights = [line["penalty_weight"] for _, line in logger.lines if "penalty_weight" in line]
        assert weights == pytest.approx([0, 0.1, 0.2])
        assert [r.step for r in watch.monitor.readings] == [0, 2]


def test_several_losses_are_logged_each_with_its_weight():
    rising = {"loss": "dispersion", "weight": 0.8, "schedule": "linear", "ramp_steps": 8}
    _, logger = fit(Module(), RegularizeCallback([{"loss": "cosreg", "weight": 0.1}, rising]), parts=1, steps=3)
    lines = [line for _, line in logger.lines if "penalty" in line]
    assert [line["penalty_weight_2"] for line in lines] == pytest.approx([0, 0.1, 0.2])
    for line in lines:
        added = sum(line[f"penalty_weight_{k}"] * line[f"penalty_{k}"] for k in (1, 2))
        assert line["penalty"] == pytest.approx(added, rel=1e-4)


def test_two_optimisers_are_watched_and_logged_by_training_steps(tmp_path):
    """Lightning's global_step counts each of the two, its lines of a log do not."""
    callback, watch = RegularizeCallback("uniformity"), MonitorCallback(every=2, metrics=["mean_cosine"])
    trainer, logger = fit(Module("manual", parts=1), callback, watch, steps=8, every=2)
    assert [step for step, line in logger.lines if "mean_cosine" in line] == [1, 3]
    assert [step for step, line in logger.lines if "geometry/mean_cosine/01" in line] == [0, 2]
    trainer.save_checkpoint(tmp_path / "state.ckpt")
    resumed, begun = (MonitorCallback(every=2, metrics=["mean_cosine"]) for _ in range(2))
    fit(Module("manual", parts=1), resumed, steps=14, checkpoint=tmp_path / "state.ckpt")
    assert [r.step for r in resumed.monitor.readings] == [4, 6]

    fit(Module(), parts=1, steps=2)[0].save_checkpoint(tmp_path / "unwatched.ckpt")
    fit(Module(), begun, parts=1, steps=5, checkpoint=tmp_path / "unwatched.ckpt")
    assert [r.step for r in begun.monitor.readings] == [2, 4]


@pytest.mark.parametrize("kind", ["labels", "manual"])
def test_a_penalty_that_overwhelms_the_task_is_told(kind, monkeypatch):
    """Asked after the optimiser steps 1, 2, 4, …, each of two micro-batches, as in a loop of one's own."""
    told, callback = [], RegularizeCallback(weight=1000.0, accumulate=2)
    monkeypatch.setattr(Attachment, "warn", lambda attachment, task, added, step: told.append((step, task, added)))
    _, logger = fit(Module(kind), callback, steps=4 if kind == "labels" else 8)
    assert [step for step, _, _ in told] == [1, 2, 4]
    last = [line for _, line in logger.lines if "task_loss" in line][-1]
    assert told[-1][1:] == pytest.approx((last["task_loss"], 1000 * last["penalty"]), rel=1e-5)


def test_a_copy_of_the_module_trains_without_the_loss():
    """An average of the weights that a callback keeps."""
    module, callback, copies = Module("labels"), RegularizeCallback(weight=3.0), []

    class Copies(pl.Callback):
        def on_train_batch_end(self, trainer, pl_module, *args, **kwargs):
            twin = copy.deepcopy(pl_module)
            copies.append((twin, twin.training_step(tokens(2), 0), callback.handle.last))

    fit(module, callback, Copies(), parts=1, steps=1)
    (twin, loss, last), ids = copies[0], tokens(2)
    assert loss.item() == twin.model(input_ids=ids, labels=ids, use_cache=False).loss.item()
    assert twin.training_step.__self__ is twin
    assert twin.training_step.__func__ is Module.training_step
    assert callback.handle.last is last
    assert "training_step" not in vars(module)


def test_without_lines_of_a_log():
    """A loss whose mean cosine is asked for once per line."""
    logger = Lines()
    trainer = pl.Trainer(
        max_steps=1, accelerator="cpu", logger=logger, log_every_n_steps=0, enable_progress_bar=False,
        callbacks=[RegularizeCallback("uniformity")], enable_model_summary=False, enable_checkpointing=False,
    )  # fmt: skip
    trainer.fit(Module(), LOADER)
    assert not logger.lines


def test_what_is_read_must_be_called_and_named():
    with pytest.raises(ValueError, match="one model whose hidden states are read, got model, teacher: name it with"):
        fit(Module(frozen=True), RegularizeCallback())
    module = Module(frozen=True)
    with pytest.raises(RuntimeError, match="training_step must call LlamaForCausalLM"):
        fit(module, RegularizeCallback(model="teacher"))
    assert "training_step" not in vars(module)
    fit(Module(frozen=True), RegularizeCallback(model="model", modules="model.layers.*"), steps=1)
    with pytest.raises(ValueError, match="weight must be a finite number"):
        RegularizeCallback(weight=float("nan"))
    for attach, name in ((dc.regularize, "RegularizeCallback"), (dc.monitor, "MonitorCallback")):
        for target in (module, pl.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)):
            with pytest.raises(TypeError, match=rf"Trainer\(callbacks=\[{name}"):
                attach(target)


@pytest.mark.parametrize("kind", ["labels", "manual"])
def test_a_model_in_eval_mode(kind):
    """As from_pretrained returns it. Lightning leaves it so."""
    module = Module(kind)
    module.model.eval()
    with pytest.raises(RuntimeError, match=r"must be in training mode .* got eval mode, .*: call model\.train\(\)"):
        fit(module, RegularizeCallback())
    assert not module.model._forward_pre_hooks
    watch = MonitorCallback(every=2)
    with pytest.warns(UserWarning, match="no training call has passed") as told:
        fit(module, watch)
    assert (len(told), watch.monitor.readings) == (1, [])
    with warnings.catch_warnings(record=True) as told:
        fit(module, MonitorCallback(inputs=tokens(2)))
        module.model.train()
        fit(module, MonitorCallback(), RegularizeCallback())
    assert not told


def test_a_step_may_leave_the_model_out_once_it_was_seen_to_train():
    """As the discriminator's step of a GAN, which calls a generator in eval mode."""

    class Alternating(Module):
        def training_step(self, batch, batch_idx):
            self.model.train(batch_idx % 2 == 0)
            return super().training_step(batch, batch_idx)

    _, logger = fit(Alternating("manual", parts=1), RegularizeCallback(), steps=8)
    told = [float(line["penalty"]) for _, line in logger.lines]  # of a step without, Lightning logs the last
    assert told[0] == told[1] != told[2] == told[3]


@pytest.mark.parametrize("calls", [1, 2])
def test_the_penalty_goes_with_the_loss_that_comes_from_the_states(calls):
    """A critic is trained first, on what is detached, by a call of its own or by that of its generator."""

    class Adversaries(Module):
        def __init__(self):
            super().__init__("manual")
            self.critic = nn.Linear(VOCABULARY, 1)

        def training_step(self, batch, batch_idx):
            first, *_, last = [self.model(input_ids=batch, use_cache=False).logits for _ in range(calls)] * 2
            self.manual_backward(self.critic(first.detach()).mean())
            self.manual_backward(-self.critic(last).mean())
            self.before_steps.append(gradients(self.model))
            for optimiser in self.optimizers():
                optimiser.step()
                optimiser.zero_grad()

        def configure_optimizers(self):
            return [torch.optim.SGD(part.parameters(), lr=0.0) for part in (self.model, self.critic)]

    alone, module = Adversaries(), Adversaries()
    module.load_state_dict(alone.state_dict())
    fit(alone, steps=2)
    _, logger = fit(module, RegularizeCallback(weight=3.0), steps=2)
    batch = next(iter(LOADER))
    states = module.model.train()(input_ids=batch, use_cache=False, output_hidden_states=True).hidden_states[1:]
    module.zero_grad()
    penalty = torch.stack([dc.losses.dispersion(z, estimator="first_order") for z in states]).mean()
    (3.0 * penalty).backward()
    added = gradients(module.model)
    expected = {name: g + added.get(name, 0) for name, g in alone.before_steps[0].items()}
    assert_same(module.before_steps[0], expected, 1e-5)
    assert float(logger.lines[0][1]["penalty"]) == pytest.approx(penalty.item(), abs=1e-6)


def test_a_loss_of_nothing_that_is_read_is_told():
    class Apart(Module):
        def training_step(self, batch, batch_idx):
            self.model(input_ids=batch, use_cache=False)
            self.manual_backward(self.model.lm_head.weight.sum())
            for optimiser in self.optimizers():
                optimiser.step()

    with warnings.catch_warnings(record=True) as caught:
        fit(Apart("manual"), RegularizeCallback(), steps=4)
    told = [str(one.message) for one in caught if "the penalty goes with a loss" in str(one.message)]
    assert len(told) == 1
    assert "no manual_backward has got one yet" in told[0]


class Network(pl.LightningModule):
    """A module that is the network itself."""

    def __init__(self, embedded=True) -> None:
        super().__init__()
        if embedded:
            self.embed = nn.Embedding(VOCABULARY, 8)
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, ids):
        x = self.embed(ids) if hasattr(self, "embed") else nn.functional.one_hot(ids % 8, 8).float()
        for block in self.blocks:
            x = x + block(x)
        return x

    def training_step(self, batch, batch_idx):
        return self(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.parametrize("embedded", [True, False])
def test_a_module_that_is_the_network_itself(embedded):
    """Also where a list of blocks is all that it has."""
    for name in (None, ""):
        callback, watch = (kind(model=name, modules="blocks.*") for kind in (RegularizeCallback, MonitorCallback))
        fit(Network(embedded), callback, watch, parts=1, steps=1)
        assert len(callback.handle.last["per_layer"]) == len(watch.monitor.readings[0].layers) == 3
    words = "name it with model='…', or, if the module itself is the network, its layers with modules='…'"
    with pytest.raises(ValueError, match=rf"whose hidden states are read, got (embed, )?blocks: {words}"):
        fit(Network(embedded), RegularizeCallback())

    class Wrapped(Network):
        def training_step(self, batch, batch_idx):
            return self.forward(batch).square().mean()

    with pytest.raises(RuntimeError, match=r"must call Wrapped, .* none came: .*call self\(…\), not self\.forward"):
        fit(Wrapped(), RegularizeCallback(modules="blocks.*"))


@pytest.mark.parametrize("inputs", [None, tokens(2)])
def test_the_monitor_watches_and_changes_nothing(inputs):
    modules = [Module(), Module()]
    fit(modules[0])
    callback = MonitorCallback(every=2, inputs=inputs, metrics=["effective_rank"])
    _, logger = fit(modules[1], callback)
    assert all(torch.equal(a, b) for a, b in zip(modules[0].parameters(), modules[1].parameters()))
    steps = [step for step, line in logger.lines if "geometry/trend" in line or "geometry/mean_cosine/01" in line]
    assert steps == [r.step for r in callback.monitor.readings] == ([0, 2] if inputs is None else [0, 2, 4])
    assert set(callback.monitor.to_pandas().columns) == {"step", "layer", "mean_cosine", "effective_rank"}
