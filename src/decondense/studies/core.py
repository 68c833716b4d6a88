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
from ..words import duration, nobody, perhaps, round_to, several
from .arms import recipe_of, teachers_first
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
        self.refuse(settings)

    def plan(self, settings: Settings) -> list[Planned]:
        """Every run that the settings ask for: seed by seed, teachers before students, then the measurements."""
        plan = [
            Planned(trained_name(arm, seed), f"seed {seed}: {arm}", arm, seed)
            for number, seed in enumerate(settings.get("seeds", ()))
            for arm in teachers_first(settings)
            if not number or arm not in settings.get("once", ())
        ]
        for what in self.measurements(settings):
            config = {"text": settings.get("text"), **what, "windows": settings["windows"]}
            config |= {"tokens": settings["tokens"], "bootstrap": settings.get("bootstrap", 2000)}
            config |= settings.get("sizes", {}).get(what["model"], {})
            words = f"{what['model']} {what.get('revision', '')}".strip() + f" on {config['text']}"
            plan.append(Planned(measured_name(config), words, config=config))
        return plan


def settings_of(study: Study, scale: str, changes: Sequence[str] = (), seeds: Sequence[int] | None = None) -> Settings:
    """The settings of a scale, with "key.key=value" changes and other seeds put in."""
    check_choice("scale", scale, SCALES)
    default = {k: v for k, v in study.scales[scale].items() if k not in ("about", "cost")}
    settings, where = copy.deepcopy(default), f"{study.name} at scale {scale}"
    if seeds is not None:
        if "seeds" not in settings:
            raise ValueError(f"{where} trains nothing: leave --seeds out.")
        settings["seeds"] = list(seeds)
    for change in changes:
        put_change(settings, change, where)
    check_form(settings, default, where)
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
    fresh = read_config(study, scale, folder) is None
    members = Members(plan, settings)
    done = {one.name for one in _runs(folder, members).values()}
    known = known_runs(reuse, members)
    shop = Workshop(folder, settings, data, bench, device, say, timed and study.timed, known, progress)
    missing = [planned for planned in chosen if planned.name not in done]
    for planned in chosen:
        if planned.name in done:
            say(f"{planned.name}: already done")
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
        if fresh and not (folder / "runs").is_dir():
            (folder / "config.yaml").unlink(missing_ok=True)
        raise
    finally:
        if shop.aside:
            gc.unfreeze()
    left = [*(planned.name for planned in chosen), *map(safe_name, settings.get("arms", ()))]
    for path in [path for name in left for path in shop.work.glob(name)]:
        shutil.rmtree(path, ignore_errors=True)  # what a killed process had no time to remove
    clear_teachers(plan, shop)
    with contextlib.suppress(OSError):
        shop.work.rmdir()
    return conclude(study, scale, folder, settings=settings, reason=reason)


def select(study: Study, plan: list[Planned], wanted: Sequence[str] | None) -> list[Planned]:
    """The runs with these numbers (from 1) or names; None: all."""
    if wanted is None:
        return plan
    if not wanted:
        like = f", like {plan[0].name}" if plan else ""
        raise ValueError(f"--piece must name at least one run{like}, got none: leave it out for all.")
    chosen: list[Planned] = []
    for one in wanted:
        same = [p for number, p in enumerate(plan, 1) if one == str(number) or fnmatch.fnmatchcase(p.name, one)]
        if not same:
            names = ", ".join(f"{number} ({p.name})" for number, p in enumerate(plan, 1))
            close = perhaps(one, [p.name for p in plan])
            raise ValueError(f"the study {study.name!r} has no run {one!r}, its runs are {names or 'none'}{close}")
        chosen += [planned for planned in same if planned not in chosen]
    return chosen


def _runs(folder: Path, members: Members) -> dict[str, Run]:
    """Folder → finished run in DIR/runs; a run that does not belong is an error, as it would not count."""
    taken = {}
    for found in members.among((path, path.name) for path in sorted((folder / "runs").glob("[!.]*"))):
        if found.member is None:
            raise ValueError(
                f"the run {found.name} in this folder does not belong to the study with its settings: {found.reason}; "
                "choose another folder with --out."
            )
        taken[found.name] = found.member
    return taken


