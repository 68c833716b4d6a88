"""The package as a whole: which module may import which, and what importing it brings along."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from pathlib import Path

from processes import launch

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "decondense"
RECIPE = {"model": {"name": "gpt2"}, "loss": {"name": "dispersion"}}

# Every module, from the ground up: it may import what stands in a line above its own, or what stands in the same
# package, and nothing else. A name stands for all modules below it that have no line of their own.
ORDER = (
    "words files hub geometry host needs",
    "checks records theory insides",
    "kernels inputs",
    "losses",
    "split stack capture",
    "named_layers",
    "compiled hidden_states packing",
    "term",
    "handle",
    "integrations",
    "regularizer",
    "integrations.callback",
    "integrations.axolotl integrations.swift",
    "weights_cache text_files",
    "models text",
    "windows images",
    "stats.intervals",
    "figures",
    "meter",
    "watch",
    "integrations.lightning",
    "train evaluate",
    "stats",
    "studies",
    "report",
    "commands",
    "cli",
    "__main__",
)
RANK = {name: number for number, line in enumerate(ORDER) for name in line.split()}


def modules() -> dict[str, Path]:
    names = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        parts = file.relative_to(PACKAGE).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return names


@functools.cache
def statements(file: Path) -> list[ast.Import | ast.ImportFrom]:
    return [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Import | ast.ImportFrom)]


def imports(name: str, file: Path, known: dict[str, Path]) -> set[str]:
    """Modules of this package that a file imports, wherever in the file: lazy and type-checking ones count."""
    package = name.split(".") if file.name == "__init__.py" else name.split(".")[:-1]
    package = [part for part in package if part]
    found: set[str] = set()
    for node in statements(file):
        if isinstance(node, ast.ImportFrom):
            if node.level:
                head = ".".join([*package[: len(package) - node.level + 1], *([node.module] if node.module else [])])
            elif (node.module or "").split(".")[0] == "decondense":
                head = (node.module or "").partition(".")[2]
            else:
                continue
            for alias in node.names:
                inner = f"{head}.{alias.name}".strip(".")
                found.add(inner if inner in known else head)
        else:
            found |= {a.name.partition(".")[2] for a in node.names if a.name.split(".")[0] == "decondense"}
    return found - {name, ""}


def rank(name: str) -> int | None:
    while name and name not in RANK:
        name = name.rpartition(".")[0]
    return RANK.get(name)


def test_imports_go_down_only():
    known = modules()
    graph = {name: imports(name, file, known) for name, file in known.items() if name}
    unranked = [name for name in graph if rank(name) is None]
    assert not unranked, f"give {unranked} a line in ORDER"
    upward = []
    for name, others in graph.items():
        for other in others:
            here, there = rank(name), rank(other)
            same_package = name.split(".")[0] == other.split(".")[0]
            if there > here or (there == here and not same_package):
                upward.append(f"{name} imports {other}")
    assert not upward, sorted(upward)


def test_no_circle_of_imports():
    """A package's __init__ may gather what its modules define, so it is not counted as importing them."""
    known = modules()
    graph = {name: imports(name, file, known) for name, file in known.items() if file.name != "__init__.py"}
    reach = {name: set(others & graph.keys()) for name, others in graph.items()}
    for _ in reach:
        reach = {name: others | {far for near in others for far in reach[near]} for name, others in reach.items()}
    assert not [name for name, others in reach.items() if name in others]


def test_the_page_reads_records_only():
    """Neither torch nor what made the results: what it shows is in the files."""
    allowed = {"words", "files", "needs", "records", "theory", "stats.intervals", "figures", "report"}
    known = modules()
    for name, file in known.items():
        if name.split(".")[0] == "report":
            assert "import torch" not in file.read_text(), file.name
            others = imports(name, file, known)
            assert not {o for o in others if o not in allowed and o.split(".")[0] not in allowed}, name


def test_importing_the_package_is_light():
    """No torch for the help of the command, and no matplotlib, datasets or triton before somebody needs them, nor, for
    the losses, transformers. A recipe that is wrong, or only printed, need not wait for the trainer, five seconds."""
    heavy = "('torch', 'matplotlib', 'datasets', 'triton', 'trl', 'transformers', 'pydantic', 'plotly')"
    code = f"""
import sys, decondense.cli
print([m for m in {heavy} if m in sys.modules])
import decondense.losses
print([m for m in ('transformers', 'triton') if m in sys.modules])
import decondense; decondense.regularize, decondense.losses
print([m for m in {heavy}[1:5] if m in sys.modules], callable(decondense.regularize))
from decondense.train import recipe_from
recipe_from({RECIPE})
print([m for m in ('transformers', 'accelerate', 'peft') if m in sys.modules], flush=True)
import os; os._exit(0)  # without taking torch to pieces
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == ["[]", "[]", "[] True", "[]"]


def test_the_trainer_comes_after_a_recipe(tmp_path):
    """When it is asked for, in a process that has read one."""
    (tmp_path / "later.py").write_text(
        f"from decondense.train import recipe_from\nrecipe_from({RECIPE})\n"
        "import decondense.train as whole\nprint(whole.train.__name__, whole.Run.__name__)"
    )
    run = launch(1, tmp_path / "later.py")
    assert run.stdout == "train Run\n", run.stderr


def test_no_two_files_of_tests_have_one_name():
    """pytest could not collect them together; in a folder with an __init__.py they may."""
    files = [file for file in (ROOT / "tests").rglob("test_*.py") if not (file.parent / "__init__.py").exists()]
    names = [file.name for file in files]
    assert [str(file) for file in files if names.count(file.name) > 1] == []
