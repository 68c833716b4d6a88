"""Files: written whole or not at all, by one writer at a time, the same content as the same bytes. No models here."""

from __future__ import annotations

import contextlib
import csv
import errno
import functools
import hashlib
import importlib.metadata
import io
import itertools
import json
import math
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from types import TracebackType
from typing import Any, TypeVar

import yaml

AnyPath = str | os.PathLike[str]
K = TypeVar("K")
V = TypeVar("V")
DEEPEST = 200  # levels of a YAML file


@contextlib.contextmanager
def atomic(target: Path) -> Iterator[Path]:
    """Yield a temporary path beside `target`, with its suffix, renamed to `target` if the block ends without error."""
    handle, name = tempfile.mkstemp(prefix=f".{target.stem}-", suffix=target.suffix, dir=target.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o644)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def replaced(folder: Path, *, stale: Iterable[str] = ()) -> Iterator[Path]:
    """Yield an empty folder to write a whole result into; its files move to `folder` if the block ends without error.
    The old result.json is removed first and the new one moved last, so that it never stands beside files of another
    result; a full disk leaves the old result. `stale`: files of an old result that the new one may lack."""
    with tempfile.TemporaryDirectory(prefix=".new-", dir=folder) as name:
        yield Path(name)
        for old in ("result.json", *stale):
            (folder / old).unlink(missing_ok=True)
        for file in sorted(Path(name).iterdir(), key=lambda path: path.name == "result.json"):
            file.replace(folder / file.name)


def write_text(target: Path, content: str) -> None:
    with atomic(target) as temporary:
        temporary.write_text(content, encoding="utf-8")


def csv_text(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows as CSV, columns in the order in which they first appear; a missing value or None is an empty cell."""
    rows = list(rows)
    columns = list(dict.fromkeys(key for row in rows for key in row))
    stream = io.StringIO()
    writer = csv.DictWriter(stream, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


def write_csv(target: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    write_text(target, csv_text(rows))


def read_json(path: Path, *, strict: bool = False) -> Any:
    """Return the content of a JSON file; one that cannot be read is a ValueError with the file and the reason.
    `strict`: so is one with NaN or Infinity, which Python writes and reads although JSON has neither, or with 1e400,
    which it reads as infinity."""
    hooks: dict[str, Any] = dict.fromkeys(("parse_constant", "parse_float"), _finite_number) if strict else {}
    try:
        return json.loads(path.read_text(encoding="utf-8"), **hooks)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ValueError(f"{path.name[:200]} could not be read: {os_reason(error)}.") from error
    except RecursionError as error:
        raise ValueError(f"{path} is nested too deeply to be a result.") from error
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}.") from error


def _finite_number(written: str) -> float:
    if not math.isfinite(number := float(written)):
        raise ValueError(f"a number must be finite, or null where it is undefined, got {written}")
    return number


def pretty_json(record: Mapping[str, Any], *, tight: bool = False) -> str:
    """Return JSON with one top-level key per line; a list of lists or sections has one member per line. `tight`: no
    spaces within lines."""

    def line(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":") if tight else None)

    lines = []
    for key, value in record.items():
        rows = isinstance(value, list) and value and isinstance(value[0], (dict, list))
        body = "[\n  " + ",\n  ".join(map(line, value)) + "\n ]" if rows else line(value)
        lines.append(f" {json.dumps(key)}: {body}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def from_yaml(text: str) -> Any:
    """Parse YAML, by libyaml where PyYAML has it: the same result in a seventh of the time. ValueError for a key that a
    section has twice, of which PyYAML would take the last, and for more than `DEEPEST` levels: libyaml recurses in C,
    and running out of stack there ends the process."""
    # A level needs a bracket, or half a column of indentation: levels are counted only where there may be too many.
    if sum(map(text.count, "[{")) > DEEPEST // 2 or re.search(rf"[-?:\s]{{{DEEPEST // 4 - 1}}}", text):
        steps = (
            isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            for event in yaml.parse(text, _Once)
        )
        if any(depth > DEEPEST for depth in itertools.accumulate(steps)):
            raise ValueError(f"sections and lists must be at most {DEEPEST} levels deep, got more: take some out")
    return yaml.load(text, _Once)


class _Once(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.visited: set[Any] = set()

    def flatten_mapping(self, node: Any) -> None:
        """Called for every section before its `<<` is merged in, and again when another section merges this one."""
        lines: dict[Any, int] = {}
        for key, _ in () if node in self.visited else node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag.endswith((":merge", ":value")):  # << and =
                continue
            name, line = self.construct_object(key), key.start_mark.line + 1  # by value: 1 and 01 are one key
            if name in lines:
                raise ValueError(
                    f"a section may have a key once, got {key.value!r} in line {lines[name]} and again in line "
                    f"{line}: keep one of them"
                )
            lines[name] = line
        self.visited.add(node)
        super().flatten_mapping(node)


def to_yaml(value: Any, *, width: int = 80) -> str:
    """Return YAML with keys in their order and letters unescaped, by libyaml in a quarter of the time. The bytes are
    those of PyYAML, except for an empty key and U+0085, U+2028 and U+2029."""
    options: dict[str, Any] = {"sort_keys": False, "allow_unicode": True, "width": width}
    with contextlib.suppress(UnicodeEncodeError):  # half a surrogate pair is no UTF-8: escaped below
        text = yaml.dump(value, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), **options)
        if "\\U" not in text:  # libyaml escapes letters above U+FFFF
            return text
    return yaml.safe_dump(value, **options)


def mapping_in(path: Path) -> dict[str, Any]:
    """Return the content of an optional YAML or JSON file beside a result; {} if it is missing or damaged."""
    try:
        content = from_yaml(path.read_text(encoding="utf-8")) if path.suffix == ".yaml" else read_json(path)
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return content if isinstance(content, dict) else {}


def finite(value: Any) -> Any:
    """Replace every number that is not finite, which JSON does not have, with None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(inner) for inner in value]
    return value


def flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Flatten {"a": {"b": 1}} to {"a.b": 1}; an empty section stays {}."""
    if not isinstance(tree, dict) or not tree:
        return {prefix.rstrip("."): tree}
    return {k: v for key, value in tree.items() for k, v in flat(value, f"{prefix}{key}.").items()}


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Group values by key, both in the order in which they come."""
    groups: dict[K, list[V]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def first_process() -> bool:
    """Whether this process is the only one or the first of its launcher: only that one prints and writes."""
    return os.environ.get("RANK", "0") == "0"


@contextlib.contextmanager
def locked(path: Path, *, busy: str | None = None) -> Iterator[None]:
    """Hold the lock file `path`, which the system releases however the process ends. While another process holds it,
    wait, or raise ValueError with the sentence `busy`. On a file system without locks, go on without one."""
    import filelock

    lock = filelock.FileLock(path, timeout=-1 if busy is None else 0)
    try:
        lock.acquire()
    except filelock.Timeout:
        raise ValueError(busy) from None
    except NotImplementedError:
        yield
        return
    try:
        yield
    finally:
        lock.release()
        if busy is not None:
            path.unlink(missing_ok=True)


def os_reason(error: OSError) -> str:
    """Return what went wrong, as the end of a sentence."""
    if error.errno == errno.ENOSPC:
        return "the disk is full"
    return error.strerror.lower() if error.strerror else str(error).rstrip(".")  # not lowered: it may hold a path


@contextlib.contextmanager
def os_sentence(what: str, remedy: str) -> Iterator[None]:
    """Raise any OSError of the block again as one sentence: `what` is wrong, the reason, the `remedy`."""
    try:
        yield
    except OSError as error:
        space_hint = "free some space or " if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        raise OSError(f"{what}: {os_reason(error)}; {space_hint}{remedy}.") from error


def look_writable(folder: Path) -> None:
    """Raise the system's own OSError for a folder that could not be made or written into. Writes nothing."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not existing.is_dir():
        reason = errno.EEXIST if existing == folder else errno.ENOTDIR
        raise OSError(reason, os.strerror(reason))
    if not os.access(existing, os.W_OK | os.X_OK):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))


def writable(path: Path, kind: str = "output folder") -> contextlib.AbstractContextManager[None]:
    return os_sentence(f"the {kind} {str(path)!r} must be writable", "choose another with --out")


@contextlib.contextmanager
def output_folder(path: Path, kind: str = "output folder") -> Iterator[Path]:
    """Make the folder and check that it can be written *before* minutes of work; remove it if it is left empty."""
    fresh = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        with writable(path, kind):
            path.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=path, prefix=".writable-"):
                pass
        yield path
    finally:
        if first_process():
            with contextlib.suppress(OSError):  # stops at the first folder that is not empty
                for folder in fresh:
                    folder.rmdir()


def sole_writer(path: Path, kind: str = "folder") -> contextlib.AbstractContextManager[None]:
    """Hold the folder's lock, or raise ValueError if another process holds it."""
    busy = f"the {kind} {str(path)!r} is in use by another process: wait for it, or choose another with --out."
    return locked(path / ".lock", busy=busy)


def file_in(path: AnyPath, name: str) -> Path:
    """Return `path`, or `path`/`name` if `path` is a folder (an existing one, or no suffix); make the folders."""
    target = Path(path)
    if target.is_dir() or not target.suffix:
        target = target / name
    target.parent.mkdir(parents=True, exist_ok=True)
    return target


def packaged_file(package: str, suffix: str) -> Path | None:
    """Return the file of an installed package whose path ends in `suffix`; None if either is missing."""
    try:
        listed = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    path = next((Path(str(file.locate())) for file in listed if str(file).endswith(suffix)), None)
    return path if path is not None and path.exists() else None


def remembered_sha256(file: Path, folder: Path) -> str:
    """Return the sha256 of a file. Reading gigabytes takes seconds, so the digest is kept in `folder` while the file's
    path, size, time of change and inode stay the same; a folder that cannot be written is ignored here."""
    state = file.stat()
    identity = f"{file.resolve()} {state.st_size} {state.st_mtime_ns} {state.st_ino}"
    note = folder / f".{hashlib.sha256(identity.encode()).hexdigest()[:20]}.sha256"
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if re.fullmatch("[0-9a-f]{64}", remembered := note.read_text(encoding="utf-8")):
            return remembered
    with file.open("rb") as handle:
        digest = hashlib.file_digest(handle, "sha256").hexdigest()
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        write_text(note, digest)
    return digest


def versions(*packages: str) -> dict[str, str]:
    """Return the version of each installed package; for this package with its commit, if known."""
    return {name: found for name in packages if (found := _version(name)) is not None}


@functools.cache  # a study asks hundreds of times, and each call reads a file
def _version(package: str) -> str | None:
    if package == "decondense":
        from . import __version__

        return f"{__version__}+g{made_by}" if (made_by := commit()) else __version__
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def commit() -> str:
    """Return the commit of the clone that holds this code, with ".dirty" if files differ from it; "" outside a clone.
    DECONDENSE_COMMIT names it for a copy without history, in full or shortened."""
    if given := os.environ.get("DECONDENSE_COMMIT"):
        return re.sub(r"^([0-9a-f]{7})[0-9a-f]+", r"\1", given)
    folder, root = Path(__file__).parents[1:3]
    if folder.name != "src" or not (root / ".git").exists():  # another repository may hold an installed copy
        return ""
    import subprocess

    command = ["git", "-C", str(root), "describe", "--always", "--exclude=*", "--abbrev=7", "--dirty=.dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):  # no git here, or it is somebody else's folder
        return ""


def safe_name(text: str) -> str:
    """Turn text into a name for a file or folder: letters, digits, dots, plus and minus."""
    for letter, word in (("λ", "lambda"), ("τ", "tau"), ("−", "-")):
        text = text.replace(letter, word)
    return re.sub(r"[^A-Za-z0-9.+-]+", "-", text).strip(".-") or "unnamed"


def told_apart(paths: Sequence[AnyPath]) -> list[str]:
    """Return the last parts of every path, as few as tell all paths apart: a/model and b/model, never model twice."""
    parts = [PurePath(path).parts for path in paths]
    longest = max(map(len, parts), default=1)
    depth = next((d for d in range(1, longest) if len({p[-d:] for p in parts}) == len(set(parts))), longest)
    return [str(PurePath(*p[-depth:])) for p in parts]


def own_trace(error: BaseException) -> TracebackType | None:
    """Return the traceback where an error was raised, if that is in this package; None if another library raised it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    is_ours = trace is not None and Path(trace.tb_frame.f_code.co_filename).is_relative_to(Path(__file__).parent)
    return trace if is_ours else None
