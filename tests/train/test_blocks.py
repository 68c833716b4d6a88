"""Blocks of tokens: against the slow way, with documents kept apart, and through damage to their files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from regularize.models import gpt2, llama
from transformers import ByT5Tokenizer

import decondense as dc
from decondense.train import token_files
from decondense.train.blocks import Blocks, Order, join
from decondense.train.held_out import documents_in
from decondense.train.sections import Data
from decondense.train.token_files import TokenFiles, articles

BYTES = ByT5Tokenizer()
DOCUMENTS = ["One.", "A second document, a little longer.", "  ", "drei – mit Umlauten: äöü", "4\n\n5", "six " * 20]


def write(path: Path, documents: list[str]) -> str:
    path.write_text("".join(json.dumps({"text": d}) + "\n" for d in documents))
    return str(path)


def prepare(texts: str | list[str], tokenizer: ByT5Tokenizer, *, context: int, **options: Any) -> Blocks:
    return TokenFiles([texts] if isinstance(texts, str) else texts, tokenizer, **options).blocks(context)


def slowly(documents: list[str]) -> tuple[list[int], list[int]]:
    """(tokens, where each document begins): one byte is one token, three special ones come before; 1 ends a text."""
    tokens, starts = [], []
    for document in documents:
        if document.strip():
            starts.append(len(tokens))
            tokens += [byte + 3 for byte in document.encode()] + [1]
    return tokens, starts


def test_against_the_slow_way(tmp_path):
    tokens, starts = slowly(DOCUMENTS)
    blocks = prepare(write(tmp_path / "a.jsonl", DOCUMENTS), BYTES, context=16, tokens=10**6, cache=tmp_path / "c")
    assert blocks.tokens.tolist() == tokens
    assert blocks.starts.tolist() == starts
    assert len(blocks) == len(tokens) // 16
    for block in range(len(blocks)):
        assert blocks.ids(block).tolist() == tokens[16 * block : 16 * block + 16]
        expected = [
            at - max([16 * block, *(s for s in starts if s <= at)]) for at in range(16 * block, 16 * block + 16)
        ]
        assert blocks.positions(block).tolist() == expected
        document = max(i for i, s in enumerate(starts) if s <= 16 * block)
        assert blocks.origin(block) == (
            f"block {block}: document {document}, from its token {16 * block - starts[document]}"
        )
    (used,) = blocks.texts
    assert (used["name"], used["documents"]) == (str(tmp_path / "a.jsonl"), 5)


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=12),
    context=st.integers(2, 17),
    first=st.integers(0, 5),
    number=st.integers(1, 5),
)
@settings(max_examples=60, deadline=None)
def test_a_part_is_what_it_was_in_the_whole(lengths, context, first, number):
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    whole = Blocks(np.arange(sum(lengths)), starts, context, [])
    last = min(first + number, len(whole))
    if first >= last:
        return
    part = whole.part(first, last)
    assert len(part) == last - first
    assert part.starts[0] == 0
    assert all(np.diff(part.starts) > 0)
    for block in range(len(part)):
        assert part.ids(block).tolist() == whole.ids(first + block).tolist()
        assert part.positions(block).tolist() == whole.positions(first + block).tolist()
    both = join([part, whole])
    assert len(both) == len(part) + len(whole)
    for block in range(len(both)):
        source = (part, block) if block < len(part) else (whole, block - len(part))
        assert both.ids(block).tolist() == source[0].ids(source[1]).tolist()
        assert both.positions(block).tolist() == source[0].positions(source[1]).tolist()


@pytest.mark.parametrize("spelt", ["", " </s> ", "<pad>", "<extra_id_3>", "< /s>"])
def test_bytes_are_those_of_the_tokenizer(tmp_path, spelt):
    """Also where a text spells out a special token, which the tokenizer takes for one, with the spaces around it."""
    documents = ["naïve — \x00\x7f日本語\n\n\t", f"a{spelt}b", "x <unk", f"{spelt}{spelt} \r\n end"]
    blocks = prepare(write(tmp_path / "a.jsonl", documents), BYTES, context=4, tokens=10**6, cache=tmp_path / "c")
    expected = [[*BYTES(document, add_special_tokens=False)["input_ids"], 1] for document in documents]
    assert blocks.tokens.tolist() == [i for ids in expected for i in ids]


def test_budget_and_several_texts(tmp_path):
    one, two = write(tmp_path / "1.jsonl", ["a" * 9, "b" * 9, "c" * 9]), write(tmp_path / "2.jsonl", ["d" * 9])
    options = {"context": 5, "cache": tmp_path / "c"}
    assert len(prepare(one, BYTES, tokens=11, **options).tokens) == 20  # whole documents
    both = prepare([one, two], BYTES, tokens=35, **options)
    assert both.starts.tolist() == [0, 10, 20, 30]
    assert [t["documents"] for t in both.texts] == [3, 1]
    assert [t["name"] for t in prepare([one, two], BYTES, tokens=30, **options).texts] == [one]


def test_a_long_document_is_tokenised_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(token_files, "PIECE", 10)
    documents = ["short", "line one\nline two is longer\n\nand three", "x" * 50]
    blocks = prepare(write(tmp_path / "a.jsonl", documents), BYTES, context=4, tokens=1000, cache=tmp_path)
    assert (blocks.tokens.tolist(), blocks.starts.tolist()) == slowly(documents)


def test_text_shorter_than_a_block(tmp_path):
    with pytest.raises(ValueError, match=r"must fill one block of 16 tokens, .* has 6 in all: give more text"):
        prepare(write(tmp_path / "a.jsonl", ["short"]), BYTES, context=16, tokens=100, cache=tmp_path)
    with pytest.raises(ValueError, match="must hold some words"):
        prepare(write(tmp_path / "a.jsonl", ["  "]), BYTES, context=16, tokens=100, cache=tmp_path)


def test_order_is_a_permutation_per_pass_by_seed():
    blocks = Blocks(np.arange(70), np.array([0]), 10, [])
    order = Order(blocks, 20, seed=3)
    passes = [order.order[:7], order.order[7:14], order.order[14:]]
    assert all(sorted(p) == list(range(7)) for p in passes[:2])
    assert passes[0].tolist() != passes[1].tolist()
    assert len(set(passes[2])) == 6
    assert order.order.tolist() == Order(blocks, 20, seed=3).order.tolist()
    assert order.order.tolist() != Order(blocks, 20, seed=4).order.tolist()
    assert order.order[:9].tolist() == Order(blocks, 9, seed=3).order.tolist()
    assert Order(blocks, 7, seed=None).order.tolist() == list(range(7))
    assert order[2]["input_ids"].tolist() == blocks.ids(int(order.order[2])).tolist()
    assert order[2]["labels"].tolist() == [-100, *order[2]["input_ids"].tolist()[1:]]
    assert order[2].keys() == {"input_ids", "labels"}


def test_blocks_and_pieces_of_documents_can_begin_with_a_token_of_their_own():
    """It stands where a token stood that is not predicted: the labels are the same, and so is the text itself."""
    blocks = Blocks(np.arange(40, dtype=np.int64), np.array([0, 25]), 10, [{"name": "a"}])
    plain, begun = Order(blocks, 4, seed=1), Order(blocks, 4, seed=1, begin=99)
    for i in range(4):
        assert begun[i]["input_ids"].tolist() == [99, *plain[i]["input_ids"].tolist()[1:]]
        assert begun[i]["labels"].tolist() == plain[i]["labels"].tolist()
    data = Data(context=10, held_out_documents=2)
    first, second = (document.tokens.tolist() for document in documents_in([blocks], data, 99))
    assert first == [99, *range(1, 10), 99, *range(11, 20), 99, *range(21, 25)]
    assert second == [99, *range(26, 35), 99, *range(36, 40)]
    assert blocks.tokens.tolist() == list(range(40))
    assert documents_in([blocks], data)[1].tokens.tolist() == list(range(25, 40))
    with pytest.raises(ValueError, match="leave one out"):
        Data(begin="bos", boundaries="isolated")


# ---- boundaries --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", [llama, gpt2])
def test_isolated_documents_have_the_loss_and_the_penalty_they_have_apart(family):
    """Two blocks of several documents in one batch: loss = mean over all labels of the documents alone, penalty =
    their penalties weighted by labels."""
    starts = np.array([0, 7, 12, 16, 20])
    tokens = np.random.default_rng(0).integers(0, 60, 32)
    blocks = Blocks(tokens, starts, 16, [])
    order = Order(blocks, 2, seed=None, isolated=True)
    batch = torch.utils.data.default_collate([order[0], order[1]])
    pieces = [(0, 7), (7, 12), (12, 16), (16, 20), (20, 32)]
    assert batch["position_ids"].flatten().tolist() == [i for low, high in pieces for i in range(high - low)]
    assert (batch["labels"] == -100).flatten().nonzero().flatten().tolist() == [low for low, _ in pieces]

    def run(weight: float, inputs: dict, items: int) -> tuple[float, float, dict[str, torch.Tensor]]:
        model = family().train()
        with dc.regularize(model, weight=weight, estimator="exact") as handle:
            out = model(**inputs, use_cache=False, num_items_in_batch=torch.tensor(items))
            out.loss.backward()
            last = {k: float(handle.last[k] * handle.last["share"]) for k in ("task_loss", "penalty")}
        return last["task_loss"], last["penalty"], {n: p.grad for n, p in model.named_parameters()}

    labels = 32 - len(pieces)
    packed = run(0.5, batch, labels)
    apart = []
    for low, high in pieces:
        ids = torch.from_numpy(tokens[low:high]).unsqueeze(0)
        first = torch.arange(high - low) == 0
        apart.append(run(0.5, {"input_ids": ids, "labels": torch.where(first, -100, ids)}, labels))
    assert packed[0] == pytest.approx(sum(a[0] for a in apart), rel=1e-5)
    assert packed[1] == pytest.approx(sum(a[1] for a in apart), rel=1e-5)
    for name, gradient in packed[2].items():
        torch.testing.assert_close(gradient, sum(a[2][name] for a in apart), rtol=1e-4, atol=1e-6)


def test_wikitext_is_split_into_articles():
    raw = (
        " \n = One = \n \n text , a = \n = b = \n \n = = Section = = \n \n more \n \n = Two = \n \n = = S = = \n\n x \n"
    )
    found = list(articles([raw]))
    assert [a.split("=")[1].strip() for a in found] == ["One", "Two"]
    assert "".join(found) == raw
    by_line = list(articles(raw.splitlines(keepends=True)))  # as the hub has it
    assert by_line == found
    assert list(articles(["no heading\n", " at all"])) == ["no heading\n at all"]


def test_wikitext_2_has_600_articles(shared):
    from decondense.text import iterate_documents

    _, stream = iterate_documents("wikitext-2:train", data=shared / "data")
    found = list(articles(stream))
    assert len(found) == 600
    assert all(a.lstrip().startswith("= ") for a in found)


# ---- files -------------------------------------------------------------------------------------------------------


@pytest.fixture
def counted(monkeypatch) -> list[int]:
    """How often a text was tokenised."""
    calls: list[int] = []
    own = TokenFiles._tokenise
    monkeypatch.setattr(TokenFiles, "_tokenise", lambda *a: (calls.append(1), own(*a))[1])
    return calls


def test_files_are_found_again_and_made_again_when_something_changed(tmp_path, counted):
    path = tmp_path / "a.jsonl"
    text, options = write(path, DOCUMENTS), {"context": 8, "tokens": 100, "cache": tmp_path / "c"}
    first = prepare(text, BYTES, **options)
    assert prepare(text, BYTES, **options).tokens.tolist() == first.tokens.tolist()
    assert prepare(text, BYTES, **options | {"context": 16}).tokens.tolist() == first.tokens.tolist()
    assert len(counted) == 1
    write(path, ["other " * 30])
    assert bytes((prepare(text, BYTES, **options).ids(0) - 3).tolist()) == b"other ot"
    assert len(counted) == 2
    prepare(text, BYTES, **options | {"tokens": 50})
    assert len(counted) == 3
    other = ByT5Tokenizer(extra_ids=0)
    prepare(text, other, **options)
    assert len(counted) == 4


def test_a_folder_of_files_is_known_by_all_of_them(tmp_path, counted):
    folder = tmp_path / "texts"
    folder.mkdir()
    write(folder / "1.jsonl", DOCUMENTS)
    options = {"context": 8, "tokens": 100, "cache": tmp_path / "c"}
    before = prepare(str(folder), BYTES, **options)
    write(folder / "1.jsonl", ["new " * 30])
    assert prepare(str(folder), BYTES, **options).tokens.tolist() != before.tokens.tolist()


@pytest.mark.parametrize("ending", ["tokens", "starts", "json"])
@pytest.mark.parametrize("damage", ["cut", "gone", "nonsense"])
def test_a_damaged_file_is_made_again(tmp_path, counted, ending, damage):
    text, cache = write(tmp_path / "a.jsonl", DOCUMENTS), tmp_path / "c"
    options = {"context": 8, "tokens": 100, "cache": cache}
    before = prepare(text, BYTES, **options).tokens.tolist()
    (file,) = cache.glob(f"*.{ending}")
    content = file.read_bytes()
    file.unlink()
    if damage != "gone":
        file.write_bytes(content[:-3] if damage == "cut" else b"{]")
    assert prepare(text, BYTES, **options).tokens.tolist() == before
    assert len(counted) == 2


def test_what_fails_leaves_no_files(tmp_path, monkeypatch):
    class Broken(ByT5Tokenizer):
        def __call__(self, text, **options):
            if isinstance(text, list):
                raise OSError("the tokenizer is broken")
            return super().__call__(text, **options)

    text, cache = write(tmp_path / "a.jsonl", DOCUMENTS), tmp_path / "c"
    with pytest.raises(OSError, match="the tokenizer is broken"):
        prepare(text, Broken(), context=8, tokens=100, cache=cache)
    assert not [p for p in cache.iterdir() if p.suffix not in (".lock", ".sha256")]
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"could not be written into .*: not a directory; set DECONDENSE_CACHE"):
        prepare(text, BYTES, context=8, tokens=100, cache=tmp_path / "file" / "c")

    def closed(path):  # a stand-in, which binds root too: the folder is there, and of somebody else
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(token_files, "locked", closed)
    with pytest.raises(OSError, match=r"could not be written into '.*c': permission denied; set DECONDENSE_CACHE"):
        prepare(text, BYTES, context=8, tokens=100, cache=cache)


def test_large_vocabularies_have_wide_tokens(tmp_path):
    class Wide(ByT5Tokenizer):
        def __len__(self) -> int:
            return 100_000

        def __call__(self, text, **options):
            found = super().__call__(text, **options)
            if isinstance(text, list):
                found["input_ids"] = [[i + 70_000 for i in ids] for ids in found["input_ids"]]
            return found

    blocks = prepare(write(tmp_path / "a.jsonl", DOCUMENTS), Wide(), context=8, tokens=100, cache=tmp_path)
    assert blocks.ids(0).tolist() == [ord(c) + 3 + 70_000 for c in "One."] + [1] + [ord(c) + 70_003 for c in "A s"]
