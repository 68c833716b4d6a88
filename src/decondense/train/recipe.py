"""A recipe: everything a training run depends on, complete and checked before anything starts.

A recipe is a YAML file with the sections below, each key with a default, so that a short file is a whole recipe; the
run folder keeps it printed in full. An unknown key is an error that names the nearest right one; so are keys that
contradict each other. `--set train.seed=2` on the command line overrides one key.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

__all__ = ["Recipe", "count", "load_recipe", "recipe_from", "with_settings"]

SUFFIXES = {"k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}


def count(value: Any) -> int:
    """A number of tokens: 2000000, "2M", "131_072", "1.5B"."""
    if isinstance(value, bool):
        raise ValueError("a number of tokens must be like 2000000 or 2M, got a truth value")
    if isinstance(value, int):
        number = value
    else:
        text = str(value).strip().lower().replace("_", "").replace(",", "")
        factor = SUFFIXES.get(text[-1:], 1)
        try:
            number = round(float(text[:-1] if factor > 1 else text) * factor)
        except (ValueError, OverflowError):
            raise ValueError(f"a number of tokens must be like 2000000, 2M or 1.5B, got {value!r}") from None
    if number < 1:
        raise ValueError(f"a number of tokens must be at least 1, got {value!r}")
    return number


Count = Annotated[int, BeforeValidator(count)]


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", validate_default=True)


class Lora(Part):
    """Low-rank adapters instead of all weights; the paper's optional setting."""

    r: int = Field(16, ge=1)
    alpha: int = Field(32, ge=1)
    dropout: float = Field(0.05, ge=0, lt=1)
    target_modules: list[str] | Literal["all-linear"] = "all-linear"


class Model(Part):
    """What is trained: a model by name (see `decondense.models`), or an architecture from scratch."""

    name: str | None = None
    revision: str | None = None
    init: bool = False  # the architecture of `name` with fresh weights
    architecture: str | None = None  # a transformers model type (gpt2, llama, qwen3) instead of a name
    config: dict[str, Any] = {}  # values of its configuration; only for fresh weights
    tokenizer: str | None = None  # a model whose tokenizer is used, or "bytes"; needed with `architecture`
    attention: str | None = None  # transformers' attn_implementation; default: its own choice
    lora: Lora | None = None
    trust_remote_code: bool = False

    @model_validator(mode="after")
    def _one_of_two(self) -> Model:
        if (self.name is None) == (self.architecture is None):
            raise ValueError("give either name or architecture, got " + ("neither" if self.name is None else "both"))
        if self.architecture is not None and self.tokenizer is None:
            raise ValueError(
                "an architecture from scratch needs tokenizer, the name of a model whose tokenizer it uses"
            )
        of_a_name = [key for key in ("revision", "init", "trust_remote_code") if getattr(self, key)]
        if self.architecture is not None and of_a_name:
            raise ValueError(
                f"{of_a_name[0]} goes with name, got it with architecture, which is from scratch already: leave it out"
            )
        if self.config and self.architecture is None and not self.init:
            raise ValueError("config changes the architecture, so trained weights do not fit it: set init to true")
        if self.lora is not None and (self.init or self.architecture is not None):
            raise ValueError("lora adapts trained weights: leave it out when training from scratch")
        return self


class Data(Part):
    """What it is trained on. `text` names one or several texts (see `decondense.text`), read one after the other."""

    text: str | list[str] = "wikitext-2:train"  # several are read one after the other until `tokens` is reached
    held_out: str | list[str] | None = None  # for the held-out loss and the snapshots; default: the end of the text
    folder: str | None = None  # of named texts; default $DECONDENSE_DATA
    tokens: Count = 2_000_000
    held_out_tokens: Count = 65_536
    context: int = Field(1024, ge=8)
    boundaries: Literal["separator", "isolated"] = "separator"  # isolated: no attention or pair across documents


class Loss(Part):
    """What is added to the task loss; the options of `decondense.regularize`."""

    name: str = "none"
    weight: float = 0.1
    layers: str | list[int] = "all"
    preset: str | None = None
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    ramp_steps: int | None = None
    check_every: int | None = None
    options: dict[str, Any] = {}  # of the loss itself: estimator, tau, clamp, …

    @model_validator(mode="after")
    def _known(self) -> Loss:
        import torch

        from ..handle import Term
        from ..losses.presets import get

        if self.name == "none":
            for key, field in type(self).model_fields.items():
                if key == "name" or key not in self.model_fields_set:
                    continue
                # A recipe that is printed in full has every key; where no name is given, the loss was forgotten.
                if "name" not in self.model_fields_set or getattr(self, key) != field.default:
                    raise ValueError(
                        f"{key} does nothing with loss none: name a loss, like dispersion, or leave it out"
                    )
            return self
        if self.schedule == "constant" and self.ramp_steps is not None:
            raise ValueError(
                f"ramp_steps goes with schedule linear or cosine, got {self.ramp_steps} with constant: choose one of "
                "those, or leave it out"
            )
        try:
            loss = get(self.name, preset=self.preset, **self.options)
            loss(torch.linspace(-1, 1, 32).view(1, 4, 8))  # a wrong value of an option shows when it is used
            Term(
                loss=loss,
                weight=self.weight,
                layers=self.layers,
                schedule=self.schedule,
                ramp_steps=self.ramp_steps,
                check_every=self.check_every,
            )
        except TypeError as error:
            raise ValueError(str(error)) from None
        return self


