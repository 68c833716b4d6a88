"""One way to draw every kind of result: `decondense.plot`, and the methods of that name."""

from __future__ import annotations

import inspect

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from decondense import Condensation, load, plot
from decondense.meter.compare import Comparison
from decondense.records import Significance


def family(everything):
    return [load(folder) for folder in sorted((everything / "family" / "results").iterdir())]


RESULTS = {
    "heatmap.png": (lambda e: load(e / "measured").plot, 1),
    "heatmaps.png": (lambda e: Comparison(family(e), "size").plot, 3),
    "trend.png": (lambda e: drawing(load(e / "family")), 2),
    "training.png": (lambda e: drawing(load(e / "train" / "dispersion-seed1")), 3),
    "scores.png": (lambda e: drawing(load(e / "evaluated")), 1),
    "forest.png": (lambda e: drawing(load(e / "significance")), 1),
}


def drawing(result):
    return lambda *path, **options: plot(result, *path, **options)


@pytest.mark.parametrize("name", RESULTS)
def test_every_result_takes_the_same_arguments(everything, tmp_path, name):
    make, panels = RESULTS[name]
    draw = make(everything)
    assert draw(tmp_path / "a" / "folder") == tmp_path / "a" / "folder" / name, "folders are made"
    assert (tmp_path / "a" / "folder" / name).read_bytes().startswith(b"\x89PNG")
    svg = draw(tmp_path / "b" / "file.svg", title="a title of my own").read_text()
    assert "<!-- a title of my own -->" in svg
    figure = draw()
    assert isinstance(figure, Figure)
    assert "a title of my own" not in [text.get_text() for text in figure.findobj(Text)]
    axes = Figure().subplots(1, panels)
    assert draw(ax=axes, title="mine") is axes
    assert all(axis.has_data() for axis in (axes if panels > 1 else [axes]))
    with pytest.raises(ValueError, match=rf"has {panels} panels?: ax must be as many axes, got 7"):
        draw(ax=Figure().subplots(1, 7))
    with pytest.raises(ValueError, match="got both path and ax: give one of them"):
        draw(tmp_path / "c.png", ax=axes)
    with pytest.raises(ValueError, match=r"must be \.png, \.svg or \.pdf, got '.*c\.xyz'"):
        draw(tmp_path / "new" / "c.xyz")
    assert {p.name for p in tmp_path.iterdir()} == {"a", "b"}


def test_methods_have_the_signature_of_the_function():
    own = list(inspect.signature(plot).parameters.values())[1:]
    for method in (Condensation.plot, Comparison.plot):
        shown = list(inspect.signature(method).parameters.values())[1:]
        assert [(p.name, p.kind, p.default) for p in shown] == [(p.name, p.kind, p.default) for p in own]


def test_what_cannot_be_drawn(everything):
    with pytest.raises(TypeError, match=r"a result must be a measurement, several of them, .* to be drawn, got dict"):
        plot({})
    empty = Significance.model_construct(tasks=[])
    with pytest.raises(ValueError, match="a result with tasks is needed to draw one, got significance without any"):
        plot(empty)
