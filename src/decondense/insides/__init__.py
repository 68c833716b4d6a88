"""The private parts of other libraries that this package needs: one module per library, one function per part.

Each function says why the part is needed. If a new release has moved it, the function raises `Moved`, a sentence with
the library, its version and what was needed; it never falls back on a guess, which could change a number silently.
`tests/insides` calls every function against the installed release.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any


class Moved(RuntimeError):
    """A library no longer has a private part that this package needs."""

    def __init__(self, library: str, inside: str, why: str) -> None:
        try:
            release = version(library)
        except PackageNotFoundError:
            release = "that is installed"
        super().__init__(
            f"{inside} must exist in {library}, because {why}, but {library} {release} has none: "
            f"install a release of {library} that decondense has been tested with (constraints.txt)."
        )


def attribute(owner: Any, name: str, *, library: str, why: str) -> Any:
    """`owner.name`, or `Moved`."""
    try:
        return getattr(owner, name)
    except AttributeError:
        kind = owner if isinstance(owner, type) else type(owner)
        raise Moved(library, f"{getattr(owner, '__name__', kind.__name__)}.{name}", why) from None


def member(module: str, name: str, *, why: str) -> Any:
    """`from module import name`, or `Moved`. A library that is not installed at all is an ImportError, as usual."""
    library = module.partition(".")[0]
    import_module(library)
    try:
        return getattr(import_module(module), name)
    except (ModuleNotFoundError, AttributeError):
        raise Moved(library, f"{module}.{name}", why) from None


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Set `owner.name` to `value` meanwhile. If only the class of `owner` had the name, so it is again afterwards."""
    own, before = name in vars(owner), getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if own:
            setattr(owner, name, before)
        else:
            vars(owner).pop(name, None)  # somebody else may have removed it
