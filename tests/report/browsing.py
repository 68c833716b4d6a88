"""A chromium, if there is one, and what the tests of the page do with it."""

from __future__ import annotations

import csv
import io
import os
import shutil
import time
from pathlib import Path

import pytest

# The first has no window that it could open, and takes a fifth less of the processor.
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
EXECUTABLE = os.environ.get("DECONDENSE_CHROMIUM") or next((p for n in NAMES if (p := shutil.which(n))), None)

try:
    from playwright.sync_api import sync_playwright
except ImportError:
    sync_playwright = None  # type: ignore[assignment]

if EXECUTABLE is None or sync_playwright is None:
    browser, driver = "a chromium (apt-get install chromium-headless-shell)", "playwright (pip install playwright)"
    what = browser if EXECUTABLE is None else driver
    pytest.skip(f"SKIPPED WITHOUT A BROWSER: the page is tested with {what}", allow_module_level=True)


def open_page(browser, path: Path, *, width=1280, height=900, **options):
    """A page opened offline, from disk, and the list of everything it should not have said or asked for."""
    context = browser.new_context(
        viewport={"width": width, "height": height}, offline=True, accept_downloads=True, **options
    )
    page = context.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: said.append(f"error: {error}"))
    page.on("dialog", lambda dialog: (said.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    page.on("request", lambda request: said.append(request.url[:99]) if request.url.startswith("http") else None)
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-ready=yes]")
    return page, said


def until(page, expression: str, seconds=20.0) -> None:
    """Wait for an expression to be true. (The page's policy forbids what playwright's own waiting does.)"""
    end = time.monotonic() + seconds
    while not page.evaluate(expression):
        assert time.monotonic() < end, f"never true: {expression}"
        time.sleep(0.02)


def drawn(page, figure: str, state: str) -> None:
    """Wait until a chart shows that view or step."""
    until(page, f"document.getElementById('{figure}').dataset.drawn === '{state}'")


def shown(page, figure: str):
    """Unfold and scroll to a chart, and wait until it is drawn. (In a page of many charts playwright's own selectors
    take as long as a chart.)"""
    unfold(page, f"details:has(#{figure})")
    page.evaluate("id => document.getElementById(id).scrollIntoView({ block: 'nearest' })", figure)
    until(page, f"document.querySelector('#{figure}[data-drawn] .main-svg')?.getBoundingClientRect().height > 0")
    return page.locator(f"#{figure}")


def unfold(page, selector: str) -> None:
    page.evaluate("s => document.querySelectorAll(s).forEach(d => { d.open = true })", selector)


def figure_of(page, title: str, kind="") -> str:
    """The first chart of that title, in a section of that kind if one is given."""
    return page.evaluate(
        "([title, kind]) => [...document.querySelectorAll(`section${kind} figure.chart`)].find("
        "f => f.querySelector('.chart-title').textContent === title).id",
        [title, kind and f"[data-kind={kind}]"],
    )


def heat(page, figure: str) -> list:
    return page.evaluate(f"document.querySelector('#{figure} .plot').data.find(t => t.type === 'heatmap').z")


def download(page, locator) -> tuple[str, bytes]:
    with page.expect_download() as waiting:
        locator.click()
    return waiting.value.suggested_filename, Path(waiting.value.path()).read_bytes()


def table(page, locator) -> list[dict[str, str]]:
    """A CSV that is downloaded."""
    return list(csv.DictReader(io.StringIO(download(page, locator)[1].decode())))
