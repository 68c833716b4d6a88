"""Interactive charts of a study, from the pieces in its folder: geometry, depth, training curves, benchmarks.

What the pieces hold is read and checked in `study_lines`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from .charts import INK, heat_panel, layout, run_line
from .section import Chart, Frame, Panel, Table, amount, same, short, shorts, span
from .sources import Source
from .study_lines import Kept, Line, list_of, read_lines, table_of

__all__ = ["benchmark_rows", "study_panels"]

HEATMAPS = 6
"""So many runs at most are drawn as heatmaps."""
FRAMES = 24
"""So many heatmaps a study has in all, over runs and steps: they are most of the page's size."""
ALPHA = 0.05
T = TypeVar("T")


Arms = dict[str, list[Line]]


def study_panels(source: Source) -> tuple[list[Panel], list[str]]:
    """The panels of a study, and a note for every piece that could not be read."""
    lines, notes = read_lines(source)
    arms: Arms = {}
    for line in lines:
        arms.setdefault(line.arm, []).append(line)
    made = (_heat(arms), _depth(arms), _trend(arms), _curves(arms))
    return [panel for panel in made if panel is not None], notes


# -- charts --------------------------------------------------------------------------------------------------


def _spread(items: Sequence[T], count: int) -> list[T]:
    """At most so many of them, the first and the last among them, the others evenly between."""
    if len(items) <= count:
        return list(items)
    return [items[i] for i in sorted({round(k * (len(items) - 1) / (count - 1)) for k in range(count)})]


