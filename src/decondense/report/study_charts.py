"""Interactive charts of a study, from the pieces in its folder: geometry, depth, training curves, benchmarks.

Every number is checked when it is read. What a piece lacks is not drawn, a damaged number is left out, and a file that
cannot be read is named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from ..meter.result import QUANTILES, histogram_quantiles
from .charts import INK, heat_panel, layout, run_line
from .section import Chart, Frame, Panel, Table, amount, same, short, shorts, span
from .sources import BROKEN, Source, read_json

__all__ = ["benchmark_rows", "study_panels"]

HEATMAPS = 6
"""So many runs at most are drawn as heatmaps."""
FRAMES = 24
"""So many heatmaps a study has in all, over runs and steps: they are most of the page's size."""
ALPHA = 0.05
T = TypeVar("T")


class Kept:
    """A measurement as ``studies.training.snapshot`` keeps it: mean cosine (states,) and, where it is to be drawn,
    ``histogram`` (states, bins), a density over [−1, 1]."""

    before_norm = None

    def __init__(self, content: Any) -> None:
        self.mean_cosine = np.array(content["mean_cosine"], dtype=np.float64)  # null is NaN, a gap in the curve
        if self.mean_cosine.ndim != 1 or len(self.mean_cosine) < 2:
            raise ValueError("mean_cosine must be one number for every state.")
        self.record = {"final_norm": bool(content.get("final_norm"))}
        self.layers = len(self.mean_cosine) - 1
        self.step = _whole(content.get("step"))
        self.tokens = _whole(content.get("tokens"))
        self.windows = _whole(content.get("windows"))
        (self.spearman,) = _floats([content.get("spearman")])
        self.name = ""
        drawn = content.get("histogram")
        self.histogram = np.zeros((0, 0)) if drawn is None else np.array(drawn, dtype=np.float64)

    @property
    def drawable(self) -> bool:
        values = self.histogram
        shaped = values.ndim == 2 and len(values) == self.layers + 1 and values.shape[1] > 0
        return bool(shaped and np.isfinite(values).all() and (values >= 0).all() and (values.sum(1) > 0).all())

    @property
    def quantiles(self) -> np.ndarray:
        counts = np.rint(1000 * self.histogram)  # linear inside a bin of 1/32: good enough for a dotted line
        return np.array([histogram_quantiles(row, QUANTILES) for row in counts])

    @property
    def cosine(self) -> float | None:
        """Mean cosine over all blocks: what the losses act on."""
        return short(self.mean_cosine[1:].mean())

    @property
    def words(self) -> str:
        return self.name or f"step {self.step:,}"


@dataclass
class Line:
    """One run, or one model that was measured. ``arm`` is shared with other seeds; ``key`` is how the settings call it;
    ``text`` is what it was measured on, where that differs."""

    arm: str
    key: str
    seed: int | None = None
    kept: list[Kept] = field(default_factory=list)
    curves: dict[str, tuple[list[Any], list[Any]]] = field(default_factory=dict)
    text: str = ""

    @property
    def label(self) -> str:
        return self.arm if self.seed is None else f"{self.arm}, seed {self.seed}"


Arms = dict[str, list[Line]]


def study_panels(source: Source) -> tuple[list[Panel], list[str]]:
    """The panels of a study, and a note for every piece that could not be read."""
    lines, notes = _read(source)
    arms: Arms = {}
    for line in lines:
        arms.setdefault(line.arm, []).append(line)
    made = (_heat(arms), _depth(arms), _trend(arms), _curves(arms))
    return [panel for panel in made if panel is not None], notes


# -- reading -------------------------------------------------------------------------------------------------


def _read(source: Source) -> tuple[list[Line], list[str]]:
    """The runs and measurements of all pieces, in the order in which the settings name them, then by seed."""
    root = source.path.parent.resolve()
    given = source.record.get("pieces")
    names = given if isinstance(given, list) else []
    lines: list[Line] = []
    notes: list[str] = []
    missing = 0
    for name in names:
        try:
            path = (root / "pieces" / f"{name}.json").resolve()
            if not path.is_relative_to(root):
                raise ValueError("it lies outside the result folder.")
            if not path.is_file():
                missing += 1
                continue
            piece = read_json(path)
            lines += [*_trained(piece), *_measured(piece)]
        except (ValueError, OSError) as error:
            notes.append(f"the piece {name} could not be read and is not in the charts: {error}")
    if missing and lines:
        notes.append(f"{missing} of {len(names)} pieces are not there: the charts are without them.")
    order: dict[str, int] = {}
    for word in _strings(source.record.get("config")):
        order.setdefault(word, len(order))
    lines = _rows_of_checkpoints(lines)
    lines.sort(key=lambda line: (order.get(line.key, len(order)), line.seed or 0))
    several = len({line.arm for line in lines}) > 1
    for line in lines:
        if line.text:
            line.arm = f"{line.arm} on {line.text}" if several else line.text
    return lines, notes


