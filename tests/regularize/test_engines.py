"""Loops by hand around other people's tools: torch.compile in every order, accelerate, GradScaler."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import decondense as dc
from regularize.models import assert_same, gradients, llama, tokens


class Small(nn.Module):
    """Little to compile."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = block(x).tanh()
        return {"loss": x.square().mean()}


def wrapped(model):
    return torch.compile(model, backend="eager")


def in_place(model):
    model.compile(backend="eager")
    return model


def of_llama():
    return llama(layers=1), {"input_ids": tokens(), "labels": tokens(), "use_cache": False}, None


def of_small():
    return Small(), {"x": torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))}, "blocks.*"


@pytest.mark.parametrize("compiled", [wrapped, pytest.param(in_place, marks=pytest.mark.slow)])
@pytest.mark.parametrize("called", [False, True])
@pytest.mark.parametrize("make", [of_small, pytest.param(of_llama, marks=pytest.mark.slow)])
def test_attached_after_compilation(compiled, called, make):
    """To what torch.compile returned. After its first call hooks are not looked at again, and the loss would be missing
    without a word."""
    torch.compiler.reset()
    (eager, inputs, modules), (model, _, _) = make(), make()
    with dc.regularize(eager.train(), weight=5.0, modules=modules):
        eager(**inputs)["loss"].backward()
    call = compiled(model.train())
    optimiser = torch.optim.SGD(model.parameters(), lr=0.0)
    if called:
        call(**inputs)["loss"].backward()
        model.zero_grad()
    with dc.regularize(call, weight=5.0, modules=modules) as handle:
        if called:
            with pytest.raises(RuntimeError, match=r"torch\.compiler\.reset\(\)"):
                (call(**inputs)["loss"].backward(), optimiser.step())
            torch.compiler.reset()
            model.zero_grad()
        call(**inputs)["loss"].backward()
        optimiser.step()
        assert handle.step == 1
    assert_same(gradients(model), gradients(eager), 1e-5)


@pytest.mark.parametrize(("first", "precision"), [("attach", "no"), ("prepare", "no"), ("attach", "bf16")])
def test_accelerate_by_hand(first, precision):
    """accelerator.accumulate: the gradient is that of the plain sum, and the ramp counts steps, not micro-batches."""
    accelerate = pytest.importorskip("accelerate")
    accelerate.state.AcceleratorState._reset_state(True)
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2, mixed_precision=precision)
    model, weights, found = llama().train(), [], []
    optimiser = torch.optim.SGD(model.parameters(), lr=0.0)
    optimiser.register_step_pre_hook(lambda *_: found.append(gradients(model)))
    loader = torch.utils.data.DataLoader([{"input_ids": row, "labels": row} for row in tokens(12)], batch_size=2)
    handle = dc.regularize(model, weight=4.0, schedule="linear", ramp_steps=2) if first == "attach" else None
    prepared, stepper, loader = accelerator.prepare(model, optimiser, loader)
    handle = handle or dc.regularize(prepared, weight=4.0, schedule="linear", ramp_steps=2)
    for batch in loader:
        with accelerator.accumulate(prepared):
            accelerator.backward(prepared(**batch).loss)
            weights.append(handle.last["weight"])
            stepper.step()
            stepper.zero_grad()
    handle.remove()
    accelerate.state.AcceleratorState._reset_state(True)
    assert weights == [0.0, 0.0, 2.0, 2.0, 4.0, 4.0]
    plain = llama().train()
    for rows in tokens(12)[8:].split(2):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
            out = plain(input_ids=rows, labels=rows, output_hidden_states=True)
        terms = [dc.losses.dispersion(z, estimator="first_order") for z in out.hidden_states[1:]]
        ((out.loss + 4.0 * torch.stack(terms).mean()) / 2).backward()
    assert_same(found[2], gradients(plain), 1e-5)


def test_grad_scaler():
    """The scaled loss contains the term; a step that the scaler leaves out is none."""
    model, ids = llama().train(), tokens()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with dc.regularize(model, weight=4.0) as handle:
        model(input_ids=ids, labels=ids).loss.backward()
        plain = gradients(model)
        for spoilt in (True, False):
            model.zero_grad()
            scaler.scale(model(input_ids=ids, labels=ids).loss).backward()
            if spoilt:
                model.lm_head.weight.grad[0] = torch.inf
            scaler.step(optimiser)
            scaler.update()
            assert handle.step == (0 if spoilt else 1)
    assert_same(gradients(model), plain, 1e-5)
