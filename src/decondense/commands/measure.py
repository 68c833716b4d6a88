"""``decondense measure``: how condensed one model is."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from .terminal import err, is_main, out, output_folder, progress_bar, run_record, state_table, writing

Model = Annotated[str, typer.Argument(help="hub id, folder, GGUF file or bundled name (smollm2-135m, gemma-3-270m)")]
Text = Annotated[str, typer.Option(help="named text (see `decondense doctor`), file, or - for stdin")]
Windows = Annotated[int, typer.Option(help="number of windows of text")]
Tokens = Annotated[int, typer.Option(help="tokens per window")]
Seed = Annotated[int, typer.Option(help="places of the windows, bootstrap, fresh weights")]
Spectral = Annotated[bool, typer.Option("--spectral", help="also effective rank, IsoScore and the like")]
Released = Annotated[bool, typer.Option("--released", help="also the histogram as the published figures made it")]
Stack = Annotated[str, typer.Option(help="decoder or encoder, of an encoder-decoder")]
Init = Annotated[bool, typer.Option("--init", help="the same architecture, freshly initialised")]
Dtype = Annotated[str | None, typer.Option(help="float32, bfloat16, float16, float64 or auto")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, …; auto spreads a model too large for one")]
Batch = Annotated[int, typer.Option(help="windows per forward pass")]
Last = Annotated[int, typer.Option(help="how many last states the statistic `last` averages")]
Bootstrap = Annotated[int, typer.Option(help="resamplings of the windows for the intervals")]
Data = Annotated[Path | None, typer.Option(help="folder of named texts; default $DECONDENSE_DATA")]
Trust = Annotated[bool, typer.Option("--trust-remote-code", help="run code that comes with the model")]
Json = Annotated[bool, typer.Option("--json", help="print the result as JSON and nothing else")]


def measure(
    model: Model,
    text: Text = "wikitext-2",
    windows: Windows = 100,
    tokens: Tokens = 512,
    seed: Seed = 0,
    out_dir: Annotated[Path | None, typer.Option("--out", help="output folder; default condensation/MODEL")] = None,
    spectral: Spectral = False,
    released: Released = False,
    stack: Stack = "decoder",
    init: Init = False,
    revision: Annotated[str | None, typer.Option(help="branch, tag or commit of a hub id")] = None,
    revisions: Annotated[str | None, typer.Option(help="several, a,b,c: a row of checkpoints, side by side")] = None,
    dtype: Dtype = None,
    device: Device = None,
    batch: Batch = 4,
    last: Last = 3,
    bootstrap: Bootstrap = 2000,
    data: Data = None,
    trust_remote_code: Trust = False,
    resume: Annotated[bool, typer.Option("--resume", help="complete an interrupted measurement")] = False,
    as_json: Json = False,
) -> None:
    """Say how condensed a model is: the cosines of the tokens of a window at every depth, with error bars."""
    options: dict[str, Any] = {
        "text": text,
        "windows": windows,
        "tokens": tokens,
        "seed": seed,
        "spectral": spectral,
        "released": released,
        "stack": stack,
        "init": init,
        "dtype": dtype,
        "device": device,
        "batch": batch,
        "last": last,
        "bootstrap": bootstrap,
        "data": None if data is None else str(data),
        "trust_remote_code": trust_remote_code,
    }
    if revisions:
        from .compare import run_comparison

        if resume or revision:
            raise ValueError("--revisions cannot be combined with --revision or --resume: name one of them.")
        names = [r.strip() for r in revisions.split(",") if r.strip()]
        run_comparison([model], options, revisions=names, out_dir=out_dir, as_json=as_json)
        return
    with output_folder(out_dir if out_dir is not None else Path("condensation") / default_name(model)) as folder:
        measure_into(folder, model, options | {"revision": revision}, resume=resume, as_json=as_json)


def default_name(model: str) -> str:
    """A folder name for a model: its last path component, without an ending."""
    return Path(model.rstrip("/")).name.removesuffix(".gguf") or "model"


def measure_into(
    folder: Path, model: str, options: dict[str, Any], *, resume: bool = False, as_json: bool = False
) -> Any:
    """Measure and write ``result.json``, ``config.yaml``, ``run.json``, ``states.csv`` and the heatmap."""
    from ..meter import Interrupted
    from ..meter import measure as run

    if not resume:
        for old in folder.glob("partial-*.npz"):
            old.unlink()
    begun = time.monotonic()
    try:
        with progress_bar(f"measuring {default_name(model)}", quiet=as_json) as progress:
            result = run(model, **options, progress=progress, partial=folder, resume=resume)
    except Interrupted as stop:
        if stop.result is not None and is_main():
            with writing(folder):
                write_files(folder, model, options, stop.result, time.monotonic() - begun)
            done, asked = stop.result.record["windows_done"], options["windows"]
            err.print(f"interrupted after {done} of {asked} windows: {folder / 'result.json'} holds what there is.")
            err.print("Repeat the command with --resume to complete it.")
        raise
    if not is_main():
        return result
    with writing(folder):
        write_files(folder, model, options, result, time.monotonic() - begun)
        for part in folder.glob("partial-*.npz"):
            part.unlink()
    if as_json:
        print(result.to_json(), end="")
    else:
        show(result, folder)
    return result


def show(result: Any, folder: Path) -> None:
    settings = result.record["settings"]
    out.print(
        f"[bold]{result.label}[/bold] on {result.text} ({result.record['text']['source']}), "
        f"{result.record['windows_done']} windows × {settings['tokens']} tokens"
    )
    out.print(state_table(result))
    out.print(
        "near: neighbouring tokens; far: half a window apart or more; -1st: without the first token;\n"
        "-top3: without the 3 dimensions of largest variance or of largest share of the cosine (the lower)",
        style="dim",
    )
    for curve, words in (("all", "all states"), ("blocks", "block outputs")):
        parts = []
        for name in ("spearman", "kendall", "slope", "last"):
            low, high = result.interval(name, states=curve)
            parts.append(f"{name} {result.trend(name, states=curve):.2f} [{low:.2f}, {high:.2f}]")
        out.print(f"{words:>14}: " + ", ".join(parts), style="dim")
    out.print(f"[bold]{result.verdict}[/bold]")
    for note in result.notes:
        out.print(f"note: {note}")
    out.print(f"written: {folder}/result.json, states.csv, heatmap.png")


def write_files(folder: Path, model: str, options: dict[str, Any], result: Any, seconds: float) -> None:
    import yaml

    from ..files import write_csv, write_text

    result.save(folder / "result.json")
    write_text(
        folder / "config.yaml", yaml.safe_dump({"command": "measure", "model": model, **options}, sort_keys=False)
    )
    write_text(folder / "run.json", run_record(seconds, options["device"]))
    write_csv(folder / "states.csv", [state.row() for state in result.record.states])
    result.plot(folder / "heatmap.png")
    if result.record["settings"]["released"]:
        result.plot(folder / "heatmap_released.png", view="released")
