"""What all commands share: consoles, output folders, progress, and tables that fit the terminal."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..files import first_process, mapping_in, os_sentence, output_folder, safe_name, sole_writer, to_yaml, write_text
from ..words import duration, nobody

# Names of models, texts and folders must not be read as markup, nor a ":train:" in them as an emoji.
out = Console(soft_wrap=True, highlight=False, markup=False, emoji=False)
err = Console(soft_wrap=True, highlight=False, markup=False, emoji=False, stderr=True)
WORD = 16  # letters of a word that are kept together in a narrow table
EVERY = 10.0  # seconds between lines of progress that go into a file or a pipe


def default_folder(kind: str, model: str) -> Path:
    """KIND/runs-a-model for runs/a/model: the model's own path, so that two models do not share a folder."""
    path = Path(model.rstrip("/") or "/")
    if path.exists():
        path = path.resolve()
        path = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) and path != Path.cwd() else path
    return Path(kind) / safe_name("-".join(part for part in path.parts if part != path.anchor).removesuffix(".gguf"))


@contextlib.contextmanager
def fresh_folder(path: Path, kind: str, *, force: bool = False) -> Iterator[Path]:
    """`output_folder` for a new result, with this process as its sole writer. A result that is there is never replaced
    without `force`, nor is a file of somebody else's, and a result of another `kind` never at all."""
    from ..records import Damaged, check_folder, check_foreign

    with contextlib.suppress(Damaged):  # its kind is unknown; `force` replaces it
        check_folder(path, kind)
    if (path / "result.json").exists() and not force:
        interrupted = mapping_in(path / "result.json").get("complete") is False and any(path.glob("partial-*.npz"))
        raise kept_there(path, f"a result{' that is not finished, which --resume completes' if interrupted else ''}")
    if not force:
        check_foreign(path, kind, "with --force")
    with output_folder(path), sole_writer(path) if first_process() else contextlib.nullcontext():
        yield path


def writing(folder: Path) -> contextlib.AbstractContextManager[None]:
    """Report a failure to write, such as a full disk, in one sentence."""
    what = f"the results could not be written into {str(folder)!r}"
    return os_sentence(what, "choose another folder with --out")


def write_origin(folder: Path, config: dict[str, Any], seconds: float, **more: Any) -> None:
    """Write config.yaml, the command that made a result, and run.json, what may differ when it is made again: the
    seconds, the hardware, and `more`."""
    from ..models import hardware, pick_device

    machine = hardware(pick_device(None if config["device"] == "auto" else config["device"]))
    write_text(folder / "config.yaml", to_yaml(config))
    write_text(folder / "run.json", json.dumps({"seconds": round(seconds, 2), "hardware": machine, **more}) + "\n")


def kept_there(folder: Path, what: str) -> ValueError:
    """The error for a result that would be replaced."""
    return ValueError(
        f"{str(folder)!r} already holds {what}: choose another folder with --out, or replace it with --force."
    )


@contextlib.contextmanager
def progress_bar(label: str, *, quiet: bool) -> Iterator[Callable[..., None]]:
    """Yield a callback (done, total, what, note) that shows on stderr how far the work is and how long it will still
    take: as a bar, or, where stderr is a pipe or a file, as a line now and then. A new `what` starts the clock anew; a
    `total` of None means that the amount is unknown. If `quiet`, for JSON, nothing is shown, and what libraries print
    to stdout on import, as deepspeed does, goes to stderr, so that stdout holds the JSON alone."""
    if quiet or not first_process():
        with contextlib.redirect_stdout(sys.stderr):
            yield nobody
        return
    if not err.is_terminal:
        with _progress_lines(label) as move:
            yield move
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Column

    class TimeLeft(TimeRemainingColumn):
        def render(self, task: Any) -> Text:
            text = super().render(task)
            return text.append(" left") if text else text

    whole: dict[str, Any] = {"table_column": Column(no_wrap=True)}
    with Progress(
        TextColumn("{task.description}", markup=False, **whole),
        *([BarColumn(bar_width=min(30, err.width - 75))] if err.width >= 90 else []),
        MofNCompleteColumn(**whole),
        TimeLeft(**whole),
        TextColumn("{task.fields[note]}", markup=False, **whole),
        console=err,
        transient=True,
    ) as shown:
        task, at = shown.add_task(label, total=None, note=""), (label, True)

        def move(done: int, total: int | None, what: str = label, note: str = "") -> None:
            nonlocal task, at
            if at == (what, total is None):
                shown.update(task, completed=done, total=total, note=note)
            else:  # a new task, or the numbers of the last one would stand beside the new words
                at = (what, total is None)
                shown.remove_task(task)
                task = shown.add_task(what, total=total, completed=done, note=note)

        yield move


