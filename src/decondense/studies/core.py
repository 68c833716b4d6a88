"""A study: recipes, measurements, and a conclusion from their runs.

DIR/runs/NAME/        a run each (see `runs`): training or measurement, no weights
DIR/result.json       verdict, sentence, table, intervals, settings
DIR/config.yaml, table.csv, figure.png
DIR/.work/            while a run is being made; an interrupted one is resumed from here

The result is computed from the runs alone, so its bytes do not depend on who made which run, in which order, or where
it was copied from. Merging is copying run folders; a run counts where its recipe is that of an arm.
"""

from __future__ import annotations

import contextlib
import copy
import fnmatch
import gc
import platform
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from .. import records
from ..checks import check_choice
from ..files import from_yaml, grouped, safe_name, to_yaml, versions, write_csv, write_text
from ..records import Training, find
from ..stats.verdicts import UNDECIDED
from ..words import duration, first_few, nobody, perhaps, round_to, several
from .arms import recipe_of, teachers_first, unlike
from .runs import Conclusion, Members, Planned, Run, Runs, measured_name, trained_name
from .settings import SCALES, Settings, check_form, command_of, put_change, resolved, scale_file
from .work import NotRun, Workshop, clear_teachers, in_small, known_runs, make, save_run

HOOKS = ("conclude", "refuse", "measurements", "arms", "criterion_of", "needed")  # of a study's module
TOY = " (Smoke scale: it checks the code, not the claim.)"

Say = Callable[[str], None]
NAMED = 5  # how many missing runs are named


@dataclass(frozen=True)
class Study:
    """One claim. What it says and its scales are in scales/NAME.yaml, the functions in NAME.py; every arm is trained
    with every seed of the settings."""

    name: str
    claim: str
    question: str
    conclude: Callable[[Runs, Settings], Conclusion]
    criterion_of: Callable[[Settings], str]  # from the file, or from the module where settings change its words
    short: str = ""  # the question in a few words, for a list
    shown: Mapping[str, Any] | None = None  # what a page shows of the result, `records.study.Shown`
    refuse: Callable[[Settings], None] = lambda settings: None  # raises for what `conclude` could not use
    # what to measure: model, text where the settings have several, and keys of the study's own
    measurements: Callable[[Settings], list[dict[str, Any]]] = lambda settings: []
    arms: Callable[[Any], Settings] = lambda arms: arms  # what the file says of the arms → the arms
    needed: Sequence[str] = ()  # arms that `conclude` compares by name
    toy: bool = True  # a smoke run says nothing about the claim
    timed: bool = False  # the claim is about speed, so the runs keep theirs

    @property
    def criterion(self) -> str:
        return self.criterion_of(self.scales["gpu"])

    @cached_property
    def scales(self) -> dict[str, Settings]:
        scales = {scale: resolved(scale_file(self.name)[scale]) for scale in SCALES}
        return {k: v | {"arms": self.arms(v["arms"])} if "arms" in v else v for k, v in scales.items()}

    def check(self, settings: Settings) -> None:
        """Refuse settings without the arms that are needed, with an invalid recipe, or from which the study could not
        conclude: the first thing that is wrong is named before anything runs."""
        arms = settings.get("arms") or {}
        missing = [arm for arm in self.needed if "arms" in settings and arm not in arms]
        if missing:
            raise ValueError(
                f"the study compares the arms {', '.join(map(repr, self.needed))}, and the settings lack "
                f"{', '.join(map(repr, missing))}: change arms one by one, like arms.NAME.loss.weight=0.2."
            )
        strange = [arm for arm in settings.get("once", ()) if arm not in arms]
        if strange:
            raise ValueError(f"once must name arms, got {', '.join(map(repr, strange))}: leave it at the default.")
        bare = [arm for arm in arms if not recipe_of(settings, arm, 0).snapshots.count]
        models = [what["model"] for what in self.measurements(settings)]
        if strange := [arm for arm in bare if arm not in models]:
            raise ValueError(
                "a study reports the geometry of every arm, so snapshots.count must be at least 1, got 0 in "
                f"{strange[0]!r}: leave it at the default."
            )
        strange = [model for model in settings.get("sizes", ()) if model not in models]
        if strange:
            raise ValueError(
                f"sizes must name models that the study measures, got {', '.join(strange)}: choose among "
                f"{', '.join(dict.fromkeys(models)) or 'none, so leave it out'}."
            )
        twice = [name for name, own in grouped((p.name, p) for p in self.plan(settings)).items() if len(own) > 1]
        if twice:
            raise ValueError(
                f"every run must have a folder of its own, got two of the name {twice[0]!r}: name a model once, and "
                "arms, models and texts so that they differ in more than signs."
            )
        self.refuse(settings)

    def plan(self, settings: Settings) -> list[Planned]:
        """Every run that the settings ask for: seed by seed, teachers before students, then the measurements."""
        plan = [
            Planned(trained_name(arm, seed), f"seed {seed}: {arm}", arm, seed)
            for number, seed in enumerate(settings.get("seeds", ()))
            for arm in teachers_first(settings)
            if not number or arm not in settings.get("once", ())
        ]
        for measurement in self.measurements(settings):
            config = {"text": settings.get("text"), **measurement, "windows": settings["windows"]}
            config |= {"tokens": settings["tokens"], "bootstrap": settings.get("bootstrap", 2000)}
            config |= settings.get("sizes", {}).get(measurement["model"], {})
            description = f"{measurement['model']} {measurement.get('revision', '')}".strip() + f" on {config['text']}"
            plan.append(Planned(measured_name(config), description, config=config))
        return plan


