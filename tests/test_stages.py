"""examples/stages.py: the questions, the likelihood of the answers by hand, two stages of TRL, and the conclusion."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from by_hand import script

FILE = Path(__file__).parents[1] / "examples" / "stages.py"


@pytest.fixture(scope="module")
def stages():
    return script(FILE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A Llama of two layers that reads bytes."""
    from transformers import ByT5Tokenizer, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=384, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
        intermediate_size=32, max_position_embeddings=256, bos_token_id=1, eos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    place = tmp_path_factory.mktemp("model")
    LlamaForCausalLM(config).save_pretrained(place)
    ByT5Tokenizer().save_pretrained(place)
    return place


def test_right_answers_are_right(stages):
    rng = random.Random(3)
    for one in (stages.question(rng) for _ in range(300)):
        asked = one["prompt"].removeprefix("Question: ").removesuffix("?\nAnswer:")
        right, wrong = (one[key].strip(" .") for key in ("chosen", "rejected"))
        assert right != wrong
        head, _, listed = asked.partition(": ")
        words = listed.split(", ")
        if head.startswith("What is word number"):
            assert right == words[int(head.split()[4]) - 1]
        elif head.startswith("Which"):
            assert right == min(words)
        elif head.startswith("How many"):
            assert int(right) == len(words)
        else:
            a, b = (int(part) for part in head.removeprefix("What is ").split(" plus "))
            assert int(right) == a + b


def test_what_is_asked_is_not_trained_on(stages):
    asked = stages.questions(200, 0)
    taught = stages.questions(500, 1, without=frozenset(row["prompt"] for row in asked))
    assert len({row["prompt"] for row in [*asked, *taught]}) == 700
    assert stages.questions(200, 0) == asked


def test_answers_are_scored_as_by_hand(stages, folder):
    from decondense.models import load

    model, tokenizer = load(folder, dtype="float32", device="cpu")
    rows = stages.questions(7, 5)
    found = stages.answers(model, tokenizer, rows, batch=3)
    shares, better = [], []
    for row in rows:
        logs = []
        for answer in ("chosen", "rejected"):
            start = tokenizer(row["prompt"], add_special_tokens=False)["input_ids"]
            ids = torch.tensor([start + tokenizer(row[answer], add_special_tokens=False)["input_ids"]])
            with torch.no_grad():
                steps = model(input_ids=ids).logits[0].double().log_softmax(-1)
            logs.append(sum(steps[i - 1, ids[0, i]].item() for i in range(len(start), ids.shape[1])))
        better.append(logs[0] > logs[1])
        shares.append(logs[0] - torch.logsumexp(torch.tensor(logs, dtype=torch.float64), 0).item())
    assert found["right"] == pytest.approx(sum(better) / 7)
    assert found["log_share"] == pytest.approx(sum(shares) / 7, abs=1e-4)


def test_both_stages_and_the_conclusion(stages, folder, tmp_path, capsys):
    pytest.importorskip("trl")
    small = ["--model", folder, "--text", "pydoc", "--windows", 2, "--tokens", 64, "--items", 8, "--examples", 16]
    small += ["--batch", 8, "--device", "cpu", "--out", tmp_path]
    asked = list(map(str, small))
    stages.main(["run", *asked, "--piece", "none-seed-1,dispersion-1-seed-1", "--sft-rate", "0.01"])
    records = {f.stem: json.loads(f.read_text()) for f in (tmp_path / "runs").glob("*.json")}
    assert set(records) == {"none-seed-1", "dispersion-1-seed-1"}
    plain, treated = (records[name]["stages"] for name in ("none-seed-1", "dispersion-1-seed-1"))
    assert plain["before"] == treated["before"]
    assert plain["SFT"]["steps"] == plain["DPO"]["steps"] == 2
    assert treated["SFT"]["mean_cosine"] < plain["SFT"]["mean_cosine"] != plain["before"]["mean_cosine"]
    assert plain["DPO"]["mean_cosine"] != plain["SFT"]["mean_cosine"]
    capsys.readouterr()
    stages.main(["conclude", *asked])
    assert "1 of at least 3 training seeds" in capsys.readouterr().out
    assert len((tmp_path / "table.csv").read_text().splitlines()) == 1 + 2 * 3


def test_the_conclusion_needs_three_seeds_and_says_what_matters(stages, tmp_path):
    (tmp_path / "runs").mkdir()
    for seed in (1, 2, 3):
        for arm, cosine in {"none": 0.6, "dispersion-1": 0.4}.items():
            after = {"mean_cosine": cosine + seed / 1e4, "spearman": 0.5, "text_loss": 3 + seed / 1e5, "right": 0.9}
            numbers = {"before": {**after, "mean_cosine": 0.5, "log_share": -1.0}}
            numbers |= {stage: {**after, "log_share": -0.5 - seed / 1e5} for stage in ("SFT", "DPO")}
            record = {"arm": arm, "seed": seed, "stages": numbers, "settings": {"items": 8}}
            (tmp_path / "runs" / f"{arm}-seed-{seed}.json").write_text(json.dumps(record))
    end = stages.conclude(tmp_path)
    assert "change it by +0.100" in end["sentence"]
    assert "after DPO, −0.200" in end["sentence"]
    gap = json.loads((tmp_path / "conclusion.json").read_text())["stages"]["none, DPO minus before"]["mean_cosine"]
    assert gap["low"] > 0.09
    assert (gap["n"], "verdict" in gap) == (3, False)
    (tmp_path / "runs" / "none-seed-1.json").write_text(json.dumps({**record, "settings": {"items": 9}}))
    with pytest.raises(SystemExit, match="same settings"):
        stages.conclude(tmp_path)
