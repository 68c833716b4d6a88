"""A study: recipes, measurements, and a conclusion from their runs.

DIR/runs/NAME/        a run each (see `runs`): training or measurement, no weights
DIR/result.json       verdict, sentence, table, intervals, settings
DIR/config.yaml, table.csv, figure.png
DIR/.work/            while a run is being made; an interrupted one is resumed from here

The result is computed from the runs and from nothing else, so it has the same bytes whoever made which run, in which
order, and copied it from where. Merging is copying run folders; a run counts where its recipe is that of an arm.
"""

from __future__ import annotations

import contextlib
import fnmatch
import gc
import platform
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from .. import records
from ..files import safe_name, versions, write_csv, write_text
from ..records import Training, find
from ..stats.verdicts import UNDECIDED
from ..words import round_to
from .arms import TEACHER
from .arms import check as check_arms
from .runs import Members, Planned, Run, Runs, measured_name, plain, read_run, trained_name
from .settings import SCALES, Settings, command_of, read_scales, settings_from
from .work import NotRun, Workshop, in_small, known_runs, make, save_run

__all__ = ["Conclusion", "Study", "collect", "conclude", "run", "select", "settings_of"]

TOY = " (Smoke scale: it checks the code, not the claim.)"


@dataclass
class Conclusion:
    """`estimate` may have decisions and intervals in it, which become sections."""

    verdict: str
    sentence: str  # without the verdict in front
    columns: list[str]
    rows: list[list[Any]]
    estimate: dict[str, Any]
    draw: Callable[[Path], object] | None = None  # writes the figure

    def __post_init__(self) -> None:
        self.estimate = plain(self.estimate)


@dataclass(frozen=True)
class Study:
    """One claim. Its scales are in scales/NAME.yaml; every arm is trained with every seed of the settings."""

    name: str
    claim: str
    question: str
    criterion: str
    conclude: Callable[[Runs, Settings], Conclusion]
    check: Callable[[Settings], object] = check_arms  # of settings, before anything runs
    # what is measured: model, text and, where the settings have several, their own names for it
    measurements: Callable[[Settings], list[dict[str, Any]]] = lambda settings: []
    arms: Callable[[Any], Settings] = lambda arms: arms  # what the file says of the arms → the arms
    criterion_of: Callable[[Settings], str] | None = None  # where settings change what the criterion says
    toy: bool = True  # a smoke run says nothing about the claim
    timed: bool = False  # the claim is about speed, so the runs keep theirs

    @cached_property
    def scales(self) -> dict[str, Settings]:
        scales = read_scales(self.name)
        return {k: v | {"arms": self.arms(v["arms"])} if "arms" in v else v for k, v in scales.items()}

    def plan(self, settings: Settings) -> list[Planned]:
        """Every run that the settings ask for: seed by seed, and then what is measured."""
        plan = [
            Planned(trained_name(arm, seed), f"seed {seed}: {arm}", arm, seed)
            for seed in settings.get("seeds", ())
            for arm in settings.get("arms", ())
        ]
        for what in self.measurements(settings):
            config = {"text": settings.get("text"), **what, "windows": settings["windows"]}
            config |= {"tokens": settings["tokens"], "bootstrap": settings.get("bootstrap", 2000)}
            words = f"{what['model']} {what.get('revision', '')}".strip() + f" on {config['text']}"
            plan.append(Planned(measured_name(config), words, config=config))
        return plan


def settings_of(study: Study, scale: str, changes: Sequence[str] = (), seeds: Sequence[int] | None = None) -> Settings:
    """The settings of a scale, with "key.key=value" changes and other seeds put in."""
    if scale not in SCALES:
        raise ValueError(f"scale must be one of {', '.join(SCALES)}, got {scale!r}.")
    default = {k: v for k, v in study.scales[scale].items() if k not in ("about", "cost")}
    return settings_from(default, f"{study.name} at scale {scale}", changes, seeds)


# ---- running -----------------------------------------------------------------------------------------------------


def run(
    study: Study,
    scale: str,
    folder: Path,
    settings: Settings,
    *,
    pieces: Sequence[str] | None = None,
    data: str | None = None,
    bench: str | None = None,
    device: str | None = None,
    reuse: Sequence[Path] = (),
    timed: bool = True,
    say: Callable[[str], None] = lambda sentence: None,
) -> records.Study:
    """Make the runs that are not there yet, then compute the result from all that are; returns it.

    pieces: numbers (from 1) or names of the runs to make, with * for any letters; default all.
    reuse: folders below which equal runs may lie, which are taken over.
    timed: False where other runs are made on the same device at the same time: their speed says nothing.
    """
    study.check(settings)
    plan = study.plan(settings)
    chosen = select(study, plan, pieces)
    config = read_config(study, scale, folder)
    members = Members(plan, settings)
    done = {one.name for one in _runs(folder, members).values()}
    shop = Workshop(folder, settings, data, bench, device, say, timed and study.timed, known_runs(reuse, members))
    reason = ""
    try:
        _write_config(study, scale, folder, settings)
        for planned in chosen:
            if planned.name in done:
                say(f"{planned.name}: done before")
                continue
            make(planned, shop)
    except NotRun as error:
        reason = str(error)
        say(f"not run: {reason}")
    except BaseException:
        if config is None and not (folder / "runs").is_dir():
            (folder / "config.yaml").unlink(missing_ok=True)
        raise
    finally:
        gc.unfreeze()  # what the trainings have set aside
    for used in [planned.name for planned in chosen] + [safe_name(arm) for arm in settings.get("arms", ())]:
        shutil.rmtree(shop.work / used, ignore_errors=True)  # what a killed process had no time to remove
    for teacher in shop.work.glob(f"{TEACHER}-seed-*"):
        shutil.rmtree(teacher, ignore_errors=True)
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
            raise ValueError(f"the study {study.name!r} has no run {one!r}: its runs are {names or 'none'}.")
        chosen += [planned for planned in same if planned not in chosen]
    return chosen


