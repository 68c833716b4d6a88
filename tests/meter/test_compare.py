from __future__ import annotations

import copy
import csv
import io
import itertools
import json
import math

import numpy as np
import pytest
import torch
from scipy import stats
from tiny_models import build
from torch import nn

from decondense.figures.chart import Band, Series
from decondense.figures.measurements import curve_chart, trend_charts
from decondense.meter.compare import compare, families
from decondense.meter.result import load
from decondense.meter.run import measure

SMALL = {"windows": 3, "tokens": 32, "bootstrap": 50}


def ticks(comparison):
    """What stands below the trend figure."""
    charts = trend_charts(comparison.rows(), axis=comparison.axis, paired=comparison.paired)
    return [label for _, label in charts[0].x.ticks]


@pytest.fixture(scope="module")
def results(stories, prose):
    return [measure(stories, text=prose, seed=s, **SMALL) for s in (0, 1)]


@pytest.mark.usefixtures("unpainted")
def test_saved_results_and_models_side_by_side(shared, prose, results, tmp_path):
    results[0].save(tmp_path / "a.json")
    (tmp_path / "b").mkdir()
    results[1].save(tmp_path / "b")
    events = []
    comparison = compare(
        [tmp_path / "a.json", tmp_path / "b", shared / "models" / "stories260K", results[0]],
        text=prose,
        started=lambda *event: events.append(event[1:]),
        finished=lambda result: events.append(result.label),
        **SMALL,
    )
    assert events == [(2, 4), "stories260K"]
    assert [r.to_json() for r in comparison.results[:2]] == [r.to_json() for r in results]
    assert comparison.results[2].mean_cosine == pytest.approx(results[0].mean_cosine)
    rows = json.loads(comparison.to_json())["rows"]
    assert rows[0]["spearman"] == results[0].spearman
    assert rows[1]["kendall_blocks_low"] == results[1].interval("kendall", states="blocks")[0]
    assert comparison.save(tmp_path / "deep" / "folder").read_text() == comparison.to_json()
    comparison.plot(tmp_path / "figures")
    names = {f"{name}.{kind}" for name in ("heatmaps", "trend", "curves") for kind in ("png", "csv")}
    assert {p.name for p in (tmp_path / "figures").iterdir()} == names


def made(like, name, parameters, spearman, level, *, layers=None, text=None, revision=None):
    """A result like another, with these numbers."""
    result = copy.deepcopy(like)
    model = result.record.model
    model.name = model.description = result.label = name
    model.parameters, model.revision = parameters, revision
    result.layers = layers or result.layers
    result.text = result.record.text.name = result.record.text.sha256 = text or result.text
    result.record.trend["all"]["spearman"].value = spearman
    for state in result.record.states:
        state.mean_cosine = level
    return result


