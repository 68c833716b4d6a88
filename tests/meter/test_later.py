"""What a GPU is asked for and not waited for: the same numbers, every state apart, and the same errors."""

from __future__ import annotations

import copy

import pytest
import torch

from decondense.meter import later, run
from decondense.meter.later import Later
from decondense.meter.run import measure
from decondense.meter.spectrum import spectral_statistics
from decondense.meter.statistics import FINE_BINS, window_statistics

SMALL = {"windows": 5, "tokens": 40, "seed": 3, "bootstrap": 200, "batch": 2}


@pytest.fixture
def waiting(monkeypatch):
    """As on a GPU, on whatever is here; no more than three states side by side."""
    monkeypatch.setattr(later, "fused", lambda z, backend: True)
    monkeypatch.setattr(later, "SIDE_BY_SIDE", 3 * 2 * 40 * 64 * 4)


def same(found, wanted, **tolerance):
    for mine, theirs in zip(found.record.states, wanted.record.states, strict=True):
        numbers = {name: value for name, value in theirs.row().items() if isinstance(value, float)}
        assert len(numbers) > 10
        for name, value in numbers.items():
            assert mine.row()[name] == pytest.approx(value, **tolerance), name


@pytest.mark.parametrize("spectral", [False, True])
def test_the_numbers_are_those_of_one_state_after_the_other(stories, prose, waiting, monkeypatch, spectral):
    found = measure(stories, text=prose, spectral=spectral, **SMALL)
    monkeypatch.setattr(later, "fused", lambda z, backend: False)
    wanted = measure(stories, text=prose, spectral=spectral, **SMALL)
    assert found.record.histogram.counts == wanted.record.histogram.counts
    same(found, wanted, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("kind", ["plain", "padded", "packed"])
def test_batches_give_the_numbers_of_one_state_after_the_other(stories, waiting, monkeypatch, kind):
    """Padded: sequences of a batch, two of them alike in length, go side by side with those of the next state."""
    ids = torch.randint(3, 400, (6, 12), generator=torch.Generator().manual_seed(0))
    batches = [{"input_ids": part} for part in ids.split(4)]
    for batch in batches:
        if kind == "padded":
            lengths = torch.tensor([12, 7, 7, 9])[: len(batch["input_ids"])]
            batch["attention_mask"] = (torch.arange(12) < lengths[:, None]).long()
        if kind == "packed":
            batch["position_ids"] = torch.cat([torch.arange(5), torch.arange(7)]).expand(len(batch["input_ids"]), 12)
    found = measure(stories[0], inputs=batches, spectral=True, bootstrap=200)
    monkeypatch.setattr(later, "fused", lambda z, backend: False)
    wanted = measure(stories[0], inputs=batches, spectral=True, bootstrap=200)
    assert found.record.histogram.counts == wanted.record.histogram.counts
    assert found.record.windows == wanted.record.windows
    same(found, wanted, rel=1e-6, abs=1e-9)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_a_gpu(stories, prose):
    model, tokenizer = stories
    found = measure((copy.deepcopy(model).cuda(), tokenizer), text=prose, spectral=True, **SMALL)
    wanted = measure(stories, text=prose, spectral=True, **SMALL)
    same(found, wanted, rel=1e-3, abs=1e-4)


def test_states_stay_apart_in_any_shape(waiting):
    """One of another width, one in 16 bits, more than there is room for; and a model may write in a state it gave."""
    g = torch.Generator().manual_seed(0)
    states = [torch.randn(2, 9, width, generator=g) + 0.3 * k for k, width in enumerate((8, 8, 6, 8, 8))]
    states[3] = states[3].bfloat16()
    some = Later(spectral=True)
    for number, z in enumerate(states):
        some.add(number, given := z.clone(), "")
        given.zero_()
    some.launch()
    parts = list(some.results())
    assert [numbers for numbers, _ in parts] == [[0, 1], [2], [3, 4]]
    found = {number: (part.scalars[k], part.counts[k]) for numbers, part in parts for k, number in enumerate(numbers)}
    for number, z in enumerate(states):
        scalars, counts = window_statistics(z)
        assert torch.equal(found[number][1], counts)
        assert counts.shape == (FINE_BINS,)
        wanted = torch.cat([scalars, spectral_statistics(z)], 1)
        torch.testing.assert_close(found[number][0], wanted, rtol=1e-6, atol=1e-9)


def test_no_more_states_side_by_side_than_there_is_room_for(waiting, monkeypatch):
    monkeypatch.setattr(later, "SIDE_BY_SIDE", 4 * 2 * 5 * 4 * 3)
    some = Later(spectral=False)
    for number in range(7):
        some.add(number, torch.randn(2, 5, 4), "")
    some.launch()
    assert [len(part.states) for part in some.sent] == [3, 3, 1]


def test_no_more_windows_side_by_side_than_a_grid_has_rows(waiting, monkeypatch):
    """The kernel has a row for each, and a GPU refuses more than 65,535 of them."""
    monkeypatch.setattr(later, "SIDE_BY_SIDE", 256 * 2**20)
    some = Later(spectral=False)
    for number in range(3):
        some.add(number, torch.ones(30_000, 2, 1), "")
    some.launch()
    assert [len(part.states) for part in some.sent] == [2, 1]


@pytest.mark.parametrize("spectral", [False, True])
def test_a_state_that_is_not_finite_is_named(waiting, stories, prose, spectral):
    model, tokenizer = copy.deepcopy(stories[0]), stories[1]
    with torch.no_grad():
        model.layers[2].mlp.down_proj.weight[0] = float("nan")
    with pytest.raises(ValueError, match=r"hidden state 3 of windows 0–1 must be finite, .* in the weights"):
        measure((model, tokenizer), text=prose, spectral=spectral, **SMALL)


@pytest.mark.parametrize(("scale", "way"), [(1e30, "at most"), (1e-30, "at least")])
def test_a_state_that_cannot_be_squared_is_named(waiting, stories, prose, scale, way):
    model, tokenizer = copy.deepcopy(stories[0]), stories[1]
    model.layers[2].register_forward_hook(lambda module, args, out: out * scale, prepend=True)
    with pytest.raises(ValueError, match=f"hidden state 3 of windows 0–1 must have a largest entry of {way}"):
        measure((model, tokenizer), text=prose, **SMALL)


def test_the_next_batch_is_launched_before_this_one_is_waited_for(waiting, stories, prose, monkeypatch):
    order: list[str] = []
    plain, results = run._batch, Later.results
    monkeypatch.setattr(run, "_batch", lambda *some: (order.append("launched"), plain(*some))[1])
    monkeypatch.setattr(Later, "results", lambda self: (order.append("waited"), results(self))[1])
    measure(stories, text=prose, **SMALL)
    assert order == ["launched", "launched", "waited", "launched", "waited", "waited"]
