"""Texts in shares: how many blocks of each a run sees, what is held out of them, and where their files are found."""

from __future__ import annotations

import json
import lzma
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decondense.train import train
from decondense.train.mixture import allot
from decondense.train.sections import shares_of
from decondense.train.token_files import TokenFiles
from train.runs import tiny


def write(path: Path, word: str, documents: int, ending: str = "") -> str:
    """`documents` documents of 63 bytes and their separator: two blocks of 32 tokens each."""
    lines = "".join(json.dumps({"text": (word * 63)[:63]}) + "\n" for _ in range(documents))
    path = path.with_name(path.name + ending)
    path.write_bytes(lzma.compress(lines.encode()) if ending else lines.encode())
    return str(path)


@given(shares=st.lists(st.floats(0.01, 1), min_size=1, max_size=6), data=st.data(), total=st.integers(0, 500))
def test_allotted_blocks_add_up_and_follow_the_shares(shares, data, total):
    limits = data.draw(st.lists(st.integers(0, 200), min_size=len(shares), max_size=len(shares)))
    counts = allot(total, shares, limits)
    assert sum(counts) == min(total, sum(limits))
    assert all(0 <= count <= limit for count, limit in zip(counts, limits))
    # one level of filling for all that are not used up, and who is used up would have had more at that level
    free = [count / share for count, share, limit in zip(counts, shares, limits) if count < limit]
    rounding = 1 / min(shares)
    for count, share, limit in zip(counts, shares, limits):
        if free and count < limit:
            assert abs(count / share - free[0]) <= 2 * rounding
        elif free:
            assert count / share <= max(free) + 2 * rounding


def test_allotted_by_hand():
    assert allot(40, [1, 1, 1, 1], [100, 100, 100, 4]) == [12, 12, 12, 4]
    assert allot(10, [0.7, 0.3], [100, 100]) == [7, 3]
    assert allot(100, [0.5, 0.5], [10, 20]) == [10, 20]
    assert shares_of(["a", "b"]) == {"a": 0.5, "b": 0.5}
    for same in ({"b": 1, "a": 3}, {"a": 3, "b": 1}):  # equal mappings are the same run, so they have one order
        assert list(shares_of(same).items()) == [("a", 0.75), ("b", 0.25)]


def test_every_text_has_its_share_and_a_short_one_gives_all_it_has(tmp_path, cache):
    """40 blocks by shares 2 : 1 : 1, the last text has 4 blocks: the others fill up, 24 and 12."""
    names = [write(tmp_path / "long.jsonl", "a", 30), write(tmp_path / "other.jsonl", "b", 30, ".xz")]
    names.append(write(tmp_path / "short.jsonl", "c", 2))
    held_out = write(tmp_path / "held.jsonl", "d", 3)
    recipe = tiny(
        f"data={{text: {{{names[0]}: 2, {names[1]}: 1, {names[2]}: 1}}, held_out: [{held_out}], tokens: 1280, "
        "held_out_tokens: 96, context: 32}"
    )
    said: list[str] = []
    record = train(recipe, tmp_path / "run", cache=cache, say=said.append).record
    assert [(t["name"], t["documents"], t["tokens"]) for t in record["text"]] == [
        (names[0], 12, 768), (names[1], 6, 384), (names[2], 2, 128),
    ]  # fmt: skip
    assert record["blocks"] == 40
    assert record["recipe"]["data"]["text"] == {names[0]: 2, names[1]: 1, names[2]: 1}
    read = zip(("60", "30", "10"), names, (50, 25, 25))
    shares = ", ".join(f"{share} % {name} ({asked} % in the recipe)" for share, name, asked in read)
    assert said == [f"a text is shorter than its share of the mixture, so the blocks hold {shares}"]
    said.clear()
    train(
        recipe.model_copy(update={"data": recipe.data.model_copy(update={"tokens": 320})}),
        tmp_path / "b",
        cache=cache,
        say=said.append,
    )
    assert said == [], "all have enough"


