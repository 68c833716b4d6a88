"""The page without a browser: what is found, what is shown, what is refused."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from by_hand import cli
from page_results import (
    data_of,
    estimates,
    lines_of,
    png,
    section_of,
    traces,
    whole,
    without_library,
    write_comparison,
    write_evaluation,
    write_measurement,
    write_run,
    write_significance,
    write_study,
)  # fmt: skip

from decondense.figures.chart import Axis, Chart, Frame, Series
from decondense.report.page import KINDS, collect, page_data, render
from decondense.report.plotly import layout
from decondense.report.sections import GLOSS

ROOT = Path(__file__).resolve().parents[2]


def escaped(words: str) -> str:
    """As jinja2 writes it."""
    return html.escape(words).replace("&#x27;", "&#39;").replace("&quot;", "&#34;")


# -- what is found -------------------------------------------------------------------------------------------


def test_every_kind_is_found_and_conclusions_come_first(everything):
    content = collect([everything])
    assert not content.skipped
    assert set(content.counts) == set(KINDS)
    assert content.counts == {
        "study": 2, "significance": 1, "training": 4, "comparison": 1, "measurement": 4, "evaluation": 1,
    }  # fmt: skip
    kinds = [section.kind for section in content.sections]
    assert kinds == sorted(kinds, key=list(KINDS).index)
    assert kinds.count("training") == 1, "runs of one model on one text stand in one section"
    assert "Hardware: NVIDIA H200; cuda (kind not recorded)" in render(content)


def test_results_of_one_name_are_told_apart_by_their_folders(tmp_path):
    for name in ("a", "b"):
        write_measurement(tmp_path / name)
    sections = collect([tmp_path]).sections
    assert len({section.title for section in sections}) == 2
    assert [depth.name for section in sections for depth in section.depths] == [section.title for section in sections]


def test_a_measurement_is_listed_with_its_trend_by_rank_and_its_level():
    """Gemma's tokens are far more alike in the blocks than in the embedding, whatever the order of the blocks."""
    (section,) = collect([ROOT / "results" / "gemma-3-270m-wikitext2"]).sections
    assert section.word == "no clear trend"
    assert re.search(r"Spearman −0\.04 \[.*\], mean cosine of the blocks 0\.87 \[0\.8\d, 0\.8\d\]", section.lines[0])
    assert section.gloss.startswith("By rank, the mean cosine neither rises nor falls clearly with depth")
    assert all(words.startswith("By rank, ") for words in GLOSS.values())


def test_a_long_label_below_a_chart_is_broken_into_lines():
    ticks = [(0, "model (8 windows, tokens 128, spectral False)"), (1, "a&b")]
    chart = Chart("", Axis("", ticks=ticks), Axis("", ticks=ticks), [Frame([Series([0, 1], [0, 1])])])
    below, beside = (layout(chart)[axis]["ticktext"] for axis in ("xaxis", "yaxis"))
    assert below == ["model (8 windows,<br>tokens 128, spectral<br>False)", "a&amp;b"]
    assert beside == ["model (8 windows, tokens 128, spectral False)", "a&amp;b"]


def test_the_same_result_twice_is_shown_once(everything):
    twice = collect([everything, everything / "measured", everything / "measured" / "result.json"])
    assert twice.counts == collect([everything]).counts


def test_what_cannot_be_read_is_named_and_the_rest_is_shown(tmp_path):
    write_measurement(tmp_path / "good", layers=3)
    bad = {
        "broken": "{not json",
        "list": "[1]",
        "stranger": '{"schema": "other/1"}',
        "nameless": '{"a": 1}',
        "empty": '{"schema": "decondense.condensation/1"}',
        "halftrain": '{"schema": "decondense.train/2", "history": []}',
        "halfstudy": '{"schema": "decondense.study/2", "study": "x"}',
        "binary": "\x00\x01",
    }
    for name, text in bad.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "result.json").write_text(text)
    (tmp_path / "latin").mkdir()
    (tmp_path / "latin" / "result.json").write_bytes(b'{"schema": "\xff"}')
    content = collect([tmp_path])
    assert len(content.sections) == 1
    reasons = {entry.folder.split("/")[-1]: entry.reason for entry in content.skipped}
    assert set(reasons) == {*bad, "latin"}
    assert "not valid JSON" in reasons["broken"]
    assert "'other/1'" in reasons["stranger"]
    assert "names no schema" in reasons["nameless"]
    wrong = "result.json is damaged: model: field required, which the schema 'decondense.condensation/1' does not allow"
    assert reasons["empty"] == f"{wrong}; delete it and make the result again, or leave it out."
    text = render(content)
    for entry in content.skipped:
        assert escaped(entry.reason) in text
    done = cli("report", tmp_path, "--out", tmp_path / "page.html")
    assert done.returncode == 0
    assert sum(line.startswith("skipped: ") for line in done.stderr.splitlines()) == 9


