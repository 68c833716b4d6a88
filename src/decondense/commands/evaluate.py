"""``decondense evaluate`` and ``decondense significance``."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from .terminal import err, out, output_folder, run_record, writing

__all__ = ["SeparatorCommand", "evaluate", "significance"]

SEPARATOR = "--"


def evaluate(
    model: Annotated[str, typer.Argument(help="hub id, folder, GGUF file or bundled name (smollm2-135m)")],
    tasks: Annotated[
        str, typer.Option(help="paper (the ten benchmarks), or lm-eval task names a,b,c, or none")
    ] = "paper",
    data: Annotated[str, typer.Option(help="hub, or a folder with NAME/SPLIT.jsonl in the hub's field names")] = "hub",
    shots: Annotated[
        str, typer.Option(help="gpt2 (1 for four tasks), qwen3 (5 for them), zero, or a number for all")
    ] = "gpt2",
    limit: Annotated[int | None, typer.Option(help="the first N items of every task; for trying out")] = None,
    text: Annotated[
        str | None, typer.Option(help="also perplexity and bits per byte on texts a,b (name or file)")
    ] = None,
    text_tokens: Annotated[int | None, typer.Option(help="tokens per window of text; default the context")] = None,
    seed: Annotated[int, typer.Option(help="draws the few-shot examples; 1234 is lm-eval's default")] = 1234,
    out_dir: Annotated[Path | None, typer.Option("--out", help="output folder; default evaluation/MODEL")] = None,
    selected_by: Annotated[str, typer.Option(help="how the checkpoint was chosen: final or held-out-loss")] = "final",
    training_seed: Annotated[int | None, typer.Option(help="seed the model was trained with, to be recorded")] = None,
    revision: Annotated[str | None, typer.Option(help="branch, tag or commit of a hub id")] = None,
    init: Annotated[bool, typer.Option("--init", help="the same architecture, freshly initialised")] = False,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16, float16, float64 or auto")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, …; auto spreads a large model")] = None,
    batch_tokens: Annotated[
        int | None, typer.Option(help="tokens per batch; default 65536, on a CPU 256 per thread")
    ] = None,
    trust_remote_code: Annotated[bool, typer.Option("--trust-remote-code", help="run the model's own code")] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="start anew instead of resuming an unfinished evaluation")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the result as JSON and nothing else")] = False,
) -> None:
    """Score a model on the paper's ten benchmarks, or any of lm-eval's, and keep every item's outcome."""
    name = Path(model.rstrip("/")).name.removesuffix(".gguf") or "model"
    options: dict[str, Any] = {
        "tasks": "" if tasks == "none" else tasks,
        "data": data,
        "shots": shots,
        "limit": limit,
        "text": [t.strip() for t in text.split(",") if t.strip()] if text else None,
        "text_tokens": text_tokens,
        "seed": seed,
        "selected_by": selected_by,
        "training_seed": training_seed,
        "revision": revision,
        "init": init,
        "dtype": dtype,
        "device": device,
        "batch_tokens": batch_tokens,
        "trust_remote_code": trust_remote_code,
    }
    if not options["tasks"] and not options["text"]:
        raise ValueError("--tasks none leaves nothing to do: name tasks, or a text with --text.")
    with output_folder(out_dir if out_dir is not None else Path("evaluation") / name) as folder:
        _evaluate_into(folder, model, options, fresh=fresh, as_json=as_json)


def _evaluate_into(folder: Path, model: str, options: dict[str, Any], *, fresh: bool, as_json: bool) -> None:
    import yaml

    from ..evaluate.harness import evaluate as run
    from ..evaluate.items import write_items
    from ..files import write_text

    partial = folder / "partial"
    if fresh and partial.exists():
        shutil.rmtree(partial)
    begun = time.monotonic()
    try:
        with _bar(quiet=as_json) as progress:
            record, items = run(model, **options, partial=partial, progress=progress)
    except KeyboardInterrupt:
        err.print(f"interrupted: {partial} holds what is done. Repeat the command to go on from there.", markup=False)
        raise
    except BaseException:
        _drop_if_empty(partial)
        raise
    seconds = time.monotonic() - begun
    with writing(folder):
        write_items(folder / "items.parquet", items)
        write_text(folder / "result.json", json.dumps(record, indent=1, ensure_ascii=False) + "\n")
        config = {"command": "evaluate", "model": model, **options}
        write_text(folder / "config.yaml", yaml.safe_dump(config, sort_keys=False))
        write_text(folder / "run.json", run_record(seconds, options["device"]))
        shutil.rmtree(partial, ignore_errors=True)
    if as_json:
        print(json.dumps(record, indent=1, ensure_ascii=False))
        return
    show(record)
    out.print(f"written: {folder}/items.parquet, result.json ({len(items):,} items, {seconds:.0f} s)", markup=False)


