"""A real small model, real benchmark items, and runs made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session", autouse=True)
def _no_network():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("HF_DATASETS_OFFLINE", "1")
        patch.delenv("DECONDENSE_BENCH", raising=False)
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


@pytest.fixture(scope="session")
def whole(stories, bench):
    """Eight items of two tasks: (record, items)."""
    from decondense.evaluate.harness import evaluate

    return evaluate(stories, bench=bench, tasks="piqa,winogrande", limit=8, device="cpu")
