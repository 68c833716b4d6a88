"""What all commands share: where words go, output folders, and the table of a measurement."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from ..meter.result import Condensation

__all__ = [
    "bar",
    "default_folder",
    "err",
    "fresh_folder",
    "is_main",
    "out",
    "output_folder",
    "progress_bar",
    "run_record",
    "state_table",
    "writing",
]

out = Console(soft_wrap=True, highlight=False)
err = Console(stderr=True, soft_wrap=True, highlight=False)


def is_main() -> bool:
    """Under torchrun or accelerate only the first process prints and writes."""
    return os.environ.get("RANK", "0") == "0"


@contextlib.contextmanager
def output_folder(path: Path) -> Iterator[Path]:
    """Make the folder and see that it can be written *before* minutes of work; leave no empty one behind."""
    fresh = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path, prefix=".writable-"):
            pass
    except OSError as error:
        raise OSError(
            f"the output folder {str(path)!r} must be writable: {_reason(error)}; choose another with --out."
        ) from error
    try:
        yield path
    except BaseException:
        if is_main():
            with contextlib.suppress(OSError):  # the first that is not empty ends it
                for folder in fresh:
                    folder.rmdir()
        raise


def default_folder(kind: str, model: str) -> Path:
    """KIND/runs-a-model for runs/a/model: the model's own path, so that two models do not share a folder."""
    from ..files import safe_name

    path = Path(model.rstrip("/") or "/")
    if path.exists():
        path = path.resolve()
        path = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) and path != Path.cwd() else path
    return Path(kind) / safe_name("-".join(part for part in path.parts if part != path.anchor).removesuffix(".gguf"))


@contextlib.contextmanager
def fresh_folder(path: Path, *, force: bool = False) -> Iterator[Path]:
    """`output_folder` for a new result: one that is there is never replaced without `force`, and nobody else works in
    the folder meanwhile."""
    from ..files import InUse, locked

    if (path / "result.json").exists() and not force:
        raise ValueError(
            f"{str(path)!r} already holds a result: choose another folder with --out, or replace it with --force."
        )
    with contextlib.ExitStack() as stack:
        stack.enter_context(output_folder(path))
        if is_main():
            try:
                stack.enter_context(locked(path / ".lock"))
            except InUse:
                raise ValueError(
                    f"the folder {str(path)!r} is in use by another process: wait for it, or choose another with --out."
                ) from None
        yield path


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """A full disk in the middle of writing is one sentence too; every file appears whole or not at all."""
    try:
        yield
    except OSError as error:
        raise OSError(
            f"the results could not be written into {str(folder)!r}: {_reason(error)}; free some space or choose "
            "another folder with --out."
        ) from error


def run_record(seconds: float, device: str | None) -> str:
    """The content of run.json: what may differ when the same result is made again."""
    from ..models import hardware, pick_device

    where = hardware(pick_device(None if device == "auto" else device))
    return json.dumps({"seconds": round(seconds, 2), "hardware": where}) + "\n"


def _reason(error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        return "the disk is full"
    return (error.strerror or str(error)).lower()


@contextlib.contextmanager
def progress_bar(label: str, *, quiet: bool) -> Iterator[Any]:
    """A callback (done, total, what) that drives a bar on stderr; another `what` than before starts the bar anew."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    if quiet or not is_main():
        yield None
        return
    what_column = TextColumn("{task.description}", markup=False)  # names of tasks and files are no markup
    columns = (what_column, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("left"), TimeRemainingColumn(), console=err, transient=True) as bar:
        task = bar.add_task(label, total=None)
        current = label

        def move(done: int, total: int, what: str = label) -> None:
            nonlocal current
            if what != current:
                current = what
                bar.reset(task, description=what)
            bar.update(task, completed=done, total=total)

        yield move


def state_table(result: Condensation) -> Table:
    """One line per hidden state, with a small bar; 78 columns, so that it fits every terminal."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("state", "cosine", "", "std", "5 %", "95 %", "near", "far", "-1st", "-top3"):
        table.add_column(name, justify="left" if name in ("state", "") else "right", no_wrap=True)
    layers, normed = result.layers, result.record["final_norm"]
    for number, state in enumerate(result.record["states"]):
        if number > layers and not normed:
            continue  # without a final norm it repeats the line above
        suffix = " normed" if normed and number == layers else " unnormed" if number > layers else ""
        name = "embedding" if number == 0 else f"{state['state']}{suffix}"
        bare = min(state["mean_cosine_without_variance3"], state["mean_cosine_without_cosine3"])
        figures = [state["std"], state["quantiles"][0], state["quantiles"][-1]]
        figures += [state["by_distance"][0], state["by_distance"][-1], state["mean_cosine_without_first"], bare]
        cells = (f"{v:.2f}" for v in figures)
        table.add_row(name, f"{state['mean_cosine']:.3f}", bar(state["mean_cosine"], width=10), *cells)
    return table


def bar(value: float, *, width: int = 24) -> str:
    """A bar of eighth blocks for a cosine: from 0 to 1; a negative one is drawn as ◂."""
    if value < 0:
        return "◂"
    eighths = round(min(1.0, value) * width * 8)
    return "█" * (eighths // 8) + ("" if eighths % 8 == 0 else " ▏▎▍▌▋▊▉"[eighths % 8])
