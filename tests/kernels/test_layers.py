"""Many layers at once: the same values and gradients as layer by layer, whatever way the gradient takes."""

from __future__ import annotations

import contextlib
import gc
import weakref
from itertools import pairwise

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import decondense
from decondense import losses
from decondense.losses import layers

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ESTIMATORS = ("first_order", "second_order", "exact")


@pytest.fixture(autouse=True)
def _chosen(monkeypatch):
    if DEVICE == "cpu":
        monkeypatch.setenv("TRITON_INTERPRET", "1")


class Stack(torch.nn.Module):
    """A residual stream: what the blocks of a transformer are to the loss."""

    def __init__(self, depth: int = 3, width: int = 12) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(depth))

    def block(self, k: int, z: torch.Tensor) -> torch.Tensor:
        return z + torch.tanh(self.blocks[k](z))

    def forward(self, z: torch.Tensor, how: str = "plain") -> list[torch.Tensor]:
        states = []
        for k in range(len(self.blocks)):
            if how == "plain":
                z = self.block(k, z)
            else:
                z = checkpoint(self.block, k, z, use_reentrant=how == "reentrant")
            states.append(z)
        return states


def inputs(tokens: int = 20) -> torch.Tensor:
    g = torch.Generator().manual_seed(1)
    z = torch.randn(2, tokens, 12, generator=g) + torch.randn(2, 1, 12, generator=g)
    return z.to(DEVICE).requires_grad_()


def total(states, backend, estimator, mask=None, together=True, task=1.0):
    loss = losses.get("dispersion", estimator=estimator, backend=backend)
    if together:
        values = loss.over_layers(states, mask)[0]
    else:
        values = torch.stack([loss(z, mask, reduction="none") for z in states])
    weight = torch.tensor([[1.0], [-2.0], [0.5]], device=DEVICE)
    return task * states[-1].square().mean() + (weight * values).sum()


def gradients(model, value, z, keep=False):
    """Through backward(), in which the losses ride; `torch.autograd.grad` lets them return their gradients."""
    z.grad = None
    model.zero_grad()
    value.backward(retain_graph=keep)
    return [z.grad, *(p.grad for p in model.parameters() if p.grad is not None)]


def riders(states) -> list[bool]:
    return [layers.feeds(a, b) for a, b in pairwise(states)]


def test_without_gradients():
    z = inputs().detach()
    for states in ([z, 2 * z], [z, z.clone().requires_grad_()]):
        value = losses.get("dispersion", estimator="first_order", backend="triton").over_layers(states, None)[0]
        assert value.requires_grad == states[1].requires_grad
    with torch.no_grad():
        model = Stack().to(DEVICE)
        assert not losses.get("dispersion", backend="triton").over_layers(model(z), None)[0].requires_grad