def _trained(piece: dict[str, Any]) -> list[Line]:
    seed = _whole(_table(piece, "what").get("seed"))
    lines = []
    for arm, run in _table(piece, "runs").items():
        line = Line(arm, arm, seed)
        line.kept = [kept for kept in _those(Kept, _list(run, "snapshots")) if kept.step is not None]
        line.kept.sort(key=lambda kept: kept.step or 0)
        curves = _table(run, "curves")
        given = {name: [curves.get("step"), curves.get(name)] for name in ("task_loss", "penalty", "mean_cosine")}
        pairs = [pair for pair in _list(run, "held_out") if isinstance(pair, list) and len(pair) == 2]
        given["held_out"] = [[pair[i] for pair in pairs] for i in (0, 1)]
        for name, columns in given.items():
            for curve in _those(_curve, [columns]):
                line.curves[name] = curve
        lines.append(line)
    return lines


def _measured(piece: dict[str, Any]) -> list[Line]:
    what = _table(piece, "what")
    model = str(what.get("model", ""))
    lines = []
    for text, content in _table(piece, "measurements").items():
        for kept in _those(Kept, [content]):
            lines.append(Line(model, text, kept=[kept], text=text))
    content = _table(piece, "measurement")
    for kept in _those(Kept, [content]):
        name = str(content.get("model", model)) + (", distilled" if what.get("taught") is True else "")
        if what.get("revision") is not None:  # one of a row of checkpoints
            kept.name, kept.step, name = str(what["revision"]), _whole(what.get("place")), model
        lines.append(Line(name, model, kept=[kept]))
    return lines


def _rows_of_checkpoints(lines: Sequence[Line]) -> list[Line]:
    """The checkpoints of one model, each a piece of its own, as one line."""
    rows: dict[str, Line] = {}
    others = []
    for line in lines:
        if line.kept and line.kept[0].name and line.kept[0].step is not None:
            rows.setdefault(line.key, Line(line.arm, line.key)).kept += line.kept
        else:
            others.append(line)
    for row in rows.values():
        row.kept.sort(key=lambda kept: kept.step or 0)
    return [*rows.values(), *others]


def _those(make: Callable[[Any], T], contents: list[Any]) -> Iterator[T]:
    """What can be made of the contents; the rest is left out."""
    for content in contents:
        try:
            yield make(content)
        except BROKEN:
            continue


def _table(content: Any, key: str) -> dict[str, Any]:
    value = content.get(key) if isinstance(content, dict) else None
    return value if isinstance(value, dict) else {}


def _list(content: Any, key: str) -> list[Any]:
    value = content.get(key) if isinstance(content, dict) else None
    return value if isinstance(value, list) else []


def _curve(columns: list[Any]) -> tuple[list[Any], list[Any]]:
    steps, values = columns
    if len(steps) != len(values) or any(_whole(step) is None for step in steps):
        raise ValueError("a curve needs a whole step for every value.")
    return list(steps), _floats(values)


def _floats(values: list[Any]) -> list[Any]:
    return [None if value is None else short(float(value)) for value in values]


def _whole(value: Any) -> int | None:
    """Step, tokens, seed: a whole number that a browser can hold too."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else None


def _strings(value: Any) -> Iterator[str]:
    """Every name in the settings, in order."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield str(key)
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)


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
    seeds = _table(_table(estimate, "runs"), TREATED)
    rows = []
    for values in record["table"]["rows"]:
        row = dict(zip(columns, values))
        if not all(_number(row[key]) for key in ("items", "base", "difference", "p")) or row["items"] < 1:
            continue
        for key in ("treated", "low", "high", "p_holm", "smallest_effect"):
            row[key] = row[key] if _number(row.get(key)) else None
        p = row["p"] if row["p_holm"] is None else row["p_holm"]
        own = [_table(seeds, seed).get(str(row["task"])) for seed in seeds]
        if row["task"] == "average":
            own = _list(_table(estimate, "macro"), "treated_seeds")
        row |= {"significant": p <= ALPHA, "treated_seeds": [value for value in own if _number(value)]}
        rows.append(row)
    return rows, f"{TREATED} − {PLAIN}"


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e15
