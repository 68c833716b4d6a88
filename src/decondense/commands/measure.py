"""``decondense measure``: how condensed one model is."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from ..files import first_process, mapping_in, write_csv
from ..words import from_where, several, span
from . import options as o
from .compare import run_comparison
from .terminal import (
    bar,
    default_folder,
    err,
    fresh_folder,
    out,
    progress_bar,
    table,
    with_stages,
    write_origin,
    writing,
)

if TYPE_CHECKING:
    from ..meter.result import Condensation


def measure(
    model: o.Model,
    text: o.Text = "wikitext-2",
    images: Annotated[Path | None, typer.Option(help="folder of images for an image model, instead of a text")] = None,
    windows: o.Windows = 100,
    tokens: o.Tokens = 512,
    seed: o.Seed = 0,
    out_dir: Annotated[Path | None, typer.Option("--out", help="output folder; default condensation/MODEL")] = None,
    spectral: o.Spectral = False,
    released: o.Released = False,
    stack: o.Stack = "decoder",
    init: o.Init = False,
    revision: o.Revision = None,
    revisions: Annotated[str | None, typer.Option(help="several revisions, a,b,c: side by side, in order")] = None,
    dtype: o.Dtype = None,
    device: o.Device = None,
    batch: o.Batch = None,
    last: o.Last = 3,
    bootstrap: o.Bootstrap = 2000,
    data: o.Data = None,
    column: o.Column = None,
    trust_remote_code: o.Trust = False,
    resume: Annotated[bool, typer.Option("--resume", help="complete an interrupted measurement")] = False,
    force: o.Force = False,
    as_json: o.Json = False,
) -> None:
    """Say how condensed a model is: the cosines of the tokens of a window at every depth, with error bars."""
    options = o.given(locals(), "revision", "revisions", "resume", *(() if images else ("images",)))
    if images and (resume or revisions or released or text != "wikitext-2" or tokens != 512 or data or column):
        raise ValueError(
            "--images takes the place of a text: leave --text, --tokens, --data, --column, --released, --resume and "
            "--revisions out."
        )
    if len(several_texts := o.texts_of(text) or []) > 1:
        instead = f"decondense compare {model} --texts {','.join(several_texts)}"
        raise ValueError(f"measure takes one text, got {text!r}: for several, {instead}.")
    if revisions:
        if resume or revision:
            raise ValueError("--revisions cannot be combined with --revision or --resume: name one of them.")
        how = {"revisions": o.names_of(revisions), "texts": None, "paired": False}
        run_comparison([model], options, how, out_dir=out_dir, force=force, as_json=as_json)
        return
    options |= {"revision": revision}
    target = out_dir or default_folder("condensation", model)
    config = {"command": "measure", "model": model, **options}
    with progress_bar(f"measuring {Path(model).name}", quiet=as_json) as move:
        callbacks = with_stages(move)
        callbacks["stage"]("opening the model")  # GGUF weights are converted here, once
        from ..meter.run import check
        from ..models import files_state, resolve

        check(model, **options)
        files = files_state(resolve(model, revision=revision))  # before they are read: they may be replaced meanwhile
        there = _result_in(target) if resume and not force else None
        finished = there is not None and there.complete and _same(target, there, config, files)
        if there is None or not finished:
            begun = there is not None and not there.complete and any(_parts(target))
            with fresh_folder(target, "measurement", force=force or begun) as folder:
                there = _measure_into(folder, config, options, files=files, resume=resume, callbacks=callbacks)
    if not first_process():
        return
    if finished:
        err.print(f"this measurement is finished: {target / 'result.json'}; to make it again, give --force.")
    if as_json:
        print(there.to_json(), end="")
    elif not finished:
        show(there, target)


def _result_in(folder: Path) -> Condensation | None:
    """The measurement in a folder; None if there is none, or a damaged one."""
    from ..meter.result import Condensation, load

    try:
        there = load(folder)
    except (ValueError, OSError):
        return None
    return there if isinstance(there, Condensation) else None


def _same(folder: Path, there: Condensation, config: dict[str, Any], files: str) -> bool:
    """Whether the result in the folder is of this command, these `files` of the model and this text."""
    from ..text import open_text

    stored = mapping_in(folder / "config.yaml") | there.record.settings
    differ = {key for key, value in config.items() if stored.get(key) != value} - {"device", "data", "batch"}
    if differ or not files or mapping_in(folder / "run.json").get("model_files") != files:
        return False
    opened = open_text(config["text"], data=config["data"], column=config["column"])  # its name does not tell a text
    return opened.sha256 == there.record.text.sha256


def _measure_into(
    folder: Path, config: dict[str, Any], options: dict[str, Any], *, files: str, resume: bool,
    callbacks: dict[str, Any],
) -> Condensation:  # fmt: skip
    from ..meter.run import Interrupted
    from ..meter.run import measure as run

    if not resume:
        for old in _parts(folder):
            old.unlink()
    begun = time.monotonic()
    try:
        resumable = options | {"partial": folder, "resume": resume}
        arguments = _of_images(config["model"], options) if "images" in options else resumable
        result = run(config["model"], **arguments, **callbacks)
    except Interrupted as stop:
        if stop.result is not None and first_process():
            write_files(folder, config, stop.result, time.monotonic() - begun, files)
            done, asked = stop.result.record.windows_done, options["windows"]
            stop.add_note(f"interrupted after {done} of {asked} windows: {folder / 'result.json'} holds what there is.")
            stop.add_note("Repeat the command with --resume to complete it.")
        raise
    if first_process():
        write_files(folder, config, result, time.monotonic() - begun, files)
        for part in _parts(folder):
            part.unlink()
    return result


def _parts(folder: Path) -> list[Path]:
    """What an unfinished measurement has left in the folder, a file for each of its processes."""
    return [path for path in folder.glob("partial-*.npz") if path.stem.removeprefix("partial-").isdecimal()]


def _of_images(model: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options of ``measure`` for the images of a folder."""
    from ..images import image_batches
    from ..models import resolve

    image_options = {key: options[key] for key in ("windows", "seed", "batch", "trust_remote_code")}
    image_options = {key: value for key, value in image_options.items() if value is not None}
    inputs = image_batches(options["images"], resolve(model, revision=options["revision"]), **image_options)
    text_options = ("images", "text", "tokens", "released", "data", "column")
    return {key: value for key, value in options.items() if key not in text_options} | {"inputs": inputs}