class ActiveForgetting(Part):
    """Input embeddings drawn anew every so many steps; see `train.active_forgetting`."""

    every: int = Field(1000, ge=1)
    learning_rate: float = Field(5e-5, gt=0)
    warmup: float = Field(0.08, ge=0, lt=1)
    std: float = Field(0.02, gt=0)


class Distillation(Part):
    """A teacher's softened predictions as a second target; see `train.distillation`."""

    teacher: str
    revision: str | None = None
    temperature: float = Field(2.0, gt=0)
    share: float = Field(0.5, gt=0, le=1)  # of the distillation term; the task loss has the rest


class Baselines(Part):
    """What the paper compares with. None is on unless it is named."""

    noisy_embedding: float | None = Field(None, gt=0)  # NEFTune's α; the paper: 1
    active_forgetting: ActiveForgetting | None = None
    distillation: Distillation | None = None


class Train(Part):
    seed: int = Field(0, ge=0)
    batch_tokens: Count = 131_072  # per optimiser step, over all processes
    micro_batch: int | None = Field(None, ge=1)  # blocks per forward pass and process; default: what fits
    learning_rate: float = Field(5e-5, gt=0)
    scale_learning_rate: bool = False  # × √(number of processes), as the paper
    schedule: Literal["cosine", "linear", "constant", "constant_with_warmup"] = "cosine"
    warmup: float = Field(0.2, ge=0, lt=1)
    weight_decay: float = Field(0.1, ge=0)
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.95, ge=0, lt=1)
    clip: float = Field(1.0, ge=0)
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    checkpointing: bool = False
    compile: Literal["auto"] | bool = "auto"
    fused_loss: Literal["auto"] | bool = "auto"
    device: str | None = None
    report_to: list[str] = []
    log_every: int = Field(10, ge=1)
    checkpoints: int = Field(4, ge=0)  # over the whole run, the last one at its end; 0: none, so no resuming
    keep: int = Field(2, ge=2)  # two, so that one is whole while the next is being written
    on_nan: Literal["stop", "skip"] = "stop"

    @model_validator(mode="after")
    def _constant(self) -> Train:
        """Trainer's constant schedule has no warm-up, whatever it is told."""
        if self.schedule == "constant":
            if self.warmup and "warmup" in self.model_fields_set:
                raise ValueError(
                    f"schedule constant has no warm-up, got warmup {self.warmup:g}: set it to 0, or schedule to "
                    "constant_with_warmup"
                )
            self.warmup = 0.0
        return self


class Snapshots(Part):
    """The meter on a few fixed held-out windows: at step 0, `count` times on the way, the last one at the end."""

    count: int = Field(4, ge=0)
    windows: int = Field(8, ge=1)
    tokens: int = Field(512, ge=2)
    bootstrap: int = Field(200, ge=1)


class Recipe(Part):
    name: str = "run"
    model: Model
    data: Data = Data()
    loss: Loss = Loss()
    baselines: Baselines = Baselines()
    train: Train = Train()
    snapshots: Snapshots = Snapshots()

    @model_validator(mode="after")
    def _agree(self) -> Recipe:
        if self.train.batch_tokens < self.data.context:
            raise ValueError(
                f"train.batch_tokens must hold at least one block of data.context = {self.data.context} tokens, "
                f"got {self.train.batch_tokens}"
            )
        if self.snapshots.count and self.snapshots.tokens > self.data.context:
            raise ValueError(
                f"snapshots.tokens must be at most data.context = {self.data.context}, got {self.snapshots.tokens}"
            )
        if self.baselines.active_forgetting is not None and self.model.lora is not None:
            raise ValueError("active forgetting trains the embeddings, which lora freezes: leave one of them out")
        if self.train.fused_loss is True and (self.baselines.distillation is not None or self.model.lora is not None):
            raise ValueError("train.fused_loss goes with neither distillation nor lora: leave it at auto")
        return self

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

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def load_recipe(path: str | os.PathLike[str], settings: Sequence[str] = ()) -> Recipe:
    """Read a recipe; `settings` are "key.key=value" strings that override it."""
    file = Path(path)
    if not file.is_file():
        raise FileNotFoundError(f"no recipe at {str(path)!r}: give a YAML file, or --model and the other flags.")
    try:
        content = yaml.safe_load(file.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"recipe {file.name!r} must be YAML: {' '.join(str(error).split())}.") from None
    if not isinstance(content, dict):
        raise ValueError(f"recipe {file.name!r} must be a mapping of sections, got {type(content).__name__}.")
    content.setdefault("name", file.stem)
    return recipe_from(with_settings(content, settings), file.name)


