"""A machine that only trains has neither lm-eval nor plotly, datasets or gguf."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import yaml

from train.runs import content, result

WITHOUT = """
import sys
from importlib.machinery import PathFinder

MISSING = {"datasets", "gguf", "lm_eval", "plotly"}
own = PathFinder.find_spec

class Poorer(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.split(".")[0] in MISSING else own(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Poorer
from decondense.cli import main

main(["train", *sys.argv[1:]])
"""


def test_training_needs_none_of_what_evaluates_or_reports(tmp_path, cache):
    recipe = content("data.held_out=pydoc", "snapshots.count=1", "loss={name: decorrelation, layers: last}")
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    environment = os.environ | {"DECONDENSE_CACHE": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", WITHOUT, "recipe.yaml", "--out", "run"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert result(tmp_path / "run")["finished"]
    assert (Path(tmp_path) / "run" / "training.png").is_file()
