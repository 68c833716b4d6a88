"""A study on the page: every number is one of its runs, and a run that is damaged costs its charts alone."""

from __future__ import annotations

import copy
import json
from functools import reduce
from operator import getitem

import numpy as np
import pytest
from page_results import (
    charts_of,
    lines_of,
    measured,
    section_of,
    short,
    study_run,
    traces,
    write_json,
    write_runs,
    write_study,
)  # fmt: skip

from decondense.report.page import collect, page_data, render
from decondense.report.studies import FRAMES, HEATMAPS

ARMS = ("cross-entropy", "dispersion")


@pytest.fixture
def runs(tmp_path):
    write_study(tmp_path / "s", config={"arms": {arm: {} for arm in ARMS}})
    return write_runs(tmp_path / "s", ARMS)


def test_heatmaps_are_those_of_the_first_seed(tmp_path, runs):
    section = section_of(tmp_path)
    panel = section.panels[0]
    assert [chart.title for chart in panel.charts] == [f"{arm}, seed 1" for arm in ARMS]
    assert panel.steps == [(0, "step 0 · 0 tokens"), (50, "step 50 · 5k tokens"), (100, "step 100 · 10k tokens")]
    for number, chart in enumerate(panel.charts):
        for frame, snapshot in zip(chart.frames, runs[f"arm{number}-seed-1"]["snapshots"], strict=True):
            assert frame.step == snapshot["step"]
            rho = f"{snapshot['spearman']:.2f}".replace("-", "−")
            assert frame.caption == f"step {snapshot['step']}: Spearman {rho}"
            heat, _, mean, low, high = traces(frame)[:5]
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


def test_depth_before_and_after(tmp_path, runs):
    charts = charts_of(section_of(tmp_path))
    drawn = lines_of(charts["Mean cosine over depth"])
    lines = {trace["name"]: trace for trace in drawn if trace["mode"] == "lines"}
    ends = {trace["name"]: trace for trace in drawn if trace["mode"] == "markers"}
    assert set(lines) == set(ends) == {f"{arm}, {when}" for arm in ARMS for when in ("before", "after")}
    for number, arm in enumerate(ARMS):
        for when, at in (("before", 0), ("after", -1)):
            curves = [runs[f"arm{number}-seed-{seed}"]["snapshots"][at]["mean_cosine"] for seed in (1, 2)]
            means = [sum(values) / len(values) for values in zip(*curves)]
            line, end = lines[f"{arm}, {when}"], ends[f"{arm}, {when}"]
            assert line["y"] == pytest.approx(means[:6], rel=1e-4)
            assert end["y"] == pytest.approx(means[6:], rel=1e-4), "the last state stands by itself"
            assert (line["customdata"], end["x"]) == ([0, 1, 2, 3, 4, 5], [6])
    changes = lines_of(charts["What training changed"])
    assert [t["meta"] for t in changes[::2]] == [f"{arm}, seed {seed}" for arm in ARMS for seed in (1, 2)]
    for line, end, run in zip(changes[::2], changes[1::2], runs.values(), strict=True):
        first, *_, last = (s["mean_cosine"] for s in run["snapshots"])
        assert line["y"] + end["y"] == pytest.approx([b - a for a, b in zip(first, last)], rel=1e-3, abs=1e-9)


def test_what_all_arms_begin_with_is_drawn_once(tmp_path, runs):
    for name, run in runs.items():
        run["snapshots"][0] = runs["arm0-seed-1"]["snapshots"][0]
        write_json(tmp_path / "s" / "runs" / name, run)
    charts = charts_of(section_of(tmp_path))
    names = [trace["name"] for trace in lines_of(charts["Mean cosine over depth"])[::2]]
    assert names == ["before, all arms", *(f"{arm}, after" for arm in ARMS)]


def test_what_some_arms_begin_with_is_drawn_once(tmp_path):
    """Students begin alike, their teacher elsewhere."""
    write_study(tmp_path / "s", config={"arms": {"alone": {}, "teacher": {}, "taught": {}}})
    runs = write_runs(tmp_path / "s", ("alone", "teacher", "taught"), (1,))
    first, _, last = runs
    runs[last]["snapshots"][0] = runs[first]["snapshots"][0]
    write_json(tmp_path / "s" / "runs" / last, runs[last])
    names = [trace["name"] for trace in lines_of(charts_of(section_of(tmp_path))["Mean cosine over depth"])[::2]]
    assert names == ["alone and 1 more, before", "alone, after", "teacher, before", "teacher, after", "taught, after"]


