"""``decondense study``: a claim of the paper, end to end."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from .. import hub
from ..files import output_folder
from ..words import cell, nobody, several
from . import options as o
from .terminal import err, out, progress_bar, table, writing


def study(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="`list`, or the name of a study")],
    scale: Annotated[str, typer.Option(help="smoke (CPU, seconds), gpu (one GPU, runs of minutes) or paper")] = "smoke",
    out_dir: Annotated[Path | None, typer.Option("--out", help="result folder; default studies/NAME-SCALE")] = None,
    piece: Annotated[
        str | None, typer.Option(help="numbers or names of the runs to make, with commas; *-seed-2 for all of a seed")
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="training seeds, with commas; default those of the scale")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="change one setting: base.data.tokens=5M; may be repeated")
    ] = None,
    merge: Annotated[bool, typer.Option("--merge", help="run nothing, conclude from the runs that are there")] = False,
    sources: Annotated[
        list[Path] | None,
        typer.Option("--from", help="with --merge: also take this study's runs below this folder; repeatable"),
    ] = None,
    reuse: Annotated[
        list[Path] | None,
        typer.Option(help="take over runs of the same recipe and seed that lie below this folder; repeatable"),
    ] = None,
    shared_device: Annotated[
        bool, typer.Option("--shared-device", help="other runs use this device at the same time: record no times")
    ] = False,
    data: o.Data = None,
    bench: o.Bench = None,
    device: o.BestDevice = None,
    plan: Annotated[bool, typer.Option("--plan", help="print question, runs and cost, and stop")] = False,
    as_json: o.Json = False,
) -> None:
    """Put a claim of the paper to the test, run by run, and say reproduced, not reproduced or undecided."""
    from .. import studies

    if name == "list":
        flags = {option.name: option.opts[0] for option in context.command.params}
        others = [key for key in flags if key not in ("name", "scale", "as_json")]
        if given := [flags[key] for key in others if context.params[key]]:
            raise ValueError(
                f"`study list` takes --scale and --json alone, got {', '.join(given)}: leave that out, or name a study."
            )
        _show_list(scale, as_json)
        return
    wanted = studies.find(name)
    if merge and any(given is not None for given in (piece, seeds, settings or None, reuse or None)):
        raise ValueError("--merge runs nothing, so --piece, --seeds, --set and --reuse mean nothing: leave them out.")
    chosen = studies.settings_of(wanted, scale, settings or [], o.seeds_of(seeds))
    pieces = None if piece is None else o.names_of(piece) or []
    if plan:
        if settings:
            wanted.check(chosen)
        _show_plan(wanted, scale, chosen, pieces, as_json)
        return
    if sources and not merge:
        raise ValueError("--from takes runs from elsewhere and goes with --merge: add it.")
    say: Callable[..., None] = nobody if as_json else err.print
    target = out_dir or Path("studies") / f"{name}-{scale}"
    studies.check_folder(target)
    if merge and not sources and not target.is_dir():
        raise FileNotFoundError(f"no study at {str(target)!r}: --merge runs nothing; name a folder that holds runs.")
    with output_folder(target) as folder:
        if merge:
            if sources:
                studies.collect(wanted, scale, folder, sources, say=say)
            with writing(folder):
                record = studies.conclude(wanted, scale, folder, say=say)
        else:
            try:
                with progress_bar("preparing", quiet=as_json) as move:
                    record = studies.run(
                        wanted, scale, folder, chosen, pieces=pieces, say=say, data=None if data is None else str(data),
                        bench=_bench(chosen, bench, data), device=device, reuse=reuse or [], timed=not shared_device,
                        progress=move,
                    )  # fmt: skip
            except KeyboardInterrupt as stop:
                stop.add_note("interrupted: the same command goes on with what is missing.")
                raise
    _show(record, folder, as_json)


def _bench(settings: dict[str, Any], given: str | None, data: Path | None) -> str | None:
    """The folder of benchmarks, or "hub"; ``None`` where the study evaluates nothing, or neither can be reached."""
    if not settings.get("tasks"):
        return None
    from ..evaluate.tasks import bench_folder

    folder = bench_folder(given, texts=data or os.environ.get("DECONDENSE_DATA"))
    hub_named = str(given or os.environ.get("DECONDENSE_BENCH")) == "hub"
    return str(folder) if folder is not None else "hub" if hub_named or hub.hub_reachable() else None


def _show_list(scale: str, as_json: bool) -> None:
    from .. import studies

    entries = []
    for s in studies.STUDIES.values():
        row: dict[str, Any] = {"study": s.name, "short": s.short, "scale": scale}
        row["runs"] = len(s.plan(studies.settings_of(s, scale)))
        row["cost"] = s.scales[scale]["cost"].removeprefix("about ").partition(",")[0]  # the time of all runs
        row |= {key: getattr(s, key) for key in ("claim", "question", "criterion")}
        row["scales"] = {
            scale: {"runs": x["about"], "cost": x["cost"], "pieces": [p.name for p in s.plan(x)]}
            for scale, x in s.scales.items()
        }
        entries.append(row)
    if as_json:
        print(json.dumps(entries, indent=1, ensure_ascii=False))
        return
    heads = ("study", "question (it: condensation)", "runs", "cost, about")
    rows = [[str(row[key]) for key in ("study", "short", "runs", "cost")] for row in entries]
    out.print(table(heads, rows, left=heads[1::2], keep=heads[:1], drop=("runs",)))
    out.print(f"more of one: decondense study NAME --scale {scale} --plan", style="dim")


def _show_plan(wanted: Any, scale: str, settings: dict[str, Any], pieces: list[str] | None, as_json: bool) -> None:
    from ..studies.core import select, settings_of

    plan = wanted.plan(settings)
    chosen = select(wanted, plan, pieces)
    runs = [{"number": plan.index(piece) + 1, "name": piece.name, "words": piece.words} for piece in chosen]
    is_default = chosen == plan and settings == settings_of(wanted, scale)  # another number of runs has another cost
    cost = str(wanted.scales[scale]["cost"]) if is_default else None
    if as_json:
        whole = {"study": wanted.name, "scale": scale, "runs": runs, "cost": cost}
        print(json.dumps(whole, ensure_ascii=False, indent=1))
        return
    out.print(f"{wanted.name} ({wanted.claim}): {wanted.question}")
    rows = [[str(value) for value in run.values()] for run in runs]
    out.print(table(("", "run", "what"), rows, left=("run", "what"), drop=("what",)))
    if is_default:
        out.print(wanted.scales[scale]["about"], style="dim")
    out.print(several(len(chosen), "run") + (f"; {cost}" if cost else ""), style="dim")


def _show(record: Any, folder: Path, as_json: bool) -> None:
    if as_json:
        print(record.to_json(), end="")
        return
    columns, rows = [name.replace("_", " ") for name in record.table.columns[:6]], record.table.rows
    if rows:
        words = ("arm", "model", "text", "task", "run", "family", "checkpoint")
        cells = [[cell(value) for value in row[:6]] for row in rows[:40]]
        out.print(table(columns, cells, left=words, drop=columns[:1:-1]))
    if len(rows) > 40:
        out.print(f"… {len(rows) - 40} more rows in table.csv", style="dim")
    out.print(f"criterion: {record.criterion}", style="dim")
    out.print(f"{record.verdict}: {record.headline}", style="bold")
    out.print(record.sentence.removeprefix(f"{record.verdict}: ").replace("; ", ";\n  "))  # may be a page of numbers
    out.print(f"written: {folder}/result.json, table.csv" + ", figure.png" * bool(record.figures))