def _drop_if_empty(partial: Path) -> None:
    """An error before the first batch leaves no folder behind."""
    if partial.is_dir() and {p.name for p in partial.iterdir()} <= {"settings.json"}:
        shutil.rmtree(partial, ignore_errors=True)


def show(record: dict[str, Any]) -> None:
    """Names of models, tasks, texts and folders are the user's: none of them is read as markup."""
    from rich.table import Table
    from rich.text import Text

    model = record["model"]
    rest = f", {model['parameters']:,} parameters, {model['dtype']}"
    out.print(Text.assemble((model["description"], "bold"), rest))
    if record["tasks"]:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in ("task", "items", "shots", "accuracy", "± (items)", "normalised", "ECE", "perplexity"):
            table.add_column(column, justify="left" if column == "task" else "right", no_wrap=True)
        for name, row in record["tasks"].items():
            table.add_row(
                Text(name),
                f"{row['items']:,}",
                str(row["shots"]),
                f"{100 * row['acc']:.2f}",
                "" if row["stderr"] is None else f"{100 * row['stderr']:.2f}",
                f"{100 * row['acc_norm']:.2f}" if "acc_norm" in row else "",
                f"{row['ece']:.3f}" if "ece" in row else "",
                f"{row['perplexity']:.2f}" if "perplexity" in row else "",
            )
        out.print(table)
        graded = [name for name, row in record["tasks"].items() if row["graded"]]
        if graded:
            words = f"{', '.join(graded)}: graded, the share of probability on right answers"
            out.print(words, style="dim", markup=False)
        number = len(record["tasks"])
        over = f"average over {number} task{'' if number == 1 else 's'}: "
        out.print(Text.assemble(over, (f"{100 * record['macro_average']:.2f}", "bold")))
    for name, row in record["texts"].items():
        out.print(
            f"{name}: token perplexity {row['token_perplexity']:.3f}, word perplexity {row['word_perplexity']:.3f}, "
            f"{row['bits_per_byte']:.4f} bits per byte ({row['tokens']:,} tokens in windows of {row['window_tokens']})",
            markup=False,
        )
    for note in record["notes"]:
        out.print(f"note: {note}", markup=False)


@contextlib.contextmanager
def _bar(*, quiet: bool) -> Iterator[Any]:
    """A callback (what, done, of) that drives one bar on stderr."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    if quiet:
        yield None
        return
    what = TextColumn("{task.description:<28}", markup=False)  # the name of a task or of a text file
    columns = (what, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("left"), TimeRemainingColumn(), console=err, transient=True) as bar:
        task = bar.add_task("loading", total=None)
        current = ""

        def move(what: str, done: int, total: int) -> None:
            nonlocal current
            if what != current:
                current = what
                bar.reset(task, description=what, total=total)
            bar.update(task, completed=done, total=total)

        yield move


# -- significance --------------------------------------------------------------------------------------------


class SeparatorCommand(TyperCommand):
    """Keep the first bare ``--`` as an argument: it divides base from treated runs, and options may follow it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if SEPARATOR in args:
            at = args.index(SEPARATOR)
            args = [*args[:at], _Divider(), *args[at + 1 :]]
        return super().parse_args(ctx, args)


class _Divider(str):
    """A word that no run folder is called."""

    def __new__(cls) -> _Divider:
        return super().__new__(cls, "\x1f")