@pytest.mark.parametrize("kind", ["measurement", "comparison", "training", "evaluation", "significance", "study"])
def test_a_result_that_lacks_anything_is_shown_or_skipped_but_never_an_error(tmp_path, kind):
    write = {
        "measurement": lambda f: write_measurement(f, layers=3, windows=2),
        "comparison": lambda f: write_comparison(f, keep=False),
        "training": lambda f: write_run(f, layers=3, steps=20, snapshots=(0, 20)),
        "evaluation": write_evaluation,
        "significance": lambda f: write_significance(f, seeds=1),
        "study": write_study,
    }[kind]
    write(tmp_path / "a")
    record = json.loads((tmp_path / "a" / "result.json").read_text())
    write_measurement(tmp_path / "good", layers=3, windows=2)
    for key in record:
        if key == "schema":
            continue
        for value in (..., None, "x", [None]):
            changed = {k: v for k, v in record.items() if k != key} | ({} if value is ... else {key: value})
            (tmp_path / "a" / "result.json").write_text(json.dumps(changed))
            content = collect([tmp_path])
            page_data(content)
            for entry in content.skipped:  # the field, and what is wrong with it
                assert re.fullmatch(
                    rf"result\.json is damaged: {key}[\w.\[\]]*: .*, which the schema 'decondense\.\w+/\d' does not "
                    r"allow; delete it and make the result again, or leave it out\.",
                    entry.reason,
                ), entry.reason


@pytest.mark.parametrize(
    "error", [KeyError("x"), IndexError("x"), TypeError("x"), ValueError("x"), AttributeError("x")]
)
@pytest.mark.parametrize("builder", ["page.training", "runs.curve_panel", "sections.depth_curve", "plotly.traces"])
def test_a_bug_is_never_called_a_damaged_file(tmp_path, monkeypatch, builder, error):
    write_measurement(tmp_path / "m", layers=3, windows=2)
    write_run(tmp_path / "t", layers=3, steps=20, snapshots=(0, 20))
    collect([tmp_path])

    def bug(*_, **__):
        raise error

    monkeypatch.setattr(f"decondense.report.{builder}", bug)
    with pytest.raises(type(error)) as caught:
        render(collect([tmp_path]))
    assert caught.value is error


@pytest.mark.parametrize(("place", "words"), [("empty", "no result to show"), ("nowhere", "no folder at")])
def test_nothing_found_is_one_sentence_and_no_file(tmp_path, place, words):
    (tmp_path / "empty").mkdir()
    done = cli("report", tmp_path / place, "--out", tmp_path / "new" / "page.html")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith(f"error: {words}")
    assert not (tmp_path / "new").exists()


def test_sections_of_one_name_are_told_apart_by_folder(tmp_path):
    write_evaluation(tmp_path / "a")
    write_evaluation(tmp_path / "b")
    titles = [section.title for section in collect([tmp_path]).sections]
    assert titles == [f"smollm2-135m ({tmp_path.name}/{x})" for x in "ab"]


# -- what is shown -------------------------------------------------------------------------------------------


def test_numbers_in_the_page_are_those_of_the_result(tmp_path):
    result = write_measurement(tmp_path / "m", layers=5)
    data, pool = data_of(render(collect([tmp_path])))
    chart = whole(data["charts"]["r1-p0-c0"], pool)
    for frame, expected in zip(chart["frames"], (result.histogram, result.released_histogram)):
        heat = frame["data"][0]
        shown = np.zeros_like(expected)
        centres = -1 + (2 * np.arange(128) + 1) / 128
        for y, row in zip(heat["y"], heat["z"]):
            shown[:, np.abs(centres - y).argmin()] = row
        assert np.abs(shown - expected).max() <= 0.0005 + 1e-12
        assert heat["x"] == list(range(6))
        assert "layer %{x}" in heat["hovertemplate"]
        assert "density %{z" in heat["hovertemplate"]
        assert "cosine %{y" in heat["hovertemplate"]
    assert [frame["view"] for frame in chart["frames"]] == ["pooled", "released"]
    table = whole(data["tables"]["r1-t1"], pool)
    column = table["data"][table["columns"].index("mean_cosine")]
    assert column[:6] == pytest.approx(result.mean_cosine.tolist(), rel=1e-5)
    trend = whole(data["tables"]["r1-t0"], pool)
    low, high = result.interval("spearman")
    row = dict(zip(trend["columns"], [c[0] for c in trend["data"]]))
    assert (row["spearman"], row["spearman_low"], row["spearman_high"]) == pytest.approx(
        (result.spearman, low, high), rel=1e-5
    )


