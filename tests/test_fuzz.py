"""Junk of every sort, bounded to seconds: what is read is read, what is not is one sentence."""

from __future__ import annotations

import copy
import json
import shutil

import numpy as np
import pytest
from train.runs import content, tiny

from decondense import models
from decondense.files import flat
from decondense.text import open_text
from decondense.train import recipe_from

VALUES = (None, -1, 10**9, 1e400, "x", "../../x", "\0", [], [None], {}, {"x": {}}, True)


def refused(call, *arguments):
    """Whether the call was refused, which must be in one sentence."""
    said = None
    try:
        call(*arguments)
    except (ValueError, OSError) as error:
        said = str(error)
    assert said is None or len(said.strip().splitlines()) == 1, said
    return said is not None


def test_recipes():
    keys = flat(tiny("loss={name: dispersion}", "baselines.active_forgetting.every=2").model_dump(mode="json"))
    number = 0
    for key in keys:
        for value in VALUES:
            recipe = copy.deepcopy(content())
            *sections, last = key.split(".")
            inner = recipe
            for section in sections:
                inner = inner.setdefault(section, {})
            inner[last] = value
            number += refused(recipe_from, recipe)
    assert number > 200


@pytest.mark.filterwarnings("ignore:.*read as Latin-1")
def test_texts(tmp_path):
    rng = np.random.default_rng(0)
    whole = b'{"text": "Some words."}\n' * 20
    for ending in ("txt", "jsonl", "json", "csv", "tsv", "parquet", "txt.gz", "jsonl.xz"):
        for number in range(12):
            damaged = bytearray(whole)
            for at in rng.integers(0, len(whole), number):
                damaged[at] = rng.integers(0, 256)
            file = tmp_path / f"{number}.{ending}"
            file.write_bytes([b"\xef\xbb\xbf", b"\0", b"", b"a" * 1_000_000][number % 4] + bytes(damaged))
            refused(open_text, file)


@pytest.mark.parametrize("damage", ["header", "config"])
def test_model_folders(tmp_path, shared, damage):
    whole = shared / "models" / "stories260K"
    folder = tmp_path / "model"
    shutil.copytree(whole, folder)
    config = json.loads((whole / "config.json").read_text())
    if damage == "header":
        weights = (whole / "model.safetensors").read_bytes()
        long = (10**9).to_bytes(8, "little") + weights[8:]
        for junk in (b"", b"\xff" * 8, weights[:4], weights[:200], b"\0" * 100, long):
            (folder / "model.safetensors").write_bytes(junk)
            assert refused(lambda: models.load(folder, device="cpu")), junk[:8]
        return
    for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"):
        for value in (-1, 10**9, "x", [None]):
            (folder / "config.json").write_text(json.dumps(config | {key: value}))
            assert refused(lambda: models.load(folder, device="cpu")), (key, value)
