"""Generic checks of arguments: a choice, a flag, a whole number."""

from __future__ import annotations

from collections.abc import Collection
from numbers import Integral

from .words import nearest

RESAMPLINGS = 20  # of a bootstrap, at least: with fewer none lies in the 5 % outside of an interval
TOO_FEW_RESAMPLINGS = "an interval of 95 % cannot be read from fewer resamplings"


def check_choice(name: str, value: object, choices: Collection[str]) -> None:
    """Refuse a value that is not among the choices; the error suggests the nearest one."""
    if value not in choices:
        remedy = nearest(value, choices, "pick one of these.")
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}: {remedy}")


def is_whole(value: object, least: int) -> bool:
    """Whether a value is a whole number of at least `least`; True and False are not, although a bool is an int."""
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def check_flags(**flags: object) -> None:
    """Refuse anything but True and False: by its truth value, any other object would silently pass for one of them."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise ValueError(f"{name} must be True or False, got {value!r}: give one of the two, or leave it out.")
