from __future__ import annotations

import errno
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from decondense import files
from decondense.evaluate.items import load_run
from decondense.models import resolve
from decondense.text import open_text


def test_a_file_appears_whole_or_not_at_all(tmp_path):
    target = tmp_path / "a.txt"
    files.write_text(target, "old")

    def fail() -> None:
        with files.atomic(target) as temporary:
            assert temporary.suffix == ".txt"
            temporary.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert [p.read_text() for p in tmp_path.iterdir()] == ["old"]
    assert target.stat().st_mode & 0o777 == 0o644


def test_csv_and_json(tmp_path):
    files.write_csv(tmp_path / "a.csv", [{"a": 1}, {"b": "x, y", "a": None}])
    assert (tmp_path / "a.csv").read_text() == 'a,b\n1,\n,"x, y"\n'
    record = {"n": 1, "rows": [{"a": "é"}, {"a": None}], "flat": [1, 2]}
    (tmp_path / "a.json").write_text(files.pretty_json(record))
    assert files.read_json(tmp_path / "a.json") == record
    assert len((tmp_path / "a.json").read_text().splitlines()) == 8
    assert files.finite({1: [math.nan, (math.inf, 2.5)], "b": "x"}) == {"1": [None, [None, 2.5]], "b": "x"}
    for content, message in (
        (b"{", "not valid JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b"\xff", "not valid JSON"),
    ):
        (tmp_path / "bad.json").write_bytes(content)
        with pytest.raises(ValueError, match=rf"^{re.escape(str(tmp_path / 'bad.json'))} is {message}"):
            files.read_json(tmp_path / "bad.json")


def test_flat_and_names():
    assert files.flat({"a": {"b": 1, "c": {}}, "d": [2]}) == {"a.b": 1, "a.c": {}, "d": [2]}
    assert files.safe_name("../λ = 0.1/τ") == "lambda-0.1-tau"
    assert files.safe_name("...") == "unnamed"
    assert files.told_apart(["runs/a/model", "/x/b/model"]) == ["a/model", "b/model"]
    assert files.told_apart(["runs/a", "runs/b", "runs/b"]) == ["a", "b", "b"]
    assert set(files.versions("torch", "no-such-package")) == {"torch"}


def test_a_version_says_its_commit(monkeypatch, tmp_path):
    from decondense import __version__

    def told() -> str:
        files._version.cache_clear()
        return files.versions("decondense")["decondense"]

    for given in ("abc1234", "abc1234" + "0f" * 16 + "a"):
        for end in ("", ".dirty"):
            monkeypatch.setenv("DECONDENSE_COMMIT", given + end)
            assert told() == f"{__version__}+gabc1234{end}"
    monkeypatch.delenv("DECONDENSE_COMMIT")
    made = tmp_path / "clone" / "src" / "decondense" / "files.py"
    made.parent.mkdir(parents=True)
    made.write_text("# here")
    monkeypatch.setattr(files, "__file__", str(made))
    assert told() == __version__, "installed from a package, or copied"
    git = ["git", "-C", str(tmp_path / "clone"), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "one"], ["tag", "v1"]):
        subprocess.run([*git, *command], check=True)
    first = told()
    assert re.fullmatch(re.escape(__version__) + r"\+g[0-9a-f]{7}", first)
    made.write_text("# there")
    assert told() == f"{first}.dirty"
    monkeypatch.setattr(files, "__file__", str(tmp_path / "clone" / "vendor" / "decondense" / "files.py"))
    assert told() == __version__, "a copy in a repository of others"
    monkeypatch.setattr(files, "__file__", str(made))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert told() == __version__, "no git"
    files._version.cache_clear()


