"""``decondense train``: train as a recipe or flags say, into a run folder."""

from __future__ import annotations

import contextlib
import math
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from ..files import first_process, pretty_json
from ..hub import check_repo, push
from ..words import amount, cell, list_of, nobody, perhaps, several, signed
from . import options as o
from .terminal import err, out, progress_bar, table

if TYPE_CHECKING:
    from ..records import Training

FLAGS = {
    "model": "model.name", "text": "data.text", "held_out": "data.held_out", "tokens": "data.tokens",
    "context": "data.context", "data": "data.folder", "loss": "loss.name", "weight": "loss.weight",
    "layers": "loss.layers", "estimator": "loss.options.estimator", "teacher": "baselines.distillation.teacher",
    "noisy_embedding": "baselines.noisy_embedding", "active_forgetting": "baselines.active_forgetting.every",
    "learning_rate": "train.learning_rate", "device": "train.device", "on_nan": "train.on_nan", "seed": "train.seed",
}  # fmt: skip
"""Options, and the key of the recipe that each sets."""


def train(
    recipe: Annotated[Path | None, typer.Argument(help="recipe (YAML); without one, --model is needed")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="override a key of the recipe: train.seed=2; may be repeated"),
    ] = None,
    model: Annotated[str | None, typer.Option(help="model to train: hub id, folder, GGUF file or bundled name")] = None,
    text: Annotated[str | None, typer.Option(help="named text (its train split) or file; several with commas")] = None,
    held_out: Annotated[str | None, typer.Option(help="text for the held-out loss; default the end of --text")] = None,
    tokens: Annotated[str | None, typer.Option(help="budget in tokens: 2M, 200M")] = None,
    context: Annotated[int | None, typer.Option(help="tokens per block")] = None,
    loss: Annotated[str | None, typer.Option(help="none, dispersion, decorrelation, … (decondense.losses)")] = None,
    weight: Annotated[float | None, typer.Option(help="λ, the factor of that loss")] = None,
    estimator: Annotated[str | None, typer.Option(help="first_order, second_order, exact, sampled")] = None,
    layers: Annotated[str | None, typer.Option(help="all, last, early_half, late_half, or numbers: 1,2,3")] = None,
    teacher: Annotated[str | None, typer.Option(help="distil from this model")] = None,
    noisy_embedding: Annotated[float | None, typer.Option(help="NEFTune's α; the paper uses 1")] = None,
    active_forgetting: Annotated[int | None, typer.Option(help="re-initialise the embeddings every N steps")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="peak learning rate")] = None,
    seed: Annotated[int | None, typer.Option(help="seed of the data's order, fresh weights and noise")] = None,
    seeds: Annotated[str | None, typer.Option(help="several seeds, 1,2,3: one run folder each")] = None,
    data: o.Data = None,
    device: o.BestDevice = None,
    on_nan: Annotated[str | None, typer.Option(help="loss not finite: stop (default), or skip the step")] = None,
    out_dir: Annotated[Path | None, typer.Option("--out", help="run folder; default runs/NAME")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="continue an interrupted run with the same command")] = False,
    push_to_hub: Annotated[str | None, typer.Option(help="OWNER/NAME: upload the model when it is trained")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="print the recipe and what it would do, check what it needs, and stop")
    ] = False,
    as_json: o.Json = False,
) -> None:
    """Train a language model, with or without a loss against condensation, as a recipe says.

    decondense train recipes/midtrain-smollm2-135m.yaml --set train.seed=2 --out runs/two

    decondense train --model smollm2-135m --text wikitext-2 --tokens 2M --loss dispersion --weight 0.1

    Flags override the recipe, --set overrides both; docs/training.md explains every key. Several GPUs: torchrun
    --nproc-per-node 8 -m decondense.cli train …, or accelerate launch with recipes/launch/; recipes/ is in a clone
    of the repository.
    """
    options = o.given(locals()) | {"model": model, "layers": _layers(layers)}
    options |= {"text": o.texts_of(text) or text, "held_out": o.texts_of(held_out) or held_out}
    flags = {key: options[name] for name, key in FLAGS.items()}
    if push_to_hub is not None:
        check_repo(push_to_hub)
    if seed is not None and seeds is not None:
        raise ValueError("--seed and --seeds cannot be combined: give one of them.")
    run_seeds: Sequence[int | None] = o.seeds_of(seeds) or [None]
    recipes = [_build(recipe, flags | ({} if n is None else {"train.seed": n}), settings or []) for n in run_seeds]
    for one, built in zip(run_seeds, recipes):  # before the first run starts
        if one is not None and built.train.seed != one:
            raise ValueError(
                f"--seeds {seeds} gives every run a seed of its own, but --set says {built.train.seed}: leave one out."
            )
    folder = out_dir or Path("runs") / recipes[0].name
    targets = [folder / f"seed-{one}" if seeds else folder for one in run_seeds]
    records: list[Any] = []
    for one, built, target in zip(run_seeds, recipes, targets):
        if dry_run:
            records.append(built.model_dump(mode="json"))
            if not as_json:
                print(built.to_yaml(), end="")
            continue
        records.append(_run(built, target, resume=resume, quiet=as_json))
        if push_to_hub is not None and first_process():
            address = push(target / "model", f"{push_to_hub}-seed-{one}" if seeds else push_to_hub)
            err.print(f"uploaded: {address}")
    if as_json and first_process():
        whole = [pretty_json(one) for one in records]
        print(whole[0] if len(whole) == 1 else "[" + ",\n".join(whole) + "]\n", end="")
    if dry_run:
        from ..train.folder import would_go_on
        from ..train.prepare import check

        outlooks = {where: would_go_on(where, built, resume=resume) for where, built in zip(targets, recipes)}
        model_in_words = check(recipes[0])  # the others differ in nothing but the seed
        if not as_json:
            _print_plan(recipes[0], model_in_words, outlooks)
    import torch.distributed

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()  # torch complains about processes that exit without it