def _heat(arms: Arms) -> Panel | None:
    """A heatmap per arm, of its first seed; not all arms where there are many, nor all steps."""
    firsts = [line for lines in arms.values() for line in lines[:1] if any(kept.drawable for kept in line.kept)]
    if not firsts:
        return None
    shown = _spread(firsts, HEATMAPS)
    rows = []
    for line in shown:
        row = []
        for kept in _spread([kept for kept in line.kept if kept.drawable], max(2, FRAMES // len(shown))):
            rho = f"Spearman {span(kept.spearman, None, None)}"
            caption = rho if kept.step is None else f"{kept.words}: {rho}"
            row.append((kept.step, _slider_words(kept), kept, caption))
        rows.append((line.label, row))
    steps = any(len(row) > 1 for _, row in rows)
    notes = []
    if len(shown) < len(firsts):
        notes.append(f"{len(shown)} of {len(firsts)} are drawn.")
    if any(len(lines) > 1 for lines in arms.values()):
        notes.append("The first seed of each arm.")
    windows = {kept.windows for line in shown for kept in line.kept}
    if len(windows) == 1 and None not in windows:
        notes.append(f"The meter on {windows.pop()} windows.")
    notes.append("Orange: mean; dotted: 5 and 95 %. One colour scale for all; what is above it has its last colour.")
    title = "Geometry before, during and after" if steps else "Geometry"
    named = any(kept.name for line in shown for kept in line.kept)
    return heat_panel(rows, title, " ".join(notes), slider="Checkpoint" if named else "Training step")


def _slider_words(kept: Kept) -> str:
    """A step is the same for all runs; a checkpoint has another name in every model."""
    if kept.name:
        return f"checkpoint {(kept.step or 0) + 1}"
    return f"step {kept.step or 0:,}" + ("" if kept.tokens is None else f" · {amount(kept.tokens)} tokens")


def _depth(arms: Arms) -> Panel | None:
    """Mean cosine over depth before and after, and what training changed of it."""
    ends = {arm: [line for line in lines if line.kept] for arm, lines in arms.items()}
    ends = {arm: lines for arm, lines in ends.items() if lines}
    if not ends:
        return None
    every = [line for lines in ends.values() for line in lines]
    trained = {arm: [line for line in lines if len(line.kept) > 1] for arm, lines in ends.items()}
    relative = not same([line.kept[-1].layers for line in every])
    rows = [
        [line.label, kept.words if kept.step is not None else "", layer, short(value)]
        for line in every
        for kept in (line.kept[:1] + line.kept[-1:] if len(line.kept) > 1 else line.kept)
        for layer, value in enumerate(kept.mean_cosine)
    ]
    table = Table("Mean cosine over depth", ["run", "when", "layer", "mean_cosine"], rows)
    axis = {"title": {"text": "depth: layer / number of layers" if relative else "layer (0 = embedding)"}}
    traces: list[dict[str, Any]] = []
    places = {arm: number for number, arm in enumerate(arms)}
    starts = {arm: _mean([line.kept[0] for line in lines]) for arm, lines in trained.items() if lines}
    common = len(starts) > 1 and len({kept.mean_cosine.round(4).tobytes() for kept in starts.values()}) == 1
    for arm, lines in ends.items():
        number = places[arm]
        words = f"{arm}, after" if trained[arm] else arm
        if arm in starts and (not common or not traces):
            when = "before, all arms" if common else f"{arm}, before"
            traces.append(_profile(starts[arm], when, number, relative, shade=INK if common else "", before=True))
        traces.append(_profile(_mean([line.kept[-1] for line in lines]), words, number, relative))
    height = _height(380, len(traces))
    value = {"title": {"text": "mean cosine of two tokens"}}
    description = layout(xaxis=axis, yaxis=value, showlegend=len(traces) > 1)
    charts = [Chart("Mean cosine over depth", description, [Frame(traces)], height=height, table=table)]
    if any(len(lines) > 1 for lines in ends.values()):
        charts[0].note = "Means over the seeds of an arm."
    change = _change({arm: lines for arm, lines in trained.items() if lines}, places, axis, height, relative)
    charts += [change] if change is not None else []
    note = "The single marker at the right is the last state, after the final norm."
    return Panel(charts, "Over depth", note if any(line.kept[-1].record["final_norm"] for line in every) else "")


def _change(trained: Arms, places: dict[str, int], axis: Any, height: int, relative: bool) -> Chart | None:
    """After minus before, where the curves themselves lie over each other."""
    traces = []
    rows: list[list[Any]] = []
    for arm, lines in trained.items():
        for place, line in enumerate(lines):
            before, after = line.kept[0], line.kept[-1]
            if before.layers != after.layers:
                continue
            change = after.mean_cosine - before.mean_cosine
            drawn = _over_depth(change, after.record["final_norm"], relative)
            drawn |= {"hover": "layer %{customdata}<br>%{y:+.4f}", "number": places[arm], "first": place == 0}
            traces.append(run_line(**drawn, label=line.label, arm=arm))
            rows += [[line.label, layer, short(value)] for layer, value in enumerate(change)]
    if not traces:
        return None
    value = {"title": {"text": "change of mean cosine"}, "zeroline": True, "zerolinecolor": INK}
    description = layout(xaxis=axis, yaxis=value, showlegend=len(trained) > 1)
    table = Table("What training changed", ["run", "layer", "change_of_mean_cosine"], rows)
    note = "After minus before: below 0 a layer is less condensed than it was. One line for each run."
    return Chart("What training changed", description, [Frame(traces)], height=height, note=note, table=table)


def _mean(kept: Sequence[Kept]) -> Kept:
    """The mean over seeds, of those that are as deep as the first."""
    alike = [k.mean_cosine for k in kept if k.layers == kept[0].layers]
    return Kept({"mean_cosine": np.mean(alike, axis=0), "final_norm": kept[0].record["final_norm"]})


def _over_depth(values: np.ndarray, final_norm: bool, relative: bool) -> dict[str, Any]:
    """Values against layers. The last state has another normalisation where there is a final norm: the line stops
    before it, and it is a marker by itself."""
    layers = list(range(len(values)))
    y = shorts(values, 5)
    if final_norm:
        layers.insert(-1, layers[-2])
        y.insert(-1, None)
    depth = len(values) - 1
    sizes = [0] * (len(y) - 1) + [8 if final_norm else 0]
    x = [short(layer / depth, 4) for layer in layers] if relative else layers
    marker = {"size": sizes, "opacity": 1, "line": {"width": 0}}
    return {"x": x, "y": y, "customdata": layers, "mode": "lines+markers", "marker": marker}


def _profile(kept: Kept, words: str, number: int, relative: bool, *, shade: str = "", before: bool = False) -> Any:
    """The mean cosine of one state of one arm over depth; before training dotted and thin."""
    drawn = _over_depth(kept.mean_cosine, kept.record["final_norm"], relative)
    hover = "layer %{customdata}<br>mean cosine %{y:.3f}"
    trace = run_line(**drawn, label=words, arm=words, number=number, first=True, hover=hover)
    trace["legendgroup"] = f"{number} {before}"
    if before:
        trace["line"] |= {"dash": "dot", "width": 1.4}
    if shade:
        trace["line"]["color"] = trace["marker"]["color"] = shade
    return trace


def _trend(arms: Arms) -> Panel | None:
    """Mean cosine and Spearman at the snapshots of every run."""
    named = any(kept.name for lines in arms.values() for line in lines for kept in line.kept)
    parts: list[tuple[str, str, Callable[[Kept], Any]]] = [
        ("Mean cosine of all blocks", "mean cosine", lambda kept: kept.cosine),
        ("Spearman of mean cosine with depth", "Spearman", lambda kept: kept.spearman),
    ]
    charts = []
    for title, words, value in parts:
        found: Points = {}
        for arm, lines in arms.items():
            for line in lines:
                if len(line.kept) > 1:
                    found.setdefault(arm, []).append((line, [k.step for k in line.kept], [*map(value, line.kept)]))
        chart = _over_steps(title, words, found, arms, "checkpoint" if named else "step", markers=True)
        charts += [chart] if chart is not None else []
    note = (
        "Measured on held-out text. One line for each run; seeds of one arm share colour and dash. "
        "The axes are cut to what changed."
    )
    return Panel(charts, "Condensation over training", note) if charts else None


def _curves(arms: Arms) -> Panel | None:
    parts = [
        ("Task loss while training", "task_loss", "task loss, nats per token"),
        ("Held-out loss", "held_out", "held-out loss, nats per token"),
        ("Penalty", "penalty", "penalty"),
        ("Mean cosine while training", "mean_cosine", "mean cosine"),
    ]
    charts = []
    for title, name, words in parts:
        found: Points = {}
        for arm, lines in arms.items():
            for line in lines:
                if name in line.curves:
                    found.setdefault(arm, []).append((line, *line.curves[name]))
        chart = _over_steps(title, words, found, arms, "step", markers=name == "held_out")
        charts += [chart] if chart is not None else []
    note = "One line for each arm and seed. Only arms with an added loss have a penalty."
    return Panel(charts, "Training curves", note) if charts else None


Points = dict[str, list[tuple[Line, list[Any], list[Any]]]]


def _over_steps(title: str, words: str, found: Points, arms: Arms, unit: str, *, markers: bool) -> Chart | None:
    """One line per arm and seed; an arm has the same colour in every chart."""
    traces = []
    places = {arm: number for number, arm in enumerate(arms)}
    mode = "lines+markers" if markers else "lines"
    for arm, lines in found.items():
        known = [(line, x, y) for line, x, y in lines if any(v is not None for v in y)]
        for place, (line, x, y) in enumerate(known):
            hover = f"{unit} %{{x:,}}<br>%{{y:.4f}}"
            traces.append(
                run_line(x, y, label=line.label, arm=arm, number=places[arm], first=place == 0, hover=hover, mode=mode)
            )
    if not traces:
        return None
    column = words.split(",")[0].replace(" ", "_").replace("-", "_").lower()
    axes = {"xaxis": {"title": {"text": unit}}, "yaxis": {"title": {"text": words}}}
    description = layout(**axes, showlegend=len(arms) > 1)
    height = _height(340, len(found))
    return Chart(title, description, [Frame(traces)], height=height, columns={"meta": "run", "x": unit, "y": column})


def _height(least: int, entries: int) -> int:
    """A legend may take half of a chart, and an entry 20 pixels of it."""
    return max(least, 20 + 40 * entries)


# -- benchmarks ----------------------------------------------------------------------------------------------


def benchmark_rows(record: dict[str, Any]) -> tuple[list[dict[str, Any]], str]:
    """The rows of a table of differences between two arms, as the forest plot takes them, and which arms; none if it
    is another table. Single seeds come from the estimate."""
    from ..studies.benchmarks import PLAIN, TREATED

    columns = list(record["table"]["columns"])
    if not {"task", "items", "base", "difference", "low", "high", "p"} <= set(columns):
        return [], ""
    estimate = record.get("estimate")
    seeds = table_of(table_of(estimate, "runs"), TREATED)
    rows = []
    for values in record["table"]["rows"]:
        row = dict(zip(columns, values))
        if not all(_number(row[key]) for key in ("items", "base", "difference", "p")) or row["items"] < 1:
            continue
        for key in ("treated", "low", "high", "p_holm", "smallest_effect"):
            row[key] = row[key] if _number(row.get(key)) else None
        p = row["p"] if row["p_holm"] is None else row["p_holm"]
        own = [table_of(seeds, seed).get(str(row["task"])) for seed in seeds]
        if row["task"] == "average":
            own = list_of(table_of(estimate, "macro"), "treated_seeds")
        row |= {"significant": p <= ALPHA, "treated_seeds": [value for value in own if _number(value)]}
        rows.append(row)
    return rows, f"{TREATED} − {PLAIN}"


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e15
