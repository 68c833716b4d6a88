"""Running the pieces of a study: what is finished is skipped, what is interrupted goes on, weights never stay."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import importlib.metadata
import platform
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from .merging import merge
from .reuse import known_runs
from .study import (
    PIECE_SCHEMA,
    NotRun,
    Piece,
    Settings,
    Study,
    Workshop,
    compact,
    comparable,
    read_piece,
    same_settings,
)

__all__ = ["run", "select"]


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
) -> dict[str, Any]:
    """Run what is not yet there, then compute the result from all piece files; returns the content of result.json.

    pieces: numbers (from 1) or names of the pieces to run; default all.
    reuse: folders of other studies, whose runs are taken over where recipe and seed are the same.
    timed: False where other pieces run on the same device at the same time: tokens per second are not kept.
    """
    if study.check is not None:
        study.check(settings)
    chosen = select(study, study.plan(settings), pieces)
    for file in sorted((folder / "pieces").glob("*.json")):
        _check_finished(file, study, scale, settings)
    shop = Workshop(folder, data, bench, device, say, timed, known_runs(reuse))
    reason = ""
    for piece in chosen:
        target = folder / "pieces" / f"{piece.name}.json"
        if target.exists():
            say(f"{piece.name}: done before")
            continue
        try:
            _run_piece(study, scale, settings, piece, target, shop)
        except NotRun as error:
            reason = str(error)
            say(f"{piece.name}: not run: {reason}")
            break
    return merge(study, scale, folder, settings=settings, reason=reason)


def select(study: Study, plan: list[Piece], wanted: Sequence[str] | None) -> list[Piece]:
    """The pieces with these numbers (from 1) or names; None: all."""
    if wanted is None:
        return plan
    if not wanted:
        raise ValueError(f"--piece must name at least one piece, like {plan[0].name}, got none: leave it out for all.")
    chosen = []
    for one in wanted:
        found = [p for number, p in enumerate(plan, 1) if one in (str(number), p.name)]
        if not found:
            names = ", ".join(f"{number} ({p.name})" for number, p in enumerate(plan, 1))
            raise ValueError(f"the study {study.name!r} has no piece {one!r}: its pieces are {names}.")
        chosen += [p for p in found if p not in chosen]
    return chosen


def _run_piece(study: Study, scale: str, settings: Settings, piece: Piece, target: Path, shop: Workshop) -> None:
    from ..files import write_text

    work = shop.folder / ".work"
    with _owned(work, piece.name):
        begun = time.monotonic()
        shop.say(f"{piece.name}: {piece.words}")
        inside = dataclasses.replace(shop, folder=work / piece.name)
        inside.folder.mkdir(parents=True, exist_ok=True)
        try:
            content = study.work(piece, settings, inside)
        finally:
            # A piece that was stopped keeps its finished arms (small files); weights never stay.
            for part in inside.folder.iterdir():
                if part.is_dir():
                    shutil.rmtree(part, ignore_errors=True)
            with contextlib.suppress(OSError):
                inside.folder.rmdir()
        record = {
            "schema": PIECE_SCHEMA,
            "study": study.name,
            "scale": scale,
            "piece": piece.name,
            "settings": comparable(settings),
            "what": piece.what,
            **content,
        }
        record.setdefault("hardware", f"{platform.machine()} CPU")
        record["versions"] = _versions() | record.get("versions", {})
        record["seconds"] = round(time.monotonic() - begun, 1) if shop.timed else None
        target.parent.mkdir(parents=True, exist_ok=True)
        write_text(target, compact(record))
        shutil.rmtree(inside.folder, ignore_errors=True)


@contextlib.contextmanager
def _owned(work: Path, name: str) -> Iterator[None]:
    """One process per piece. The system drops the lock when the process ends, however it ends."""
    work.mkdir(parents=True, exist_ok=True)
    lock = work / f"{name}.lock"
    with lock.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ValueError(
                f"the piece {name!r} is being run by another process: choose another with --piece, or wait for it."
            ) from None
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                work.rmdir()


def _check_finished(file: Path, study: Study, scale: str, settings: Settings) -> None:
    """A finished piece is taken as it is, so it must be of the same study, scale and settings."""
    record = read_piece(file)
    if (record["study"], record["scale"]) != (study.name, scale):
        raise ValueError(
            f"{file.name} in this folder belongs to the study {record['study']} at scale {record['scale']}: choose "
            "another folder with --out."
        )
    same_settings(record["settings"], settings, file.name)


def _versions() -> dict[str, str]:
    found = {}
    for name in ("decondense", "numpy", "scipy"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found
