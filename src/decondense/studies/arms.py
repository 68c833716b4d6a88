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
from ..words import list_of
from .settings import Settings, joined

TEACHER = "teacher"
LOOKS = ("snapshots.count", "snapshots.spectral", "snapshots.probes")


def recipe_of(settings: Settings, arm: str, seed: int) -> Recipe:
    """The whole recipe of an arm and a seed. A teacher that is an arm has the fingerprint of its recipe in its name, so
    that students of different teachers are different trainings."""
    content = joined(joined(settings["base"], settings["arms"][arm]), {"name": arm, "train": {"seed": seed}})
    recipe = recipe_from(content, f"arm {arm!r}")
    teacher, distillation = teacher_of(settings, arm), recipe.baselines.distillation
    if teacher is not None and distillation is not None:
        teacher_essence = essence(recipe_of(settings, teacher, seed).model_dump(mode="json"))
        fingerprint = hashlib.sha256(json.dumps(teacher_essence, sort_keys=True).encode()).hexdigest()[:16]
        distillation.teacher = f"{TEACHER} {fingerprint}"
    return recipe


def teacher_of(settings: Settings, arm: str) -> str | None:
    """The arm that teaches `arm`; None where no arm does."""
    teacher = _teacher(settings, arm)
    if teacher not in settings["arms"]:
        return None
    if _teacher(settings, str(teacher)) is not None:
        raise ValueError(f"the teacher of the arm {arm!r} must have none itself, got {teacher!r}: choose another arm.")
    return teacher


def teachers_first(settings: Settings) -> list[str]:
    """All arms, teachers first."""
    arms = settings.get("arms", {})
    teachers = {_teacher(settings, arm) for arm in arms}
    return sorted(arms, key=lambda arm: arm not in teachers)


def _teacher(settings: Settings, arm: str) -> str | None:
    """The teacher as the settings name it. No recipe is made for this: every plan and every training of a study asks
    for the teachers of all arms, and making all recipes would take as long as a small training."""
    base, change = ({"baselines": part.get("baselines", {})} for part in (settings["base"], settings["arms"][arm]))
    teacher = flat(joined(base, change)).get("baselines.distillation.teacher")
    return teacher if isinstance(teacher, str) else None


def essence(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """What decides the outcome of a training, its seed apart: the recipe as flat keys, defaults filled in, without
    its name, its folder of texts, what a resumed run may change, and how often and how closely it was looked at."""
    with contextlib.suppress(ValueError):  # a recipe of a version with other keys is compared as it is
        recipe = recipe_from(dict(recipe)).model_dump(mode="json")
    free = {"name", "data.folder", "train.seed", *(f"train.{key}" for key in FREE)}
    free |= set(LOOKS[1:])
    content = {key: value for key, value in flat(dict(recipe)).items() if key not in free}
    return content | {"snapshots.count": "some" if content.get("snapshots.count") else "none"}


def unlike(recipe: Mapping[str, Any], run_recipe: Mapping[str, Any]) -> str:
    """In words, in what the recipe of an arm and that of a run of it differ nevertheless: how often and how closely the
    run was looked at, and what a resumed run may change, the machine apart; "" where in nothing."""
    with contextlib.suppress(ValueError):  # as above
        run_recipe = recipe_from(dict(run_recipe)).model_dump(mode="json")
    here, there = flat(dict(recipe)), flat(dict(run_recipe))
    keys = [*LOOKS, *(f"train.{key}" for key in FREE if key not in ("device", "report_to"))]
    differing = [key for key in keys if here.get(key) != there.get(key)]
    words = [f"{key} {json.dumps(there.get(key))} ({json.dumps(here.get(key))} in the settings)" for key in differing]
    return list_of(words) if words else ""


def as_in(recipe: Settings, run_recipe: Mapping[str, Any]) -> Settings:
    """The recipe of an arm for a run of it: its seed, its snapshots and what a resumed run may change are the run's."""
    train = {key: value for key, value in recipe["train"].items() if key not in FREE}
    train |= {key: value for key, value in run_recipe["train"].items() if key in ("seed", *FREE)}
    return {**recipe, "train": train, "snapshots": run_recipe.get("snapshots", recipe["snapshots"])}
