"""``decondense report``: one page that shows what came out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ..files import os_sentence, output_folder, write_text
from ..words import list_of, several
from .terminal import err, out, progress_bar, writing

LARGE, PORT = 15_000_000, 8420
MADE = b'<meta name="generator" content="decondense report">'
"""What the head of every page says."""


def report(
    folders: Annotated[list[Path], typer.Argument(help="folders with results, searched at any depth")],
    out_file: Annotated[Path | None, typer.Option("--out", help="the page; default report.html")] = None,
    title: Annotated[str | None, typer.Option(help="title of the page")] = None,
    table: Annotated[bool, typer.Option("--table", help="print the studies as a Markdown table; no page")] = False,
    readme: Annotated[
        Path | None, typer.Option(help="write that table into FILE, between its markers; no page")
    ] = None,
    serve: Annotated[
        bool, typer.Option("--serve", help="show the page on this machine alone, and follow runs while they train")
    ] = False,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="port for --serve; default 8420, 0 takes a free one")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="replace a file that is no page of this command")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print what was written as JSON and nothing else")] = False,
) -> None:
    """Write one self-contained HTML page for every result in the given folders: it works from disk, offline."""
    if serve:
        written = {"--out": out_file is not None, "--table": table, "--readme": readme is not None, "--force": force}
        if beside := [option for option, given in written.items() if given]:
            raise ValueError(f"--serve writes nothing, got {list_of(beside)} beside it: leave one of them out.")
        _serve(folders, PORT if port is None else port, title, as_json=as_json)
        return
    if port is not None:
        raise ValueError(f"--port is for --serve, got --port {port} alone: add --serve, or leave --port out.")
    if table or readme is not None:
        _write_table(folders, readme, show=table, as_json=as_json)
        if out_file is None:
            return
    target = out_file or Path("report.html")
    if target.is_dir():
        target = target / "report.html"
    if target.is_file() and not force and not _is_page(target):
        raise ValueError(
            f"--out must name a page of this command or a new file, got {str(target)!r}, which is neither: choose "
            "another name, or replace it with --force."
        )
    with output_folder(target.parent):
        _write_page(folders, target, title=title, as_json=as_json)


def _is_page(file: Path) -> bool:
    with (
        os_sentence(f"the page {str(file)!r} could not be read", "choose another name with --out"),
        file.open("rb") as page,
    ):
        return MADE in page.read(4096)


def _serve(folders: list[Path], port: int, title: str | None, *, as_json: bool) -> None:
    from ..report.serve import server

    try:
        running = server(folders, port=port, title=title)
    except FileNotFoundError:  # a folder is missing
        raise
    except OSError as error:
        raise OSError(f"--port must be free, but {port} is not ({error.strerror}): give another, or 0.") from error
    with running:
        address = f"http://127.0.0.1:{running.server_port}/"
        print(json.dumps({"address": address}) if as_json else f"{address} (Ctrl-C ends it)", flush=True)
        running.serve_forever()


def _write_page(folders: list[Path], target: Path, *, title: str | None, as_json: bool) -> None:
    from ..report.page import collect, render

    with progress_bar("reading results", quiet=as_json) as move:
        content = collect(folders, progress=move)
        page = render(content, title=title, progress=move)
    with writing(target.parent):
        write_text(target, page)
    _tell(content.skipped)
    size = len(page.encode("utf-8"))
    if as_json:
        summary = {
            "page": str(target),
            "bytes": size,
            "results": content.counts,
            "sections": [
                {"kind": s.kind, "title": s.title, "verdict": s.word, "sentence": s.verdict} for s in content.sections
            ],
            "skipped": [{"folder": s.folder, "reason": s.reason} for s in content.skipped],
        }
        print(json.dumps(summary, indent=1, ensure_ascii=False))
        return
    if size > LARGE:
        err.print(f"warning: the page has {size / 1e6:.0f} MB; give fewer folders at a time for one that opens fast.")
    number = sum(content.counts.values())
    for section in content.sections:
        if section.kind == "training" and len(section.origins) > 1:
            out.print(f"{section.title}. {section.lines[0]}")
    out.print(f"written: {target} ({several(number, 'result')}, {size / 1e6:.1f} MB)")


def _write_table(folders: list[Path], readme: Path | None, *, show: bool, as_json: bool) -> None:
    from ..report.results_table import insert_table, results_rows, results_table
    from ..studies import STUDIES

    if as_json:
        rows, skipped = results_rows(folders)
        print(json.dumps(rows, indent=1, ensure_ascii=False))
    elif show:
        text, skipped = results_table(folders)
        print(text, end="")
    if readme is not None:
        known = [(study.name, study.claim, study.question) for study in STUDIES.values()]
        text, skipped = insert_table(readme, folders, known=known)
        with writing(readme.parent):
            write_text(readme, text)
        err.print(f"written: {readme}")
    _tell(skipped)


def _tell(skipped: Sequence[Any]) -> None:
    for entry in skipped:
        err.print(f"skipped: {entry.folder}: {entry.reason}")
