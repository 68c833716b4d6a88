from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from by_hand import condensation

from decondense.commands.terminal import bar
from decondense.figures.chart import PALETTE, look
from decondense.figures.measurements import heatmap, heatmaps, positions, top_of, trend_plot
from decondense.figures.training import training_figure
from decondense.files import write_csv
from decondense.meter.compare import Comparison
from decondense.meter.result import Condensation
from decondense.records import HeldOut, Step, Training


def fake(**options):
    return condensation(**{"layers": 4, "windows": 6, "text": "imdb:test"} | options)


def read(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def is_png(path):
    return path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize("final_norm", [True, False, None])
def test_heatmap_and_its_numbers(tmp_path, final_norm):
    result = fake(final_norm=final_norm)
    path = result.plot(tmp_path / "h.png")
    assert is_png(path)
    rows = read(tmp_path / "h.csv")
    assert len(rows) == 5
    density = [float(v) for k, v in rows[2].items() if k.lstrip("-").replace(".", "").isdigit()]
    assert density == pytest.approx(result.histogram[2].tolist(), abs=1e-6)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["h.csv", "h.png"]
    again = (tmp_path / "h.png").read_bytes()
    heatmap(result, path)
    assert path.read_bytes() == again


def test_released_view_and_unknown_view(tmp_path):
    heatmap(fake(), tmp_path / "r.png", view="released")
    with pytest.raises(ValueError, match="view must be pooled or released"):
        heatmap(fake(), tmp_path / "r.png", view="other")
    record = fake().record.model_copy(update={"released_histogram": None})
    with pytest.raises(ValueError, match="ask for it with released=True"):
        heatmap(Condensation(record), tmp_path / "r.png", view="released")


def test_other_formats(tmp_path):
    assert heatmap(fake(), tmp_path / "h.svg").read_text().startswith("<?xml")
    with pytest.raises(ValueError, match=r"must be \.png, \.svg or \.pdf"):
        heatmap(fake(), tmp_path / "h.xyz")
    assert not list(tmp_path.glob(".*"))


def test_family_pairs_and_rows_of_checkpoints(tmp_path):
    family = [fake(parameters=10**k, layers=3 + k, name=f"org/m{k}", end=0.1 + 0.9 / k) for k in (3, 5, 7)]
    comparison = Comparison(family, "size")
    heatmaps(family, tmp_path / "hm.png")
    trend_plot(comparison.rows(), tmp_path / "t.png", axis="size", paired=False)
    assert is_png(tmp_path / "hm.png")
    assert [float(r["spearman"]) for r in read(tmp_path / "t.csv")] == [r.spearman for r in family]
    pairs = Comparison([*family[:2], *family[1:]], "order", paired=True)
    trend_plot(pairs.rows(), tmp_path / "p.png", axis="order", paired=True)
    assert [r["pair"] for r in read(tmp_path / "p.csv")] == ["0", "0", "1", "1"]
    assert "of 2 pairs" in pairs.verdict
    assert positions(pairs.rows(), "order", True)[0] == [0, 0, 1, 1]


def test_a_full_disk_leaves_no_figure(tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    def full(self, name, **options):
        Path(name).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", full)
    with pytest.raises(OSError, match="No space"):
        heatmap(fake(), tmp_path / "h.png")
    assert [p.name for p in tmp_path.iterdir()] == ["h.csv"]


def test_bars_and_csv(tmp_path):
    assert bar(0.5, width=8) == "████"
    assert bar(1.2, width=4) == "████"
    assert bar(-0.1) == "◂"
    assert bar(0) == ""
    write_csv(tmp_path / "x.csv", [{"a": 1, "b": "x,y"}])
    assert (tmp_path / "x.csv").read_text() == 'a,b\n1,"x,y"\n'


def test_reports_import_no_torch():
    code = (
        "import sys, types; p = types.ModuleType('decondense'); import importlib.util as u; "
        "p.__path__ = list(u.find_spec('decondense').submodule_search_locations); sys.modules['decondense'] = p; "
        "import decondense.figures.measurements, decondense.report.page, decondense.report.results_table; "
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


@pytest.fixture
def axes(monkeypatch):
    """The panels of every figure that is drawn."""
    from decondense.figures import draw

    drawn = []
    own = draw._chart
    monkeypatch.setattr(draw, "_chart", lambda axis, *rest: drawn.append(axis) or own(axis, *rest))
    return drawn


def losses(values, tokens=1):
    rows = [{"step": i, "tokens": i * tokens, "loss": value} for i, value in enumerate(values)]
    history, held_out = [Step(**row) for row in rows], [HeldOut(**row) for row in rows[:2]]
    return Training.model_construct(history=history, held_out=held_out)


def test_training_runs_have_the_colours_of_all_series(tmp_path, axes):
    """Of eight runs none is black, as the axes are, or too pale to see on white."""
    training_figure([(f"run {i}", losses([3.0, 2.0])) for i in range(8)], tmp_path / "a.png")
    assert [line.get_color() for line in axes[0].lines] == [line.get_color() for line in axes[1].lines] == list(PALETTE)


@pytest.mark.parametrize("values", [[3.05, 3.4, 3.6, 3.2, 3.5], [3.0, 3.0], [3.0], [2.0, 5.0, 9.0]])
def test_every_value_of_a_short_run_is_in_the_picture(tmp_path, axes, values):
    """A few steps go up and down by more than the loss falls."""
    training_figure([("a", losses(values))], tmp_path / "a.png")
    low, high = axes[0].get_ylim()
    assert low <= min(values) <= max(values) <= high


def test_a_run_that_fell_apart_does_not_flatten_the_others(tmp_path, axes):
    training_figure([("good", losses([3.5, 3.2, 3.1])), ("bad", losses([3.5, 3.4, 10.0]))], tmp_path / "a.png")
    low, high = axes[0].get_ylim()
    assert low < 3.1
    assert 3.5 < high < 4
    assert [text.get_text() for text in axes[1].get_legend().get_texts()] == ["good: 3.2000", "bad: 3.4000"]


def test_a_cut_colour_scale_says_so(tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    labels = []
    own = Figure.colorbar
    monkeypatch.setattr(Figure, "colorbar", lambda *a, **k: labels.append(own(*a, **k)) or labels[-1])
    for peak in (1, 200):
        result = fake()
        result.record.histogram.counts[1][70] *= peak
        heatmap(result, tmp_path / "h.png")
    assert [bar.ax.get_ylabel() for bar in labels] == ["density of cosines", "density of cosines (cut at 10)"]
