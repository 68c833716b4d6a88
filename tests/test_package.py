"""The package as a whole: which module may import which, and whether a wheel works without the source tree."""

from __future__ import annotations

import ast
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "decondense"

# Who may import whom: a module may import what stands to its left, never what stands to its right.
ORDER = [
    ["geometry"],
    ["kernels"],
    ["losses"],
    ["hidden_states"],
    ["regularizer"],
    ["integrations"],
    ["train"],
]


def imports(file: Path) -> set[str]:
    """Top-level modules of this package that a file imports, wherever in the file."""
    found: set[str] = set()
    depth = len(file.relative_to(PACKAGE).parts)
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == depth:
            found |= {node.module.split(".")[0]} if node.module else {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and (node.module or "").startswith("decondense."):
            found.add(node.module.split(".")[1])
    return found


def test_imports_go_one_way():
    rank = {name: i for i, group in enumerate(ORDER) for name in group}
    wrong = []
    for file in PACKAGE.rglob("*.py"):
        here = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if here == "__init__":
            continue
        for other in imports(file):
            # regularizer opens the door to trainers only when it is handed one
            if here in rank and rank.get(other, -1) > rank[here] and (here, other) != ("regularizer", "integrations"):
                wrong.append(f"{file.relative_to(PACKAGE)} imports {other}")
            if here == "cli" or other == "cli":
                continue
            if here in rank and here != "train" and other in ("meter", "models", "text", "report"):
                wrong.append(f"{file.relative_to(PACKAGE)} imports {other}")
    assert not wrong


def test_report_never_imports_torch():
    for file in (PACKAGE / "report").rglob("*.py"):
        assert "import torch" not in file.read_text(), file.name


def test_importing_the_package_is_light():
    """No torch for the help of the command, and no matplotlib, datasets or triton before somebody needs them."""
    heavy = "('torch', 'matplotlib', 'datasets', 'triton', 'trl', 'transformers', 'pydantic', 'plotly')"
    code = (
        f"import sys, decondense.cli; print([m for m in {heavy} if m in sys.modules]); "
        "import decondense; decondense.regularize, decondense.losses; "
        f"print([m for m in {heavy}[1:5] if m in sys.modules], callable(decondense.regularize))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == ["[]", "[] True"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(folder)]
    subprocess.run([*command, str(ROOT)], check=True, capture_output=True)
    (file,) = folder.glob("decondense-*.whl")
    return file


def test_wheel_installs_and_imports_without_the_source_tree(wheel, tmp_path):
    """A clean environment that sees this one's torch and transformers, but not the source tree."""
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env" / "bin" / "python"
    target = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    site = next(p for p in sys.path if p.endswith("site-packages"))
    code = (
        f"import sys; sys.path[:0] = [{str(target)!r}]; sys.path.append({site!r}); import decondense, torch; "
        "print(decondense.__file__); print(float(decondense.losses.dispersion(torch.eye(4).unsqueeze(0)))); "
        "import decondense.cli, decondense.models"
    )
    run = subprocess.run([str(python), "-I", "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    where, value = run.stdout.split()
    assert where.startswith(str(target))
    assert float(value) == pytest.approx(-0.5, abs=1e-3)
    assert (target / "decondense" / "families.yaml").is_file()
    assert (target / "decondense" / "py.typed").is_file()
    assert (target / "decondense" / "report" / "templates" / "page.js").is_file()