@contextlib.contextmanager
def _progress_lines(label: str) -> Iterator[Callable[..., None]]:
    """`progress_bar` as lines, at most one every EVERY seconds. Where a single call takes longer than that (loading
    weights, say), only a thread can write the line, as rich's own does for the bar."""
    at: tuple[int, int | None, str, str] = (0, None, label, "")
    first, begun = 0, time.monotonic()
    printed, ended, lock = begun, threading.Event(), threading.Lock()

    def move(done: int, total: int | None, what: str = label, note: str = "") -> None:
        nonlocal at, first, begun
        now = time.monotonic()
        with lock:
            if what != at[2] or (total is None) != (at[1] is None):
                first, begun = done, now
            at = done, total, what, note
            say(now)

    def say(now: float) -> None:
        nonlocal printed
        if now - printed < EVERY:
            return
        printed = now
        done, total, what, note = at
        if total is None:
            count = f"{done:,}, " if done else ""
            err.print(f"{what}: {count}{note and note + ', '}{duration(now - begun)} so far")
            return
        pace = (now - begun) / (done - first) if done > first else None
        left = "" if pace is None else f", about {duration(pace * (total - done))} left"
        err.print(f"{what}: {done:,} of {total:,}{left}{note and '; ' + note}")

    def wait() -> None:
        while not ended.wait(1.0):
            with lock:
                say(time.monotonic())

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    try:
        yield move
    finally:
        ended.set()
        thread.join()


def with_stages(move: Callable[..., None]) -> dict[str, Any]:
    """The callbacks `progress` and `stage` of `measure`, made from the callback of `progress_bar`."""
    at: tuple[int, int | None] = (0, None)

    def progress(done: int, total: int) -> None:
        nonlocal at
        at = (done, total) if done < total else (0, None)  # stages after the last window have no number
        move(done, total)

    def stage(words: str) -> None:
        move(*at, note=words)

    return {"progress": progress, "stage": stage}


def table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, left: Sequence[str] = (), drop: Sequence[str] = (),
    keep: Sequence[str] = (), heads: bool = True,
) -> Table:  # fmt: skip
    """A table in which no cell is cut or read as markup. Columns of `drop` are left out, in this order, until the table
    fits the terminal (or COLUMNS; a pipe gets all columns). If that is not enough, the columns of `left` (words) wrap;
    those of `keep` (names) and the others (numbers) never do, so lines may be longer than the terminal."""
    cells = [[Text(cell) for cell in row] for row in rows]
    narrow = out.is_terminal or "COLUMNS" in os.environ
    for number in range(len(drop) + 1 if narrow else 1):
        fitted = Table(box=None, pad_edge=False, header_style="bold", show_header=heads)
        shown = [name not in drop[:number] for name in columns]
        for name, column in itertools.compress(zip(columns, zip(*cells)), shown):
            side: Any = "left" if name in (*left, *keep) else "right"
            longest = max(len(word) for cell in column for word in cell.plain.split() or [""])
            least_of = min(WORD, longest) if name in left else None
            fitted.add_column(name, justify=side, no_wrap=name not in left, overflow="fold", min_width=least_of)
        for row in cells:
            fitted.add_row(*itertools.compress(row, shown))
        least, most = out.measure(fitted, options=out.options.update(max_width=1000))
        if most <= out.width:
            break
        fitted.width = max(least, out.width) if narrow else most
    return fitted


def bar(value: float, *, width: int = 24) -> str:
    """A bar of eighth blocks for a cosine: from 0 to 1; a negative one is drawn as ◂."""
    if value < 0:
        return "◂"
    eighths = round(min(1.0, value) * width * 8)
    return "█" * (eighths // 8) + ("" if eighths % 8 == 0 else " ▏▎▍▌▋▊▉"[eighths % 8])