def collect(study: Study, scale: str, folder: Path, sources: Sequence[Path], *, say: Say = nobody) -> None:
    """Copy the runs that belong from all folders below the sources into DIR/runs: all of them, or none where one is
    refused. A run that is found twice must have the same numbers."""
    configs = [read_config(study, scale, place) for place in (folder, *sources) if place is folder or place.is_dir()]
    settings = next((found for found in configs if found is not None), None) or settings_of(study, scale)
    members = Members(study.plan(settings), settings)
    present = {one.name: one for one in _runs(folder, members).values()}
    fresh: dict[str, Run] = {}
    for source in sources:
        there = list(members.among((path.parent, name) for path, name in find([source])))
        others = [f"{found.name}: {found.reason}" for found in there if found.member is None]
        for found in there:
            if (one := found.member) is None:
                continue
            if isinstance(one.record, Training):
                one = one._replace(record=in_small(one.record, found.folder, settings))
            known = present.get(one.name) or fresh.setdefault(one.name, one)
            if known.record.to_json() != one.record.to_json():
                raise ValueError(f"the run {one.name!r} is there twice with different numbers: keep one of them.")
        if len(others) == len(there):
            raise ValueError(
                f"no run at {str(source)!r} belongs to {study.name} at scale {scale}: "
                f"{others[0] if others else 'there is no finished run'}."
            )
        if others:
            say(f"{len(others)} runs at {source} do not belong and are left out; {others[0]}")
    for one in fresh.values():
        save_run(one, folder / "runs")
    _write_config(study, scale, folder, settings)


def check_folder(folder: Path) -> None:
    """Refuse a folder that holds something other than a study."""
    if _config(folder) is None:
        records.check_folder(folder, "study")


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


def conclude(
    study: Study, scale: str, folder: Path, *, settings: Settings | None = None, reason: str = "", say: Say = nobody
) -> records.Study:
    """Compute the result from the runs in `folder`, write it and return it, and say which are missing. Runs nothing."""
    settings = settings or read_config(study, scale, folder) or settings_of(study, scale)
    plan = study.plan(settings)
    members = Members(plan, settings)
    taken = _runs(folder, members)
    there = {one.name for one in taken.values()}
    if missing := [planned.name for planned in plan if planned.name not in there]:
        first = ", ".join(missing[:NAMED]) + (f" and {len(missing) - NAMED} more" if len(missing) > NAMED else "")
        say(f"{len(missing)} of {several(len(plan), 'run')} are missing; without --merge they are made: {first}")
    named = [one._replace(name=name) for name, one in taken.items()]
    runs = Runs(named, list(settings.get("arms", ())), members.configs)
    used = settings | ({"seeds": runs.seeds} if runs.seeds else {})
    if taken or not plan:
        end = study.conclude(runs, used)
    else:
        end = Conclusion(UNDECIDED, "not run", "not run" + (f": {reason}" if reason else "."), [], [], {})
    figures = ({} if end.draw is None else {"figure.png": end.draw}) | end.more
    toy = TOY if study.toy and scale == "smoke" and taken else ""
    here = [f"{platform.machine()} CPU"] if not plan else ["none"]
    record = records.Study(
        schema=records.Study.reads[0], study=study.name, claim=study.claim, question=study.question,
        criterion=study.criterion_of(used), scale=scale, verdict=end.verdict, headline=end.headline + toy,
        sentence=f"{end.verdict}: {end.sentence}{toy}",
        command=command_of(study.name, scale, settings_of(study, scale), used),
        hardware="; ".join(sorted({one.record.hardware for one in taken.values()}) or here),
        table=records.Table(columns=end.columns, rows=round_to(end.rows, whole=False)),
        figures=list(figures), config=used, runs=sorted(taken),
        estimate=round_to(end.estimate, whole=False),
        versions=_versions(taken.values()) if plan else versions("decondense", "numpy", "scipy"),
    )  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in figures.items():
        draw(folder / name)
    write_csv(folder / "table.csv", [dict(zip(end.columns, row)) for row in record.table.rows])
    # keep the seeds that were asked for, or the next merge would not report one without any run as missing
    asked = list(dict.fromkeys([*settings.get("seeds", ()), *runs.seeds]))
    _write_config(study, scale, folder, settings | ({"seeds": asked} if asked else {}))
    record.save(folder / "result.json")
    return record


def _versions(runs: Iterable[Run]) -> dict[str, str]:
    """Package → its versions in all runs, separated by commas where they differ."""
    several = (entry for one in runs for entry in one.record.versions.items())
    known = grouped((name, version) for name, versions in several for version in versions.split(", "))
    return {name: ", ".join(sorted(set(known[name]))) for name in sorted(known)}
