"""`compare` a second time into its folder, after an interruption or to make it again; what its options refuse."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
import transformers as tf
import yaml
from by_hand import cli as run
from by_hand import refused

import decondense as dc
from decondense.meter import run as meter_run
from decondense.records import Comparison

WORDS = " ".join(f"{n} people walked down to the harbour and {n * n} of them came back." for n in range(200))
QUICK = ["--windows", "3", "--tokens", "16"]


@pytest.fixture
def items(tmp_path) -> list[str]:
    """Two models and options with a text."""
    (tmp_path / "a.txt").write_text(WORDS)
    for name, layers in (("one", 2), ("two", 3)):
        torch.manual_seed(layers)
        sizes = {"n_embd": 16, "n_head": 2, "n_positions": 32, "vocab_size": 384, "eos_token_id": 1}
        tf.GPT2Model(tf.GPT2Config(**sizes, n_layer=layers)).save_pretrained(tmp_path / name)
        tf.ByT5Tokenizer().save_pretrained(tmp_path / name)
    return [str(tmp_path / "one"), str(tmp_path / "two"), "--text", str(tmp_path / "a.txt"), *QUICK]


pytestmark = pytest.mark.usefixtures("unpainted")


def test_a_comparison_is_replaced_by_force_alone(items, tmp_path, monkeypatch):
    """By the very same one too, and it is refused before anything is measured."""
    command, out = ("compare", *items, "--out", tmp_path / "c"), tmp_path / "c" / "result.json"
    assert run(*command)[0] == 0
    before = {path: path.read_bytes() for path in (tmp_path / "c").rglob("*") if path.is_file()}
    with monkeypatch.context() as patch:
        patch.setattr(meter_run, "draw_windows", lambda *a, **k: pytest.fail("something was measured"))
        for other in [], ["--seed", "1"], ["--paired"]:
            said = refused(*command, *other)
            assert said.endswith("holds a result: choose another folder with --out, or replace it with --force.\n")
        out.unlink()  # what an interruption leaves
        said = refused(*command, "--windows", "4")
        assert "holds measurements of an unfinished comparison (name their folders in place of their models): c" in said
    out.write_bytes(before[out])
    assert {path: path.read_bytes() for path in before} == before
    assert run(*command, "--windows", "4", "--force")[0] == 0
    assert out.read_bytes() != before[out]


def test_an_interrupted_comparison_says_what_is_kept_and_how_to_go_on(items, tmp_path, monkeypatch):
    draw, drawn = meter_run.draw_windows, []

    def once(*args, **options):
        drawn.append(args)
        if len(drawn) > 1:
            raise KeyboardInterrupt
        return draw(*args, **options)

    monkeypatch.setattr(meter_run, "draw_windows", once)
    code, _, stderr = run("compare", *items, "--out", tmp_path / "c")
    assert code == 130
    kept, how = stderr.splitlines()[-2:]
    assert kept == f"interrupted: {tmp_path / 'c' / 'results'} holds 1 of 2 measurements, in a folder each."
    assert how == "To measure none twice, name these folders in place of their models and texts; add --force."
    monkeypatch.undo()
    (folder,) = (tmp_path / "c" / "results").iterdir()
    drawn.clear()
    monkeypatch.setattr(meter_run, "draw_windows", once)
    stderr = run("compare", folder, *items, "--out", tmp_path / "e")[2]
    assert f"interrupted: {tmp_path / 'e' / 'results'} holds 1 of 2 measurements, in a folder each." in stderr
    monkeypatch.undo()
    assert run("compare", folder, *items[1:], "--out", tmp_path / "c", "--force")[0] == 0
    drawn.append(())
    monkeypatch.setattr(meter_run, "draw_windows", once)
    stderr = run("compare", *items, "--out", tmp_path / "d")[2]
    assert stderr.endswith("interrupted.\n")
    assert not (tmp_path / "d").exists(), "nothing is kept"


def test_two_texts_of_one_file_name_have_a_folder_each(items, tmp_path):
    """The second measurement was refused as one of another text."""
    for number, folder in enumerate("pq"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "text.txt").write_text(f"{number} {WORDS}")
    texts = ",".join(str(tmp_path / folder / "text.txt") for folder in "pq")
    assert run("compare", items[0], "--texts", texts, *QUICK, "--out", tmp_path / "c")[0] == 0
    folders = sorted(path.name[-10:] for path in (tmp_path / "c" / "results").iterdir())
    assert folders == ["p-text.txt", "q-text.txt"]
    rows = json.loads((tmp_path / "c" / "result.json").read_bytes())["rows"]
    assert [row["text"] for row in rows] == ["p/text.txt", "q/text.txt"]


def test_several_texts_may_be_given_as_train_takes_them(items, tmp_path, monkeypatch):
    """`--text a,b` was one text of that name; a file may have a comma in its name all the same."""
    monkeypatch.chdir(tmp_path)
    Path("b.txt").write_text(f"0 {WORDS}")
    Path("a.txt,b.txt").write_text(f"1 {WORDS}")
    for texts, folder in (["--texts", "a.txt,b.txt"], "c"), (["--text", "a.txt,b.txt"], "d"):
        if folder == "d":
            said = refused("compare", items[0], *texts, *QUICK, "--out", folder)  # the file, and so one result
            assert said == (
                "error: compare needs at least two results, got 1: give more models or saved results, or several texts "
                "with --texts a,b or revisions with --revisions a,b.\n"
            )
            Path("a.txt,b.txt").unlink()
        assert run("compare", items[0], *texts, *QUICK, "--out", folder)[0] == 0
    first, second = (Path(folder, "result.json").read_bytes() for folder in "cd")
    assert first == second
    config = [yaml.safe_load(Path(folder, "config.yaml").read_text()) for folder in "cd"]
    assert config[0] == config[1]
    assert config[0]["texts"] == ["a.txt", "b.txt"]


def test_measure_of_several_texts_says_which_command_takes_them(items, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert refused("measure", items[0], "--text", "a.txt,pydoc", *QUICK) == (
        "error: measure takes one text, got 'a.txt,pydoc': for several, decondense compare "
        f"{items[0]} --texts a.txt,pydoc.\n"
    )
    assert "--texts" not in refused("measure", items[0], "--text", "a.txt,", *QUICK)  # one text, of a strange name
    Path("a.txt").rename("a,b.txt")
    assert run("measure", items[0], "--text", "a,b.txt", *QUICK)[0] == 0


def test_a_result_that_is_not_there_is_no_model(items, tmp_path):
    absent = tmp_path / "absent" / "result.json"
    said = refused("compare", absent, items[0], *items[2:])
    assert said == f"error: no result at '{absent}': give result.json or the folder that holds it.\n"
    with pytest.raises(FileNotFoundError, match=re.escape(said.removeprefix("error: ").strip())):
        dc.compare([absent, absent])


def test_two_models_of_one_name_have_a_folder_each(items, tmp_path, monkeypatch):
    """a/b-c and a-b/c were both kept in a-b-c, where the second replaced the first; a saved result is not replaced."""
    monkeypatch.chdir(tmp_path)
    names = ["a/b-c", "a-b/c"]
    for old, new in zip(items, names):
        Path(new).parent.mkdir()
        Path(old).rename(new)
    assert run("compare", *names, *items[2:], "--out", "c")[0] == 0

    def kept() -> dict[str, int]:
        return {path.name: dc.load(path).layers for path in Path("c", "results").iterdir()}

    assert kept() == {"a-b-c-a.txt": 2, "a-b-c-a.txt-2": 3}
    Path("c", "results", "a-b-c-a.txt-2", "result.json").unlink()
    assert run("compare", "c/results/a-b-c-a.txt/result.json", names[1], *items[2:], "--out", "c", "--force")[0] == 0
    assert kept() == {"a-b-c-a.txt": 2, "a-b-c-a.txt-2": 3}


def test_a_live_comparison_is_drawn_as_its_record_is(tmp_path):
    ids = torch.randint(3, 97, (12, 8), generator=torch.Generator().manual_seed(0))
    config = tf.GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=16, vocab_size=97, eos_token_id=1)
    live = dc.compare([dc.measure(tf.GPT2Model(config), inputs=ids, bootstrap=20) for _ in range(2)])
    assert isinstance(live.record(), Comparison)
    assert dc.plot(live, tmp_path / "live") == tmp_path / "live" / "trend.png"
    dc.plot(live.record(), tmp_path / "record")
    assert (tmp_path / "live" / "trend.csv").read_bytes() == (tmp_path / "record" / "trend.csv").read_bytes()


def test_a_port_without_a_server_and_a_file_with_one_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert refused("report", ".", "--port", "9000") == (
        "error: --port is for --serve, got --port 9000 alone: add --serve, or leave --port out.\n"
    )
    for options in (["--out", "p.html"], ["--table"], ["--readme", "README.md"]):
        assert f"--serve writes nothing, got {options[0]} beside it" in refused("report", ".", "--serve", *options)
    assert list(Path().iterdir()) == []


def test_too_few_resamplings_have_no_ends(items, tmp_path):
    """One has an interval of zero width; with fewer than 20 none lies in the 5 % outside."""
    said = refused("measure", *items[1:], "--bootstrap", "19", "--out", tmp_path / "o")
    reason = "an interval of 95 % cannot be read from fewer resamplings"
    assert f"bootstrap must be an integer of at least 20, got 19: {reason}." in said
    assert run("measure", *items[1:], "--bootstrap", "20", "--out", tmp_path / "o")[0] == 0