def show(result: Condensation, folder: Path) -> None:
    from ..records import STATISTICS

    record = result.record
    extent = several(record.windows_done, "sequence" if "inputs" in record.settings else "window")
    extent += f" × {record.settings['tokens']} tokens"
    out.print(Text(result.label, "bold"), f"on {from_where(result.text, record.text.source)}, {extent}")
    out.print(_state_table(result))
    out.print(
        "near: neighbouring tokens; far: half a window apart or more; -1st: without the first token;\n"
        "-top3: without the 3 dimensions of largest variance or of largest share of the cosine (the lower)",
        style="dim",
    )
    for curve, name in (("all", "all states"), ("blocks", "block outputs")):
        trends = {key: (result.trend(key, states=curve), *result.interval(key, states=curve)) for key in STATISTICS}
        out.print(f"{name:>14}: " + ", ".join(f"{key} {span(*ends)}" for key, ends in trends.items()), style="dim")
    out.print(
        "spearman, kendall: whether the cosine rises with depth (1: with every layer); slope: by how much over\n"
        f"the whole depth; last: mean of the last {record.settings['last']} states",
        style="dim",
    )
    if ranks := _ranks(result):
        out.print(ranks, style="dim")
    out.print(result.verdict, style="bold")
    out.print("mean cosine: 1 where all tokens point the same way, 0 where they are unrelated", style="dim")
    for note in result.notes:
        out.print(f"note: {note}")
    second = ", heatmap_released.png" * (record.released_histogram is not None)
    out.print(f"written: {folder}/result.json, states.csv, heatmap.png{second}")


def _ranks(result: Condensation) -> str:
    """Effective ranks in a line, if the measurement is spectral; else ""."""
    from ..records import known

    ranks = [known(state.row().get("effective_rank")) for state in result.record.states[: result.layers + 1]]
    if all(map(math.isnan, ranks)):
        return ""
    least = min((rank, number) for number, rank in enumerate(ranks) if not math.isnan(rank))
    return (
        f"effective rank: {ranks[0]:.1f} at the embedding, {ranks[-1]:.1f} at state {result.layers}, lowest "
        f"{least[0]:.1f} at state {least[1]}; the rest of --spectral: states.csv"
    )


def _state_table(result: Condensation) -> Any:
    """One line per hidden state, with a small bar; 78 columns, fewer where the terminal has fewer."""
    from ..records import known

    rows = []
    normed = result.final_norm
    for number, state in enumerate(result.record.states):
        if number > result.layers and not normed:
            continue  # without a final norm it repeats the line above
        suffix = " normed" if normed and number == result.layers else " unnormed" if number > result.layers else ""
        values = state.row()
        bare = min(values["mean_cosine_without_variance3"], values["mean_cosine_without_cosine3"])
        figures = [state.std, state.quantiles[0], state.quantiles[-1], state.by_distance[0], state.by_distance[-1]]
        figures += [values["mean_cosine_without_first"], bare]
        cells = ("–" if math.isnan(known(v)) else f"{v:.2f}" for v in figures)
        cosine = known(state.mean_cosine)
        name = "embedding" if number == 0 else f"{state.state}{suffix}"
        rows.append((name, f"{cosine:.3f}", bar(cosine, width=10), *cells))
    columns = ("state", "cosine", "", "std", "5 %", "95 %", "near", "far", "-1st", "-top3")
    return table(columns, rows, left=("state", ""), drop=("", "std", "far", "near", "-1st", "95 %", "5 %"))


def write_files(folder: Path, config: dict[str, Any], result: Condensation, seconds: float, files: str) -> None:
    """``result.json``, ``config.yaml``, ``run.json``, ``states.csv`` and the heatmap."""
    with writing(folder):
        result.save(folder / "result.json")
        write_origin(folder, config, seconds, model_files=files)
        write_csv(folder / "states.csv", [state.row() for state in result.record.states])
        result.plot(folder / "heatmap.png")
        if result.record.released_histogram is not None:
            result.plot(folder / "heatmap_released.png", view="released")
