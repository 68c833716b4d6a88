"""The result of a study, computed from its piece files and from nothing else."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from ..stats.verdicts import UNDECIDED
from .study import (
    Conclusion,
    Settings,
    Study,
    comparable,
    joined_versions,
    read_piece,
    rounded,
    same_settings,
    settings_of,
)
from .training import Runs

__all__ = ["collect", "merge"]

SCHEMA = "decondense.study/1"
TOY = " (Smoke scale: it checks the code, not the claim.)"


def collect(study: Study, scale: str, folder: Path, sources: Sequence[Path]) -> None:
    """Copy piece files from other folders (or single files) into `folder`, all or, where one does not belong, none.
    One piece twice must be the same bytes."""
    from ..files import write_text

    found: dict[str, bytes] = {}
    pieces: list[dict[str, Any]] = []
    fresh: dict[str, bytes] = {}
    for source in [folder, *sources]:
        files = [source] if source.is_file() else sorted((source / "pieces").glob("*.json"))
        if not files and source is not folder:
            raise FileNotFoundError(f"no piece files at {str(source)!r}: give folders that `decondense study` wrote.")
        for file in files:
            content = file.read_bytes()
            if found.get(file.name, content) != content:
                raise ValueError(f"the piece {file.stem!r} is there twice with different numbers: keep one of them.")
            if file.name not in found:
                pieces.append(read_piece(file))
                _belongs(pieces[-1], file, study, scale, pieces[0]["settings"])
                if source is not folder:
                    fresh[file.name] = content
            found[file.name] = content
    Runs([p for p in pieces if "runs" in p], _arms(pieces))  # no seed in two pieces
    (folder / "pieces").mkdir(parents=True, exist_ok=True)
    for name, content in fresh.items():
        write_text(folder / "pieces" / name, content.decode("utf-8"))


def _arms(pieces: Sequence[dict[str, Any]]) -> list[str]:
    return list(pieces[0]["settings"].get("arms") or {}) if pieces else []


def _belongs(piece: dict[str, Any], file: Path, study: Study, scale: str, settings: Settings) -> None:
    """The piece is of this study and scale, and of the settings of the first one."""
    if (piece["study"], piece["scale"]) != (study.name, scale):
        raise ValueError(
            f"{file.name} belongs to the study {piece['study']} at scale {piece['scale']}, not {study.name} at "
            f"{scale}: take it out of the folder."
        )
    same_settings(piece["settings"], settings, file.name)


def merge(
    study: Study, scale: str, folder: Path, *, settings: Settings | None = None, reason: str = ""
) -> dict[str, Any]:
    """Compute the result from the piece files in `folder`, write it and return it. Runs nothing."""
    from ..files import write_text

    files = sorted((folder / "pieces").glob("*.json"))
    pieces = [read_piece(f) for f in files]
    for piece, file in zip(pieces, files):
        _belongs(piece, file, study, scale, pieces[0]["settings"])
    if pieces:
        used = comparable(pieces[0]["settings"])
        seeds = sorted({p["what"]["seed"] for p in pieces if p["what"].get("seed") is not None})
        if seeds:
            used["seeds"] = seeds
        end = study.conclude(pieces, used)
    else:
        used = settings if settings is not None else settings_of(study, scale)
        end = Conclusion(UNDECIDED, "not run" + (f": {reason}" if reason else "."), [], [], {})
    sentence = f"{end.verdict}: {end.sentence}" + (TOY if study.toy and scale == "smoke" and pieces else "")
    record = {
        "schema": SCHEMA,
        "study": study.name,
        "claim": study.claim,
        "question": study.question,
        "criterion": study.criterion if study.criterion_of is None else study.criterion_of(used),
        "scale": scale,
        "verdict": end.verdict,
        "sentence": sentence,
        "command": _command(study, scale, used),
        "hardware": "; ".join(sorted({str(p["hardware"]) for p in pieces})) or "none",
        "table": {"columns": end.columns, "rows": rounded(end.rows)},
        "figures": ["figure.png"] if end.draw is not None else [],
        "config": used,
        "pieces": [p["piece"] for p in pieces],
        "estimate": rounded(end.estimate),
        "versions": joined_versions([p["versions"] for p in pieces]),
    }
    folder.mkdir(parents=True, exist_ok=True)
    if end.draw is not None:
        end.draw(folder / "figure.png")
    _write_table(folder / "table.csv", end.columns, record["table"]["rows"])
    config = {"command": "study", "study": study.name, "scale": scale, **used}
    write_text(folder / "config.yaml", yaml.safe_dump(config, sort_keys=False, allow_unicode=True))
    write_text(folder / "result.json", _pretty(record))
    return record


def _command(study: Study, scale: str, used: Settings) -> str:
    """The command that would run it all: flags only for what is not the default of the scale."""
    default = json.loads(json.dumps({k: v for k, v in study.scales[scale].items() if k not in ("about", "cost")}))
    parts = ["decondense", "study", study.name, "--scale", scale]
    if used.get("seeds") not in (None, default.get("seeds")):
        parts += ["--seeds", ",".join(map(str, used["seeds"]))]
    now = comparable(used)
    changes = _changes({k: v for k, v in default.items() if k in now}, now) or {}
    for key, value in changes.items():
        parts += ["--set", f"{key}={json.dumps(value, ensure_ascii=False)}"]
    return shlex.join(parts)


def _changes(before: Settings, now: Settings, path: str = "") -> dict[str, Any] | None:
    """Key → value for `--set`, as small as can be. None: --set cannot take a key out, nor begin one with a dot or an
    equals sign in it, so the section above must be given whole."""
    if before.keys() - now.keys():
        return None
    found: dict[str, Any] = {}
    for key, value in now.items():
        if key in before and before[key] == value:
            continue
        if not key or "=" in key or key != key.strip() or ("." in key and key not in before):
            return None
        inner = None
        if isinstance(value, dict) and value and isinstance(before.get(key, {}), (dict, type(None))):
            hidden = any(other.startswith(f"{key}.") for other in before)  # a longer name would be taken first
            inner = None if hidden else _changes(before.get(key) or {}, value, f"{path}{key}.")
        found |= {f"{path}{key}": value} if inner is None else inner
    return found


# ---- writing -----------------------------------------------------------------------------------------------------


def _pretty(record: dict[str, Any]) -> str:
    """One key per line, and the rows of the table one per line: small and diffable."""
    lines = []
    for key, value in record.items():
        body = _line(value)
        if key == "table" and value["rows"]:
            rows = ",\n   ".join(_line(row) for row in value["rows"])
            body = f'{{"columns": {_line(value["columns"])}, "rows": [\n   {rows}\n  ]}}'
        elif isinstance(value, dict) and value:
            body = "{\n  " + ",\n  ".join(f"{json.dumps(k)}: {_line(v)}" for k, v in value.items()) + "\n }"
        lines.append(f" {json.dumps(key)}: {body}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _write_table(target: Path, columns: list[str], rows: list[list[Any]]) -> None:
    from ..files import write_csv

    write_csv(target, [dict(zip(columns, row)) for row in rows])
