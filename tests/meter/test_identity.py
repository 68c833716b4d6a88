"""The identity of what `measure(model, inputs=…)` reads: by it two results are compared in pairs of sequences."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from regularize.models import llama, tokens
from tiny_models import LENGTHS, build, padded
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import OPTConfig, OPTModel

import decondense as dc

measure = partial(dc.measure, bootstrap=20)


def test_the_text_of_inputs_is_their_sequences_however_they_are_batched():
    """So two measurements are compared in pairs of sequences: with other batches they were of another text."""
    model, other, ids = build("gpt2"), build("llama"), torch.randint(3, 97, (12, 8))
    batched = [ids, list(ids.split(4)), DataLoader(TensorDataset(ids), batch_size=5), list(ids.split(1))]
    whole, *rest = (measure(model, inputs=inputs) for inputs in batched)
    for one in rest:
        assert one.record.text.sha256 == whole.record.text.sha256
        difference = dc.compare([whole, one]).difference
        assert difference.same_windows
        assert difference.mean_cosine.value == pytest.approx(0, abs=1e-6)
    assert dc.compare([whole, measure(other, inputs=batched[1])]).difference.same_windows
    assert not dc.compare([whole, measure(model, inputs=ids.flip(0))]).difference.same_windows
    part = [measure(model, inputs=inputs, windows=10).record.text.sha256 for inputs in (*batched, ids[:10])]
    assert len(set(part)) == 1, "what is not read is no part of it"


def test_padding_and_what_one_row_says_for_all_are_no_part_of_a_sequence():
    model, batch = build("llama"), padded()
    batch["position_ids"] = torch.arange(9)[None]
    alone = [{"input_ids": batch["input_ids"][i : i + 1, :n]} for i, n in enumerate(LENGTHS)]
    alone = [one | {"attention_mask": torch.ones_like(one["input_ids"])} for one in alone]
    alone = [one | {"position_ids": torch.arange(n)[None]} for one, n in zip(alone, LENGTHS)]
    found = [measure(model, inputs=inputs) for inputs in (batch, alone)]
    assert found[0].record.text.sha256 == found[1].record.text.sha256
    assert dc.compare(found).difference.same_windows
    kept = [torch.arange(5)[:, None].expand(5, 9) != row for row in (0, 1)]
    first, second = (measure(model, inputs=batch, mask=lambda _, kept=one: kept) for one in kept)
    assert not dc.compare([first, second]).difference.same_windows, "each leaves out another sequence"
    fewer = measure(model, inputs=batch | {"attention_mask": batch["attention_mask"].flip(0)})
    assert fewer.record.text.sha256 != found[0].record.text.sha256


@pytest.mark.parametrize(("name", "noted"), [("gpt2", True), ("bert", True), ("llama", False), ("opt", False)])
def test_padding_before_a_sequence_is_noted_where_it_shifts_positions(name, noted):
    """The identity leaves padding out, at both ends: without a word two measurements of other numbers were paired."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 48, "vocab_size": 97}
    tokens_of = {"word_embed_proj_dim": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
    model = OPTModel(OPTConfig(**sizes, **tokens_of)).eval() if name == "opt" else build(name)
    alone = {"input_ids": tokens(3, 8), "attention_mask": torch.ones(3, 8, dtype=torch.long)}
    before = {key: nn.functional.pad(value, (5, 0)) for key, value in alone.items()}
    empty = {key: torch.cat([value, torch.zeros_like(value[:1])]) for key, value in alone.items()}
    a, b, c = (measure(model, inputs=one) for one in (alone, before, empty))
    assert a.record.text.sha256 == b.record.text.sha256
    assert (abs(a.mean_cosine - b.mean_cosine).max() > 1e-4) == noted, "as the model numbers its positions"
    words = f"sequences begin with padding, from which {type(model).__name__} counts its positions: the numbers depend"
    assert [any(note.startswith(words) for note in one.notes) for one in (a, b, c)] == [False, noted, False]
    placed = before | {"position_ids": (before["attention_mask"].cumsum(1) - 1).clamp_min(0)}
    found = measure(model, inputs=placed)
    assert found.mean_cosine == pytest.approx(a.mean_cosine, abs=1e-5)
    assert not any(note.startswith(words) for note in found.notes)


def test_packed_rows_are_the_same_documents_in_any_batches():
    model, ids = llama(), tokens(4, 12)
    positions = torch.cat([torch.arange(5), torch.arange(7)]).repeat(4, 1)
    batches = [{"input_ids": i, "position_ids": p} for i, p in zip(ids.split(3), positions.split(3))]
    found = [measure(model, inputs=x, windows=7) for x in ({"input_ids": ids, "position_ids": positions}, batches)]
    assert found[0].record.text.sha256 == found[1].record.text.sha256
    assert dc.compare(found).difference.same_windows


def test_what_a_decoder_reads_is_told_apart_and_its_padding_is_not():
    """The encoder's mask had cut the labels: what the decoder read beyond it was no part of the identity."""
    model, ids, labels = build("t5"), tokens(2, 8), tokens(2, 8).flip(1)
    batch = {"input_ids": ids, "attention_mask": (torch.arange(8) < 5).long().expand(2, 8)}

    def sha(**more) -> str:
        return measure(model, inputs=batch | more).record.text.sha256

    def changed(given: torch.Tensor, at: int, value: int) -> torch.Tensor:
        given = given.clone()
        given[:, at] = value
        return given

    last = torch.nn.functional.pad(labels[:, :6], (0, 2), value=-100)
    shorter = torch.nn.functional.pad(labels[:, :6], (0, 4), value=-100)
    assert sha(labels=labels) != sha(labels=changed(labels, 6, 90))
    assert sha(labels=last) == sha(labels=shorter) == sha(labels=labels[:, :6])
    assert sha(labels=last) != sha(labels=changed(last, 2, -100)), "which is read but does not count"
    read = {"decoder_input_ids": labels, "labels": last}
    assert sha(**read) == sha(**read | {"decoder_input_ids": changed(labels, 7, 90)})
    assert sha(**read) != sha(**read | {"decoder_input_ids": changed(labels, 5, 90)})
    masked = {"labels": labels, "decoder_attention_mask": torch.arange(8).expand(2, 8).sub(2).clamp(0, 1)}
    assert sha(**masked) != sha(**masked | {"labels": changed(labels, 2, 90)}), "the first token is the label before it"
    cut = {key: value[:, :5] for key, value in batch.items()}
    assert sha() == measure(model, inputs=cut).record.text.sha256


def test_a_token_left_out_between_others_is_a_part_of_the_identity():
    """A mask with a hole had the identity of the sequence without the token, whose positions are others."""
    model, ids = build("gpt2"), tokens(2, 8)
    hole = torch.ones_like(ids)
    hole[:, 3] = 0
    kept = hole[0].bool()
    found = [{"input_ids": ids, "attention_mask": hole}, {"input_ids": ids[:, kept], "attention_mask": hole[:, kept]}]
    one, other = (measure(model, inputs=inputs) for inputs in found)
    assert one.mean_cosine != pytest.approx(other.mean_cosine, abs=1e-4)
    assert not dc.compare([one, other]).difference.same_windows


def test_a_mask_in_a_mapping_is_a_part_of_the_identity():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.a = nn.Embedding(97, 8), nn.Linear(8, 8)

        def forward(self, input_ids, attention_mask):
            return self.a(self.embed(input_ids))

    ids, mask = tokens(2, 8), padded()["attention_mask"][3:, :8]
    batches = [{"input_ids": ids, "attention_mask": {"full_attention": m}} for m in (mask, torch.ones_like(ids))]
    found = [measure(Masked(), inputs=batch, modules=["embed", "a"]).record for batch in batches]
    assert [[w["tokens"] for w in one.windows] for one in found] == [[6, 7], [8, 8]]
    assert found[0].text.sha256 != found[1].text.sha256
