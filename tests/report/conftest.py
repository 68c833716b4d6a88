from __future__ import annotations

from pathlib import Path

import pytest
from page_results import write_measurement, write_run

from decondense.report.page import report


@pytest.fixture(scope="session")
def forty(tmp_path_factory) -> Path:
    """The page of 20 measurements with both views and 20 training runs with 6 snapshots, all of 30 layers."""
    folder = tmp_path_factory.mktemp("forty")
    for k in range(20):
        write_measurement(folder / "r" / f"m{k}", seed=k, end=0.3 + 0.02 * k, windows=3)
        write_run(folder / "r" / f"t{k}", seed=k, weight=0.01 * k, snapshots=(0, 60, 120, 180, 240, 300))
    report([folder / "r"], folder / "page.html")
    return folder / "page.html"
