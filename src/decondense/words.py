"""Numbers and names as text for people: one place, so that the same number reads the same everywhere."""

from __future__ import annotations

import difflib
import math
import re
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

CALLERS = ("decondense", "torch", "transformers", "accelerate", "peft", "trl", "lightning", "pytorch_lightning")

Tell = Callable[[str, int, int | None], None]
"""Called with (what is being done, how much is done, how much there is or None where that is not known)."""


def warn(words: str, kind: type[Warning] = UserWarning) -> None:
    """Warn at the user's line: the first outside this package and outside the libraries that call its hooks. (From
    Python 3.12 `skip_file_prefixes` does that.)"""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in CALLERS:
        frame, level = frame.f_back, level + 1
    warnings.warn(words, kind, stacklevel=level)


def nobody(*words: object, **more: object) -> None:
    """Do nothing: the default for callbacks that report progress or a sentence."""


def signed(value: float | None, digits: int = 3) -> str:
    """+0.123, with a true minus sign; 0.000 has no sign; a dash for a value that is not finite."""
    return "–" if value is None or not math.isfinite(value) else _fixed(value, digits, True)


def points(value: float | None, *, sign: bool = False) -> str:
    """A fraction in points (percent), two decimals."""
    return "–" if value is None else _fixed(100 * value, 2, sign)


def nats(value: float | None, *, sign: bool = False) -> str:
    """A log-likelihood per item, or per token of a text, four decimals."""
    return "–" if value is None else _fixed(value, 4, sign)


def _fixed(value: float, digits: int, sign: bool = False) -> str:
    """Format with so many decimals; a value that rounds to zero has no sign."""
    text = f"{value:{'+' if sign else ''}.{digits}f}"
    return text.replace("-", "−") if float(text) else text.lstrip("+-")


def p_value(value: float) -> str:
    if value < 0.0001:
        return "< 0.0001"
    return f"{value:.4f}" if value < 0.01 else f"{value:.3f}" if value < 0.1 else f"{value:.2f}"


DIFFERENCE = (
    "task", "items", "base", "treated", "difference", "95 % interval", "p", "p (Holm)", "could have shown",
    "signal to noise",
)  # fmt: skip

DIFFERENCE_COLUMNS = (
    "task", "items", "base", "treated", "difference", "low", "high", "test", "p", "p_holm", "significant",
    "smallest_effect", "seed_sd", "item_se", "seed_se", "signal_to_noise",
)  # fmt: skip
"""What the CSV has of a row of a comparison: table.csv, and the page's."""


def difference_cells(row: Mapping[str, Any], say: Callable[..., str] = points, items: str = "{}") -> tuple[str, ...]:
    """Format a row of a comparison (`records.differences`) for people, under the heads in `DIFFERENCE`."""
    interval = "–" if row["low"] is None else f"{say(row['low'], sign=True)} to {say(row['high'], sign=True)}"
    holm = "" if row.get("p_holm") is None else p_value(row["p_holm"])
    head = str(row["task"]), items.format(row["items"]), say(row["base"]), say(row["treated"])
    ratio = "" if row.get("signal_to_noise") is None else f"{row['signal_to_noise']:.1f}".replace("-", "−")
    tests = p_value(row["p"]), holm, say(row["smallest_effect"]), ratio
    return *head, say(row["difference"], sign=True), interval, *tests


def p_words(value: float) -> str:
    text = p_value(value)
    return f"p {text}" if text.startswith("<") else f"p = {text}"


def span(value: Any, low: Any = None, high: Any = None, digits: int = 2, *, sign: bool = False) -> str:
    """0.82 [0.80, 0.83], or 0.82 where the interval is not known; a dash for a value that is not finite."""
    finite = (None if x is None or not math.isfinite(x) else x for x in (value, low, high))
    middle, *ends = (None if x is None else _fixed(x, digits, sign) for x in finite)
    if middle is None or None in ends:
        return middle or "–"
    return f"{middle} [{ends[0]}, {ends[1]}]"


