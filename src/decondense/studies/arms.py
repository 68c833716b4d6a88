"""What a study trains: an arm is `base` with changes, a training is an arm with a seed, and equal recipes are equal
trainings, whoever ran them."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from ..files import flat
from ..train.folder import FREE
from ..train.recipe import Recipe, recipe_from
from .settings import Settings, joined

__all__ = ["TEACHER", "check", "checking", "essence", "fingerprint", "recipe_of", "teacher_recipe"]

TEACHER = "teacher"


def recipe_of(settings: Settings, arm: str, seed: int) -> Recipe:
    """The whole recipe of an arm and a seed. A teacher that is trained first has the fingerprint of its recipe in its
    name, so that students of different teachers are different trainings."""
    content = joined(joined(settings["base"], settings["arms"][arm]), {"name": arm, "train": {"seed": seed}})
    recipe = recipe_from(content, f"arm {arm!r}")
    distillation = recipe.baselines.distillation
    if distillation is not None and distillation.teacher == TEACHER and settings.get("teacher"):
        distillation.teacher = f"{TEACHER} {fingerprint(teacher_recipe(settings, seed).model_dump(mode='json'))}"
    return recipe


def teacher_recipe(settings: Settings, seed: int) -> Recipe:
    content = joined(joined(settings["base"], settings["teacher"]), {"name": TEACHER, "train": {"seed": seed}})
    return recipe_from(content, TEACHER)


def check(settings: Settings) -> None:
    """Every recipe is valid, or the first that is not is named, before anything runs."""
    for arm in settings.get("arms") or ():
        recipe_of(settings, arm, 0)
    if settings.get("teacher"):
        teacher_recipe(settings, 0)


def checking(*needed: str) -> Callable[[Settings], None]:
    """`check`, of a study that compares arms by name: they must be there."""

    def both(settings: Settings) -> None:
        missing = [arm for arm in needed if arm not in settings["arms"]]
        if missing:
            raise ValueError(
                f"the study compares the arms {', '.join(map(repr, needed))}, and the settings lack "
                f"{', '.join(map(repr, missing))}: change arms one by one, like arms.NAME.loss.weight=0.2."
            )
        check(settings)

    return both


def essence(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """What decides the outcome of a training, its seed apart: the recipe as flat keys, defaults filled in, without
    its name, its folder of texts and what a resumed run may change."""
    with contextlib.suppress(ValueError):  # of a version that had other keys: it is compared as it is
        recipe = recipe_from(dict(recipe)).model_dump(mode="json")
    free = {"name", "data.folder", "train.seed", *(f"train.{key}" for key in FREE)}
    return {key: value for key, value in flat(dict(recipe)).items() if key not in free}


def fingerprint(recipe: Mapping[str, Any]) -> str:
    """Equal for recipes that train the same model, up to the seed."""
    return hashlib.sha256(json.dumps(essence(recipe), sort_keys=True).encode()).hexdigest()[:16]
