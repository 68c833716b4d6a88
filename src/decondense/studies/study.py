"""What all studies share: settings, pieces, running them one by one, and the result computed from their files.

A study is a list of *pieces*, each of which can run on another machine. A piece ends in one file,
DIR/pieces/NAME.json, that holds numbers and no weights. The result is computed from the piece files and from nothing
else, so it has the same bytes whoever ran which piece, in which order, and copied the files from where.

DIR/pieces/NAME.json   what a piece measured
DIR/result.json        verdict, sentence, table, intervals, settings
DIR/config.yaml, table.csv, figure.png
DIR/.work/             while a piece runs: its training runs; removed when it is done
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .checking import are_seeds, check_form

__all__ = [
    "PIECE_SCHEMA",
    "SCALES",
    "Conclusion",
    "NotRun",
    "Piece",
    "Settings",
    "Study",
    "Workshop",
    "compact",
    "comparable",
    "flat",
    "joined_versions",
    "read_piece",
    "rounded",
    "safe_name",
    "same_settings",
    "settings_of",
]

PIECE_SCHEMA = "decondense.study.piece/1"
SCALES = ("smoke", "gpu", "paper")
Settings = dict[str, Any]


class NotRun(Exception):
    """What a study needs is not here; its verdict is "undecided: not run" with this reason."""


@dataclass(frozen=True)
class Piece:
    """`what` says what to run, in the study's own terms, with "seed" where something is trained; `words` says it."""

    name: str
    words: str
    what: dict[str, Any]


@dataclass(frozen=True)
class Conclusion:
    verdict: str
    sentence: str  # without the verdict in front
    columns: list[str]
    rows: list[list[Any]]
    estimate: dict[str, Any]
    draw: Callable[[Path], object] | None = None  # writes the figure


@dataclass
class Workshop:
    """What a piece has at hand: a folder that is removed afterwards, where data lies, and whom to tell."""

    folder: Path
    data: str | None = None  # folder of named texts
    bench: str | None = None  # folder of benchmark files
    device: str | None = None
    say: Callable[[str], None] = field(default=lambda sentence: None)
    timed: bool = True  # False: other pieces share the device, so times mean nothing
    known: Mapping[str, Any] = field(default_factory=dict)  # runs of other studies, see `reuse`


@dataclass(frozen=True)
class Study:
    """One claim. `scales` are settings and nothing else; "about" and "cost" in them are for people."""

    name: str
    claim: str
    question: str
    criterion: str
    scales: Mapping[str, Settings]
    plan: Callable[[Settings], list[Piece]]
    work: Callable[[Piece, Settings, Workshop], dict[str, Any]]
    conclude: Callable[[list[dict[str, Any]], Settings], Conclusion]
    check: Callable[[Settings], object] | None = None  # of settings, before anything runs
    toy: bool = True  # a smoke run says nothing about the claim
    # the criterion where settings change what it says; `criterion` is what it says at full scale
    criterion_of: Callable[[Settings], str] | None = None


# ---- settings ----------------------------------------------------------------------------------------------------


def settings_of(study: Study, scale: str, changes: Sequence[str] = (), seeds: Sequence[int] | None = None) -> Settings:
    """The settings of a scale, with "key.key=value" changes and other seeds put in."""
    if scale not in SCALES:
        raise ValueError(f"scale must be one of {', '.join(SCALES)}, got {scale!r}.")
    default = {k: v for k, v in study.scales[scale].items() if k not in ("about", "cost")}
    default = json.loads(json.dumps(default))
    settings = json.loads(json.dumps(default))
    where = f"{study.name} at scale {scale}"
    if seeds is not None:
        if "seeds" not in settings:
            raise ValueError(f"the study {study.name!r} trains nothing at scale {scale}: leave --seeds out.")
        if not are_seeds(list(seeds)):
            given = ", ".join(map(str, seeds)) or "none"
            raise ValueError(f"--seeds must be different whole numbers from 0 on, like 1,2,3, got {given}.")
        settings["seeds"] = list(seeds)
    for change in changes:
        _put(settings, change, where)
    check_form(settings, default, where)
    return settings