def _layers(layers: str | None) -> str | list[int] | None:
    from ..hidden_states import LAYER_NAMES

    if layers is None or layers in LAYER_NAMES:
        return layers
    try:
        return [int(part) for part in layers.split(",")]
    except ValueError:
        raise ValueError(
            f"--layers must be {', '.join(LAYER_NAMES)} or numbers of hidden states with commas, like 1,2,3 "
            f"(−1 is the last), got {layers!r}{perhaps(layers, LAYER_NAMES)}"
        ) from None


def _build(path: Path | None, flags: dict[str, Any], settings: list[str]) -> Any:
    from ..train import load_recipe, recipe_from, with_settings

    given = [(key, value) for key, value in flags.items() if value is not None]
    if path is not None:
        return load_recipe(path, [*given, *settings])
    if flags["model.name"] is None:
        raise ValueError(
            "train needs a recipe, or --model: give --model smollm2-135m --text wikitext-2, and with --dry-run it "
            "prints the whole recipe, or take one from recipes/ in a clone of the repository."
        )
    content = with_settings({}, [*given, *settings])
    recipe = recipe_from(content, "recipe")
    return recipe if "name" in content else recipe.model_copy(update={"name": _name(recipe)})


def _name(recipe: Any) -> str:
    """A name from the model and what is done with it, so that a baseline has another folder than plain training."""
    distillation, ways = recipe.baselines.distillation, {"fresh": recipe.model.fresh, "lora": recipe.model.lora}
    parts = [loss.name for loss in recipe.losses] + [way for way, used in ways.items() if used]
    parts += (["distillation"] if distillation else []) + [*recipe.baselines.on_logits, *_other_baselines(recipe)]
    words = [name.replace("_", "-").replace(" ", "-") for name in parts]
    return "-".join([Path(str(recipe.model.name)).name, *(words or ["cross-entropy"])])


def _other_baselines(recipe: Any) -> list[str]:
    """The baselines that are not a term of the loss."""
    baselines = recipe.baselines
    others = baselines.model_dump(exclude={"distillation", *baselines.on_logits}, exclude_defaults=True)
    return ["no dropout" if name == "dropout" and not value else name for name, value in others.items()]


def _run(recipe: Any, folder: Path, *, resume: bool, quiet: bool) -> Any:
    """Carry out the recipe, show the result unless `quiet`, and return the record of the run."""
    from ..records import parse
    from ..train import train as carry_out
    from ..train.folder import where_it_goes_on

    quiet = quiet or not first_process()
    say: Callable[..., None] = nobody if quiet else err.print
    for note in _notes(recipe):
        say(f"note: {note}")
    _speak_when_ended(folder)
    try:
        with _progress(recipe, quiet=quiet) as callbacks:
            command = shlex.join(["decondense", *sys.argv[1:]])
            run = carry_out(recipe, folder, resume=resume, command=command, say=say, **callbacks)
    except KeyboardInterrupt as stop:
        if folder.is_dir():  # else nothing was begun
            stop.add_note(f"interrupted: the same command with --resume {where_it_goes_on(folder)}.")
        raise
    if not quiet:
        show_run(cast("Training", parse(run.record)), folder)
    return run.record


