"""Every line of the shell blocks in README.md and docs/*.md is run, as it stands there, in a folder that holds what the
document presumes (doc_workplace.py).

What needs a hub, a GPU or hours is made small by `made_small`: training says its recipe (`--dry-run`, which does not
look for models and texts of the hub here; only recipes/smoke.yaml trains, for three steps), a study beyond smoke
scale its runs (`--plan`), one of smoke scale takes one seed (whole it runs in studies/test_smoke.py), a measurement two
windows and an evaluation two items per task, both of tiny files. The models are tiny ones under the names that the
document uses. `--merge` and `--reuse` run on the committed results, as they are. Figures are made, but not painted.

Not run, but checked:

* launchers (`torchrun`, `accelerate launch`, `sbatch`): their own parser reads the line, and the `decondense` command
  in it is run as above; with several processes it runs in test_launch.py, test_fsdp2.py and train/test_distributed.py.
* `torchrun -m torchtitan.train`: the module and the options of its section exist; it runs in test_torchtitan.py.
* `python benchmarks/….py`, most of which need a GPU: it answers --help and knows the options that the line and its
  comment name; tables.py, which has no --help, runs with --check in test_docs.py.
* `make`: `make --dry-run`; `pip install`: our own name, and pins that are those of the tests.
"""

from __future__ import annotations

import ast
import fnmatch
import importlib.util
import itertools
import json
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from doc_commands import DOCUMENTS, FENCE, ROOT, SHELL, lines_of, make_targets, shell_blocks, text_of, without_comment
from doc_workplace import divide_runs, write_data, write_model, write_run

from decondense import cli

TOLD = {"--dry-run", "--plan", "list", "doctor"}  # with these a command writes nothing


def documented() -> list:
    """Every line once, however many documents have it, and whatever they remark on it; of a script the remark counts,
    as it may name options."""
    lines = {}
    for document in DOCUMENTS:
        for block in shell_blocks(text_of(document)):
            for line in lines_of(block):
                command = without_comment(line)
                asked = line if command.startswith("python ") else command
                lines.setdefault(asked, pytest.param(asked, id=f"{document.name}: {command[:60]}"))
    return list(lines.values())


def made_small(words: list[str]) -> list[str]:
    """The same command in seconds, without a hub or a GPU; of an option given twice the last one counts."""
    name, given = words[0], set(words)
    if name == "train":
        return [*words, *(["--tokens", "6K"] if "recipes/smoke.yaml" in given else ["--dry-run"])]
    if name == "study" and not given & {"list", "--plan", "--merge", "--reuse"}:  # of smoke scale one seed
        return [*words, *(["--plan"] if given & {"gpu", "paper"} else ["--seeds", "1"])]
    if name in ("measure", "compare"):
        return [*words, "--windows", "2", "--tokens", "64"]
    if name == "evaluate":
        data = [] if "--bench" in given else ["--bench", "DIR"]
        few = [] if "none" in words else ["--limit", "2"]  # of the items; a text is scored whole
        return [*words, *few, "--batch-tokens", "8192", *data]
    return words


