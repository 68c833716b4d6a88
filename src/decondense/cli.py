"""The ``decondense`` command. Every file in ``commands`` that has a function of its own name is a command of it.

What the package refuses on purpose becomes one sentence on stderr and exit code 2 (with DECONDENSE_TRACEBACK=1 the
whole trace); an error that nobody raised on purpose is a bug, keeps its trace and ends in exit code 1.
"""

from __future__ import annotations

import dis
import errno
import os
import pkgutil
import sys
from importlib import import_module
from typing import Annotated

import typer

from . import __version__, commands
from .files import own_trace
from .needs import MissingExtra

__all__ = ["app", "main"]

ORDER = ("measure", "compare", "train", "evaluate", "significance", "study", "report", "doctor")  # others come after
FOREIGN = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG)
"""The machine's fault, or a path that it does not take: nobody's bug."""

app = typer.Typer(
    name="decondense",
    help="Measure embedding condensation in Transformers, and train small language models that resist it.",
    no_args_is_help=True,
    add_completion=False,
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


def _register() -> None:
    """A command module may also have OPTIONS, which typer is given (the class of the command, say)."""
    names = [module.name for module in pkgutil.iter_modules(commands.__path__)]
    for name in sorted(names, key=lambda n: (ORDER.index(n) if n in ORDER else len(ORDER), n)):
        module = import_module(f"{commands.__name__}.{name}")
        if hasattr(module, name):
            app.command(**getattr(module, "OPTIONS", {}))(getattr(module, name))


_register()


def main(arguments: list[str] | None = None) -> None:
    """Run the command and leave with 0, 1 (a bug), 2 (a sentence on stderr) or 130 (interrupted)."""
    try:
        app(arguments, prog_name="decondense")
    except KeyboardInterrupt:
        sys.exit(130)
    except (ValueError, TypeError, OSError, MissingExtra) as error:
        if os.environ.get("DECONDENSE_TRACEBACK") or not _on_purpose(error):
            raise
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)


def _on_purpose(error: BaseException) -> bool:
    """Whether a `raise` statement of this package made the error: an operation that fails (a wrong call, a value that
    does not convert) raises without one, and what other libraries raise is not written for our users."""
    if isinstance(error, OSError) and error.errno in FOREIGN:
        return True
    trace = own_trace(error)
    return trace is not None and dis.opname[trace.tb_frame.f_code.co_code[trace.tb_lasti]] == "RAISE_VARARGS"


if __name__ == "__main__":
    main()
