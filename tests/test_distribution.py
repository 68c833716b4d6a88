"""What people install: the source distribution, the wheel, and each extra with nothing beyond what it declares."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
import yaml
from doc_workplace import write_model
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from train.runs import content, result

import decondense
from decondense.needs import EXTRAS, PACKAGES, MissingExtra, need

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LEFT_BEHIND = shutil.ignore_patterns(".*", "build", "dist", "results", "runs", "site", "*.egg-info", "__pycache__")
# Whoever compiles nothing need not wait a second for torch's compiler.
ABSENT = ("datasets", "gguf", "lm_eval", "plotly", "torch._inductor.compile_fx")

# Runs `decondense` for every list of words, in one process: importing torch takes longer than all the rest.
COMMANDS = """
import sys
from decondense.cli import main
for number, words in enumerate({commands!r}):
    try:
        main(words)
    except SystemExit as end:
        print(f"exit {{number}}: {{end.code or 0}}")
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """The folder of the source distribution and the wheel made from it, from a copy: building leaves traces."""
    copy = shutil.copytree(ROOT, tmp_path_factory.mktemp("tree") / "copy", ignore=LEFT_BEHIND, symlinks=True)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(copy / "dist"), str(copy)]
    build = subprocess.run(command, capture_output=True, text=True)
    assert build.returncode == 0, build.stdout[-2000:] + build.stderr[-2000:]
    return copy / "dist"


def test_distributions_are_ready_to_publish(built):
    files = sorted(built.iterdir())
    assert [file.name.startswith(f"decondense-{decondense.__version__}") for file in files] == [True, True]
    check = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *map(str, files)], capture_output=True, text=True
    )
    assert check.returncode == 0, check.stdout + check.stderr
    (source,) = built.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    (wheel,) = built.glob("*.whl")
    package = {p.relative_to(ROOT / "src").as_posix() for p in (ROOT / "src" / "decondense").rglob("*") if p.is_file()}
    assert {name for name in package if "__pycache__" not in name} <= set(zipfile.ZipFile(wheel).namelist())
    others = {"CHANGELOG.md", "CITATION.cff", "LICENSE", "mkdocs.yml", "recipes/smoke.yaml", "tests/reference.py"}
    assert others <= names


def requirements(*extras: str) -> list[Requirement]:
    """What the project asks for with these extras; an extra that names others stands for all of theirs."""
    lines = list(PROJECT["dependencies"])
    for extra in extras:
        lines += PROJECT["optional-dependencies"][extra]
    asked: list[Requirement] = []
    for requirement in map(Requirement, lines):
        asked += requirements(*requirement.extras) if requirement.name == "decondense" else [requirement]
    return asked


def closure(asked: list[Requirement]) -> set[str]:
    """The distributions that pip would install for these requirements, of those that are installed here."""
    names: set[tuple[str, frozenset[str]]] = set()
    queue = list(asked)
    while queue:
        wanted = queue.pop()
        key = (canonicalize_name(wanted.name), frozenset(wanted.extras))
        if key in names or (wanted.marker is not None and not wanted.marker.evaluate({"extra": ""})):
            continue
        names.add(key)
        for inner in map(Requirement, importlib.metadata.requires(wanted.name) or []):
            extras = [""] if not wanted.extras else wanted.extras
            if inner.marker is None or any(inner.marker.evaluate({"extra": extra}) for extra in extras):
                inner.marker = None
                queue.append(inner)
    return {name for name, _ in names}


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory) -> Path:
    """The folder into which pip has installed the wheel."""
    (wheel,) = built.glob("*.whl")
    folder = tmp_path_factory.mktemp("installed")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--target", str(folder)]
    # With PYTHONPATH pip finds the source tree, and nothing left to install.
    bare = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    subprocess.run([*command, str(wheel)], check=True, capture_output=True, env=bare)
    return folder


