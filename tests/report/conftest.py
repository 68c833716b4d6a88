from __future__ import annotations

import os
from pathlib import Path

import pytest
from page_results import report, write_everything, write_measurement, write_run, write_runs, write_study

from decondense.files import locked


@pytest.fixture(scope="session")
def forty(tmp_path_factory) -> Path:
    """The page of 14 measurements with both views, 13 training runs with 6 snapshots and 13 studies of 4 arms with 8
    snapshots and 2 seeds, all of 30 layers. Workers, whose folders lie side by side, share it."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if os.environ.get("PYTEST_XDIST_WORKER") else own) / "forty"
    with locked(folder.with_suffix(".lock")):
        if not (folder / "page.html").exists():
            write_forty(folder)
    return folder / "page.html"


def write_forty(folder: Path) -> None:
    for k in range(14):
        write_measurement(folder / "r" / f"m{k}", seed=k, end=0.3 + 0.02 * k, windows=3)
    for k in range(13):
        write_run(folder / "r" / f"t{k}", seed=k, weight=0.01 * k, snapshots=(0, 60, 120, 180, 240, 300))
        study = folder / "r" / f"s{k}"
        write_study(study, study=f"study-{k}")
        write_runs(study, ("a", "b", "c", "d"), (1, 2), layers=30, steps=range(0, 80, 10))
    report([folder / "r"], folder / "page.html")


@pytest.fixture(scope="session")
def everything(tmp_path_factory) -> Path:
    return write_everything(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="session")
def page_file(everything, tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("page") / "page.html"
    report([everything], file)
    return file


@pytest.fixture(scope="session")
def page(page_file) -> str:
    return page_file.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def browser():
    from browsing import EXECUTABLE, sync_playwright

    with sync_playwright() as driver:
        options = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        found = driver.chromium.launch(executable_path=EXECUTABLE, args=options)
        yield found
        found.close()


@pytest.fixture
def visit(browser):
    """Open a page of its own; at the end there must have been no console message and no request."""
    from browsing import open_page

    opened = []

    def go(path: Path, **options):
        page, said = open_page(browser, path, **options)
        opened.append((page, said))
        return page

    yield go
    for page, said in opened:
        page.context.close()
        assert said == []
