"""A recipe: everything a training run depends on, complete and checked before anything starts.

A recipe is a YAML file with the sections of `Recipe`. Nearly every key has a default, so a short file is a whole
recipe; the run folder keeps it printed in full. An unknown key is refused with the nearest known one, and so are keys
that contradict each other. `--set train.seed=2` on the command line overrides one key.
"""

from __future__ import annotations

import copy
import difflib
import json
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, Discriminator, Tag, ValidationError, model_validator
from pydantic.fields import FieldInfo

from ..files import AnyPath, flat, from_yaml, to_yaml
from ..words import list_of, near, nearest, perhaps_beside
from .sections import Baselines, Data, Loss, Model, Part, Snapshots, Train

Settings = Sequence[str | tuple[str, Any]]
CONTRACTS = {
    "greater_than": "above {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "less_than": "below {lt:g}",
    "less_than_equal": "at most {le:g}",
    "finite_number": "a finite number",
    **dict.fromkeys(("int_type", "int_parsing", "int_parsing_size", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    "string_type": "a string",
    "list_type": "a list",
    **dict.fromkeys(("dict_type", "model_type"), "a section of keys"),
}
"""What a value must be, by the name of the error that pydantic reports when it is not."""

ELSEWHERE = {
    "lr": "train.learning_rate",
    "wd": "train.weight_decay",
    "batch_size": "train.batch_tokens",
    "max_grad_norm": "train.clip",
    **dict.fromkeys(("dtype", "bf16", "fp16"), "train.precision"),
    **dict.fromkeys(("epochs", "num_epochs", "num_train_epochs", "steps", "max_steps"), "data.tokens"),
    **dict.fromkeys(("dataset", "datasets"), "data.text"),
    **dict.fromkeys(("block_size", "seq_len", "max_length"), "data.context"),
    **dict.fromkeys(("lambda", "lam", "coef"), "loss.weight"),
    "rank": "model.lora.r",
}
"""Key of another trainer → the key here that has its meaning, or takes its place."""


class Recipe(Part):
    name: str = "run"
    model: Model
    data: Data = Data()
    loss: Annotated[
        Annotated[Loss, Tag("Loss")] | Annotated[list[Loss], Tag("list[Loss]")],
        Discriminator(lambda loss: "list[Loss]" if isinstance(loss, list) else "Loss"),
    ] = Loss()
    baselines: Baselines = Baselines()
    train: Train = Train()
    snapshots: Snapshots = Snapshots()

    @model_validator(mode="after")
    def _agree(self) -> Recipe:
        context = self.data.context
        if self.name in ("", ".", "..") or "/" in self.name or "\\" in self.name:
            raise ValueError(f"name must be a plain folder name, got {self.name!r}: for another place give --out")
        if isinstance(self.loss, list) and (len(self.loss) < 2 or any(one.name == "none" for one in self.loss)):
            raise ValueError(
                f"a list of losses must name two or more, got {', '.join(one.name for one in self.loss) or 'nothing'}: "
                "give one loss without a list, and leave loss out for none"
            )
        for key in ("check_every", "modules"):
            if isinstance(self.loss, list) and any(getattr(one, key) is not None for one in self.loss):
                raise ValueError(f"loss.{key} is about one loss, got it in a list: leave it out")
        if self.train.batch_tokens < context:
            raise ValueError(
                f"train.batch_tokens must hold at least one block of data.context = {context} tokens, "
                f"got {self.train.batch_tokens}"
            )
        if self.snapshots.count and self.snapshots.tokens > context:
            if "tokens" in self.snapshots.model_fields_set:
                got = self.snapshots.tokens
                raise ValueError(f"snapshots.tokens must be at most data.context = {context}, got {got}")
            self.snapshots = self.snapshots.model_copy(update={"tokens": context})
        if self.baselines.active_forgetting is not None and self.model.lora is not None:
            raise ValueError("active forgetting trains the embeddings, which lora freezes: leave one of them out")
        if self.baselines.dropout is not None and not self.model.fresh:
            raise ValueError("baselines.dropout is part of an architecture: it goes with fresh weights only")
        if self.baselines.distillation is not None and self.baselines.on_logits:
            raise ValueError("distillation replaces the targets that z_loss and label_smoothing act on: leave one out")
        if self.train.fused_loss is True and self.own_head:
            raise ValueError("train.fused_loss goes with neither distillation nor lora: leave it at auto")
        if self.train.quantised and (self.data.held_out is None or not self.data.held_out_documents):
            raise ValueError(
                "train.quantised is about the loss of held-out documents: name texts in data.held_out, and leave "
                "held_out_documents above 0"
            )
        if self.train.quantised and self.model.lora is not None:
            raise ValueError("train.quantised rounds whole weights, to which lora adds: leave one of them out")
        if self.snapshots.probes and self.model.lora is not None:
            raise ValueError("snapshots.probes looks at the gradient of all weights, which lora freezes: leave one out")
        return self

    @property
    def losses(self) -> list[Loss]:
        """What is added to the task loss."""
        return [one for one in (self.loss if isinstance(self.loss, list) else [self.loss]) if one.name != "none"]

    @property
    def own_head(self) -> bool:
        """Whether the model keeps its own head: distillation needs the logits, and adapters wrap the model."""
        return self.baselines.distillation is not None or self.model.lora is not None

    @property
    def several(self) -> list[tuple[str, str]]:
        """(penalty, its weight) of each loss, as the history names them; empty for fewer than two losses."""
        numbers = range(1, len(self.losses) + 1) if len(self.losses) > 1 else ()
        return [(f"penalty_{k}", f"penalty_weight_{k}") for k in numbers]

    @property
    def batch_blocks(self) -> int:
        """Blocks per optimiser step."""
        return max(1, self.train.batch_tokens // self.data.context)

    @property
    def steps(self) -> int:
        """Optimiser steps: enough to see the whole budget once, so 200M tokens in steps of 131,072 are 1526."""
        return -(-self.data.tokens // self.step_tokens)

    @property
    def step_tokens(self) -> int:
        """Tokens per optimiser step: `train.batch_tokens` in whole blocks."""
        return self.batch_blocks * self.data.context

    @property
    def held_out_blocks(self) -> int:
        """Blocks that hold at least `data.held_out_tokens`."""
        return -(-self.data.held_out_tokens // self.data.context)

    def to_yaml(self) -> str:
        return to_yaml(self.model_dump(mode="json"))


def read_yaml(file: Path) -> dict[str, Any]:
    """Read a YAML file of sections; refuse anything else in one sentence."""
    try:
        content = from_yaml(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # a 13th month, deeply nested brackets
        raise ValueError(f"recipe {file.name!r} must be YAML: {' '.join(str(error).split())}.") from None
    if not isinstance(content, dict):
        got = "nothing" if content is None else type(content).__name__
        raise ValueError(f"recipe {file.name!r} must be a mapping of sections, got {got}: begin it with 'model:'.")
    return content


def load_recipe(path: AnyPath, settings: Settings = ()) -> Recipe:
    """Read a recipe; `settings` are "key.key=value" strings that override it, or pairs of key and value."""
    file = Path(path)
    if not file.is_file():
        close = "." if file.exists() else perhaps_beside(file)
        raise FileNotFoundError(f"no recipe at {str(path)!r}: give a YAML file, or --model and the other flags{close}")
    return recipe_from(with_settings({"name": file.stem} | read_yaml(file), settings), file.name)


def with_settings(content: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """Return `content` with the settings put in: "a.b=value", whose value is read as YAML, or pairs ("a.b", value).

    A new `loss.name` drops the options, preset and check_every of the old loss, and `loss.name=none` drops the whole
    section, or list of losses. A setting for a loss that is not named is an error.
    """
    content = copy.deepcopy(content)
    pairs = [_setting(setting) if isinstance(setting, str) else setting for setting in settings]
    loss = content.get("loss")
    if ("loss.name", "none") in pairs:
        content["loss"] = {}
    elif isinstance(loss, dict) and any(key == "loss.name" and value != loss.get("name") for key, value in pairs):
        content["loss"] = {k: v for k, v in loss.items() if k not in ("options", "preset", "check_every")}
    for key, value in pairs:
        if key.startswith("loss.") and isinstance(content.get("loss"), list):
            whole = "give it whole, --set 'loss=[{…}, {…}]'."
            raise ValueError(f"setting {key!r} is about one loss, and loss is a list: {whole}")
        put(content, key.split("."), value)
    loss = content.get("loss")
    of_a_loss = {f"loss.{key}" for key in Loss.model_fields if key != "name"}
    idle = [key for key, value in pairs if ".".join(key.split(".")[:2]) in of_a_loss and value]
    if idle and isinstance(loss, dict) and loss.get("name", "none") == "none":
        raise ValueError(
            f"setting {idle[0]!r} needs a loss, and loss.name is none: name one, like dispersion, or leave it out."
        )
    return content


def put(content: dict[str, Any], path: Sequence[str], value: Any) -> None:
    """Put the value in its place; make the sections on the way there."""
    *parents, last = path
    section = content
    for parent in parents:
        if section.get(parent) is None:
            section[parent] = {}
        section = section[parent]
        if not isinstance(section, dict):
            raise ValueError(f"setting {'.'.join(path)!r} goes into {parent!r}, which is a value and not a section.")
    section[last] = value


def _setting(setting: str) -> tuple[str, Any]:
    key, separator, value = setting.partition("=")
    if not separator or not key.strip():
        raise ValueError(f"a setting must be key=value, e.g. train.seed=2, got {setting!r}.")
    return key.strip(), value_of(value, setting)


def value_of(text: str, setting: str) -> Any:
    """The value in a setting, read as YAML."""
    try:
        return from_yaml(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        raise ValueError(f"the value of setting {setting!r} must be YAML: quote it, and give every key once.") from None


def recipe_from(content: dict[str, Any], name: str = "recipe") -> Recipe:
    """Validate a recipe; report the first thing that is wrong in one sentence."""
    try:
        recipe = Recipe.model_validate(content)
    except ValidationError as error:
        raise ValueError(_sentence(error, name)) from None
    for key, value in flat(recipe.model_dump()).items():  # also what sections pass on unchecked, such as model.config
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{name}: {key} must be a finite number, got {value}: {_remedy(key.split('.'))}.")
    return recipe


def _sentence(error: ValidationError, name: str) -> str:
    errors = sorted(error.errors(), key=lambda e: e["type"] == "missing")  # last: the key may be there, misspelt
    # A value that may be of several kinds has an error for each; the one with the longest path is the kind meant.
    first = max((e for e in errors if e["loc"][:2] == errors[0]["loc"][:2]), key=lambda e: len(e["loc"]))
    place = _place(first)
    key_path = ".".join(map(str, place))
    if first["type"] == "extra_forbidden":
        known = _keys(_part_at(place[:-1]))
        meant = _meant(str(place[-1]), place[:-1], known)
        hint = f"did you mean {meant!r}?" if meant else f"known here: {', '.join(known)}."
        return f"{name}: {key_path!r} is no key of a recipe: {hint}"
    if first["type"] == "missing":
        return f"{name}: {key_path!r} must be given, and it is missing."
    got = first.get("input")
    same_key_errors = [e for e in errors if _place(e) == place]  # one for every kind that the value may have
    if [e["type"] for e in same_key_errors] == ["model_type"]:
        key = f"{key_path}.{next(iter(_keys(_part_at(place))))}"
        remedy = f"give it as {key}: {got}" if isinstance(got, str) else f"give {key}, or leave it out"
        return f"{name}: {key_path} must be a section of keys, got {got!r}: {remedy}."
    literals = [e["ctx"]["expected"] for e in same_key_errors if e["type"] == "literal_error"]
    choices = re.findall(r"'([^']*)'", " ".join(literals))
    contracts = [CONTRACTS[e["type"]].format(**e.get("ctx", {})) for e in same_key_errors if e["type"] in CONTRACTS]
    if choices or contracts:
        any_of = list_of([*choices, *(word for kind in contracts for word in kind.split(" or "))], "or")
        must = any_of if contracts else f"one of {', '.join(choices)}"
        field = _field(place)
        if field is not None and field.description and first["type"] == "greater_than_equal":
            must += f", as {field.description}"
        shown_value = repr(got) if got is None or isinstance(got, (str, int, float)) else type(got).__name__
        return f"{name}: {key_path} must be {must}, got {shown_value}: {nearest(got, choices, f'{_remedy(place)}.')}"
    message = first["msg"].removeprefix("Value error, ").rstrip(".")
    shown = f", got {got!r}" if isinstance(got, (str, int, float, bool)) and "got" not in message else ""
    end = "" if message.endswith("?") and not shown else "."
    return f"{name}: {key_path}{': ' if key_path else ''}{message}{shown}{end}"


def _meant(key: str, section: Sequence[int | str], known: Iterable[str]) -> str | None:
    """What an unknown key of a section may stand for: an option of a loss, what other trainers call so in this section,
    a key of the section that is near, or one of another section. For that the two names must be nearly equal, since
    most names resemble some key of some section; not for a key that stands in no section."""
    from ..losses.registry import registered

    if section[:1] == ["loss"] and any(key in entry.options for entry in registered().values()):
        return f"options.{key}"
    elsewhere, inside = ELSEWHERE.get(key), "".join(f"{part}." for part in section)
    if elsewhere is not None and elsewhere.startswith(inside):
        return elsewhere.removeprefix(inside)
    if close := near(key, known):
        return close[0]
    if elsewhere is not None:
        return elsewhere
    keys = {name: f"{part}.{name}" for part, inner in _keys(Recipe).items() for name in _keys(inner)}
    close = difflib.get_close_matches(key, keys, 1, 0.8) if section else near(key, keys)
    return keys[close[0]] if close else None


def _place(error: Any) -> list[int | str]:
    """The keys that lead to the value, without the kinds that pydantic names where a value may have several."""
    return [part for part in error["loc"] if not (part in ("str", "bool", "int") or re.search(r"[\[A-Z]", str(part)))]


def _remedy(place: Sequence[int | str]) -> str:
    field = _field(place)
    if field is None or field.is_required():
        return "correct it"
    plain = isinstance(field.default, (str, int, float))
    return "correct it, or leave it out" + (f" for {json.dumps(field.default)}" if plain else "")


def _field(place: Sequence[int | str]) -> FieldInfo | None:
    part = _part_at(place[:-1])
    return part.model_fields.get(str(place[-1])) if part is not None else None


def _keys(part: type[BaseModel] | None) -> dict[str, type[BaseModel] | None]:
    """The keys of a section, each with its class if it is a section itself, else None."""
    keys: dict[str, type[BaseModel] | None] = {}
    for name, field in part.model_fields.items() if part is not None else ():
        kinds = [field.annotation, *getattr(field.annotation, "__args__", ())]
        kinds = [getattr(kind, "__origin__", kind) for kind in kinds]  # Annotated[X, …] → X
        keys[name] = next((k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel)), None)
    return keys


def _part_at(location: Sequence[int | str]) -> type[BaseModel] | None:
    part: type[BaseModel] | None = Recipe
    for name in (name for name in location if isinstance(name, str)):  # a number is an index in a list
        part = _keys(part).get(name)
    return part
