"""The page in a real browser: it opens without a word on the console, its controls work, names stay names.

Needs playwright and a chromium (Debian: ``apt-get install chromium``; another with DECONDENSE_CHROMIUM); skipped,
loudly, without.
"""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import time
from pathlib import Path

import pytest
from page_results import (
    HOSTILE,
    write_evaluation,
    write_everything,
    write_measurement,
    write_run,
    write_significance,
    write_study,
)

from decondense.report.page import report

NAMES = ("chromium", "chromium-browser", "google-chrome")
EXECUTABLE = os.environ.get("DECONDENSE_CHROMIUM") or next((p for n in NAMES if (p := shutil.which(n))), None)

try:
    from playwright.sync_api import sync_playwright
except ImportError:
    sync_playwright = None  # type: ignore[assignment]

if EXECUTABLE is None or sync_playwright is None:
    what = "a chromium (apt-get install chromium)" if EXECUTABLE is None else "playwright (pip install playwright)"
    pytest.skip(f"SKIPPED WITHOUT A BROWSER: the page is tested with {what}", allow_module_level=True)


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as driver:
        options = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        found = driver.chromium.launch(executable_path=EXECUTABLE, args=options)
        yield found
        found.close()


@pytest.fixture
def visit(browser):
    """Open a page offline, from disk; at the end there must have been no console message and no request."""
    opened = []

    def go(path: Path, *, width=1280, height=900, **options):
        context = browser.new_context(
            viewport={"width": width, "height": height}, offline=True, accept_downloads=True, **options
        )
        page = context.new_page()
        said: list[str] = []
        page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: said.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (said.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on(
            "request",
            lambda request: said.append(f"request: {request.url[:100]}") if request.url.startswith("http") else None,
        )
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready=yes]")
        opened.append((context, said))
        return page

    yield go
    for context, said in opened:
        context.close()
        assert said == []


