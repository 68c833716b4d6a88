"""``decondense train``: a recipe, or flags, carried out into a run folder."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from .terminal import err, is_main, out, progress_bar

Recipe = Annotated[Path | None, typer.Argument(help="recipe (YAML); without one, --model and --text are needed")]
Set = Annotated[list[str] | None, typer.Option("--set", help="override one key: train.seed=2; may be repeated")]


def train(
    recipe: Recipe = None,
    settings: Set = None,
    model: Annotated[str | None, typer.Option(help="model to train: hub id, folder, GGUF file or bundled name")] = None,
    text: Annotated[str | None, typer.Option(help="named text or file; several with commas")] = None,
    held_out: Annotated[str | None, typer.Option(help="text for the held-out loss; default the end of --text")] = None,
    tokens: Annotated[str | None, typer.Option(help="budget in tokens: 2M, 200M")] = None,
    context: Annotated[int | None, typer.Option(help="tokens per block")] = None,
    loss: Annotated[str | None, typer.Option(help="none, dispersion, decorrelation, … (decondense.losses)")] = None,
    weight: Annotated[float | None, typer.Option(help="λ of that loss")] = None,
    estimator: Annotated[str | None, typer.Option(help="first_order, second_order, exact, sampled")] = None,
    layers: Annotated[str | None, typer.Option(help="all, last, early_half, late_half")] = None,
    teacher: Annotated[str | None, typer.Option(help="distil from this model")] = None,
    noisy_embedding: Annotated[float | None, typer.Option(help="NEFTune's α; the paper: 1")] = None,
    active_forgetting: Annotated[int | None, typer.Option(help="draw embeddings anew every so many steps")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="peak learning rate")] = None,
    seed: Annotated[int | None, typer.Option(help="order of the data, fresh weights, noise")] = None,
    seeds: Annotated[str | None, typer.Option(help="several, 1,2,3: one run folder each")] = None,
    data: Annotated[Path | None, typer.Option(help="folder of named texts; default $DECONDENSE_DATA")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, …; default the best there is")] = None,
    on_nan: Annotated[str | None, typer.Option(help="stop or skip")] = None,
    out_dir: Annotated[Path | None, typer.Option("--out", help="run folder; default runs/NAME")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="continue an interrupted run")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the whole recipe and stop")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the result as JSON and nothing else")] = False,
) -> None:
    """Train a language model, with or without a loss against condensation, as a recipe says."""
    flags = {
        "model.name": model,
        "data.text": None if text is None else text.split(",") if "," in text else text,
        "data.held_out": None if held_out is None else held_out.split(",") if "," in held_out else held_out,
        "data.tokens": tokens,
        "data.context": context,
        "data.folder": None if data is None else str(data),
        "loss.name": loss,
        "loss.weight": weight,
        "loss.layers": layers,
        "loss.options.estimator": estimator,
        "baselines.distillation.teacher": teacher,
        "baselines.noisy_embedding": noisy_embedding,
        "baselines.active_forgetting.every": active_forgetting,
        "train.learning_rate": learning_rate,
        "train.device": device,
        "train.on_nan": on_nan,
        "train.seed": seed,
    }
    chosen = _seeds(seeds, seed)
    for one in chosen:
        built = _build(recipe, flags | ({} if one is None else {"train.seed": one}), settings or [])
        if dry_run:
            print(built.to_yaml(), end="")
            continue
        folder = out_dir if out_dir is not None else Path("runs") / built.name
        if seeds is not None:
            folder = folder / f"seed-{one}"
        _run(built, folder, resume=resume, as_json=as_json)


def _seeds(seeds: str | None, seed: int | None) -> list[int | None]:
    if seeds is None:
        return [None]
    if seed is not None:
        raise ValueError("--seed and --seeds say the same twice: give one of them.")
    try:
        return [int(s) for s in seeds.split(",") if s.strip()]
    except ValueError:
        raise ValueError(f"--seeds must be whole numbers with commas, like 1,2,3, got {seeds!r}.") from None


def _build(path: Path | None, flags: dict[str, Any], settings: list[str]) -> Any:
    import yaml

    from ..train import load_recipe, recipe_from, with_settings

    given = [
        f"{key}={yaml.safe_dump(value, default_flow_style=True)}" for key, value in flags.items() if value is not None
    ]
    given = [g.removesuffix("\n").removesuffix("\n...") for g in given]
    if path is not None:
        return load_recipe(path, [*given, *settings])
    if flags["model.name"] is None:
        raise ValueError("train needs a recipe, or --model and --text: see recipes/ for complete examples.")
    name = "-".join(
        [
            Path(str(flags["model.name"])).name,
            str(flags["loss.name"] or "cross-entropy").replace("none", "cross-entropy"),
        ]
    )
    return recipe_from(with_settings({"name": name}, [*given, *settings]), "recipe")


def _run(recipe: Any, folder: Path, *, resume: bool, as_json: bool) -> None:
    import json

    from ..train import train as carry_out
    from ..train.checkpoints import last_complete_checkpoint

    quiet = as_json or not is_main()

    def say(sentence: str) -> None:
        if not quiet:
            err.print(sentence)

    try:
        with progress_bar("tokenising", quiet=quiet) as preparing, _training_bar(recipe, quiet=quiet) as show:
            run = carry_out(
                recipe, folder, resume=resume, command=shlex.join(["decondense", *sys.argv[1:]]), show=show,
                preparing=preparing, say=say,
            )  # fmt: skip
    except KeyboardInterrupt:
        if is_main():
            last = last_complete_checkpoint(folder / "checkpoints")
            where = f"continues from {last.name}" if last is not None else "starts again: there is no checkpoint yet"
            err.print(f"interrupted: the same command with --resume {where}.")
        raise
    if not is_main():
        return
    if as_json:
        print(json.dumps(run.record, indent=1))
        return
    show_run(run, folder)


@contextlib.contextmanager
def _training_bar(recipe: Any, *, quiet: bool) -> Iterator[Any]:
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    if quiet:
        yield None
        return
    columns = (TextColumn("step"), TextColumn("{task.completed}/{task.total}"), BarColumn(bar_width=20))
    with Progress(*columns, TimeRemainingColumn(), TextColumn("{task.description}"), console=err) as bar:
        task = bar.add_task("", total=recipe.steps, visible=False)

        def show(step: int, figures: dict[str, float]) -> None:
            parts = [f"{figures['tokens_per_second']:,.0f} tok/s"] if "tokens_per_second" in figures else []
            names = {"task_loss": "loss", "penalty": "penalty", "mean_cosine": "cosine", "eval_loss": "held-out"}
            if "task_loss" not in figures and "loss" in figures:
                names = {"loss": "loss", "eval_loss": "held-out"}
            parts += [f"{words} {figures[key]:.4f}" for key, words in names.items() if key in figures]
            bar.update(task, completed=step, description="  ".join(parts), visible=True)

        yield show


def show_run(run: Any, folder: Path) -> None:
    from rich.table import Table

    from ..meter.result import load

    record = run.record
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("step", "tokens", "held-out loss", "mean cosine", "Spearman"):
        table.add_column(name, justify="right")
    losses = {e["step"]: e["loss"] for e in record["held_out"]}
    found = {s["step"]: load(folder / s["file"]) for s in record["snapshots"]}
    for step in sorted(losses.keys() | found.keys()):
        snapshot = found.get(step)
        cells = (
            ("", "") if snapshot is None else (f"{snapshot.mean_cosine[1:].mean():.3f}", f"{snapshot.spearman:+.2f}")
        )
        tokens = step * record["recipe"]["train"]["batch_tokens"]
        table.add_row(str(step), f"{tokens:,}", f"{losses[step]:.4f}" if step in losses else "", *cells)
    out.print(table)
    out.print("mean cosine: over the block outputs, on held-out windows", style="dim")
    speed = record["tokens_per_second"]
    pace = "" if speed is None else f", {speed:,.0f} tokens/s in steps"
    out.print(f"{record['steps']} steps in {record['seconds']:.0f} s{pace} on {record['hardware']}")
    if record["skipped_steps"]:
        out.print(f"note: {len(record['skipped_steps'])} steps were skipped, their loss was not finite")
    out.print(f"written: {folder}/model, result.json, training.png, snapshots/")
