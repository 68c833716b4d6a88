"""The page for those who compare, who do not see well, or who listen; in a real browser, as test_browser.py."""

from __future__ import annotations

import importlib.util
import os
from itertools import pairwise, product
from pathlib import Path

import pytest
from browsing import shown, table, until
from page_results import (
    report,
    write_evaluation,
    write_measurement,
    write_run,
    write_runs,
    write_significance,
    write_study,
)


def test_any_two_are_compared_layer_by_layer(visit, tmp_path):
    deep = write_measurement(tmp_path / "r" / "deep", layers=8, windows=2, name="org/deep", final_norm=True)
    flat = write_measurement(tmp_path / "r" / "flat", layers=4, windows=2, name="org/flat", end=0.2, final_norm=True)
    report([tmp_path / "r"], tmp_path / "page.html")
    page = visit(tmp_path / "page.html")
    for figure in ("compare-p0-c0", "compare-p0-c1"):
        shown(page, figure)
    wanted = [page.locator("#compare-a option", has_text=name).get_attribute("value") for name in ("deep", "flat")]
    for select, value in zip(("a", "b"), wanted):
        page.locator(f"#compare-{select}").select_option(value)
    rows = table(page, page.locator("#compare-p0-c1 [data-download=csv]"))
    assert len(rows) == 9
    a, b = (result.mean_cosine.tolist() for result in (deep, flat))
    for layer, row in enumerate(rows):
        half = layer // 2
        other = b[half] if layer % 2 == 0 else (b[half] + b[half + 1]) / 2
        if layer == 7:  # between a state before the final norm and one after it there is nothing to read
            assert row["difference"] == ""
        else:
            assert float(row["difference"]) == pytest.approx(a[layer] - other, abs=1e-5)
    until(page, "document.querySelector('#compare-p0-c1 .plot').data[0].y.length === 8")
    page.locator("#compare-b").select_option(wanted[0])
    assert page.locator("#compare-words").inner_text().startswith("0.0000 in the mean")


LUMINANCE = """(name) => {
  const style = getComputedStyle(document.documentElement);
  const hex = style.getPropertyValue(name).trim();
  const part = (i) => { const c = parseInt(hex.slice(i, i + 2), 16) / 255; return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
  return 0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5);
}"""  # noqa: E501


def test_text_can_be_told_from_its_ground(visit, tmp_path):
    write_evaluation(tmp_path / "r")
    report([tmp_path / "r"], tmp_path / "page.html")
    page = visit(tmp_path / "page.html")
    grounds = set()
    for scheme, ground in product(("light", "dark"), ("--paper", "--wash")):
        page.emulate_media(color_scheme=scheme)
        below = page.evaluate(LUMINANCE, ground)
        grounds.add(below)
        for name in ("--ink", "--soft", "--faint", "--link", "--warn"):
            light, dark = sorted((below, page.evaluate(LUMINANCE, name)), reverse=True)
            enough = (light + 0.05) / (dark + 0.05) >= 4.5 or (name, ground) == ("--faint", "--wash")
            assert enough, (scheme, name, ground)
    assert len(grounds) == 4, "dark is another than light"


def test_a_screen_reader_finds_its_way(visit, page_file):
    """What axe-core calls serious, and which can go wrong here."""
    page = visit(page_file)
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))
    levels = page.evaluate("[...document.querySelectorAll('h1, h2, h3, h4')].map(h => Number(h.tagName[1]))")
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels)), "no level is left out"
    regions = page.evaluate("[...document.querySelectorAll('[role=region]')].map(e => e.ariaLabel || e.innerText)")
    assert len(regions) == len(set(regions))
    assert page.locator("main").count() == page.locator("nav[aria-label]").count() == 1
    assert page.locator("img:not([alt]), [role=img]:has(a, button, [tabindex])").count() == 0
    assert page.locator("table:not(:has(th[scope=col]))").count() == 0
    nameless = "[...document.querySelectorAll('button, a, summary')].filter(e => !e.textContent.trim() && !e.ariaLabel)"
    assert page.evaluate(f"{nameless}.filter(e => !e.closest('.plot')).length") == 0


def test_axe_finds_nothing_serious(browser, tmp_path):
    """Every kind of result, unfolded, on a desk by day and on a phone by night."""
    found = importlib.util.find_spec("axe_playwright_python")
    script = os.environ.get("DECONDENSE_AXE") or (found and Path(str(found.origin)).with_name("axe.min.js"))
    if not script:
        pytest.skip("SKIPPED WITHOUT AXE: pip install axe-playwright-python, or name its file in DECONDENSE_AXE")
    write_study(tmp_path / "r" / "study")
    write_runs(tmp_path / "r" / "study", layers=3)
    write_significance(tmp_path / "r" / "significance")
    write_run(tmp_path / "r" / "run", layers=3, steps=20, snapshots=(0, 20), released=True)
    write_measurement(tmp_path / "r" / "measured", layers=3, windows=2)
    write_evaluation(tmp_path / "r" / "evaluated")
    report([tmp_path / "r"], tmp_path / "page.html")
    page = browser.new_page(bypass_csp=True)
    page.goto((tmp_path / "page.html").as_uri())
    page.locator("[data-fold=open]").click()
    page.wait_for_selector("#r1 figure[data-drawn] .main-svg")
    page.evaluate(Path(script).read_text(encoding="utf-8"))
    for scheme, width in (("light", 1280), ("dark", 390)):
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": width, "height": 800})
        violations = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
        serious = [v for v in violations if v["impact"] in ("serious", "critical")]
        assert [(v["id"], v["nodes"][0]["html"]) for v in serious] == []
    page.close()
