"""Make the runs of a study: a training by `train`, in a run folder that is resumed where it was interrupted; a
measurement by the meter. A finished run appears whole as DIR/runs/NAME; until then it lies in DIR/.work/NAME, with its
weights, which are not kept.
"""

from __future__ import annotations

import contextlib
import gc
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..files import locked, pretty_json, safe_name, versions, write_text
from ..needs import need
from ..records import Measured, Measurement, Snapshot, Training, find, in_short, read
from ..words import list_of, round_to
from .arms import TEACHER, recipe_of, teacher_of
from .outcomes import evaluate_folder
from .runs import Found, Members, Planned, Run, cosine, held_out, spearman, trained_name
from .settings import Settings

POINTS = 60  # of a kept history


class NotRun(Exception):
    """What a study needs is not here; its verdict is "undecided: not run" with this reason."""


@dataclass
class Workshop:
    """What making a run needs: the study's folder and settings, where data lies, and whom to tell."""

    folder: Path
    settings: Settings
    data: str | None  # folder of named texts
    bench: str | None  # folder of benchmark files
    device: str | None
    say: Callable[[str], None]
    times: bool  # False: seconds and speeds are not kept, so that the same runs are the same bytes
    known: Mapping[str, list[Found]]  # runs of other folders, under their names here
    progress: Callable[..., None]
    aside: bool | None = None  # whether `_free_memory` froze the garbage collector, so that `run` must unfreeze it

    @property
    def work(self) -> Path:
        return self.folder / ".work"


def make(planned: Planned, shop: Workshop) -> None:
    """Make a run and put it into DIR/runs, or take over an equal one that is known. One process per run: the lock goes
    when the process ends, however it ends."""
    shop.work.mkdir(parents=True, exist_ok=True)
    busy = f"the run {planned.name!r} is being made by another process: choose another with --piece, or wait for it."
    try:
        with locked(shop.work / f"{planned.name}.lock", busy=busy):
            shop.say(f"{planned.name}: {planned.words}")
            if planned.config is not None:
                run = Run(planned.name, _measured(planned.config, shop))
            else:
                run = _taken_over(planned, shop) or _trained(planned, shop)
            if isinstance(run.record, Training):
                shop.say(f"  {_in_words(run.record)}")
            save_run(run if shop.times else run._replace(record=_timeless(run.record)), shop.folder / "runs")
            shutil.rmtree(shop.work / planned.name, ignore_errors=True)
    finally:
        for lock in shop.work.glob(".*.lock"):
            with contextlib.suppress(ValueError), locked(lock, busy="another process trains there"):
                pass  # nobody holds it: it is removed
        with contextlib.suppress(OSError):
            shop.work.rmdir()


