"""A tokenizer that is learnt from the recipe's own text."""

from __future__ import annotations

import json

import numpy as np
import pytest
import transformers

from decondense.train import recipe_from, tokenizer, train
from train.runs import CONFIGS, content, tiny, weights


def recipe(*settings: str, config: dict | None = None):
    small = content("model.tokenizer={train: 300, characters: 20K}", *settings)
    small["model"]["config"].pop("vocab_size")
    small["model"]["config"] |= config or {}
    return recipe_from(small)


def test_it_is_learnt_once_saved_with_the_model_and_fits_the_architecture(tmp_path, cache, monkeypatch):
    run = train(recipe(), tmp_path / "run", cache=cache)
    saved = transformers.AutoTokenizer.from_pretrained(run.folder / "model")
    assert (len(saved), saved.eos_token, saved.eos_token_id) == (300, "<|endoftext|>", 0)
    config = json.loads((run.folder / "model" / "config.json").read_text())
    assert (config["vocab_size"], config["eos_token_id"]) == (300, 0)
    words = "Übung: def f(x):\n\n    return x  # naïve\t"
    assert saved.decode(saved(words)["input_ids"]) == words
    assert len(saved("the the the the")["input_ids"]) < 15  # merges, not bytes

    monkeypatch.setattr(tokenizer, "train_bpe", lambda *a: pytest.fail("learnt again"))
    again = train(recipe("train.seed=2"), tmp_path / "again", cache=cache)
    assert transformers.AutoTokenizer.from_pretrained(again.folder / "model").get_vocab() == saved.get_vocab()


def test_every_text_teaches_its_share(tmp_path):
    texts = {}
    for word in "xyz":
        path = tmp_path / f"{word}.jsonl"
        path.write_text("".join(json.dumps({"text": word * 50}) + "\n" for _ in range(40)))
        texts[str(path)] = {"x": 0.5, "y": 0.25, "z": 0.25}[word]
    beginnings = "".join(tokenizer._beginnings(texts, 1000, None))
    assert [beginnings.count(word) for word in "xyz"] == [500, 250, 250]


def test_a_vocabulary_that_is_given_stays(tmp_path, cache):
    run = train(recipe(config={"vocab_size": 512}), tmp_path / "run", cache=cache)
    assert json.loads((run.folder / "model" / "config.json").read_text())["vocab_size"] == 512
    assert np.isfinite(run.held_out_loss)


@pytest.mark.parametrize("architecture", ["gpt2", "llama", "olmo2"])
def test_a_model_of_bytes_names_their_special_tokens_and_no_others(architecture, tmp_path, cache):
    """Those that the architecture's configuration has by default are of another tokenizer, or above the vocabulary."""
    small = CONFIGS["gpt2" if architecture == "gpt2" else "llama"]
    run = train(tiny(architecture=architecture, config=small), tmp_path / "run", cache=cache)
    config = transformers.AutoConfig.from_pretrained(run.folder / "model")
    generation = transformers.GenerationConfig.from_pretrained(run.folder / "model")
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (None, 1, 0)
    assert (generation.bos_token_id, generation.eos_token_id) == (None, 1)
    embeddings = next(v for k, v in weights(run.folder).items() if k.endswith(("embed_tokens.weight", "wte.weight")))
    assert embeddings.any(1).all()  # none is padding by default, which would be 0 for ever
