"""A study on the page: every number is one of a piece, and a piece that is damaged costs its charts alone."""

from __future__ import annotations

import copy
import json
import re

import numpy as np
import pytest
from decondense.report.study_charts import FRAMES, HEATMAPS
from decondense.studies.merging import merge
from decondense.studies.study import settings_of
from page_results import HOSTILE, kept, kept_run, write_piece, write_pieces, write_study
from studies.study_pieces import of_seeds, outcomes, run, write

from decondense.report.page import collect, page_data, render
from decondense.studies import STUDIES

ARMS = ("cross-entropy", "dispersion")


def charts_of(folder) -> tuple[dict, object]:
    (section,) = collect([folder]).sections
    return {chart.title: chart for panel in section.panels for chart in panel.charts}, section


@pytest.fixture
def pieces(tmp_path):
    write_study(tmp_path / "s", config={"arms": {arm: {} for arm in ARMS}})
    return write_pieces(tmp_path / "s", ARMS)


def test_heatmaps_are_those_of_the_first_seed(tmp_path, pieces):
    _, section = charts_of(tmp_path)
    panel = section.panels[0]
    assert [chart.title for chart in panel.charts] == [f"{arm}, seed 1" for arm in ARMS]
    assert panel.steps == [(0, "step 0 · 0 tokens"), (50, "step 50 · 5k tokens"), (100, "step 100 · 10k tokens")]
    for arm, chart in zip(ARMS, panel.charts):
        for frame, snapshot in zip(chart.frames, pieces[0]["runs"][arm]["snapshots"], strict=True):
            assert frame.step == snapshot["step"]
            rho = f"{snapshot['spearman']:.2f}".replace("-", "−")
            assert frame.caption == f"step {snapshot['step']}: Spearman {rho}"
            heat, _, mean, low, high = frame.data[:5]
            shown = dict(zip(heat["y"], heat["z"], strict=True))
            for k in range(64):
                column = shown.get(round(-1 + (2 * k + 1) / 64, 6), [0] * 7)
                assert column == [row[k] for row in snapshot["histogram"]]
            assert mean["y"] == pytest.approx(snapshot["mean_cosine"][:-1], abs=1e-4), "without the normed state"
            for state, row in enumerate(snapshot["histogram"][:-1]):
                below = [sum(row[:k]) / sum(row) for k in range(65)]
                for line, share in ((low, 0.05), (high, 0.95)):
                    k = max(k for k in range(65) if below[k] < share)
                    inside = (share - below[k]) / (below[k + 1] - below[k])
                    assert line["y"][state] == pytest.approx(-1 + (k + inside) / 32, abs=1e-4)
    assert "The first seed of each arm." in panel.note


def test_depth_before_and_after(tmp_path, pieces):
    charts, _ = charts_of(tmp_path)
    traces = {trace["name"]: trace for trace in charts["Mean cosine over depth"].frames[0].data}
    assert set(traces) == {f"{arm}, {when}" for arm in ARMS for when in ("before", "after")}
    for arm in ARMS:
        for when, at in (("before", 0), ("after", -1)):
            curves = [piece["runs"][arm]["snapshots"][at]["mean_cosine"] for piece in pieces]
            means = [sum(values) / len(values) for values in zip(*curves)]
            trace = traces[f"{arm}, {when}"]
            assert trace["y"][:6] == pytest.approx(means[:6], rel=1e-4)
            assert trace["y"][6] is None, "the last state stands by itself"
            assert trace["y"][7] == pytest.approx(means[6], rel=1e-4)
            assert trace["customdata"] == trace["x"] == [0, 1, 2, 3, 4, 5, 5, 6]
    changes = charts["What training changed"].frames[0].data
    assert [trace["meta"] for trace in changes] == [f"{arm}, seed {seed}" for arm in ARMS for seed in (1, 2)]
    for trace, (arm, place) in zip(changes, ((arm, place) for arm in ARMS for place in (0, 1))):
        first, *_, last = (s["mean_cosine"] for s in pieces[place]["runs"][arm]["snapshots"])
        expected = [b - a for a, b in zip(first, last)]
        assert [y for y in trace["y"] if y is not None] == pytest.approx(expected, rel=1e-3, abs=1e-9)