@pytest.fixture(scope="module")
def everything(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    report([write_everything(folder / "results")], folder / "page.html")
    return folder / "page.html"


def shown(page, figure: str):
    """Scroll to a chart and wait until it is drawn."""
    page.locator(f"#{figure}").scroll_into_view_if_needed()
    page.wait_for_selector(f"#{figure}[data-drawn] .main-svg")
    return page.locator(f"#{figure}")


def figure_of(page, title: str) -> str:
    return page.evaluate(
        "title => [...document.querySelectorAll('figure.chart')].find("
        "f => f.querySelector('.chart-title').textContent === title).id",
        title,
    )


def heat(page, figure: str) -> list:
    return page.evaluate(f"document.querySelector('#{figure} .plot').data.find(t => t.type === 'heatmap').z")


def download(page, locator) -> tuple[str, bytes]:
    with page.expect_download() as waiting:
        locator.click()
    return waiting.value.suggested_filename, Path(waiting.value.path()).read_bytes()


def test_every_chart_is_drawn(visit, everything):
    page = visit(everything)
    figures = page.evaluate("[...document.querySelectorAll('figure.chart')].map(f => f.id)")
    assert len(figures) > 15
    assert page.locator("figure[data-drawn]").count() < len(figures), "charts out of sight are not drawn"
    for figure in figures:
        shown(page, figure)
        assert page.locator(f"#{figure} .plot .trace, #{figure} .plot .heatmaplayer image").count() > 0
    assert page.locator(".modebar-btn[data-title*='hare']").count() == 0, "no chart can be sent anywhere"


def test_view_is_switched_by_keyboard(visit, everything):
    page = visit(everything)
    figure = figure_of(page, "Density of cosines at every layer")
    shown(page, figure)
    before = heat(page, figure)
    panel = figure.rsplit("-", 1)[0]
    page.locator(f"#{panel} input[value=pooled]").focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function(
        f"JSON.stringify(document.querySelector('#{figure} .plot').data[0].z) !== {json.dumps(json.dumps(before))}"
    )
    assert page.locator(f"#{panel} input[value=released]").is_checked()
    page.wait_for_selector(f"#{figure} .heatmaplayer image")


def test_slider_moves_all_runs(visit, everything):
    page = visit(everything)
    figures = [figure_of(page, name) for name in ("cross-entropy-seed1", "dispersion-seed1")]
    panel = figures[0].rsplit("-", 1)[0]
    for figure in figures:
        shown(page, figure)
    after = [heat(page, figure) for figure in figures]
    slider = page.locator(f"#{panel}-step")
    assert slider.get_attribute("aria-valuetext") == "step 300 · 9.83M tokens"
    slider.focus()
    page.keyboard.press("Home")
    page.wait_for_function(f"document.getElementById('{figures[1]}').dataset.drawn === '0'")
    page.wait_for_function(f"document.getElementById('{figures[0]}').dataset.drawn === '0'")
    before = [heat(page, figure) for figure in figures]
    assert before[0] != after[0]
    assert before[1] != after[1]
    assert page.locator(f"#{panel} output").inner_text() == "step 0 · 0 tokens"
    assert "step 0: Spearman" in page.locator(f"#{figures[1]} .caption").inner_text()
    page.keyboard.press("ArrowRight")
    page.wait_for_function(f"document.getElementById('{figures[1]}').dataset.drawn === '100'")
    page.locator(f"#{panel} button[data-jump=last]").click()
    page.wait_for_function(f"document.getElementById('{figures[1]}').dataset.drawn === '300'")
    assert heat(page, figures[1]) == after[1]


def test_hover_names_layer_cosine_and_density(visit, everything):
    page = visit(everything)
    figure = figure_of(page, "Density of cosines at every layer")
    box = shown(page, figure).locator(".nsewdrag").first.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_selector(f"#{figure} .hovertext")
    words = page.locator(f"#{figure} .hovertext").first.text_content()
    assert "layer" in words
    assert "cosine" in words
    assert "density" in words


def test_downloads(visit, everything):
    page = visit(everything)
    figure = figure_of(page, "Density of cosines at every layer")
    chart = shown(page, figure)
    name, body = download(page, chart.locator("[data-download=png]"))
    assert name.endswith(".png")
    assert body[:8] == b"\x89PNG\r\n\x1a\n"
    assert len(body) > 10_000
    name, body = download(page, chart.locator("[data-download=csv]"))
    rows = list(csv.DictReader(io.StringIO(body.decode())))
    assert set(rows[0]) == {"view", "step", "layer", "cosine", "density"}
    assert {row["view"] for row in rows} == {"pooled", "released"}
    total = sum(float(row["density"]) for row in rows if row["view"] == "pooled" and row["layer"] == "3") / 64
    assert abs(total - 1) < 0.001, "a density over [−1, 1] integrates to 1"
    name, body = download(page, chart.locator("[data-download=json]"))
    assert json.loads(body)["frames"][0]["traces"][0]["type"] == "heatmap"
    figure = figure_of(page, "Task loss while training")
    _, body = download(page, shown(page, figure).locator("[data-download=csv]"))
    rows = list(csv.DictReader(io.StringIO(body.decode())))
    assert len(rows) == 4 * 300
    assert set(rows[0]) == {"run", "step", "tokens", "task_loss"}
    assert rows[-1]["run"] == "dispersion-seed2"
    _, body = download(page, page.locator("[data-download=table]").first)
    assert body.decode().splitlines()[0] == "width,seed,spearman"
    _, body = download(page, page.locator("[data-download=picture]").first)
    assert body[:4] == b"\x89PNG"
    section = page.locator("[data-download=section]").first
    _, body = download(page, section)
    assert json.loads(body)["origins"][0]["command"].startswith("decondense study")
    _, body = download(page, page.locator("[data-download=all]"))
    assert len(json.loads(body)) == page.locator("section").count()


def test_a_hostile_name_is_shown_as_text(visit, tmp_path):
    folder = tmp_path / "results"
    write_measurement(folder / "m", layers=3, name=HOSTILE, text=HOSTILE)
    write_run(folder / "t", layers=3, steps=20, snapshots=(0, 20), name=HOSTILE)
    write_run(
        folder / "u" / HOSTILE.replace("/", "_")[:60], layers=3, steps=20, snapshots=(0, 20), name=HOSTILE, weight=0
    )
    write_study(folder / "s", study=HOSTILE, sentence=HOSTILE, table={"columns": [HOSTILE], "rows": [[HOSTILE]]})
    write_evaluation(folder / "e", name=HOSTILE)
    record = write_significance(folder / "g", name=HOSTILE)
    record["tasks"][0]["task"] = HOSTILE
    (folder / "g" / "result.json").write_text(json.dumps(record))
    report([folder], tmp_path / "page.html", title=HOSTILE)
    page = visit(tmp_path / "page.html")
    assert page.title() == HOSTILE
    assert page.locator("h1").inner_text() == HOSTILE
    for figure in page.evaluate("[...document.querySelectorAll('figure.chart')].map(f => f.id)"):
        shown(page, figure)
    assert page.locator("main script, main img:not([src^='data:image/png'])").count() == 0
    forest = figure_of(page, "Benchmarks: treated − base")
    ticks = page.locator(f"#{forest} .yaxislayer-above text, #{forest} .ytick text").all_text_contents()
    assert any(HOSTILE in text for text in ticks)


def test_forty_results_open_in_three_seconds(visit, tmp_path):
    for k in range(20):
        write_measurement(tmp_path / "r" / f"m{k}", seed=k, end=0.3 + 0.02 * k, windows=3)
        write_run(tmp_path / "r" / f"t{k}", seed=k, weight=0.01 * k, snapshots=(0, 60, 120, 180, 240, 300))
    target = tmp_path / "page.html"
    report([tmp_path / "r"], target)
    assert target.stat().st_size < 15e6
    times = []
    for _ in range(3):  # another process may have the processor: the best of three
        begun = time.monotonic()
        page = visit(target)
        figure = page.locator("figure.chart").first
        figure.scroll_into_view_if_needed()
        page.wait_for_selector("figure[data-drawn] .main-svg")
        times.append(time.monotonic() - begun)
    print(f"open, to the first chart: {min(times):.2f} s; {target.stat().st_size / 1e6:.1f} MB")
    assert min(times) < 3


@pytest.mark.parametrize("width", [360, 390, 768])
def test_nothing_is_wider_than_the_screen(visit, everything, width):
    page = visit(everything, width=width, height=800, is_mobile=True, has_touch=True)
    for figure in page.evaluate("[...document.querySelectorAll('figure.chart')].map(f => f.id)"):
        shown(page, figure)
    page.locator("[data-fold=open]").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    wide = page.evaluate(
        "[...document.querySelectorAll('.main-svg')]"
        ".filter(e => e.getBoundingClientRect().right > innerWidth + 1).length"
    )
    assert wide == 0


def test_dark_and_light(visit, everything):
    page = visit(everything, color_scheme="dark")
    figure = figure_of(page, "Task loss while training")
    shown(page, figure)
    paper = f"document.querySelector('#{figure} .plot').layout.paper_bgcolor"
    assert page.evaluate(paper) == "#15171a"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(21, 23, 26)"
    page.emulate_media(color_scheme="light")
    page.wait_for_function(f"{paper} === '#ffffff'")


def test_everything_can_be_reached_by_keyboard(visit, everything):
    page = visit(everything)
    reached = set()
    for _ in range(400):
        page.keyboard.press("Tab")
        where = page.evaluate(
            "(() => { const e = document.activeElement; return [e.tagName, e.dataset.download || e.dataset.fold || "
            "e.dataset.jump || e.type || e.className || '', getComputedStyle(e).outlineStyle] })()"
        )
        if where[0] != "BODY":
            assert where[2] != "none", f"no focus is to be seen on {where}"
        reached.add(tuple(where[:2]))
    for kind in ("png", "csv", "json", "table", "all", "open", "first"):
        assert ("BUTTON", kind) in reached
    assert ("INPUT", "range") in reached
    assert ("INPUT", "radio") in reached
    assert any(tag == "SUMMARY" for tag, _ in reached)
    named = page.evaluate(
        "[...document.querySelectorAll('input')].filter(i => !i.labels.length && !i.getAttribute('aria-label')).length"
    )
    assert named == 0


def test_it_prints_with_all_charts(visit, everything, tmp_path):
    page = visit(everything, color_scheme="dark")
    page.pdf(path=tmp_path / "page.pdf", format="A4")
    assert (tmp_path / "page.pdf").stat().st_size > 100_000
    assert page.locator("figure.chart[data-drawn]").count() == page.locator("figure.chart").count()


def test_the_command_can_be_copied(visit, everything):
    page = visit(everything, permissions=["clipboard-read", "clipboard-write"])
    page.locator("[data-copy]").first.click()
    page.wait_for_function("document.querySelector('[data-copy]').textContent !== 'Copy'")
    assert page.locator("[data-copy]").first.inner_text() in ("Copied", "Selected")