def _print_plan(recipe: Any, model: dict[str, Any], outlooks: dict[Path, str | None]) -> None:
    """Print what a run would do, and what becomes of each folder (`outlooks`); on stderr, as stdout has the recipe."""
    from ..train.sections import shares_of

    for note in _notes(recipe):
        err.print(f"note: {note}")
    lora, shares = recipe.model.lora, shares_of(recipe.data.text)
    kind = ", fresh weights" if recipe.model.fresh else f", LoRA of rank {lora.r}" if lora else ""
    budget = f"{recipe.steps * recipe.step_tokens:,} tokens in {recipe.steps:,} step{'s' * (recipe.steps > 1)}"
    equal = len({*shares.values()}) == 1
    texts = " + ".join(name if equal else f"{100 * share:.3g} % {name}" for name, share in shares.items())
    held_out = recipe.held_out_blocks * recipe.data.context
    budget += f"; held-out loss of {held_out:,} tokens (data.held_out_tokens) {_held_out_at(recipe)}"
    err.print(f"{model['name']}{kind}, {amount(model['parameters'])} parameters, on {texts}: {budget}")
    err.print(f"loss: {_loss(recipe)}")
    outlook = [words for words in outlooks.values() if words is not None]
    if new := [folder for folder, words in outlooks.items() if words is None]:
        names = f"seed-{{{','.join(folder.name.removeprefix('seed-') for folder in new)}}}"
        outlook.append(f"it would write {new[0] if len(new) == 1 else new[0].parent / names}")
    err.print("; ".join([*outlook, "nothing was written"]))


def _held_out_at(recipe: Any) -> str:
    """When the held-out loss is computed."""
    from ..train.watch import milestones

    times = len(milestones(recipe.steps, recipe.snapshots.count))
    if times < 2:
        return "at step 0 and at the end"
    if times == recipe.steps:
        return "at step 0 and after every step"
    about = "about " if recipe.steps % times else ""
    return f"at step 0, {about}every {round(recipe.steps / times):,} steps and at the end"


def _loss(recipe: Any) -> str:
    """The loss that is minimised, as a formula, and the baselines that are not a term of it."""
    baselines, formula = recipe.baselines, "cross-entropy"
    if taught := baselines.distillation:
        formula = f"{1 - taught.share:g} · cross-entropy + {taught.share:g} · distillation from {taught.teacher}"
    for name, weight in baselines.on_logits.items():
        formula += f" + {weight:g} · {name}"
    for loss in recipe.losses:
        read = f"layers {cell(loss.layers)}" if loss.modules is None else f"modules {cell(loss.modules)}"
        over_time = f", {loss.over_time}" if loss.over_time else ""
        formula += f" {'−' if loss.weight < 0 else '+'} {abs(loss.weight):g} · {loss.name} on {read}{over_time}"
    others = _other_baselines(recipe)
    return formula + (f"; beside it {list_of(others)}" if others else "")


