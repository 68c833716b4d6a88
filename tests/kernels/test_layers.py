"""Many layers at once: the same values and gradients as layer by layer in torch, whatever way the gradient takes."""

from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import decondense
from decondense import losses
from decondense.kernels import first_order, nearest, pairwise, repulsion, second_order

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = pytest.mark.usefixtures("chosen")
ESTIMATORS = ("first_order", "second_order", "exact")


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


def total(states, backend, estimator, mask=None):
    """A task on the last layer, and the loss of all of them: together in the kernels, one by one in torch."""
    loss = losses.get("dispersion", estimator=estimator, backend=backend)
    if backend == "triton":
        values = loss.over_layers(states, mask)[0]
    else:
        values = torch.stack([loss(z, mask, reduction="none") for z in states])
    weight = torch.tensor([[1.0], [-2.0], [0.5]], device=DEVICE)
    return states[-1].square().mean() + (weight * values).sum()


def test_without_gradients():
    z = inputs().detach()
    for states in ([z, 2 * z], [z, z.clone().requires_grad_()]):
        value = losses.get("dispersion", estimator="first_order", backend="triton").over_layers(states, None)[0]
        assert value.requires_grad == states[1].requires_grad
    with torch.no_grad():
        model = Stack().to(DEVICE)
        assert not losses.get("dispersion", backend="triton").over_layers(model(z), None)[0].requires_grad


WAYS = {
    "plain": (20, False, "plain"),
    "masked": (20, True, "plain"),
    "fewer tokens than features": (8, False, "plain"),
    "the same, masked": (8, True, "plain"),
    "reentrant checkpoints": (20, False, "reentrant"),
    "checkpoints": (20, False, "recomputed"),
    "pieces of the states": (20, False, "pieces"),
}


@pytest.mark.parametrize(("tokens", "masked", "how"), WAYS.values(), ids=WAYS.keys())
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_as_layer_by_layer_in_torch(estimator, tokens, masked, how):
    mask = torch.ones(2, tokens, dtype=torch.bool, device=DEVICE) if masked else None
    if mask is not None:
        mask[1, 5:] = False
    found = []
    for backend in ("triton", "torch"):
        model, z = Stack().to(DEVICE), inputs(tokens)
        states = model(z, "plain" if how == "pieces" else how)
        states = [s[:, :9] for s in states] if how == "pieces" else states
        value = total(states, backend, estimator, mask)
        value.backward()
        found.append([value.detach(), z.grad, *(p.grad for p in model.parameters())])
    for a, b in zip(*found):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_graph_can_be_walked_twice(estimator):
    """Also with respect to the states themselves, and with a recorded backward pass, which has no derivative."""
    model, z = Stack().to(DEVICE), inputs()
    states = {backend: model(z) for backend in ("triton", "torch")}
    value = {backend: total(states[backend], backend, estimator) for backend in states}
    first, again = (torch.autograd.grad(value["triton"], z, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, again)
    of_states = [torch.autograd.grad(value[b], states[b], retain_graph=True) for b in states]
    for a, b in zip(*of_states):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    recorded = [torch.autograd.grad(value[b], z, create_graph=True)[0] for b in states]
    torch.testing.assert_close(*recorded, rtol=1e-4, atol=1e-6)
    for gradient in recorded:
        with pytest.raises(RuntimeError, match="cannot be differentiated again"):
            torch.autograd.grad(gradient.sum(), z)


@pytest.fixture
def added(monkeypatch):
    """For every gradient that a kernel computed, whether it added another one to it."""
    found = []
    for kernel in (first_order, nearest, pairwise, repulsion, second_order):

        def backward(*args, own=kernel.backward, other=None, **options):
            found.append(other is not None)
            return own(*args, other=other, **options)

        monkeypatch.setattr(kernel, "backward", backward)
    return found


@pytest.mark.parametrize("backend", [None, "aot_eager"], ids=["eager", "compiled blocks"])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_kernel_adds_its_gradient_to_that_of_the_layers_above(estimator, backend, added):
    """And gives it by itself where nothing comes from above: a compiled block looks at the memory of what it gets."""
    torch.compiler.reset()
    of_task, of_penalty = [], []
    for chosen in ("triton", "torch"):
        model, z = Stack().to(DEVICE), inputs()
        if backend is not None:
            model.block = torch.compile(model.block, backend=backend)
        total(model(z), chosen, estimator).backward()
        of_task.append([z.grad, *(p.grad for p in model.parameters())])
        states = model(z)
        loss = losses.get("dispersion", estimator=estimator, backend=chosen)
        of_penalty.append(torch.autograd.grad(loss.over_layers(states, None)[0].sum(), z)[0])
    assert added == [True] * 3 + [False] + [True] * 2
    for a, b in zip(*of_task):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(*of_penalty, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("tokens", [9, 20])  # fewer and more than there are features
@pytest.mark.parametrize("name", ["decorrelation", "koleo", "l2_repel", "vicreg"])
def test_other_kernels_add_theirs_too(name, tokens, added):
    """What comes from above is neither lost nor counted twice, also where a token does not count. vicreg leaves the
    addition to autograd, and so does decorrelation where it centres the tokens beforehand."""
    z, mask = inputs(tokens), torch.ones(2, tokens, dtype=torch.bool, device=DEVICE)
    mask[1, 2:5] = False
    loss = losses.get(name, backend="triton")
    alone = z.detach().to(torch.bfloat16).requires_grad_()
    (own,) = torch.autograd.grad(loss(alone, mask), alone)
    above = torch.randn(2, tokens, 12, device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(2))
    above = (above * own.float().abs().mean()).to(torch.bfloat16)
    state = z.to(torch.bfloat16)
    (found,) = torch.autograd.grad(loss(state, mask) + (above * state).sum(), z)
    adds = name in ("koleo", "l2_repel") or (name == "decorrelation" and tokens > 12)
    assert added == ([] if name == "vicreg" else [False, adds])
    wanted = own.float() + above.float()
    assert (found - wanted).norm() < 0.01 * min(own.float().norm(), above.float().norm())


def test_a_gradient_that_waits_is_a_gradient():
    """Whatever is done with it, in a hook say, is done with its numbers."""
    z, seen = inputs(), []
    state = 2 * z
    loss = losses.get("dispersion", estimator="first_order", backend="triton")
    state.register_hook(lambda gradient: seen.append(gradient.abs().sum()) or 3 * gradient)
    (found,) = torch.autograd.grad(loss(state), z)
    (wanted,) = torch.autograd.grad(loss(2 * z), z)
    torch.testing.assert_close(found, 3 * wanted)
    torch.testing.assert_close(seen[0], wanted.abs().sum() / 2)
    for change in (lambda g: g.mul_(3), lambda g: torch.mul(g, 3, out=g), lambda g: g[:, :1].zero_()):
        state, expected = 2 * z, wanted / 2
        state.register_hook(lambda g, change=change: (change(g), g)[1])
        (found,) = torch.autograd.grad(loss(state), z)
        change(expected)
        torch.testing.assert_close(found, 2 * expected)
    state = 2 * z
    (alone,) = torch.autograd.grad(loss(state), state)
    assert type(alone) is torch.Tensor
    torch.testing.assert_close(alone, wanted / 2)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_in_a_model(checkpointing):
    from transformers import GPT2Config, GPT2LMHeadModel

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
    for a, b in zip(*found):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


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
    a = torch.autograd.grad(total(model(narrow), "triton", estimator), narrow)[0].float()
    b = torch.autograd.grad(total(Stack().to(DEVICE)(z), "torch", estimator), z)[0]
    assert (a - b).norm() < 0.02 * b.norm()
