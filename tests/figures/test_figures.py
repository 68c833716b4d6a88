"""Whole figures: their numbers, and what they must not hide. How they are asked for is in report/test_plot.py."""

from __future__ import annotations

import csv
import math
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from by_hand import condensation

from decondense.figures import studies
from decondense.figures.chart import FAINT, INK, PALETTE, Axis, Chart, Frame, Series, dots, look, pale, series_numbers
from decondense.figures.draw import Strip, draw
from decondense.figures.measurements import (
    curve_plot,
    heat_chart,
    heat_frame,
    heat_rows,
    heatmap,
    heatmaps,
    top_of,
    trend_plot,
)
from decondense.figures.training import training_figure
from decondense.meter.compare import Comparison
from decondense.meter.result import Condensation
from decondense.records import HeldOut, Step, Training
from decondense.report.plotly import layout


def fake(**options):
    return condensation(**{"layers": 4, "windows": 6, "text": "imdb:test"} | options)


def read(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("final_norm", [True, False, None])
def test_heatmap_and_its_numbers(tmp_path, final_norm):
    result = fake(final_norm=final_norm)
    path = heatmap(result, tmp_path / "h.png")
    rows = read(tmp_path / "h.csv")
    assert len(rows) == 5
    density = [float(v) for k, v in rows[2].items() if k.lstrip("-").replace(".", "").isdigit()]
    assert density == pytest.approx(result.histogram[2].tolist(), abs=1e-6)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["h.csv", "h.png"]
    before = path.read_bytes()
    assert heatmap(result, path).read_bytes() == before, "the same numbers give the same bytes"


def test_heatmaps_may_end_where_little_is_left():
    whole, cut = (heat_rows([[("a", fake())]], floor=floor)[0][0].y.range for floor in (None, 0.25))
    assert (whole[0] < 0.25, cut) == (True, (0.25, 1))


@pytest.mark.parametrize("layers", [1, 2, 3, 4, 30])
def test_layers_and_steps_have_no_ticks_between(layers):
    result = fake(layers=layers)
    chart = heat_chart("", [heat_frame(result, top=1)], [result], floor=-1, y="cosine")
    axis = draw([Strip([[chart]], (6.4, 4.2))]).axes[0]
    assert layout(chart)["xaxis"].get("dtick") == (1 if layers <= 4 else None)
    steps = Chart("", Axis("step", whole=True), Axis(), [Frame([Series([0, layers], [0, 1])])])
    for ticks in (axis.get_xticks(), draw([Strip([[steps]], (6.4, 4.2))]).axes[0].get_xticks()):
        assert len(ticks) >= 2
        assert [float(tick) for tick in ticks] == [round(tick) for tick in ticks]


def test_released_view_and_unknown_view(tmp_path):
    heatmap(fake(), tmp_path / "r.png", view="released")
    with pytest.raises(ValueError, match="view must be one of 'pooled', 'released', got"):
        heatmap(fake(), tmp_path / "r.png", view="other")
    record = fake().record.model_copy(update={"released_histogram": None})
    with pytest.raises(ValueError, match="ask for it with released=True"):
        heatmap(Condensation(record), tmp_path / "r.png", view="released")


def test_numbers_of_families_and_pairs(tmp_path):
    family = [fake(parameters=10**k, layers=3 + k, name=f"org/m{k}", end=0.1 + 0.9 / k) for k in (3, 5, 7)]
    trend_plot(Comparison(family, "size").rows(), tmp_path / "t.png", axis="size", paired=False)
    assert [float(r["spearman"]) for r in read(tmp_path / "t.csv")] == [r.spearman for r in family]
    pairs = Comparison([*family[:2], *family[1:]], "order", paired=True)
    trend_plot(pairs.rows(), tmp_path / "p.png", axis="order", paired=True)
    assert [r["pair"] for r in read(tmp_path / "p.csv")] == ["0", "0", "1", "1"]
    assert "of 2 pairs" in pairs.verdict


@pytest.mark.parametrize("layers", [2, 30])
def test_the_legend_does_not_lie_on_the_last_state(layers):
    for figure in heatmap(fake(layers=layers)), heatmaps([fake(layers=layers)] * 3):
        figure.canvas.draw()
        axis = figure.axes[0]
        last, _ = axis.transData.transform((1 - 0.5 / layers, 0))
        box = axis.get_legend().get_window_extent()
        assert axis.bbox.x0 < box.x0 < box.x1 <= last


@pytest.mark.parametrize("letters", [5, 60])
def test_the_legend_of_many_curves_does_not_lie_on_them(letters):
    figure = curve_plot([fake()] * 9, names=[f"{i} {'x' * letters}" for i in range(9)])
    figure.canvas.draw()
    (axis,) = figure.axes
    box = axis.get_legend().get_window_extent()
    assert axis.bbox.x1 < box.x0
    assert box.x1 <= figure.bbox.x1
    assert axis.bbox.width / figure.dpi > 5.5, "and leaves them their room"


def trends(axis, **columns):
    """The labels of both panels as they are drawn, of results with these columns."""
    ends = {f"{name}{end}": 0.5 for name in ("spearman", "last") for end in ("", "_low", "_high")}
    rows = [dict(zip(columns, values)) | {"text": "t"} | ends for values in zip(*columns.values())]
    figure = trend_plot(rows, axis=axis, paired=False)
    figure.canvas.draw()
    panels = [[label for label in one.get_xticklabels() if label.get_text()] for one in figure.axes]
    words = [one.yaxis.label for one in figure.axes] + [label for labels in panels for label in labels]
    for box in (word.get_window_extent() for word in words):
        assert min(box.x0, box.y0) >= 0
        assert box.x1 <= figure.bbox.x1
        assert box.y1 <= figure.bbox.y1
    return panels


@pytest.mark.parametrize("sizes", [(260e3, 15e6, 135e6, 268e6, 494e6, 1.5e9), (1e6, 1.01e6, 1.02e6, 1e9), (1e6,)])
def test_labels_of_sizes_do_not_lie_over_each_other(sizes):
    for labels in trends("size", model="m" * len(sizes), parameters=sizes):
        boxes = [label.get_window_extent() for label in labels]
        assert all(first.x1 < second.x0 for first, second in pairwise(boxes))
        assert len(boxes) == (2 if 1.01e6 in sizes else len(sizes)), "one for several that have no room"


def test_labels_of_any_length_and_number_are_in_the_picture():
    for letters in (10, 40, 80):
        trends("order", model=[f"model-{i} ({'x' * letters})" for i in range(3)])
    for labels in trends("checkpoint", revision=[f"step{1000 * i}" for i in range(60)]):
        boxes = [label.get_window_extent() for label in labels]
        assert all(first.x1 < second.x0 for first, second in pairwise(boxes))
        assert labels[0].get_text() == "step0"


def test_names_that_differ_in_their_ends_alone_have_other_labels():
    names = [f"runs/pretrain-llama-dispersion-seed{i}-final" for i in range(3)]
    for labels in trends("order", model=[*names, "runs/gpt2-dispersion-and-cross-entropy"]):
        words = [label.get_text() for label in labels]
        assert len(set(words)) == 4
        assert words[0] == "pretrain-llama-dispersion-seed0…", "no longer than it must be"


def test_ticks_in_any_order_keep_their_labels():
    ticks = [(9, "b" * 30), (0, "a" * 30), (4, "c" * 30)]
    chart = Chart("", Axis(ticks=ticks), Axis(), [Frame([Series([0, 9], [0, 1])])])
    axis = draw([Strip([[chart]], (4, 3))]).axes[0]
    found = {place: label.get_text() for place, label in zip(axis.get_xticks(), axis.get_xticklabels())}
    assert found == dict(ticks)


def test_a_full_disk_leaves_no_figure(tmp_path, monkeypatch):
    def full(self, name, **options):
        Path(name).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("matplotlib.backends.backend_agg.FigureCanvasAgg.print_png", full)
    with pytest.raises(OSError, match="No space"):
        heatmap(fake(), tmp_path / "h.png")
    assert [p.name for p in tmp_path.iterdir()] == ["h.csv"]


def test_reports_import_no_torch():
    code = (
        "import sys, types; p = types.ModuleType('decondense'); import importlib.util as u; "
        "p.__path__ = list(u.find_spec('decondense').submodule_search_locations); sys.modules['decondense'] = p; "
        "import decondense.figures.plot, decondense.report.page, decondense.report.results_table; "
        "import decondense.meter.result; "
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_one_narrow_picture_does_not_darken_the_others():
    def peaked(height):
        density = np.full((3, 64), 0.1)
        density[:, 40] = height
        return density

    wide, narrow = [peaked(h) for h in (2.0, 2.5, 3.0)], peaked(9.0)
    assert top_of([narrow]) == 9
    assert top_of([*wide, narrow]) == 5  # 1.5 × 2.75, to the next whole number
    assert top_of([peaked(30.0)]) == 10  # as published


def test_series_can_be_told_apart():
    looks = [look(n) for n in range(48)]
    assert len({(one["colour"], one["dash"]) for one in looks}) == 48
    assert len({one["colour"] for one in looks[:8]}) == 8


def test_a_loss_has_one_colour_whatever_stands_beside_it():
    some = series_numbers(["cross-entropy", "something", "uniformity last 0.1", "uniformity last 0.1 early"])
    other = series_numbers(["dispersion", "l2_repel", "uniformity · gpt2", "l2 repel on last"])
    assert len(set(some.values())) == len(set(other.values())) == 4
    shades = [PALETTE[n % len(PALETTE)] for n in (*some.values(), *other.values())]
    blue, orange, green = PALETTE[:3]
    assert [some["cross-entropy"], other["dispersion"]] == [0, 1]
    assert [shade == green for shade in shades].count(True) == 3
    assert PALETTE[other["l2_repel"]] == PALETTE[other["l2 repel on last"] % 8] not in (blue, orange, green)
    assert list(series_numbers("abcdefghij").values()) == list(range(10))  # no loss: in their order
    many = series_numbers(f"dispersion {i}" for i in range(60)).values()
    assert (len(set(many)), {number % len(PALETTE) for number in many}) == (60, {1})
    assert series_numbers(["z_loss"])["z_loss"] == series_numbers(["z-loss 1e-3"])["z-loss 1e-3"]


def test_seeds_are_faint_behind_their_mean_and_a_single_seed_stands_alone():
    line, seeds, mean, alone = dots([1, 2, 3], [[1.0, 3.0], [2.0, 2.0, 5.0], [4.0]], dash="solid")
    assert (line.x, line.y[:2], math.isnan(line.y[2])) == ([1, 2, 3], [2.0, 3.0], True)
    assert (seeds.x, seeds.y, seeds.colour) == ([1, 1, 2, 2, 2], [1.0, 3.0, 2.0, 2.0, 5.0], pale(PALETTE[0]))
    assert (mean.x, mean.y, mean.symbol, mean.colour) == ([1, 2], [2.0, 3.0], "square", PALETTE[0])
    assert (alone.x, alone.y, alone.hollow, alone.colour) == ([3], [4.0], True, PALETTE[0])
    line, seeds, mean, alone = dots([1, 2], [[1.0], [3.0]], dash="solid", across=True)  # one seed everywhere
    assert (line.x, line.y, mean.x, alone.x, alone.y) == ([1.0, 3.0], [1, 2], [], [1.0, 3.0], [1, 2])


def training(**runs):
    """The panels of the figure of these runs: name → losses."""
    pairs = []
    for name, values in runs.items():
        rows = [{"step": i, "tokens": i, "loss": value} for i, value in enumerate(values)]
        history, held_out = [Step(**row) for row in rows], [HeldOut(**row) for row in rows[:2]]
        pairs.append((name, Training.model_construct(history=history, held_out=held_out)))
    return training_figure(pairs).axes


def test_training_runs_have_the_colours_of_all_series():
    """Of eight runs none is black, as the axes are, or too pale to see on white."""
    for axis in training(**{f"run {i}": [3.0, 2.0] for i in range(8)}):
        assert [line.get_color() for line in axis.lines] == list(PALETTE)


@pytest.mark.parametrize("values", [[3.05, 3.4, 3.6, 3.2, 3.5], [3.0, 3.0], [3.0], [2.0, 5.0, 9.0]])
def test_every_value_of_a_short_run_is_in_the_picture(values):
    """A few steps go up and down by more than the loss falls."""
    low, high = training(a=values)[0].get_ylim()
    assert low <= min(values) <= max(values) <= high


def test_a_run_that_fell_apart_does_not_flatten_the_others():
    axes = training(good=[3.5, 3.2, 3.1], bad=[3.5, 3.4, 10.0])
    low, high = axes[0].get_ylim()
    assert low < 3.1
    assert 3.5 < high < 4
    assert [text.get_text() for text in axes[1].get_legend().get_texts()] == ["good: 3.2000", "bad: 3.4000"]


@pytest.mark.parametrize(("peak", "label"), [(1, "density of cosines"), (200, "density of cosines (cut at 10)")])
def test_a_cut_colour_scale_says_so(peak, label):
    result = fake()
    result.record.histogram.counts[1][70] *= peak
    assert heatmap(result).axes[-1].get_ylabel() == label


@pytest.fixture
def strips(monkeypatch):
    """The strips of charts that a figure of a study consists of, instead of its file."""
    described = []
    monkeypatch.setattr(studies, "draw", lambda strips, path: described.extend(strips))
    return described


@pytest.mark.parametrize(("values", "cut"), [([0.01, 0.02, 0.03], False), ([0.019, 0.021], False), ([0.0, 0.1], True)])
def test_effects_end_where_the_bars_do_and_tell_of_a_cut(values, cut, strips):
    from decondense.stats.verdicts import student

    studies.effects([("a loss", values)], Path("figure.png"), x="nats", margin=0.005)
    (strip,), (mean, half) = strips, map(float, student(values))
    low, high = map(float, strip.rows[0][0].x.range)
    assert low < -0.005
    assert high > max(values)
    assert (high < mean + half) is cut is ("cut" in strip.x)
    if not cut:
        assert high - (mean + half) < 0.06 * (high - low)


def test_one_bar_far_longer_than_most_is_cut_near_its_dots(strips):
    short = [("short", [0.010, 0.011, 0.012])] * 3
    studies.effects([*short, ("long", [0.0, 0.1])], Path("figure.png"), x="nats")
    (strip,) = strips
    low, high = strip.rows[0][0].x.range
    assert (-0.02 < low < 0.0, 0.1 < high < 0.12, "cut" in strip.x) == (True, True, True)


def test_effects_that_are_not_strong_are_hollow_and_groups_are_parted(strips):
    rows = [(name, [0.01, 0.02]) for name in ("a, one", "a, two", "b, one")]
    studies.effects(rows, Path("figure.png"), x="nats", strong=[True, False, True], groups=["a", "a", "b"])
    ((chart,),) = strips[0].rows
    assert [mark.hollow for mark in chart.frames[0].marks if mark.symbol == "square"] == [False, True, False]
    colours = [mark.colour for mark in chart.frames[0].marks if mark.symbol == "square"]
    assert colours == [PALETTE[0], pale(PALETTE[0]), PALETTE[0]]
    assert [rule.at for rule in chart.rules if rule.axis == "y"] == [2.5]  # rows stand at 4, 3 and 1
    assert [(remark.words, remark.y) for remark in chart.remarks] == [("a", 5), ("b", 2)]
    assert chart.y.range[0] < 1 < 5 < chart.y.range[1]
    with pytest.raises(ValueError, match="groups must name the group of every row, got 1 for 3 rows"):
        studies.effects(rows, Path("figure.png"), x="nats", groups=["a"])


def test_effects_have_the_colour_of_their_loss_and_ink_where_they_have_none(strips):
    losses = ["dispersion", "placebo", "dispersion · gpt2", "koleo"]
    studies.effects([(name, [0.01, 0.02]) for name in "abcd"], Path("figure.png"), x="nats", losses=losses)
    ((chart,),) = strips[0].rows
    of = {kind: [mark.colour for mark in chart.frames[0].marks if mark.symbol == kind] for kind in ("square", "circle")}
    orange, amber = PALETTE[1], PALETTE[4]
    assert of["square"] == [orange, INK, orange, amber]
    assert [shade for shade in of["circle"] if shade in (FAINT, pale(orange), pale(amber))] == [
        pale(orange), FAINT, pale(orange), pale(amber),
    ]  # fmt: skip


def test_a_dot_at_the_edge_is_not_cut(strips):
    """Where all seeds but those of the last row tie, that row's dots end the axis."""
    rows = [(name, [0.0, 1e-6, -1e-6]) for name in "abc"] + [("d", [0.0089, 0.0090, 0.0091])]
    studies.effects(rows, Path("figure.png"), x="nats")
    low, high = map(float, strips[0].rows[0][0].x.range)
    assert high - 0.0091 > 0.02 * (high - low)


def test_words_at_the_right_stand_in_the_row_of_their_effect(strips):
    rows = [(name, [mean - 0.01, mean + 0.01]) for name, mean in (("one", 0.1), ("two", 0.2), ("three", 0.3))]
    words = [f"{np.mean(values):.1f}" for _, values in rows]
    studies.effects(rows, Path("figure.png"), x="nats", right=words, right_title="mean", groups=["a", "b", "b"])
    ((chart,),) = strips[0].rows
    squares = {mark.y[0]: mark.x[0] for mark in chart.frames[0].marks if mark.symbol == "square"}
    assert {place: f"{mean:.1f}" for place, mean in squares.items()} == dict(chart.right)
    assert [label for _, label in chart.y.ticks] == ["one", "two", "three"]
    assert [place for place, _ in chart.y.ticks] == [place for place, _ in chart.right]


@pytest.mark.parametrize(("legend", "place"), [(True, "best"), (False, ""), ("upper left", "upper left")])
def test_a_panel_says_where_its_legend_stands(legend, place, strips):
    series = {name: ([1, 2], [[value], [value]]) for name, value in (("something", 1.0), ("dispersion all 0.1", 2.0))}
    studies.curves([{"title": "", "x": "x", "y": "y", "series": series, "legend": legend}], Path("figure.png"))
    ((chart,),) = strips[0].rows
    assert chart.legend == place
    colours = {mark.name: mark.colour for mark in chart.frames[0].marks if mark.name}
    assert colours == {"something": PALETTE[0], "dispersion all 0.1": PALETTE[1]}