def amount(number: float) -> str:
    """135M, 1.5B, 32.8k."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:g}"


def several(n: int, unit: str) -> str:
    """1 training seed, 3 training seeds."""
    return f"{n} {unit}" + ("" if n == 1 else "s")


def from_where(name: str, source: str) -> str:
    """wikitext-2 (pip package …); the name alone for a file, whose source is its name."""
    return name if name == source else f"{name} ({source})"


def duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def cell(value: Any) -> str:
    """Format a value for a table for people: four significant digits, a true minus sign."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}".replace("-", "−")
    if isinstance(value, float):
        return (f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}").replace("-", "−")
    if isinstance(value, (list, tuple)):
        return ", ".join(map(cell, value))
    return str(value)


def round_to(value: Any, digits: int = 6, *, whole: bool = True) -> Any:
    """Round numbers to so many significant digits, whole floats to integers (if `whole`), NaN and infinity to None,
    also inside lists and dictionaries: files stay small and valid JSON."""
    if isinstance(value, dict):
        return {key: round_to(inner, digits, whole=whole) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [round_to(inner, digits, whole=whole) for inner in value]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    number = float(value)
    if not math.isfinite(number):
        return None
    number = float(f"{number:.{digits}g}")
    return int(number) if whole and number == int(number) and abs(number) < 1e15 else number


def slug(*words: str) -> str:
    """Make a short name out of words: lower-case letters, digits and dashes only."""
    name = "-".join(re.sub(r"[^A-Za-z0-9]+", "-", word).strip("-") for word in words)
    return re.sub(r"-+", "-", name).strip("-")[:80].lower() or "result"


def near(name: object, known: Iterable[str], *, n: int = 1, cutoff: float = 0.65) -> list[str]:
    """Return the known words nearest to `name`, best first: those that begin with it, else those with it among their
    parts (of "token_norm": "token" and "norm"), else those spelt alike."""
    names, name = [*dict.fromkeys(known)], str(name)
    preferred = [word for word in names if name and word.startswith(name)]  # "first" for "first_order"
    preferred = preferred or [word for word in names if name in word.split("_")]  # "norm" for "token_norm"
    return difflib.get_close_matches(name, preferred, n, 0.0) or difflib.get_close_matches(name, names, n, cutoff)


def nearest(name: object, known: Collection[str], otherwise: str | None = None) -> str:
    """End a sentence about an unknown name: "did you mean 'dispersion'?", or `otherwise`, or all names. Names that
    differ from it in their numbers alone are all as near: wikitext-2 and wikitext-103 for wikitext-3."""
    form, *forms = (re.sub(r"\d+", "0", str(word)) for word in (name, *known))
    alike = [word for word, one in zip(known, forms) if one == form]
    if close := near(name, alike, n=3) or near(name, known):
        return f"did you mean {list_of(map(repr, close), 'or')}?"
    return otherwise or f"known are {', '.join(known)}."


def perhaps(name: object, known: Iterable[str], *, cutoff: float = 0.65) -> str:
    """End a sentence that needs no list of names: ": did you mean 'gpu'?" if a name is near, else "."."""
    close = near(name, known, cutoff=cutoff)
    return f": did you mean {close[0]!r}?" if close else "."


def neighbours(path: Path) -> list[str]:
    """Return the names beside a path that does not exist, to suggest one."""
    try:
        return sorted(entry.name for entry in path.parent.iterdir())
    except (OSError, ValueError):  # a null character
        return []


def perhaps_beside(path: Path) -> str:
    """End a sentence about a path that does not exist: a name beside it that is spelt alike, or a full stop."""
    return perhaps(path.name, neighbours(path), cutoff=0.7)


def quoted(text: str, most: int = 80) -> str:
    """Quote a string that a user gave, cut to at most `most` characters."""
    return repr(text if len(text) <= most else f"{text[: most - 1]}…")


def first_few(names: Sequence[str], most: int) -> str:
    """a, b and 3 more."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def list_of(names: Iterable[str], word: str = "and") -> str:
    """a, b and c."""
    *head, last = names
    return f"{', '.join(head)} {word} {last}" if head else last