def test_the_band_is_the_interval_of_a_mean(tmp_path):
    """m ± t · s/√n over windows, by a plain loop."""
    from scipy.stats import t

    result = write_measurement(tmp_path / "m", layers=2, windows=5)
    section = section_of(tmp_path)
    rows = section.panels[1].charts[0].rows
    table = result.record.per_window.mean_cosine
    for layer in range(3):
        values = [row[layer] for row in table]
        centre = sum(values) / 5
        spread = (sum((v - centre) ** 2 for v in values) / 4) ** 0.5
        reach = float(t.ppf(0.975, 4)) * spread / 5**0.5
        shown = [rows[layer][name] for name in ("mean_cosine", "mean_low", "mean_high")]
        assert shown == pytest.approx([centre, centre - reach, centre + reach], rel=1e-9)
    write_measurement(tmp_path / "m", layers=2, windows=1)
    section = section_of(tmp_path)
    assert "95 % interval of the mean" not in str(section.panels[1].charts[0].frames)


def test_plotly_knows_every_word_of_the_charts(everything):
    """A property that it does not have is an error there, and nothing at all in the browser."""
    import plotly.graph_objects as go

    from decondense.report.plotly import layout

    for section in collect([everything]).sections:
        for chart in (chart for panel in section.panels for chart in panel.charts):
            go.Figure(data=[trace for frame in chart.frames for trace in traces(frame)], layout=layout(chart))


def test_every_section_has_verdict_command_configuration_and_downloads(page, everything):
    content = collect([everything])
    for section in content.sections:
        body = re.search(rf'<section id="{section.id}".*?</section>', page, re.DOTALL)[0]
        said = [section.lines[0], *section.lines[1], *(origin.command for origin in section.origins)]
        assert all(escaped(words) in body for words in said)
        letters = re.sub(r"\W", "", section.headline + section.verdict)
        assert re.sub(r"\W", "", section.lines[0] + "".join(section.lines[1])) == letters, "nothing is left out"
        assert body.count("Full configuration") == len(section.origins)
        assert f'data-download="section" data-id="{section.id}"' in body
        charts = sum(len(panel.charts) for panel in section.panels)
        for kind in ("png", "csv", "json"):
            assert body.count(f'data-download="{kind}"') == charts
        assert f'<a href="#{section.id}">' in page
    assert "decondense measure org/small --text wikitext-2:test --windows 12" in page
    assert page.count("<h1") == 1


def test_forest_shows_differences_in_points(tmp_path):
    record = write_significance(tmp_path / "s")
    section = section_of(tmp_path)
    points, macro = estimates(section.panels[0].charts[0]), record["macro"]
    rows = [*record["tasks"], macro, macro["weighted"]]
    assert len(points) == len(rows) == 5
    for place, row in zip(range(5, 0, -1), rows):
        *three, name = points[place]
        assert three == pytest.approx([100 * row[key] for key in ("difference", "low", "high")], rel=1e-3, abs=1e-4)
        assert (name == "differs") is bool(row["significant"])
    assert section.verdict == record["verdict"]
    assert len(section.panels) == 2, "scores and likelihoods"


