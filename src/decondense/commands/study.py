"""``decondense study``: a claim of the paper, end to end."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from ..words import several
from . import options as o
from .terminal import err, out, output_folder, plain_table, writing

Name = Annotated[str, typer.Argument(help="`list`, or the name of a study")]
Scale = Annotated[str, typer.Option(help="smoke (CPU, seconds), gpu (one GPU, runs of minutes) or paper")]
Out = Annotated[Path | None, typer.Option("--out", help="result folder; default studies/NAME-SCALE")]
Pieces = Annotated[
    str | None,
    typer.Option("--piece", help="numbers or names of the runs to make, with commas; *-seed-2 for all of a seed"),
]
Seeds = Annotated[str | None, typer.Option(help="training seeds, with commas; default those of the scale")]
Set = Annotated[
    list[str] | None, typer.Option("--set", help="change one setting: base.data.tokens=5M; may be repeated")
]
Merge = Annotated[bool, typer.Option("--merge", help="run nothing: compute the result from the runs that are there")]
From = Annotated[
    list[Path] | None,
    typer.Option("--from", help="with --merge: also take the runs below this folder that belong; repeatable"),
]
Reuse = Annotated[
    list[Path] | None,
    typer.Option(help="take over runs of the same recipe and seed that lie below this folder; repeatable"),
]
Shared = Annotated[
    bool, typer.Option("--shared-device", help="other runs are made on this device at the same time: keep no times")
]
Bench = Annotated[Path | None, typer.Option(help="folder of benchmark files; default $DECONDENSE_BENCH, else the hub")]


def study(
    name: Name,
    scale: Scale = "smoke",
    out_dir: Out = None,
    piece: Pieces = None,
    seeds: Seeds = None,
    settings: Set = None,
    merge: Merge = False,
    sources: From = None,
    reuse: Reuse = None,
    shared_device: Shared = False,
    data: o.Data = None,
    bench: Bench = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, …; default the best there is")] = None,
    plan: Annotated[bool, typer.Option("--plan", help="print the runs and stop")] = False,
    as_json: o.Json = False,
) -> None:
    """Put a claim of the paper to the test, run by run, and say reproduced, not reproduced or undecided."""
    from .. import studies

    if name == "list":
        _show_list(as_json)
        return
    wanted = studies.find(name)
    if merge and any(given is not None for given in (piece, seeds, settings or None, reuse or None)):
        raise ValueError(
            "--merge runs nothing, so --piece, --seeds, --set and --reuse have no meaning: leave them out."
        )
    chosen = studies.settings_of(wanted, scale, settings or [], _numbers(seeds))
    if plan:
        if settings:
            wanted.check(chosen)
        _show_plan(wanted, scale, chosen, None if piece is None else _words(piece))
        return
    if sources and not merge:
        raise ValueError("--from takes runs from elsewhere and goes with --merge: add it.")
    with output_folder(out_dir if out_dir is not None else Path("studies") / f"{name}-{scale}") as folder:
        if merge:
            if sources:
                studies.collect(wanted, scale, folder, sources, say=_say(as_json))
            with writing(folder):
                record = studies.conclude(wanted, scale, folder)
        else:
            record = studies.run(
                wanted,
                scale,
                folder,
                chosen,
                pieces=None if piece is None else _words(piece),
                say=_say(as_json),
                data=None if data is None else str(data),
                bench=_bench(chosen, bench, data),
                device=device,
                reuse=reuse or [],
                timed=not shared_device,
            )
    _show(record, folder, as_json)


def _numbers(given: str | None) -> list[int] | None:
    if given is None:
        return None
    try:
        return [int(part) for part in _words(given)]
    except ValueError:
        raise ValueError(f"--seeds must be whole numbers with commas, like 1,2,3, got {given!r}.") from None


def _words(given: str) -> list[str]:
    return [part.strip() for part in given.split(",") if part.strip()]


def _say(quiet: bool) -> Any:
    return (lambda sentence: None) if quiet else (lambda sentence: err.print(sentence, markup=False))


def _bench(settings: dict[str, Any], given: Path | None, data: Path | None) -> str | None:
    """Asked for only where the study evaluates anything."""
    if not settings.get("tasks"):
        return None
    from ..evaluate.tasks import bench_folder
    from ..hub import hub_reachable

    folder = bench_folder(given, texts=data or os.environ.get("DECONDENSE_DATA"))
    asked = str(given or os.environ.get("DECONDENSE_BENCH")) == "hub"
    return str(folder) if folder is not None else "hub" if asked or hub_reachable() else None


def _show_list(as_json: bool) -> None:
    import json

    from .. import studies

    if as_json:
        listed = [
            {
                "study": s.name,
                "claim": s.claim,
                "question": s.question,
                "criterion": s.criterion,
                "scales": {
                    scale: {"runs": x["about"], "cost": x["cost"], "pieces": [p.name for p in s.plan(x)]}
                    for scale, x in s.scales.items()
                },
            }
            for s in studies.STUDIES.values()
        ]
        print(json.dumps(listed, indent=1, ensure_ascii=False))
        return
    for s in studies.STUDIES.values():
        out.print(f"[bold]{s.name}[/bold]  {s.claim}: {s.question}")
        for scale, x in s.scales.items():
            out.print(f"  {scale:<6} {x['about']}", markup=False)
            out.print(f"         {several(len(s.plan(x)), 'run')}; {x['cost']}", style="dim", markup=False)


def _show_plan(wanted: Any, scale: str, settings: dict[str, Any], pieces: list[str] | None) -> None:
    from ..studies.core import select, settings_of

    plan = wanted.plan(settings)
    chosen = select(wanted, plan, pieces)
    for piece in chosen:
        out.print(f"{plan.index(piece) + 1:>3}  {piece.name:<32} {piece.words}", markup=False)
    listed = chosen == plan and settings == settings_of(wanted, scale)  # another number of runs has another cost
    cost = f"; {wanted.scales[scale]['cost']}" if listed else ""
    out.print(several(len(chosen), "run") + cost, style="dim", markup=False)


def _show(record: Any, folder: Path, as_json: bool) -> None:
    if as_json:
        print(record.to_json(), end="")
        return
    columns, rows = [name.replace("_", " ") for name in record.table.columns[:6]], record.table.rows
    if rows:
        words = ("arm", "model", "text", "task", "run", "family", "checkpoint")
        out.print(plain_table(columns, [[_cell(value) for value in row[:6]] for row in rows[:40]], left=words))
    if len(rows) > 40:
        out.print(f"… {len(rows) - 40} more rows in table.csv", style="dim")
    out.print(f"criterion: {record.criterion}", style="dim", markup=False)
    out.print(record.sentence, style="bold", markup=False)
    out.print(f"written: {folder}/result.json, table.csv" + ", figure.png" * bool(record.figures), markup=False)


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
