"""The held-out loss by document, by text, by frequency and by position, against a loop in float64."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from decondense.train import train
from decondense.train.held_out import Document, frequency_deciles, one_document
from decondense.train.sections import Data
from train.runs import tiny

CONTEXT = 32
LENGTHS = {"one": [5, 40, 100, 200, 3], "two": [64, 64, 31, 33, 90, 7]}


def write(path: Path, lengths: list[int]) -> str:
    """Documents of so many bytes; one byte is one token, and the separator follows."""
    draw = np.random.default_rng(len(lengths))
    documents = ["".join(map(chr, draw.integers(97, 123, n))) for n in lengths]
    path.write_text("".join(json.dumps({"text": d}) + "\n" for d in documents))
    return str(path)


def test_frequency_deciles_by_hand():
    tokens = np.repeat([3, 1, 0, 4], [50, 30, 15, 5])
    assert frequency_deciles(tokens, 6).tolist() == [8, 6, 9, 2, 9, 9]


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_against_a_loop_in_float64(architecture, tmp_path, cache):
    names = {key: write(tmp_path / f"{key}.jsonl", lengths) for key, lengths in LENGTHS.items()}
    recipe = tiny(
        f"data={{text: pydoc, tokens: 1024, held_out: {{{names['one']}: 1, {names['two']}: 2}}, held_out_tokens: 96, "
        f"held_out_documents: 4, held_out_document_tokens: 100, context: {CONTEXT}}}",
        architecture=architecture,
    )
    run = train(recipe, tmp_path / "run", cache=cache)
    model = transformers.AutoModelForCausalLM.from_pretrained(run.folder / "model").double().eval()
    rows, totals = [], {}
    position = [[0.0, 0] for _ in range(8)]
    frequency = [[0.0, 0] for _ in range(10)]
    training = train_tokens(run.record, cache)
    deciles = frequency_deciles(training, model.config.vocab_size)
    for name in names.values():
        texts = [json.loads(line)["text"] for line in Path(name).read_text().splitlines()][:4]
        for number, document in enumerate(texts):
            tokens = ([ord(c) + 3 for c in document] + [1])[:100]
            losses = []
            for low in range(0, len(tokens), CONTEXT):
                piece = tokens[low : low + CONTEXT]
                with torch.no_grad():
                    logits = model(input_ids=torch.tensor([piece])).logits[0]
                for at in range(1, len(piece)):
                    loss = -float(torch.log_softmax(logits[at - 1], 0)[piece[at]])
                    losses.append(loss)
                    for sums, group in ((position, at * 8 // CONTEXT), (frequency, deciles[piece[at]])):
                        sums[group][0] += loss
                        sums[group][1] += 1
            rows.append((name, number, len(losses), sum(losses) / len(losses)))
            total = totals.setdefault(name, [])
            total += losses
    record = run.record
    assert [(r["text"], r["document"], r["tokens"]) for r in record["held_out_documents"]] == [r[:3] for r in rows]
    for row, expected in zip(record["held_out_documents"], rows):
        assert row["loss"] == pytest.approx(expected[3], rel=1e-5)
    assert record["held_out_texts"].keys() == totals.keys()
    for name, losses in totals.items():
        assert record["held_out_texts"][name] == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    for name, sums in (("position", position), ("frequency", frequency)):
        assert [b["tokens"] for b in record["held_out_by"][name]] == [n for _, n in sums]
        for found, (loss, n) in zip(record["held_out_by"][name], sums):
            assert found["loss"] is None if not n else math.isclose(found["loss"], loss / n, rel_tol=1e-5)


def train_tokens(record, cache) -> np.ndarray:
    """The tokens of the training text, found by their length among the files of the cache."""
    for file in cache.glob("*.json"):
        about = json.loads(file.read_text())
        if isinstance(about, dict) and [t.get("sha256") for t in about.get("texts", [])] == [
            t["sha256"] for t in record["text"]
        ]:
            return np.fromfile(file.with_suffix(".tokens"), np.uint16)
    raise AssertionError("no token file of the training text")


def test_no_documents_where_none_are_asked_for(tmp_path, cache):
    recipe = tiny(
        f"data={{text: pydoc, tokens: 512, held_out: pydoc, held_out_documents: 0, held_out_tokens: 96, "
        f"context: {CONTEXT}}}"
    )
    assert "held_out_documents" not in train(recipe, tmp_path / "run", cache=cache).record


def test_a_plain_file_that_is_one_document_is_named():
    documents = [Document("a.txt", 0, np.arange(7)), Document("b.jsonl", 0, np.arange(5))]
    documents += [Document("c.jsonl", number, np.arange(3)) for number in (0, 1)]
    assert one_document(documents, Data(text="pydoc", held_out_documents=20)) == {"a.txt": 7}
    assert one_document(documents, Data(text="pydoc", held_out_documents=1)) == {}