def test_a_text_that_can_be_read_once_is_read_once(stories, prose, monkeypatch):
    """The second model found stdin, or an iterator, empty."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("\n\n".join(prose).encode())))
    for text in ("-", iter(prose)):
        hashes = {r.record.text.sha256 for r in compare([stories, stories], text=text, **SMALL).results}
        assert hashes == {measure(stories, text=prose, **SMALL).record.text.sha256}


def test_two_results_are_told_by_level_and_by_trend(results):
    trend = sorted(r.spearman for r in results)
    level = sorted(r.mean_cosine[1:].mean() for r in results)
    words = f"over 2 results: mean cosine from {level[0]:.3f} to {level[1]:.3f}; Spearman over depth from "
    assert compare(results).verdict == f"{words}{trend[0]:.2f} to {trend[1]:.2f}"


def windows_of(like, shift, *, seed=0):
    """A result like another with these windows: their mean cosines are moved by `shift`, one number or one a window."""
    result = copy.deepcopy(like)
    table = result.record.per_window.mean_cosine
    moved = np.array(table) + np.broadcast_to(shift, len(table))[:, None]
    result.record.per_window.mean_cosine = moved.tolist()
    result.record.trend["all"]["last"].value = float(moved[:, : result.layers + 1].mean(0)[-3:].mean())
    if seed:
        for window in result.record.windows:
            window["start"] += seed
    return result


@pytest.fixture(scope="module")
def twelve(stories, prose):
    return measure(stories, text=prose, seed=0, **(SMALL | {"windows": 12, "bootstrap": 2000}))


def test_two_results_differ_by_an_interval_over_windows_in_pairs_where_they_are_the_same(twelve):
    """Beside Student's, of the paired differences and of two samples apart."""
    shift = 0.1 + 0.002 * np.arange(12)  # over the windows, which themselves spread far more
    together, apart = (compare([twelve, windows_of(twelve, shift, seed=seed)]).record().difference for seed in (0, 1))
    levels = twelve.per_window[:, 1:].mean(1)
    assert levels.std() > 2 * shift.std(), "or the pairs would not matter"
    for difference, samples in ((together, [shift]), (apart, [levels + shift, levels])):
        got = difference.mean_cosine
        assert got.value == pytest.approx(shift.mean())
        assert difference.last.value == pytest.approx(shift.mean())
        # Student's interval, with the degrees of freedom of the smaller sample: what the expanded percentiles stand for
        error = math.sqrt(sum(s.var(ddof=1) / 12 for s in samples))
        half = stats.t.ppf(0.975, 11) * error
        assert got.high - got.value == pytest.approx(half, rel=0.15)
        assert got.value - got.low == pytest.approx(half, rel=0.15)
    assert (together.same_windows, apart.same_windows) == (True, False)
    low, value, high = (f"{x:+.3f}" for x in (together.mean_cosine.low, shift.mean(), together.mean_cosine.high))
    assert together.sentence.startswith(
        f"the second minus the first: mean cosine of the blocks {value} [{low}, {high}], of the last states {value} ["
    )
    assert together.sentence.endswith("(95 % intervals over windows, the same in both and resampled in pairs)")
    shown = compare([twelve, windows_of(twelve, shift, seed=0)])
    assert repr(shown) == f"Comparison({', '.join(shown.labels)}; {shown.verdict})"
    assert apart.sentence.endswith("(95 % intervals over windows, not the same in both)")


def test_a_difference_is_of_two_results_and_has_no_interval_of_one_window(stories, prose, results):
    assert compare([*results, results[0]]).record().difference is None
    one = measure(stories, text=prose, seed=0, **(SMALL | {"windows": 1}))
    for pair in ([one, windows_of(one, -0.25)], [results[0], windows_of(one, -0.25)]):
        difference = compare(pair).record().difference
        assert difference.mean_cosine.low is None
        assert "[" not in difference.sentence
    assert compare([one, windows_of(one, -0.25)]).record().difference.sentence == (
        "the second minus the first: mean cosine of the blocks −0.250, of the last states −0.250"
    )


