"""torch.compile(model, fullgraph=True) with a loss attached: no graph break, and the numbers of the plain model."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext

import pytest
import torch
from torch import nn

import decondense as dc
from decondense.losses.registry import registered
from regularize.models import VOCABULARY, assert_same, attachment, gpt2, gradients, llama, padded, tokens


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def whole(model, backend="aot_eager"):
    """One graph: of a module alone torch.compile makes three, its forward and before and after it its hooks."""
    return torch.compile(lambda **inputs: model(**inputs), fullgraph=True, backend=backend)


def module(model, backend="aot_eager"):
    return torch.compile(model, fullgraph=True, backend=backend)


class Counted:
    """A backend that counts its compilations."""

    def __init__(self):
        self.graphs = 0

    def __call__(self, graph, inputs):
        self.graphs += 1
        return graph.forward


OPTIONS = {
    **{name: (name, {}) for name in registered()},
    "second_order": ("dispersion", {"estimator": "second_order"}),
    "exact": ("dispersion", {"estimator": "exact"}),
    "sampled": ("dispersion", {"estimator": "sampled", "max_tokens": 5}),
}
QUICK = {"dispersion", "exact", "sampled", "l2_repel"}
FAMILIES = {"dispersion": llama, "exact": gpt2}  # whose states transformers collects; the others need no such model


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[] if case in QUICK else pytest.mark.slow) for case in OPTIONS]
)
def test_every_loss_is_noticed_when_unused_and_is_that_of_the_plain_model(case):
    """Two calls of one compilation."""
    loss, options = OPTIONS[case]
    ids, mask, labels = padded()
    mask[-1, 1:] = 0  # a row without a pair, which the mean leaves out
    given = {"input_ids": ids, "attention_mask": mask, "labels": labels, "use_cache": False}
    build, found = FAMILIES.get(case, Blocks), []
    modules = "blocks.*" if build is Blocks else None
    for compiled in (False, True):
        model = build(layers=1).train()
        model.loss_type = "ForCausalLM"  # without one, transformers warns inside GPT2's call: a break of its own
        with attachment(model, loss, weight=2.0, modules=modules, **options) as attached:
            call = (module if case == "exact" else whole)(model) if compiled else model
            call(**given)["logits"].sum().backward()
            assert (attached.given, attached.calls, attached.reached) == (1, 1, False)
            with pytest.raises(RuntimeError, match="no backward pass has reached it"):
                torch.optim.SGD(model.parameters(), lr=0.0).step()
            model.zero_grad()
            torch.manual_seed(3)  # of the draw of tokens
            value = call(**given)["loss"]
            assert not attached.reached
            value.backward()
            assert attached.reached
            found.append((value.detach(), gradients(model), attached.last))
    (value, expected, last), (compiled_value, compiled_gradients, compiled_last) = found
    torch.testing.assert_close(compiled_value, value)
    assert_same(compiled_gradients, expected, 1e-5)
    assert compiled_last.keys() == last.keys()
    for key in last:
        torch.testing.assert_close(torch.as_tensor(compiled_last[key]), torch.as_tensor(last[key]), msg=key)


def test_a_schedule_takes_no_second_compilation():
    """Two calls in every step, of which the weight rises: the graphs of the first serve all."""
    model, ids, backend, seen = llama(layers=1).train(), tokens(), Counted(), []
    optimiser = torch.optim.SGD(model.parameters(), lr=0.0)
    with attachment(model, weight=1.0, schedule="linear", ramp_steps=3) as attached:
        call = module(model, backend)
        for _ in range(4):
            for _ in range(2):
                loss = call(input_ids=ids, labels=ids, use_cache=False).loss
                loss.backward()
                last = attached.last
                torch.testing.assert_close(loss, last["task_loss"] + last["weight"] * last["penalty"])
                seen.append(float(last["weight"]))
            optimiser.step()
        assert (attached.step, attached.calls) == (4, 8)
    assert seen == pytest.approx([0, 0, 1 / 3, 1 / 3, 2 / 3, 2 / 3, 1, 1])
    assert backend.graphs == 2


def test_penalty_of_a_call_without_labels():
    ids, found = tokens(), []
    for compiled in (False, True):
        model = llama(layers=1).train()
        with dc.regularize(model, weight=3.0) as handle:
            call = whole(model) if compiled else model
            for _ in range(2):
                logits = call(input_ids=ids, use_cache=False).logits
                (logits.square().mean() + handle.penalty()).backward()
            found.append(gradients(model))
    assert_same(*found, 1e-5)


def test_packed_rows_are_a_graph_break():
    """How many documents there are is known when the call runs: with fullgraph it is an error, without it is right."""
    model, ids = llama(layers=1).train(), tokens()
    given = {"input_ids": ids, "labels": ids, "position_ids": torch.arange(6).repeat(4, 2), "use_cache": False}
    with attachment(model, weight=2.0) as attached:
        expected = model(**given).loss
        torch.testing.assert_close(torch.compile(model, backend="eager")(**given).loss, expected)
        assert attached.calls == 2
        torch.compiler.reset()
        with pytest.raises(torch._dynamo.exc.Unsupported):
            whole(model)(**given)


class Blocks(nn.Module):
    """A network of no library, which differs between training and evaluation as most do."""

    def __init__(self, layers=2, dropout=0.0):
        super().__init__()
        torch.manual_seed(1)
        self.embed = nn.Embedding(VOCABULARY, 8)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Dropout(dropout)) for _ in range(layers))

    def forward(self, input_ids, attention_mask=None, labels=None, use_cache=False):
        x = self.embed(input_ids)
        for block in self.blocks:
            x = x + block(x)
        return {"loss": x.square().mean(), "logits": x}


def compilations(attach):
    """How often torch.compile has compiled each function: steps and evaluations, of several lengths."""
    torch.compiler.reset()
    torch._dynamo.utils.clear_compilation_metrics()
    model = Blocks(dropout=0.1)
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3)
    with attach(model):
        call = module(model, "eager")
        for length in (6, 9, 12):
            call.train()
            for _ in range(2):
                call(tokens(3, length))["loss"].backward()
                optimiser.step()
            call.eval()
            call(tokens(3, length))
            with torch.no_grad():
                call(tokens(3, length))
    return Counter((m.co_filename, m.co_firstlineno) for m in torch._dynamo.utils.get_compilation_metrics())


def test_evaluations_and_lengths_take_no_function_more_compilations_than_without_the_loss():
    """torch.compile counts them by function, and with fullgraph more than 8 are an error."""
    plain = compilations(nullcontext)
    attached = compilations(lambda model: dc.regularize(model, weight=0.5, modules="blocks.*"))
    assert set(plain.values()) == {6}, "training, evaluation, without gradients; one length, any length"
    assert max(attached.values()) == 6
    assert len(attached) == 1 + 4, "what is before and after the model's own function"
