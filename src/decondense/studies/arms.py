"""What a study trains: an arm is `base` with changes, a training is an arm with a seed, and equal recipes are equal
trainings, whoever ran them."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from ..files import flat
from ..train.folder import FREE
from ..train.recipe import Recipe, recipe_from
from .settings import Settings, joined

__all__ = ["TEACHER", "essence", "recipe_of", "teacher_recipe"]

TEACHER = "teacher"


def recipe_of(settings: Settings, arm: str, seed: int) -> Recipe:
    """The whole recipe of an arm and a seed. A teacher that is trained first has the fingerprint of its recipe in its
    name, so that students of different teachers are different trainings."""
    recipe = _recipe(settings, settings["arms"][arm], arm, seed, f"arm {arm!r}")
    distillation = recipe.baselines.distillation
    if distillation is not None and distillation.teacher == TEACHER and settings.get("teacher"):
        content = essence(teacher_recipe(settings, seed).model_dump(mode="json"))
        fingerprint = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
        distillation.teacher = f"{TEACHER} {fingerprint}"
    return recipe


def teacher_recipe(settings: Settings, seed: int) -> Recipe:
    return _recipe(settings, settings["teacher"], TEACHER, seed, TEACHER)


def _recipe(settings: Settings, changes: Mapping[str, Any], name: str, seed: int, where: str) -> Recipe:
    content = joined(joined(settings["base"], changes), {"name": name, "train": {"seed": seed}})
    return recipe_from(content, where)


def essence(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """What decides the outcome of a training, its seed apart: the recipe as flat keys, defaults filled in, without
    its name, its folder of texts and what a resumed run may change."""
    with contextlib.suppress(ValueError):  # of a version that had other keys: it is compared as it is
        recipe = recipe_from(dict(recipe)).model_dump(mode="json")
    free = {"name", "data.folder", "train.seed", *(f"train.{key}" for key in FREE)}
    return {key: value for key, value in flat(dict(recipe)).items() if key not in free}