@pytest.mark.usefixtures("unpainted")
def test_the_curves_lie_over_each_other_with_their_bands(stories, twelve, prose, tmp_path):
    """Models of another depth at the same share of it; the state after the final norm stands by itself."""
    config = build("gpt2").config
    config.n_layer, config.vocab_size = 3, 512
    short = measure((type(build("gpt2"))(config).eval(), stories[1]), text=prose, **SMALL)
    comparison = compare([twelve, short])
    comparison.plot(tmp_path)
    with (tmp_path / "curves.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["model"] for row in rows] == [comparison.labels[0]] * 6 + [comparison.labels[1]] * (short.layers + 1)
    assert [float(row["depth"]) for row in rows if row["model"] == comparison.labels[0]] == [0, 0.2, 0.4, 0.6, 0.8, 1]
    for row, mean, column in zip(rows, twelve.mean_cosine, twelve.per_window.T):
        low, high = stats.t.interval(0.95, 11, column.mean(), stats.sem(column))
        found = [float(row[key]) for key in ("mean_cosine", "mean_cosine_low", "mean_cosine_high")]
        assert found == pytest.approx([mean, low, high])
    chart = curve_chart(comparison.results, comparison.labels)
    bands = [mark for mark in chart.frames[0].marks if isinstance(mark, Band)]
    lines = [mark for mark in chart.frames[0].marks if isinstance(mark, Series) and mark.dash]
    ends = [mark for mark in chart.frames[0].marks if isinstance(mark, Series) and not mark.dash]
    assert [len(mark.x) for mark in (*bands, *lines)] == [5, short.layers] * 2
    assert [line.name for line in lines] == comparison.labels
    assert [list(end.x) for end in ends] == [[1.0], [1.0]]
    one = measure(stories, text=prose, **(SMALL | {"windows": 1}))
    compare([one, one]).plot(tmp_path / "one")
    marks = curve_chart([one, one], ["a", "b"]).frames[0].marks
    assert not [mark for mark in marks if isinstance(mark, Band) or mark.low], "one window has no interval"


def test_the_mean_cosine_of_named_modules_is_that_of_all_of_them_everywhere():
    """The first of them is no embedding layer, whatever says it: the row, the verdict or the difference."""
    x = torch.randn(12, 16, 16, generator=torch.Generator().manual_seed(0))
    few, many = (measure(nn.Sequential(*map(nn.Linear, [16] * n, [16] * n)), inputs=x, modules="*") for n in (3, 4))
    comparison = compare([few, many])
    levels = [result.per_window.mean() for result in (few, many)]
    assert [row["mean_cosine"] for row in comparison.rows()] == pytest.approx(levels)
    assert f"mean cosine from {min(levels):.3f} to {max(levels):.3f}" in comparison.verdict
    assert comparison.difference.mean_cosine.value == pytest.approx(levels[1] - levels[0])


def test_the_mean_cosine_of_every_row_has_its_interval_beside_it(results, prose, stories):
    frame = compare(list(results)).to_pandas()
    assert list(frame.columns[frame.columns.get_loc("mean_cosine") :][:3]) == [
        "mean_cosine", "mean_cosine_low", "mean_cosine_high"
    ]  # fmt: skip
    for row, result in zip(frame.itertuples(), results):
        assert (row.mean_cosine_low, row.mean_cosine_high) == result.interval("mean_cosine", states="blocks")
        assert row.mean_cosine_low < row.mean_cosine == result.blocks < row.mean_cosine_high
    one = measure(stories, text=prose, **(SMALL | {"windows": 1}))
    row = compare([one, one]).rows()[0]
    assert (row["mean_cosine_low"], row["mean_cosine_high"]) == (None, None)


def test_curves_of_a_state_that_some_sequences_do_not_have(tmp_path):
    """Where the model shortens them to one token there is no cosine, and that state has no band."""

    class Twice(nn.Module):
        def forward(self, z):
            return torch.cat([z, -z.roll(1, -1)], 1)

    model = nn.Sequential(nn.Linear(8, 8), nn.AvgPool2d((2, 1)), Twice())
    inputs = [torch.randn(6, n, 8, generator=torch.Generator().manual_seed(n)) for n in (8, 3)]
    result = measure(model, inputs=inputs, modules="*")
    assert np.isnan(result.per_window).any(0).tolist() == [False, True, False]
    compare([result, result]).plot(tmp_path)
    with (tmp_path / "curves.csv").open() as file:
        rows = list(csv.DictReader(file))[:3]
    assert [bool(row["mean_cosine_low"]) for row in rows] == [True, False, True]
    assert all(row["mean_cosine"] for row in rows)


@pytest.mark.parametrize("sizes", [(10, 20, 30, 40), (10, 20, 20, 30), (10, 10, 20, 30)])
def test_the_trend_with_size_is_the_rank_correlation_in_any_order(results, sizes):
    """As scipy has it, ties and all."""
    trends, levels = (0.9, 0.2, 0.7, -0.4), (0.1, 0.4, 0.2, 0.4)
    family = [made(results[0], f"m{k}", *numbers) for k, numbers in enumerate(zip(sizes, trends, levels))]
    with_level, with_trend = (stats.spearmanr(sizes, values)[0] for values in (levels, trends))
    words = (
        f"over {len(set(sizes))} sizes: mean cosine from 0.100 to 0.400, rank correlation with size {with_level:.2f}; "
        f"Spearman over depth from -0.40 to 0.90, rank correlation with size {with_trend:.2f}"
    )
    for order in itertools.permutations(family):
        assert compare(list(order)).verdict == words.replace("-", "−")


def test_texts_do_not_count_as_models(results):
    """The mean over texts of each model first; two sizes have no trend, however many texts."""
    family = [
        made(results[0], f"m{k}", 10 * k, 0.5 + 0.1 * k + shift, 0.3 - 0.05 * k + shift, text=text)
        for k in (1, 2, 3)
        for text, shift in (("a", 0.0), ("b", 0.02), ("c", -0.4))
    ]
    comparison = compare(family)
    assert comparison.verdict == (
        "over 3 sizes, each the mean of its results: mean cosine from 0.023 to 0.123, rank correlation with size "
        "−1.00; Spearman over depth from 0.47 to 0.67, rank correlation with size 1.00"
    )
    assert not [note for note in comparison.notes if "different texts" in note], "all models have all texts"
    assert [note for note in compare(family[:-1]).notes if "different texts" in note]
    for chart in trend_charts(comparison.rows(), axis="size", paired=False):
        assert [series.name for series in chart.frames[0].marks] == ["a", "b", "c"], "no line from text to text"
        assert all(list(series.x) == [10, 20, 30] for series in chart.frames[0].marks)
    assert compare(family[:6]).verdict == (
        "over 6 results: mean cosine from −0.200 to 0.270; Spearman over depth from 0.20 to 0.72"
    )


def test_checkpoints_on_several_texts_are_averaged_too(results):
    row = [
        made(results[0], "m", 10, 0.1 * step, 0.2, revision=f"step{step}", text=text)
        for step in (1, 2, 3)
        for text in ("a", "b")
    ]
    assert ticks(compare(row)) == ["step1", "step2", "step3"]
    assert compare(row).verdict == (
        "over 3 checkpoints, each the mean of its results: mean cosine from 0.200 to 0.200, which does not change with "
        "checkpoint order; Spearman over depth from 0.10 to 0.30, rank correlation with checkpoint order 1.00"
    )


def test_what_is_undefined_is_left_out_and_told(results):
    def of(*trends):
        family = [made(results[0], f"m{k}", 10 * k, trend, 0.1 * k) for k, trend in enumerate(trends, 1)]
        return {compare(list(order)).verdict.partition("; ")[2] for order in itertools.permutations(family)}

    nan = math.nan
    assert of(0.1, nan, 0.5, 0.7) == {
        "Spearman over depth from 0.10 to 0.70 (undefined in 1), rank correlation with size 1.00"
    }
    assert of(nan, nan, nan) == {"Spearman over depth undefined"}
    assert of(0.3, 0.3 + 1e-8, 0.3 + 2e-8) == of(0.3, 0.3, 0.3)
    assert of(0.3, 0.3, 0.3) == {"Spearman over depth from 0.30 to 0.30, which does not change with size"}


def test_models_of_different_depth_are_told_by_level_alone(results):
    family = [made(results[0], f"m{k}", 10 * k, 0.1 * k, 0.1 * k, layers=2 + k) for k in (1, 2, 3, 4)]
    assert compare(family).verdict == "over 4 sizes: mean cosine from 0.100 to 0.400, rank correlation with size 1.00"
    assert compare(family[:2]).verdict == "over 2 results: mean cosine from 0.100 to 0.200"
    pairs = "the second of the pair has the higher mean cosine in 2 of 2 pairs"
    assert compare(family, paired=True).verdict == pairs
    for result in family:
        result.layers = 3
    family[0].record.trend["all"]["spearman"].value = 0.9
    assert compare(family, paired=True).verdict == f"{pairs}, the higher Spearman over depth in 1"


def test_texts_are_an_axis(stories, prose, tmp_path):
    (tmp_path / "one.txt").write_text(prose[0][:30_000])
    (tmp_path / "two.txt").write_text(prose[0][30_000:])
    comparison = compare([stories], texts=[tmp_path / "one.txt", tmp_path / "two.txt"], **SMALL)
    assert comparison.axis == "text"
    assert ticks(comparison) == ["one.txt", "two.txt"]


def test_texts_of_one_file_name_are_told_apart(stories, prose, tmp_path):
    """They had one name in every table and figure, and no axis."""
    files = [tmp_path / folder / "text.txt" for folder in "ab"]
    for file, part in zip(files, (prose[0][:30_000], prose[0][30_000:60_000])):
        file.parent.mkdir()
        file.write_text(part)
    comparison = compare([stories], texts=list(map(str, files)), **SMALL)
    assert ticks(comparison) == ["a/text.txt", "b/text.txt"]
    assert comparison.axis == "text"
    alone = [measure(stories, text=file, **SMALL) for file in files]
    hashes = [result.record.text.sha256 for result in alone]
    assert [result.record.text.sha256 for result in comparison.results] == hashes
    assert compare(alone).labels == [f"LlamaModel (text {sha[:6]})" for sha in hashes]


def test_sizes_are_an_axis_and_its_trend_is_in_words(stories, prose):
    _, tokenizer = stories
    models = []
    for layers in (1, 3, 4):
        torch.manual_seed(layers)
        config = build("gpt2").config
        config.n_layer, config.vocab_size = layers, 512
        models.append((type(build("gpt2"))(config).eval(), tokenizer))
    comparison = compare(models, text=prose, **SMALL)
    assert comparison.notes[0].startswith("the models have 1, 3 and 4 layers, and Spearman depends on their number")
    level = comparison.results[1].mean_cosine[1:].mean()
    assert comparison.rows()[1]["mean_cosine"] == pytest.approx(level)
    assert comparison.axis == "size"
    assert comparison.verdict.startswith("over 3 sizes: mean cosine from ")
    assert "Spearman" not in comparison.verdict


def test_revisions_become_a_row_of_checkpoints(results, monkeypatch):
    asked = []

    def fake(name, **options):
        asked.append((name, options["revision"]))
        record = json.loads(results[0].to_json())
        record["model"] |= {"name": name, "revision": options["revision"]}
        return type(results[0])(record)

    monkeypatch.setattr("decondense.meter.run.measure", fake)
    monkeypatch.setattr("decondense.models.check", lambda name, **options: None)
    entry = families()["olmo3"]
    comparison = compare(*entry["models"], revisions=entry["revisions"])  # a name, and not its letters
    assert asked == [("allenai/Olmo-3-1025-7B", r) for r in entry["revisions"]]
    assert comparison.axis == "checkpoint"
    assert comparison.verdict.startswith(f"over {len(entry['revisions'])} checkpoints: mean cosine from ")
    assert comparison.verdict.count("which does not change with checkpoint order") == 2
    assert ticks(comparison) == [r if len(r) <= 18 else r[:17] + "…" for r in entry["revisions"]]


def test_families_are_complete():
    known = families()
    assert set(known) == {"gpt2", "qwen1", "qwen2.5", "qwen3", "bloom", "olmo3", "distilled"}
    for entry in known.values():
        assert entry["kind"] in ("size", "checkpoints", "pairs")
        assert all(m.count("/") == 1 for m in entry["models"])
    assert len(known["distilled"]["models"]) % 2 == 0
    assert known["olmo3"]["revisions"][0].endswith("step0")


def test_means_over_other_numbers_of_last_states_are_said():
    x = torch.randn(12, 16, 16, generator=torch.Generator().manual_seed(0))
    model = nn.Sequential(*map(nn.Linear, [16] * 4, [16] * 4))
    two, three = (measure(model, inputs=x, modules="*", last=last) for last in (2, 3))
    assert compare([two, three]).notes == [
        "the statistic last is a mean of 2 and 3 states, and so not comparable: measure all with the same --last."
    ]
    assert compare([two, two]).notes == []


def test_different_texts_and_lengths_are_said(stories, prose, results):
    narrow = f"an interval from {SMALL['windows']} windows is too narrow"
    assert compare(results).notes[-1] == f"{narrow}: measure at least 10."
    other = measure(stories, text=[prose[0][:20_000]], label="other", **(SMALL | {"tokens": 16}))
    notes = [note.split(":")[0] for note in compare([*results, other]).notes]
    assert notes[:2] == ["the windows have 16, 32 tokens", "the results are of 2 different texts (list)"]
    assert notes[-1] == narrow


def test_a_note_of_a_result_is_repeated_with_whose_it_is(results):
    """Once, and alone where all have it; that windows are few also of an older result, which does not say so."""
    first, second, third = (made(results[0], name, 10, 0.5, 0.3) for name in "abc")
    for result, notes in ((first, ["read as Latin-1.", "padded."]), (second, ["padded."]), (third, ["padded."])):
        result.record.notes = notes
    few = "an interval from 3 windows is too narrow: measure at least 10."
    assert compare([first, second]).notes == ["a: read as Latin-1.", "padded.", few]
    assert compare([second, third]).notes == ["padded.", few]
    third.record.notes, second.record.text = ["read as Latin-1."], second.record.text.model_copy(update={"sha256": "x"})
    assert compare([first, second, third]).notes[1:] == [
        "a on list and c on list: read as Latin-1.", "a on list and b on list: padded.", few,
    ]  # fmt: skip
    assert compare([first, second]).record().notes == compare([first, second]).notes


@pytest.mark.usefixtures("unpainted")
def test_results_of_one_name_are_told_apart(results, tmp_path):
    compare(results).plot(tmp_path)
    with (tmp_path / "heatmaps.csv").open() as file:
        assert list(dict.fromkeys(row["model"] for row in csv.DictReader(file))) == compare(results).labels
    drawn = [axis.get_title(loc="left").splitlines()[0] for axis in compare(results).plot().axes[:2]]
    assert drawn == compare(results).labels
    assert compare(results).labels == ["LlamaModel (seed 0)", "LlamaModel (seed 1)"]
    assert compare([results[0]] * 2).labels == ["LlamaModel"] * 2
    folders = [copy.deepcopy(results[0]) for _ in range(2)]
    for result, run in zip(folders, "ab"):
        result.record.model.name = f"/home/runs/{run}/model"
    comparison = compare(folders)
    assert comparison.labels == ["LlamaModel (a/model)", "LlamaModel (b/model)"]
    assert ticks(comparison) == ["LlamaMo… (a/model)", "LlamaMo… (b/model)"]


def test_what_is_no_measurement(results, tmp_path):
    comparison = compare(results)
    (tmp_path / "result.json").write_text(comparison.to_json())
    assert [row.model_dump() for row in load(tmp_path).rows] == comparison.rows()
    with pytest.raises(ValueError, match="of the kind comparison: compare takes measurements and models"):
        compare([tmp_path, results[0]])


def test_a_missing_model_is_told_before_anything_is_measured(shared, results):
    """Nor is a text looked for: there is none of that name either."""
    here, begun = shared / "models" / "stories260K", []
    for items in ([here, "./nowhere"], [results[0], "./nowhere"], ["./nowhere", here]):
        with pytest.raises(FileNotFoundError, match=r"no model at './nowhere'"):
            compare(items, text="no-such-text", started=lambda *which: begun.append(which))
    assert begun == []


def test_errors(results):
    with pytest.raises(TypeError, match=r"'pared' is not an option of compare or measure: did you mean 'paired'\?$"):
        compare(results, pared=True)
    with pytest.raises(TypeError, match=r"'window' is not an option of compare or measure: did you mean 'windows'\?$"):
        compare(results, window=3)
    with pytest.raises(ValueError, match="at least two results"):
        compare(results[0])
    for idle in ({"windows": 5}, {"batch": 0}, {"texts": ["wikitext-2"]}, {"spectral": True}):
        (name,) = idle
        with pytest.raises(
            ValueError, match=f"^'{name}' is for measuring, but all 2 items are saved results: leave it"
        ):
            compare(results, **idle)
    assert compare(results, windows=100, progress=lambda *_: None).results == results  # as by default: said or not
    with pytest.raises(ValueError, match=r"^paired must be True or False, got 'no': give one of the two, or leave it"):
        compare(results, paired="no")
    with pytest.raises(ValueError, match="even number"):
        compare([*results, results[0]], paired=True)
