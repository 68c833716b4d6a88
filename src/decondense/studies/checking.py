"""Whether settings have the form that a scale gives them, so that a slip is one sentence before anything runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["are_seeds", "check_form"]


@dataclass(frozen=True)
class Form:
    """What a value must be, in words and as a test; `example` where the default of the scale would not help."""

    words: str
    holds: Callable[[Any], bool]
    example: str = ""


def check_form(settings: Mapping[str, Any], default: Mapping[str, Any], where: str) -> None:
    """Raises ValueError for the first setting that is of another kind than the default, or than its own rule says."""
    for key, value in settings.items():
        form = FORMS.get(key) or _form_of(default.get(key))
        if not form.holds(value):
            remedy = form.example or f"the default is {_short(default.get(key))}"
            raise ValueError(f"setting {key!r} of {where} must be {form.words}, got {_short(value)}: {remedy}.")
    if "arms" in settings and not settings["arms"] and not settings.get("families"):
        raise ValueError(
            f"setting 'arms' of {where} must name at least one arm, got {{}}: leave it out for all of them."
        )


def are_seeds(value: Any) -> bool:
    return _list_of(lambda seed: _is_whole(seed, 0))(value)


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _list_of(inner: Callable[[Any], bool], *, empty: bool = False) -> Callable[[Any], bool]:
    """A list whose members pass, none of them twice: a piece each, and pieces have names."""

    def holds(value: Any) -> bool:
        return (
            isinstance(value, list)
            and (empty or bool(value))
            and all(map(inner, value))
            and all(one not in value[:place] for place, one in enumerate(value))
        )

    return holds


def _section_of(inner: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(map(inner, value.values()))


def _is_section(value: Any) -> bool:
    return isinstance(value, dict)


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_is_text, value))


INSIDE = "name a key inside it, as in base.data.tokens=5M"
_WHOLE = Form("a whole number of at least 1", lambda value: _is_whole(value, 1))
_NAMES = Form("a list of different names", _list_of(_is_text))
_LISTS = "a section of lists of different names"
# what the kind of the default does not say
FORMS = {
    "seeds": Form("a list of different whole numbers from 0 on", are_seeds, "write it like [1, 2, 3]"),
    "arms_per_piece": Form(_WHOLE.words, _WHOLE.holds, "leave it out for all arms of a seed in one piece"),
    "arms": Form("a section with a section for each arm", _section_of(_is_section), "write it like arms.NAME={}"),
    "families": Form(_LISTS, _section_of(_NAMES.holds), "write it like families.NAME=[org/small, org/large]"),
    "checkpoints": Form(_LISTS, _section_of(_NAMES.holds), "write it like checkpoints.MODEL=[step0, main]"),
    "pairs": Form("a list of different pairs of names", _list_of(_is_pair), "write it like [[original, distilled]]"),
    "tasks": Form("a list of different names", _list_of(_is_text, empty=True), "write it like [piqa, arc_easy]"),
    "heatmaps": Form("all, last or none", lambda value: value in ("all", "last", "none")),
    "limit": Form(f"{_WHOLE.words}, or null for all items", lambda value: value is None or _WHOLE.holds(value)),
    "shots": Form("gpt2, qwen3, zero or a whole number", lambda v: v in ("gpt2", "qwen3", "zero") or _is_whole(v, 0)),
    "dtype": Form("the name of a precision, or null", lambda value: value is None or _is_text(value)),
}


def _form_of(default: Any) -> Form:
    """The kind of the default: whole numbers count something, so they begin at 1."""
    if isinstance(default, bool):
        return Form("true or false", lambda value: isinstance(value, bool))
    if isinstance(default, int):
        return _WHOLE
    if isinstance(default, float):
        return Form("a number", _is_number)
    if isinstance(default, list):
        numbers = Form("a list of different whole numbers of at least 1", _list_of(_WHOLE.holds))
        return numbers if default and isinstance(default[0], int) else _NAMES
    if isinstance(default, dict):
        return Form("a section", _is_section, INSIDE)
    return Form("text", _is_text)


def _short(value: Any) -> str:
    words = repr(value)
    return words if len(words) <= 60 else f"{words[:57]}…"