def save_run(run: Run, folder: Path) -> None:
    """Write `folder`/NAME, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    ready = folder / f".{run.name}"
    shutil.rmtree(ready, ignore_errors=True)
    ready.mkdir()
    for file, record in (("result.json", run.record), ("outcomes.json", run.outcomes)):
        if record is not None:
            content = record.model_dump(mode="json", by_alias=True, exclude_unset=True)
            exact = {key: content[key] for key in ("recipe", "config") if key in content}
            write_text(ready / file, pretty_json(round_to(content) | exact, tight=True))
    ready.replace(folder / run.name)


def _trained(planned: Planned, shop: Workshop) -> Run:
    arm, seed, settings = str(planned.arm), int(planned.seed or 0), shop.settings
    if settings.get("tasks") and shop.bench is None and settings.get("tasks_needed", True):
        raise NotRun("there are no benchmark files here: give their folder with --bench or DECONDENSE_BENCH.")
    evaluated = settings.get("tasks") and shop.bench is not None
    if evaluated:
        need("evaluate", "the study, for its tasks,")  # refused before the training, not after it
    recipe = recipe_of(settings, arm, seed)
    plain_recipe = recipe.model_dump(mode="json")  # as the study asks for it: without the folders of this machine
    teacher, distillation = teacher_of(settings, arm), recipe.baselines.distillation
    if teacher is not None and distillation is not None:
        place = _place(teacher, seed, shop)
        distillation.teacher = str(_carry_out(recipe_of(settings, teacher, seed), place, shop) / "model")
    folder = _carry_out(recipe, _place(arm, seed, shop), shop)
    record = read(folder)
    assert isinstance(record, Training), record.kind
    packages = versions("decondense", "numpy", "scipy") | record.versions
    record = record.model_copy(update={"arm": arm, "recipe": plain_recipe, "versions": packages})
    record = in_small(record, folder, settings)
    outcomes = None
    if evaluated:
        outcomes = evaluate_folder(
            folder / "model", settings, seed, bench=str(shop.bench), device=shop.device,
            progress=lambda what, done, of: shop.progress(done, of, f"{planned.name}: {what}"),
        )  # fmt: skip
        _free_memory(shop)
    return Run(planned.name, record, outcomes)


def _place(arm: str, seed: int, shop: Workshop) -> Path:
    """Where an arm is trained. A teacher stays there until its students are made, so it is trained once."""
    teaches = any(teacher_of(shop.settings, other) == arm for other in shop.settings["arms"])
    return shop.work / f"{TEACHER + '-' if teaches else ''}{trained_name(arm, seed)}"


def clear_teachers(plan: Sequence[Planned], shop: Workshop) -> None:
    """Remove every teacher whose students are made, unless another process is at work on it."""
    students: dict[Path, list[str]] = {}
    for planned in plan:
        teacher = None if planned.arm is None else teacher_of(shop.settings, planned.arm)
        if teacher is not None:
            students.setdefault(_place(teacher, int(planned.seed or 0), shop), []).append(planned.name)
    for place, names in students.items():
        if place.is_dir() and all((shop.folder / "runs" / name).is_dir() for name in names):
            with contextlib.suppress(ValueError), locked(_lock(place), busy="its trainer is at work"):
                shutil.rmtree(place, ignore_errors=True)


def _lock(place: Path) -> Path:
    return place.with_name(f".{place.name}.lock")


def _carry_out(recipe: Any, folder: Path, shop: Workshop) -> Path:
    """Train into the folder, resuming what an interrupted process has left there of the same recipe. Several processes
    may want one teacher: the first trains it, the others wait."""
    from ..train.folder import check_recipe
    from ..train.run import train
    from ..train.watch import in_words

    def show_step(number: int, figures: dict[str, float]) -> None:
        shop.progress(number, recipe.steps, f"{recipe.name}: step", in_words(figures, 60))

    recipe.data.folder = recipe.data.folder or shop.data
    recipe.train.device = recipe.train.device or shop.device
    with locked(_lock(folder)):
        try:
            begun = check_recipe(folder, recipe, resume=True)
        except ValueError:  # begun with other settings
            begun = False
            shutil.rmtree(folder)
        if begun and (folder / "result.json").is_file():
            return folder
        # without the figures of a run folder, which would be thrown away with it
        train(
            recipe, folder, resume=begun, say=lambda sentence: shop.say(f"  {sentence}"), show=show_step,
            progress=lambda what, done, of: shop.progress(done, of, f"{recipe.name}: {what}"), draw=False,
        )  # fmt: skip
    _free_memory(shop)
    return folder


def _free_memory(shop: Workshop) -> None:
    """Free the GPU memory of Trainer and model, which refer to each other in circles. On a CPU, hide what torch and
    transformers have imported from the garbage collector: Trainer runs that in every training, and looking through
    the imports takes longer than a small training."""
    import torch

    if torch.cuda.is_available():
        gc.collect()
        torch.compiler.reset()  # else the tenth run meets the limit of recompilations and is slower than the first
        torch.cuda.empty_cache()
    elif shop.aside is None:
        shop.aside = not gc.get_freeze_count()  # else the caller froze it
        if shop.aside:
            gc.collect()
            gc.freeze()


def _in_words(run: Training) -> str:
    words = f"{run.arm}: held-out loss {held_out(run):.4f}"
    if run.snapshots:
        words += f", mean cosine {cosine(run):.3f}, Spearman {spearman(run):+.2f}"
    if run.tokens_per_second:
        words += f", {run.tokens_per_second:,.0f} tokens/s"
    if run.skipped:
        words += f", {run.skipped} steps skipped because their loss was not finite"
    return words + (f" (from {run.origin})" if run.origin else "")


def in_small(record: Training, folder: Path, settings: Settings, *, origin: str | None = None) -> Training:
    """A run as a study keeps it: at most about 60 points of its history, histograms only of the snapshots that are
    drawn, numbers of six digits, and no path of this machine. A run that is small already stays as it is."""
    history = record.history
    chosen = history if len(history) <= POINTS + 1 else history[:: -(-len(history) // POINTS)]
    if chosen and chosen[-1] is not history[-1]:
        chosen = [*chosen, history[-1]]
    drawn = _drawn(record, settings)
    shots = [_shot(shot, folder, drawn=shot in drawn) for shot in record.snapshots]
    small = record.model_copy(update={"history": chosen, "snapshots": shots})
    content = small.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude={"command"})
    content = round_to(content, whole=False)
    content |= {"schema": Training.reads[0], "recipe": record.recipe, "skipped_steps": record.skipped}
    return Training.model_validate(content if origin is None else content | {"origin": origin})


def _drawn(record: Training, settings: Settings) -> list[Snapshot]:
    """The snapshots whose histograms the study keeps."""
    return {"all": record.snapshots, "last": record.snapshots[-1:], "none": []}[settings.get("heatmaps", "none")]


def _shot(shot: Snapshot, folder: Path, *, drawn: bool) -> Snapshot:
    density = shot.histogram if drawn else None
    if drawn and density is None and shot.file is not None:
        whole = read(folder / shot.file)
        assert isinstance(whole, Measurement), whole.kind
        density = in_short(whole, histogram=True).histogram
    content = shot.model_dump(exclude_unset=True, exclude={"file", "histogram"})
    return Snapshot(**content) if density is None else Snapshot(**content, histogram=density)


def _timeless(record: Any) -> Any:
    return record.model_copy(update=dict.fromkeys({"seconds", "tokens_per_second"} & record.model_fields_set))


def known_runs(places: Sequence[Path], members: Members) -> dict[str, list[Found]]:
    """Name → the trainings of that arm and seed in and below the places."""
    by_name: dict[str, list[Found]] = {}
    for place in places:
        found_runs = members.among((path.parent, name) for path, name in find([place]))
        trainings = [found for found in found_runs if isinstance(found.run.record, Training)]
        if not trainings:
            raise FileNotFoundError(
                f"no training runs at {str(place)!r}: give folders that `decondense study` or `decondense train` wrote."
            )
        for found in trainings:
            if found.member is not None:
                by_name.setdefault(found.member.name, []).append(found)
    return by_name


def _taken_over(planned: Planned, shop: Workshop) -> Run | None:
    """An equal run of another study or of `decondense train` that has what this study asks for, or None. Equal runs
    with different numbers are two trainings, of which the caller must name one."""
    needs_outcomes = shop.settings.get("tasks") and shop.settings.get("tasks_needed", True)
    candidates: dict[float, tuple[str, Run]] = {}  # held-out loss → where it lies, the run
    for found in shop.known.get(planned.name, ()):
        run = found.member
        assert run is not None
        assert isinstance(run.record, Training), found.name
        small = in_small(run.record, found.folder, shop.settings, origin=run.record.origin or found.name)
        lacks_histograms = any(shot.histogram is None for shot in _drawn(small, shop.settings))
        if not lacks_histograms and (run.outcomes is not None or not needs_outcomes):
            # speeds of arms are compared on one machine at one time, and this run was made at another
            candidates.setdefault(held_out(small), (found.name, run._replace(record=_timeless(small))))
    if len(candidates) > 1:
        places = list_of(place for place, _ in candidates.values())
        raise ValueError(
            f"--reuse must lead to one run {planned.name!r}, got {places} with different numbers: name the folder of "
            "one of them."
        )
    return next((run for _, run in candidates.values()), None)


def _measured(config: dict[str, Any], shop: Workshop) -> Measured:
    """Measure one model on one text. A model that is the name of an arm is trained first."""
    from ..meter.run import measure
    from ..models import hardware, pick_device

    model, arms = config["model"], shop.settings.get("arms") or {}
    source = model
    if model in arms:
        folder = shop.work / safe_name(model)
        source = str(_carry_out(recipe_of(shop.settings, model, 1), folder, shop) / "model")
    options: dict[str, Any] = {key: config.get(key) for key in ("windows", "tokens", "bootstrap", "revision")}
    part = part_of(config["text"])
    text: Any = config["text"] if part is None else _documents(*part, shop.data)
    result = measure(
        source, text=text, **options, device=shop.device, data=shop.data,
        progress=lambda done, of: shop.progress(done, of, f"{model} on {config['text']}: windows"),
    )  # fmt: skip
    measurement = Measurement.model_validate(result.record)
    shot = in_short(
        measurement, histogram=True,
        model=model if model in arms else result.label,
        parameters=measurement.model.parameters,
        text=measurement.text.name if part is None else config["text"],
        text_source=measurement.text.source,
        text_sha256=measurement.text.sha256,
        # over windows: says how well this model on this text is known, and decides nothing
        window_interval=result.interval("spearman"),
    )  # fmt: skip
    packages = versions("decondense", "numpy", "scipy", "torch", "transformers")
    return Measured(
        schema=Measured.reads[0], measurement=Snapshot(**round_to(shot.model_dump(exclude_unset=True), whole=False)),
        config=config, hardware=hardware(pick_device(shop.device)), versions=packages,
    )  # fmt: skip


def part_of(name: str) -> tuple[str, int, int] | None:
    """("pydoc", 2, 4) for "pydoc 2/4", None for a whole text."""
    if " " not in name:
        return None
    match = re.fullmatch(r"(\S+) ([1-9]\d*)/([1-9]\d*)", name)
    if match is None or int(match[2]) > int(match[3]):
        raise ValueError(f"a text must be NAME or a part of one like 'pydoc 2/4', got {name!r}: count from 1/4 to 4/4.")
    return match[1], int(match[2]), int(match[3])


def _documents(text: str, part: int, parts: int, data: str | None) -> list[str]:
    """Part `part`, counted from 1, of `parts` equal parts of the documents of a text."""
    from ..text import open_text

    documents = open_text(text, data=data).documents
    size = len(documents) // parts
    return list(documents[(part - 1) * size : part * size])
