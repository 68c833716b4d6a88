"""Which sequences and tokens of a batch `dc.monitor` reads."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from regularize.models import gpt2, llama, tokens
from torch import nn

import decondense as dc
from decondense.watch.reading import METRICS
from watch.test_watched_metrics import loops


def test_packed_rows_are_cut_into_documents():
    """As the loss cuts them: no mask, and positions that restart. With a mask a row is a sequence."""
    model, ids = llama().train(), tokens(2, 12)
    positions = torch.cat([torch.arange(5), torch.arange(7)]).repeat(2, 1)
    states = [z.detach().double().numpy() for z in model(ids, position_ids=positions, output_hidden_states=True)[-1]]
    with dc.monitor(model, sequences=3) as watch:
        model(ids, position_ids=positions)
    (reading,) = watch.readings
    for i, z in enumerate(states):
        wanted = loops([z[0, :5], z[0, 5:], z[1, :5]])
        found = {name: reading.table[name][i] for name in METRICS}
        assert found == pytest.approx({name: wanted[name] for name in METRICS}, rel=1e-4, abs=1e-5)
    with dc.monitor(model, sequences=3) as watch:
        model(ids, position_ids=positions, attention_mask=torch.ones_like(ids))
    wanted = loops([states[1][0], states[1][1]])["mean_cosine"]
    assert watch.readings[0].table["mean_cosine"][1] == pytest.approx(wanted, abs=1e-2)
    assert watch.readings[0].table["mean_cosine"][1] != reading.table["mean_cosine"][1]


def test_of_several_batches_the_first_sequences_count():
    model, ids = gpt2(), tokens(8)
    tables = []
    for inputs in (ids[:4], [ids[:4], ids[4:]], [ids[:3], ids[3:5], ids[5:]]):
        with dc.monitor(model, inputs=inputs, sequences=4) as watch:
            tables.append(watch.readings[0].table["mean_cosine"])
    for table in tables[1:]:
        np.testing.assert_allclose(table, tables[0], atol=1e-6)


def test_a_mask_that_tells_no_padding_is_named_once():
    """Watching is no reason to end a training: every token counts."""
    model, ids = llama().train(), tokens()
    pairs = torch.ones(4, 1, 12, 12, dtype=torch.bool).tril()
    with dc.monitor(model, every=1) as watch, warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        optimiser = torch.optim.SGD(model.parameters(), lr=0.0)
        for mask in (pairs, pairs, None):
            model(input_ids=ids, attention_mask=mask, labels=ids).loss.backward()
            optimiser.step()
    (told,) = [one for one in seen if "to tell padding from tokens" in str(one.message)]
    assert str(told.message) == (
        "attention_mask must be (batch, tokens) = (4, 12) to tell padding from tokens, got (4, 1, 12, 12): every token "
        "counts; pass the two-dimensional mask where there is padding."
    )
    tables = [one.table["mean_cosine"] for one in watch.readings]
    assert tables[0] == pytest.approx(tables[2])


def test_a_mask_of_floats_is_read_as_the_loss_reads_it():
    """1 where a token counts; what is added to attention's logits, 0 there, would be read as its opposite."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])

        def forward(self, x: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            return self.blocks[1](self.blocks[0](x))

    torch.manual_seed(0)
    model, x = Masked().train(), torch.randn(2, 6, 8)
    counts = torch.arange(6) < torch.tensor([4, 6])[:, None]
    cosines = []
    for mask in (counts, counts.float()):
        with dc.monitor(model, modules="blocks.*") as watch:
            model(x, mask)
        cosines.append(watch.readings[0].table["mean_cosine"])
    assert cosines[0] == pytest.approx(cosines[1])
    for strange, words in (
        (torch.where(counts, 0.0, -1e9), "must be 1 where a token counts and 0 at padding, got -1e\\+09"),
        (counts.numpy(), "must be \\(batch, tokens\\) = \\(2, 6\\) to tell padding from tokens, got ndarray"),
    ):
        with dc.monitor(model, modules="blocks.*") as watch, pytest.warns(UserWarning, match=words):
            model(x, strange)
        with dc.monitor(model, modules="blocks.*") as whole:
            model(x, torch.ones(2, 6))
        assert watch.readings[0].table["mean_cosine"] == pytest.approx(whole.readings[0].table["mean_cosine"])
