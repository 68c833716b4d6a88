"""The settings of a study: those of its scale (scales/NAME.yaml) with changes put in, checked for their form.

base, arms        a recipe, and name → what an arm changes in it; its teacher may be another arm, which is trained first
seeds, once       the training seeds, and the arms that no seed changes, which are made with the first seed alone
heatmaps          the snapshots whose histogram is kept: "all", "last" or "none"
tasks             the benchmarks after training, with `shots`, `limit` and `dtype`
beside            pairs of arms whose difference is told as well, outside the criterion
windows, tokens   how much of a text is measured; `sizes` is model → other numbers for it
about, cost       of a scale: notes for people
"""

from __future__ import annotations

import copy
import functools
import json
import re
import shlex
from collections.abc import Mapping
from importlib import resources
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError, conlist

from ..files import from_yaml
from ..train.recipe import put, value_of
from ..words import nearest

SCALES = ("smoke", "gpu", "paper")
Settings = dict[str, Any]
QUOTED = re.compile(r'"([^"]*)"(?=\.|$)')  # a key in a setting


def joined(base: Mapping[str, Any], changes: Mapping[str, Any]) -> Settings:
    """`base` with `changes` put in, section by section; None removes a key."""
    result = copy.deepcopy(dict(base))
    for key, value in changes.items():
        if isinstance(value, Mapping) and isinstance(result.get(key), Mapping):
            result[key] = joined(result[key], value)
        elif value is None:
            result.pop(key, None)
        else:
            result[key] = copy.deepcopy(value)
    return result


def loss_of(settings: Settings, arm: str) -> Settings:
    """The section `loss` of an arm's recipe with name, layers and weight; those of several losses joined by a plus."""
    defaults = {"name": "none", "layers": "all", "weight": 0.1}
    loss = joined(settings["base"], settings["arms"][arm]).get("loss", {})
    if isinstance(loss, list):
        return {key: " + ".join(str(one.get(key, default)) for one in loss) for key, default in defaults.items()}
    return defaults | loss


@functools.cache
def scale_file(name: str) -> Settings:
    text = (resources.files(__package__) / "scales" / f"{name}.yaml").read_text(encoding="utf-8")
    return from_yaml(text)


def resolved(tree: Any) -> Any:
    """What scales/NAME.yaml says, with every `from: RECIPE` replaced by that recipe."""
    if isinstance(tree, list):
        return [resolved(part) for part in tree]
    if not isinstance(tree, dict):
        return tree
    inner = {key: resolved(value) for key, value in tree.items() if key != "from"}
    return joined(resolved(scale_file("recipes")[tree["from"]]), inner) if "from" in tree else inner


def put_change(settings: Settings, change: str, where: str) -> None:
    """Put "a.b=value" into the settings, the value read as JSON or YAML; `where` names the settings in errors. Keys
    stay in their order, which matters for arms."""
    key, separator, value = change.partition("=")
    path = _path(settings, key.strip())
    if not separator or not all(path):
        raise ValueError(f"a setting must be key=value, e.g. base.data.tokens=5M, got {change!r}.")
    if path[0] not in settings:
        raise ValueError(f"{key.strip()!r} is no setting of {where}: {nearest(path[0], settings)}")
    if any('"' in part for part in path):
        raise ValueError(f"a name in quotes must end before a dot or the equals sign, got {change!r}.")
    put(settings, path, _value(value, change))


def _path(settings: Settings, key: str) -> list[str]:
    """The keys in "a.b.c". Names may have dots, so the longest key that is there is taken first; one that is not there
    yet is in quotes."""
    parts: list[str] = []
    section: Any = settings
    rest: str | None = key
    while rest is not None:
        matches = [k for k in section if rest == k or rest.startswith(f"{k}.")] if isinstance(section, dict) else []
        written = part = max(matches, key=len, default=rest.partition(".")[0])
        if quoted := QUOTED.match(rest):
            written, part = quoted[0], quoted[1]
        parts.append(part)
        rest = rest[len(written) + 1 :] if len(rest) > len(written) else None
        section = section.get(part) if isinstance(section, dict) else None
    return parts