def _put(settings: Settings, change: str, where: str) -> None:
    """ "a.b=value" into the settings, the value read as YAML. The order of what is there stays: arms have one."""
    key, separator, value = change.partition("=")
    key = key.strip()
    path = _path(settings, key)
    if not separator or not all(path):
        raise ValueError(f"a setting must be key=value, e.g. base.data.tokens=5M, got {change!r}.")
    known = dict.fromkeys([*settings, *(["arms_per_piece"] if "arms" in settings else [])])
    if path[0] not in known:
        close = difflib.get_close_matches(path[0], known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}."
        raise ValueError(f"{key!r} is no setting of {where}: {hint}")
    here = settings
    for part in path[:-1]:
        if here.get(part) is None:
            here[part] = {}
        here = here[part]
        if not isinstance(here, dict):
            raise ValueError(f"setting {key!r} goes into {part!r}, which is a value and not a section.")
    here[path[-1]] = _value(value, change)


def _path(settings: Settings, key: str) -> list[str]:
    """The keys in "a.b.c". Names of arms have dots in them, so the longest key that is there is taken first."""
    parts: list[str] = []
    here: Any = settings
    rest: str | None = key
    while rest is not None:
        known = [k for k in here if rest == k or rest.startswith(f"{k}.")] if isinstance(here, dict) else []
        part = max(known, key=len, default=rest.partition(".")[0])
        parts.append(part)
        rest = rest[len(part) + 1 :] if len(rest) > len(part) else None
        here = here.get(part) if isinstance(here, dict) else None
    return parts


def _value(text: str, change: str) -> Any:
    """JSON, as the command in a result has it, else YAML, which takes 1e-5 for a word. What JSON cannot hold could not
    be written beside the result."""
    import yaml

    try:
        found = json.loads(text)
    except ValueError:
        try:
            found = yaml.safe_load(text)
        except yaml.YAMLError:
            raise ValueError(f"the value of setting {change!r} must be YAML: quote it.") from None
    try:
        return json.loads(json.dumps(found, allow_nan=False))
    except (TypeError, ValueError):
        raise ValueError(
            f"the value of setting {change!r} must be text, a finite number, true, false, null, a list or a section: "
            "quote it to make it text."
        ) from None


def flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(tree, dict) or not tree:
        return {prefix.rstrip("."): tree}
    return {k: v for key, value in tree.items() for k, v in flat(value, f"{prefix}{key}.").items()}


def comparable(settings: Settings) -> Settings:
    """Settings without the seeds and the cut into pieces: pieces of other seeds, or of fewer arms, belong together."""
    return {k: v for k, v in settings.items() if k not in ("seeds", "arms_per_piece")}


def same_settings(before: Settings, now: Settings, name: str) -> None:
    before, now = flat(comparable(before)), flat(comparable(now))
    for key in sorted(before.keys() | now.keys()):
        if before.get(key) != now.get(key):
            raise ValueError(
                f"pieces must be run with the same settings, but {key} is {before.get(key)!r} in {name} and "
                f"{now.get(key)!r} here: choose another folder with --out."
            )


# ---- files -------------------------------------------------------------------------------------------------------


def read_piece(file: Path) -> dict[str, Any]:
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError):
        raise ValueError(f"the piece file {str(file)!r} is not JSON: delete it and run the piece again.") from None
    if not isinstance(record, dict) or record.get("schema") != PIECE_SCHEMA:
        raise ValueError(f"{str(file)!r} must be a piece with the schema {PIECE_SCHEMA!r}: take it out of the folder.")
    lacking = [key for key in ("study", "scale", "piece", "settings", "what") if key not in record]
    if lacking:
        raise ValueError(f"the piece file {str(file)!r} lacks {', '.join(lacking)}: delete it and run the piece again.")
    return record


def joined_versions(versions: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Package → its versions, of all runs; several where they differ."""
    found: dict[str, set[str]] = {}
    for one in versions:
        for name, version in one.items():
            found.setdefault(name, set()).update(version.split(", "))
    return {name: ", ".join(sorted(found[name])) for name in sorted(found)}


def rounded(value: Any, digits: int = 6) -> Any:
    """Floats with so many significant digits, NaN and infinity as None: small files, and valid JSON."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {k: rounded(v, digits) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(v, digits) for v in value]
    return value


def compact(record: dict[str, Any]) -> str:
    """One key per line at the top, the rest as short as JSON allows."""
    lines = [
        f"{json.dumps(k)}: {json.dumps(v, ensure_ascii=False, separators=(',', ':'), allow_nan=False)}"
        for k, v in record.items()
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def safe_name(text: str) -> str:
    """A name for a file: letters, digits, dots, plus and minus."""
    for letter, word in (("λ", "lambda"), ("τ", "tau"), ("−", "-")):
        text = text.replace(letter, word)
    return re.sub(r"[^A-Za-z0-9.+-]+", "-", text).strip(".-") or "piece"
