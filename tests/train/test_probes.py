"""Noise of the gradient and share of frequency against loops in float64; and the training does not notice."""

from __future__ import annotations

import math
import shutil

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from decondense.records import read
from decondense.train import train
from decondense.train.held_out import token_counts
from decondense.train.prepare import prepare
from decondense.train.probes import Probes, _gradients, frequency_direction, frequency_share, gradient_noise
from decondense.train.run import _trainer
from decondense.words import nobody
from train.runs import tiny

PROBED = ["snapshots.count=2", "snapshots.windows=2", "snapshots.tokens=16", "snapshots.spectral=true"]


def test_noise_against_a_loop_over_coordinates():
    torch.manual_seed(0)
    signal = torch.randn(7)
    batches = [signal + 0.3 * torch.randn(7) for _ in range(5)]
    rows = np.array([b.double().tolist() for b in batches])
    variance = signal2 = 0.0
    for column in rows.T:
        mean = sum(column) / 5
        spread = sum((x - mean) ** 2 for x in column) / 4
        variance += spread
        signal2 += mean**2 - spread / 5
    found = gradient_noise(iter([[b[:3], b[3:]] for b in batches]), tokens=64)
    assert found == pytest.approx(64 * variance / signal2, rel=1e-6)


def test_noise_is_what_was_put_in():
    """b = 16 tokens of variance 4 in each of 1,000 coordinates, a signal of length 5: tr Σ/‖G‖² = 4,000/25 = 160."""
    generator = torch.Generator().manual_seed(1)
    signal = torch.zeros(1000)
    signal[0] = 5.0
    gradients = ([signal + 2 / math.sqrt(16) * torch.randn(1000, generator=generator)] for _ in range(400))
    assert gradient_noise(gradients, tokens=16) == pytest.approx(160, rel=0.05)


def test_noise_without_a_signal_is_not_a_number():
    """Two opposite gradients: their mean is 0, which is less than noise alone would give."""
    assert math.isnan(gradient_noise(iter([[torch.ones(3)], [-torch.ones(3)]]), tokens=1))


def test_frequency_against_loops():
    torch.manual_seed(2)
    head, states, counts = torch.randn(11, 4), torch.randn(9, 4), np.array([0, 5, 1, 100, 7, 3, 0, 0, 2, 40, 8])
    logs = [math.log(c + 1) for c in counts]
    d = [sum((logs[w] - sum(logs) / 11) * float(head[w, k]) for w in range(11)) for k in range(4)]
    size = math.sqrt(sum(x * x for x in d))
    lengths = [float(z.double().square().sum()) for z in states]
    along = [sum(float(z[k]) * d[k] for k in range(4)) / size for z in states]
    shares = [x**2 / length for x, length in zip(along, lengths)]
    direction = frequency_direction(head, counts)
    assert direction.tolist() == pytest.approx([x / size for x in d], rel=1e-6)
    assert frequency_share(iter([states[:4], states[4:]]), direction) == pytest.approx(sum(shares) / 9, rel=1e-6)
    assert frequency_share(iter([direction[None] * 3]), direction) == pytest.approx(1)


def test_counts():
    tokens = np.array([1, 3, 3, 0, 3], np.uint16)
    assert token_counts(tokens, 5).tolist() == [1, 1, 0, 3, 0]


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_a_run_keeps_them_and_does_not_notice(tmp_path, architecture):
    settings = [*PROBED, "train.seed=3", "loss.name=uniformity", "loss.layers=last"]
    with_probes = train(tiny(*settings, "snapshots.probes=true", architecture=architecture), tmp_path / "a", draw=False)
    without = train(tiny(*settings, architecture=architecture), tmp_path / "b", draw=False)
    record = read(tmp_path / "a")
    assert [p.step for p in record.probes] == [s.step for s in record.snapshots] == [0, 4, 8]
    assert all(0 < p.frequency_share < 1 for p in record.probes)
    assert record.probes[0].gradient_noise > 0
    assert all(1 <= rank <= 16 for s in record.snapshots for rank in s.effective_rank)
    assert [line["loss"] for line in with_probes.record["history"]] == [
        line["loss"] for line in without.record["history"]
    ]
    assert with_probes.held_out_loss == without.held_out_loss
    assert read(tmp_path / "b").probes is None


