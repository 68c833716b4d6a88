"""The page: one HTML file with everything inside, which works from disk and offline.

plotly.js and the page's own script are inlined (plotly.js as text, which the page's script starts when it draws the
first chart); nothing is fetched, and the content policy forbids it. Only these two scripts may run: the policy names
them by hash, so text that got into the page by mistake would stay text. Every string is escaped by jinja2; inside the
JSON, `<`, `>` and `&` are written as escapes, so that no name can end the script element.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from ..figures.chart import Chart
from ..files import finite, to_yaml
from ..records import Comparison, Measurement, Study, Training
from ..words import list_of, nobody, several, slug
from . import plotly
from .claims import place_of
from .runs import Run, group_of, read_run, read_running, training
from .section import Places, Section, Skipped, Source, Table, brief, nothing, read_sources
from .sections import comparison, evaluation, measurement, significance
from .studies import study

Progress = Callable[..., None]
TEMPLATES = Path(__file__).resolve().parent / "templates"
KINDS = {
    "study": ("Studies", "study", "studies"),
    "significance": ("Significance", "test of significance", "tests of significance"),
    "training": ("Training", "training run", "training runs"),
    "comparison": ("Comparisons", "comparison", "comparisons"),
    "measurement": ("Measurements", "measurement", "measurements"),
    "evaluation": ("Evaluations", "evaluation", "evaluations"),
}
"""Title, singular and plural of each kind, in the order of the page: conclusions before the results they rest on."""
SECTIONS: dict[str, Callable[[Any], Section]] = {f.__name__: f for f in (study, significance, measurement, evaluation)}
"""Kind → function for one result's section. Training runs share sections; comparisons include what lies below them."""


@dataclass
class Report:
    """What a page says: its sections in order, what was skipped, and how many results of each kind there are."""

    sections: list[Section]
    skipped: list[Skipped]
    counts: dict[str, int]


def collect(places: Places, *, running: bool = False, progress: Progress = nobody) -> Report:
    """Read results and make sections out of them. Raises `ValueError` when there is no result to show. A file that does
    not fit its schema is skipped, with the reason; any other error is a bug, and is raised. `running`: include runs
    that still train, as far as they have come; then it is no error if there is nothing yet. `progress` is called with
    (results done, results in all)."""
    sources, skipped = read_sources(places)
    studies = {source.path.resolve().parent / "runs" for source in sources if isinstance(source.record, Study)}
    sources = [source for source in sources if source.path.resolve().parent.parent not in studies]
    by_kind: dict[str, list[Section]] = {kind: [] for kind in KINDS}
    groups: dict[tuple[str, str], list[Run]] = {}
    for number, source in enumerate(sources):
        progress(number, len(sources))
        record, kind = source.record, source.record.kind
        if isinstance(record, Training):
            groups.setdefault(group_of(record), []).append(read_run(source))
        elif isinstance(record, Comparison):
            by_kind[kind].append(comparison(source, _below(source, sources)))
        elif kind in SECTIONS:
            by_kind[kind].append(SECTIONS[kind](source))
        else:
            why = f"{source.path.name} is part of a study: give the folder of the whole study."
            skipped.append(Skipped(source.folder, why))
    for source in read_running(places):
        if running:
            groups.setdefault(group_of(source.record), []).append(read_run(source))
        else:
            reason = "the run is not finished: show it with --serve, or complete it with decondense train --resume."
            skipped.append(Skipped(source.folder, reason))
    by_kind["training"] = [training(runs) for runs in groups.values()]
    counts = {kind: len(some) for kind, some in by_kind.items()} | {"training": sum(map(len, groups.values()))}
    by_kind["study"].sort(key=lambda section: (*place_of(section.title), section.title))
    sections = [section for kind in KINDS for section in by_kind[kind]]
    if not sections and not running:
        raise nothing("result to show", places, "in which decondense wrote result.json", skipped)
    titles = Counter(section.title for section in sections)
    for number, section in enumerate(sections, 1):
        section.id = f"r{number}"
        if titles[section.title] > 1:
            folder = f" ({section.origins[0].folder})"
            section.title += folder
            if section.claim is not None:
                section.claim = replace(section.claim, question=section.claim.question + folder)
            for depth in section.depths:
                depth.name += folder
    return Report(sections, skipped, {kind: n for kind, n in counts.items() if n})


def _below(source: Source[Any], sources: Sequence[Source[Any]]) -> list[Source[Any]]:
    """The measurements that `compare` kept in its own folder."""
    kept = source.path.resolve().parent / "results"
    inside = [other for other in sources if other.path.resolve().parent.parent == kept]
    return [other for other in inside if isinstance(other.record, Measurement)]


# -- the data inside the page --------------------------------------------------------------------------------


class Pool:
    """Stores every long list once: charts and tables that share numbers refer to the same entry, {"$": number}."""

    def __init__(self) -> None:
        self.entries: dict[str, int] = {}

    def pack(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self.pack(inner) for key, inner in value.items()}
        if isinstance(value, (list, tuple)):
            if len(value) < 8 and not any(isinstance(v, (list, tuple)) and len(v) > 8 for v in value):
                return [self.pack(inner) for inner in value]
            return {"$": self.entries.setdefault(to_json(value), len(self.entries))}
        return value

    def to_json(self) -> str:
        return "[" + ",\n".join(self.entries) + "]"