def test_what_all_arms_begin_with_is_drawn_once(tmp_path, pieces):
    for piece in pieces:
        for arm in ARMS:
            piece["runs"][arm]["snapshots"][0] = pieces[0]["runs"][ARMS[0]]["snapshots"][0]
    write(tmp_path / "s", pieces)
    charts, _ = charts_of(tmp_path)
    names = [trace["name"] for trace in charts["Mean cosine over depth"].frames[0].data]
    assert names == ["before, all arms", *(f"{arm}, after" for arm in ARMS)]


def test_curves_over_steps(tmp_path, pieces):
    charts, section = charts_of(tmp_path)
    runs = [(arm, piece) for arm in ARMS for piece in pieces]
    for title, values in (
        ("Task loss while training", lambda r: (r["curves"]["step"], r["curves"]["task_loss"])),
        ("Penalty", lambda r: (r["curves"]["step"], r["curves"].get("penalty"))),
        ("Mean cosine while training", lambda r: (r["curves"]["step"], r["curves"].get("mean_cosine"))),
        ("Held-out loss", lambda r: tuple(map(list, zip(*r["held_out"])))),
        ("Spearman of mean cosine with depth", lambda r: ([0, 50, 100], [s["spearman"] for s in r["snapshots"]])),
        (
            "Mean cosine of all blocks",
            lambda r: ([0, 50, 100], [sum(s["mean_cosine"][1:]) / 6 for s in r["snapshots"]]),
        ),
    ):
        traces = charts[title].frames[0].data
        known = [(arm, piece) for arm, piece in runs if values(piece["runs"][arm])[1] is not None]
        assert len(traces) == len(known) == (2 if title in ("Penalty", "Mean cosine while training") else 4)
        for trace, (arm, piece) in zip(traces, known):
            steps, expected = values(piece["runs"][arm])
            assert trace["meta"] == f"{arm}, seed {piece['what']['seed']}"
            assert trace["x"] == steps
            assert trace["y"] == pytest.approx(expected, rel=1e-4)
            assert trace["line"]["color"] == {"cross-entropy": "#0072B2", "dispersion": "#D55E00"}[arm]
        assert [trace["showlegend"] for trace in traces] == [True, False] * (len(traces) // 2)
    assert [panel.title for panel in section.panels] == [
        "Geometry before, during and after", "Over depth", "Condensation over training", "Training curves",
    ]  # fmt: skip


def test_arms_stand_in_the_order_of_the_settings(tmp_path):
    write_study(tmp_path / "s", config={"arms": {"z": {}, "a": {}}}, pieces=["seed-2", "seed-1"])
    rng = np.random.default_rng(0)
    for seed in (1, 2):
        write_piece(tmp_path / "s", f"seed-{seed}", what={"seed": seed}, runs={a: kept_run(rng) for a in ("a", "z")})
    charts, _ = charts_of(tmp_path)
    metas = [trace["meta"] for trace in charts["Task loss while training"].frames[0].data]
    assert metas == ["z, seed 1", "z, seed 2", "a, seed 1", "a, seed 2"]


def test_many_arms_are_thinned_out(tmp_path):
    arms = [f"arm {k}" for k in range(9)]
    write_study(tmp_path / "s")
    write_pieces(tmp_path / "s", arms, steps=range(0, 100, 10))
    _, section = charts_of(tmp_path)
    heat = section.panels[0]
    assert len(heat.charts) == HEATMAPS
    assert heat.charts[0].title == "arm 0, seed 1"
    assert heat.charts[-1].title == "arm 8, seed 1"
    assert sum(len(chart.frames) for chart in heat.charts) <= FRAMES
    assert {(chart.frames[0].step, chart.frames[-1].step) for chart in heat.charts} == {(0, 90)}
    assert heat.note.startswith("6 of 9 are drawn.")
    styles = [(t["line"]["color"], t["line"]["dash"]) for t in section.panels[2].charts[0].frames[0].data[::2]]
    assert len(set(styles)) == 9, "no two arms look alike"


def test_texts_models_and_checkpoints(tmp_path):
    rng = np.random.default_rng(0)
    config = {"models": ["m"], "texts": ["wiki", "imdb"]}
    write_study(tmp_path / "text", study="text", claim="C2", config=config, pieces=["m-imdb", "m-wiki"])
    for text in ("imdb", "wiki"):
        write_piece(
            tmp_path / "text", f"m-{text}", what={"model": "m", "text": text}, measurements={text: kept(rng, model="M")}
        )
    config = {"families": {"f": ["m1", "m0"]}}
    write_study(tmp_path / "size", study="size", claim="C1", config=config, pieces=["m0", "m1"])
    for k in range(2):
        content = kept(rng, model=f"described m{k}", layers=4 + 2 * k)
        write_piece(tmp_path / "size", f"m{k}", what={"model": f"m{k}", "family": "f"}, measurement=content)
    names = [f"m-{place}" for place in (2, 0, 1)]
    write_study(tmp_path / "init", study="init", claim="C4", config={}, pieces=names)
    for place in range(3):
        what = {"model": "m", "revision": f"stage|{place}", "place": place}
        write_piece(tmp_path / "init", f"m-{place}", what=what, measurement=kept(rng, model="M"))
    size, text, init = collect([tmp_path]).sections
    assert [chart.title for chart in text.panels[0].charts] == ["wiki", "imdb"]
    assert [chart.title for chart in size.panels[0].charts] == ["described m1", "described m0"]
    for section in (size, text):
        assert [panel.title for panel in section.panels] == ["Geometry", "Over depth"], "nothing was trained"
        assert not section.panels[0].steps
        assert [chart.title for chart in section.panels[1].charts] == ["Mean cosine over depth"]
    xs = [trace["x"] for trace in size.panels[1].charts[0].frames[0].data]
    assert [(x[0], x[-1], len(x)) for x in xs] == [(0, 1, 8), (0, 1, 6)], "of other depths: relative to the whole"
    (chart,) = init.panels[0].charts
    assert [frame.caption.split(": ")[0] for frame in chart.frames] == ["stage|0", "stage|1", "stage|2"]
    assert init.panels[0].steps == [(0, "checkpoint 1"), (1, "checkpoint 2"), (2, "checkpoint 3")]
    assert init.panels[0].slider == "Checkpoint"
    assert "Checkpoint</label>" in render(collect([tmp_path]))


def test_forest_of_the_benchmarks(tmp_path):
    study = STUDIES["benchmarks"]
    settings = settings_of(study, "smoke")
    rng = np.random.default_rng(0)

    def make(arm, seed):
        gains = {"piqa": 0.3, "arc_easy": 0.0}
        found = {task: outcomes(rng, 0.4 + gain * (arm == "dispersion")) for task, gain in gains.items()}
        scores = {task: round(entry["correct"].count("1") / 200, 6) for task, entry in found.items()}
        return run(weights=f"{arm}-{seed}", outcomes=found, scores=scores)

    write(tmp_path / "b", of_seeds(study, "smoke", settings, make, [1, 2, 3]))
    record = merge(study, "smoke", tmp_path / "b")
    _, section = charts_of(tmp_path)
    chart = section.panels[0].charts[0]
    assert chart.title == "Benchmarks: dispersion − cross-entropy"
    rows = [dict(zip(record["table"]["columns"], row)) for row in record["table"]["rows"]]
    seeds, *estimates = chart.frames[0].data
    points = {}
    for trace in estimates:
        ends = zip(trace["error_x"]["arrayminus"], trace["error_x"]["array"])
        points |= dict(zip(trace["y"], zip(trace["x"], ends, [trace["name"]] * 9)))
    for place, row in zip((3, 2, 1), rows, strict=True):
        x, (down, up), name = points[place]
        assert x == pytest.approx(100 * row["difference"], rel=1e-4)
        assert x - down == pytest.approx(100 * row["low"], rel=1e-3)
        assert x + up == pytest.approx(100 * row["high"], rel=1e-3)
        assert (name == "differs") is (row["task"] != "arc_easy")
        own = [value for value, y in zip(seeds["x"], seeds["y"]) if round(y) == place]
        assert len(own) == 3
        assert sum(own) / 3 == pytest.approx(100 * (row["treated"] - row["base"]), rel=1e-4)
    (table,) = section.tables
    assert table.columns == record["table"]["columns"]
    assert table.cells[0][4] == f"{100 * rows[0]['difference']:+.2f}"
    assert section.pictures
    text = render(collect([tmp_path]))
    assert text.index("data:image/png") > max(found.start() for found in re.finditer('<figure class="chart"', text))


@pytest.mark.parametrize("estimate", [None, "x", [1], {}, {"runs": {"dispersion": {"1": None}}, "macro": 3}])
def test_forest_without_single_seeds(tmp_path, estimate):
    columns = ["task", "items", "base", "treated", "difference", "low", "high", "p"]
    rows = [["piqa", 10, 0.5, 0.6, 0.1, None, None, 0.2], ["x", None, 0.5, 0.6, 0.1, 0, 0.2, 0.01]]
    write_study(tmp_path / "b", table={"columns": columns, "rows": rows}, estimate=estimate)
    charts, section = charts_of(tmp_path)
    (chart,) = charts.values()
    assert chart.frames[0].data[1]["x"] == [10]
    assert section.tables[0].rows == rows
    render(collect([tmp_path]))


# -- damage --------------------------------------------------------------------------------------------------


def test_pieces_that_cannot_be_read_are_named(tmp_path, pieces):
    names = ["seed-1", "broken", "list", "gone", "../../secret", "nul\0", 999 * "x"]
    write_study(tmp_path / "s", pieces=names)
    (tmp_path / "s" / "pieces" / "broken.json").write_text("{")
    (tmp_path / "s" / "pieces" / "list.json").write_text("[1]")
    (tmp_path / "secret.json").write_text(json.dumps(pieces[1] | {"runs": {"secret": pieces[1]["runs"][ARMS[0]]}}))
    charts, section = charts_of(tmp_path)
    assert [trace["meta"] for trace in charts["Held-out loss"].frames[0].data] == [f"{arm}, seed 1" for arm in ARMS]
    broken, outside, *odd, missing = section.notes
    assert len(odd) == 2
    assert broken.startswith("the piece broken could not be read and is not in the charts: broken.json is not valid")
    assert "outside the result folder" in outside
    assert missing == "1 of 7 pieces are not there: the charts are without them."


def test_a_study_without_piece_files_says_nothing(tmp_path):
    write_study(tmp_path / "s")
    _, section = charts_of(tmp_path)
    assert section.panels == section.notes == []


def places(value, path=()):
    """Every place in a piece, lists by their last entry."""
    yield path
    inner = value if isinstance(value, dict) else dict(list(enumerate(value))[-1:]) if isinstance(value, list) else {}
    for key, one in inner.items():
        yield from places(one, (*path, key))


@pytest.mark.parametrize("kind", ["runs", "measurement", "measurements"])
def test_a_damaged_piece_never_costs_more_than_its_charts(tmp_path, kind):
    rng = np.random.default_rng(0)
    content = {"runs": {"a": kept_run(rng, layers=2, steps=(0, 9))}, "measurement": kept(rng, layers=2, model="m")}
    content["measurements"] = {"text": content["measurement"]}
    what = {"seed": 1, "model": "m", "revision": "r", "place": 0}
    piece = write_piece(tmp_path / "s", "seed-1", what=what, **{kind: content[kind]})
    write_study(tmp_path / "s", pieces=["seed-1"])
    assert charts_of(tmp_path)[0]
    file = tmp_path / "s" / "pieces" / "seed-1.json"
    tried = 0
    for path in places(piece):
        for value in (None, "x", [None], -1, 1e400, 10**400):
            damaged = copy.deepcopy(piece)
            if path:
                inner = damaged
                for key in path[:-1]:
                    inner = inner[key]
                inner[path[-1]] = value
            else:
                damaged = value
            file.write_text(json.dumps(damaged))
            content = collect([tmp_path])
            assert [section.kind for section in content.sections] == ["study"], (path, value)
            page_data(content)[1].to_json()
            tried += 1
    assert tried > 100


def test_a_damaged_snapshot_leaves_the_others(tmp_path, pieces):
    pieces[0]["runs"]["dispersion"]["snapshots"][1]["histogram"][3][4] = None
    pieces[0]["runs"]["cross-entropy"]["snapshots"][1]["mean_cosine"] = "x"
    write(tmp_path / "s", pieces)
    charts, _ = charts_of(tmp_path)
    for arm in ARMS:
        assert [frame.step for frame in charts[f"{arm}, seed 1"].frames] == [0, 100]
    trend = charts["Mean cosine of all blocks"].frames[0].data
    assert [trace["x"] for trace in trend] == [[0, 100], [0, 50, 100], [0, 50, 100], [0, 50, 100]]


def test_hostile_names_are_text(tmp_path):
    write_study(tmp_path / "s")
    write_pieces(tmp_path / "s", (HOSTILE, "plain"))
    _, section = charts_of(tmp_path)
    for panel in section.panels:
        for chart in panel.charts:
            for trace in (trace for frame in chart.frames for trace in frame.data):
                for words in (str(trace.get("name")), str(trace.get("hovertemplate"))):
                    assert "<script" not in words
                    assert "amp;%{x}" not in words, "plotly fills that in"
    text = render(collect([tmp_path]))
    assert HOSTILE not in text
    assert "<script>alert" not in text
