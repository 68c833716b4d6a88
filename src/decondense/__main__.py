"""The installed command, and `python -m decondense`. The other imports are inside `main`: they take a second, in which
Ctrl-C must end the command as it does later."""

from __future__ import annotations

import sys


def main() -> None:
    try:
        from .cli import main as run
    except KeyboardInterrupt:
        print("interrupted.", file=sys.stderr)
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
