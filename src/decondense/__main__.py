"""The installed command, and `python -m decondense`. It imports nothing by itself: the rest takes a second, in which
Ctrl-C is to end the command as it does later."""

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
