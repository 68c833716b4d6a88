"""The ``decondense`` command. Every file in ``commands`` with a function of the file's name is a subcommand.

An error that this package raises on purpose becomes one sentence on stderr and exit code 2 (with DECONDENSE_TRACEBACK=1
the whole trace); any other error is a bug, keeps its trace and ends in exit code 1. When the reader of its output is
gone, as in `decondense study list | head -1`, it ends silently with exit code 141, as SIGPIPE ends other tools.
"""

from __future__ import annotations

import dis
import errno
import io
import os
import pkgutil
import select
import sys
import warnings
from importlib import import_module
from typing import Annotated, Any

import typer
import typer.core
import typer.main

from . import __version__, commands
from .files import first_process, own_trace
from .needs import MissingExtra

GROUPS = {
    "Look at a model": {"measure": "measure smollm2-135m", "compare": "compare --family gpt2"},
    "Train and test": {
        "train": "train --model smollm2-135m --text wikitext-2 --tokens 2M",
        "evaluate": "evaluate smollm2-135m --tasks piqa",
        "significance": "significance BASE… -- TREATED…",
    },
    "Claims and results": {"study": "study list", "report": "report results"},
    "This machine": {"doctor": "doctor"},
}
"""Commands in the order of the help, with an example each; other commands follow, without an example."""
ORDER = [name for group in GROUPS.values() for name in group]
FOREIGN = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG)
"""Errors that are the machine's fault, or come from a path that it does not take: not a bug."""
_formatwarning = warnings.formatwarning


class Grouped(typer.core.TyperGroup):
    """Lists the commands in groups, each with an example; plain text, so that it fits pipes and narrow terminals."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            if sentence := _unfit(error):
                raise ValueError(sentence) from None
            raise
        except KeyboardInterrupt as stop:  # typer would exit without a word
            if first_process():  # the command has added notes: what is done and how to go on
                print(*getattr(stop, "__notes__", ["interrupted."]), sep="\n", file=sys.stderr)
            sys.exit(130)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        known = {name: command for name in self.list_commands(ctx) if (command := self.get_command(ctx, name))}
        rest = [name for name in known if name not in ORDER]
        for title, group in {**GROUPS, "Other": dict.fromkeys(rest, "")}.items():
            rows = []
            for name in group:
                if name in known:
                    words = (known[name].help or "").split("\n\n")[0].partition(":")[0].rstrip(".")
                    rows.append((name, " ".join(words.split())))
                    rows += [("", f"$ decondense {group[name]}")] if group[name] else []
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def _unfit(error: Any) -> str | None:
    """What is wrong with the value of an option, in one sentence; None where typer has not asked pydantic, whose words
    have no remedy, or for an argument."""
    from .train.recipe import CONTRACTS

    found = error.__cause__.errors()[0] if hasattr(error.__cause__, "errors") else {}
    names = [name for name in getattr(error.param, "opts", ()) if name.startswith("-")]
    if not names or found.get("type") not in CONTRACTS:
        return None
    default = error.param.default
    without = f" for {default}" if isinstance(default, (str, int, float)) else ""
    must = CONTRACTS[found["type"]].format(**found.get("ctx", {}))
    return f"{names[0]} must be {must}, got {found['input']!r}: correct it, or leave it out{without}."


app = typer.Typer(
    name="decondense",
    cls=Grouped,
    help="Measure embedding condensation in Transformers, and train small language models that resist it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"decondense {__version__}")
        raise typer.Exit


@app.callback()
def _all(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="show the version and stop")
    ] = False,
) -> None: ...


_names = [module.name for module in pkgutil.iter_modules(commands.__path__)]
for _name in sorted(_names, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name)):
    _module = import_module(f"{commands.__name__}.{_name}")
    if hasattr(_module, _name):  # a module may also have OPTIONS for typer, such as the class of the command
        app.command(**getattr(_module, "OPTIONS", {}))(getattr(_module, _name))


def main(arguments: list[str] | None = None) -> None:
    """Run the command and leave with 0, 1 (a bug), 2 (a sentence on stderr), 130 (interrupted) or 141 (closed pipe)."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a λ that the encoding lacks is no reason to fail
    warnings.formatwarning = _warning
    try:
        _run(arguments)
    except (BrokenPipeError, SystemExit) as end:
        error = end.__context__ if isinstance(end, SystemExit) else end  # typer and rich exit with 1 because of it
        if not isinstance(error, BrokenPipeError):
            raise
        if _unheard():
            sys.exit(141)
        raise error from None


def _warning(message: Any, category: Any, filename: str, *place: Any, **line: Any) -> str:
    """Format a warning as Python does, but our own without the place: the caller's line would be one of typer's."""
    ours = filename == typer.main.__file__
    return f"warning: {message}\n" if ours else _formatwarning(message, category, filename, *place, **line)


def _run(arguments: list[str] | None) -> None:
    try:
        try:
            app(arguments, prog_name="decondense")
        finally:
            if sys.stdout is not None:  # flush here, because Python at its end would complain of a closed pipe
                sys.stdout.flush()
    except (ValueError, TypeError, OSError, MissingExtra) as error:
        if os.environ.get("DECONDENSE_TRACEBACK") or not _on_purpose(error):
            raise
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)


def _unheard() -> bool:
    """Whether stdout or stderr lost its reader; if not, another pipe broke. A stream without a reader is redirected to
    the null device, so that Python does not try to write its buffer again and complain."""
    gone = [stream for stream in (sys.__stdout__, sys.__stderr__) if stream is not None and _closed(stream.fileno())]
    null_device = os.open(os.devnull, os.O_WRONLY)
    for stream in gone:
        os.dup2(null_device, stream.fileno())
    return bool(gone)


def _closed(pipe: int) -> bool:
    """Whether the pipe's reader is gone; also true where rich has put the null device in its place, or without poll."""
    if not hasattr(select, "poll") or os.path.samestat(os.fstat(pipe), os.stat(os.devnull)):
        return True
    poll = select.poll()
    poll.register(pipe, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _on_purpose(error: BaseException) -> bool:
    """Whether a `raise` statement of this package made the error: an operation that fails (a wrong call, a value that
    does not convert) raises without one, and the messages of other libraries are not written for our users."""
    if isinstance(error, OSError) and error.errno in FOREIGN:
        return True
    trace = own_trace(error)
    return trace is not None and dis.opname[trace.tb_frame.f_code.co_code[trace.tb_lasti]] == "RAISE_VARARGS"


if __name__ == "__main__":
    main()