def test_one_writer_at_a_time(tmp_path):
    lock = tmp_path / ".lock"
    code = (
        "import sys; from pathlib import Path; from decondense.files import locked\n"
        "try:\n  with locked(Path(sys.argv[1]), busy='in use'): print('free')\nexcept ValueError as error: print(error)"
    )

    def other() -> str:
        command = [sys.executable, "-c", code, str(lock)]
        return subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ).stdout.strip()

    with files.locked(lock, busy="in use"):
        assert other() == "in use"
    assert other() == "free"
    assert not lock.exists()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(28, "No space left on device"), "the disk is full; free some space or"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "disk quota exceeded; free some space or"),
        (OSError(13, "Permission denied", "/Data/Run"), "permission denied;"),
        (OSError("Unable to write /Data/Run."), "Unable to write /Data/Run;"),
    ],
)
def test_what_the_system_refuses_is_one_sentence(error, reason):
    """Words of a library stay as they are: a path in them must be one that exists. Space is a remedy where none is."""
    sentence = rf"^the folder must be writable: {reason} choose another\.$"
    with pytest.raises(OSError, match=sentence), files.os_sentence("the folder must be writable", "choose another"):
        raise error


def test_a_path_that_does_not_exist_gets_the_nearest_beside_it(tmp_path):
    for name in ("novel.txt", "small-model", "base-seed1"):
        (tmp_path / name).mkdir()
    for find, wrong, right in (
        (open_text, "novl.txt", "novel.txt"),
        (resolve, "smal-model", "small-model"),
        (load_run, "base-sed1", "base-seed1"),
    ):
        with pytest.raises(FileNotFoundError, match=rf"^no \w+ at '.*{wrong}': .* did you mean '{right}'\?$"):
            find(str(tmp_path / wrong))


def test_yaml_is_that_of_pyyaml():
    """libyaml reads and writes it in a part of the time: the same content, and the same bytes of all that we write."""
    root = Path(__file__).resolve().parent.parent
    pages = [*root.glob("recipes/*.yaml"), *root.glob("src/**/*.yaml")]
    assert len(pages) > 10
    for text in (page.read_text(encoding="utf-8") for page in pages):
        content = yaml.safe_load(text)
        assert repr(files.from_yaml(text)) == repr(content)
        assert files.to_yaml(content) == yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    letters = {"é": "漢 🙂", "🙂" * 90: "\\U0001F642", "half": "\ud83d"}
    assert files.to_yaml(letters) == yaml.safe_dump(letters, sort_keys=False, allow_unicode=True)
    assert files.to_yaml("🙂") == "🙂\n...\n"
    odd = {"": 1, "\x85": "a\x85b\u2028c", "k": ["", "\t", " x\n"]}
    assert files.from_yaml(files.to_yaml(odd)) == odd


@pytest.mark.parametrize(
    "nested",
    [
        lambda n: "[" * n + "]" * n,
        lambda n: "{a: " * n + "}" * n,
        lambda n: "[\n" * n + "]" * n,
        lambda n: "- " * n + "a",
        lambda n: "? " * n + "a",
        lambda n: "".join(" " * i + "a:\n" + " " * i + "-\n" for i in range(min(n, 2000) // 2)),
    ],
)
def test_yaml_that_is_nested_too_deeply_is_refused(nested):
    for levels in (202, 1000, 100_000):
        with pytest.raises(
            ValueError, match=r"^sections and lists must be at most 200 levels deep, got more: take some"
        ):
            files.from_yaml(nested(levels))
    assert files.from_yaml("[" * 200 + "]" * 200)
    wide = "a: [" + "[1], " * 1000 + "]\nb: '" + "[ - " * 300 + "'\n" + "#" + "-" * 300
    assert files.from_yaml(wide) == yaml.safe_load(wide)


def test_a_key_that_yaml_has_twice_is_refused():
    """Not one that another section brings along, by whatever way round."""
    merged = "a: &a {x: 1, y: 1}\nb: &b {<<: *a, x: 2}\nc: {<<: *b, <<: *a, y: 3}\nd: *b\n=: 0\ne: [{x: 1}, {x: 2}]"
    assert files.from_yaml(merged) == yaml.safe_load(merged)
    for text, where in (
        ("a: 1\nb: 2\n'a': 3", "1 and again in line 3"),
        ("x: [{a: {b: 1,\nb: 1}}]", "1 and again in line 2"),
        ("1: a\n01: b", "1 and again in line 2"),
        ("true: 1\nyes: 2", "1 and again in line 2"),
    ):
        with pytest.raises(ValueError, match=rf"a section may have a key once, got '\w+' in line {where}: keep one"):
            files.from_yaml(text)