def _notes(recipe: Any) -> Iterator[str]:
    """Notes about settings of a recipe that may not have been meant."""
    train = recipe.train
    if recipe.model.fresh and "learning_rate" not in train.model_fields_set:
        rises = train.schedule != "constant" and "warmup" not in train.model_fields_set
        better = "train.learning_rate=0.003" + (" --set train.warmup=0.4" if rises else "")
        yield (
            f"the weights are fresh, and train.learning_rate, {train.learning_rate:g}, is the default for trained "
            f"ones: type --set {better} (the rate is for a width of 384); from nothing, warm-up and rate made more of "
            "a difference than any loss (docs/pretraining.md)."
        )
    run = f"the {several(recipe.steps, 'step')} of this run"
    for loss in recipe.losses:
        if loss.weight < 0:
            yield f"the weight of {loss.name}, {loss.weight:g}, is negative: this run condenses on purpose."
        if loss.ramp_steps is not None and loss.ramp_steps > recipe.steps:
            last = loss.term(recipe.steps).weight_at(recipe.steps - 1)
            yield (
                f"loss.ramp_steps, {loss.ramp_steps:,}, is more than {run}: the weight of {loss.name} ends at "
                f"{last:.3g} of {loss.weight:g}."
            )
    forgetting = recipe.baselines.active_forgetting
    if forgetting is not None and forgetting.every >= recipe.steps:
        key = f"baselines.active_forgetting.every, {forgetting.every:,}"
        yield f"{key}, is not less than {run}: nothing is forgotten."
    if recipe.data.tokens < recipe.step_tokens:
        context = recipe.data.context
        enough = -(-recipe.data.tokens // context) * context
        remedy = f"--set train.batch_tokens={enough}" if enough < recipe.step_tokens else "a shorter --context"
        yield (
            f"the budget of {recipe.data.tokens:,} tokens is less than one step, which has {recipe.step_tokens:,}: so "
            f"many are trained on; for fewer, {remedy}."
        )


def _speak_when_ended(folder: Path) -> None:
    """Make SIGTERM raise an error that says how to resume: when a process dies, torchrun ends the others by SIGTERM
    within a tenth of a second, mostly before they notice. Where they do notice, `train` raises an error of its own."""
    from ..train.folder import process_count, where_it_goes_on

    def ended(number: int, frame: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second SIGTERM ends the process at once
        raise OSError(
            "this process was told to end (SIGTERM), as launchers do when another process of the run has died: the "
            "same command with --resume, on as many processes or another number, "
            f"{where_it_goes_on(folder)}."
        )

    if process_count() > 1:
        signal.signal(signal.SIGTERM, ended)


@contextlib.contextmanager
def _progress(recipe: Any, *, quiet: bool) -> Iterator[dict[str, Any]]:
    """The callbacks of `train` that show its progress on stderr; where that is a file or a pipe, every part of the work
    before the first step gets a line as well, since it may take minutes."""
    from ..train.watch import in_words

    with progress_bar("getting ready", quiet=quiet) as move:
        if quiet:
            yield {}
            return
        lines = not err.is_terminal
        label_width = len(f"step: {recipe.steps:,} of {recipe.steps:,}, about 100 min left; ")
        room = math.inf if lines else err.width - label_width

        def show(step: int, figures: dict[str, float]) -> None:
            move(step, recipe.steps, "step", in_words(figures, room))

        def progress(what: str, done: int, of: int | None) -> None:
            if lines and what == "tokenising" and done == 0:
                err.print(f"tokenising up to {of:,} tokens")
            else:
                move(done, of, what)

        yield {"progress": progress, "show": show} | ({"stage": err.print} if lines else {})


def show_run(record: Training, folder: Path) -> None:
    losses = {entry.step: entry.loss for entry in record.held_out}
    snapshots = {snapshot.step or 0: snapshot for snapshot in record.snapshots}
    rows = []
    for step in sorted(losses.keys() | snapshots.keys()):
        cells = ("", "")
        if step in snapshots:
            cells = (f"{snapshots[step].blocks:.3f}", signed(snapshots[step].spearman, 2))
        tokens = step * (record.tokens or 0) // record.steps
        rows.append((str(step), f"{tokens:,}", f"{losses[step]:.4f}" if step in losses else "", *cells))
    columns = ("step", "tokens", "held-out loss", "mean cosine", "Spearman")[: 5 if snapshots else 3]
    out.print(table(columns, [row[: len(columns)] for row in rows], drop=("tokens",)))
    if snapshots:
        out.print("on held-out windows; mean cosine: over the block outputs, Spearman: over all states", style="dim")
    if record.quantisation_cost:
        costs = ", ".join(f"{scheme} {signed(cost, 4)}" for scheme, cost in record.quantisation_cost.items())
        out.print(f"held-out loss after quantisation minus before, mean over texts: {costs}")
    speed = record.tokens_per_second
    pace = "" if speed is None else f", {speed:,.0f} tokens/s in steps"
    out.print(f"{several(record.steps, 'step')} in {record.seconds:.0f} s{pace} on {record.hardware}")
    if record.skipped:
        out.print(f"note: {several(record.skipped, 'step')} left out, where loss or gradient was not finite")
    out.print(f"written: {folder}/model, result.json, training.png{', snapshots/' if snapshots else ''}")
