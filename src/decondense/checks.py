"""Checks of what users give that need to know nothing of it: a choice, a flag, a whole number."""

from __future__ import annotations

from collections.abc import Collection
from numbers import Integral

from .words import nearest


def check_choice(name: str, value: object, choices: Collection[str]) -> None:
    """One of a few words; the error names the nearest."""
    if value not in choices:
        remedy = nearest(value, choices, "pick one of these.")
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}: {remedy}")


def is_whole(value: object, least: int) -> bool:
    """Whether it is a whole number of at least `least`; True is none, though Python counts with it."""
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def check_flags(**flags: object) -> None:
    """True or False; any other object would be taken for True, or for False, without a word."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise ValueError(f"{name} must be True or False, got {value!r}: give one of the two, or leave it out.")
