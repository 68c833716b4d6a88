"""Benchmark CSV files: one definition of what every row says, and a sentence for a file that does not fit."""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture
def harness(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield __import__("harness")
    sys.modules.pop("harness", None)


def test_what_is_written_is_read_with_where_it_comes_from(harness, tmp_path):
    harness.write("x", [{"variant": "a", "ms": 1.234567}, {"variant": "b, c"}], tmp_path)
    first, second = harness.read("x", tmp_path)
    assert (first["variant"], first["ms"], second["variant"], second["ms"]) == ("a", "1.2346", "b, c", "")
    assert all(first[column] == second[column] for column in harness.ENVIRONMENT)
    with pytest.raises(SystemExit, match=r"x\.csv has no column 'ratio': make it again"):
        first["ratio"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b\n1,2\n", "has no column 'date'"),
        ("a,b\n1,2,3\n", "line 2, must have a cell per column"),
        ("a,b\n1\n", "line 2, must have a cell per column"),
    ],
)
def test_a_file_that_does_not_fit(harness, tmp_path, content, message):
    (tmp_path / "x.csv").write_text(content)
    with pytest.raises(SystemExit, match=message):
        harness.read("x", tmp_path)
    with pytest.raises(SystemExit, match="does not exist: run its benchmark first"):
        harness.read("y", tmp_path)


@pytest.mark.parametrize(
    "script", sorted([*BENCHMARKS.glob("*.py"), *BENCHMARKS.parent.glob("examples/*.py")]), ids=lambda p: p.stem
)
def test_what_a_script_imports_is_there(script):
    """Scripts are run by hand and seldom: a name that was renamed under them shows here."""
    imports = [n for n in ast.walk(ast.parse(script.read_text())) if isinstance(n, (ast.Import, ast.ImportFrom))]
    for node in imports:
        origin = node.module or "" if isinstance(node, ast.ImportFrom) else ""
        for name in [alias.name for alias in node.names]:
            if f"{origin or name}.".startswith("decondense."):
                module = importlib.import_module(origin or name)
                assert not origin or hasattr(module, name) or importlib.import_module(f"{origin}.{name}"), name
            elif (beside := BENCHMARKS / f"{origin}.py").exists() and origin:
                defined = ast.parse(beside.read_text()).body
                names = {getattr(d, "name", None) for d in defined} | {
                    t.id for d in defined for t in ast.walk(d) if isinstance(t, ast.Name)
                }
                assert name in names, f"{origin}.{name}"