def settings_of(study: Study, scale: str, changes: Sequence[str] = (), seeds: Sequence[int] | None = None) -> Settings:
    """The settings of a scale, with "key.key=value" changes and other seeds put in."""
    check_choice("scale", scale, SCALES)
    default = {k: v for k, v in study.scales[scale].items() if k not in ("about", "cost")}
    settings, subject = copy.deepcopy(default), f"{study.name} at scale {scale}"
    if seeds is not None:
        if "seeds" not in settings:
            raise ValueError(f"{subject} trains nothing: leave --seeds out.")
        settings["seeds"] = list(seeds)
    for change in changes:
        put_change(settings, change, subject)
    check_form(settings, default, subject)
    return settings


def run(
    study: Study, scale: str, folder: Path, settings: Settings, *, pieces: Sequence[str] | None = None,
    data: str | None = None, bench: str | None = None, device: str | None = None, reuse: Sequence[Path] = (),
    timed: bool = True, say: Say = nobody, progress: Callable[..., None] = nobody,
) -> records.Study:  # fmt: skip
    """Make the runs that are missing, then compute the result from all runs and return it.

    pieces: numbers (from 1) or names of the runs to make, with * for any letters; default all.
    reuse: folders to search for equal runs, which are taken over.
    timed: False where other runs are made on the same device at the same time, so that speeds say nothing.
    progress: called with (done, in all, what is done, a note) inside a run; `say` with a sentence now and then.
    """
    study.check(settings)
    plan = study.plan(settings)
    chosen = select(study, plan, pieces)
    is_new = read_config(study, scale, folder) is None
    members = Members(plan, settings)
    done = {one.name: one for one in _runs(folder, members).values()}
    reusable = known_runs(reuse, members)
    shop = Workshop(folder, settings, data, bench, device, say, timed and study.timed, reusable, progress)
    missing = [planned for planned in chosen if planned.name not in done]
    for planned in chosen:
        if planned.name in done:
            record, differing = done[planned.name].record, ""
            if isinstance(record, Training):
                differing = unlike(members.recipes[str(planned.arm)], record.recipe)
            say(f"{planned.name}: already done" + (f", but with {differing}" if differing else ""))
    begun, reason = time.monotonic(), ""
    try:
        _write_config(study, scale, folder, settings)
        for made, planned in enumerate(missing, 1):
            make(planned, shop)
            if to_go := len(missing) - made:
                pace = (time.monotonic() - begun) / made
                say(f"  {several(to_go, 'run')} to go, about {duration(to_go * pace)}")
    except NotRun as error:
        reason = str(error)
        say(f"not run: {reason}")
    except BaseException:
        if is_new and not (folder / "runs").is_dir():
            (folder / "config.yaml").unlink(missing_ok=True)
        raise
    finally:
        if shop.aside:
            gc.unfreeze()
    for name in (*(planned.name for planned in chosen), *map(safe_name, settings.get("arms", ()))):
        shutil.rmtree(shop.work / name, ignore_errors=True)  # what a killed process had no time to remove
    clear_teachers(plan, shop)
    with contextlib.suppress(OSError):
        shop.work.rmdir()
    return conclude(study, scale, folder, reason=reason)