def _runs(folder: Path, members: Members) -> dict[str, Run]:
    """Folder → finished run in DIR/runs; one that does not belong is an error, as it would not be counted."""
    taken = {}
    for path in sorted((folder / "runs").glob("[!.]*")):
        one = read_run(path)
        if one is None:
            continue
        member, reason = members.take(one)
        if member is None:
            raise ValueError(
                f"the run {path.name} in this folder is not of this study with these settings: {reason}; choose "
                "another folder with --out."
            )
        taken[path.name] = member
    return taken


# ---- merging -----------------------------------------------------------------------------------------------------


def collect(
    study: Study,
    scale: str,
    folder: Path,
    sources: Sequence[Path],
    *,
    say: Callable[[str], None] = lambda sentence: None,
) -> None:
    """Copy the runs that belong, of all folders below the sources, into DIR/runs: all or, where one cannot be, none.
    A run that is there twice must have the same numbers."""
    configs = [read_config(study, scale, place) for place in (folder, *sources) if place is folder or place.is_dir()]
    settings = next((found for found in configs if found is not None), None) or settings_of(study, scale)
    members = Members(study.plan(settings), settings)
    present = {one.name: one for one in _runs(folder, members).values()}
    fresh: dict[str, Run] = {}
    for source in sources:
        belonging, others = 0, []
        for path, name in find([source]):
            one = read_run(path.parent)
            if one is None:
                continue
            member, reason = members.take(one)
            if member is None:
                others.append(f"{name}: {reason}")
                continue
            if isinstance(member.record, Training):
                small = in_small(member.record, path.parent, heatmaps=settings.get("heatmaps", "none"))
                member = member._replace(record=small)
            belonging += 1
            known = present.get(member.name) or fresh.setdefault(member.name, member)
            if known.record.to_json() != member.record.to_json():
                raise ValueError(f"the run {member.name!r} is there twice with different numbers: keep one of them.")
        if not belonging:
            raise ValueError(
                f"no run at {str(source)!r} belongs to {study.name} at scale {scale}: "
                f"{others[0] if others else 'there is none that is finished'}."
            )
        if others:
            say(f"{len(others)} runs at {source} do not belong and are left out; {others[0]}")
    for one in fresh.values():
        save_run(one, folder / "runs")
    _write_config(study, scale, folder, settings)


def read_config(study: Study, scale: str, folder: Path) -> Settings | None:
    """The settings with which a study was begun in a folder; None where none was."""
    file = folder / "config.yaml"
    if not file.is_file():
        return None
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    if not isinstance(content, dict) or content.get("command") != "study":
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
    write_text(folder / "config.yaml", yaml.safe_dump(content, sort_keys=False, allow_unicode=True))


# ---- the result --------------------------------------------------------------------------------------------------


def conclude(
    study: Study, scale: str, folder: Path, *, settings: Settings | None = None, reason: str = ""
) -> records.Study:
    """Compute the result from the runs in `folder`, write it and return it. Runs nothing."""
    settings = settings or read_config(study, scale, folder) or settings_of(study, scale)
    plan = study.plan(settings)
    taken = _runs(folder, Members(plan, settings))
    runs = Runs(
        [one._replace(name=name) for name, one in taken.items()],
        list(settings.get("arms", ())),
        [p.config for p in plan if p.config is not None],
    )
    used = settings | ({"seeds": runs.seeds} if runs.seeds else {})
    if taken or not plan:
        end = study.conclude(runs, used)
    else:
        end = Conclusion(UNDECIDED, "not run" + (f": {reason}" if reason else "."), [], [], {})
    toy = TOY if study.toy and scale == "smoke" and taken else ""
    here = [f"{platform.machine()} CPU"] if not plan else ["none"]
    record = records.Study(
        schema=records.Study.reads[0],
        study=study.name,
        claim=study.claim,
        question=study.question,
        criterion=study.criterion if study.criterion_of is None else study.criterion_of(used),
        scale=scale,
        verdict=end.verdict,
        sentence=f"{end.verdict}: {end.sentence}{toy}",
        command=command_of(study.name, scale, settings_of(study, scale), used),
        hardware="; ".join(sorted({one.record.hardware for one in taken.values()}) or here),
        table=records.Table(columns=end.columns, rows=round_to(end.rows, whole=False)),
        figures=["figure.png"] if end.draw is not None else [],
        config=used,
        runs=sorted(taken),
        estimate=round_to(end.estimate, whole=False),
        versions=_versions(list(taken.values())) if plan else versions("decondense", "numpy", "scipy"),
    )
    folder.mkdir(parents=True, exist_ok=True)
    if end.draw is not None:
        end.draw(folder / "figure.png")
    write_csv(folder / "table.csv", [dict(zip(end.columns, row)) for row in record.table.rows])
    _write_config(study, scale, folder, used)
    record.save(folder / "result.json")
    return record


def _versions(runs: Sequence[Run]) -> dict[str, str]:
    """Package → its versions, of all runs; several where they differ."""
    known: dict[str, set[str]] = {}
    for one in runs:
        for name, version in one.record.versions.items():
            known.setdefault(name, set()).update(version.split(", "))
    return {name: ", ".join(sorted(known[name])) for name in sorted(known)}
