"""The demo says what its numbers are, whichever way they come out; the whole of it runs without a real model."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from by_hand import script

ROOT = Path(__file__).resolve().parent.parent
DEMO = ROOT / "examples" / "demo.py"


@pytest.fixture(scope="module")
def demo():
    return script(DEMO)


@pytest.mark.parametrize(
    ("moved", "seeds", "verdict"),
    [(-0.2, 3, "lower"), (0.2, 3, "higher"), (0.0, 3, "undecided"), (-0.2, 2, "undecided")],
)
def test_the_verdict_follows_the_numbers(demo, monkeypatch, moved, seeds, verdict):
    rng = np.random.default_rng(0)
    base = 5 + 0.3 * rng.standard_normal(30) + 0.01 * rng.standard_normal((seeds, 30))
    losses = {"cross-entropy": base, "dispersion": base + moved + 0.01 * rng.standard_normal((seeds, 30))}
    curves = {"cross-entropy": np.full((seeds, 5), 0.6), "dispersion": 0.6 + moved + 0.01 * rng.random((seeds, 5))}
    if not moved:
        curves["dispersion"] = 0.6 + 0.01 * np.outer(np.arange(seeds) - (seeds - 1) / 2, np.ones(5))
        losses["dispersion"] -= (losses["dispersion"] - base).mean()
    monkeypatch.setattr(demo, "snapshots", lambda runs, which: curves[runs[0].arm])
    runs = {arm: [SimpleNamespace(arm=arm, record={"tokens": 4096})] for arm in losses}
    real = SimpleNamespace(label="a model", layers=2, mean_cosine=np.array([0.1, 0.7, 0.5]))
    lines = demo.summary(real, runs, losses)
    assert len(lines) <= 15
    assert max(map(len, lines)) <= 100
    (found,) = [line.split() for line in lines if line.split()[0] == "verdict"]
    assert found == ["verdict", verdict, verdict]
    assert lines[4].split("  ")[-1].strip() == "held-out loss by document (lower is better)"
    assert "   Loss: nats per token, mean of 30 documents never trained on" in lines[9]
    assert "0.10 at the embedding, 0.70 at layer 1 of 2" in lines[1]


def test_what_it_says_of_longer_runs_is_what_was_found():
    """`Careful`, the last paragraph."""
    folder = ROOT / "results" / "studies" / "screen"
    assert json.loads((folder / "result.json").read_text(encoding="utf-8"))["verdict"] == "undecided"
    with (folder / "table.csv").open(encoding="utf-8", newline="") as file:
        rows = {row["arm"]: float(row["minus_cross_entropy"]) for row in csv.DictReader(file)}
    assert rows["dispersion all 0.1 @ 0.002"] > 0


@pytest.mark.slow
def test_the_demo_runs(tmp_path):
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    from decondense.text import open_text
    from decondense.train.tokenizer import END, train_bpe

    words = open_text("pydoc").joined
    data, model = tmp_path / "wikitext-2-raw", tmp_path / "tiny"
    data.mkdir()
    for split, text in (("train", words[:200_000]), ("test", words[200_000:260_000])):
        (data / f"{split}.raw").write_text(f" = {split} = \n\n{text}", encoding="utf-8")
    bpe = PreTrainedTokenizerFast(tokenizer_object=train_bpe(iter([words[:50_000]]), 300), eos_token=END)
    bpe.save_pretrained(model)
    GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=len(bpe))).save_pretrained(model)
    environment = os.environ | {"DECONDENSE_DATA": str(tmp_path), "DECONDENSE_CACHE": str(tmp_path / "cache")}
    run = subprocess.run(
        [sys.executable, str(DEMO), "--tokens", "2048", "--seeds", "1", "2", "--model", str(model)], cwd=tmp_path,
        env=environment, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-2000:]
    assert "Measuring" in run.stdout.splitlines()[0]
    assert re.search(r"^ +verdict +undecided +undecided$", run.stdout, re.MULTILINE)  # two seeds are too few
    assert (tmp_path / "demo-out" / "demo.png").read_bytes()[:4] == b"\x89PNG"
    assert "what the demo saw" in (tmp_path / "demo-out" / "report.html").read_text(encoding="utf-8")