def test_a_resumed_run_has_all_of_them(tmp_path):
    recipe = tiny(*PROBED, "snapshots.probes=true", "train.checkpoints=2")
    whole = train(recipe, tmp_path / "whole", draw=False).record["probes"]
    train(recipe, tmp_path / "cut", draw=False)
    (tmp_path / "cut" / "result.json").unlink()
    shutil.rmtree(tmp_path / "cut" / "checkpoints" / "checkpoint-8")
    assert train(recipe, tmp_path / "cut", resume=True, draw=False).record["probes"] == whole


def test_the_gradients_are_those_of_the_loss(tmp_path):
    """Each batch's, by a backward pass of its own; and batches are of all held-out texts, whole."""
    prepared = prepare(tiny(*PROBED, "snapshots.probes=true"), tmp_path, None)
    trainer = _trainer(prepared, None, print, nobody, start=True)
    (probes,) = [c for c in trainer.callback_handler.callbacks if isinstance(c, Probes)]
    assert len(torch.cat(probes.batches)) == len(prepared.held_out)
    model = prepared.model.eval()
    ids = probes.batches[1]
    (found,) = _gradients(model, [ids])
    loss = sum(F.cross_entropy(model(input_ids=row[None]).logits[0, :-1], row[1:]) for row in ids) / len(ids)
    loss.backward()
    for got, p in zip(found, model.parameters()):
        torch.testing.assert_close(got, p.grad)


def test_a_line_of_the_log_against_loops(tmp_path):
    """Step 0, from the fresh model itself: gradients by backward passes, states from the outputs."""
    recipe = tiny(*PROBED, "snapshots.probes=true", "train.seed=5")
    line = train(recipe, tmp_path / "run", draw=False).record["probes"][0]
    prepared = prepare(recipe, tmp_path / "other", None)
    (probes,) = [
        c
        for c in _trainer(prepared, None, print, nobody, start=True).callback_handler.callbacks
        if isinstance(c, Probes)
    ]
    model, rows, shares = prepared.model.eval(), [], []
    counts = np.bincount(prepared.blocks.tokens, minlength=384)
    logs = np.log(counts + 1.0)
    direction = (logs - logs.mean()) @ model.lm_head.weight.detach().double().numpy()
    for ids in probes.batches:
        model.zero_grad()
        out = model(input_ids=ids, labels=ids, output_hidden_states=True)
        out.loss.backward()
        rows.append(np.concatenate([p.grad.double().flatten().numpy() for p in model.parameters()]))
        z = out.hidden_states[-1].detach().double().numpy().reshape(-1, 16)
        shares += [(v @ direction) ** 2 / (v @ v) / (direction @ direction) for v in z]
    g, k = np.array(rows), len(rows)
    noise = ((g - g.mean(0)) ** 2).sum() / (k - 1)
    signal = (g.mean(0) ** 2).sum() - noise / k
    assert line["gradient_noise"] == pytest.approx(len(ids) * 31 * noise / signal, rel=1e-4)
    assert line["frequency_share"] == pytest.approx(np.mean(shares), rel=1e-5)


def test_a_weight_that_a_batch_does_not_use_has_no_gradient_there():
    """As an expert to which no token was sent: the gradients of two batches stay side by side."""

    class Experts(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.experts = torch.nn.ParameterList([torch.ones(4, 4), 2 * torch.ones(4, 4)])

        def forward(self, input_ids, use_cache):
            return {"logits": F.one_hot(input_ids, 4).float() @ self.experts[int(input_ids[0, 0])]}

    first, second = _gradients(Experts(), [torch.tensor([[0, 1, 2]]), torch.tensor([[1, 1, 2]])])
    assert [bool(g.any()) for g in (*first, *second)] == [True, False, False, True]


def test_one_held_out_block_is_not_enough(tmp_path):
    recipe = tiny(*PROBED, "snapshots.windows=1", "snapshots.probes=true", "data.held_out_tokens=32")
    with pytest.raises(ValueError, match="two held-out blocks, got 1: raise"):
        train(recipe, tmp_path / "run", draw=False)