def with_settings(content: dict[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """`content` with every "a.b=value" put in; the value is read as YAML.

    Another loss has other options: with a new `loss.name` those of the old one go, so that `loss.name=none` is enough.
    A setting for a loss that is not named is an error.
    """
    content = yaml.safe_load(yaml.safe_dump(content))  # a deep copy
    pairs = [_setting(setting) for setting in settings]
    loss = content.get("loss")
    if isinstance(loss, dict) and any(key == "loss.name" and value != loss.get("name") for key, value in pairs):
        gone = ("options", "preset", "check_every")
        content["loss"] = {k: v for k, v in loss.items() if k not in gone and ("loss.name", "none") not in pairs}
    for key, value in pairs:
        *parents, last = key.split(".")
        here = content
        for parent in parents:
            if here.get(parent) is None:
                here[parent] = {}
            here = here[parent]
            if not isinstance(here, dict):
                raise ValueError(f"setting {key!r} goes into {parent!r}, which is a value and not a section.")
        here[last] = value
    loss = content.get("loss")
    of_a_loss = {f"loss.{key}" for key in Loss.model_fields if key != "name"}
    idle = [key for key, value in pairs if ".".join(key.split(".")[:2]) in of_a_loss and value]
    if idle and isinstance(loss, dict) and loss.get("name", "none") == "none":
        raise ValueError(
            f"setting {idle[0]!r} needs a loss, and loss.name is none: name one, e.g. loss.name=dispersion, or leave "
            "the setting out."
        )
    return content


def _setting(setting: str) -> tuple[str, Any]:
    key, separator, value = setting.partition("=")
    if not separator or not key.strip():
        raise ValueError(f"a setting must be key=value, e.g. train.seed=2, got {setting!r}.")
    try:
        return key.strip(), yaml.safe_load(value)
    except yaml.YAMLError:
        raise ValueError(f"the value of setting {setting!r} must be YAML: quote it.") from None


def recipe_from(content: dict[str, Any], name: str = "recipe") -> Recipe:
    """Validate; the first thing that is wrong becomes one sentence."""
    try:
        return Recipe.model_validate(content)
    except ValidationError as error:
        raise ValueError(_sentence(error, name)) from None


def _sentence(error: ValidationError, name: str) -> str:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        known = _keys_at(first["loc"][:-1])
        close = difflib.get_close_matches(str(first["loc"][-1]), known, n=1, cutoff=0.4) or _anywhere(first["loc"][-1])
        hint = f"did you mean {close[0]!r}?" if close else f"known here: {', '.join(known)}."
        return f"{name}: {where!r} is no key of a recipe: {hint}"
    if first["type"] == "missing":
        return f"{name}: {where!r} must be given, and it is missing."
    message = first["msg"].removeprefix("Value error, ").rstrip(".")
    got = first.get("input")
    shown = f", got {got!r}" if isinstance(got, (str, int, float, bool)) and "got" not in message else ""
    return f"{name}: {where or 'recipe'}: {message}{shown}."


def _part_at(location: Sequence[int | str]) -> type[BaseModel] | None:
    here: type[BaseModel] = Recipe
    for part in location:
        field = here.model_fields.get(str(part))
        if field is None:
            return None
        options = [field.annotation, *getattr(field.annotation, "__args__", ())]
        found = [o for o in options if isinstance(o, type) and issubclass(o, BaseModel)]
        if not found:
            return None
        here = found[0]
    return here


def _keys_at(location: Sequence[int | str]) -> list[str]:
    part = _part_at(location)
    return list(part.model_fields) if part is not None else []


def _anywhere(key: int | str) -> list[str]:
    """A key that stands in another section: `seed` is `train.seed`."""
    paths: dict[str, str] = {}
    for section in Recipe.model_fields:
        for name in _keys_at([section]):
            paths.setdefault(name, f"{section}.{name}")
    close = difflib.get_close_matches(str(key), list(paths), n=1, cutoff=0.7)
    return [paths[close[0]]] if close else []