def significance(
    runs: Annotated[list[str], typer.Argument(help="BASE… -- TREATED…: folders of `evaluate`, one per seed")],
    paired: Annotated[bool, typer.Option("--paired", help="the i-th base and treated run share their seed")] = False,
    common: Annotated[bool, typer.Option("--common", help="compare the items that all runs have")] = False,
    alpha: Annotated[float, typer.Option(help="level of the tests")] = 0.05,
    power: Annotated[float, typer.Option(help="power at which the smallest detectable effect is stated")] = 0.8,
    bootstrap: Annotated[int, typer.Option(help="resamplings of items and seeds")] = 2000,
    permutations: Annotated[int, typer.Option(help="permutations of items, where a test has no formula")] = 10_000,
    seed: Annotated[int, typer.Option(help="bootstrap and permutations")] = 0,
    out_dir: Annotated[Path | None, typer.Option("--out", help="output folder; default significance")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the result as JSON and nothing else")] = False,
) -> None:
    """Say whether two ways of training differ: paired tests on the same items, with seeds, intervals and power."""
    from ..figures.forest import forest
    from ..files import write_text
    from ..stats.significance import significance as compare
    from ..stats.tables import csv_table, latex, markdown

    base, treated = _divide(runs)
    record = compare(
        base,
        treated,
        paired=paired,
        common=common,
        alpha=alpha,
        power=power,
        bootstrap=bootstrap,
        permutations=permutations,
        seed=seed,
    )
    body = json.dumps(record, indent=1, ensure_ascii=False) + "\n"
    with output_folder(out_dir if out_dir is not None else Path("significance")) as folder, writing(folder):
        write_text(folder / "result.json", body)
        write_text(folder / "table.md", markdown(record))
        write_text(folder / "table.csv", csv_table(record))
        written = ["result.json", "table.md", "table.csv"]
        if record["tasks"]:
            write_text(folder / "table.tex", latex(record))
            forest(record, folder / "forest.png")
            written += ["table.tex", "forest.png"]
    if as_json:
        print(body, end="")
        return
    _show_comparison(record)
    out.print(f"written: {folder}/{', '.join(written)}", markup=False)


def _divide(runs: list[str]) -> tuple[list[str], list[str]]:
    divider = str(_Divider())
    if divider in runs:
        at = runs.index(divider)
        base, treated = runs[:at], runs[at + 1 :]
    elif len(runs) == 2:
        base, treated = runs[:1], runs[1:]
    else:
        raise ValueError(f"put -- between base and treated runs: BASE… -- TREATED…; got {len(runs)} runs without it.")
    if not base or not treated:
        raise ValueError("significance needs at least one base and one treated run: BASE… -- TREATED….")
    return base, treated


def _show_comparison(record: dict[str, Any]) -> None:
    from ..stats.tables import LIKELIHOOD, cells, nats, points

    if record["tasks"]:
        _print_table(cells(record))
        found = f"{100 * record['power']:.0f} %"
        out.print(
            f"could: the smallest true difference that would have been found with {found} probability", style="dim"
        )
    if record["likelihood"]:
        out.print(f"{LIKELIHOOD}:")
        short = ("items", "p", "could") if record["tasks"] else ()
        _print_table(cells(record["likelihood"], nats), without=short)
    macro = record["macro"]
    if macro is not None:
        if macro["seed_sd"] is not None:
            spread = "difference of a pair of seeds" if record["paired"] else "seed's average"
            out.print(
                f"standard error of the average: {points(macro['seed_se'])} points from seeds, "
                f"{points(macro['item_se'])} from items; a {spread} spreads by {points(macro['seed_sd'])}"
            )
        if "bootstrap" in macro:
            low, high = (points(macro["bootstrap"][key], sign=True) for key in ("low", "high"))
            out.print(f"hierarchical bootstrap of the average: {low} to {high} points")
        ranks = record["ranks"]
        base, treated = (", ".join(f"{rank:.1f}" for rank in ranks[arm]) for arm in ("base", "treated"))
        out.print(f"mean rank over tasks (1 is best): base {base}; treated {treated}")
        out.print(
            f"treated ahead on {ranks['ahead']} of {len(record['tasks'])} tasks, behind on {ranks['behind']} "
            f"(sign test p = {ranks['sign_test_p']:.2f})"
        )
    out.print(record["verdict"], style="bold", markup=False)
    for note in record["notes"]:
        out.print(f"note: {note}", markup=False)


def _print_table(rows: list[tuple[str, ...]], *, without: tuple[str, ...] = ()) -> None:
    from rich.table import Table
    from rich.text import Text

    from ..stats.tables import SHORT

    kept = [number for number, column in enumerate(SHORT) if column not in without]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number in kept:
        table.add_column(SHORT[number], justify="right" if number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(row[number]) for number in kept))
    out.print(table)