@pytest.fixture(scope="module")
def environment(installed, tmp_path_factory):
    """A function that runs code with the wheel, what the extras given declare, and nothing else: links to what pip
    has installed of the wheel, and to the files of the other distributions in the environment of the tests."""
    if sys.platform == "win32":
        pytest.skip("links need rights that a Windows account seldom has")

    def run(code: str, cwd: Path, *extras: str) -> subprocess.CompletedProcess[str]:
        folder = tmp_path_factory.mktemp("environment")
        venv.create(folder, with_pip=False)
        python = next(folder.glob("bin/python")).absolute()
        (site,) = folder.glob("lib/python*/site-packages")
        for top in installed.iterdir():
            (site / top.name).symlink_to(top)
        for name in closure(requirements(*extras)):
            here = Path(str(importlib.metadata.distribution(name).locate_file("")))
            for top in {file.parts[0] for file in importlib.metadata.files(name) or []} - {"..", "__pycache__"}:
                if not (site / top).exists():
                    (site / top).symlink_to(here / top)
        # The collector takes a sixth of the time of the imports, and tidying up after the last line a second.
        code = f"import gc\ngc.disable()\n{code}\nimport os, sys\nsys.stdout.flush()\nos._exit(0)"
        return subprocess.run([str(python), "-I", "-c", code], capture_output=True, text=True, cwd=cwd)

    return run


