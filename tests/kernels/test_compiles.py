"""Machine code for a GPU, made without one: that the kernels compute the right numbers is for the interpreter to say,
that Triton's compiler takes them, with an addition to another gradient and without, is seen here."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import decondense.kernels

HERE = Path(__file__).parent


def launched() -> set[tuple[str, str]]:
    """(module, kernel) of everything that is jitted and called a kernel."""
    found = set()
    for file in Path(decondense.kernels.__file__).parent.glob("*.py"):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.endswith("_kernel") and node.decorator_list:
                found.add((file.stem, node.name))
    return found


@pytest.mark.parametrize("arguments", [["90"], pytest.param(["80", "all"], marks=pytest.mark.slow)], ids="-".join)
def test_every_kernel_compiles_for_a_gpu(arguments, tmp_path):
    settings = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"TRITON_CACHE_DIR": str(tmp_path)}
    settings |= {} if "all" in arguments else {"DISABLE_LLVM_OPT": "1"}  # a fifth of the time
    command = [sys.executable, HERE / "offline.py", *arguments]
    run = subprocess.run(command, capture_output=True, text=True, env=settings)
    assert run.returncode == 0, run.stderr[-4000:]
    made = [tuple(line.split()) for line in run.stdout.splitlines()]
    assert launched() == set(made)
    gradients = [name for name in made if name[1] in ("_project_kernel", "_gradient_kernel")]
    assert len(gradients) >= 2 * len(set(gradients)), "by itself and added to another"
