"""The notebook runs from top to bottom, small, and says what it should."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).resolve().parent.parent / "examples" / "first_look.ipynb"


def cells() -> list[dict]:
    return json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]


@pytest.mark.slow
def test_first_look_runs(tmp_path):
    code = "\n".join("".join(cell["source"]) + "\n" for cell in cells() if cell["cell_type"] == "code")
    environment = os.environ | {"FIRST_LOOK_SMALL": "1", "MPLBACKEND": "agg", "HF_HUB_OFFLINE": "1"}
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr[-2000:]
    assert "a small GPT2 with random weights instead" in run.stdout
    (treated, without) = re.search(
        r"after 6 steps: (\S+) with the loss, (\S+) without. It is lower", run.stdout
    ).groups()
    assert float(treated) <= float(without)
    assert (tmp_path / "first_look_heatmap.png").is_file()


def test_first_look_is_committed_without_outputs():
    """They would hold a machine's paths and grow with every run."""
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells() if "outputs" in cell)