def select(study: Study, plan: list[Planned], wanted: Sequence[str] | None) -> list[Planned]:
    """The runs with these numbers (from 1) or names; None: all."""
    if wanted is None:
        return plan
    if not wanted:
        like = f", like {plan[0].name}" if plan else ""
        raise ValueError(f"--piece must name at least one run{like}, got none: leave it out for all.")
    chosen: list[Planned] = []
    for piece in wanted:
        matches = [p for number, p in enumerate(plan, 1) if piece == str(number) or fnmatch.fnmatchcase(p.name, piece)]
        if not matches:
            names = ", ".join(f"{number} ({p.name})" for number, p in enumerate(plan, 1))
            close = perhaps(piece, [p.name for p in plan])
            raise ValueError(f"the study {study.name!r} has no run {piece!r}, its runs are {names or 'none'}{close}")
        chosen += [planned for planned in matches if planned not in chosen]
    return chosen


def _runs(folder: Path, members: Members) -> dict[str, Run]:
    """Folder → finished run in DIR/runs; a run that does not belong is an error, as it would not count."""
    runs_by_folder = {}
    for found in members.among((path, path.name) for path in sorted((folder / "runs").glob("[!.]*"))):
        if found.member is None:
            raise ValueError(
                f"the run {found.name} in this folder does not belong to the study with its settings: {found.reason}; "
                "choose another folder with --out."
            )
        runs_by_folder[found.name] = found.member
    return runs_by_folder


def collect(study: Study, scale: str, folder: Path, sources: Sequence[Path], *, say: Say = nobody) -> None:
    """Copy the runs that belong from all folders below the sources into DIR/runs: all of them, or none where one is
    refused. A run that is found twice must have the same numbers."""
    configs = filter(None, [read_config(study, scale, place) for place in (folder, *sources)])
    settings = next(configs, None) or settings_of(study, scale)
    members = Members(study.plan(settings), settings)
    present = {member.name: member for member in _runs(folder, members).values()}
    fresh: dict[str, Run] = {}
    for source in sources:
        found_runs = list(members.among((path.parent, name) for path, name in find([source])))
        refusals = [f"{found.name}: {found.reason}" for found in found_runs if found.member is None]
        for found in found_runs:
            if (member := found.member) is None:
                continue
            if isinstance(member.record, Training):
                member = member._replace(record=in_small(member.record, found.folder, settings))
            earlier = present.get(member.name) or fresh.setdefault(member.name, member)
            if earlier.record.to_json() != member.record.to_json():
                raise ValueError(f"the run {member.name!r} is there twice with different numbers: keep one of them.")
        if len(refusals) == len(found_runs):
            raise ValueError(
                f"no run at {str(source)!r} belongs to {study.name} at scale {scale}: "
                f"{refusals[0] if refusals else 'there is no finished run'}."
            )
        if refusals:
            say(f"{len(refusals)} runs at {source} do not belong and are left out; {refusals[0]}")
    for member in fresh.values():
        save_run(member, folder / "runs")
    _write_config(study, scale, folder, settings)


def check_folder(folder: Path) -> None:
    """Refuse a folder that holds something other than a study, or files that are not of one."""
    if _config(folder) is None:
        records.check_folder(folder, "study")
        records.check_foreign(folder, "study")


def _config(folder: Path) -> Settings | None:
    file = folder / "config.yaml"
    try:
        content = from_yaml(file.read_text(encoding="utf-8")) if file.is_file() else None
    except (yaml.YAMLError, ValueError):
        raise ValueError(f"{str(file)!r} must be YAML: remove it to go on with the settings of the scale.") from None
    return content if isinstance(content, dict) and content.get("command") == "study" else None