def _value(text: str, change: str) -> Any:
    """Read a value as JSON, as the command in a result has it, else as YAML, which takes 1e-5 for a word. Refuse what
    JSON cannot hold, which could not be written beside the result."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = value_of(text, change)
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError):
        raise ValueError(
            f"the value of setting {change!r} must be text, a finite number, true, false, null, a list or a section: "
            "quote it to make it text."
        ) from None


# ---- forms: a slip is one sentence before anything runs ----------------------------------------------------------


class Form(NamedTuple):
    """What a value must be, in words and as a type; `remedy` where the default of the scale would not help."""

    words: str
    type: Any
    remedy: str = ""

    def holds(self, value: Any) -> bool:
        try:
            TypeAdapter(self.type, config=ConfigDict(strict=True)).validate_python(value)
        except ValidationError:
            return False
        return True


def _different(values: list[Any]) -> list[Any]:
    if any(one in values[:place] for place, one in enumerate(values)):
        raise ValueError("one of them is there twice")
    return values


def _list(item: Any, least: int = 1) -> Any:
    """The type of a list of at least `least` items, all of them different."""
    return Annotated[conlist(item, min_length=least), AfterValidator(_different)]


Whole = Annotated[int, Field(ge=1)]
Number = Annotated[int, Field(ge=0)]
Name = Annotated[str, Field(pattern=r"\S")]
Names = Annotated[list[Name], Field(min_length=1), AfterValidator(_different)]
_PAIR = conlist(Name, min_length=2, max_length=2)
_LISTS = "a section of lists of different names"
_DEFAULTS = (  # by the kind of the default: whole numbers count something, so they begin at 1
    (bool, Form("true or false", bool)),
    (int, Form("a whole number of at least 1", Whole)),
    (float, Form("a number", Annotated[float, Field(allow_inf_nan=False)])),
    (dict, Form("a section", Settings, "name a key inside it, as in base.data.tokens=5M")),
    (str, Form("text", Name)),
)
_NUMBERS = Form("a list of different whole numbers of at least 1", _list(Whole))
_NAMES = Form("a list of different names", Names)
FORMS = {  # settings of which the default's kind does not say enough
    "seeds": Form("a list of different whole numbers from 0 on", _list(Number), "write it like [1, 2, 3]"),
    "arms": Form("a section with a section for each arm", dict[str, Settings], "write it like arms.NAME={}"),
    "families": Form(_LISTS, dict[str, Names], 'write it like families."NAME"=[org/small, org/large]'),
    "sizes": Form(
        "a section with windows, tokens or both for each model",
        dict[str, dict[Literal["windows", "tokens"], Whole]],
        'write it like sizes."MODEL"={windows: 20, tokens: 256}',
    ),
    "checkpoints": Form(_LISTS, dict[str, Names], 'write it like checkpoints."MODEL"=[step0, main]'),
    "pairs": Form(
        "a list of different pairs of names",
        _list(_PAIR),
        "write it like [[original, distilled]]",
    ),
    "beside": Form("a list of different pairs of arms", _list(_PAIR), "write it like [[ARM, OTHER]]"),
    "tasks": Form("a list of different names", _list(Name, 0), "write it like [piqa, arc_easy]"),
    "heatmaps": Form("all, last or none", Literal["all", "last", "none"]),
    "limit": Form("a whole number of at least 1, or null for all items", Whole | None),
    "shots": Form("gpt2, qwen3, zero or a whole number", Literal["gpt2", "qwen3", "zero"] | Number),
    "dtype": Form("the name of a precision, or null", Name | None),
}


def check_form(settings: Settings, default: Settings, where: str) -> None:
    """Refuse the first setting without the form that `FORMS` or, for other keys, the kind of its default asks for."""
    for key, value in settings.items():
        form = FORMS.get(key) or _form_of(default.get(key))
        if not form.holds(value):
            remedy = form.remedy or f"the default is {_short(default.get(key))}"
            raise ValueError(f"setting {key!r} of {where} must be {form.words}, got {_short(value)}: {remedy}.")
    if "arms" in settings and not settings["arms"] and not settings.get("families"):
        raise ValueError(
            f"setting 'arms' of {where} must name at least one arm, got {{}}: leave it out for all of them."
        )


def _form_of(default: Any) -> Form:
    if isinstance(default, list):
        return _NUMBERS if default and isinstance(default[0], int) else _NAMES
    return next((form for kind, form in _DEFAULTS if isinstance(default, kind)), _DEFAULTS[-1][1])


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


# ---- the command that gives the same settings --------------------------------------------------------------------


def command_of(study: str, scale: str, default: Settings, settings: Settings) -> str:
    """The command that gives these settings, with flags only for what is not the default of the scale."""
    parts = ["decondense", "study", study, "--scale", scale]
    if settings.get("seeds") not in (None, default.get("seeds")):
        parts += ["--seeds", ",".join(map(str, settings["seeds"]))]
    now = {key: value for key, value in settings.items() if key != "seeds"}
    changes = _changes({key: value for key, value in default.items() if key in now}, now) or {}
    for key, value in changes.items():
        parts += ["--set", f"{key}={json.dumps(value, ensure_ascii=False)}"]
    return shlex.join(parts)


def _changes(before: Settings, now: Settings, path: str = "") -> Settings | None:
    """Key → value for `--set`, as small as can be. None where the section must be given whole, since --set can neither
    remove a key nor add one that has a quote or an equals sign in it."""
    if before.keys() - now.keys():
        return None
    changes: Settings = {}
    for key, value in now.items():
        if key in before and before[key] == value:
            continue
        if not key or "=" in key or '"' in key or key != key.strip():
            return None
        hidden = any(other.startswith(f"{key}.") for other in now)  # a longer name would be taken first
        place = f'{path}"{key}"' if hidden or ("." in key and key not in before) else f"{path}{key}"
        inner = None
        if isinstance(value, dict) and value and isinstance(before.get(key, {}), (dict, type(None))):
            inner = _changes(before.get(key) or {}, value, f"{place}.")
        changes |= {place: value} if inner is None else inner
    return changes
