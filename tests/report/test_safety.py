"""One file that asks for nothing, and in which no name can become more than text."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

from page_results import (
    HOSTILE,
    data_of,
    traces,
    without_library,
    write_evaluation,
    write_json,
    write_measurement,
    write_run,
    write_runs,
    write_significance,
    write_study,
)  # fmt: skip

from decondense.report.page import Pool, collect, render, to_json

ROOT = Path(__file__).resolve().parents[2]


def test_a_hostile_name_is_text(tmp_path):
    write_measurement(tmp_path / "m", layers=3, name=HOSTILE, text=HOSTILE)
    record = write_run(tmp_path / "t", layers=3, steps=20, snapshots=(0, 20), name=HOSTILE, text=HOSTILE)
    record["recipe"]["loss"]["name"] = HOSTILE  # which is the name of an arm
    write_json(tmp_path / "u", record | {"snapshots": []})
    write_study(
        tmp_path / "s", study=HOSTILE, claim=HOSTILE, sentence=HOSTILE, verdict=HOSTILE, config={HOSTILE: HOSTILE}
    )
    write_runs(tmp_path / "s", (HOSTILE, "plain"))
    write_evaluation(tmp_path / "e", name=HOSTILE)
    write_significance(tmp_path / "g", name=HOSTILE)
    write_json(tmp_path / "b", {"schema": HOSTILE})
    content = collect([tmp_path])
    for chart in (chart for section in content.sections for panel in section.panels for chart in panel.charts):
        for trace in (trace for frame in chart.frames for trace in traces(frame)):
            for words in (str(trace.get("name")), str(trace.get("hovertemplate")), str(trace.get("customdata"))):
                assert "<script" not in words
                assert "amp;%{x}" not in words, "plotly fills that in"
    text = without_library(render(content, title=HOSTILE))
    assert text.count("<script") == text.count("</script>") == 3, "two of data, one of the page"
    assert "<img" not in text.replace('<img src="data:image/png;base64', "")
    assert "<script>alert" not in text
    assert HOSTILE not in text
    data, _ = data_of(text)
    assert HOSTILE in data["sections"]["r1"]["title"]


def test_json_in_the_page_cannot_end_its_element():
    text = to_json({"a": "</script><!--\u2028&", "b": [float("nan"), float("inf"), 1.5], "c": Path("x")})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"a": "</script><!--\u2028&", "b": [None, None, 1.5], "c": "x"}


def test_long_lists_are_stored_once():
    pool = Pool()
    first = pool.pack({"x": list(range(20)), "y": [1, 2]})
    second = pool.pack([{"z": list(range(20))}, [[1] * 10, [2] * 10]])
    assert first == {"x": {"$": 0}, "y": [1, 2]}
    assert second == [{"z": {"$": 0}}, {"$": 1}]
    assert json.loads(pool.to_json()) == [list(range(20)), [[1] * 10, [2] * 10]]


def test_one_file_that_asks_for_nothing(page):
    rest = without_library(page)
    assert page.startswith("<!DOCTYPE html>")
    assert page.count("* plotly.js v") == 1
    assert "default-src &#39;none&#39;" in rest
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", rest)
    assert "@import" not in rest
    assert "url(" not in rest
    assert "showSendToCloud: false" in rest
    assert str(ROOT) not in rest


def test_the_policy_names_the_scripts(page):
    import base64
    import hashlib

    policy = html.unescape(re.search(r'Content-Security-Policy" content="(.*?)"', page)[1])
    scripts = re.findall(r'<script(?: type="text/plain" id="plotly")?>(.*?)</script>', page, re.DOTALL)
    assert len(scripts) == 2
    for script in scripts:
        assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() in policy
    assert "unsafe-inline" not in policy.split("style-src")[0]


def test_the_same_results_give_the_same_bytes(everything, page):
    assert render(collect([everything])) == page


def test_forty_results_stay_under_ten_megabytes(forty):
    assert 5e6 < forty.stat().st_size < 10e6
    data, _ = data_of(forty.read_text())
    assert sum(len(section["origins"]) for section in data["sections"].values()) == 40
