"""Several measurements side by side: a family by size, a row of checkpoints, texts, or pairs."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from inspect import signature
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from .. import records
from ..checks import check_choice, check_flags
from ..files import AnyPath, finite, from_yaml, grouped, told_apart
from ..stats.intervals import mean_interval
from ..text import open_text
from ..words import amount, list_of, perhaps, span
from .result import Condensation, too_few
from .trend import rank_correlation

Item = AnyPath | Condensation | tuple[Any, Any]
OF_MODELS = ("layers", "width", "parameters", "weights")  # facts of a model itself, the one that says most first
BESIDE = ("spectral", "released")  # settings that add statistics and change none


@dataclass(frozen=True)
class Comparison:
    """``axis`` is what the results vary in: "size", "checkpoint", "text", or else "order"; with ``paired``, results
    2k and 2k+1 belong together."""

    results: list[Condensation]
    axis: str
    paired: bool = False

    def __repr__(self) -> str:
        return f"Comparison({', '.join(self.labels)}; {self.verdict})"

    def rows(self) -> list[dict[str, Any]]:
        """One row per result: its model and text, the mean cosine over the blocks and every trend statistic, each with
        its interval."""
        rows = []
        for number, (r, label) in enumerate(zip(self.results, self.labels)):
            row: dict[str, Any] = {
                "model": label,
                "revision": r.record.model.revision,
                "text": r.text,
                "parameters": r.record.model.parameters,
                "layers": r.layers,
                "windows": r.record.windows_done,
                "complete": r.complete,
            }
            level = r.over_windows(r.levels())
            row |= {"mean_cosine": r.blocks, "mean_cosine_low": level.low, "mean_cosine_high": level.high}
            if self.paired:
                row["pair"] = number // 2
            for states in ("all", "blocks"):
                for name in records.STATISTICS:
                    entry = r.record.trend[states][name]
                    prefix = name if states == "all" else f"{name}_blocks"
                    row |= {prefix: entry.value, f"{prefix}_low": entry.low, f"{prefix}_high": entry.high}
            rows.append(row | {"verdict": r.verdict})
        return rows

    @property
    def labels(self) -> list[str]:
        """One name per result; where two share name and text, what else differs follows in brackets: of the models
        themselves, such as two of one class in memory, no more than tells them apart."""
        labels = []
        for r in self.results:
            alike = [s for s in self.results if (s.label, s.text) == (r.label, r.text)]
            names = told_apart([s.record.model.name for s in alike])
            facts = [_facts(s) | {"name": name} for s, name in zip(alike, names)]
            own_facts = next(f for s, f in zip(alike, facts) if s is r)
            asked = [key for key in own_facts if key not in OF_MODELS]
            different = [key for key in asked if len({str(f.get(key)) for f in facts}) > 1]
            different = [key for key in different if key not in BESIDE] or different
            for key in OF_MODELS:
                same = [f for f in facts if all(f.get(told) == own_facts[told] for told in different)]
                different += [key] * (own_facts[key] != "" and len({f[key] for f in same} - {""}) > 1)
            labels.append(r.label + (f" ({', '.join(own_facts[key] for key in different)})" if different else ""))
        return labels

    @property
    def notes(self) -> list[str]:
        """What makes the results hard to compare: different depths, window lengths, numbers of last states or texts.
        Then the notes of the results, each once, with the results that have it where not all do."""
        notes = []
        depths = sorted({r.layers for r in self.results})
        if len(depths) > 1:
            notes.append(
                f"the models have {list_of([str(depth) for depth in depths])} layers, and Spearman depends on their "
                "number: compare mean cosines and curves."
            )
        lengths = sorted({int(r.record.settings["tokens"]) for r in self.results})
        if len(lengths) > 1:
            notes.append(
                f"the windows have {', '.join(map(str, lengths))} tokens: cosines depend on their length, "
                "measure all with the same --tokens."
            )
        last = sorted({int(r.record.settings["last"]) for r in self.results})
        if len(last) > 1:
            notes.append(
                f"the statistic last is a mean of {list_of([str(number) for number in last])} states, and so not "
                "comparable: measure all with the same --last."
            )
        texts = {r.record.text.sha256: r.text for r in self.results}
        groups = [[r] for r in self.results] if self.axis == "order" else self._models
        if self.axis != "text" and len({frozenset(r.record.text.sha256 for r in own) for own in groups}) > 1:
            notes.append(
                f"the results are of {len(texts)} different texts ({', '.join(sorted(set(texts.values())))}): a "
                "difference may come from the texts."
            )
        names = [f"{label} on {r.text}" if len(texts) > 1 else label for r, label in zip(self.results, self.labels)]
        said = [
            dict.fromkeys([*r.notes, *too_few(r.record.windows_done)]) for r in self.results
        ]  # older results lack this note
        owners = grouped((note, name) for name, own in zip(names, said) for note in own).items()
        return notes + [("" if len(own) == len(said) else f"{list_of(own)}: ") + note for note, own in owners]

    @property
    def verdict(self) -> str:
        """One line: the level and the trend over depth, and whether they change with size (or along the row).
        Trends of models of different depth are not compared (see ``notes``)."""
        rows = {"size": ("size", "sizes"), "checkpoint": ("checkpoint order", "checkpoints")}
        axis, plural = rows.get(self.axis, ("", "results"))
        models, mean = self._models, lambda some: float(np.mean(some))
        places = [own[0].record.model.parameters if axis == "size" else i for i, own in enumerate(models)]
        if self.paired or not axis or len(set(places)) < 3:
            models, places, plural = [[r] for r in self.results], [], "results"
        values = [("mean cosine", 3, [mean([r.blocks for r in own]) for own in models])]
        if len({r.layers for r in self.results}) == 1:
            values.append(("Spearman over depth", 2, [mean([r.spearman for r in own]) for own in models]))
        if self.paired:
            higher = [f"the higher {name} in {int(np.sum(np.diff(v)[::2] > 0))}" for name, _, v in values]
            higher[0] += f" of {len(models) // 2} pairs"
            return f"the second of the pair has {', '.join(higher)}"
        sentences = [_range(name, means, digits) + _change(places, means, axis) for name, digits, means in values]
        averaged = ", each the mean of its results" if any(len(own) > 1 for own in models) else ""
        return f"over {len(set(places)) or len(models)} {plural}{averaged}: {'; '.join(sentences)}"

    @cached_property
    def difference(self) -> records.Shift | None:
        """The difference in mean cosine of exactly two results, with an interval over windows: paired where both have
        the same passages of one text, else of independent samples."""
        if len(self.results) != 2:
            return None
        first, second = self.results
        same = _passages(first) == _passages(second)
        levels = [(r.levels(), _last(r)) for r in (first, second)]
        level, last = (
            second.over_windows(b - a) if same else _apart(first.over_windows(a), second.over_windows(b))
            for a, b in zip(*levels)
        )
        values = [span(one.value, one.low, one.high, 3, sign=True) for one in (level, last)]
        sentence = f"the second minus the first: mean cosine of the blocks {values[0]}, of the last states {values[1]}"
        if level.low is not None:
            pairing = "the same in both and resampled in pairs" if same else "not the same in both"
            sentence += f" (95 % intervals over windows, {pairing})"
        return records.Shift(sentence=sentence, same_windows=same, mean_cosine=level, last=last)

    @property
    def _models(self) -> list[list[Condensation]]:
        """The results grouped by model: a model measured on several texts is one group. Weights tell two models of one
        name apart, but those of an older result are not known."""
        unknown = {"weights"} if any(r.record.model.weights is None for r in self.results) else None
        return list(grouped((r.record.model.model_dump_json(exclude=unknown), r) for r in self.results).values())

    def to_pandas(self) -> Any:
        """One row per result."""
        return self.record().to_pandas()

    def to_json(self) -> str:
        return self.record().to_json()

    def save(self, path: AnyPath) -> Path:
        """Write ``path``, or ``path/result.json`` if it is a folder; folders are made."""
        return self.record().save(path)

    def record(self) -> records.Comparison:
        return records.Comparison(
            schema=records.Comparison.reads[0], axis=self.axis, paired=self.paired, verdict=self.verdict,
            difference=self.difference, notes=self.notes, rows=self.rows(),
        )  # fmt: skip

    def plot(
        self, path: AnyPath | None = None, *, ax: Any = None, title: str | None = None, view: str = "pooled"
    ) -> Any:
        """Draw the heatmaps side by side, as ``decondense.plot`` does; with a ``path`` also trend.png and, with all
        curves of mean cosine over depth in one chart, curves.png beside that file."""
        from ..figures.measurements import curve_plot, heatmaps, trend_plot

        drawn = heatmaps(self.results, path, view=view, names=self.labels, ax=ax, title=title)
        if isinstance(drawn, Path):
            trend_plot(self.rows(), drawn.with_name("trend.png"), axis=self.axis, paired=self.paired)
            curve_plot(self.results, drawn.with_name("curves.png"), names=self.labels)
        return drawn


def compare(
    items: Item | Sequence[Item],
    *,
    texts: Any = None,
    revisions: str | Sequence[str] | None = None,
    paired: bool = False,
    started: Callable[[str, int, int], None] | None = None,
    finished: Callable[[Condensation], None] | None = None,
    **options: Any,
) -> Comparison:
    """Measure the models that are not measured yet, and put all results side by side.

    Args:
        items: models (any name ``measure`` takes), saved results (file or folder) or ``Condensation`` objects; a
            list, or a single item.
        texts: measure every model on each of these.
        revisions: measure the one model at each of these revisions: a row of checkpoints.
        paired: items come in pairs, (a, b), (c, d) …
        started, finished: called before and after each measurement.
        options: passed on to ``measure``.
    """
    from .run import measure

    jobs = plan(items, texts, revisions, paired, options)
    results = []
    # stdin and iterators can be read only once, so all models share the result
    opened: Callable[..., Any] = cache(partial(open_text, column=options.get("column")))
    names = _names_of_files(texts)
    for number, job in enumerate(jobs):
        if isinstance(job, Condensation):
            results.append(job)
            continue
        name, extra = job
        if started is not None:
            started(str(name), number, len(jobs))
        measure_options = options | extra
        text = measure_options.get("text")
        if isinstance(text, Iterator) or (isinstance(text, str) and text == "-"):
            measure_options["text"] = opened(text)
        elif isinstance(text, (str, os.PathLike)) and text in names:
            measure_options["text"] = replace(opened(text), name=names[text], source=names[text])
        results.append(measure(name, **measure_options))
        if finished is not None:
            finished(results[-1])
    return Comparison(results, _axis(results, paired), paired)


def plan(items: Item | Sequence[Item], texts: Any, revisions: Any, paired: bool, options: dict[str, Any]) -> list[Any]:
    """Return the given results, and (model, options) for each one to measure; all are checked before the first runs."""
    from .run import check, measure

    check_flags(paired=paired)
    params = [*signature(compare).parameters.values(), *signature(measure).parameters.values()]
    option_names = [one.name for one in params if one.kind is one.KEYWORD_ONLY]
    for name in options:
        if name not in option_names:
            raise TypeError(f"{name!r} is not an option of compare or measure{perhaps(name, option_names)}")
    item_list, texts, revisions = map(_as_list, (items, texts, revisions))
    variants: list[dict[str, Any]] = [{"revision": r} for r in revisions] if revisions else [{}]
    variants = [v | {"text": t} for v in variants for t in texts] if texts else variants
    jobs: list[Any] = []
    for item in item_list:
        saved = item if isinstance(item, Condensation) else _saved(item)
        jobs += [(item, v) for v in variants] if saved is None else [saved]
    if paired and len(jobs) % 2:
        raise ValueError(f"paired needs an even number of results, got {len(jobs)}: give them as a b, c d, …")
    if len(jobs) < 2:
        raise ValueError(
            f"compare needs at least two results, got {len(jobs)}: give more models or saved results, or several texts "
            "with --texts a,b or revisions with --revisions a,b."
        )
    to_measure = [job for job in jobs if not isinstance(job, Condensation)]
    chosen, default = options | {"texts": texts, "revisions": revisions}, {one.name: one.default for one in params}
    unused = [name for name, value in chosen.items() if value != default[name] and not callable(value)]
    if unused and not to_measure:
        raise ValueError(f"{unused[0]!r} is for measuring, but all {len(jobs)} items are saved results: leave it out.")
    for name, extra in to_measure:
        check(name, **(options | extra))
    return jobs


def _names_of_files(texts: Any) -> dict[AnyPath, str]:
    """Return names for the text files of one file name: a/text.txt and b/text.txt, where each alone is text.txt."""
    files = [text for text in _as_list(texts) or () if isinstance(text, (str, os.PathLike))]
    alike = grouped((PurePath(file).name, file) for file in dict.fromkeys(files)).values()
    return {file: name for own in alike if len(own) > 1 for file, name in zip(own, told_apart(own))}


def _as_list(given: Any) -> Any:
    """Wrap a single name or result in a list, so that a name is not iterated by its letters."""
    return [given] if isinstance(given, (str, os.PathLike, Condensation)) else given


def _saved(item: Any) -> Condensation | None:
    """Read a saved measurement from a file or folder; None for a model, a training run or anything else to measure."""
    if not isinstance(item, (str, os.PathLike)):
        return None
    path = Path(item)
    is_file = path.suffix == ".json" and not path.is_dir()  # a model has no such name: it is read, or missed
    if not is_file and not (path / "result.json").is_file():
        return None
    record = records.read(path)
    if isinstance(record, records.Measurement):
        return Condensation(record)
    if isinstance(record, records.Training) and path.is_dir():
        return None  # its model is measured
    raise ValueError(f"{str(item)!r} is a result of the kind {record.kind}: compare takes measurements and models.")


def _passages(result: Condensation) -> tuple[str, list[dict[str, int]]]:
    """Return the text and where the windows begin in it. Their ends are left out: they depend on the tokenizer. Of
    batches so is the place in them, where the place among all their rows is known."""
    windows = []
    for window in result.record.windows:
        apart = ("end", "batch", "row") if "input" in window else ("end",)
        windows.append({key: at for key, at in window.items() if key not in apart})
    return result.record.text.sha256, windows


def _last(result: Condensation) -> np.ndarray:
    """Return the mean cosine over the last states of every window, (windows,)."""
    return result.per_window[:, -result.record.settings["last"] :].mean(-1)


def _apart(a: records.Interval, b: records.Interval) -> records.Interval:
    """Return b − a of two independent samples, its interval from theirs: b + (−a), where the ends of −a swap."""
    first, second = ([records.known(x) for x in (one.value, one.low, one.high)] for one in (a, b))
    values, ends = (-first[0], second[0]), ((-first[2], -first[1]), (second[1], second[2]))
    low, high = mean_interval(values, ends, weights=(1, 1))
    return records.Interval(value=finite(sum(values)), low=finite(low), high=finite(high))


def _range(name: str, values: Sequence[float], digits: int) -> str:
    defined = [value for value in values if math.isfinite(value)]
    if not defined:
        return f"{name} undefined"
    undefined_note = f" (undefined in {len(values) - len(defined)})" if len(defined) < len(values) else ""
    return f"{name} from {span(min(defined), digits=digits)} to {span(max(defined), digits=digits)}{undefined_note}"


def _change(places: Sequence[float], values: Sequence[float], axis: str) -> str:
    """Say how the defined values change along their places; "" where no value is defined."""
    defined = [(place, value) for place, value in zip(places, values) if math.isfinite(value)]
    if not defined:
        return ""
    rho = rank_correlation(*zip(*defined))
    return f", which does not change with {axis}" if math.isnan(rho) else f", rank correlation with {axis} {span(rho)}"


def _axis(results: list[Condensation], paired: bool) -> str:
    models = [r.record.model for r in results]
    one_model = len({(r.label, m.revision) for r, m in zip(results, models)}) == 1
    if one_model and len({m.weights for m in models} - {None}) < 2 and len({r.text for r in results}) > 1:
        return "text"
    if len({m.name for m in models}) == 1 and len({m.revision for m in models}) > 1:
        return "checkpoint"
    return "size" if len({m.parameters for m in models}) > (len(models) // 2 - 1 if paired else 1) else "order"


def _facts(result: Condensation) -> dict[str, str]:
    """Return in words the facts in which two results of the same name may differ."""
    model, settings = result.record.model, result.record.settings
    facts = {"name": model.name, "revision": str(model.revision), "dtype": model.dtype, "stack": model.stack}
    facts |= {"windows": f"{result.record.windows_done} windows", "text": f"text {result.record.text.sha256[:6]}"}
    facts |= {"layers": f"layers {model.layers}", "width": f"width {model.width}"}
    facts |= {"parameters": f"parameters {amount(model.parameters)}"}
    facts |= {"weights": "" if model.weights is None else f"weights {model.weights[:6]}"}
    return facts | {key: f"{key} {value}" for key, value in settings.items() if key not in ("windows", "batch")}


def families() -> dict[str, dict[str, Any]]:
    """``families.yaml``: the model families, rows of checkpoints and distilled pairs of the paper."""
    path = Path(__file__).resolve().parent.parent / "families.yaml"
    return from_yaml(path.read_text(encoding="utf-8"))


def family_of(name: str) -> dict[str, Any]:
    known = families()
    check_choice("family", name, known)
    return known[name]
