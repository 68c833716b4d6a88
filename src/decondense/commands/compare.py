"""``decondense compare``: a family, a row of checkpoints, texts or pairs, side by side."""

from __future__ import annotations

import time
from collections.abc import Sequence
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..files import first_process, safe_name, write_text
from ..words import amount, several, span
from . import options as o
from .terminal import (
    default_folder,
    err,
    fresh_folder,
    kept_there,
    out,
    progress_bar,
    table,
    with_stages,
    write_origin,
    writing,
)

if TYPE_CHECKING:
    from ..meter.compare import Comparison
    from ..meter.result import Condensation


def compare(
    items: Annotated[
        list[str] | None, typer.Argument(help="models, or what `measure` saved: folder or result.json")
    ] = None,
    family: Annotated[str | None, typer.Option(help="a family of the paper, such as qwen3 or gpt2")] = None,
    paired: Annotated[bool, typer.Option("--paired", help="items come in pairs: a b, c d, …")] = False,
    revisions: Annotated[str | None, typer.Option(help="a,b,c: one model at each of these revisions")] = None,
    texts: Annotated[str | None, typer.Option(help="several texts a,b,c: every model on each")] = None,
    text: o.Text = "wikitext-2",
    windows: o.Windows = 100,
    tokens: o.Tokens = 512,
    seed: o.Seed = 0,
    out_dir: Annotated[Path | None, typer.Option("--out", help="output folder; default comparison")] = None,
    spectral: o.Spectral = False,
    released: o.Released = False,
    stack: o.Stack = "decoder",
    dtype: o.Dtype = None,
    device: o.Device = None,
    batch: o.Batch = None,
    data: o.Data = None,
    column: o.Column = None,
    trust_remote_code: o.Trust = False,
    force: o.Force = False,
    as_json: o.Json = False,
) -> None:
    """Compare models or saved results: heatmaps on one scale, and the trend against size or checkpoint order."""
    options = o.given(locals(), "items", "family", "paired", "revisions", "texts")
    names, revision_names = list(items or []), o.names_of(revisions)
    if family is not None:
        from ..meter.compare import family_of

        entry = family_of(family)
        names += entry["models"]
        revision_names = revision_names or entry.get("revisions")
        paired = paired or entry["kind"] == "pairs"
    if texts is None and o.texts_of(text):
        texts, options["text"] = text, signature(compare).parameters["text"].default
    how = {"revisions": revision_names, "texts": o.names_of(texts), "paired": paired}
    run_comparison(names, options, how, out_dir=out_dir, force=force, as_json=as_json)


def run_comparison(
    items: Sequence[str], options: dict[str, Any], how: dict[str, Any], *, out_dir: Path | None, force: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Compare `items`; `options` are those of `measure`, `how` those of `meter.compare`. Each measurement is saved in a
    folder of its own as soon as it is done: after an interruption, give these folders as items to measure none twice.
    """
    from ..meter.compare import compare as run
    from ..meter.compare import plan
    from ..meter.result import Condensation

    now, kept, begun = ("", 0, 0), 0, time.monotonic()
    folder = out_dir or Path("comparison")
    config = {"command": "compare", "items": list(items), **how, **options}
    with progress_bar("opening the models", quiet=as_json) as move:
        jobs = plan(items, options=options, **how)
        to_measure = sum(not isinstance(job, Condensation) for job in jobs)
        saved = [Path(item).resolve() for item in items]
        taken = {*saved, *(path.parent for path in saved)}

        def started(name: str, number: int, total: int) -> None:
            nonlocal now
            now = name, number, total
            if first_process() and not as_json:
                err.print(f"measuring {name} ({number + 1} of {total})")

        def windows(done: int, each: int | None, what: str = "windows of all", note: str = "") -> None:
            name, number, total = now
            move(number * (each or 0) + done, each and total * each, what, f"{name}{note and ', ' + note}")

        def finished(result: Condensation) -> None:
            nonlocal kept
            if first_process():
                name, number = _folder_name(result), 1
                place = (folder / "results" / name).resolve()
                while place in taken:  # by another of this name, as a/b-c and a-b/c have, or model and model.gguf
                    number += 1
                    place = place.with_name(f"{name}-{number}")
                taken.add(place)
                with writing(folder):
                    result.save(place / "result.json")
            kept += 1

        with fresh_folder(folder, "comparison", force=force):
            if not force and any(folder.glob("results/*/result.json")):
                what = "measurements of an unfinished comparison (name their folders in place of their models)"
                raise kept_there(folder, what)
            callbacks = {"started": started, "finished": finished, **with_stages(windows)}
            try:
                comparison = run(items, **how, **callbacks, **options)
            except KeyboardInterrupt as stop:
                if kept:
                    place, measured = folder / "results", several(to_measure, "measurement")
                    stop.add_note(f"interrupted: {place} holds {kept} of {measured}, in a folder each.")
                    stop.add_note(
                        "To measure none twice, name these folders in place of their models and texts; add --force."
                    )
                raise
            if not first_process():
                return
            with writing(folder):
                write_text(folder / "result.json", comparison.to_json())
                comparison.plot(folder)
                write_origin(folder, config, time.monotonic() - begun)
    if as_json:
        print(comparison.to_json(), end="")
        return
    out.print(_table(comparison))
    for result in comparison.results:
        if not result.complete:
            err.print(f"warning: {result.label} on {result.text} is incomplete.")
    out.print(comparison.verdict, style="bold")
    if comparison.difference is not None:
        out.print(comparison.difference.sentence)
    for note in comparison.notes:
        out.print(f"note: {note}")
    out.print(f"written: {folder}/result.json, heatmaps.png, trend.png, curves.png, each figure with its CSV")


def _table(comparison: Comparison) -> Any:
    rows = [
        (
            row["model"],
            row["text"],
            amount(row["parameters"]),
            str(row["layers"]),
            f"{row['mean_cosine']:.3f}",
            span(row["spearman"], row["spearman_low"], row["spearman_high"]),
            span(row["last"], row["last_low"], row["last_high"], digits=3),
            row["verdict"].split(":")[0],
        )
        for row in comparison.rows()
    ]
    trend, last = "Spearman [95 %]", "last states [95 %]"
    memory = all(result.record.model.kind == "memory" for result in comparison.results)
    size = "parameters" if memory else "parameters (no head)"  # the head is not loaded; a tied one adds none
    columns = ("model", "text", size, "layers", "mean cosine", trend, last, "verdict")
    same_text = ["text"] if len({row[1] for row in rows}) == 1 else []
    drop = (*same_text, "verdict", size, last, "layers")
    return table(columns, rows, left=("model", "text", "verdict"), drop=drop)


def _folder_name(result: Condensation) -> str:
    model = result.record.model
    name = default_folder("", model.name).name  # its whole path: two models may both be called "model"
    parts = [name, model.revision, "init" if model.init else None, result.text]
    return safe_name("-".join(str(part) for part in parts if part))
