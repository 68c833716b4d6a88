"""The clock of a schedule: which steps count, who is told when none does, and where a warning points."""

from __future__ import annotations

import linecache
import warnings

import pytest
import torch
from torch import nn
from transformers import Trainer, TrainingArguments

import decondense as dc
from regularize.models import PLAIN, Plain, assert_same, gradients, llama, tokens


def test_a_step_is_one_of_the_model():
    """Two optimisers over its parameters count once; one over copies of them counts, too."""
    model, ids = llama().train(), tokens()
    matrices = [p for p in model.parameters() if p.ndim == 2]
    rest = [p for p in model.parameters() if p.ndim != 2]
    copies = [p.detach().clone().requires_grad_() for p in model.parameters()]
    for optimisers in ([torch.optim.AdamW(rest), torch.optim.Muon(matrices)], [torch.optim.SGD(copies, lr=1e-3)]):
        with dc.regularize(model, schedule="linear", ramp_steps=4) as handle:
            for _ in range(3):
                model(input_ids=ids, labels=ids).loss.backward()
                for optimiser in optimisers:
                    optimiser.step()
            assert handle.step == 3
            assert handle.weight == pytest.approx(0.075)


class Descent:
    """An optimiser that is not one of torch's."""

    def __init__(self, model):
        self.model = model

    def step(self):
        for p in self.model.parameters():
            p.data.add_(p.grad if p.grad is not None else 0, alpha=-1e-3)
        self.model.zero_grad()


@pytest.mark.parametrize(("how", "compiled"), [
    ("forgotten", False), ("forgotten", True), ("counted", False), ("constant", False), ("torch's", False),
    ("torch's", True),
])  # fmt: skip
def test_a_schedule_that_no_optimiser_moves_is_told_once(how, compiled, monkeypatch):
    monkeypatch.setattr("decondense.handle.MANY", 3)  # training calls: the first step may be of that many
    torch.compiler.reset()
    model, ids = Plain().train(), tokens()
    call = torch.compile(model, backend="eager") if compiled else model
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3) if how == "torch's" else Descent(model)
    schedule = {} if how == "constant" else {"schedule": "linear", "ramp_steps": 20}
    with dc.regularize(model, modules="blocks.*", **schedule) as handle, warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(4):
            for _ in range(3):
                (call(ids).square().mean() + handle.penalty()).backward()
            optimiser.step()
            if how == "counted":
                handle.step += 1
    told = [str(one.message) for one in seen if "schedule" in str(one.message)]
    assert len(told) == (how == "forgotten")
    if told:
        assert "got none in 3 training calls: after each step of any other optimiser run handle.step += 1;" in told[0]


@pytest.mark.parametrize(("engine", "told"), [
    ("plain", {"small beside": "optimiser.step()", "nothing trainable": "call(", "nearly parallel": "call("}),
    ("compiled", {"small beside": "optimiser.step()", "nothing trainable": "optimiser.", "nearly parallel": "call("}),
    ("trainer", dict.fromkeys(("small beside", "nothing trainable", "nearly parallel"), "trainer.train()")),
])  # fmt: skip
def test_warnings_name_the_line_of_the_caller(engine, told, tmp_path):
    """Not one of ours, nor of the library that calls our hooks."""
    torch.compiler.reset()
    torch._dynamo.utils.clear_compilation_metrics()
    model, ids = llama(layers=2).train(), tokens()
    model.model.embed_tokens.requires_grad_(False)
    model.model.layers[:1].requires_grad_(False)
    rows = [{"input_ids": row, "labels": row} for row in ids]
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        if engine == "trainer":
            options = TrainingArguments(tmp_path, max_steps=1, logging_steps=1, report_to=[], **PLAIN)
            trainer = Trainer(model, options, train_dataset=rows)
            dc.regularize(trainer, weight=1000.0), dc.monitor(trainer, collapse=-1.0)
            trainer.train()
        else:
            call = torch.compile(model, backend="eager") if engine == "compiled" else model
            optimiser = torch.optim.SGD(model.parameters(), lr=1e-9)
            with dc.regularize(model, weight=1000.0), dc.monitor(model, collapse=-1.0):
                call(input_ids=ids, labels=ids).loss.backward()
                optimiser.step()
    for words, line in told.items():
        (one,) = [one for one in seen if words in str(one.message)]
        assert one.filename == __file__
        assert linecache.getline(one.filename, one.lineno).strip().startswith(line)
    files = {metrics.co_filename for metrics in torch._dynamo.utils.get_compilation_metrics()}
    assert bool(files) == (engine == "compiled")
    assert not [file for file in files if "meter" in file], "what a monitor sees once is not worth compiling"


def test_gradients_by_torch_func_are_refused_by_torch():
    """And by torch.autograd they are those of the sum."""
    model, ids = llama(layers=1).train(), tokens()
    weights = dict(model.named_parameters())

    def loss(given):
        inputs = {"input_ids": ids, "labels": ids, "use_cache": False}
        return torch.func.functional_call(model, given, (), inputs).loss

    with dc.regularize(model, weight=2.0):
        with pytest.raises(RuntimeError, match="functorch transforms"):
            torch.func.grad(loss)(weights)
        found = torch.autograd.grad(loss(weights), list(weights.values()))
        loss(weights).backward()
        assert_same(dict(zip(weights, found)), gradients(model))


def test_schedule_counts_optimiser_steps():
    model, ids = llama().train(), tokens()
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3)
    other = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=1e-3)
    with dc.regularize(model, weight=2.0, schedule="linear", ramp_steps=4) as handle:
        weights = []
        for _ in range(6):
            for _ in range(2):  # accumulation
                model(input_ids=ids, labels=ids).loss.backward()
            weights.append(handle.last["weight"])
            optimiser.step()
            other.step()
        assert weights == [0.0, 0.5, 1.0, 1.5, 2.0, 2.0]
        assert handle.step == 6
    with dc.regularize(model, weight=2.0, schedule="cosine", ramp_steps=4) as handle:
        handle.step = 2
        assert handle.weight == pytest.approx(1.0)
    with dc.regularize(model, weight=2.0, schedule="release", release_at=3, ramp_steps=4) as handle:
        for step, weight in ((0, 2.0), (3, 2.0), (4, 1.5), (6, 0.5), (7, 0.0), (100, 0.0)):
            handle.step = step
            assert handle.weight == weight
    with dc.regularize(model, weight=2.0, schedule=lambda step: 1 / (1 + step)) as handle:
        handle.step = 3
        assert handle.weight == 0.5