@pytest.mark.parametrize("how", ["plain", "reentrant", "recomputed"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("tokens", [20, 8])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_as_layer_by_layer_in_torch(estimator, tokens, masked, how):
    if how != "plain" and (masked or tokens == 8):
        pytest.skip("the combination adds nothing")
    model, z = Stack().to(DEVICE), inputs(tokens)
    mask = torch.ones(2, tokens, dtype=torch.bool, device=DEVICE) if masked else None
    if mask is not None:
        mask[1, 5:] = False
    states = model(z, how)
    assert riders(states) == [True, True]
    kernel, torch_value = total(states, "triton", estimator, mask), total(model(z), "torch", estimator, mask, False)
    torch.testing.assert_close(kernel, torch_value, rtol=1e-5, atol=1e-6)
    found = [gradients(model, value, z) for value in (kernel, torch_value)]
    for a, b in zip(*found):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_gradient_of_the_loss_alone(estimator):
    """No task: the last layer's own gradient is what the others ride on."""
    model, z = Stack().to(DEVICE), inputs()
    a, b = (
        gradients(model, total(model(z), backend, estimator, together=backend == "triton", task=0.0), z)
        for backend in ("triton", "torch")
    )
    for x, y in zip(a, b):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-6)


def test_the_addition_is_the_kernels(monkeypatch):
    """All layers but the last get the gradient from above as an addend; the loss's own is never made."""
    addends = []
    original = layers.MeanCosines.backward

    def watched(self, z, mask, saved, upstream, addend=None):
        addends.append(addend is not None)
        return original(self, z, mask, saved, upstream, addend)

    monkeypatch.setattr(layers.MeanCosines, "backward", watched)
    model, z = Stack().to(DEVICE), inputs()
    total(model(z), "triton", "first_order").backward()
    assert addends == [False, True, True]


def test_a_graph_can_be_walked_twice():
    """The task alone and with the loss, in turns: nothing is left over from one to the next."""
    model, z = Stack().to(DEVICE), inputs()
    states = model(z)
    task = states[-1].square().mean()
    loss = losses.get("dispersion", estimator="exact", backend="triton").over_layers(states, None)[0].sum()
    plain = gradients(model, task, z, keep=True)[0]
    both = gradients(model, task + loss, z, keep=True)[0]
    assert not torch.allclose(plain, both)
    assert torch.equal(gradients(model, task, z, keep=True)[0], plain)
    torch.testing.assert_close(torch.autograd.grad(task + loss, z, retain_graph=True)[0], both)
    assert torch.equal(gradients(model, task + loss, z)[0], both)


def test_gradient_with_respect_to_the_states_themselves():
    """Autograd shows a hook's result to some inputs of `grad` and not to others."""
    model, z = Stack().to(DEVICE), inputs()
    found = []
    for backend in ("triton", "torch"):
        states = model(z)
        value = total(states, backend, "second_order", together=backend == "triton")
        found.append(torch.autograd.grad(value, states))
    for a, b in zip(*found):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_a_recorded_backward_pass():
    """create_graph: autograd must see the sum, or the second derivative of the task would be lost with it."""
    model, z = Stack().to(DEVICE), inputs()
    found = []
    for backend in ("triton", "torch"):
        value = total(model(z), backend, "first_order", together=backend == "triton")
        value.backward(create_graph=True)
        first, z.grad = z.grad, None
        found.append((first.detach(), torch.autograd.grad(first.sum(), z)[0]))
    for a, b in zip(*found):
        assert b.norm() > 0
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_who_feeds_whom():
    model, z = Stack().to(DEVICE), inputs()
    states = model(z)
    assert riders(states) == [True, True]
    assert layers.feeds(states[0], states[2])
    assert not layers.feeds(states[2], states[0])
    assert not layers.feeds(states[0], states[0])
    assert not layers.feeds(z, states[0])  # a leaf
    assert riders([s[:, :4] for s in states]) == [False, False]  # documents cut out: nothing comes down to the pieces
    assert riders([s.detach() for s in states]) == [False, False]
    one, other = torch.stack(states).unbind()[:2]  # outputs of one node, as in a compiled model
    assert one.grad_fn is other.grad_fn
    assert not layers.feeds(one, other)
    assert layers.feeds(one, one + 1)
    assert not layers.feeds(other, one + 1)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_states_that_do_not_feed_each_other(estimator):
    """Pieces cut out of the states take the usual way and lose nothing."""
    model, z = Stack().to(DEVICE), inputs()
    a, b = (
        gradients(model, total([s[:, :9] for s in model(z)], backend, estimator, together=backend == "triton"), z)
        for backend in ("triton", "torch")
    )
    for x, y in zip(a, b):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_in_a_model(checkpointing, monkeypatch):
    """Every block of a transformers model feeds the next, as autograd sees it."""
    from transformers import GPT2Config, GPT2LMHeadModel

    seen = []
    original = layers.feeds
    monkeypatch.setattr(layers, "feeds", lambda a, b: seen.append(original(a, b)) or seen[-1])
    config = GPT2Config(n_layer=3, n_embd=16, n_head=2, vocab_size=64, resid_pdrop=0, attn_pdrop=0, embd_pdrop=0)
    ids = torch.arange(24, device=DEVICE).view(2, 12) % 7
    found = []
    for backend in ("triton", "torch"):
        torch.manual_seed(0)
        model = GPT2LMHeadModel(config).to(DEVICE).train()
        if checkpointing:
            model.gradient_checkpointing_enable()
        with decondense.regularize(model, "dispersion", weight=0.5, estimator="first_order", backend=backend):
            model(input_ids=ids, labels=ids).loss.backward()
        found.append([p.grad for p in model.parameters()])
    assert seen == [True, True]
    for a, b in zip(*found):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


class Silent(torch.autograd.Function):
    """Says that it depends on its input, and returns no gradient for it."""

    @staticmethod
    def forward(ctx, z):
        return z.clone()

    @staticmethod
    def backward(ctx, upstream):
        return None


def test_a_gradient_that_never_comes_is_an_error():
    z = inputs()
    first = z * 1.0
    states = [first, Silent.apply(first)]
    values, _ = losses.get("dispersion", estimator="first_order", backend="triton").over_layers(states, None)
    with pytest.raises(RuntimeError, match="gradient from the layers above"):
        values.sum().backward()


def fail(gradient):
    raise ArithmeticError


@pytest.mark.parametrize("end", ["walked", "never walked", "failed halfway"])
def test_the_graph_is_freed(end):
    """A hook that held the states would keep the whole graph alive."""
    model, z = Stack().to(DEVICE), inputs()
    states = model(z)
    loss = losses.get("dispersion", estimator="first_order", backend="triton")
    value = loss.over_layers(states, None)[0].sum() + states[-1].sum()
    seen = [weakref.ref(s) for s in states]
    gc.disable()
    try:
        if end == "walked":
            value.backward()
        elif end == "failed halfway":  # after the loss's backward pass, before the states of the first layer
            states[1].register_hook(fail)
            with contextlib.suppress(ArithmeticError):
                value.backward()
        del states, value
        assert [s() for s in seen] == [None, None, None]
    finally:
        gc.enable()


def test_layers_of_different_shapes():
    a, b = inputs(20), inputs(8)
    for estimator in ESTIMATORS:
        loss = losses.get("dispersion", estimator=estimator, backend="triton")
        values, _ = loss.over_layers([a, b], None)
        expected = [losses.dispersion(z, estimator=estimator, backend="torch", reduction="none") for z in (a, b)]
        torch.testing.assert_close(values, torch.stack(expected), rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU: bfloat16")
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_bfloat16_states(estimator):
    model, z = Stack().to(DEVICE, torch.bfloat16), inputs()
    narrow = z.detach().bfloat16().requires_grad_()
    value = total(model(narrow), "triton", estimator)
    a = torch.autograd.grad(value, narrow)[0].float()
    wide = Stack().to(DEVICE)
    b = torch.autograd.grad(total(wide(z), "torch", estimator, together=False), z)[0]
    assert (a - b).norm() < 0.02 * b.norm()
