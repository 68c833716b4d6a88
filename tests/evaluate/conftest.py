"""A real small model, real benchmark items, and runs made by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from by_hand import make_item


@pytest.fixture(scope="session", autouse=True)
def _no_network():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("HF_DATASETS_OFFLINE", "1")
        yield


@pytest.fixture(scope="session")
def bench(shared) -> Path:
    return shared / "data" / "bench"


@pytest.fixture(scope="session")
def stories(shared) -> Path:
    return shared / "models" / "stories260K"


@pytest.fixture(scope="session")
def pair(stories) -> tuple[Any, Any]:
    from decondense import models

    return models.load(stories, device="cpu")


@pytest.fixture
def make_run(tmp_path):
    """make_run(name, {task: outcomes}, weights=…, checkpoint=…, settings=…) → folder."""
    from decondense.evaluate.items import SCHEMA, write_items

    def make(name: str, outcomes: dict[str, Any], **changes: Any) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        items = [
            row if isinstance(row, dict) else make_item(task, n, row)
            for task, rows in outcomes.items()
            for n, row in enumerate(rows)
        ]
        write_items(folder / "items.parquet", items)
        checkpoint = {"selected_by": "final", "step": None, "steps": None, "final": None, "training_seed": None}
        record = {
            "schema": SCHEMA,
            "model": {"name": name, "description": name, "weights": changes.get("weights", name)},
            "settings": {"shots": "gpt2", "limit": None, "seed": 1234} | changes.get("settings", {}),
            "checkpoint": checkpoint | changes.get("checkpoint", {}),
        }
        record["model"] |= changes.get("model", {})
        (folder / "result.json").write_text(json.dumps(record))
        return folder

    return make