def read_config(study: Study, scale: str, folder: Path) -> Settings | None:
    """The settings with which the study in a folder was begun; None where there is no study."""
    content = _config(folder)
    if content is None:
        return None
    if (content.get("study"), content.get("scale")) != (study.name, scale):
        raise ValueError(
            f"{str(folder)!r} belongs to the study {content.get('study')} at scale {content.get('scale')}, not "
            f"{study.name} at {scale}: choose another folder."
        )
    return {key: value for key, value in content.items() if key not in ("command", "study", "scale")}


def _write_config(study: Study, scale: str, folder: Path, settings: Mapping[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    content = {"command": "study", "study": study.name, "scale": scale, **settings}
    write_text(folder / "config.yaml", to_yaml(content))


def conclude(study: Study, scale: str, folder: Path, *, reason: str = "", say: Say = nobody) -> records.Study:
    """Compute the result from the runs in `folder`, write it and return it, and say which are missing. Runs nothing."""
    settings = read_config(study, scale, folder) or settings_of(study, scale)
    plan = study.plan(settings)
    members = Members(plan, settings)
    runs_by_folder = _runs(folder, members)
    finished_names = {one.name for one in runs_by_folder.values()}
    if missing := [planned.name for planned in plan if planned.name not in finished_names]:
        first = first_few(missing, NAMED)
        say(f"{len(missing)} of {several(len(plan), 'run')} are missing; without --merge they are made: {first}")
    named = [one._replace(name=name) for name, one in runs_by_folder.items()]
    runs = Runs(named, list(settings.get("arms", ())), members.configs)
    used = settings | ({"seeds": runs.seeds} if runs.seeds else {})
    if runs_by_folder or not plan:
        conclusion = study.conclude(runs, used)
    else:
        conclusion = Conclusion(UNDECIDED, "not run", "not run" + (f": {reason}" if reason else "."), [], [], {})
    figures = ({} if conclusion.draw is None else {"figure.png": conclusion.draw}) | conclusion.more
    toy = TOY if study.toy and scale == "smoke" and runs_by_folder else ""
    no_runs = [f"{platform.machine()} CPU"] if not plan else ["none"]
    record = records.Study(
        schema=records.Study.reads[0], study=study.name, claim=study.claim, question=study.question,
        criterion=study.criterion_of(used), scale=scale, verdict=conclusion.verdict,
        headline=conclusion.headline + toy, sentence=f"{conclusion.verdict}: {conclusion.sentence}{toy}",
        command=command_of(study.name, scale, settings_of(study, scale), used),
        hardware="; ".join(sorted({one.record.hardware for one in runs_by_folder.values()}) or no_runs),
        table=records.Table(columns=conclusion.columns, rows=round_to(conclusion.rows, whole=False)),
        figures=list(figures), config=used, runs=sorted(runs_by_folder),
        estimate=round_to(conclusion.estimate, whole=False),
        versions=_versions(runs_by_folder.values()) if plan else versions("decondense", "numpy", "scipy"),
        shown=study.shown,
    )  # fmt: skip
    # keep the seeds that were asked for, or the next merge would not report one without any run as missing
    seeds = list(dict.fromkeys([*settings.get("seeds", ()), *runs.seeds]))
    # first, since it tells a study that was interrupted here from files of somebody else's
    _write_config(study, scale, folder, settings | ({"seeds": seeds} if seeds else {}))
    for name, draw in figures.items():
        draw(folder / name)
    write_csv(folder / "table.csv", [dict(zip(conclusion.columns, row)) for row in record.table.rows])
    record.save(folder / "result.json")
    return record


def _versions(runs: Iterable[Run]) -> dict[str, str]:
    """Package → its versions in all runs, separated by commas where they differ."""
    pairs = (entry for one in runs for entry in one.record.versions.items())
    by_package = grouped((name, version) for name, versions in pairs for version in versions.split(", "))
    return {name: ", ".join(sorted(set(by_package[name]))) for name in sorted(by_package)}