@pytest.fixture(scope="module")
def core(environment, tmp_path_factory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A folder in which the bare package has measured a model and was asked for what it cannot do."""
    folder = tmp_path_factory.mktemp("core")
    write_model(folder / "model")
    (folder / "model.gguf").write_bytes(b"GGUF and nothing more")
    small = ["--text", "pydoc", "--windows", "2", "--tokens", "32"]
    commands = [
        ["measure", "model", *small, "--out", "measured"],
        ["report", "measured"],
        ["train", "--model", "model", "--text", "pydoc", "--tokens", "1K", "--out", "trained"],
        ["evaluate", "model", "--out", "evaluated"],
        ["measure", "model.gguf", *small, "--out", "gguf"],
        ["measure", "model", *small, "--device", "auto", "--out", "spread"],
    ]
    regularize = """
import torch, decondense
from transformers import AutoModelForCausalLM
model, ids = AutoModelForCausalLM.from_pretrained("model").train(), torch.arange(3, 67)[None]
with decondense.regularize(model, "dispersion", weight=0.1) as handle:
    model(input_ids=ids, labels=ids).loss.backward()
print(decondense.__file__, decondense.__version__, bool(handle.last["penalty"] < 0))
"""
    return folder, environment(COMMANDS.format(commands=commands) + regularize, folder)


def test_core_measures_and_regularizes(core):
    folder, run = core
    assert run.returncode == 0, run.stderr
    assert "exit 0: 0\n" in run.stdout, run.stderr
    assert (folder / "measured" / "heatmap.png").is_file()
    where, version, lower = run.stdout.split()[-3:]
    assert "site-packages" in where
    assert (version, lower) == (decondense.__version__, "True")


def test_missing_extras_are_named_with_their_command(core):
    _, run = core
    said = [line for line in run.stderr.splitlines() if line.startswith("error: ")]
    assert said == [
        "error: `decondense report` needs plotly: pip install 'decondense[page]'",  # torch itself brings jinja2
        "error: training needs accelerate: pip install 'decondense[train]'",
        "error: evaluation needs lm-eval and accelerate and peft: pip install 'decondense[evaluate]'",
        "error: reading model.gguf needs gguf: pip install 'decondense[gguf]'",
        "error: device=\"auto\" needs accelerate: pip install 'decondense[train]'",
    ]
    assert re.findall(r"exit (\d): (\d)", run.stdout) == [("0", "0"), *((str(n), "2") for n in range(1, 6))]


def test_page_is_written_with_its_extra(core, environment):
    """The templates travel in the wheel."""
    folder, _ = core
    run = environment(COMMANDS.format(commands=[["report", "measured", "--out", "page.html"]]), folder, "page")
    assert run.stdout.endswith("exit 0: 0\n"), run.stderr
    assert (folder / "page.html").stat().st_size > 1_000_000


# A machine that only trains can even do without datasets, which are there.
TRAIN = """
import sys
from importlib.machinery import PathFinder
import decondense.needs

class Poorer(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.split(".")[0] == "datasets" else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Poorer
decondense.needs.need("train", "")
"""


def test_training_needs_its_extra_alone(environment, tmp_path, monkeypatch):
    monkeypatch.setenv("DECONDENSE_CACHE", str(tmp_path))
    recipe = content("data.held_out=pydoc", "snapshots.count=1", "loss={name: decorrelation, layers: last}")
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    command = TRAIN + COMMANDS.format(commands=[["train", "recipe.yaml", "--out", "run"]])
    run = environment(f"{command}\nprint([name for name in {ABSENT} if name in sys.modules])", tmp_path, "train")
    assert run.stdout.endswith("exit 0: 0\n[]\n"), run.stderr
    assert result(tmp_path / "run")["finished"]
    assert (tmp_path / "run" / "training.png").is_file()


def test_evaluation_needs_its_extra_alone(environment, tmp_path):
    code = "import decondense.evaluate.scorer, decondense.needs; decondense.needs.need('evaluate', '')"
    run = environment(code, tmp_path, "evaluate")
    assert run.returncode == 0, run.stderr


def test_every_extra_is_declared_and_named():
    """What needs.py looks for is what pyproject.toml installs: each module, by the extra alone."""
    optional = PROJECT["optional-dependencies"]
    for extra, (modules, _) in EXTRAS.items():
        names = {canonicalize_name(PACKAGES.get(module, module)) for module in modules}
        assert names <= closure(list(map(Requirement, optional[extra])))
    (everything,) = map(Requirement, optional["all"])
    assert everything.extras == optional.keys() - {"all", "docs", "dev"}
    assert "decondense[all,docs]" in optional["dev"]


def test_need_names_only_what_is_missing(monkeypatch):
    need("page", "anything")
    monkeypatch.setitem(sys.modules, "plotly", None)
    with pytest.raises(MissingExtra, match=r"^`decondense report` needs plotly: pip install 'decondense\[page\]'$"):
        need("page", "`decondense report`")
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ImportError, match="needs plotly and jinja2: "):
        need("page", "`decondense report`")


def test_one_version_and_one_address():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {decondense.__version__}\n" in citation
    assert f"\n## [{decondense.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    address = PROJECT["urls"]["Repository"]
    for name in ("CITATION.cff", "CHANGELOG.md", "mkdocs.yml", "examples/first_look.ipynb"):
        assert address in (ROOT / name).read_text(encoding="utf-8"), name


def test_nothing_needs_posix_or_the_locale():
    """Windows has no fcntl and no fork, and opens text files in an encoding of its own unless told."""
    posix = {"fcntl", "grp", "pty", "pwd", "resource", "termios"}
    calls = {"fork", "geteuid", "getuid", "kill", "killpg", "mkfifo", "SIGKILL", "SIGHUP", "SIGUSR1"}
    complaints = []
    for file in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {getattr(node, "module", None) or "", *(alias.name for alias in node.names)}
                complaints += [f"{file.name}:{node.lineno} imports {name}" for name in names & posix]
            elif isinstance(node, ast.Attribute) and node.attr in calls:
                complaints.append(f"{file.name}:{node.lineno} uses {node.attr}")
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                told = any(keyword.arg == "encoding" for keyword in node.keywords)
                if node.func.attr in ("read_text", "write_text") and not told:
                    complaints.append(f"{file.name}:{node.lineno} {node.func.attr} without encoding")
    assert not complaints
