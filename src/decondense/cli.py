"""The ``decondense`` command. Every command lives in a file of its own under ``commands``.

Errors that the package raises on purpose become one sentence on stderr and exit code 2. With
DECONDENSE_TRACEBACK=1 they are shown in full instead.
"""

from __future__ import annotations

import os
import sys

import typer

from .commands.compare import compare
from .commands.doctor import doctor
from .commands.evaluate import evaluate
from .commands.measure import measure
from .commands.report import report
from .commands.significance import SeparatorCommand, significance
from .commands.study import study
from .commands.train import train
from .needs import MissingExtra

__all__ = ["app", "main"]

app = typer.Typer(
    name="decondense",
    help="Measure embedding condensation in Transformers, and train small language models that resist it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command()(measure)
app.command()(compare)
app.command()(train)
app.command()(evaluate)
app.command(cls=SeparatorCommand)(significance)
app.command()(study)
app.command()(report)
app.command()(doctor)


def main(arguments: list[str] | None = None) -> None:
    """Run the command and leave with 0, 2 (a sentence on stderr) or 130 (interrupted)."""
    try:
        app(arguments, prog_name="decondense")
    except KeyboardInterrupt:
        sys.exit(130)
    except (ValueError, TypeError, OSError, MissingExtra) as error:
        if os.environ.get("DECONDENSE_TRACEBACK"):
            raise
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
