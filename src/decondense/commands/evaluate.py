"""``decondense evaluate``: a model's scores on benchmarks and texts, item by item."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from ..files import replaced
from ..words import several
from . import options as o
from .terminal import default_folder, fresh_folder, out, progress_bar, table, write_origin, writing

if TYPE_CHECKING:
    from ..records import Evaluation


def evaluate(
    model: o.Model,
    tasks: Annotated[
        str, typer.Option(help="paper (the ten benchmarks), names of lm-eval tasks a,b, or none")
    ] = "paper",
    bench: o.Bench = None,
    shots: Annotated[str, typer.Option(help="gpt2 (1 for four tasks), qwen3 (5 for them), zero, or a number")] = "gpt2",
    limit: Annotated[int | None, typer.Option(help="first N items of every task, not of a text; to try out")] = None,
    text: Annotated[str | None, typer.Option(help="perplexity and bits per byte on texts a,b (name or file)")] = None,
    text_tokens: Annotated[
        int | None, typer.Option(help="tokens per window of text; default as in training, or the context")
    ] = None,
    seed: Annotated[int, typer.Option(help="draws the few-shot examples; 1234 is lm-eval's default")] = 1234,
    out_dir: Annotated[Path | None, typer.Option("--out", help="output folder; default evaluation/MODEL")] = None,
    force: o.Force = False,
    selected_by: Annotated[str, typer.Option(help="how the checkpoint was chosen: final or held-out-loss")] = "final",
    training_seed: Annotated[int | None, typer.Option(help="seed the model was trained with, to be recorded")] = None,
    revision: o.Revision = None,
    init: o.Init = False,
    dtype: o.Dtype = None,
    device: o.Device = None,
    batch_tokens: Annotated[
        int | None, typer.Option(help="tokens per batch; default 65536, on a CPU 256 per thread")
    ] = None,
    trust_remote_code: o.Trust = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="start anew, not from an unfinished evaluation")] = False,
    as_json: o.Json = False,
) -> None:
    """Score a model on the paper's ten benchmarks, or any of lm-eval's, and keep every item's outcome."""
    options = o.given(locals(), "fresh")
    options |= {"tasks": "" if tasks == "none" else tasks, "text": o.names_of(text)}
    if not options["tasks"] and not options["text"]:
        raise ValueError("--tasks none leaves nothing to do: name tasks, or a text with --text.")
    with progress_bar("loading", quiet=as_json) as move:
        from ..evaluate.harness import check

        check(model, **options)  # GGUF weights are converted here, once
        with fresh_folder(out_dir or default_folder("evaluation", model), "evaluation", force=force) as folder:
            record, written = _evaluate_into(folder, model, options, move, fresh=fresh)
    if as_json:
        print(record.to_json(), end="")
        return
    show(record)
    out.print(f"written: {folder}/items.parquet, result.json ({written})")


def _evaluate_into(
    folder: Path, model: str, options: dict[str, Any], move: Any, *, fresh: bool
) -> tuple[Evaluation, str]:
    """Evaluate into the folder; return the result, and the number of items and the time in words."""
    from ..evaluate.harness import evaluate as run
    from ..evaluate.items import write_items

    partial = folder / "partial"
    if fresh and partial.exists():
        shutil.rmtree(partial)
    begun = time.monotonic()
    try:
        record, items = run(
            model, **options, partial=partial, progress=lambda what, done, total: move(done, total, what)
        )
    except BaseException as error:
        if partial.is_dir() and {p.name for p in partial.iterdir()} <= {"settings.json"}:
            shutil.rmtree(partial, ignore_errors=True)  # an end before the first batch leaves no folder behind
        if isinstance(error, KeyboardInterrupt) and partial.exists():
            beside = "; result.json is of the evaluation before it" if (folder / "result.json").exists() else ""
            error.add_note(f"interrupted: {partial} holds what is done of {model}{beside}.")
            error.add_note("Repeat the command to go on from there.")
        raise
    seconds = time.monotonic() - begun
    with writing(folder):
        with replaced(folder) as place:
            write_items(place / "items.parquet", items)
            record.save(place)
            write_origin(place, {"command": "evaluate", "model": model, **options}, seconds)
        shutil.rmtree(partial, ignore_errors=True)
    count = f"{len(items):,} items" if len(items) != 1 else "1 item"
    return record, f"{count}, {seconds:.0f} s"


def show(record: Evaluation) -> None:
    model = record.model
    out.print(Text.assemble((model.description, "bold"), f", {model.parameters:,} parameters, {model.dtype}"))
    if record.tasks:
        columns = ("task", "items", "shots", "accuracy", "± (items)", "normalised", "ECE", "perplexity")
        rows = []
        for name, scores in record.tasks.items():
            percent = [None if v is None else 100 * v for v in (scores.acc, scores.stderr, scores.acc_norm)]
            cells = [_fixed(value, 2) for value in percent]
            cells += [_fixed(scores.ece, 3), perplexity(scores.perplexity, 2)]
            rows.append((name, f"{scores.items:,}", str(scores.model_dump()["shots"]), *cells))
        empty = [name for name, *cells in zip(columns, *rows) if not any(cells)]
        out.print(table(columns, rows, left=("task",), drop=(*empty, "ECE", "shots", "perplexity", "± (items)")))
        graded = ", ".join(name for name, scores in record.tasks.items() if scores.graded)
        if graded:
            out.print(f"{graded}: graded, the share of probability on right answers", style="dim")
        average = Text(_fixed(100 * (record.macro_average or 0), 2), "bold")
        out.print(f"average over {several(len(record.tasks), 'task')}:", average)
    for name, row in record.texts.items():
        each = [f"{unit} perplexity {perplexity(row[f'{unit}_perplexity'])}" for unit in ("token", "word")]
        much = f"{row['tokens']:,} tokens in windows of {row['window_tokens']}"
        out.print(f"{name}: {', '.join(each)}, {row['bits_per_byte']:.4f} bits per byte ({much})")
    for note in record.notes:
        out.print(f"note: {note}")


def perplexity(value: float | None, digits: int = 3) -> str:
    """The perplexity as text; from a million on with three digits, as more say nothing about such a poor model."""
    return f"{value:.3g}" if value is not None and value >= 1e6 else _fixed(value, digits)


def _fixed(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"