def test_scores_of_an_evaluation(tmp_path):
    record = write_evaluation(tmp_path / "e")
    section = section_of(tmp_path)
    (trace,) = lines_of(section.panels[0].charts[0])
    for x, reach, task in zip(trace["x"], trace["error_x"]["array"], record["tasks"].values()):
        assert x == pytest.approx(100 * task["acc"], rel=1e-5)
        assert reach == pytest.approx(196 * task["stderr"], rel=1e-5)
    assert f"average accuracy over 3 tasks: {100 * record['macro_average']:.2f} %" in section.verdict
    assert "wikitext-2:test: 0.9500 bits per byte" in section.verdict
    config = {"command": "evaluate", "model": "a b", "tasks": "piqa", "limit": 5, "text": ["x", "y"], "init": True}
    (tmp_path / "e" / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    section = section_of(tmp_path)
    assert section.origins[0].command == "decondense evaluate 'a b' --tasks piqa --limit 5 --text x,y --init"


def test_study_pictures(tmp_path):
    write_study(tmp_path / "s", figures=["figure.png", "gone.png", "../secret.png", "fake.png"])
    (tmp_path / "secret.png").write_bytes(png())
    (tmp_path / "s" / "fake.png").write_text("<svg onload=alert(1)>")
    section = section_of(tmp_path)
    assert [picture.name for picture in section.pictures] == ["figure.png"]
    assert len(section.notes) == 3
    text = render(collect([tmp_path]))
    assert without_library(text).count("data:image/png;base64,") == 1
    assert 'alt="Figure of the study width: reproduced' in text
    assert section.title == "C3 · width (gpu scale)"
    assert section.badge == "reproduced"
    assert section.verdict.startswith("Spearman falls"), "the verdict stands beside the sentence, not in it again"
    assert "the slope of Spearman over log width" in text
    assert "badge-reproduced" in text


def test_comparison_without_its_measurements(tmp_path):
    comparison = write_comparison(tmp_path / "c", keep=False)
    section = section_of(tmp_path)
    assert section.verdict == comparison.verdict
    assert "not recorded" in section.origins[0].remark
    trace = lines_of(section.panels[0].charts[0])[0]
    assert trace["y"] == pytest.approx([r.spearman for r in comparison.results], rel=1e-5)
    assert section.notes == comparison.notes, "what the models' depths forbid is said here too"
    (table,) = section.tables
    column = [row[table.heads.index("mean cosine")] for row in table.shown]
    ends = ("mean_cosine", "mean_cosine_low", "mean_cosine_high")
    assert column == ["{:.3f} [{:.3f}, {:.3f}]".format(*map(row.get, ends)) for row in comparison.rows()]


@pytest.mark.parametrize("options", [{"final_norm": False}, {"final_norm": None}, {"windows": 1}, {"released": False}])
def test_measurements_of_every_sort(tmp_path, options):
    write_measurement(tmp_path / "m", layers=4, **options)
    content = collect([tmp_path])
    assert content.sections[0].panels[0].views == ([] if "released" in options else content.sections[0].panels[0].views)
    render(content)


# -- the command ---------------------------------------------------------------------------------------------


def test_the_verdict_of_a_section_is_a_word_in_json(everything, tmp_path):
    """As in the record of a study, and the sentence stands beside it; what has no such word has none."""
    sections = json.loads(cli("report", everything, "--out", tmp_path, "--json").stdout)["sections"]
    assert {s["verdict"] for s in sections if s["kind"] == "study"} <= {"reproduced", "not reproduced", "undecided"}
    assert all(len(s["sentence"]) > len(s["verdict"] or "") for s in sections)
    assert {s["kind"] for s in sections if s["verdict"] is None} == {s["kind"] for s in sections} - {
        "study",
        "measurement",
    }


def test_command(everything, tmp_path):
    done = cli("report", everything, "--out", tmp_path, "--title", "Tuesday <1>")
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "report.html").read_text()
    assert "<title>Tuesday &lt;1&gt;</title>" in text
    assert f"written: {tmp_path}/report.html (13 results, " in done.stdout.replace("\n", "")
    said = "trained on novels: 4 runs. With the loss minus without it (dispersion, 2 seeds, so no interval): held-out"
    assert said in " ".join(done.stdout.split())
    done = cli("report", everything / "measured", "--out", tmp_path / "one.html", "--json")
    summary = json.loads(done.stdout)
    assert summary["results"] == {"measurement": 1}
    (section,) = summary["sections"]
    assert section["sentence"].startswith(f"{section['verdict']}: Spearman ")
    assert summary["bytes"] == (tmp_path / "one.html").stat().st_size


def test_one_result_without_hardware_is_one(tmp_path):
    write_run(tmp_path / "a", layers=3, steps=20, snapshots=(0, 20))
    write_measurement(tmp_path / "b", layers=2)
    assert "Hardware: NVIDIA H200; not recorded for 1 result." in render(collect([tmp_path]))
