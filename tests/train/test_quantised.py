"""Losses after quantisation, against loops in float64, and weights that come back bit for bit."""

from __future__ import annotations

import contextlib
import math

import numpy as np
import pytest
import torch
import transformers
from transformers.pytorch_utils import Conv1D

from decondense.commands.train import show_run
from decondense.records import read
from decondense.train import train
from decondense.train.held_out import Document, document_losses
from decondense.train.quantised import quantised, quantised_losses, rounded
from train.runs import tiny

SCHEMES = ["int8", "int4", "int8-int8"]


def on_grid(row: np.ndarray, bits: int, group: int) -> np.ndarray:
    """One row in float64: group by group, number by number."""
    out, most = [], 2 ** (bits - 1) - 1
    for low in range(0, len(row), group):
        part = [float(x) for x in row[low : low + group]]
        scale = max(abs(x) for x in part) / most
        for x in part:
            steps = 0 if scale == 0 else math.floor(abs(x) / scale + 0.5)
            assert steps <= most
            out.append(math.copysign(steps * scale, x))
    return np.array(out)


def by_loop(weight: torch.Tensor, bits: int, *, across: bool = False) -> torch.Tensor:
    rows = weight.detach().double().numpy()
    rows = rows.T if across else rows
    made = np.stack([on_grid(row, bits, 32) for row in rows])
    return torch.from_numpy(made.T.copy() if across else made)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("size", [32, 96, 50, 7])
def test_rounding_against_a_loop(bits, size):
    values = torch.randn(5, size, generator=torch.Generator().manual_seed(size))
    values[2, :40] = 0.0
    found = rounded(values, bits, 32)
    assert torch.allclose(found.double(), by_loop(values, bits), rtol=1e-6, atol=1e-7)
    assert rounded(values.bfloat16(), bits, 32).dtype == torch.bfloat16
    whole = torch.from_numpy(np.stack([on_grid(row, bits, size) for row in values.numpy()]))
    assert torch.allclose(rounded(values, bits).double(), whole, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", ["Linear", "Conv1D"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_layer_against_a_loop(kind, scheme):
    torch.manual_seed(3)
    layer = torch.nn.Linear(80, 6) if kind == "Linear" else Conv1D(6, 80)
    model, x = torch.nn.Sequential(layer), torch.randn(2, 3, 80)
    weight = by_loop(layer.weight, 4 if scheme == "int4" else 8, across=kind == "Conv1D")
    given = torch.from_numpy(np.stack([on_grid(row, 8, 80) for row in x.reshape(6, 80).numpy()]))
    given = given.view(2, 3, 80) if scheme == "int8-int8" else x.double()
    expected = given @ (weight.T if kind == "Linear" else weight) + layer.bias.double()
    plain = model(x)
    with quantised(model, scheme):
        assert torch.allclose(model(x).double(), expected, atol=1e-5)
    assert torch.equal(model(x), plain)


def test_inputs_by_name_are_rounded_too():
    layer, x = torch.nn.Linear(80, 6), torch.randn(2, 80)
    with quantised(layer, "int8-int8"):
        assert torch.equal(layer(input=x), layer(x))
        assert not torch.equal(layer(input=x), torch.nn.functional.linear(x, layer.weight, layer.bias))


def test_weights_are_restored_bit_for_bit_also_after_an_error():
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=50, n_embd=48, n_layer=1, n_head=2))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    changed = {"attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj", "wte", "lm_head"}  # the head is tied to wte
    with contextlib.suppress(KeyError), quantised(model, "int8-int8"):
        for name, value in model.state_dict().items():
            rounds = name.endswith(".weight") and any(part in name for part in changed)
            assert torch.equal(value, before[name]) != rounds, name
        raise KeyError
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_a_run_reports_what_its_saved_model_would_lose(tmp_path, cache, capsys):
    settings = ("data.held_out=pydoc", "data.held_out_documents=3", "data.tokens=16k", "train.checkpoints=0")
    recipe = tiny(*settings, "train.quantised=[int8, int4, int8-int8]")
    run = train(recipe, tmp_path / "run", cache=cache)
    record = read(run.folder)
    cost = record.quantisation_cost
    assert list(cost) == SCHEMES
    assert abs(cost["int8"]) < cost["int4"]
    (text,) = record.held_out_texts
    for scheme in SCHEMES:
        after = record.held_out_quantised[scheme][text]
        assert cost[scheme] == pytest.approx(after - record.held_out_texts[text])

    model = transformers.AutoModelForCausalLM.from_pretrained(run.folder / "model")
    plain = train(tiny(*settings), tmp_path / "plain", cache=cache)
    same = transformers.AutoModelForCausalLM.from_pretrained(plain.folder / "model")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), same.parameters()))
    assert "held_out_quantised" not in plain.record

    show_run(record, run.folder)
    assert "after quantisation minus before, mean over texts: int8 " in capsys.readouterr().out


@pytest.mark.parametrize("compiled", [False, True])
def test_losses_against_a_model_with_weights_from_the_loop(compiled):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=60, hidden_size=40, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    asked = ([Document("a", 0, np.arange(50) % 60), Document("b", 0, np.arange(30) % 7)], 16, np.zeros(60, np.int64))
    for block in model.model.layers if compiled else ():
        block.compile(backend="eager")
    model(input_ids=torch.arange(16)[None])
    losses = quantised_losses(model, *asked, ["int4", "int8", "int8-int8"])
    found = losses["int4"]
    assert abs(losses["int8"]["a"] - losses["int8-int8"]["a"]) > 1e-6  # the hooks are seen
    for layer in model.modules():
        if isinstance(layer, torch.nn.Linear):
            layer.weight.data = by_loop(layer.weight, 4).float()
    expected = document_losses(model, *asked)["held_out_texts"]
    assert found.keys() == expected.keys() == {"a", "b"}
    assert all(found[text] == pytest.approx(expected[text], rel=1e-5) for text in found)