def values(words: list[str], option: str) -> list[str]:
    return [value for word, value in itertools.pairwise(words) if word == option]


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    """Models as small as these are no faster on two, and much slower when another test has one of the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def small_things(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    write_model(folder / "model")
    write_data(folder / "data")
    return folder


@pytest.fixture
def workplace(small_things, tmp_path, monkeypatch, unpainted) -> Path:
    """The current folder, with the recipes, and small things under the names that documents use."""
    folder = tmp_path / "here"
    (folder / "out").mkdir(parents=True)
    (folder / "recipes").symlink_to(ROOT / "recipes")
    for name, thing in (("gpt2", "model"), ("out/model", "model"), ("DIR", "data")):
        (folder / name).symlink_to(small_things / thing)
    monkeypatch.setattr("decondense.models.bundled_folder", lambda name: small_things / "model")
    monkeypatch.setattr("decondense.hub.hub_reachable", lambda: False)
    monkeypatch.setattr("decondense.train.prepare.check", lambda recipe: {"name": "m", "parameters": 1})
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("DECONDENSE_DATA", str(small_things / "data"))
    monkeypatch.setenv("DECONDENSE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("DECONDENSE_BENCH", raising=False)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def decondense(workplace, monkeypatch, capsys):
    """A function that runs the command with these words, made small, and looks at what it has written."""

    def run(words: list[str]) -> None:
        prepare(words)
        small = made_small(words)
        monkeypatch.setattr(sys, "argv", ["decondense", *small])
        with pytest.raises(SystemExit) as caught:
            cli.main(small)
        said = capsys.readouterr()
        assert not caught.value.code, said.err[-2000:]
        if not TOLD & set(small):
            assert_written(words, said.out + said.err)
        if "--plan" in small:
            assert_pieces(words, said.out)

    return run


def prepare(words: list[str]) -> None:
    """The folders that this command reads; what it writes is taken away, so that it must write it."""
    if any(word.startswith("results") for word in words):
        # The page of all of them is made for one line, without --out; where another asks for it a study is enough.
        some = Path("studies/text" if words[0] == "report" and "--out" in words else "")
        shutil.copytree(ROOT / "results" / some, "results" / some)
    for target in values(words, "--out"):
        shutil.rmtree(target, ignore_errors=True)
    if words[0] == "significance":
        for word in itertools.takewhile(lambda word: word == "--" or not word.startswith("-"), words[1:]):
            if word != "--":
                write_run(Path(word))
    if values(words, "--from"):
        divide_runs(words[1], [Path(folder) for folder in values(words, "--from")])


def assert_written(words: list[str], out: str) -> None:
    """What it says it has written is there; a study from committed runs comes to the committed verdict."""
    for target in values(words, "--out"):
        assert Path(target).exists(), target
        assert f"written: {target}" in out
    found = re.findall(r"^written: ([^\s,]+)((?:, [^\s,]+(?=,| \(|$))*)", out, re.MULTILINE)
    assert found, out
    for first, others in found:
        for name in [first, *(str(Path(first).parent / other) for other in others.split(", ")[1:])]:
            assert Path(name).exists(), name
    if {"--merge", "--reuse"} & set(words):
        (folder,) = (Path(target) for target in values(words, "--out"))
        committed = ROOT / "results" / "studies" / words[1]
        verdicts = [json.loads((place / "result.json").read_text())["verdict"] for place in (folder, committed)]
        assert verdicts[0] == verdicts[1]


def assert_pieces(words: list[str], out: str) -> None:
    plan = {word for line in out.splitlines() for word in line.split()[:2]}
    assert plan
    for pieces in values(words, "--piece"):
        assert all(fnmatch.filter(plan, piece) for piece in pieces.split(","))


def knows_its_options(script: str, line: str, monkeypatch, capsys) -> None:
    """By --help, in this process, since importing torch takes longer than all the rest."""
    path = ROOT / script
    known = text_of(path)
    ast.parse(known)
    if "harness.arguments(" in known or "ArgumentParser(" in known:
        monkeypatch.syspath_prepend(path.parent)
        monkeypatch.setattr(sys, "argv", [script, "--help"])
        with pytest.raises(SystemExit) as caught:
            runpy.run_path(str(path), run_name="__main__")
        assert not caught.value.code
        known = capsys.readouterr().out
    for option in re.findall(r"--[\w-]+", line):
        assert option in known, option


def launched(words: list[str]) -> tuple[str, list[str]]:
    """The module that a launcher would start, and its arguments, as the launcher reads them."""
    if words[0] == "torchrun":
        from torch.distributed.run import get_args_parser as parser
    else:
        from accelerate.commands.launch import launch_command_parser as parser
    read = parser().parse_args(words[1:] if words[0] == "torchrun" else words[2:])
    assert read.module, "-m is missing"
    if getattr(read, "config_file", None):
        assert (ROOT / read.config_file).is_file()
    return read.training_script, read.training_script_args


def is_there_for_torchtitan(words: list[str]) -> None:
    """Without importing it: torchtitan is not among the packages that the tests need."""
    (module,) = values(words, "--module")
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    code = ast.parse(text_of(Path(spec.origin)))
    (section,) = [node for node in code.body if isinstance(node, ast.ClassDef) and node.name == "Regularizer"]
    known = {node.target.id for node in section.body if isinstance(node, ast.AnnAssign)}
    assert {word.partition(".")[2] for word in words if word.startswith("--regularizer.")} <= known


def can_be_installed(requirements: list[str]) -> None:
    project = tomllib.loads(text_of(ROOT / "pyproject.toml"))["project"]
    own = {project["name"], *(f"{project['name']}[{extra}]" for extra in project["optional-dependencies"])}
    tested = text_of(ROOT / "constraints.txt") + text_of(ROOT / "tests" / "test_torchtitan.py")
    for requirement in requirements:
        assert requirement in own or ("==" in requirement and requirement in tested), requirement


@pytest.mark.parametrize("line", documented())
def test_line_runs(line, decondense, monkeypatch, capsys):
    words = shlex.split(without_comment(line))
    match words:
        case ["decondense", *arguments]:
            decondense(arguments)
        case ["torchrun", *_] | ["accelerate", "launch", *_]:
            module, arguments = launched(words)
            if module == "torchtitan.train":
                is_there_for_torchtitan(arguments)
            else:
                assert module == "decondense.cli"
                decondense(arguments)
        case ["sbatch", *_, "recipes/launch/slurm.sh", recipe]:
            assert (ROOT / "recipes/launch/slurm.sh").is_file()
            decondense(["train", recipe])
        case ["python", script, *_]:
            knows_its_options(script, line, monkeypatch, capsys)
        case ["make", target]:
            assert target in make_targets()
            subprocess.run(["make", "--dry-run", target], cwd=ROOT, check=True, capture_output=True)
        case ["pip", "install", *requirements]:
            can_be_installed(requirements)
        case _:
            pytest.fail(f"no test knows how to run this line: {line}")


def test_every_block_is_run():
    """Python blocks run in test_docs.py, shell blocks here, and there are no others."""
    for document in DOCUMENTS:
        assert {language for language, _ in FENCE.findall(text_of(document))} <= {*SHELL, "python"}, document.name
    assert len(documented()) > 25


def test_the_list_of_files_is_true():
    """The block of README.md that is no command: every file and folder it begins a line with is there."""
    (block,) = [body for _, body in FENCE.findall(text_of(ROOT / "README.md")) if body.startswith("src/")]
    for line in block.splitlines():
        names = re.split(r"\s{2,}", line.strip())[0].split() if line.startswith(" ") else line.split()[:1]
        for name in names:
            assert (ROOT / ("src/decondense" if line.startswith(" ") else ".") / name).exists(), name