_JSON = json.JSONEncoder(default=str, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def to_json(value: Any) -> str:
    """JSON that may stand in a script element: no character in it can begin a tag."""
    try:
        body = _JSON.encode(value)
    except ValueError:  # not finite: rare, and looking for it first takes longer than encoding
        body = _JSON.encode(finite(value))
    for letter in "<>&\u2028\u2029":
        body = body.replace(letter, f"\\u{ord(letter):04x}")
    return body


def _chart_data(chart: Chart, file: str, pool: Pool) -> dict[str, Any]:
    table = None if chart.rows is None else _table_data(Table.of(chart.title, chart.rows), pool)
    frames = [
        {"view": f.view, "step": f.step, "caption": f.caption, "data": [pool.pack(t) for t in plotly.traces(f)]}
        for f in chart.frames
    ]
    described = {"layout": plotly.layout(chart), "columns": plotly.columns(chart), "table": table, "frames": frames}
    return {"title": chart.title, "file": file, "height": chart.height} | described


def _table_data(table: Table, pool: Pool) -> dict[str, Any]:
    """Return a table by column: long columns are shared with the charts that draw them."""
    columns = [list(column) for column in zip(*table.rows)] if table.rows else [[] for _ in table.columns]
    return {"title": table.title, "columns": table.columns, "data": [pool.pack(column) for column in columns]}


def page_data(content: Report, progress: Progress = nobody) -> tuple[dict[str, Any], Pool]:
    """Return what the page's script works with: sections, charts and tables by id, and the pool of their numbers."""
    pool = Pool()
    charts: dict[str, Any] = {}
    tables: dict[str, Any] = {}
    sections: dict[str, Any] = {}
    for number, section in enumerate(content.sections):
        progress(number, len(content.sections), "writing sections")
        name = slug(section.kind, section.title)[:60]
        head = {key: getattr(section, key) for key in ("kind", "title", "badge", "verdict", "notes")}
        keys = ("folder", "command", "hardware", "config")
        origins = [{key: getattr(origin, key) for key in keys} for origin in section.origins]
        sections[section.id] = head | {"file": f"{section.id}-{name}", "origins": origins}
        for p, panel in enumerate(section.panels):
            for c, chart in enumerate(panel.charts):
                charts[f"{section.id}-p{p}-c{c}"] = _chart_data(chart, slug(section.id, name[:40], chart.title), pool)
        for t, table in enumerate(section.tables):
            tables[f"{section.id}-t{t}"] = _table_data(table, pool) | {"file": slug(section.id, name[:40], table.title)}
    depths = [[section.title, [pool.pack(vars(depth)) for depth in section.depths]] for section in content.sections]
    return {"sections": sections, "charts": charts, "tables": tables, "depths": [d for d in depths if d[1]]}, pool


# -- HTML ----------------------------------------------------------------------------------------------------


def render(content: Report, *, title: str | None = None, live: str = "", progress: Progress = nobody) -> str:
    """Return the whole page as a string. The same results give the same bytes. `live`: the stamp of a served page,
    which asks its server for a newer one. `progress` is called with (sections done, sections in all, what is done)."""
    from plotly.offline import get_plotlyjs

    library = get_plotlyjs()
    script = _script("page", "compare", "downloads", *(["live"] if live else []))
    data, pool = page_data(content, progress)
    page = _template().render(
        title=title or "Embedding condensation: results",
        report=content,
        claims=[section for section in content.sections if section.claim],
        compare=sum(len(section.depths) for section in content.sections) > 1,
        groups=[(words[0], [s for s in content.sections if s.kind == kind]) for kind, words in KINDS.items()],
        counts=list_of(
            [f"{n} {KINDS[kind][1 if n == 1 else 2]}" for kind, n in content.counts.items()] or ["No result yet"]
        ),
        hardware=_hardware(content),
        style=(TEMPLATES / "style.css").read_text(encoding="utf-8"),
        policy=_policy(library, script) + ("; connect-src 'self'" if live else ""),
        live=live,
        library=library,
        script=script,
        data=to_json(data),
        pool=pool.to_json(),
    )
    return page.encode("utf-8", "replace").decode("utf-8")  # half a surrogate pair cannot be written as UTF-8


@functools.cache  # a served page is rendered again and again; compiling the templates takes as long as rendering it
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {"yaml": lambda value: to_yaml(json.loads(to_json(value)), width=100), "brief": brief}
    environment.globals["enumerate"] = enumerate
    return environment.get_template("page.html")


def _script(*names: str) -> str:
    """Join scripts into one function, so that they share their definitions and leave nothing global."""
    parts = "\n".join((TEMPLATES / f"{name}.js").read_text(encoding="utf-8") for name in names)
    return f'"use strict";\n(() => {{\n{parts}document.documentElement.dataset.ready = "yes";\n}})();\n'


def _policy(*scripts: str) -> str:
    digests = (base64.b64encode(hashlib.sha256(s.encode("utf-8")).digest()).decode("ascii") for s in scripts)
    hashes = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; "
        "form-action 'none'"
    )


def _hardware(content: Report) -> str:
    """Name the machines, and for how many results none was recorded."""
    recorded = [origin.hardware for section in content.sections for origin in section.origins]
    machines = dict.fromkeys(machine for some in recorded if some for machine in some.split("; "))
    if not machines:
        return "Hardware was not recorded." if recorded else ""
    unknown = sum(not some for some in recorded)
    gap = f"; not recorded for {several(unknown, 'result')}" if unknown else ""
    return f"Hardware: {'; '.join(machines)}{gap}."