def test_curves_over_steps(tmp_path, runs):
    section = section_of(tmp_path)
    charts = charts_of(section)

    def column(name, key):
        return lambda run: [(row["step"], row.get(key)) for row in run[name] if key in row]

    for title, values in (
        ("Task loss while training", column("history", "task_loss")),
        ("Penalty", column("history", "penalty")),
        ("Mean cosine while training", column("history", "mean_cosine")),
        ("Held-out loss", column("held_out", "loss")),
        ("Spearman of mean cosine with depth", column("snapshots", "spearman")),
        ("Mean cosine of all blocks", lambda r: [(s["step"], sum(s["mean_cosine"][1:]) / 6) for s in r["snapshots"]]),
    ):
        drawn = lines_of(charts[title])
        known = [run for run in runs.values() if values(run)]
        assert len(drawn) == len(known) == (2 if title in ("Penalty", "Mean cosine while training") else 4)
        for trace, run in zip(drawn, known):
            steps, expected = zip(*values(run))
            assert trace["meta"] == f"{run['arm']}, seed {run['recipe']['train']['seed']}"
            assert trace["x"] == list(steps)
            assert trace["y"] == pytest.approx(expected, rel=1e-4)
            assert trace["line"]["color"] == {"cross-entropy": "#0072B2", "dispersion": "#D55E00"}[run["arm"]]
        assert [trace["showlegend"] for trace in drawn] == [True, False] * (len(drawn) // 2)
    assert [panel.title for panel in section.panels] == [
        "Geometry before, during and after", "Over depth", "Condensation over training", "Training curves",
    ]  # fmt: skip


def test_a_loss_has_its_colour_at_any_place(tmp_path):
    write_study(tmp_path / "s", config={"arms": {"dispersion": {}, "cross-entropy": {}}})
    write_runs(tmp_path / "s", ("dispersion", "cross-entropy"), (1,))
    charts = charts_of(section_of(tmp_path))
    drawn = lines_of(charts["Task loss while training"])
    assert [trace["line"]["color"] for trace in drawn] == ["#D55E00", "#0072B2"]


def test_arms_stand_in_the_order_of_the_settings(tmp_path):
    write_study(tmp_path / "s", config={"arms": {"z": {}, "a": {}}})
    write_runs(tmp_path / "s", ("a", "z"), (2, 1))
    charts = charts_of(section_of(tmp_path))
    metas = [trace["meta"] for trace in lines_of(charts["Task loss while training"])]
    assert metas == ["z, seed 1", "z, seed 2", "a, seed 1", "a, seed 2"]


def test_many_arms_are_thinned_out(tmp_path):
    arms = [f"arm {k}" for k in range(9)]
    write_study(tmp_path / "s")
    write_runs(tmp_path / "s", arms, steps=range(0, 100, 10))
    section = section_of(tmp_path)
    heat = section.panels[0]
    assert len(heat.charts) == HEATMAPS
    assert heat.charts[0].title == "arm 0, seed 1"
    assert heat.charts[-1].title == "arm 8, seed 1"
    assert sum(len(chart.frames) for chart in heat.charts) <= FRAMES
    assert {(chart.frames[0].step, chart.frames[-1].step) for chart in heat.charts} == {(0, 90)}
    assert heat.note.startswith("6 of 9 are drawn.")
    lines = [trace["line"] for trace in lines_of(section.panels[2].charts[0])[::2]]
    assert len({(line["color"], line["dash"]) for line in lines}) == 9, "no two arms look alike"


def test_texts_models_and_checkpoints(tmp_path):
    rng = np.random.default_rng(0)

    def write(study, config, contents, **more):
        write_study(tmp_path / study, study=study, config=config, runs=list(contents), **more)
        for name, content in contents.items():
            write_json(tmp_path / study / "runs" / name, content)

    texts = {f"m-{t}": measured(short(rng, model="M"), model="m", text=t) for t in ("imdb", "wiki")}
    write("text", {"models": ["m"], "texts": ["wiki", "imdb"]}, texts, claim="C2")
    models = [measured(short(rng, model=f"described m{k}", layers=4 + 2 * k), model=f"m{k}", text="t") for k in (0, 1)]
    write("size", {"families": {"f": ["m1", "m0"]}}, {"m0": models[0], "m1": models[1]}, claim="C1")
    row = {f"m-{k}": measured(short(rng), model="m", text="t", revision=f"stage|{k}", place=k) for k in (2, 0, 1)}
    write("init", {}, row, claim="C4")
    size, text, init = collect([tmp_path]).sections
    assert [chart.title for chart in text.panels[0].charts] == ["wiki", "imdb"]
    assert [chart.title for chart in size.panels[0].charts] == ["described m1", "described m0"]
    for section in (size, text):
        assert [panel.title for panel in section.panels] == ["Geometry", "Over depth"], "nothing was trained"
        assert not section.panels[0].steps
        assert [chart.title for chart in section.panels[1].charts] == ["Mean cosine over depth"]
    xs = [trace["x"] for trace in lines_of(size.panels[1].charts[0])]
    assert [(x[0], x[-1], len(x)) for x in xs] == [(0, 0.833333, 6), (1, 1, 1), (0, 0.75, 4), (1, 1, 1)], (
        "of other depths: relative to the whole"
    )
    (chart,) = init.panels[0].charts
    assert [frame.caption.split(": ")[0] for frame in chart.frames] == ["stage|0", "stage|1", "stage|2"]
    assert init.panels[0].steps == [(0, "checkpoint 1"), (1, "checkpoint 2"), (2, "checkpoint 3")]
    assert init.panels[0].slider == "Checkpoint"
    assert "Checkpoint</label>" in render(collect([tmp_path]))


# -- damage --------------------------------------------------------------------------------------------------


def test_runs_that_cannot_be_read_are_named(tmp_path, runs):
    names = ["arm0-seed-1", "arm1-seed-1", "broken", "list", "gone", "../../secret", "nul\0", 999 * "x"]
    write_json(tmp_path / "s", json.loads((tmp_path / "s" / "result.json").read_text()) | {"runs": names})
    for name, content in (("broken", "{"), ("list", "[1]")):
        (tmp_path / "s" / "runs" / name).mkdir()
        (tmp_path / "s" / "runs" / name / "result.json").write_text(content)
    write_json(tmp_path / "secret", runs["arm0-seed-2"])
    section = section_of(tmp_path / "s")
    charts = charts_of(section)
    assert [t["meta"] for t in lines_of(charts["Held-out loss"])] == [f"{arm}, seed 1" for arm in ARMS]
    broken, no_record, outside, *odd, missing = section.notes
    assert len(odd) == 2
    assert broken.startswith(
        "the run broken could not be read and is not in the charts: broken/result.json is not valid"
    )
    assert "names no schema" in no_record
    assert not any(str(tmp_path) in note for note in section.notes)
    assert "outside the result folder" in outside
    assert missing == "1 of 8 runs are missing: the charts are without them."


def test_a_study_without_runs_says_nothing(tmp_path):
    write_study(tmp_path / "s")
    section = section_of(tmp_path)
    assert section.panels == section.notes == []


def places(value, path=("",)):
    """Every place in a record, lists by their last entry."""
    yield path
    inner = value if isinstance(value, dict) else dict(list(enumerate(value))[-1:]) if isinstance(value, list) else {}
    for key, one in inner.items():
        yield from places(one, (*path, key))


@pytest.mark.parametrize("kind", ["training", "measured"])
def test_a_damaged_run_never_costs_more_than_its_charts(tmp_path, kind):
    rng = np.random.default_rng(0)
    record = study_run(rng, "a", 1, layers=2, steps=(0, 9))
    if kind == "measured":
        record = measured(short(rng, layers=2, model="m"), model="m", text="t", revision="r", place=0)
    write_study(tmp_path / "s", runs=["one"])
    write_json(tmp_path / "s" / "runs" / "one", record)
    assert section_of(tmp_path).panels
    file = tmp_path / "s" / "runs" / "one" / "result.json"
    tried = 0
    for path in places(record):
        for value in (None, "x", [None], -1, 1e400, 10**400):
            damaged = {"": copy.deepcopy(record)}
            reduce(getitem, path[:-1], damaged)[path[-1]] = value
            file.write_text(json.dumps(damaged[""]))
            content = collect([tmp_path])
            assert [section.kind for section in content.sections] == ["study"], (path, value)
            page_data(content)[1].to_json()
            tried += 1
    assert tried > 100