def test_a_long_text_is_read_as_far_as_a_run_of_eight_times_the_length_could_need(tmp_path):
    """Of 640 blocks of a text a run of 10 blocks reads 80, and no total is said, as most texts end before it."""
    names = [write(tmp_path / "long.jsonl", "a", 320), write(tmp_path / "short.jsonl", "b", 20)]
    held_out = write(tmp_path / "held.jsonl", "d", 3)
    data = f"text: [{', '.join(names)}], held_out: [{held_out}], tokens: 320, held_out_tokens: 96, context: 32"
    told: list[tuple[int, int | None]] = []

    def progress(what: str, done: int, of: int | None) -> None:
        if what == "tokenising":
            told.append((done, of))

    train(
        tiny(f"data={{{data}}}", "train.batch_tokens=320"),
        tmp_path / "run",
        cache=tmp_path / "cache",
        progress=progress,
    )
    assert told[0] == (0, 8 * 320)
    assert max(done for done, _ in told) == 8 * 320
    assert {of for done, of in told if done} == {None}
    lengths = sorted(json.loads(file.read_text())["length"] for file in (tmp_path / "cache").rglob("*.json"))
    assert lengths == [192, 20 * 64, 8 * 320]  # held out, a text that has ended, one that has not


def test_a_list_means_equal_shares_and_the_end_of_each_is_held_out(tmp_path, cache):
    names = [write(tmp_path / "one.jsonl", "a", 30), write(tmp_path / "two.jsonl", "b", 30)]
    data = f"text: [{', '.join(names)}], tokens: 1024, held_out_tokens: 256, context: 32"
    record = train(tiny(f"data={{{data}}}"), tmp_path / "run", cache=cache).record
    assert [t["tokens"] for t in record["text"]] == [512, 512]
    assert [(t["name"], t["tokens"]) for t in record["held_out_text"]] == [(name, 128) for name in names]
    assert "held_out_documents" not in record
    record = train(tiny(f"data={{{data}, order: sequential}}"), tmp_path / "old", cache=cache).record
    assert [t["name"] for t in record["text"]] == names[:1]


def test_mixed_texts_need_blocks_to_hold_out(tmp_path, cache):
    names = [write(tmp_path / "one.jsonl", "a", 30), write(tmp_path / "two.jsonl", "b", 1)]
    data = f"text: [{', '.join(names)}], tokens: 1024, held_out_tokens: 256, context: 32"
    with pytest.raises(ValueError, match=r"two.jsonl must fill 5 blocks of 32 tokens, 4 of them held out, it fills 2"):
        train(tiny(f"data={{{data}}}"), tmp_path / "run", cache=cache)


def test_a_copied_cache_is_found_with_its_texts(tmp_path, monkeypatch):
    """Another machine has other folders and other times; budgets of runs do not matter either where a text ends."""
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    for word in "ab":
        write(tmp_path / "here" / f"{word}.jsonl", word, 30)
        write(tmp_path / "there" / f"{word}.jsonl", word, 30)
        (tmp_path / "there" / f"{word}.jsonl").touch()

    def recipe(folder: str, tokens: int):
        texts = ", ".join(str(tmp_path / folder / f"{word}.jsonl") for word in "ab")
        return tiny(f"data={{text: [{texts}], tokens: {tokens}, held_out_tokens: 256, context: 32}}")

    train(recipe("here", 1024), tmp_path / "first", cache=tmp_path / "cache")
    shutil.copytree(tmp_path / "cache", tmp_path / "copy")
    monkeypatch.setattr(TokenFiles, "_tokenise", lambda *a: pytest.fail("the text was tokenised again"))
    record = train(recipe("there", 512), tmp_path / "second", cache=tmp_path / "copy").record
    assert [t["name"] for t in record["text"]] == [str(tmp_path / "there" / f"{word}.jsonl") for word in "ab"]
